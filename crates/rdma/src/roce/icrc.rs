//! The invariant CRC (ICRC) at the end of each packet (IBTA annex A17).
//!
//! The ICRC is a CRC-32 over the IP header, the UDP header and the packet up to its pad. Fields that routers
//! change count as ones: in IPv4 the type of service, the time to live and the header checksum; in IPv6 the
//! traffic class, the flow label and the hop limit; the UDP checksum; and byte 4 of the BTH. The CRC begins with
//! eight bytes of ones in place of a local route header.
//!
//! # The Identification of IPv4
//!
//! The ICRC covers the Identification of IPv4, which a UDP socket does not show to the receiver. Because a CRC is
//! linear, [`solve`] computes the only Identification with which the ICRC of a packet is right, if there is one.
//! For a damaged packet there is one with a probability of about 2^-16. A receiver that also compares the
//! Identification with that of the previous packet of the sender detects most of these damaged packets. IPv6 has
//! no such field, and there the whole ICRC is checked.
//!
//! The ICRC protects against damage, not against an attacker: it contains no secret.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::{BufMut, BytesMut};
use crc_fast::{CrcAlgorithm, Digest};

pub use self::flow::FlowIcrc;
use self::polynomial::{inverse_power, multiply};
use super::packet::{Bth, ICRC_LENGTH};

mod flow;
mod polynomial;

/// The fields of the IP and UDP headers of a packet that the ICRC covers. The lengths follow from
/// the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramHeader {
    /// The IP header.
    pub ip: IpHeader,
    /// The UDP source port.
    pub source_port: u16,
    /// The UDP destination port.
    pub destination_port: u16,
}

/// The fields of an IP header that the ICRC covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpHeader {
    /// IPv4 without options.
    V4 {
        /// The source address.
        source: Ipv4Addr,
        /// The destination address.
        destination: Ipv4Addr,
        /// The Identification.
        identification: u16,
        /// The flags and the fragment offset, as the 16 bits of the header:
        /// [`DONT_FRAGMENT`](Self::DONT_FRAGMENT) in all RoCEv2 packets that are known.
        flags: u16,
    },
    /// IPv6 without extension headers.
    V6 {
        /// The source address.
        source: Ipv6Addr,
        /// The destination address.
        destination: Ipv6Addr,
    },
}

impl IpHeader {
    /// The flags of an IPv4 packet that may not be fragmented.
    pub const DONT_FRAGMENT: u16 = 0x4000;
}

impl DatagramHeader {
    /// Creates the header of a datagram between two sockets. For IPv4 the Identification is 0 and
    /// the packet may not be fragmented. IPv4-mapped IPv6 addresses count as IPv4.
    ///
    /// Returns `None` if one address is IPv4 and the other is IPv6.
    pub fn between(source: SocketAddr, destination: SocketAddr) -> Option<Self> {
        let addresses = (source.ip().to_canonical(), destination.ip().to_canonical());
        let ip = match addresses {
            (IpAddr::V4(source), IpAddr::V4(destination)) => IpHeader::V4 {
                source,
                destination,
                identification: 0,
                flags: IpHeader::DONT_FRAGMENT,
            },
            (IpAddr::V6(source), IpAddr::V6(destination)) => IpHeader::V6 {
                source,
                destination,
            },
            _ => return None,
        };
        Some(Self {
            ip,
            source_port: source.port(),
            destination_port: destination.port(),
        })
    }

    /// Returns this header with another Identification. An IPv6 header has none and is unchanged.
    #[must_use]
    pub const fn with_identification(mut self, value: u16) -> Self {
        if let IpHeader::V4 { identification, .. } = &mut self.ip {
            *identification = value;
        }
        self
    }

    /// Writes the IP and UDP headers as the ICRC covers them, and returns their length in bytes.
    /// `length` is the length of the UDP payload with its ICRC.
    fn masked(&self, length: usize, out: &mut [u8; MASKED_CAPACITY]) -> usize {
        let udp_length = (UDP_LENGTH + length) as u16;
        let at = match self.ip {
            IpHeader::V4 {
                source,
                destination,
                identification,
                flags,
            } => {
                //= ROCE-A17.3.3-02
                let total = udp_length.wrapping_add(IPV4_LENGTH as u16);
                out[..2].copy_from_slice(&[0x45, 0xff]);
                out[2..4].copy_from_slice(&total.to_be_bytes());
                out[4..6].copy_from_slice(&identification.to_be_bytes());
                out[6..8].copy_from_slice(&flags.to_be_bytes());
                out[8..12].copy_from_slice(&[0xff, PROTOCOL_UDP, 0xff, 0xff]);
                out[12..16].copy_from_slice(&source.octets());
                out[16..20].copy_from_slice(&destination.octets());
                IPV4_LENGTH
            }
            IpHeader::V6 {
                source,
                destination,
            } => {
                //= ROCE-A17.3.3-03
                out[..4].copy_from_slice(&[0x6f, 0xff, 0xff, 0xff]);
                out[4..6].copy_from_slice(&udp_length.to_be_bytes());
                out[6..8].copy_from_slice(&[PROTOCOL_UDP, 0xff]);
                out[8..24].copy_from_slice(&source.octets());
                out[24..40].copy_from_slice(&destination.octets());
                IPV6_LENGTH
            }
        };
        out[at..at + 2].copy_from_slice(&self.source_port.to_be_bytes());
        out[at + 2..at + 4].copy_from_slice(&self.destination_port.to_be_bytes());
        out[at + 4..at + 6].copy_from_slice(&udp_length.to_be_bytes());
        out[at + 6..at + 8].copy_from_slice(&[0xff; 2]);
        at + UDP_LENGTH
    }
}

const IPV4_LENGTH: usize = 20;
const IPV6_LENGTH: usize = 40;
const UDP_LENGTH: usize = 8;
const PROTOCOL_UDP: u8 = 17;
/// The room for the masked IP and UDP headers and the BTH, in bytes.
const MASKED_CAPACITY: usize = IPV6_LENGTH + UDP_LENGTH + Bth::LENGTH;
/// The offset of the byte of the BTH that counts as ones.
const MASKED_BTH_BYTE: usize = 4;
/// The register of the CRC after the eight bytes of ones.
//= ROCE-A17.3.3-01
const INITIAL_REGISTER: u64 = 0xdebb_20e3;

/// Returns the ICRC of a packet, in the byte order of the wire.
///
/// The `parts` together are the packet from its BTH to its pad, without the ICRC.
///
/// # Panics
/// Panics if the first part is shorter than a BTH.
pub fn icrc(header: &DatagramHeader, parts: &[&[u8]]) -> [u8; ICRC_LENGTH] {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let (first, others) = parts.split_first().expect("a packet has a BTH");
    let (bth, first) = first
        .split_first_chunk::<{ Bth::LENGTH }>()
        .expect("the first part contains the BTH");
    let mut masked = [0; MASKED_CAPACITY];
    let at = header.masked(length + ICRC_LENGTH, &mut masked);
    masked[at..at + Bth::LENGTH].copy_from_slice(bth);
    //= ROCE-A17.3.3-04
    masked[at + MASKED_BTH_BYTE] = 0xff;
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32IsoHdlc, INITIAL_REGISTER);
    digest.update(&masked[..at + Bth::LENGTH]);
    digest.update(first);
    for part in others {
        digest.update(part);
    }
    //= ROCE-A17.3.3-05
    (digest.finalize() as u32).to_le_bytes()
}

/// Appends the ICRC to a packet that starts at `start` in `out` and ends with its pad.
///
/// # Panics
/// Panics if `out` has no BTH from `start` on.
pub fn append(header: &DatagramHeader, out: &mut BytesMut, start: usize) {
    let icrc = icrc(header, &[&out[start..]]);
    out.put_slice(&icrc);
}

/// Returns whether the ICRC at the end of a UDP payload is right.
pub fn verify(header: &DatagramHeader, datagram: &[u8]) -> bool {
    difference(header, datagram) == Some(0)
}

/// Returns the Identification with which the ICRC at the end of a UDP payload is right, or `None`
/// if there is none.
///
/// The Identification in `header` is a guess. If it is right, only one ICRC is computed. If 0 is right, two are
/// computed. For IPv6 the result is 0 if the ICRC is right.
pub fn solve(header: &DatagramHeader, datagram: &[u8]) -> Option<u16> {
    let difference = difference(header, datagram)?;
    match header.ip {
        IpHeader::V6 { .. } => (difference == 0).then_some(0),
        IpHeader::V4 { identification, .. } if difference == 0 => Some(identification),
        // A sender that leaves segmentation to its kernel begins each group of packets at 0. Another
        // CRC takes less time than the general solution.
        IpHeader::V4 { identification, .. }
            if identification != 0 && verify(&header.with_identification(0), datagram) =>
        {
            Some(0)
        }
        IpHeader::V4 { identification, .. } => {
            Some(identification ^ correction(difference, inverse_of(datagram.len()))?)
        }
    }
}

/// Returns the change of the Identification that changes an ICRC by `difference`, or `None` if there is none.
/// `inverse` is the result of [`inverse_of`] for the length of the packet.
fn correction(difference: u32, inverse: u32) -> Option<u16> {
    let register = multiply(difference, inverse);
    //= ROCE-A17.3.3-06
    let register = u16::try_from(register).ok()?;
    // The CRC takes the first byte into the low bits of its register.
    Some(register.swap_bytes())
}

/// Returns the factor that moves a difference between the ICRCs of UDP payloads of `length` bytes back
/// to the Identification.
fn inverse_of(length: usize) -> u32 {
    let covered = length - ICRC_LENGTH;
    // The number of bytes from the start of the Identification to the end of the bytes that the CRC covers.
    let after = IPV4_LENGTH - IDENTIFICATION_OFFSET + UDP_LENGTH + covered;
    inverse_power(8 * after as u32)
}

/// The offset of the Identification in an IPv4 header.
const IDENTIFICATION_OFFSET: usize = 4;

/// Returns the exclusive or of the ICRC in a UDP payload and the correct ICRC, or `None` if the payload is too
/// short.
fn difference(header: &DatagramHeader, datagram: &[u8]) -> Option<u32> {
    let (packet, found) = datagram.split_last_chunk::<ICRC_LENGTH>()?;
    if packet.len() < Bth::LENGTH {
        return None;
    }
    let right = icrc(header, &[packet]);
    Some(u32::from_le_bytes(*found) ^ u32::from_le_bytes(right))
}

#[cfg(test)]
mod tests;
