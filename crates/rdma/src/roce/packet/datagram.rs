//! [`Packet`], the contents of one UDP datagram.

use bytes::{BufMut, Bytes};

use super::{Bth, DecodeError, Extended};
/// The UDP destination port of RoCEv2 (annex A17).
pub const UDP_PORT: u16 = 4791;
/// The length of the ICRC at the end of a packet, in bytes.
pub const ICRC_LENGTH: usize = 4;

/// A packet without its pad and its ICRC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The Base Transport Header.
    pub bth: Bth,
    /// The extended headers that belong to the opcode.
    pub extended: Extended,
    /// The payload.
    pub payload: Bytes,
}

impl Packet {
    /// Decodes a packet from the payload of a UDP datagram, which ends with the ICRC. The payload
    /// of the packet shares the memory of the datagram.
    ///
    /// The ICRC is not checked: see [`icrc`](crate::roce::icrc).
    ///
    /// # Errors
    /// Returns an error if the length, the version, the opcode or the syndrome is invalid.
    pub fn decode(datagram: &Bytes) -> Result<Self, DecodeError> {
        let (bth, extended, payload) = Self::split(datagram)?;
        let payload = datagram.slice_ref(payload);
        Ok(Self {
            bth,
            extended,
            payload,
        })
    }

    /// Decodes the headers of a packet, and returns them with the payload. This is
    /// [`decode`](Self::decode) for bytes that are not in a `Bytes`.
    ///
    /// # Errors
    /// Returns the same errors as [`decode`](Self::decode).
    #[inline]
    pub fn split(datagram: &[u8]) -> Result<(Bth, Extended, &[u8]), DecodeError> {
        let length = datagram.len();
        let too_short = |minimum| DecodeError::TooShort { length, minimum };
        let (bth, rest) = datagram
            .split_first_chunk::<{ Bth::LENGTH }>()
            .ok_or_else(|| too_short(Bth::LENGTH + ICRC_LENGTH))?;
        let (bth, pad) = Bth::decode(bth)?;
        //= ROCE-9.2.1-03
        let layout = bth.opcode.layout();
        let trailer = pad + ICRC_LENGTH;
        let minimum = layout.length() + trailer;
        if rest.len() < minimum {
            return Err(too_short(Bth::LENGTH + minimum));
        }
        //= ROCE-9.2.1-04
        if !length.is_multiple_of(4) {
            return Err(DecodeError::Unaligned { length });
        }
        let (extended, rest) = rest.split_at(layout.length());
        let extended = Extended::decode(layout, extended)?;
        Ok((bth, extended, &rest[..rest.len() - trailer]))
    }

    /// Returns the number of bytes that [`encode`](Self::encode) writes.
    pub fn encoded_length(&self) -> usize {
        let headers = Bth::LENGTH + self.extended.layout().length();
        headers + self.payload.len().next_multiple_of(4)
    }

    /// Appends the packet with its pad to `out`, without the ICRC. The function
    /// [`icrc::append`](crate::roce::icrc::append) adds the ICRC.
    ///
    /// # Panics
    /// Panics if the extended headers do not belong to the opcode, or if the value of a field of 24 bits has more
    /// bits.
    pub fn encode(&self, out: &mut impl BufMut) {
        assert_eq!(
            self.extended.layout(),
            self.bth.opcode.layout(),
            "the opcode determines the extended headers"
        );
        //= ROCE-9.2.1-04
        let pad = pad_count(self.payload.len());
        out.put_slice(&self.bth.encode(pad));
        let mut extended = [0; Extended::MAX_LENGTH];
        let length = self.extended.encode(&mut extended);
        out.put_slice(&extended[..length]);
        out.put_slice(&self.payload);
        out.put_bytes(0, pad);
    }
}

/// Returns the number of pad bytes after a payload of `length` bytes.
pub(in crate::roce) const fn pad_count(length: usize) -> usize {
    length.wrapping_neg() % 4
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use proptest::prelude::*;

    use super::*;
    use crate::roce::packet::Opcode;

    /// Returns a packet of `opcode` with a payload of `length` bytes. Its other header fields are 0, except the
    /// pad count.
    fn datagram(opcode: u8, length: usize, headers: usize) -> Vec<u8> {
        let pad = pad_count(length);
        let mut bytes = vec![0; headers + length + pad + ICRC_LENGTH];
        bytes[0] = opcode;
        bytes[1] = (pad as u8) << 4;
        bytes
    }

    //= ROCE-9.2.1-03 test
    //= ROCE-9.2.1-04 test
    #[test]
    fn every_truncation_of_every_opcode_is_an_error_or_a_shorter_packet() {
        for opcode in Opcode::ALL {
            for length in 0..9 {
                let headers = Bth::LENGTH + opcode.layout().length();
                let bytes = datagram(opcode as u8, length, headers);
                let least = headers + pad_count(length) + ICRC_LENGTH;
                for cut in 0..=bytes.len() {
                    let error = match cut {
                        _ if cut < least => DecodeError::TooShort {
                            length: cut,
                            minimum: if cut < Bth::LENGTH { 16 } else { least },
                        },
                        _ if cut % 4 != 0 => DecodeError::Unaligned { length: cut },
                        _ => {
                            let (.., payload) = Packet::split(&bytes[..cut]).unwrap();
                            assert_eq!(payload.len(), cut - least);
                            continue;
                        }
                    };
                    assert_eq!(Packet::split(&bytes[..cut]), Err(error), "{opcode:?} {cut}");
                }
            }
        }
    }

    //= ROCE-9.2.1-02 test
    #[test]
    fn other_versions_are_errors() {
        for version in 1..16 {
            let mut bytes = datagram(Opcode::SendOnly as u8, 4, Bth::LENGTH);
            bytes[1] |= version;
            assert_eq!(Packet::split(&bytes), Err(DecodeError::Version(version)));
        }
    }

    #[test]
    #[should_panic(expected = "the opcode determines the extended headers")]
    fn headers_of_another_opcode_are_not_encoded() {
        let packet = Packet {
            bth: Bth::new(Opcode::Acknowledge, 1, crate::roce::Psn::new(0)),
            extended: Extended::Plain,
            payload: Bytes::new(),
        };
        packet.encode(&mut BytesMut::new());
    }

    proptest! {
        //= ROCE-9.2.1-04 test
        #[test]
        fn packets_round_trip_without_their_reserved_bits(
            opcode in proptest::sample::select(&Opcode::ALL[..]),
            headers: [u8; 40],
            payload in proptest::collection::vec(any::<u8>(), 0..20),
            credit in 0..0x20_u8,
        ) {
            let length = Bth::LENGTH + opcode.layout().length();
            let pad = pad_count(payload.len());
            let mut bytes = headers[..length].to_vec();
            bytes[0] = opcode as u8;
            bytes[1] = bytes[1] & 0xc0 | (pad as u8) << 4;
            bytes[4] &= 0xc0;
            bytes[8] &= 0x80;
            match opcode.layout().length() {
                _ if opcode == Opcode::Acknowledge || opcode.is_response() && length > 12 => {
                    bytes[12] = credit;
                }
                8 | 12 => bytes[16] = 0,
                _ => {}
            }
            bytes.extend_from_slice(&payload);
            bytes.resize(bytes.len() + pad + ICRC_LENGTH, 0);
            let bytes = Bytes::from(bytes);
            let packet = Packet::decode(&bytes).unwrap();
            prop_assert_eq!(&packet.payload, &payload);
            let mut again = BytesMut::new();
            packet.encode(&mut again);
            prop_assert_eq!(again.len(), packet.encoded_length());
            prop_assert_eq!(&again, &bytes[..bytes.len() - ICRC_LENGTH]);
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            let _ = Packet::split(&bytes);
        }
    }
}
