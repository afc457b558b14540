//! The settings that a running gateway can change, for sessions that begin later.

use std::{fmt, net::IpAddr, str::FromStr, time::Duration};

use ipnet::{IpNet, Ipv4Net};
use smbdirect_transport::Address;

/// The settings that can change.
#[derive(Clone, Debug)]
pub struct Live {
    /// The servers: at least one.
    pub servers: Vec<Address>,
    /// How a server is chosen for a new client.
    pub balance: Balance,
    /// How servers are checked; `None` if they are not.
    pub check: Option<Check>,
    /// The addresses of permitted clients; empty if all are permitted.
    pub allow: Vec<Network>,
    /// The addresses of clients that are turned away, also if `allow` has them.
    pub deny: Vec<Network>,
    /// The addresses of proxies, whose connections begin with a header of the PROXY protocol, version 2.
    pub trusted_proxies: Vec<Network>,
    /// Largest number of concurrent sessions; further clients are turned away. The memory may be enough for fewer.
    pub max_connections: u64,
    /// Largest number of connections of one address, of those that negotiate too; `None` without a limit.
    pub max_connections_per_client: Option<u64>,
    /// Longest time that a TCP peer may accept no data or leave a message unfinished.
    pub stall_limit: Duration,
    /// Longest time that draining waits for the answers to requests; `None` without a limit.
    pub drain_timeout: Option<Duration>,
}

/// How a server is chosen for a new client. A client that has connections goes where they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Balance {
    /// The server with the fewest sessions
    #[default]
    LeastConnections,
    /// One after the other
    RoundRobin,
}

/// How servers are checked: a connection, and an SMB2 NEGOTIATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// Time from the beginning of a check to that of the next one, and the longest time for one.
    pub interval: Duration,
    /// Number of successes in a row after which a server takes clients again.
    pub rise: u32,
    /// Number of failures in a row after which a server gets no new clients, and of those without any sign of life after
    /// which its sessions end.
    pub fall: u32,
    /// Time in which a server that takes clients again gets its full part of new ones.
    pub slow_start: Duration,
}

impl Default for Check {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(2),
            rise: 2,
            fall: 3,
            slow_start: Duration::from_secs(60),
        }
    }
}

impl Live {
    /// Returns the default settings for these servers.
    pub fn new(servers: Vec<Address>) -> Self {
        Self {
            servers,
            balance: Balance::default(),
            check: None,
            allow: Vec::new(),
            deny: Vec::new(),
            trusted_proxies: Vec::new(),
            max_connections: 256,
            max_connections_per_client: None,
            stall_limit: Duration::from_secs(60),
            drain_timeout: Some(Duration::from_secs(5)),
        }
    }

    /// Returns whether a client with this address is permitted.
    pub(crate) fn permits(&self, client: IpAddr) -> bool {
        let is_in = |networks: &[Network]| networks.iter().any(|network| network.contains(client));
        (self.allow.is_empty() || is_in(&self.allow)) && !is_in(&self.deny)
    }

    /// Returns whether connections from this address begin with a header of the PROXY protocol.
    pub(crate) fn trusts_proxy(&self, peer: IpAddr) -> bool {
        self.trusted_proxies
            .iter()
            .any(|network| network.contains(peer))
    }
}

/// The addresses of a network, or one address: `10.0.0.0/8`, `10.0.0.7`, `fd00::/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network(IpNet);

impl Network {
    fn contains(self, client: IpAddr) -> bool {
        self.0.contains(&client.to_canonical())
    }
}

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

    fn live(allow: &[&str], deny: &[&str]) -> Live {
        let networks = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        Live {
            allow: networks(allow),
            deny: networks(deny),
            ..Live::new(vec!["nas".parse().unwrap()])
        }
    }

    #[test]
    fn clients_are_permitted_by_address_or_network() {
        for (allow, deny, client, permitted) in [
            (&[][..], &[][..], "10.1.2.3", true),
            (&["10.0.0.0/8"], &[], "10.1.2.3", true),
            (&["10.0.0.0/8"], &[], "::ffff:10.1.2.3", true),
            (&["10.0.0.0/8"], &[], "11.1.2.3", false),
            (&["10.0.0.7", "fd00::/8"], &[], "fd12::1", true),
            (&["10.0.0.7", "fd00::/8"], &[], "10.0.0.8", false),
            (&["::ffff:10.0.0.0/104"], &[], "10.1.2.3", true),
            (&["::ffff:10.0.0.0/104"], &[], "11.1.2.3", false),
            (&["::ffff:10.0.0.7"], &[], "::ffff:10.0.0.7", true),
            (&["::/0"], &[], "10.1.2.3", false),
            (&[], &["10.0.0.0/8"], "10.1.2.3", false),
            (&[], &["10.0.0.0/8"], "11.1.2.3", true),
            (&["10.0.0.0/8"], &["10.1.0.0/16"], "10.1.2.3", false),
            (&["10.0.0.0/8"], &["10.1.0.0/16"], "10.2.2.3", true),
            (&[], &["::/0"], "10.1.2.3", true),
        ] {
            let client = client.parse().unwrap();
            assert_eq!(
                live(allow, deny).permits(client),
                permitted,
                "{allow:?} {deny:?} {client}"
            );
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
