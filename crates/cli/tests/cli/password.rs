//! Where the password of `--user` comes from. No server is needed: the password is there before the connection.

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::TcpListener,
    process::{Command, Stdio},
    thread,
};

use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, tcgetattr},
};

use crate::support::{PROGRAM, Running, eventually, ignores_hangup};

/// The rest of a command line whose login needs a password, at a port where nothing listens.
const LOGIN: &str = "ls //127.0.0.1:1/share --user me";
/// The error of a command that has the password.
const HAS_PASSWORD: &str = "nothing listens on 127.0.0.1:1";

/// Runs a script of Bash, in which `$smbdirect` is the command. Returns what it prints.
fn bash(script: &str) -> String {
    let mut command = Command::new("bash");
    command.args(["-c", &format!("{script} 2>&1")]);
    command
        .env("smbdirect", PROGRAM)
        .env_remove("SMBDIRECT_PASSWORD");
    let output = command.stdin(Stdio::null()).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_descriptor_is_read_where_it_stands_and_to_the_end_of_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secrets");
    fs::write(&file, "user me\nsecret\nrest\n").unwrap();
    let script = format!(
        "{{ read first; $smbdirect {LOGIN} --password-fd 7 7<&0; cat; }} <{}",
        file.display()
    );
    let printed = bash(&script);
    assert!(printed.contains(HAS_PASSWORD), "{printed}");
    assert!(printed.ends_with("\nrest\n"), "{printed}");
}

#[test]
fn a_descriptor_can_be_a_socket_or_a_pipe() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let peer = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"secret\n").unwrap();
        // The command does not wait for more than the line.
        stream.read(&mut [0]).unwrap()
    });
    let printed = bash(&format!(
        "$smbdirect {LOGIN} --password-fd 9 9<>/dev/tcp/127.0.0.1/{port}"
    ));
    assert!(printed.contains(HAS_PASSWORD), "{printed}");
    assert_eq!(peer.join().unwrap(), 0);
    let printed = bash(&format!(
        "$smbdirect {LOGIN} --password-fd 5 5< <(echo secret)"
    ));
    assert!(printed.contains(HAS_PASSWORD), "{printed}");
}

#[test]
fn a_signal_ends_the_wait_for_a_descriptor() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(LOGIN.split(' ')).args(["--password-fd", "0"]);
    command.stdin(reader.try_clone().unwrap());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    writer.write_all(b"sec").unwrap();
    let waiting = Running::new(command);
    eventually("it reads what is there", || {
        rustix::io::ioctl_fionread(&reader).unwrap() == 0
    });
    waiting.signal("TERM");
    waiting.finish().failed(1, "interrupted");
}

#[test]
fn a_password_that_cannot_be_used_is_named() {
    for (rest, says) in [
        ("--password-fd 9 9<&-", "cannot be used: Bad file"),
        ("--password-fd 3 3<&-", "cannot be used: Bad file"),
        ("--password-fd 2000000000", "cannot be used: Bad file"),
        ("--password-fd=-1", "the number of a descriptor"),
        (
            "--password-fd 9 9</dev/null",
            "--password-fd 9: there is no password: the input is at its end",
        ),
        ("--password-fd 9 9</", "--password-fd 9: Is a directory"),
        (
            "--password-fd 9 9< <(printf 'sec\\xe9ret\\n')",
            "--password-fd 9 is not UTF-8",
        ),
    ] {
        let printed = bash(&format!("$smbdirect {LOGIN} {rest}"));
        assert!(printed.contains(says), "{rest}: {printed}");
    }
    let printed = bash(&format!(
        "SMBDIRECT_PASSWORD=$'sec\\xe9ret' $smbdirect {LOGIN}"
    ));
    assert!(
        printed.contains("SMBDIRECT_PASSWORD is not UTF-8"),
        "{printed}"
    );
}

/// A terminal with the command on it, whose stdin is another file.
struct Asked {
    terminal: File,
    slave: File,
    running: Running,
}

impl Asked {
    fn new(command_line: &str) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let name = ptsname(&terminal, Vec::new())
            .unwrap()
            .into_string()
            .unwrap();
        let open = || File::options().read(true).write(true).open(&name).unwrap();
        let script = format!("exec \"$smbdirect\" {command_line} </dev/null");
        let mut command = Command::new("setsid");
        command
            .args(["--ctty", "bash", "-c", &script])
            .stdin(open());
        command
            .env("smbdirect", PROGRAM)
            .env_remove("SMBDIRECT_PASSWORD");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut asked = Self {
            terminal: terminal.into(),
            slave: open(),
            running: Running::new(command),
        };
        asked.reads("Password of me: ");
        assert!(!asked.echoes());
        asked
    }

    fn echoes(&self) -> bool {
        tcgetattr(&self.slave)
            .unwrap()
            .local_modes
            .contains(LocalModes::ECHO)
    }

    fn reads(&mut self, text: &str) {
        let mut read = String::new();
        while !read.contains(text) {
            let mut bytes = [0; 64];
            let length = self.terminal.read(&mut bytes).unwrap();
            read += std::str::from_utf8(&bytes[..length]).unwrap();
        }
    }
}

#[test]
fn a_process_without_a_terminal_is_told_what_to_do() {
    let printed = bash(&format!("setsid $smbdirect {LOGIN}"));
    assert!(printed.contains("no terminal to ask on"), "{printed}");
    assert!(
        printed.contains("set SMBDIRECT_PASSWORD, or give --password-fd N"),
        "{printed}"
    );
}

#[test]
fn a_terminal_that_is_not_stdin_is_asked() {
    let mut asked = Asked::new(LOGIN);
    asked.terminal.write_all(b"wrong\x15secret\n").unwrap();
    let slave = asked.slave.try_clone().unwrap();
    asked.running.finish().failed(1, HAS_PASSWORD);
    assert!(
        tcgetattr(&slave)
            .unwrap()
            .local_modes
            .contains(LocalModes::ECHO)
    );
}

/// The command lines that ask for a password.
const ASKING: [&str; 5] = [
    LOGIN,
    "ls //127.0.0.1:1 --user me",
    "get //127.0.0.1:1/share/file /tmp --user me",
    "put Cargo.toml //127.0.0.1:1/share/ --user me",
    "check 127.0.0.1:1 --user me",
];

#[test]
fn whatever_ends_the_question_restores_the_echo() {
    for line in ASKING {
        for signal in ["INT", "TERM", "HUP", "QUIT", "ALRM", "USR1", "USR2"] {
            // As under nohup, where the question goes on.
            if signal == "HUP" && ignores_hangup() {
                continue;
            }
            let asked = Asked::new(line);
            asked.running.signal(signal);
            let slave = asked.slave.try_clone().unwrap();
            asked.running.finish().failed(1, "interrupted");
            let modes = tcgetattr(&slave).unwrap().local_modes;
            assert!(modes.contains(LocalModes::ECHO), "{line}: {signal}");
        }
        // Ctrl-C, Ctrl-\, and the end of the input.
        for (typed, says) in [
            (&b"sec\x03"[..], "interrupted"),
            (b"sec\x1c", "interrupted"),
            (b"\x04", "the input is at its end"),
        ] {
            let mut asked = Asked::new(line);
            asked.terminal.write_all(typed).unwrap();
            let slave = asked.slave.try_clone().unwrap();
            asked.running.finish().failed(1, says);
            let modes = tcgetattr(&slave).unwrap().local_modes;
            assert!(modes.contains(LocalModes::ECHO), "{line}: {typed:?}");
        }
    }
}
