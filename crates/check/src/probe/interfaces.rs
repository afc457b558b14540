//! The network interfaces of this machine.

use std::net::IpAddr;

use super::root::Root;
use crate::facts::Interface;

/// Reads the interfaces. Their addresses come from the system, unless a test has set the root.
pub(super) fn read(root: &Root) -> Vec<Interface> {
    let addresses = if root.is_real() {
        addresses()
    } else {
        Vec::new()
    };
    let names = root.names("sys/class/net").into_iter();
    names
        .map(|name| {
            let file = |file: &str| root.line(&format!("sys/class/net/{name}/{file}"));
            let of_this = addresses.iter().filter(|(each, _)| *each == name);
            Interface {
                // Software interfaces and tunnels report `unknown` while they are up.
                is_up: file("operstate").is_some_and(|state| state != "down")
                    && file("flags").is_none_or(|flags| is_up(&flags)),
                mtu: file("mtu").and_then(|mtu| mtu.parse().ok()).unwrap_or(0),
                hardware: file("address").unwrap_or_default().replace(':', ""),
                addresses: of_this.map(|&(_, address)| address).collect(),
                name,
            }
        })
        .collect()
}

/// Returns whether hexadecimal interface flags contain IFF_UP.
fn is_up(flags: &str) -> bool {
    let digits = flags.trim_start_matches("0x");
    u32::from_str_radix(digits, 16).is_ok_and(|flags| flags & 1 != 0)
}

#[cfg(target_os = "linux")]
fn addresses() -> Vec<(String, IpAddr)> {
    let found = nix::ifaddrs::getifaddrs().into_iter().flatten();
    found
        .filter_map(|each| {
            let address = each.address?;
            let ip = address
                .as_sockaddr_in()
                .map(|v4| v4.ip().into())
                .or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))?;
            Some((each.interface_name, ip))
        })
        .collect()
}

#[cfg(not(target_os = "linux"))]
const fn addresses() -> Vec<(String, IpAddr)> {
    Vec::new()
}
