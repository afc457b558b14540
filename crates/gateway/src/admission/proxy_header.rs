//! The header of the PROXY protocol, version 2, with which a proxy tells a server the address of its client.
//!
//! On TCP the header precedes the first message. On SMB Direct it is the first message.

use std::net::{IpAddr, SocketAddr};

use ppp::v2::{Addresses, Builder, Command, Header, Protocol, Version};
use smbdirect_transport::canonical;

/// Number of bytes before the addresses.
const FIXED: usize = 16;
/// The first bytes of a header of version 1.
const VERSION_ONE: &[u8] = b"PROXY ";
/// Maximum number of bytes of a header that is accepted: addresses, and some additional values.
pub(crate) const MAX_LENGTH: usize = 536;

/// The reason why the header of a proxy is not accepted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HeaderFault {
    /// The connection does not begin with a header, or the header is malformed.
    #[error("it is a trusted proxy, but its connection does not begin with a PROXY header: {0}")]
    Malformed(String),
    /// The header has version 1, a line of text.
    #[error(
        "its PROXY header has version 1; have the proxy send version 2 (haproxy: send-proxy-v2)"
    )]
    VersionOne,
    /// The connection is one of a client that the header does not name, so that `allow` and `deny` cannot decide.
    #[error("its PROXY header does not name an IP address of its client")]
    Unnamed,
    /// The header is longer than [`MAX_LENGTH`].
    #[error(
        "its PROXY header has {0} bytes; the maximum is {MAX_LENGTH}, so have the proxy add fewer values to it"
    )]
    TooLong(usize),
}

/// Returns the header for a connection of `client`, which has connected to `here`.
pub(crate) fn encode(client: SocketAddr, here: SocketAddr) -> Vec<u8> {
    let (client, here) = of_one_family(canonical(client), canonical(here));
    build(Command::Proxy, (client, here).into())
}

/// Returns the header for a connection of this end itself, as for a check.
pub(crate) fn encode_local() -> Vec<u8> {
    build(Command::Local, Addresses::Unspecified)
}

fn build(command: Command, addresses: Addresses) -> Vec<u8> {
    let protocol = match addresses {
        Addresses::Unspecified => Protocol::Unspecified,
        _ => Protocol::Stream,
    };
    let builder = Builder::with_addresses(Version::Two | command, protocol, addresses);
    builder.build().expect("a vector takes all bytes")
}

/// Returns both addresses as IPv6 if one of them is.
fn of_one_family(one: SocketAddr, other: SocketAddr) -> (SocketAddr, SocketAddr) {
    if one.is_ipv4() == other.is_ipv4() {
        return (one, other);
    }
    let as_ipv6 = |address: SocketAddr| match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    };
    (as_ipv6(one), as_ipv6(other))
}

/// Returns the length of the header that begins with `bytes`, or `None` if more bytes are needed to know it.
///
/// # Errors
/// The bytes are no header, or the header is too long.
pub(crate) fn length(bytes: &[u8]) -> Result<Option<usize>, HeaderFault> {
    use ppp::v2::ParseError;
    if bytes.len() < VERSION_ONE.len() && VERSION_ONE.starts_with(bytes) {
        return Ok(None);
    }
    match Header::try_from(bytes) {
        Err(_) if bytes.starts_with(VERSION_ONE) => Err(HeaderFault::VersionOne),
        Ok(header) => within(header.len()).map(Some),
        Err(ParseError::Incomplete(_)) => Ok(None),
        Err(ParseError::Partial(_, addresses)) => within(FIXED + addresses).map(Some),
        Err(error) => Err(HeaderFault::Malformed(error.to_string())),
    }
}

fn within(length: usize) -> Result<usize, HeaderFault> {
    if length > MAX_LENGTH {
        return Err(HeaderFault::TooLong(length));
    }
    Ok(length)
}

/// Returns the client that a whole header names. `None` if the connection is one of the proxy itself.
///
/// # Errors
/// The header is malformed or too long, or does not name the client.
pub(crate) fn decode(bytes: &[u8]) -> Result<Option<SocketAddr>, HeaderFault> {
    within(bytes.len())?;
    let header = Header::try_from(bytes).map_err(|error| {
        if bytes.starts_with(VERSION_ONE) {
            HeaderFault::VersionOne
        } else {
            HeaderFault::Malformed(error.to_string())
        }
    })?;
    if header.command == Command::Local {
        return Ok(None);
    }
    match header.addresses {
        Addresses::IPv4(ip) => {
            let address = SocketAddr::new(ip.source_address.into(), ip.source_port);
            Ok(Some(address))
        }
        Addresses::IPv6(ip) => {
            let address = SocketAddr::new(ip.source_address.into(), ip.source_port);
            Ok(Some(canonical(address)))
        }
        Addresses::Unspecified | Addresses::Unix(_) => Err(HeaderFault::Unnamed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_names_the_client() {
        for (client, here, named) in [
            ("10.1.2.3:40000", "10.0.0.1:445", "10.1.2.3:40000"),
            ("[fd00::7]:40000", "[fd00::1]:5445", "[fd00::7]:40000"),
            ("[::ffff:10.1.2.3]:7", "[::ffff:10.0.0.1]:445", "10.1.2.3:7"),
            ("10.1.2.3:7", "[fd00::1]:445", "10.1.2.3:7"),
        ] {
            let header = encode(client.parse().unwrap(), here.parse().unwrap());
            assert_eq!(
                decode(&header).unwrap(),
                Some(named.parse().unwrap()),
                "{client}"
            );
            for cut in 0..header.len() {
                let known = length(&header[..cut]).unwrap();
                assert!(
                    known.is_none_or(|length| length == header.len()),
                    "{client} {cut}"
                );
                assert!(decode(&header[..cut]).is_err());
            }
            let more = [&header[..], b"\0\0\0\x40\xfeSMB"].concat();
            assert_eq!(length(&more).unwrap(), Some(header.len()));
        }
        let local = encode_local();
        assert_eq!(decode(&local).unwrap(), None);
        assert_eq!(length(&local).unwrap(), Some(FIXED));
        let unnamed = build(Command::Proxy, Addresses::Unspecified);
        assert!(matches!(decode(&unnamed), Err(HeaderFault::Unnamed)));
    }

    #[test]
    fn what_is_no_header_is_refused() {
        for bytes in [&b"\0\0\0\x40\xfeSMB"[..], b"GET / HTTP/1.1\r\n"] {
            assert!(matches!(length(bytes), Err(HeaderFault::Malformed(_))));
        }
        let line = b"PROXY TCP4 1.2.3.4 ";
        for cut in 1..line.len() {
            match length(&line[..cut]) {
                Ok(None) => assert!(cut < VERSION_ONE.len()),
                Err(HeaderFault::VersionOne) => assert!(cut >= VERSION_ONE.len()),
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(decode(line), Err(HeaderFault::VersionOne)));
        let mut long = encode(
            "10.1.2.3:7".parse().unwrap(),
            "10.0.0.1:445".parse().unwrap(),
        );
        long[14..16].copy_from_slice(&5000_u16.to_be_bytes());
        assert!(matches!(length(&long), Err(HeaderFault::TooLong(5016))));
    }
}
