//! Buffer Descriptor V1 (2.2.3.1): 16 bytes that describe registered memory to the peer.

use bytes::BufMut;

use super::reader::{DecodeError, Reader};

/// A description of registered memory that an upper layer sends to its peer.
///
/// The upper layer puts the encoded bytes into its own messages; in SMB2 they are the channel
/// information of READ and WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BufferDescriptorV1 {
    /// Start of the memory in the address space of its token (the tagged offset of iWARP).
    pub offset: u64,
    /// Token that gives access to the memory (STag, rkey).
    pub token: u32,
    /// Length of the memory in bytes.
    pub length: u32,
}

impl BufferDescriptorV1 {
    /// Length of a descriptor in bytes.
    pub const LENGTH: usize = 16;

    /// Decodes one descriptor from the start of `bytes`.
    ///
    /// # Errors
    /// Returns [`DecodeError::TooShort`] if `bytes` has fewer than 16 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new("Buffer Descriptor V1", bytes, Self::LENGTH)?;
        Ok(Self {
            offset: reader.u64(),
            token: reader.u32(),
            length: reader.u32(),
        })
    }

    /// Decodes an array of descriptors that fills `bytes` exactly.
    ///
    /// # Errors
    /// Returns [`DecodeError::TooShort`] if the last descriptor is incomplete.
    pub fn decode_array(bytes: &[u8]) -> Result<Vec<Self>, DecodeError> {
        bytes.chunks(Self::LENGTH).map(Self::from_bytes).collect()
    }

    /// Returns the 16 bytes of this descriptor.
    pub fn to_bytes(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        self.encode(&mut &mut bytes[..]);
        bytes
    }

    /// Appends the 16 bytes of this descriptor.
    ///
    /// # Panics
    /// Panics if `out` has fewer than 16 bytes of room.
    pub fn encode(&self, out: &mut impl BufMut) {
        out.put_u64_le(self.offset);
        out.put_u32_le(self.token);
        out.put_u32_le(self.length);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(descriptor: &BufferDescriptorV1) -> Vec<u8> {
        let mut out = Vec::new();
        descriptor.encode(&mut out);
        assert_eq!(out, descriptor.to_bytes());
        out
    }

    #[test]
    fn descriptors_of_the_specification_decode_and_encode() {
        let worked = [
            (
                BufferDescriptorV1 {
                    offset: 0xABCD_E012,
                    token: 0x1A00_BC56,
                    length: 1 << 20,
                },
                [
                    0x12, 0xe0, 0xcd, 0xab, 0, 0, 0, 0, 0x56, 0xbc, 0, 0x1a, 0, 0, 0x10, 0,
                ],
            ),
            (
                BufferDescriptorV1 {
                    offset: 0x0DCB_A024,
                    token: 0x1A00_BC57,
                    length: 1 << 20,
                },
                [
                    0x24, 0xa0, 0xcb, 0x0d, 0, 0, 0, 0, 0x57, 0xbc, 0, 0x1a, 0, 0, 0x10, 0,
                ],
            ),
        ];
        for (descriptor, bytes) in worked {
            assert_eq!(BufferDescriptorV1::from_bytes(&bytes), Ok(descriptor));
            assert_eq!(encoded(&descriptor), bytes);
        }
        let array: Vec<u8> = worked.iter().flat_map(|(_, bytes)| *bytes).collect();
        let descriptors = BufferDescriptorV1::decode_array(&array).unwrap();
        assert_eq!(descriptors, worked.map(|(descriptor, _)| descriptor));
    }

    #[test]
    fn every_truncation_is_an_error() {
        for length in 0..16 {
            assert!(BufferDescriptorV1::from_bytes(&[0; 16][..length]).is_err());
        }
        for length in 17..32 {
            assert!(BufferDescriptorV1::decode_array(&[0; 32][..length]).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_descriptor_is_unchanged_by_decoding_and_encoding(bytes: [u8; 16]) {
            prop_assert_eq!(encoded(&BufferDescriptorV1::from_bytes(&bytes).unwrap()), bytes);
        }
    }
}
