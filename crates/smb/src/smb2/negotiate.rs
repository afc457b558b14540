//! The NEGOTIATE response ([MS-SMB2] 2.2.4), which selects the dialect of a connection.

use super::{
    header::{Command, Header},
    reader::Reader,
};

/// Dialect 3.0, the first with RDMA.
pub const DIALECT_3_0: u16 = 0x0300;
/// Dialect 3.0.2, the first with SMB2_CHANNEL_RDMA_V1_INVALIDATE.
pub const DIALECT_3_0_2: u16 = 0x0302;

/// The dialect number in the response to a client that also offers SMB1. Another NEGOTIATE follows.
const DIALECT_WILDCARD: u16 = 0x02ff;
const STRUCTURE_SIZE: u16 = 65;

/// Returns the DialectRevision of a successful NEGOTIATE response. Returns `None` for any other message,
/// and for the wildcard dialect, after which the client negotiates again.
pub fn negotiated_dialect(header: &Header, element: &[u8]) -> Option<u16> {
    if header.command != Command::NEGOTIATE || !header.is_response() || header.status != 0 {
        return None;
    }
    let minimum = Header::LENGTH + 6;
    let mut reader = Reader::body("NEGOTIATE response", element, minimum, STRUCTURE_SIZE).ok()?;
    let _security_mode = reader.u16();
    Some(reader.u16()).filter(|&dialect| dialect != DIALECT_WILDCARD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::*;

    fn dialect(message: &[u8]) -> Option<u16> {
        negotiated_dialect(&Header::decode(message).unwrap(), message)
    }

    #[test]
    fn dialect_of_a_successful_response_is_found() {
        for number in [0x0202, 0x0210, DIALECT_3_0, DIALECT_3_0_2, 0x0311] {
            assert_eq!(dialect(&negotiated(number)), Some(number));
        }
        assert_eq!(dialect(&negotiated(0x02ff)), None, "the wildcard");
    }

    #[test]
    fn other_messages_have_no_dialect() {
        let good = negotiated(0x0311);
        for message in [
            with(good.clone(), 8, &0xc000_0001_u32.to_le_bytes()),
            with(good.clone(), 12, &[1, 0]),
            with(good.clone(), 16, &[0; 4]),
            with(good.clone(), 64, &[36, 0]),
        ] {
            assert_eq!(dialect(&message), None);
        }
        for length in 64..70 {
            assert_eq!(dialect(&good[..length]), None);
        }
        assert_eq!(dialect(&good[..70]), Some(0x0311));
    }
}
