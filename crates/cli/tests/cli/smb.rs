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
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    Listening, PROGRAM, Running, command, eventually, ignores_hangup, listening, names_in,
    write_noise,
};

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

/// Bytes of a file whose transfer a test ends. The disk has room for it.
const HUGE_BYTES: u64 = 4 << 30;

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
        huge.set_len(HUGE_BYTES).unwrap();
        let put = self.client(&["put", "huge", &self.place("stored")], options);
        eventually("the server has bytes", || {
            let stored = fs::metadata(self.share.join("stored"));
            stored.is_ok_and(|file| file.len() > 0)
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
        put.finish()
            .failed(1, "huge became shorter while it was read");
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
    huge.set_len(HUGE_BYTES).unwrap();
    let into = server.root.path().join("into");
    fs::create_dir(&into).unwrap();
    for options in [&[][..], &["--messages"]] {
        // A command that is started by nohup goes on after HUP.
        let hangup = (!ignores_hangup()).then_some("HUP");
        for signal in ["INT", "TERM", "QUIT"].into_iter().chain(hangup) {
            let get = server.client(&["get", &server.place("huge"), "into"], options);
            let id = get.id();
            eventually("it stores", || has_open_file_in(id, &into));
            get.signal(signal);
            get.finish().failed(1, "interrupted");
            assert_eq!(names_in(&into), [""; 0]);
        }
    }
}

/// Returns whether a process has bytes of a file in this folder, perhaps without a name.
fn has_open_file_in(process: u32, folder: &Path) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{process}/fd")) else {
        return false;
    };
    open.flatten().any(|entry| {
        let is_there = fs::read_link(entry.path()).is_ok_and(|path| path.starts_with(folder));
        is_there && fs::metadata(entry.path()).is_ok_and(|file| file.len() > 0)
    })
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

/// SMB2 CREATE, CLOSE and WRITE.
const CREATE: u16 = 5;
const CLOSE: u16 = 6;
const WRITE: u16 = 9;

#[test]
fn a_put_that_is_interrupted_while_it_creates_or_keeps_the_file_ends_soon() {
    let Some(mut server) = Server::start("") else {
        return;
    };
    write_noise(server.root.path(), "file", 100_000);
    for (silent, says) in [
        (CREATE, "the server has not answered: an old file at //"),
        (WRITE, "the server deletes the unfinished //"),
        (CLOSE, "stored exists, it is complete"),
    ] {
        let address = losing_answers(&server.smbd_address, silent, 0);
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
        drop(server.gateway.take());
        eventually("nothing unfinished is left", || {
            let stored = fs::read(server.share.join("stored")).ok();
            let sent = fs::read(server.root.path().join("file")).ok();
            stored.is_none() || stored == sent
        });
        let _ = fs::remove_file(server.share.join("stored"));
    }
}

/// What a file on either side was before stays, but for its bytes.
#[test]
fn force_writes_in_place() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    let Some(server) = Server::start("") else {
        return;
    };
    let here = server.root.path();
    write_noise(here, "new", 100_000);
    for (old, length) in [("short", 5), ("long", 3_000_001)] {
        for folder in [here, &server.share] {
            let path = write_noise(folder, old, length);
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
        let before = fs::metadata(server.share.join(old)).unwrap();
        let place = server.place(old);
        let put = server.client(&["put", "new", &place, "--force"], &[]);
        put.finish().succeeded();
        let after = fs::metadata(server.share.join(old)).unwrap();
        assert_eq!(
            (after.ino(), after.mode(), after.len()),
            (before.ino(), before.mode(), 100_000)
        );
        // Through a link, whose file is the old one.
        let link = here.join(format!("link to {old}"));
        symlink(here.join(old), &link).unwrap();
        let before = fs::metadata(here.join(old)).unwrap();
        let get = server.client(&["get", &place, link.to_str().unwrap(), "--force"], &[]);
        get.finish().succeeded();
        let after = fs::metadata(here.join(old)).unwrap();
        assert_eq!((after.ino(), after.mode()), (before.ino(), before.mode()));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let same = fs::read(here.join(old)).unwrap() == fs::read(here.join("new")).unwrap();
        assert!(same, "{old}");
    }
    // A link to a file that does not exist yet.
    symlink("made", here.join("dangling")).unwrap();
    let get = server.client(&["get", &server.place("long"), "dangling", "--force"], &[]);
    get.finish().succeeded();
    assert_eq!(fs::metadata(here.join("made")).unwrap().len(), 100_000);
}

/// A file that was written in place by a part says so.
#[test]
fn an_interrupted_force_says_that_the_file_is_incomplete() {
    let Some(server) = Server::start("") else {
        return;
    };
    for folder in [server.root.path(), &server.share] {
        let huge = fs::File::create(folder.join("huge")).unwrap();
        huge.set_len(HUGE_BYTES).unwrap();
        fs::write(folder.join("old"), "x").unwrap();
    }
    let grows = |path: PathBuf| {
        eventually("it is written", || {
            fs::metadata(&path).is_ok_and(|file| file.len() > 1 << 20)
        });
    };
    let put = server.client(&["put", "huge", &server.place("old"), "--force"], &[]);
    grows(server.share.join("old"));
    put.signal("INT");
    put.finish()
        .failed(1, "old is now incomplete: a part of it is new");
    let get = server.client(&["get", &server.place("huge"), "old", "--force"], &[]);
    grows(server.root.path().join("old"));
    get.signal("QUIT");
    get.finish().failed(1, "old is now incomplete: its first ");
}

/// A file that exceeds the limit of the process is incomplete, too, and a new one leaves nothing.
#[test]
fn a_file_beyond_the_limit_of_the_process_is_an_error() {
    let Some(server) = Server::start("") else {
        return;
    };
    write_noise(&server.share, "file", 3_000_000);
    let here = server.root.path();
    fs::write(here.join("old"), "x").unwrap();
    let limited = |target: &str| {
        let script = "ulimit -f 1000; exec \"$0\" \"$@\"";
        let mut shell = Command::new("bash");
        shell.args(["-c", script, PROGRAM, "get", &server.place("file"), target]);
        shell.args(["--force", "--user", "Guest"]).current_dir(here);
        shell.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::new({
            shell.env("SMBDIRECT_PASSWORD", "");
            shell
        })
        .finish()
    };
    let done = limited("old");
    done.failed(1, "old is now incomplete: its first 0.98 MiB are new");
    done.failed(1, "old cannot be written: file too large");
    limited("new").failed(1, "new cannot be written: file too large");
    assert!(!here.join("new").exists());
}

/// While a put is not finished, nobody else sees its file.
#[test]
fn a_file_that_is_not_finished_is_nobodys() {
    let Some(server) = Server::start("") else {
        return;
    };
    let put = server.put(&[]);
    fs::write(server.root.path().join("small"), "x").unwrap();
    let place = server.place("stored");
    for arguments in [
        &["put", "small", &place][..],
        &["put", "small", &place, "--force"],
        &["get", &place],
        &["ls", &place],
    ] {
        let done = server.client(arguments, &[]).finish();
        done.failed(1, "another `put` has not finished it");
    }
    put.signal("INT");
    put.finish().failed(1, "interrupted");
    server.has_nothing();
}

/// Sources are read to their end, whatever length the file system says, or refused before anything is stored.
#[test]
fn sources_are_read_to_their_end_or_refused() {
    let Some(server) = Server::start("") else {
        return;
    };
    let place = server.place("");
    for source in [
        "/proc/version",
        "/sys/kernel/mm/transparent_hugepage/enabled",
    ] {
        let Ok(bytes) = fs::read(source) else {
            continue;
        };
        let put = server.client(&["put", source, &place], &[]);
        put.finish().succeeded();
        let name = Path::new(source).file_name().unwrap();
        assert_eq!(fs::read(server.share.join(name)).unwrap(), bytes);
        fs::remove_file(server.share.join(name)).unwrap();
    }
    let fifo = server.root.path().join("fifo");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    for source in ["fifo", "/dev/zero", "."] {
        let put = server.client(&["put", source, &place], &[]);
        put.finish().failed(2, "is not a regular file");
    }
    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::OsStr::from_bytes(b"\xff");
    fs::write(server.root.path().join(name), "x").unwrap();
    let mut put = command(&["put"]);
    put.arg(server.root.path().join(name)).arg(&place);
    Running::new(put).finish().failed(2, "is not UTF-8");
    assert_eq!(names_in(&server.share), [""; 0]);
}

/// What can be known before a byte moves is said before, and nothing is left.
#[test]
fn what_cannot_be_stored_is_refused_before_a_byte_moves() {
    let Some(server) = Server::start("veto files = /vetoed/") else {
        return;
    };
    let here = server.root.path();
    write_noise(&server.share, "file", 100_000);
    let huge = fs::File::create(server.share.join("huge")).unwrap();
    huge.set_len(8 << 40).unwrap();
    fs::File::create(here.join("huge"))
        .unwrap()
        .set_len(8 << 40)
        .unwrap();
    let long = "x".repeat(300);
    let (file, huge) = (server.place("file"), server.place("huge"));
    for (arguments, says) in [
        (
            &["get", &file, "no/file"][..],
            "no/file: its folder does not exist",
        ),
        (&["get", &file, "new/"], "new/: its folder does not exist"),
        (
            &["get", &file, &long],
            "cannot be written: file name too long",
        ),
        (&["get", &file, "/dev/null"], "is no regular file"),
        (&["get", &huge, "new"], "its file system has room for "),
        (
            &["put", "huge", &server.place("new")],
            "the server has room for ",
        ),
        (
            &["put", "huge", &file, "--force"],
            "the server has room for ",
        ),
        (
            &["put", "smb.conf", &server.place(&long)],
            "the server takes no file with this name",
        ),
        (
            &["put", "smb.conf", &server.place("vetoed")],
            "the server lets no file have this name",
        ),
        (
            &["put", "smb.conf", &server.place("no/file")],
            "its folder does not exist",
        ),
        (
            &["put", "smb.conf", &file],
            "file: it exists; --force overwrites it",
        ),
    ] {
        let done = server.client(arguments, &[]).finish();
        done.failed(1, says).one_line();
    }
    assert_eq!(names_in(&server.share), ["file", "huge"]);
    assert_eq!(
        fs::metadata(server.share.join("file")).unwrap().len(),
        100_000
    );
    assert!(!here.join("new").exists() && !here.join("no").exists());
}
