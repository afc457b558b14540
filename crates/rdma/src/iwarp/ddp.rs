//! DDP (RFC 5041): segments, whose header says where the payload goes.
//!
//! ```text
//! tagged:    T L DV (1) | RDMAP (1) | STag (4) | TO (8)                        payload from 14
//! untagged:  T L DV (1) | RDMAP (1) | RsvdULP (4) | QN (4) | MSN (4) | MO (4)  payload from 18
//! ```
//!
//! A tagged segment names memory of the receiver. An untagged segment goes to the next buffer of a
//! queue. The fields RDMAP and RsvdULP belong to the upper layer, [`rdmap`](super::rdmap).

use thiserror::Error;

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The header of a segment that goes to memory.
    Tagged(Tagged),
    /// The header of a segment that goes to a queue.
    Untagged(Untagged),
}

/// The header of a segment that goes to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tagged {
    /// L: the last segment of its message.
    pub last: bool,
    /// The control byte of the upper layer.
    pub rdmap_control: u8,
    /// The STag, which names the memory.
    pub stag: u32,
    /// TO: the offset in that memory at which the payload starts.
    pub tagged_offset: u64,
}

/// The header of a segment that goes to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Untagged {
    /// L: the last segment of its message.
    pub last: bool,
    /// The control byte of the upper layer.
    pub rdmap_control: u8,
    /// The word RsvdULP of the upper layer.
    pub rsvd_ulp: u32,
    /// QN: the number of the queue.
    pub queue_number: u32,
    /// MSN: the number of the message in its queue, from 1.
    pub message_sequence_number: u32,
    /// MO: the offset in the message at which the payload starts.
    pub message_offset: u32,
}

/// The reason why bytes are not a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DdpError {
    /// The ULPDU has fewer bytes than its header needs.
    #[error("a ULPDU of {length} bytes is too short for its DDP header")]
    TooShort {
        /// The length of the ULPDU, in bytes.
        length: usize,
    },
    /// A tagged segment has an unknown DDP version.
    #[error("DDP version {0} in a tagged segment")]
    TaggedVersion(u8),
    /// An untagged segment has an unknown DDP version.
    #[error("DDP version {0} in an untagged segment")]
    UntaggedVersion(u8),
}

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
const VERSION_MASK: u8 = 0x03;
const VERSION: u8 = 1;

impl Header {
    /// Decodes the header at the front of a ULPDU and returns it with the payload.
    ///
    /// # Errors
    /// Returns an error if there are too few bytes, or if the version is not 1.
    #[inline]
    pub fn decode(ulpdu: &[u8]) -> Result<(Self, &[u8]), DdpError> {
        //= MPA-25
        let too_short = DdpError::TooShort {
            length: ulpdu.len(),
        };
        let control = *ulpdu.first().ok_or(too_short)?;
        let version = control & VERSION_MASK;
        //= DDP-02
        let last = control & LAST != 0;
        if control & TAGGED != 0 {
            let (header, payload) = ulpdu
                .split_first_chunk::<{ Tagged::LENGTH }>()
                .ok_or(too_short)?;
            //= DDP-01
            if version != VERSION {
                return Err(DdpError::TaggedVersion(version));
            }
            return Ok((Self::Tagged(Tagged::read(last, header)), payload));
        }
        let (header, payload) = ulpdu
            .split_first_chunk::<{ Untagged::LENGTH }>()
            .ok_or(too_short)?;
        if version != VERSION {
            return Err(DdpError::UntaggedVersion(version));
        }
        Ok((Self::Untagged(Untagged::read(last, header)), payload))
    }

    /// Appends the header to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Tagged(header) => out.extend_from_slice(&header.encode()),
            Self::Untagged(header) => out.extend_from_slice(&header.encode()),
        }
    }
}

impl Tagged {
    /// The length on the wire, in bytes.
    pub const LENGTH: usize = 14;

    /// Decodes the header.
    fn read(last: bool, bytes: &[u8; Self::LENGTH]) -> Self {
        Self {
            last,
            rdmap_control: bytes[1],
            stag: word(bytes, 2),
            tagged_offset: u64::from(word(bytes, 6)) << 32 | u64::from(word(bytes, 10)),
        }
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[0] = TAGGED | if self.last { LAST } else { 0 } | VERSION;
        bytes[1] = self.rdmap_control;
        bytes[2..6].copy_from_slice(&self.stag.to_be_bytes());
        bytes[6..14].copy_from_slice(&self.tagged_offset.to_be_bytes());
        bytes
    }
}

impl Untagged {
    /// The length on the wire, in bytes.
    pub const LENGTH: usize = 18;

    /// Decodes the header.
    fn read(last: bool, bytes: &[u8; Self::LENGTH]) -> Self {
        Self {
            last,
            rdmap_control: bytes[1],
            rsvd_ulp: word(bytes, 2),
            queue_number: word(bytes, 6),
            message_sequence_number: word(bytes, 10),
            message_offset: word(bytes, 14),
        }
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[0] = if self.last { LAST } else { 0 } | VERSION;
        bytes[1] = self.rdmap_control;
        bytes[2..6].copy_from_slice(&self.rsvd_ulp.to_be_bytes());
        bytes[6..10].copy_from_slice(&self.queue_number.to_be_bytes());
        bytes[10..14].copy_from_slice(&self.message_sequence_number.to_be_bytes());
        bytes[14..18].copy_from_slice(&self.message_offset.to_be_bytes());
        bytes
    }
}

/// Returns the big-endian 32-bit word at offset `at`.
pub(super) fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes[at..].first_chunk().expect("the length was checked");
    u32::from_be_bytes(*word)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    //= MPA-25 test
    #[test]
    fn every_truncation_is_an_error() {
        for (control, header_length) in [(0xc1, 14), (0x41, 18)] {
            let mut bytes = [0; 20];
            bytes[0] = control;
            for length in 0..20 {
                let decoded = Header::decode(&bytes[..length]);
                if length < header_length {
                    assert_eq!(decoded, Err(DdpError::TooShort { length }));
                } else {
                    assert_eq!(decoded.unwrap().1.len(), length - header_length);
                }
            }
        }
    }

    //= DDP-01 test
    #[test]
    fn unknown_versions_are_errors() {
        for version in [0, 2, 3] {
            let mut bytes = [0; 18];
            bytes[0] = 0x80 | version;
            assert_eq!(
                Header::decode(&bytes),
                Err(DdpError::TaggedVersion(version))
            );
            bytes[0] = version;
            assert_eq!(
                Header::decode(&bytes),
                Err(DdpError::UntaggedVersion(version))
            );
        }
    }

    proptest! {
        //= DDP-02 test
        #[test]
        fn headers_round_trip_without_their_reserved_bits(
            mut bytes in proptest::collection::vec(any::<u8>(), 18..40),
        ) {
            bytes[0] = bytes[0] & !VERSION_MASK | VERSION;
            let (header, payload) = Header::decode(&bytes).unwrap();
            let mut out = Vec::new();
            header.encode(&mut out);
            out.extend_from_slice(payload);
            bytes[0] &= !0x3c;
            prop_assert_eq!(out, bytes);
        }
    }
}
