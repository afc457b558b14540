//! Names as a server lists them, URLs, links of DFS, and a signing that is not supported, with a Samba behind the gateway.
//!
//! Without smbd, or without root to run it, the tests print that and skip, unless SMBDIRECT_REQUIRE_TOOLS is set.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    os::unix::fs::symlink,
    path::PathBuf,
    process::Command,
};

use crate::{
    smb::{can_run_smbd, smbd_arguments},
    support::{Done, Listening, Running, command, eventually, listening},
};

/// A Samba with a share for guests, and a gateway in front of it.
struct Server {
    root: tempfile::TempDir,
    share: PathBuf,
    gateway: Listening,
    _smbd: Running,
}

impl Server {
    /// Returns `None` where smbd cannot run. `ROOT` in the settings of the global section is the folder of the server.
    fn start(settings: &str) -> Option<Self> {
        if !can_run_smbd() {
            return None;
        }
        let root = tempfile::tempdir().unwrap();
        let settings = settings.replace("ROOT", root.path().to_str().unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let mut smbd = Command::new("smbd");
        smbd.args(smbd_arguments(root.path(), address.port(), &settings));
        let smbd = Running::new(smbd);
        eventually("smbd listens", || TcpStream::connect(address).is_ok());
        let gateway = listening(command(&["gateway", "127.0.0.1:0", &address.to_string()]));
        Some(Self {
            share: root.path().join("share"),
            root,
            gateway,
            _smbd: smbd,
        })
    }

    /// Runs a command in the folder of the server. `SERVER` in an argument is the address of the gateway.
    fn run(&self, arguments: &[&str]) -> Done {
        let arguments = arguments
            .iter()
            .map(|argument| argument.replace("SERVER", &self.gateway.address));
        let mut command = command(&arguments.collect::<Vec<_>>());
        command
            .current_dir(self.root.path())
            .env("SMBDIRECT_PASSWORD", "");
        Running::new(command).finish()
    }
}

#[test]
fn what_is_listed_can_be_named() {
    let Some(server) = Server::start("mangled names = no") else {
        return;
    };
    let folder = server.share.join("dir.");
    fs::create_dir(&folder).unwrap();
    fs::create_dir(folder.join("in ")).unwrap();
    let names = [
        "Dinosaur Jr.",
        "end ",
        "a b",
        "dir./f",
        "dir./in /g",
        "\u{f025}",
        "\u{f028}x",
    ];
    for name in names {
        fs::write(server.share.join(name), name).unwrap();
    }
    // U+F025 and U+F028 are shown as the characters that they stand for.
    let shown = ["Dinosaur Jr.", "end ", "a b", "dir./f", "dir./in /g", "?"];
    for (name, shown) in names.iter().zip(shown) {
        let place = format!("//SERVER/share/{shown}");
        server
            .run(&["get", &place, "got", "--force", "--user", "Guest"])
            .succeeded();
        assert_eq!(
            fs::read_to_string(server.root.path().join("got")).unwrap(),
            *name
        );
        let list = server
            .run(&["ls", &place, "--user", "Guest"])
            .succeeded()
            .stdout;
        let last = shown.rsplit('/').next().unwrap();
        assert_eq!(
            list.trim_end_matches('\n').rsplit("  ").next().unwrap(),
            last,
            "{list}"
        );
    }
    let list = server
        .run(&["ls", "//SERVER/share/dir.", "--user", "Guest"])
        .succeeded();
    assert!(
        list.stdout.contains("  in ") && list.stdout.contains("  f\n"),
        "{list:?}"
    );
    for name in ["missing", "missing.", "dir./missing", "missing./f"] {
        let place = format!("//SERVER/share/{name}");
        let done = server.run(&["get", &place, "--user", "Guest"]);
        done.failed(1, "does not exist").one_line();
    }
    // The same by a URL, with the user in it.
    let done = server.run(&["get", "smb://Guest@SERVER/share/dir%2E/in%20/g", "by-url"]);
    done.succeeded();
    assert_eq!(
        fs::read_to_string(server.root.path().join("by-url")).unwrap(),
        "dir./in /g"
    );
}

#[test]
fn a_dfs_link_is_named_with_its_target() {
    let dfs = "[dfs]\npath = ROOT/dfs\nmsdfs root = yes\nguest ok = yes\n";
    let Some(server) = Server::start(dfs) else {
        return;
    };
    let folder = server.root.path().join("dfs");
    fs::create_dir(&folder).unwrap();
    symlink("msdfs:other.example\\data", folder.join("link")).unwrap();
    fs::write(folder.join("f"), "here").unwrap();
    fs::write(server.root.path().join("source"), "there").unwrap();
    for arguments in [
        ["get", "//SERVER/dfs/link/a/b", "got"],
        ["put", "source", "//SERVER/dfs/link/a/b"],
        ["ls", "//SERVER/dfs/link/a/b", "--json"],
    ] {
        let done = server.run(&[&arguments[..], &["--user", "Guest"]].concat());
        let says = "a DFS link, which leads to //other.example/data/a/b; name that place";
        assert!(
            done.stderr.contains(says) || done.stdout.contains(says),
            "{done:?}"
        );
    }
    server
        .run(&["get", "//SERVER/dfs/f", "got", "--user", "Guest"])
        .succeeded();
}

#[test]
fn a_server_with_another_signing_is_named() {
    let Some(server) = Server::start("server smb3 signing algorithms = HMAC-SHA256") else {
        return;
    };
    let done = server.run(&["ls", "//SERVER/share", "--user", "Guest"]);
    done.failed(
        1,
        "signing by AES-CMAC or AES-GMAC, not by HMAC-SHA256 alone",
    );
}
