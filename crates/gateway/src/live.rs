//! The settings that a running gateway can change, for sessions that begin later.

use std::{fmt, net::IpAddr, str::FromStr, time::Duration};

use ipnet::{IpNet, Ipv4Net};
use smbdirect_transport::Address;

/// The settings that can change.
#[derive(Clone, Debug)]
pub struct Live {
    /// The server.
    pub upstream: Address,
    /// The addresses of permitted clients; empty if all are permitted.
    pub allow: Vec<Network>,
    /// Largest number of concurrent sessions; further clients are turned away.
    pub max_connections: u64,
    /// Longest time that a TCP peer may accept no data or leave a message unfinished.
    pub stall_limit: Duration,
    /// Longest time that draining waits for the answers to requests.
    pub drain_timeout: Duration,
}

impl Live {
    /// Returns whether a client with this address is permitted.
    pub(super) fn permits(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        self.allow.is_empty() || self.allow.iter().any(|network| network.0.contains(&client))
    }
}

/// The addresses of a network, or one address: `10.0.0.0/8`, `10.0.0.7`, `fd00::/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network(IpNet);

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let network = text.parse::<IpNet>().ok();
        let network = network.or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        let network = network.ok_or("expected an IP address or a network, such as 10.0.0.0/8")?;
        Ok(Self(canonical(network)?))
    }
}

/// Returns a network of IPv4 addresses for one of IPv4-mapped IPv6 addresses, because a client with such an address has
/// an IPv4 address here.
fn canonical(network: IpNet) -> Result<IpNet, String> {
    let IpNet::V6(mapped) = network else {
        return Ok(network);
    };
    let Some(address) = mapped.addr().to_ipv4_mapped() else {
        return Ok(network);
    };
    let length = mapped.prefix_len().checked_sub(MAPPED_PREFIX_BITS);
    let network = length.and_then(|length| Ipv4Net::new(address, length).ok());
    network.map(IpNet::V4).ok_or_else(|| {
        format!(
            "a network of IPv4-mapped addresses has a prefix of at least {MAPPED_PREFIX_BITS} bits"
        )
    })
}

/// Bits of an IPv4-mapped IPv6 address before the IPv4 address.
const MAPPED_PREFIX_BITS: u8 = 96;

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(allow: &[&str]) -> Live {
        Live {
            upstream: "nas".parse().unwrap(),
            allow: allow.iter().map(|text| text.parse().unwrap()).collect(),
            max_connections: 1,
            stall_limit: Duration::ZERO,
            drain_timeout: Duration::ZERO,
        }
    }

    #[test]
    fn clients_are_permitted_by_address_or_network() {
        for (allow, client, permitted) in [
            (&[][..], "10.1.2.3", true),
            (&["10.0.0.0/8"], "10.1.2.3", true),
            (&["10.0.0.0/8"], "::ffff:10.1.2.3", true),
            (&["10.0.0.0/8"], "11.1.2.3", false),
            (&["10.0.0.7", "fd00::/8"], "fd12::1", true),
            (&["10.0.0.7", "fd00::/8"], "10.0.0.8", false),
            (&["::ffff:10.0.0.0/104"], "10.1.2.3", true),
            (&["::ffff:10.0.0.0/104"], "11.1.2.3", false),
            (&["::ffff:10.0.0.7"], "::ffff:10.0.0.7", true),
            (&["::/0"], "10.1.2.3", false),
        ] {
            let client = client.parse().unwrap();
            assert_eq!(live(allow).permits(client), permitted, "{allow:?} {client}");
        }
        for text in [
            "",
            "nas",
            "10.0.0.0/33",
            "10.0.0",
            "fd00::/8/8",
            "::ffff:10.0.0.0/95",
        ] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}
