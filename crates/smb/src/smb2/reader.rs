//! A cursor over little-endian fields, and the error for malformed structures.

use thiserror::Error;

/// The reason why bytes are not a valid SMB2 structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The structure has fewer bytes than its fixed part.
    #[error("{structure} of {length} bytes, at least {minimum} are needed")]
    TooShort {
        /// The structure that was expected.
        structure: &'static str,
        /// Number of bytes of its fixed part, including the header.
        minimum: usize,
        /// Number of bytes received.
        length: usize,
    },
    /// StructureSize differs from the value in the specification.
    #[error("{structure} with StructureSize {found} instead of {expected}")]
    StructureSize {
        /// The structure that was expected.
        structure: &'static str,
        /// The StructureSize in the specification.
        expected: u16,
        /// The field as received.
        found: u16,
    },
    /// The message does not begin with the protocol identifier of SMB2.
    #[error("no SMB2 header")]
    ProtocolId,
    /// NextCommand is not a multiple of 8, or the next header would not be inside the message.
    #[error("NextCommand {next_command} in an element of {length} bytes")]
    NextCommand {
        /// The field as received.
        next_command: u32,
        /// Number of bytes from this header to the end of the message.
        length: usize,
    },
    /// A buffer that the fixed part describes is not inside the element.
    #[error("{field} at offset {offset} with {length} bytes lies outside the element")]
    OutOfBounds {
        /// The name of the buffer's field in the specification.
        field: &'static str,
        /// The offset as received.
        offset: u32,
        /// The length as received.
        length: u32,
    },
    /// The channel information is not an array of 16-byte buffer descriptors.
    #[error("{length} bytes of channel information are not an array of buffer descriptors")]
    Descriptors {
        /// The length as received.
        length: u32,
    },
}

/// Length in bytes of the SMB2 header, after which the body of an element begins.
pub(super) const HEADER_LENGTH: usize = 64;

/// A cursor that reads little-endian fields from the front of a slice whose length has been checked.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Creates a cursor at offset `from` of `element`, which must have at least `minimum` bytes.
    pub(super) fn new(
        structure: &'static str,
        element: &'a [u8],
        from: usize,
        minimum: usize,
    ) -> Result<Self, Malformed> {
        match element.get(from..) {
            Some(rest) if element.len() >= minimum => Ok(Self { rest }),
            _ => Err(Malformed::TooShort {
                structure,
                minimum,
                length: element.len(),
            }),
        }
    }

    /// Creates a cursor at the body after the header, and checks the StructureSize.
    pub(super) fn body(
        structure: &'static str,
        element: &'a [u8],
        minimum: usize,
        structure_size: u16,
    ) -> Result<Self, Malformed> {
        let mut reader = Self::new(structure, element, HEADER_LENGTH, minimum)?;
        let found = reader.u16();
        if found != structure_size {
            return Err(Malformed::StructureSize {
                structure,
                expected: structure_size,
                found,
            });
        }
        Ok(reader)
    }

    pub(super) fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self
            .rest
            .split_first_chunk()
            .expect("the length was checked when the reader was made");
        self.rest = rest;
        *field
    }

    pub(super) fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

/// Returns the bytes of a buffer that the fixed part of an element describes.
pub(super) fn buffer<'a>(
    field: &'static str,
    element: &'a [u8],
    offset: u32,
    length: u32,
) -> Result<&'a [u8], Malformed> {
    let start = offset as usize;
    let end = start.checked_add(length as usize);
    end.and_then(|end| element.get(start..end))
        .ok_or(Malformed::OutOfBounds {
            field,
            offset,
            length,
        })
}
