//! `smbdirect run` with an unchanged program, compared with the same program over TCP.
#![cfg(target_os = "linux")]

use std::{
    env,
    fs::{self, Permissions},
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    net::TcpListener,
    os::unix::fs::{PermissionsExt, chown},
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
                    if matches!(header, [0 | 0x85, 0, 0, 0]) {
                        continue;
                    }
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

/// Fails unless `command` ends with an error that has `reason`, and without a connection by TCP to the port of
/// `server`.
fn check_refused(command: &mut Command, reason: &str, server: &TcpListener) {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{command:?}");
    assert!(errors.contains(reason), "{command:?}: {errors}");
    server.set_nonblocking(true).unwrap();
    let error = server.accept().expect_err("the program used TCP");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
}

/// Returns the command that sends by `program` to the port of `server`, before the program's name.
fn redirected(server: &TcpListener) -> Option<(Command, String)> {
    let port = server.local_addr().unwrap().port().to_string();
    let mut command = Command::new(command()?);
    command.args(["run", "--direct-port", "1", "--port", &port, "--"]);
    Some((command, port))
}

#[test]
fn program_without_the_library_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = program(folder.path()) else {
        return;
    };
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let arguments = |command: &mut Command, program: &Path, port: &str| {
        command.arg(program).args(["send", "127.0.0.1", port]);
    };
    let copy_in = |name: &str| {
        let folder = folder.path().join(name);
        fs::create_dir(&folder).unwrap();
        let copy = folder.join("libsmbdirect_preload.so");
        fs::copy(library(), &copy).unwrap();
        copy
    };
    let cut = folder.path().join("cut.so");
    fs::write(&cut, &fs::read(library()).unwrap()[..1000]).unwrap();
    for (library, reason) in [
        (copy_in("a b"), "does not load"),
        (copy_in("a:b"), "does not load"),
        (copy_in("$LIB"), "does not load"),
        (cut, "does not load"),
        (program.clone(), "does not load"),
        (folder.path().join("missing.so"), "SMBDIRECT_PRELOAD is"),
    ] {
        let Some((mut command, port)) = redirected(&server) else {
            return;
        };
        arguments(&mut command, &program, &port);
        check_refused(command.env("SMBDIRECT_PRELOAD", library), reason, &server);
    }

    // Programs into which the system loads no library, and a script for one.
    let fixed = folder.path().join("static");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/program.c");
    let compiler = Command::new("cc")
        .args(["-static", "-pthread", source, "-o"])
        .arg(&fixed)
        .status();
    let mut refused = Vec::new();
    if compiler.unwrap().success() {
        let script = folder.path().join("script");
        fs::write(&script, format!("#!{} send\n", fixed.display())).unwrap();
        fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
        refused.extend([
            (fixed, "not linked dynamically"),
            (script, "not linked dynamically"),
        ]);
    }
    let musl = folder.path().join("musl");
    let compiler = Command::new("musl-gcc")
        .args(["-pthread", source, "-o"])
        .arg(&musl)
        .status();
    match compiler {
        Ok(status) if status.success() => refused.push((musl, "is linked with musl")),
        _ => eprintln!("skipped: musl-gcc is not installed (musl-tools)"),
    }
    let privileged = folder.path().join("privileged");
    fs::copy(&program, &privileged).unwrap();
    if chown(&privileged, Some(65534), None).is_ok() {
        fs::set_permissions(&privileged, Permissions::from_mode(0o4755)).unwrap();
        refused.push((privileged, "gets other privileges"));
    }
    for (program, reason) in refused {
        let (mut command, port) = redirected(&server).unwrap();
        arguments(&mut command, &program, &port);
        check_refused(command.env("SMBDIRECT_PRELOAD", library()), reason, &server);
    }
}

/// A program that a symbolic link names, with a library next to its real file.
#[test]
fn libraries_next_to_the_real_file_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let Some(run) = command() else { return };
    let real = folder.path().join("real");
    fs::create_dir(&real).unwrap();
    fs::write(real.join("own.c"), "int own(void) { return 9; }").unwrap();
    fs::write(
        real.join("main.c"),
        "int own(void); int main(void) { return own(); }",
    )
    .unwrap();
    let libraries = [
        "-shared -fPIC -o libown.so own.c",
        "-o main main.c -L. -lown -Wl,-rpath,$ORIGIN",
    ];
    for arguments in libraries {
        let compiler = Command::new("cc")
            .args(arguments.split(' '))
            .current_dir(&real)
            .status();
        assert!(compiler.unwrap().success());
    }
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("real/main", &link).unwrap();
    let status = Command::new(run)
        .args(["run", "--"])
        .arg(&link)
        .env("SMBDIRECT_PRELOAD", library())
        .status();
    assert_eq!(status.unwrap().code(), Some(9));
}

/// A child without the environment of the program has no library.
#[test]
fn child_without_the_library_cannot_use_tcp() {
    let folder = tempfile::tempdir().unwrap();
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release
        .split(['.', '-'])
        .map(|number| number.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap(), numbers.next().unwrap());
    if version < (6, 7) {
        eprintln!("skipped: Linux {release} cannot keep a process from a TCP port");
        return;
    }
    let Some(program) = program(folder.path()) else {
        return;
    };
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let Some((mut command, port)) = redirected(&server) else {
        return;
    };
    command
        .args(["env", "-i"])
        .arg(&program)
        .args(["send", "127.0.0.1", &port])
        .env("SMBDIRECT_PRELOAD", library());
    check_refused(&mut command, "Permission denied", &server);
}

/// Runs a script of the shell until it has written a line.
fn script(text: &str, folder: &Path) -> Option<(Ended, BufReader<ChildStdout>)> {
    let mut process = Command::new(command()?)
        .args(["run", "--", "sh", "-c", text])
        .env("SMBDIRECT_PRELOAD", library())
        .env("TMPDIR", folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(process.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    Some((Ended(process), output))
}

fn send_signal(signal: &str, process: &Ended) {
    let kill = Command::new("kill")
        .args(["-s", signal, &process.0.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
}

#[test]
fn signals_reach_the_program_and_its_status_returns() {
    let folder = tempfile::tempdir().unwrap();
    let wait = "echo ready; while :; do sleep 0.05; done";
    for (number, signal) in [
        (1, "HUP"),
        (2, "INT"),
        (3, "QUIT"),
        (10, "USR1"),
        (12, "USR2"),
        (15, "TERM"),
        (28, "WINCH"),
        (18, "CONT"),
        (20, "TSTP"),
    ] {
        // A shell cannot trap what was ignored when it began, as SIGINT is for commands in the background.
        if is_ignored(number) {
            eprintln!("skipped: SIG{signal} is ignored here");
            continue;
        }
        let text = format!("trap 'echo got; exit 40' {signal}; {wait}");
        let Some((mut process, mut output)) = script(&text, folder.path()) else {
            return;
        };
        send_signal(signal, &process);
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "got\n", "{signal}");
        assert_eq!(process.0.wait().unwrap().code(), Some(40), "{signal}");
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
    // A signal that kills, one that is ignored from the beginning, and a stop.
    let (mut process, _output) = script(wait, folder.path()).unwrap();
    send_signal("USR1", &process);
    assert_eq!(process.0.wait().unwrap().code(), Some(128 + 10));
    let text = "echo ready; read line; exit 9";
    let (mut process, _output) = script(&format!("trap '' HUP; {text}"), folder.path()).unwrap();
    send_signal("HUP", &process);
    send_signal("TSTP", &process);
    send_signal("CONT", &process);
    drop(process.0.stdin.take());
    assert_eq!(process.0.wait().unwrap().code(), Some(9));
}

/// Returns whether this process, and so what it starts, ignores the signal with this number.
fn is_ignored(number: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .unwrap();
    let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
    mask >> (number - 1) & 1 == 1
}

/// `smbdirect listen` on a free port.
struct Listening {
    _process: Ended,
    port: u16,
    output: BufReader<ChildStdout>,
}

impl Listening {
    /// Returns `None` without the command.
    fn start(options: &[&str]) -> Option<Self> {
        let mut process = Command::new(command()?)
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

/// Returns the command, or `None` without it. It is built with the workspace.
fn command() -> Option<PathBuf> {
    let command = build().join("smbdirect");
    if !command.exists() {
        assert!(
            env::var_os("SMBDIRECT_REQUIRE_TOOLS").is_none(),
            "{command:?} is missing"
        );
        eprintln!("skipped: cargo build -p smbdirect-cli");
        return None;
    }
    Some(command)
}

/// Returns the library that the test was built with.
fn library() -> PathBuf {
    let library = env::current_exe()
        .unwrap()
        .with_file_name("libsmbdirect_preload.so");
    assert!(library.exists(), "{library:?}");
    library
}

/// Returns the command that runs a program over SMB Direct.
fn run(program: &Path, direct_port: u16) -> Command {
    let mut command = Command::new(build().join("smbdirect"));
    command
        .args(["run", "--direct-port", &direct_port.to_string(), "--"])
        .args(["timeout", "100"])
        .arg(program)
        .env("SMBDIRECT_PRELOAD", library());
    command
}
