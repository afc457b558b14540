//! NEGOTIATE: request ([MS-SMB2] 2.2.3) and response (2.2.4), which selects the dialect of a connection.

use super::{
    header::{Command, Header},
    reader::{Malformed, Reader, buffer},
};

/// Dialect 3.0, the first with RDMA.
pub const DIALECT_3_0: u16 = 0x0300;
/// Dialect 3.0.2, the first with SMB2_CHANNEL_RDMA_V1_INVALIDATE.
pub const DIALECT_3_0_2: u16 = 0x0302;
/// Dialect 3.1.1, the first with negotiate contexts.
pub const DIALECT_3_1_1: u16 = 0x0311;

/// SMB2_NEGOTIATE_SIGNING_ENABLED, a bit of SecurityMode.
pub const SIGNING_ENABLED: u16 = 0x0001;
/// SMB2_NEGOTIATE_SIGNING_REQUIRED, a bit of SecurityMode.
pub const SIGNING_REQUIRED: u16 = 0x0002;

/// The dialect number in the response to a client that also offers SMB1. Another NEGOTIATE follows.
const DIALECT_WILDCARD: u16 = 0x02ff;
/// Negotiate contexts begin at multiples of this many bytes.
const CONTEXT_ALIGNMENT: usize = 8;

/// A negotiate context (2.2.3.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NegotiateContext {
    /// ContextType.
    pub context_type: u16,
    /// Data.
    pub data: Vec<u8>,
}

impl NegotiateContext {
    /// Length in bytes of the fields before Data.
    pub const HEADER_LENGTH: usize = 8;

    /// Decodes `count` contexts from `offset` of an element on.
    fn decode_all(element: &[u8], offset: u32, count: u16) -> Result<Vec<Self>, Malformed> {
        let field = "NegotiateContextList";
        buffer(field, element, offset, 0)?;
        let mut offset = offset as usize;
        let mut contexts = Vec::new();
        for _ in 0..count {
            offset = offset.next_multiple_of(CONTEXT_ALIGNMENT);
            let mut reader = Reader::new(field, element, offset, offset + Self::HEADER_LENGTH)?;
            let (context_type, length) = (reader.u16(), reader.u16());
            offset += Self::HEADER_LENGTH;
            contexts.push(Self {
                context_type,
                data: buffer(field, element, offset as u32, length.into())?.into(),
            });
            offset += usize::from(length);
        }
        Ok(contexts)
    }

    /// Appends contexts to a body, and returns the offset of the first one in the element.
    fn encode_all(contexts: &[Self], body: &mut Vec<u8>) -> u32 {
        let mut first = 0;
        for context in contexts {
            // The header before the body has a multiple of 8 bytes.
            body.resize(body.len().next_multiple_of(CONTEXT_ALIGNMENT), 0);
            if first == 0 {
                first = (Header::LENGTH + body.len()) as u32;
            }
            let length = u16::try_from(context.data.len()).expect("DataLength has 16 bits");
            body.extend(context.context_type.to_le_bytes());
            body.extend(length.to_le_bytes());
            body.extend([0; 4]);
            body.extend(&context.data);
        }
        first
    }
}

/// A NEGOTIATE request, without its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NegotiateRequest {
    /// SecurityMode: [`SIGNING_ENABLED`] and [`SIGNING_REQUIRED`].
    pub security_mode: u16,
    /// Capabilities.
    pub capabilities: u32,
    /// ClientGuid.
    pub client_guid: [u8; 16],
    /// Dialects that the client offers.
    pub dialects: Vec<u16>,
    /// Negotiate contexts, which only a client that offers 3.1.1 has.
    pub contexts: Vec<NegotiateContext>,
}

impl NegotiateRequest {
    /// Number of bytes before the dialects, including the header.
    const FIXED: usize = Header::LENGTH + 36;

    /// Decodes the body of an element.
    ///
    /// # Errors
    /// The element is too short or has another StructureSize, or its dialects or contexts are not inside it.
    pub fn decode(element: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::body("NEGOTIATE request", element, Self::FIXED, 36)?;
        let dialect_count = reader.u16();
        let security_mode = reader.u16();
        let _reserved = reader.u16();
        let (capabilities, client_guid) = (reader.u32(), reader.take());
        let (context_offset, context_count) = (reader.u32(), reader.u16());
        let length = 2 * u32::from(dialect_count);
        let dialects = buffer("Dialects", element, Self::FIXED as u32, length)?;
        let (dialects, _) = dialects.as_chunks();
        let dialects: Vec<_> = dialects.iter().copied().map(u16::from_le_bytes).collect();
        // Without 3.1.1 these fields are ClientStartTime.
        let contexts = if dialects.contains(&DIALECT_3_1_1) {
            NegotiateContext::decode_all(element, context_offset, context_count)?
        } else {
            Vec::new()
        };
        Ok(Self {
            security_mode,
            capabilities,
            client_guid,
            dialects,
            contexts,
        })
    }

    /// Appends the body.
    ///
    /// # Panics
    /// Panics if there are more dialects, contexts or data of a context than fields of 16 bits can express.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let count = |length: usize| u16::try_from(length).expect("the count has 16 bits");
        let mut body = Vec::new();
        body.extend(36_u16.to_le_bytes());
        body.extend(count(self.dialects.len()).to_le_bytes());
        body.extend(self.security_mode.to_le_bytes());
        body.extend([0; 2]);
        body.extend(self.capabilities.to_le_bytes());
        body.extend(self.client_guid);
        let position = body.len();
        body.extend([0; 8]);
        body.extend(
            self.dialects
                .iter()
                .flat_map(|dialect| dialect.to_le_bytes()),
        );
        let first = NegotiateContext::encode_all(&self.contexts, &mut body);
        body[position..position + 4].copy_from_slice(&first.to_le_bytes());
        let contexts = count(self.contexts.len());
        body[position + 4..position + 6].copy_from_slice(&contexts.to_le_bytes());
        out.extend(body);
    }
}

/// A successful NEGOTIATE response, without its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NegotiateResponse {
    /// SecurityMode: [`SIGNING_ENABLED`] and [`SIGNING_REQUIRED`].
    pub security_mode: u16,
    /// DialectRevision.
    pub dialect: u16,
    /// ServerGuid.
    pub server_guid: [u8; 16],
    /// Capabilities.
    pub capabilities: u32,
    /// MaxTransactSize, in bytes.
    pub max_transact_size: u32,
    /// MaxReadSize, in bytes.
    pub max_read_size: u32,
    /// MaxWriteSize, in bytes.
    pub max_write_size: u32,
    /// SystemTime, in units of 100 ns since 1601.
    pub system_time: u64,
    /// ServerStartTime, in units of 100 ns since 1601.
    pub server_start_time: u64,
    /// Buffer: the token of GSS-API. If it is empty, the client chooses the mechanism.
    pub security_buffer: Vec<u8>,
    /// Negotiate contexts, which only dialect 3.1.1 has.
    pub contexts: Vec<NegotiateContext>,
}

impl NegotiateResponse {
    /// Number of bytes before the security buffer, including the header.
    const FIXED: usize = Header::LENGTH + 64;
    const STRUCTURE: &str = "NEGOTIATE response";
    const STRUCTURE_SIZE: u16 = 65;

    /// Decodes the body of an element.
    ///
    /// # Errors
    /// The element is too short or has another StructureSize, or its buffers are not inside it.
    pub fn decode(element: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::body(Self::STRUCTURE, element, Self::FIXED, Self::STRUCTURE_SIZE)?;
        let (security_mode, dialect, context_count) = (reader.u16(), reader.u16(), reader.u16());
        let mut response = Self {
            security_mode,
            dialect,
            server_guid: reader.take(),
            capabilities: reader.u32(),
            max_transact_size: reader.u32(),
            max_read_size: reader.u32(),
            max_write_size: reader.u32(),
            system_time: reader.u64(),
            server_start_time: reader.u64(),
            security_buffer: Vec::new(),
            contexts: Vec::new(),
        };
        let (offset, length) = (reader.u16().into(), reader.u16().into());
        response.security_buffer = buffer("the security buffer", element, offset, length)?.into();
        // Before 3.1.1 NegotiateContextCount and NegotiateContextOffset are reserved.
        if dialect == DIALECT_3_1_1 {
            response.contexts = NegotiateContext::decode_all(element, reader.u32(), context_count)?;
        }
        Ok(response)
    }

    /// Appends the body.
    ///
    /// # Panics
    /// Panics if the security buffer, the contexts or the data of a context have more bytes than fields of 16 bits can
    /// express.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let count = |length: usize| u16::try_from(length).expect("the count has 16 bits");
        let mut body = Vec::new();
        body.extend(Self::STRUCTURE_SIZE.to_le_bytes());
        body.extend(self.security_mode.to_le_bytes());
        body.extend(self.dialect.to_le_bytes());
        body.extend(count(self.contexts.len()).to_le_bytes());
        body.extend(self.server_guid);
        for field in [
            self.capabilities,
            self.max_transact_size,
            self.max_read_size,
            self.max_write_size,
        ] {
            body.extend(field.to_le_bytes());
        }
        body.extend(self.system_time.to_le_bytes());
        body.extend(self.server_start_time.to_le_bytes());
        body.extend((Self::FIXED as u16).to_le_bytes());
        body.extend(count(self.security_buffer.len()).to_le_bytes());
        let position = body.len();
        body.extend([0; 4]);
        body.extend(&self.security_buffer);
        let first = NegotiateContext::encode_all(&self.contexts, &mut body);
        body[position..position + 4].copy_from_slice(&first.to_le_bytes());
        out.extend(body);
    }

    /// Overwrites SecurityMode.
    ///
    /// # Panics
    /// Panics if the response is shorter than its fixed part.
    pub fn set_security_mode(element: &mut [u8], security_mode: u16) {
        element[Header::LENGTH + 2..][..2].copy_from_slice(&security_mode.to_le_bytes());
    }
}

/// Returns the DialectRevision of a successful NEGOTIATE response, of which 70 bytes suffice. Returns `None` for any
/// other message, and for the wildcard dialect, after which the client negotiates again.
pub fn negotiated_dialect(header: &Header, element: &[u8]) -> Option<u16> {
    if header.command != Command::NEGOTIATE || !header.is_response() || header.status != 0 {
        return None;
    }
    let (structure, size) = (
        NegotiateResponse::STRUCTURE,
        NegotiateResponse::STRUCTURE_SIZE,
    );
    let mut reader = Reader::body(structure, element, Header::LENGTH + 6, size).ok()?;
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

    fn contexts() -> Vec<NegotiateContext> {
        let context = |context_type, data: &[u8]| NegotiateContext {
            context_type,
            data: data.into(),
        };
        vec![
            context(1, b"salt"),
            context(2, &[]),
            context(0x100, &[7; 9]),
        ]
    }

    /// Returns the element of a body.
    fn element(encode: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
        let mut element = header(NEGOTIATE, 0);
        encode(&mut element);
        element
    }

    #[test]
    fn request_is_the_same_in_both_directions() {
        let mut request = NegotiateRequest {
            security_mode: SIGNING_ENABLED,
            capabilities: 0x0403_0201,
            client_guid: *b"0123456789abcdef",
            dialects: vec![DIALECT_3_0, DIALECT_3_1_1],
            contexts: contexts(),
        };
        let bytes = element(|out| request.encode(out));
        assert_eq!(NegotiateRequest::decode(&bytes), Ok(request.clone()));
        assert_eq!(bytes[64..68], [36, 0, 2, 0], "StructureSize, DialectCount");
        assert_eq!(bytes[68..76], [1, 0, 0, 0, 1, 2, 3, 4]);
        assert_eq!(bytes[76..92], *b"0123456789abcdef");
        assert_eq!(bytes[92..100], [104, 0, 0, 0, 3, 0, 0, 0], "contexts");
        assert_eq!(bytes[100..104], [0, 3, 0x11, 3], "dialects");
        assert_eq!(bytes[104..112], [1, 0, 4, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[112..120], *b"salt\0\0\0\0");
        for length in 0..bytes.len() {
            assert!(
                NegotiateRequest::decode(&bytes[..length]).is_err(),
                "{length}"
            );
        }
        request.dialects = vec![DIALECT_3_0];
        request.contexts.clear();
        let bytes = with(element(|out| request.encode(out)), 92, &[0xff; 8]);
        let decoded = NegotiateRequest::decode(&bytes);
        assert_eq!(decoded, Ok(request), "ClientStartTime is ignored");
    }

    #[test]
    fn response_is_the_same_in_both_directions() {
        let mut response = NegotiateResponse {
            security_mode: SIGNING_ENABLED | SIGNING_REQUIRED,
            dialect: DIALECT_3_1_1,
            server_guid: *b"0123456789abcdef",
            capabilities: 0x0403_0201,
            max_transact_size: 0x1413_1211,
            max_read_size: 0x2423_2221,
            max_write_size: 0x3433_3231,
            system_time: 0x4847_4645_4443_4241,
            server_start_time: 0x5857_5655_5453_5251,
            security_buffer: b"token".into(),
            contexts: contexts(),
        };
        let mut bytes = element(|out| response.encode(out));
        assert_eq!(NegotiateResponse::decode(&bytes), Ok(response.clone()));
        assert_eq!(bytes[64..72], [65, 0, 3, 0, 0x11, 3, 3, 0]);
        assert_eq!(bytes[88..92], [1, 2, 3, 4], "Capabilities");
        assert_eq!((bytes[92], bytes[96], bytes[100]), (0x11, 0x21, 0x31));
        assert_eq!((bytes[104], bytes[112]), (0x41, 0x51));
        assert_eq!(bytes[120..128], [128, 0, 5, 0, 136, 0, 0, 0]);
        assert_eq!(bytes[128..136], *b"token\0\0\0");
        for length in 0..bytes.len() {
            assert!(
                NegotiateResponse::decode(&bytes[..length]).is_err(),
                "{length}"
            );
        }
        response.security_mode = SIGNING_ENABLED;
        NegotiateResponse::set_security_mode(&mut bytes, SIGNING_ENABLED);
        assert_eq!(NegotiateResponse::decode(&bytes), Ok(response));
    }

    #[test]
    fn contexts_that_are_not_inside_the_element_are_refused() {
        let request = NegotiateRequest {
            security_mode: 0,
            capabilities: 0,
            client_guid: [0; 16],
            dialects: vec![DIALECT_3_1_1],
            contexts: contexts(),
        };
        let good = element(|out| request.encode(out));
        for (at, bytes) in [
            (66, &[0xff, 0xff][..]),
            (92, &[0xff; 4]),
            (92, &[0xf9, 0xff, 0xff, 0xff]),
            (96, &[4]),
            (106, &[0xff, 0xff]),
        ] {
            let bytes = with(good.clone(), at, bytes);
            assert!(NegotiateRequest::decode(&bytes).is_err(), "{at}");
        }
    }
}
