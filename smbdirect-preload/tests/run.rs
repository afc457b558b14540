//! `smbdirect run` with an unchanged program, compared with the same program over TCP.
#![cfg(target_os = "linux")]

use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
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
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .args([source, "-o"])
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
    let over_tcp = Command::new("timeout")
        .arg("100")
        .arg(&program)
        .args(arguments(&port))
        .output()
        .unwrap();
    check(&over_tcp);

    // Over SMB Direct, with frames returned by `listen --echo`.
    let Some(echo) = Listening::start(&["--echo"]) else {
        return;
    };
    // This address takes connections and does not answer.
    let mute = TcpListener::bind(("127.0.0.3", echo.port)).unwrap();
    let over_smb_direct = run(&program, echo.port)
        .args(arguments("445"))
        .arg("127.0.0.3")
        .output()
        .unwrap();
    drop(mute);
    check(&over_smb_direct);
    let errors = String::from_utf8_lossy(&over_smb_direct.stderr);
    assert!(
        errors.contains("127.0.0.2"),
        "the refused connections are explained: {errors}"
    );
}

/// A program may exit as soon as it has written its last frame.
#[test]
fn last_frame_arrives_after_the_program_has_ended() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = program(folder.path()) else {
        return;
    };
    let Some(mut sink) = Listening::start(&["--sink", "--once"]) else {
        return;
    };
    let sent = run(&program, sink.port)
        .args(["send", "127.0.0.1", "445"])
        .output()
        .unwrap();
    check(&sent);
    let mut line = String::new();
    sink.output.read_line(&mut line).unwrap();
    assert!(line.contains("1 message, 200 B"), "{line}");
    assert!(line.contains("closed"), "{line}");
}

/// `smbdirect listen` on a free port.
struct Listening {
    _process: Ended,
    port: u16,
    output: BufReader<ChildStdout>,
}

impl Listening {
    /// Returns `None` without the command, which is built with the workspace.
    fn start(options: &[&str]) -> Option<Self> {
        let command = build().join("smbdirect");
        if !command.exists() {
            assert!(
                env::var_os("SMBDIRECT_REQUIRE_TOOLS").is_none(),
                "{command:?} is missing"
            );
            eprintln!("skipped: cargo build -p smbdirect-cli");
            return None;
        }
        let mut process = Command::new(&command)
            .args(["listen", "127.0.0.1:0"])
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let process = Ended(process);
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let (_, port) = line.trim_end().rsplit_once(':').unwrap();
        Some(Self {
            _process: process,
            port: port.parse().unwrap(),
            output,
        })
    }
}

/// Returns the command that runs a program over SMB Direct.
fn run(program: &Path, direct_port: u16) -> Command {
    let library = env::current_exe()
        .unwrap()
        .with_file_name("libsmbdirect_preload.so");
    assert!(library.exists(), "{library:?}");
    let mut command = Command::new(build().join("smbdirect"));
    command
        .args(["run", "--direct-port", &direct_port.to_string(), "--"])
        .args(["timeout", "100"])
        .arg(program)
        .env("SMBDIRECT_PRELOAD", library);
    command
}
