//! Addresses as people write them: `HOST`, `HOST:PORT`, `[IPV6]:PORT`.

use std::net::SocketAddr;

use smbdirect_transport as transport;

use crate::status::{Failure, SMBDIRECT_ERROR_ADDRESS};

/// A host and a port that are not resolved yet.
#[derive(Debug)]
pub(crate) struct Address {
    address: transport::Address,
    default_port: u16,
}

impl Address {
    /// Parses an address. Without a port it gets `default_port`.
    pub(crate) fn parse(text: &str, default_port: u16) -> Result<Self, Failure> {
        let invalid = |why: String| Failure::invalid(format!("{text:?} is not an address: {why}"));
        let address: transport::Address = text
            .parse()
            .map_err(|error: transport::AddressError| invalid(error.to_string()))?;
        if address.host.is_empty() {
            return Err(invalid("it has no host; an address is HOST[:PORT]".into()));
        }
        Ok(Self {
            address,
            default_port,
        })
    }

    /// Returns the addresses of the host, at least one.
    ///
    /// # Errors
    /// The name cannot be resolved.
    pub(crate) async fn resolve(&self) -> Result<Vec<SocketAddr>, Failure> {
        let resolved = transport::resolve(&self.address, self.default_port).await;
        resolved.map_err(|failure| {
            Failure::new(SMBDIRECT_ERROR_ADDRESS, &failure).with_errno(failure.error.raw_os_error())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host() {
        for text in ["server", "10.0.0.1:1", "::1", "[fe80::1]:99"] {
            assert!(Address::parse(text, 5445).is_ok(), "{text}");
        }
        for text in ["", ":445", "a:b", "[name]:1"] {
            let failure = Address::parse(text, 5445).unwrap_err();
            let message = failure.to_string();
            assert!(
                message.contains("HOST") || message.contains("a number"),
                "{message}"
            );
        }
    }
}
