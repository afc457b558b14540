//! The settings that a running gateway can change, for sessions that begin later.

use std::{fmt, net::IpAddr, str::FromStr, time::Duration};

use ipnet::IpNet;

use crate::options::Address;

/// The settings that can change.
#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) upstream: Address,
    /// The addresses of permitted clients; empty if all are permitted.
    pub(super) allow: Vec<Network>,
    pub(super) max_connections: u64,
    pub(super) stall_limit: Duration,
    pub(super) drain_timeout: Duration,
}

/// The keys of these settings in the file, and that of the log.
pub(super) const LIVE_KEYS: [&str; 6] = [
    "allow",
    "drain-timeout",
    "max-connections",
    "stall-limit",
    "upstream",
    "verbose",
];

impl Live {
    /// Returns whether a client with this address is permitted.
    pub(super) fn permits(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        self.allow.is_empty() || self.allow.iter().any(|network| network.0.contains(&client))
    }
}

/// The addresses of a network, or one address: `10.0.0.0/8`, `10.0.0.7`, `fd00::/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Network(IpNet);

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let network = text.parse::<IpNet>().ok();
        let network = network.or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        let network = network.ok_or("it is an IP address or a network, as in 10.0.0.0/8")?;
        Ok(Self(network))
    }
}

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
        ] {
            let client = client.parse().unwrap();
            assert_eq!(live(allow).permits(client), permitted, "{allow:?} {client}");
        }
        for text in ["", "nas", "10.0.0.0/33", "10.0.0", "fd00::/8/8"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
    }
}
