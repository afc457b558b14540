//! Finds the process or device that uses a UDP port of this machine.

#[cfg(target_os = "linux")]
use std::{fs, path::Path};

/// Describes the owner of UDP port `port` of this machine: Linux rxe with its device, or a process
/// with its name and number. Returns `None` if the owner is not known.
#[cfg(target_os = "linux")]
pub fn port_owner(port: u16) -> Option<String> {
    if let (crate::roce::packet::UDP_PORT, Some(device)) = (port, rxe_device()) {
        return Some(format!("the kernel's rxe (device {device})"));
    }
    let inode = ["/proc/net/udp", "/proc/net/udp6"]
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .find_map(|table| inode_of(&table, port))?;
    if inode == 0 {
        return Some("the kernel".into());
    }
    let processes = fs::read_dir("/proc").ok()?.flatten();
    processes.map(|entry| entry.path()).find_map(|process| {
        let number: u32 = process.file_name()?.to_str()?.parse().ok()?;
        has_socket(&process, inode).then(|| {
            let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
            format!("process {number} ({})", name.trim())
        })
    })
}

/// Returns `None`, because only Linux reports the owner.
#[cfg(not(target_os = "linux"))]
pub const fn port_owner(_: u16) -> Option<String> {
    None
}

/// Returns the name of an rxe device of this network namespace.
#[cfg(target_os = "linux")]
fn rxe_device() -> Option<String> {
    let devices = fs::read_dir("/sys/class/infiniband").ok()?.flatten();
    // Only software devices name the network interface that they use.
    let software = devices.filter(|device| device.path().join("parent").exists());
    let names = software.map(|device| device.file_name().to_string_lossy().into_owned());
    names.into_iter().find(|name| name.contains("rxe"))
}

/// Returns the inode of the socket on `port` in a table of `/proc/net`.
#[cfg(target_os = "linux")]
fn inode_of(table: &str, port: u16) -> Option<u64> {
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_whitespace();
        let (_, number) = fields.nth(1)?.rsplit_once(':')?;
        let inode = fields.nth(7)?.parse().ok()?;
        (u16::from_str_radix(number, 16) == Ok(port)).then_some(inode)
    })
}

#[cfg(target_os = "linux")]
fn has_socket(process: &Path, inode: u64) -> bool {
    let wanted = format!("socket:[{inode}]");
    let Ok(files) = fs::read_dir(process.join("fd")) else {
        return false;
    };
    files.flatten().any(|file| {
        fs::read_link(file.path()).is_ok_and(|target| target.to_string_lossy() == wanted)
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn the_owner_of_a_port_is_this_process() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(socket) = UdpSocket::bind(address) else {
                continue;
            };
            let owner = port_owner(socket.local_addr().unwrap().port()).unwrap();
            let number = std::process::id();
            assert!(owner.starts_with(&format!("process {number} (")), "{owner}");
        }
    }

    #[test]
    fn the_tables_of_the_kernel_are_read() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n  \
             112: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 7345 2 0000000000000000 0\n";
        assert_eq!(inode_of(table, 4791), Some(7345));
        assert_eq!(inode_of(table, 4792), None);
    }
}
