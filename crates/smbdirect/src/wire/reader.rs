//! [`Reader`], a bounds-checked cursor over little-endian fields, and [`DecodeError`].

use std::io;

use thiserror::Error;

/// Why bytes are not a well-formed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The message is shorter than its fixed part.
    #[error("{message} of {length} bytes, at least {minimum} are needed")]
    TooShort {
        /// Name of the expected message.
        message: &'static str,
        /// Length of the fixed part in bytes.
        minimum: usize,
        /// Bytes received.
        length: usize,
    },
    /// `DataOffset` is not a multiple of eight (2.2.3).
    #[error("DataOffset {data_offset} is not a multiple of 8")]
    DataOffsetAlignment {
        /// The field as received.
        data_offset: u32,
    },
    /// `DataOffset + DataLength` exceeds the received bytes (3.1.5.8).
    #[error(
        "DataOffset {data_offset} + DataLength {data_length} exceeds the {length} bytes received"
    )]
    DataBeyondMessage {
        /// The field as received.
        data_offset: u32,
        /// The field as received.
        data_length: u32,
        /// Bytes received.
        length: usize,
    },
}

impl From<DecodeError> for io::Error {
    fn from(error: DecodeError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// Reads little-endian fields from the start of a slice whose length has been checked.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Creates a reader of `bytes`, which have to be at least `minimum` and may be more.
    pub(super) fn new(
        message: &'static str,
        bytes: &'a [u8],
        minimum: usize,
    ) -> Result<Self, DecodeError> {
        if bytes.len() < minimum {
            return Err(DecodeError::TooShort {
                message,
                minimum,
                length: bytes.len(),
            });
        }
        Ok(Self { rest: bytes })
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self
            .rest
            .split_first_chunk()
            .expect("the length was checked when the reader was made");
        self.rest = rest;
        *field
    }

    pub(super) fn u16(&mut self) -> u16 {
        //= SMBD-2.2-01
        u16::from_le_bytes(self.take())
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}
