//! `smbdirect run` with an unchanged program, compared with the same program over TCP.
#![cfg(target_os = "linux")]

use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
};

/// Returns the folder of the build.
fn build() -> PathBuf {
    let test = env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().to_owned()
}

/// Compiles the program, or returns `None` without a compiler.
fn program(folder: &Path) -> Option<PathBuf> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/program.c");
    let program = folder.join("program");
    let compiler = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", source, "-o"])
        .arg(&program)
        .status();
    match compiler {
        Ok(status) => assert!(status.success()),
        Err(error) => {
            assert!(
                env::var_os("SMBDIRECT_REQUIRE_TOOLS").is_none(),
                "cc: {error}"
            );
            eprintln!("skipped: cc: {error}");
            return None;
        }
    }
    Some(program)
}

/// A child that is ended when the test ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn check(output: &Output) {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{errors}");
}

#[test]
fn program_sees_the_same_over_tcp_and_over_smb_direct() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = program(folder.path()) else {
        return;
    };

    // Over TCP, with frames returned by this thread. This checks the program itself.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut header = [0; 4];
                while stream.read_exact(&mut header).is_ok() {
                    let mut message = vec![0; u32::from_be_bytes(header) as usize];
                    stream.read_exact(&mut message).unwrap();
                    stream.write_all(&header).unwrap();
                    stream.write_all(&message).unwrap();
                }
            });
        }
    });
    let arguments = |port: &str| {
        [
            "127.0.0.1".to_owned(),
            "127.0.0.2".to_owned(),
            port.to_owned(),
        ]
    };
    let over_tcp = Command::new(&program)
        .args(arguments(&port))
        .output()
        .unwrap();
    check(&over_tcp);

    // Over SMB Direct, with frames returned by `listen --echo`.
    let command = build().join("smbdirect");
    if !command.exists() {
        assert!(
            env::var_os("SMBDIRECT_REQUIRE_TOOLS").is_none(),
            "{command:?} is missing"
        );
        eprintln!("skipped: cargo build -p smbdirect-cli");
        return;
    }
    let mut echo = Command::new(&command)
        .args(["listen", "127.0.0.1:0", "--echo"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(echo.stdout.take().unwrap());
    let _echo = Ended(echo);
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    let (_, direct_port) = line.trim_end().rsplit_once(':').unwrap();
    let direct_port: String = direct_port
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    thread::spawn(move || std::io::copy(&mut stdout, &mut std::io::sink()));
    let library = env::current_exe()
        .unwrap()
        .with_file_name("libsmbdirect_preload.so");
    assert!(library.exists(), "{library:?}");
    let over_smb_direct = Command::new(&command)
        .args(["run", "--direct-port", &direct_port, "--"])
        .arg(&program)
        .args(arguments("445"))
        .env("SMBDIRECT_PRELOAD", library)
        .output()
        .unwrap();
    check(&over_smb_direct);
    let errors = String::from_utf8_lossy(&over_smb_direct.stderr);
    assert!(
        errors.contains("127.0.0.2"),
        "the refused connections are explained: {errors}"
    );
}
