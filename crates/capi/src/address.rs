//! Addresses as people write them: `HOST`, `HOST:PORT`, `[IPV6]:PORT`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use tokio::net::lookup_host;

use crate::status::{Failure, SMBDIRECT_ERROR_ADDRESS};

/// A host and a port that are not resolved yet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Address {
    host: String,
    port: u16,
}

impl Address {
    /// Parses an address. Without a port it gets `default_port`.
    pub(crate) fn parse(text: &str, default_port: u16) -> Result<Self, Failure> {
        let invalid = || {
            let message = format!("{text:?} is no address: use HOST, HOST:PORT or [IPV6]:PORT");
            Failure::invalid(message)
        };
        let new = |host: &str, port| Self {
            host: host.to_owned(),
            port,
        };
        if text.parse::<IpAddr>().is_ok() {
            return Ok(new(text, default_port));
        }
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or_else(invalid)?;
                host.parse::<Ipv6Addr>().map_err(|_| invalid())?;
                match port.strip_prefix(':') {
                    Some(port) => (host, Some(port)),
                    None if port.is_empty() => (host, None),
                    None => return Err(invalid()),
                }
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        if host.is_empty() || host.contains(['[', ']']) {
            return Err(invalid());
        }
        match port {
            Some(port) => Ok(new(host, port.parse().map_err(|_| invalid())?)),
            None => Ok(new(host, default_port)),
        }
    }

    /// Returns the addresses of the host, at least one.
    ///
    /// # Errors
    /// The name cannot be resolved.
    pub(crate) async fn resolve(&self) -> Result<Vec<SocketAddr>, Failure> {
        let Self { host, port } = self;
        let fail = |why: String| {
            Failure::new(
                SMBDIRECT_ERROR_ADDRESS,
                format!("{host} cannot be resolved: {why}"),
            )
        };
        let found = lookup_host((host.as_str(), *port)).await;
        let found =
            found.map_err(|error| fail(error.to_string()).with_errno(error.raw_os_error()))?;
        let found: Vec<_> = found.collect();
        if found.is_empty() {
            Err(fail("it has no address".to_owned()))
        } else {
            Ok(found)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_perhaps_a_port() {
        for (text, host, port) in [
            ("server", "server", 5445),
            ("server:445", "server", 445),
            ("10.0.0.1", "10.0.0.1", 5445),
            ("10.0.0.1:1", "10.0.0.1", 1),
            ("::1", "::1", 5445),
            ("[::1]", "::1", 5445),
            ("[fe80::1]:99", "fe80::1", 99),
        ] {
            let parsed = Address::parse(text, 5445).unwrap();
            assert_eq!((parsed.host.as_str(), parsed.port), (host, port), "{text}");
        }
        for text in [
            "", ":445", "a:b", "a:70000", "[::1", "[::1]x", "[name]:1", "a:1:2",
        ] {
            assert!(Address::parse(text, 5445).is_err(), "{text}");
        }
    }
}
