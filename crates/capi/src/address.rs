//! Addresses as people write them: `HOST`, `HOST:PORT`, `[IPV6]:PORT`.

use std::net::SocketAddr;

use smbdirect_transport::{self as transport, AddressError, Families, Kind, ResolveError};

use crate::status::{Failure, SMBDIRECT_ERROR_ADDRESS};

/// A host and a port that are not resolved yet.
#[derive(Debug)]
pub(crate) struct Address {
    address: transport::Address,
    default_port: u16,
}

impl Address {
    /// Parses the address of a peer. Without a port it gets `default_port`.
    pub(crate) fn parse(text: &str, default_port: u16) -> Result<Self, Failure> {
        let parsed = Self::parse_listen(text, default_port)?;
        if parsed.address.host.is_empty() {
            let why = "it has no host; an address is HOST[:PORT]";
            return Err(Failure::invalid(format!(
                "{text:?} is not an address: {why}"
            )));
        }
        Ok(parsed)
    }

    /// Parses an address to listen on. Without a host it is every address of the machine.
    pub(crate) fn parse_listen(text: &str, default_port: u16) -> Result<Self, Failure> {
        let parsed: Result<transport::Address, AddressError> = text.parse();
        let invalid = |why| Failure::invalid(format!("{text:?} is not an address: {why}"));
        Ok(Self {
            address: parsed.map_err(invalid)?,
            default_port,
        })
    }

    /// Returns the addresses of the host, at least one.
    ///
    /// # Errors
    /// The name cannot be resolved.
    pub(crate) async fn resolve(&self) -> Result<Vec<SocketAddr>, Failure> {
        let resolved = transport::resolve(&self.address, self.default_port).await;
        resolved.map_err(Failure::from)
    }

    /// Returns the address to listen on by a kind of RDMA.
    ///
    /// # Errors
    /// The name cannot be resolved.
    pub(crate) async fn resolve_listen(&self, kind: Kind) -> Result<SocketAddr, Failure> {
        let families = Families::of(kind);
        let resolved = transport::resolve_listen(&self.address, self.default_port, families).await;
        resolved.map_err(Failure::from)
    }
}

impl From<ResolveError> for Failure {
    fn from(failure: ResolveError) -> Self {
        let number = failure.error.raw_os_error();
        Self::new(SMBDIRECT_ERROR_ADDRESS, &failure).with_errno(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_a_host() {
        for text in ["server", "10.0.0.1:1", "::1", "[fe80::1%eth0]:99"] {
            assert!(Address::parse(text, 5445).is_ok(), "{text}");
        }
        for text in ["", ":445", "a:b", "[name]:1", "[fe80::1]:99"] {
            let failure = Address::parse(text, 5445).unwrap_err();
            let message = failure.to_string();
            assert!(
                ["HOST", "a number", "add the interface"]
                    .iter()
                    .any(|cause| message.contains(cause)),
                "{message}"
            );
        }
    }

    #[test]
    fn a_listener_needs_no_host() {
        assert!(Address::parse_listen(":445", 5445).is_ok());
        assert!(Address::parse_listen("", 5445).is_err());
    }
}
