//! `get` and `put` with a Samba behind the gateway: small credit windows, and what is left after each way to end.
//!
//! Without smbd, or without root to run it, the tests print that and skip, unless SMBDIRECT_REQUIRE_TOOLS is set.

use std::{
    env,
    ffi::OsString,
    fs,
    io::{self, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use crate::support::{Listening, Running, command, eventually, listening, names_in, write_noise};

/// A Samba with one share for guests, and a gateway in front of it.
struct Server {
    root: tempfile::TempDir,
    share: PathBuf,
    smbd_address: String,
    gateway: Option<Listening>,
    _smbd: Running,
}

/// Returns whether smbd can run here, and says so if it cannot.
pub(crate) fn can_run_smbd() -> bool {
    let is_there = Command::new("smbd").arg("--version").output().is_ok();
    let is_root = Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|id| id.stdout == b"0\n");
    if !is_there || !is_root {
        assert!(
            env::var_os("SMBDIRECT_REQUIRE_TOOLS").is_none(),
            "smbd, and root"
        );
        println!("skipped: no smbd, or not root");
    }
    is_there && is_root
}

/// Makes the folders and the configuration of an smbd below `root`, with one share for guests, which is the folder
/// `share`. Returns the arguments of smbd. `settings` are lines of the global section.
pub(crate) fn smbd_arguments(root: &Path, port: u16, settings: &str) -> Vec<OsString> {
    for name in ["share", "lock", "private", "run", "state", "cache"] {
        fs::create_dir(root.join(name)).unwrap();
    }
    let at = root.display();
    let text = format!(
        "[global]\n\
         server role = standalone\nmap to guest = bad user\nguest account = root\n\
         smb ports = {port}\ninterfaces = lo\nbind interfaces only = yes\n\
         lock directory = {at}/lock\nprivate dir = {at}/private\npid directory = {at}/run\n\
         state directory = {at}/state\ncache directory = {at}/cache\nncalrpc dir = {at}/ncalrpc\n\
         log file = {at}/log\nload printers = no\ndisable spoolss = yes\n{settings}\n\
         [share]\npath = {at}/share\nguest ok = yes\nread only = no\n"
    );
    let file = root.join("smb.conf");
    fs::write(&file, text).unwrap();
    let arguments = ["--foreground", "--no-process-group", "-s"].map(OsString::from);
    [&arguments[..], &[file.into()]].concat()
}

impl Server {
    /// Returns `None` where smbd cannot run. `settings` are lines of the global section.
    fn start(settings: &str) -> Option<Self> {
        if !can_run_smbd() {
            return None;
        }
        let root = tempfile::tempdir().unwrap();
        let share = root.path().join("share");
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let mut smbd = Command::new("smbd");
        smbd.args(smbd_arguments(root.path(), port, settings));
        let smbd = Running::new(smbd);
        let address = format!("127.0.0.1:{port}");
        eventually("smbd listens", || TcpStream::connect(&address).is_ok());
        let gateway = listening(command(&["gateway", "127.0.0.1:0", &address]));
        Some(Self {
            root,
            share,
            smbd_address: address,
            gateway: Some(gateway),
            _smbd: smbd,
        })
    }

    fn place(&self, name: &str) -> String {
        let gateway = self.gateway.as_ref().expect("it runs");
        format!("//{}/share/{name}", gateway.address)
    }

    fn client(&self, arguments: &[&str], options: &[&str]) -> Running {
        let mut client = command(arguments);
        client.args(["--user", "Guest"]).args(options);
        client
            .env("SMBDIRECT_PASSWORD", "")
            .current_dir(self.root.path());
        Running::new(client)
    }

    /// Starts to store a long file, and returns when the server has some of it.
    fn put(&self, options: &[&str]) -> Running {
        let huge = fs::File::create(self.root.path().join("huge")).unwrap();
        huge.set_len(64 << 30).unwrap();
        let put = self.client(&["put", "huge", &self.place("stored")], options);
        eventually("the server has bytes", || {
            let length = |name: &String| fs::metadata(self.share.join(name)).map(|file| file.len());
            names_in(&self.share)
                .iter()
                .any(|name| length(name).is_ok_and(|length| length > 0))
        });
        put
    }

    fn has_nothing(&self) {
        eventually("nothing is left", || names_in(&self.share).is_empty());
    }
}

#[test]
fn a_put_that_ends_leaves_nothing() {
    let Some(mut server) = Server::start("") else {
        return;
    };
    for options in [&[][..], &["--messages"]] {
        for signal in ["INT", "TERM"] {
            let put = server.put(options);
            put.signal(signal);
            put.finish().failed(1, "interrupted");
            server.has_nothing();
        }
        let put = server.put(options);
        put.signal("KILL");
        put.status();
        server.has_nothing();
        // The source fails while requests are outstanding.
        let put = server.put(options);
        fs::File::create(server.root.path().join("huge")).unwrap();
        put.finish().failed(1, "huge cannot be read");
        server.has_nothing();
        // The gateway is lost, and with it the connection of the server.
        let put = server.put(options);
        let gateway = server.gateway.take().expect("it runs");
        gateway.running.signal("KILL");
        gateway.running.status();
        let done = put.finish();
        assert_eq!(done.status.code(), Some(1), "{done:?}");
        assert!(done.stderr.contains("when it notices the end"), "{done:?}");
        server.has_nothing();
        let Some(again) = Server::start("") else {
            return;
        };
        server = again;
    }
}

#[test]
fn a_get_that_ends_leaves_nothing_here() {
    let Some(server) = Server::start("") else {
        return;
    };
    let huge = fs::File::create(server.share.join("huge")).unwrap();
    huge.set_len(64 << 30).unwrap();
    let into = server.root.path().join("into");
    fs::create_dir(&into).unwrap();
    for options in [&[][..], &["--messages"]] {
        let get = server.client(&["get", &server.place("huge"), "into"], options);
        eventually("it stores", || !names_in(&into).is_empty());
        get.signal("INT");
        get.finish().failed(1, "interrupted");
        assert_eq!(names_in(&into), [""; 0]);
    }
}

/// The server loses the answer to CLOSE, so the command waits for it when the file is complete.
#[test]
fn a_get_that_has_the_file_succeeds_whatever_signals_come() {
    let Some(mut server) = Server::start("") else {
        return;
    };
    write_noise(&server.share, "file", 100_000);
    for signals in [1, 2] {
        let address = losing_answers(&server.smbd_address, CLOSE, 0);
        server.gateway = Some(listening(command(&["gateway", "127.0.0.1:0", &address])));
        let mut get = server.client(&["get", &server.place("file"), "got", "--force"], &[]);
        let line = get.line();
        assert!(line.starts_with("got  "), "{line}");
        for _ in 0..signals {
            get.signal("INT");
            thread::sleep(Duration::from_millis(100));
        }
        get.finish().succeeded();
    }
}

#[test]
fn small_credit_windows_are_enough() {
    for window in ["1", "2", "3", "8", "15"] {
        let settings = format!("smb2 max credits = {window}");
        let Some(server) = Server::start(&settings) else {
            return;
        };
        write_noise(server.root.path(), "file", 3_000_001);
        for options in [&[][..], &["--messages"]] {
            let place = server.place("stored");
            let put = server.client(&["put", "file", &place, "--force"], options);
            put.finish().succeeded();
            let get = server.client(&["get", &place, "back", "--force"], options);
            get.finish().succeeded();
            let back = fs::read(server.root.path().join("back")).unwrap();
            let sent = fs::read(server.root.path().join("file")).unwrap();
            assert!(back == sent, "{window} {options:?}");
        }
        server
            .client(&["ls", &server.place("")], &[])
            .finish()
            .succeeded();
        assert_eq!(names_in(&server.share), ["stored"]);
    }
}

/// A TCP relay in front of smbd that loses the answers to one command, after the first `answered` of them.
fn losing_answers(smbd: &str, command: u16, answered: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let smbd = smbd.to_owned();
    thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            let mut server = TcpStream::connect(&smbd).unwrap();
            let (mut requests, mut to_server) =
                (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || {
                let _ = io::copy(&mut requests, &mut to_server);
                let _ = to_server.shutdown(Shutdown::Both);
            });
            let mut left = answered;
            thread::spawn(move || {
                while let Ok(frame) = read_frame(&mut server) {
                    if frame[16..18] == command.to_le_bytes() {
                        if left == 0 {
                            continue;
                        }
                        left -= 1;
                    }
                    if client.write_all(&frame).is_err() {
                        break;
                    }
                }
                let _ = client.shutdown(Shutdown::Both);
            });
        }
    });
    address
}

/// Reads a frame of SMB over TCP, with its length.
fn read_frame(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    stream.read_exact(&mut frame)?;
    let length = u32::from_be_bytes(frame[..4].try_into().expect("four bytes"));
    frame.resize(4 + length as usize, 0);
    stream.read_exact(&mut frame[4..])?;
    Ok(frame)
}

/// SMB2 CREATE, SET_INFO and CLOSE.
const CREATE: u16 = 5;
const CLOSE: u16 = 6;
const SET_INFO: u16 = 17;

#[test]
fn a_put_that_is_interrupted_while_it_creates_or_names_the_file_ends_soon() {
    let Some(mut server) = Server::start("") else {
        return;
    };
    write_noise(server.root.path(), "file", 100_000);
    for (silent, answered, says) in [
        // The first CREATE asks whether the file exists.
        (CREATE, 1, ".partial` may be left on the server"),
        (SET_INFO, 0, "stored exists, it is complete"),
        (CLOSE, 0, "stored exists, it is complete"),
    ] {
        let address = losing_answers(&server.smbd_address, silent, answered);
        server.gateway = Some(listening(command(&["gateway", "127.0.0.1:0", &address])));
        let begun = Instant::now();
        let put = server.client(&["put", "file", &server.place("stored")], &[]);
        eventually("the server has the file", || {
            !names_in(&server.share).is_empty()
        });
        // The answer is lost by then.
        thread::sleep(Duration::from_millis(300));
        put.signal("INT");
        let done = put.finish();
        assert!(begun.elapsed() < Duration::from_secs(15), "{done:?}");
        assert_eq!(done.status.code(), Some(1), "{done:?}");
        assert!(done.stderr.contains(says), "{done:?}");
        assert_eq!(
            done.stderr.matches("partial").count(),
            usize::from(silent == CREATE),
            "{done:?}"
        );
        eventually("nothing unfinished is left", || {
            names_in(&server.share).iter().all(|name| name == "stored")
        });
        let _ = fs::remove_file(server.share.join("stored"));
    }
}
