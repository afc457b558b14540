//! The SMB servers of this machine: ksmbd, Samba, and a gateway of this project.

use super::root::Root;
use crate::facts::{Fabric, Ksmbd, Server};

/// The daemon of ksmbd.
const MOUNTD: &str = "ksmbd.mountd";

/// Reads the state of the servers.
pub(super) fn read(root: &Root) -> Server {
    let programs = programs(root);
    let listeners = listeners(root);
    let mut listens: Vec<u16> = listeners.iter().map(|&(port, _)| port).collect();
    listens.sort_unstable();
    listens.dedup();
    Server {
        ksmbd: ksmbd(root, &programs),
        ksmbd_multichannel: ["etc/ksmbd/ksmbd.conf", "usr/local/etc/ksmbd/ksmbd.conf"]
            .iter()
            .find_map(|path| root.text(path))
            .map(|text| multichannel(&text)),
        iwarp_port_owner: owner(root, &listeners, Fabric::Iwarp.port()),
        programs,
        listens,
        attempt: None,
    }
}

/// The file is `VERSION STATE ...`, where the state is `startup` until the server has started.
fn ksmbd(root: &Root, programs: &[String]) -> Ksmbd {
    if !root.exists("sys/class/ksmbd-control") && !root.exists("sys/module/ksmbd") {
        return Ksmbd::Absent;
    }
    let stats = root
        .line("sys/class/ksmbd-control/stats")
        .unwrap_or_default();
    match stats.split(' ').nth(1) {
        Some("running") => Ksmbd::Running,
        _ if programs.iter().any(|name| name == MOUNTD) => Ksmbd::NotStarted,
        _ => Ksmbd::Stopped,
    }
}

/// Returns whether ksmbd.conf turns multichannel on. It is off by default.
fn multichannel(text: &str) -> bool {
    let mut values = text.lines().filter_map(|line| {
        let (key, value) = line.split_once('=')?;
        let key = key.trim().to_ascii_lowercase();
        (key == "server multi channel support").then(|| value.trim().to_ascii_lowercase())
    });
    let last = values.next_back().unwrap_or_default();
    matches!(&*last, "yes" | "true" | "1" | "on")
}

/// Returns the servers among the running programs; a program named `smbdirect` is a gateway.
fn programs(root: &Root) -> Vec<String> {
    let processes = processes(root).into_iter();
    let mut names: Vec<String> = processes
        .filter_map(|process| {
            let name = root.line(&format!("proc/{process}/comm"))?;
            let is_server = match &*name {
                "smbd" | MOUNTD => true,
                "smbdirect" => is_gateway(root, &process),
                _ => false,
            };
            is_server.then_some(name)
        })
        .collect();
    names.sort();
    names.dedup();
    names
}

fn processes(root: &Root) -> Vec<String> {
    let names = root.names("proc").into_iter();
    names
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .collect()
}

fn is_gateway(root: &Root, process: &str) -> bool {
    let arguments = root
        .bytes(&format!("proc/{process}/cmdline"))
        .unwrap_or_default();
    let mut arguments = arguments.split(|&byte| byte == 0);
    arguments.any(|argument| argument == b"gateway")
}

/// Returns the ports of SMB and SMB Direct that TCP listens on, for programs and for the kernel, with
/// the inodes of the sockets.
fn listeners(root: &Root) -> Vec<(u16, u64)> {
    const LISTEN: &str = "0A";
    let mut listeners = Vec::new();
    for table in ["proc/net/tcp", "proc/net/tcp6"] {
        for line in root.text(table).unwrap_or_default().lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, local, _, LISTEN, _, _, _, _, _, inode, ..] = words[..] else {
                continue;
            };
            let port = local.rsplit_once(':').map(|(_, port)| port);
            let port = port.and_then(|port| u16::from_str_radix(port, 16).ok());
            if let (Some(port @ (445 | 5445)), Ok(inode)) = (port, inode.parse()) {
                listeners.push((port, inode));
            }
        }
    }
    listeners
}

/// Returns the program that listens on `port`, as `NAME (process NUMBER)`. Sockets of the kernel
/// belong to no program, and those of other users are visible to root only.
fn owner(root: &Root, listeners: &[(u16, u64)], port: u16) -> Option<String> {
    let sockets: Vec<String> = listeners
        .iter()
        .filter(|(each, _)| *each == port)
        .map(|(_, inode)| format!("socket:[{inode}]"))
        .collect();
    if sockets.is_empty() {
        return None;
    }
    processes(root).into_iter().find_map(|process| {
        let files = format!("proc/{process}/fd");
        let has = root.names(&files).iter().any(|file| {
            let target = root.link(&format!("{files}/{file}"));
            target.is_some_and(|target| sockets.contains(&target))
        });
        let name = root.line(&format!("proc/{process}/comm"));
        has.then(|| format!("{} (process {process})", name.unwrap_or_default()))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn programs_and_the_owner_of_the_port_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &[u8]| {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("sys/class/ksmbd-control/stats", b"2 startup 445 0\n");
        let root = Root::new(directory.path());
        assert_eq!(read(&root).ksmbd, Ksmbd::Stopped);
        write("proc/101/comm", b"ksmbd.mountd\n");
        // This command itself is no gateway.
        write("proc/102/comm", b"smbdirect\n");
        write("proc/102/cmdline", b"smbdirect\0check\0");
        let server = read(&root);
        assert_eq!(server.ksmbd, Ksmbd::NotStarted);
        assert_eq!(server.programs, ["ksmbd.mountd"]);
        write("proc/103/comm", b"smbdirect\n");
        write("proc/103/cmdline", b"smbdirect\0gateway\0:5445\0");
        assert_eq!(read(&root).programs, ["ksmbd.mountd", "smbdirect"]);

        let table = "  sl  local_addr rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
            0: 00000000:1545 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 787 1 0000000012092435 100 0 0 10 0\n";
        write("proc/net/tcp", table.as_bytes());
        let server = read(&root);
        assert_eq!(server.listens, [5445]);
        assert_eq!(server.iwarp_port_owner, None);
        #[cfg(unix)]
        {
            fs::create_dir_all(directory.path().join("proc/102/fd")).unwrap();
            let link = directory.path().join("proc/102/fd/3");
            std::os::unix::fs::symlink("socket:[787]", link).unwrap();
            let owner = read(&root).iwarp_port_owner;
            assert_eq!(owner.as_deref(), Some("smbdirect (process 102)"));
        }
    }

    #[test]
    fn multichannel_is_off_unless_the_configuration_turns_it_on() {
        for (text, is_on) in [
            ("", false),
            ("[global]\n\tserver multi channel support = yes\n", true),
            ("server multi channel support = no", false),
            ("; server multi channel support = yes", false),
            ("Server Multi Channel Support = Yes", true),
        ] {
            assert_eq!(multichannel(text), is_on, "{text}");
        }
    }
}
