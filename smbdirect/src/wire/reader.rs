//! A bounds-checked cursor over little-endian fields, and the one error of `wire`.

use thiserror::Error;

/// Why bytes are not the message they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// Fewer bytes than the message's fixed part needs.
    #[error("{message} of {length} bytes, at least {minimum} are needed")]
    TooShort {
        /// The message that was expected.
        message: &'static str,
        /// Bytes the fixed part takes.
        minimum: usize,
        /// Bytes that were there.
        length: usize,
    },
    /// `DataOffset` is not a multiple of eight (2.2.3).
    #[error("DataOffset {data_offset} is not a multiple of 8")]
    DataOffsetAlignment {
        /// The field as received.
        data_offset: u32,
    },
    /// `DataOffset + DataLength` lies beyond the received bytes (3.1.5.8).
    #[error(
        "DataOffset {data_offset} + DataLength {data_length} exceeds the {length} bytes received"
    )]
    DataBeyondMessage {
        /// The field as received.
        data_offset: u32,
        /// The field as received.
        data_length: u32,
        /// Bytes that were received.
        length: usize,
    },
}

/// Reads little-endian fields off the front of a slice whose length has been checked.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Opens `bytes` if they hold at least `minimum`; bytes behind those are allowed.
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
