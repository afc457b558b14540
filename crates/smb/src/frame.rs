//! Frames of SMB over TCP: a zero byte and a length of three bytes, big-endian, precede each message ([MS-SMB2]
//! 2.1). NetBIOS frames (RFC 1002, 4.3) can arrive on the same port.
//!
//! ```text
//!   0x00  length (3)  message      a message
//!   0x00  0                        an empty message: to be dropped, because no SMB message is empty
//!   0x85  0                        NetBIOS keepalive: to be dropped, because it concerns only this connection
//!   0x81  ...                      NetBIOS session request, valid only on port 139: an error
//!   else                           not SMB over TCP: an error
//! ```

use thiserror::Error;

/// The port of SMB over TCP.
pub const PORT: u16 = 445;
/// Length in bytes of the header before each message.
pub const HEADER_LENGTH: usize = 4;
/// Length in bytes of the longest message, which the three bytes of the length field can express.
pub const MAX_MESSAGE_LENGTH: u32 = 0x00ff_ffff;

const MESSAGE: u8 = 0x00;
const SESSION_REQUEST: u8 = 0x81;
const KEEPALIVE: u8 = 0x85;

/// The reason why bytes are not the header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The peer asked for a NetBIOS session.
    #[error("it asks for a NetBIOS session (0x81), which only port 139 has; have it use port 445")]
    SessionRequest,
    /// A frame has this type, which SMB over TCP does not have.
    #[error("a message begins with 0x{0:02x}; that is not SMB over TCP")]
    Type(u8),
}

/// Returns the length in bytes of the message that follows a header. It is 0 if no message follows.
///
/// # Errors
/// The bytes are not the header of a frame of SMB over TCP.
pub fn message_length(header: [u8; HEADER_LENGTH]) -> Result<u32, FrameError> {
    let [kind, length @ ..] = header;
    let [high, middle, low] = length;
    match (kind, u32::from_be_bytes([0, high, middle, low])) {
        (MESSAGE, length) => Ok(length),
        (KEEPALIVE, 0) => Ok(0),
        (SESSION_REQUEST, _) => Err(FrameError::SessionRequest),
        (other, _) => Err(FrameError::Type(other)),
    }
}

/// Returns the header of a message of `length` bytes, or `None` if that is more than [`MAX_MESSAGE_LENGTH`].
pub fn header(length: usize) -> Option<[u8; HEADER_LENGTH]> {
    let length = u32::try_from(length).ok()?;
    // The highest byte of such a length is zero, which is the type of a message.
    (length <= MAX_MESSAGE_LENGTH).then_some(length.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_a_type_and_a_length_of_three_bytes() {
        for (header, expected) in [
            ([0, 0, 0, 1], Ok(1)),
            ([0, 1, 2, 3], Ok(0x01_02_03)),
            ([0, 0xff, 0xff, 0xff], Ok(MAX_MESSAGE_LENGTH)),
            ([0, 0, 0, 0], Ok(0)),
            ([0x85, 0, 0, 0], Ok(0)),
            ([0x85, 0, 0, 1], Err(FrameError::Type(0x85))),
            ([0x81, 0, 0, 68], Err(FrameError::SessionRequest)),
            ([0x81, 0, 0, 0], Err(FrameError::SessionRequest)),
            (*b"GET ", Err(FrameError::Type(0x47))),
            (*b"\xffSMB", Err(FrameError::Type(0xff))),
            ([1, 0, 0, 0], Err(FrameError::Type(1))),
        ] {
            assert_eq!(message_length(header), expected, "{header:?}");
        }
    }

    #[test]
    fn a_header_is_that_of_its_message() {
        for length in [1, 255, 256, 65_535, 65_536, 0xff_ffff] {
            let header = header(length).unwrap();
            assert_eq!(message_length(header), Ok(length as u32));
        }
        for length in [0x100_0000, usize::MAX] {
            assert_eq!(header(length), None);
        }
    }
}
