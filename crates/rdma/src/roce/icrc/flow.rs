//! [`FlowIcrc`], the ICRCs of packets between the same two sockets.
//!
//! The IP and UDP headers of such packets differ only in their length and in the Identification of
//! IPv4. So the register of the CRC after these headers is computed once for each length, and the
//! Identification is added to it, because a CRC is linear. The byte of the BTH that counts as ones is
//! 0 in nearly all packets; the difference it makes to the CRC depends on the length only. A packet
//! then takes one pass of the CRC over its bytes as they are.

use crc_fast::{CrcAlgorithm, Digest};

use super::{
    DatagramHeader, INITIAL_REGISTER, IpHeader, MASKED_BTH_BYTE, MASKED_CAPACITY, correction, icrc,
    inverse_of,
    polynomial::{multiply, power},
};
use crate::roce::packet::{Bth, ICRC_LENGTH};

/// The ICRCs of the packets that one socket sends to another, or receives from it.
#[derive(Clone, Debug)]
pub struct FlowIcrc {
    /// The headers, with the Identification 0.
    header: DatagramHeader,
    /// The values for packets of some lengths. The length determines the place of its values.
    known: [Known; PLACES],
}

/// The number of lengths that are known at a time. A stream has few: those of its data packets and
/// of acknowledgements.
const PLACES: usize = 8;

/// The values for the ICRC of a packet that depend on its length only.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// The length of the UDP payload in bytes; 0 for an unused place.
    length: usize,
    /// The last length that was not known. A length that occurs a second time becomes known.
    candidate: usize,
    /// The register after the IP and UDP headers, with the Identification 0.
    register: u32,
    /// The difference between the ICRCs with ones and with zeros in the masked byte of the BTH.
    mask: u32,
    /// The factor that turns a difference between ICRCs into one between Identifications.
    inverse: u32,
}

/// The shortest packet that has a masked byte, without its ICRC.
const SHORTEST: usize = Bth::LENGTH;
/// The bytes of the IPv4 and UDP headers after the Identification.
const AFTER_IDENTIFICATION: u32 = 22;
/// For each bit of the Identification, the register of a CRC that starts at 0, after headers in which only this
/// bit is set.
const IDENTIFICATION: [u32; 16] = {
    let mut registers = [0; 16];
    // The polynomial x^(8 * AFTER_IDENTIFICATION).
    let mut shift = 1 << 31;
    let mut left = 8 * AFTER_IDENTIFICATION;
    while left > 0 {
        shift = multiply(shift, 1 << 30);
        left -= 1;
    }
    let mut bit = 0;
    while bit < 16 {
        // The CRC takes a byte in by its low bits, so the register before the shift is the two
        // bytes in the order of the wire.
        let bytes = (1_u16 << bit).swap_bytes() as u32;
        let mut register = bytes;
        let mut step = 0;
        while step < 16 {
            register = multiply(register, 1 << 30);
            step += 1;
        }
        registers[bit] = multiply(register, shift);
        bit += 1;
    }
    registers
};

impl FlowIcrc {
    /// Creates the state for packets with these headers. Their Identification is not used.
    pub const fn new(header: &DatagramHeader) -> Self {
        Self {
            header: header.with_identification(0),
            known: [Known {
                length: 0,
                candidate: 0,
                register: 0,
                mask: 0,
                inverse: 0,
            }; PLACES],
        }
    }

    /// Returns whether the packets are IPv4, so that their ICRC covers an Identification.
    pub const fn has_identification(&self) -> bool {
        matches!(self.header.ip, IpHeader::V4 { .. })
    }

    /// Returns the ICRC of a packet, in the byte order of the wire. `packet` is the packet from its BTH to its
    /// pad. For IPv6, `identification` is ignored.
    ///
    /// # Panics
    /// Panics if the packet is shorter than a BTH.
    pub fn icrc(&mut self, identification: u16, packet: &[u8]) -> [u8; ICRC_LENGTH] {
        self.value(identification, packet).to_le_bytes()
    }

    /// Returns the Identification with which the ICRC at the end of a UDP payload is right, or
    /// `None` if there is none. `guess` is the most probable one. For IPv6 the result is 0 if the
    /// ICRC is right.
    pub fn solve(&mut self, guess: u16, datagram: &[u8]) -> Option<u16> {
        let (packet, found) = datagram.split_last_chunk::<ICRC_LENGTH>()?;
        if packet.len() < SHORTEST {
            return None;
        }
        let difference = u32::from_le_bytes(*found) ^ self.value(guess, packet);
        if difference == 0 {
            return Some(if self.has_identification() { guess } else { 0 });
        }
        if !self.has_identification() {
            return None;
        }
        let known = &self.known[place_of(datagram.len())];
        let inverse = if known.length == datagram.len() {
            known.inverse
        } else {
            inverse_of(datagram.len())
        };
        Some(guess ^ correction(difference, inverse)?)
    }

    fn value(&mut self, identification: u16, packet: &[u8]) -> u32 {
        let length = packet.len() + ICRC_LENGTH;
        let place = place_of(length);
        if self.known[place].length != length && !self.learn(length, place)
            || packet[MASKED_BTH_BYTE] != 0
        {
            let header = self.header.with_identification(identification);
            return u32::from_le_bytes(icrc(&header, &[packet]));
        }
        let Known { register, mask, .. } = self.known[place];
        let mut register = register;
        let mut bits = match self.header.ip {
            IpHeader::V4 { .. } => identification,
            IpHeader::V6 { .. } => 0,
        };
        while bits != 0 {
            register ^= IDENTIFICATION[bits.trailing_zeros() as usize];
            bits &= bits - 1;
        }
        let mut digest =
            Digest::new_with_init_state(CrcAlgorithm::Crc32IsoHdlc, u64::from(register));
        digest.update(packet);
        digest.finalize() as u32 ^ mask
    }

    /// Computes the values for packets of this length when the length occurs a second time. Returns whether it
    /// did.
    #[cold]
    #[inline(never)]
    fn learn(&mut self, length: usize, place: usize) -> bool {
        let candidate = &mut self.known[place].candidate;
        if std::mem::replace(candidate, length) != length || length < SHORTEST + ICRC_LENGTH {
            return false;
        }
        let mut masked = [0; MASKED_CAPACITY];
        let end = self.header.masked(length, &mut masked);
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32IsoHdlc, INITIAL_REGISTER);
        digest.update(&masked[..end]);
        // The number of bytes after the masked byte, plus one: the CRC also shifts by the eight bits of the
        // masked byte.
        let after = length - ICRC_LENGTH - MASKED_BTH_BYTE;
        self.known[place] = Known {
            length,
            candidate: length,
            register: !(digest.finalize() as u32),
            mask: multiply(0xff, power(8 * after as u32)),
            inverse: inverse_of(length),
        };
        true
    }
}

/// Returns the place of packets whose UDP payloads have this length.
const fn place_of(length: usize) -> usize {
    length / 4 % PLACES
}
