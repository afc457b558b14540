//! The kernel's SMB client: its mounts and their connections, from /proc/mounts and
//! /proc/fs/cifs/DebugData.

use std::net::IpAddr;

use super::root::Root;
use crate::facts::{Client, ClientConnection, Mount, ServerInterface};

/// Reads the state of the client.
pub(super) fn read(root: &Root) -> Client {
    let debug = root.text("proc/fs/cifs/DebugData").unwrap_or_default();
    let connections = connections(&debug);
    let mut mounts = mounts(&root.text("proc/mounts").unwrap_or_default());
    for mount in &mut mounts {
        let wanted = mount.source.replace('/', "\\");
        let with_share = connections.iter().filter(|connection| {
            connection.address == mount.address
                && connection.is_rdma == mount.is_rdma
                && connection
                    .shares
                    .iter()
                    .any(|share| share.eq_ignore_ascii_case(&wanted))
        });
        // A share can be mounted twice, over different connections. The connection whose encryption matches this
        // mount is taken.
        let candidates: Vec<_> = with_share.collect();
        let same_protection = candidates
            .iter()
            .find(|connection| connection.is_encrypted == mount.has("seal"));
        let chosen = same_protection.or_else(|| candidates.first());
        mount.connection = chosen.map(|&connection| connection.clone());
    }
    let threshold = root.line("proc/fs/cifs/rdma_readwrite_threshold");
    Client {
        smb_direct: smb_direct(&debug),
        threshold_bytes: threshold.and_then(|bytes| bytes.parse().ok()),
        mounts,
    }
}

/// Returns whether the line `Features:` names SMB_DIRECT.
fn smb_direct(debug: &str) -> Option<bool> {
    let features = debug
        .lines()
        .find_map(|line| line.strip_prefix("Features:"))?;
    let mut names = features.split(&[',', ' '][..]);
    Some(names.any(|name| name == "SMB_DIRECT"))
}

/// Parses /proc/mounts.
fn mounts(text: &str) -> Vec<Mount> {
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (source, directory) = (words.next()?, words.next()?);
        let kind = words.next()?;
        let options = words.next()?.to_owned();
        if kind != "cifs" && kind != "smb3" {
            return None;
        }
        let mut mount = Mount {
            source: unescape(source),
            directory: unescape(directory),
            options,
            ..Mount::default()
        };
        mount.address = mount.value("addr").and_then(|address| address.parse().ok());
        mount.is_rdma = mount.has("rdma");
        Some(mount)
    });
    lines.collect()
}

/// Replaces `\040` and the like, by which /proc/mounts writes blanks and backslashes.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part
            .get(..3)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                result.push(code.into());
                result.push_str(&part[3..]);
            }
            None => {
                result.push('\\');
                result.push_str(part);
            }
        }
    }
    result
}

/// Parses the servers of DebugData. Unknown lines are skipped, because each release has others.
fn connections(debug: &str) -> Vec<ClientConnection> {
    let mut connections: Vec<ClientConnection> = Vec::new();
    let mut in_interfaces = false;
    let mut radix = 10;
    for line in debug.lines() {
        if line.contains(") ConnectionId:") && !line.starts_with('\t') {
            connections.push(ClientConnection::default());
            in_interfaces = false;
            radix = 10;
        }
        // Older kernels print the numbers of SMB Direct in this form.
        if line.starts_with("SMBDirect (in hex)") {
            radix = 16;
        }
        let Some(connection) = connections.last_mut() else {
            continue;
        };
        let text = line.trim();
        if text.starts_with("Server interfaces:") {
            connection.interfaces = Some(Vec::new());
            in_interfaces = true;
        } else if text.starts_with("MIDs:") {
            in_interfaces = false;
        } else if in_interfaces {
            interface_line(connection, text);
        } else {
            connection_line(connection, text, radix);
        }
    }
    connections
}

fn connection_line(connection: &mut ClientConnection, line: &str, radix: u32) {
    let after = |key: &str| {
        let rest = &line[line.find(key)? + key.len()..];
        rest.split_whitespace().next()
    };
    let number = |key: &str| u32::from_str_radix(after(key)?, radix).ok();
    if line == "RDMA" || line.starts_with("SMBDirect") {
        connection.is_rdma = true;
    }
    if line == "SMBDirect transport not available" {
        connection.transport_status = Some("not available".into());
    }
    // Older kernels print only a number, whose meaning changes.
    let status = after("transport status:");
    if let Some(status) = status.filter(|status| status.starts_with(char::is_alphabetic)) {
        connection.transport_status = Some(status.to_owned());
    }
    if line.starts_with("Conn max_fragmented") {
        connection.max_fragmented_send_size = number("max_fragmented_send_size:");
    }
    if let Some(size) = number("max_readwrite_size:") {
        connection.max_read_write_size = Some(size);
    }
    if let Some(dialect) = after("Dialect 0x") {
        connection.dialect = u16::from_str_radix(dialect, 16).unwrap_or(0);
        connection.is_signed |= line.split(' ').any(|word| word == "signed");
    }
    if let Some(capabilities) = after("Server capabilities: 0x") {
        connection.capabilities = u32::from_str_radix(capabilities, 16).unwrap_or(0);
    }
    if let Some(address) = after("Address:").or_else(|| after(") Name:")) {
        connection.address = connection.address.or_else(|| address.parse().ok());
    }
    if line.contains("SessionId:") {
        connection.is_signed |= line.ends_with(" signed") || line.contains(" signed ");
        connection.is_encrypted |= line.contains(" encrypted");
    }
    if line.contains("Primary channel: DISCONNECTED") || line.starts_with("TCP status: 3") {
        connection.is_disconnected = true;
    }
    if line.starts_with("PathComponentMax:") && line.contains("type: DISK") {
        connection.is_encrypted |= line.contains(" encrypted");
    }
    if let Some(at) = line.find("\\\\") {
        let share = line[at..].split(" Mounts:").next().unwrap_or_default();
        connection.shares.push(share.trim().to_owned());
    }
}

fn interface_line(connection: &mut ClientConnection, line: &str) {
    let interfaces = connection.interfaces.get_or_insert_default();
    // The lines of an interface are its speed, its capabilities and then its address.
    if let Some(speed) = line.split_once("Speed:").map(|(_, speed)| speed.trim()) {
        interfaces.push(ServerInterface {
            address: IpAddr::from([0, 0, 0, 0]),
            is_rdma: false,
            speed: speed_bits(speed),
        });
    }
    let Some(interface) = interfaces.last_mut() else {
        return;
    };
    if let Some(capabilities) = line.strip_prefix("Capabilities:") {
        interface.is_rdma = capabilities.split_whitespace().any(|each| each == "rdma");
    }
    for family in ["IPv4:", "IPv6:"] {
        let address = line.strip_prefix(family);
        if let Some(Ok(address)) = address.map(|address| address.trim().parse()) {
            interface.address = address;
        }
    }
}

/// Returns the bits in a second of `1Gbps`.
fn speed_bits(text: &str) -> Option<u64> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let number: u64 = digits.parse().ok()?;
    let factor = match unit {
        "bps" => 1,
        "Kbps" => 1_000,
        "Mbps" => 1_000_000,
        "Gbps" => 1_000_000_000,
        _ => return None,
    };
    number.checked_mul(factor)
}

#[cfg(test)]
mod tests;
