//! NEGOTIATE response ([MS-SMB2] 2.2.4): which dialect a connection speaks.

use super::{header::Header, reader::Reader};

/// Dialect 3.0, the first with RDMA.
pub const DIALECT_3_0: u16 = 0x0300;
/// Dialect 3.0.2, the first with SMB2_CHANNEL_RDMA_V1_INVALIDATE.
pub const DIALECT_3_0_2: u16 = 0x0302;

/// What a server answers to a client that offers SMB1 as well: another NEGOTIATE follows.
const DIALECT_WILDCARD: u16 = 0x02ff;
const STRUCTURE_SIZE: u16 = 65;

/// Returns DialectRevision of a successful NEGOTIATE response, and `None` for any other message
/// and for the wildcard, after which the client negotiates again.
pub fn negotiated_dialect(header: &Header, element: &[u8]) -> Option<u16> {
    if header.command != super::Command::NEGOTIATE || !header.is_response() || header.status != 0 {
        return None;
    }
    let minimum = Header::LENGTH + 6;
    let mut reader = Reader::body("NEGOTIATE response", element, minimum, STRUCTURE_SIZE).ok()?;
    let _security_mode = reader.u16();
    Some(reader.u16()).filter(|&dialect| dialect != DIALECT_WILDCARD)
}
