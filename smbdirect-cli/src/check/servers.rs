//! The SMB servers of this machine: ksmbd, Samba, and a gateway of this project.

use super::{
    facts::{Ksmbd, Server},
    root::Root,
};

/// Reads the state of the servers.
pub(super) fn read(root: &Root) -> Server {
    Server {
        ksmbd: ksmbd(root),
        ksmbd_multichannel: ["etc/ksmbd/ksmbd.conf", "usr/local/etc/ksmbd/ksmbd.conf"]
            .iter()
            .find_map(|path| root.text(path))
            .map(|text| multichannel(&text)),
        programs: programs(root),
        listens: listens(root),
        attempt: None,
    }
}

/// The file is `VERSION STATE ...`. State 1 is startup, 2 running.
fn ksmbd(root: &Root) -> Ksmbd {
    if !root.exists("sys/class/ksmbd-control") && !root.exists("sys/module/ksmbd") {
        return Ksmbd::Absent;
    }
    let stats = root
        .line("sys/class/ksmbd-control/stats")
        .unwrap_or_default();
    match stats.split(' ').nth(1) {
        Some("running") => Ksmbd::Running,
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

fn programs(root: &Root) -> Vec<String> {
    let processes = root.names("proc").into_iter();
    let processes = processes.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let mut names: Vec<String> = processes
        .filter_map(|process| root.line(&format!("proc/{process}/comm")))
        .filter(|name| name == "smbd" || name == "smbdirect")
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Returns the ports of SMB and SMB Direct that TCP listens on, for programs and for the kernel.
fn listens(root: &Root) -> Vec<u16> {
    const LISTEN: &str = "0A";
    let mut listens = Vec::new();
    for table in ["proc/net/tcp", "proc/net/tcp6"] {
        for line in root.text(table).unwrap_or_default().lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [_, local, _, state, ..] = words[..] else {
                continue;
            };
            let port = local.rsplit_once(':').map(|(_, port)| port);
            let port = port.and_then(|port| u16::from_str_radix(port, 16).ok());
            if let (Some(port @ (445 | 5445)), LISTEN) = (port, state) {
                listens.push(port);
            }
        }
    }
    listens.sort_unstable();
    listens.dedup();
    listens
}

#[cfg(test)]
mod tests {
    use super::*;

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
