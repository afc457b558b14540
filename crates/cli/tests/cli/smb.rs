//! `get` and `put` with a Samba behind the gateway: small credit windows, and what is left after each way to end.
//!
//! Without smbd, or without root to run it, the tests print that and skip, unless SMBDIRECT_REQUIRE_TOOLS is set.

use std::{
    env, fs,
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::Command,
};

use crate::support::{Listening, Running, command, eventually, listening, names_in, write_noise};

/// A Samba with one share for guests, and a gateway in front of it.
struct Server {
    root: tempfile::TempDir,
    share: PathBuf,
    gateway: Option<Listening>,
    _smbd: Running,
}

impl Server {
    /// Returns `None` where smbd cannot run. `settings` are lines of the global section.
    fn start(settings: &str) -> Option<Self> {
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
            return None;
        }
        let root = tempfile::tempdir().unwrap();
        let share = root.path().join("share");
        for name in ["share", "lock", "private", "run", "state", "cache"] {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let at = root.path().display();
        let text = format!(
            "[global]\n\
             server role = standalone\nmap to guest = bad user\nguest account = root\n\
             smb ports = {port}\ninterfaces = lo\nbind interfaces only = yes\n\
             lock directory = {at}/lock\nprivate dir = {at}/private\npid directory = {at}/run\n\
             state directory = {at}/state\ncache directory = {at}/cache\nncalrpc dir = {at}/ncalrpc\n\
             log file = {at}/log\nload printers = no\ndisable spoolss = yes\n{settings}\n\
             [share]\npath = {at}/share\nguest ok = yes\nread only = no\n"
        );
        let file = root.path().join("smb.conf");
        fs::write(&file, text).unwrap();
        let mut smbd = Command::new("smbd");
        smbd.args(["--foreground", "--no-process-group", "-s"])
            .arg(file);
        let smbd = Running::new(smbd);
        let address = format!("127.0.0.1:{port}");
        eventually("smbd listens", || TcpStream::connect(&address).is_ok());
        let gateway = listening(command(&["gateway", "127.0.0.1:0", &address]));
        Some(Self {
            root,
            share,
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
