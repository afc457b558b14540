//! The private data of CM messages, and the header of the RDMA CM at its start.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

use thiserror::Error;

/// The private data of a message. The message has exactly `N` bytes for it; bytes that the consumer does not use
/// are zero, and the length is not transmitted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData<const N: usize>([u8; N]);

/// The error for private data that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{length} bytes of private data, at most {limit} fit")]
pub struct TooLong {
    /// The bytes to send.
    pub length: usize,
    /// The bytes that fit.
    pub limit: usize,
}

impl<const N: usize> PrivateData<N> {
    /// Creates private data that begins with `bytes`.
    ///
    /// # Errors
    /// Returns an error if there are more than `N` bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, TooLong> {
        let mut data = Self::default();
        let limit = N;
        let length = bytes.len();
        let start = data.0.get_mut(..length).ok_or(TooLong { length, limit })?;
        start.copy_from_slice(bytes);
        Ok(data)
    }

    /// Returns all `N` bytes.
    pub const fn as_bytes(&self) -> &[u8; N] {
        &self.0
    }

    /// Copies the first `N` bytes of `bytes`.
    pub(super) fn copy_from(bytes: &[u8]) -> Self {
        let mut data = Self::default();
        data.0.copy_from_slice(&bytes[..N]);
        data
    }
}

impl<const N: usize> Default for PrivateData<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

/// Shows the bytes without the zeros at the end.
impl<const N: usize> fmt::Debug for PrivateData<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = N - self.0.iter().rev().take_while(|&&byte| byte == 0).count();
        write!(f, "PrivateData<{N}>({:02x?})", &self.0[..used])
    }
}

/// The header of the RDMA CM: the addresses of the connection (A11.4.1.1). It is at the start of the
/// private data of a REQ whose service ID has a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaCmHeader {
    /// The source port, which only informs the peer.
    pub source_port: u16,
    /// The source address.
    pub source: IpAddr,
    /// The destination address. Both addresses are of the same family.
    pub destination: IpAddr,
}

impl RdmaCmHeader {
    /// The length in bytes.
    pub const LENGTH: usize = 36;

    /// Returns the header at the start of private data, or `None` if the data is too short, or if the version or
    /// the IP version is unknown.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        //= ROCE-A11-02
        let header: &[u8; Self::LENGTH] = bytes.first_chunk()?;
        if header[0] != 0 {
            return None;
        }
        let address = |at: usize| -> Option<IpAddr> {
            let octets: [u8; 16] = header[at..at + 16].try_into().ok()?;
            match header[1] >> 4 {
                4 => Some(IpAddr::from([
                    octets[12], octets[13], octets[14], octets[15],
                ])),
                6 => Some(IpAddr::from(octets)),
                _ => None,
            }
        };
        Some(Self {
            source_port: u16::from_be_bytes([header[2], header[3]]),
            source: address(4)?,
            destination: address(20)?,
        })
    }

    /// Returns the bytes.
    pub fn encode(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[1] = if self.source.is_ipv4() { 0x40 } else { 0x60 };
        bytes[2..4].copy_from_slice(&self.source_port.to_be_bytes());
        for (at, address) in [(4, self.source), (20, self.destination)] {
            match address {
                IpAddr::V4(address) => bytes[at + 12..at + 16].copy_from_slice(&address.octets()),
                IpAddr::V6(address) => bytes[at..at + 16].copy_from_slice(&address.octets()),
            }
        }
        bytes
    }
}

/// Returns an address as a GID: an IPv4 address is mapped to IPv6 (annex A17).
pub(super) const fn gid_of(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}
