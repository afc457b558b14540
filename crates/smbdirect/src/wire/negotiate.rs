//! Negotiate Request (20 bytes, 2.2.1) and Negotiate Response (32 bytes, 2.2.2).

use std::fmt;

use bytes::BufMut;

use super::reader::{DecodeError, Reader};

/// The version number of SMB Direct 1.0, the only version (1.7).
pub const VERSION_1_0: u16 = 0x0100;

/// The NTSTATUS of a Negotiate Response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(pub u32);

impl Status {
    /// The negotiation succeeded.
    pub const SUCCESS: Self = Self(0x0000_0000);
    /// The version range of the request does not contain 0x0100.
    pub const NOT_SUPPORTED: Self = Self(0xC000_00BB);
    /// The acceptor could not post a receive, or refuses a size of the request as too large.
    pub const INSUFFICIENT_RESOURCES: Self = Self(0xC000_009A);
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::SUCCESS => f.write_str("STATUS_SUCCESS"),
            Self::NOT_SUPPORTED => f.write_str("STATUS_NOT_SUPPORTED"),
            Self::INSUFFICIENT_RESOURCES => f.write_str("STATUS_INSUFFICIENT_RESOURCES"),
            Self(other) => write!(f, "NTSTATUS 0x{other:08X}"),
        }
    }
}

/// The first message of a connection, in which the initiator proposes its limits (2.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NegotiateRequest {
    /// Lowest version the sender supports.
    pub min_version: u16,
    /// Highest version the sender supports.
    pub max_version: u16,
    /// Number of send credits that the sender requests.
    pub credits_requested: u16,
    /// Largest single message, in bytes, that the sender wants to send.
    pub preferred_send_size: u32,
    /// Largest single message, in bytes, that the sender can receive.
    pub max_receive_size: u32,
    /// Largest reassembled upper-layer message, in bytes, that the sender can receive.
    pub max_fragmented_size: u32,
}

impl NegotiateRequest {
    /// Length of the message in bytes.
    pub const LENGTH: usize = 20;

    /// Decodes a request. Bytes after the first 20 and the Reserved field are ignored.
    ///
    /// # Errors
    /// Returns [`DecodeError::TooShort`] if `bytes` has fewer than 20 bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        //= SMBD-3.1.5.6-01
        let mut reader = Reader::new("Negotiate Request", bytes, Self::LENGTH)?;
        let (min_version, max_version) = (reader.u16(), reader.u16());
        //= SMBD-2.2-03
        let _reserved = reader.u16();
        Ok(Self {
            min_version,
            max_version,
            credits_requested: reader.u16(),
            preferred_send_size: reader.u32(),
            max_receive_size: reader.u32(),
            max_fragmented_size: reader.u32(),
        })
    }

    /// Appends the 20 bytes of this request.
    ///
    /// # Panics
    /// Panics if `out` has fewer than 20 bytes of room.
    pub fn encode(&self, out: &mut impl BufMut) {
        out.put_u16_le(self.min_version);
        out.put_u16_le(self.max_version);
        //= SMBD-2.2-02
        //= SMBD-2.2-04
        out.put_u16_le(0);
        out.put_u16_le(self.credits_requested);
        out.put_u32_le(self.preferred_send_size);
        out.put_u32_le(self.max_receive_size);
        out.put_u32_le(self.max_fragmented_size);
    }
}

/// The acceptor's answer to a Negotiate Request (2.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NegotiateResponse {
    /// Lowest version the sender supports.
    pub min_version: u16,
    /// Highest version the sender supports.
    pub max_version: u16,
    /// The version of the connection; 0 in a refusal.
    pub negotiated_version: u16,
    /// Number of send credits that the acceptor requests.
    pub credits_requested: u16,
    /// Number of send credits that the acceptor grants.
    pub credits_granted: u16,
    /// Success, or the reason of the refusal.
    pub status: Status,
    /// Largest RDMA transfer, in bytes, of the acceptor for one upper-layer read or write.
    pub max_read_write_size: u32,
    /// Largest single message, in bytes, that the acceptor will send.
    pub preferred_send_size: u32,
    /// Largest single message, in bytes, that the acceptor can receive.
    pub max_receive_size: u32,
    /// Largest reassembled upper-layer message, in bytes, that the acceptor can receive.
    pub max_fragmented_size: u32,
}

impl NegotiateResponse {
    /// Length of the message in bytes.
    pub const LENGTH: usize = 32;

    /// Returns the response that refuses with `status`; all fields except the version range are
    /// zero (3.1.5.3).
    pub const fn refusal(status: Status) -> Self {
        //= SMBD-3.1.5.3-02
        Self {
            min_version: VERSION_1_0,
            max_version: VERSION_1_0,
            negotiated_version: 0,
            credits_requested: 0,
            credits_granted: 0,
            status,
            max_read_write_size: 0,
            preferred_send_size: 0,
            max_receive_size: 0,
            max_fragmented_size: 0,
        }
    }

    /// Decodes a response. Bytes after the first 32 and the Reserved field are ignored.
    ///
    /// # Errors
    /// Returns [`DecodeError::TooShort`] if `bytes` has fewer than 32 bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        //= SMBD-3.1.5.7-01
        let mut reader = Reader::new("Negotiate Response", bytes, Self::LENGTH)?;
        let (min_version, max_version) = (reader.u16(), reader.u16());
        let negotiated_version = reader.u16();
        let _reserved = reader.u16();
        Ok(Self {
            min_version,
            max_version,
            negotiated_version,
            credits_requested: reader.u16(),
            credits_granted: reader.u16(),
            status: Status(reader.u32()),
            max_read_write_size: reader.u32(),
            preferred_send_size: reader.u32(),
            max_receive_size: reader.u32(),
            max_fragmented_size: reader.u32(),
        })
    }

    /// Appends the 32 bytes of this response.
    ///
    /// # Panics
    /// Panics if `out` has fewer than 32 bytes of room.
    pub fn encode(&self, out: &mut impl BufMut) {
        out.put_u16_le(self.min_version);
        out.put_u16_le(self.max_version);
        out.put_u16_le(self.negotiated_version);
        out.put_u16_le(0);
        out.put_u16_le(self.credits_requested);
        out.put_u16_le(self.credits_granted);
        out.put_u32_le(self.status.0);
        out.put_u32_le(self.max_read_write_size);
        out.put_u32_le(self.preferred_send_size);
        out.put_u32_le(self.max_receive_size);
        out.put_u32_le(self.max_fragmented_size);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The request of section 4.1 of the specification.
    const REQUEST: [u8; 20] = [
        0, 1, 0, 1, 0, 0, 0x0a, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 0, 2, 0,
    ];
    const RESPONSE: [u8; 32] = [
        0, 1, 0, 1, 0, 1, 0, 0, 0x0a, 0, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 4, 0, 0, 0, 4, 0,
        0, 0, 0, 2, 0,
    ];
    const WINDOWS_REQUEST: [u8; 20] = [
        0, 1, 0, 1, 0, 0, 0xff, 0, 0x54, 5, 0, 0, 0, 0x20, 0, 0, 0, 0, 0x10, 0,
    ];
    const WINDOWS_RESPONSE: [u8; 32] = [
        0, 1, 0, 1, 0, 1, 0, 0, 0xff, 0, 0xff, 0, 0, 0, 0, 0, 0, 0, 0x80, 0, 0x54, 5, 0, 0, 0x54,
        5, 0, 0, 0, 0, 0x10, 0,
    ];

    fn request() -> NegotiateRequest {
        NegotiateRequest {
            min_version: VERSION_1_0,
            max_version: VERSION_1_0,
            credits_requested: 10,
            preferred_send_size: 1024,
            max_receive_size: 1024,
            max_fragmented_size: 131_072,
        }
    }

    fn response() -> NegotiateResponse {
        NegotiateResponse {
            min_version: VERSION_1_0,
            max_version: VERSION_1_0,
            negotiated_version: VERSION_1_0,
            credits_requested: 10,
            credits_granted: 10,
            status: Status::SUCCESS,
            max_read_write_size: 1 << 20,
            preferred_send_size: 1024,
            max_receive_size: 1024,
            max_fragmented_size: 131_072,
        }
    }

    fn encoded_request(request: &NegotiateRequest) -> Vec<u8> {
        let mut out = Vec::new();
        request.encode(&mut out);
        out
    }

    fn encoded_response(response: &NegotiateResponse) -> Vec<u8> {
        let mut out = Vec::new();
        response.encode(&mut out);
        out
    }

    //= SMBD-2.2-01 test
    //= SMBD-2.2-02 test
    //= SMBD-2.2-04 test
    #[test]
    fn requests_of_the_specification_and_windows_decode_and_encode() {
        assert_eq!(NegotiateRequest::decode(&REQUEST), Ok(request()));
        assert_eq!(encoded_request(&request()), REQUEST);
        let windows = NegotiateRequest {
            credits_requested: 255,
            preferred_send_size: 1364,
            max_receive_size: 8192,
            max_fragmented_size: 1 << 20,
            ..request()
        };
        assert_eq!(NegotiateRequest::decode(&WINDOWS_REQUEST), Ok(windows));
        assert_eq!(encoded_request(&windows), WINDOWS_REQUEST);
    }

    #[test]
    fn responses_of_the_specification_and_windows_decode_and_encode() {
        assert_eq!(NegotiateResponse::decode(&RESPONSE), Ok(response()));
        assert_eq!(encoded_response(&response()), RESPONSE);
        let windows = NegotiateResponse {
            credits_requested: 255,
            credits_granted: 255,
            max_read_write_size: 8 << 20,
            preferred_send_size: 1364,
            max_receive_size: 1364,
            max_fragmented_size: 1 << 20,
            ..response()
        };
        assert_eq!(NegotiateResponse::decode(&WINDOWS_RESPONSE), Ok(windows));
        assert_eq!(encoded_response(&windows), WINDOWS_RESPONSE);
    }

    //= SMBD-3.1.5.3-02 test
    #[test]
    fn a_refusal_has_its_status_and_zeros() {
        for (status, low) in [
            (Status::NOT_SUPPORTED, 0xbb),
            (Status::INSUFFICIENT_RESOURCES, 0x9a),
        ] {
            let mut bytes = [0; 32];
            bytes[..4].copy_from_slice(&[0, 1, 0, 1]);
            bytes[12..16].copy_from_slice(&[low, 0, 0, 0xc0]);
            assert_eq!(encoded_response(&NegotiateResponse::refusal(status)), bytes);
        }
    }

    //= SMBD-3.1.5.6-01 test
    //= SMBD-3.1.5.7-01 test
    #[test]
    fn a_truncated_message_is_an_error_and_a_longer_one_is_not() {
        for length in 0..20 {
            assert_eq!(
                NegotiateRequest::decode(&REQUEST[..length]),
                Err(DecodeError::TooShort {
                    message: "Negotiate Request",
                    minimum: 20,
                    length
                })
            );
        }
        for length in 0..32 {
            assert_eq!(
                NegotiateResponse::decode(&RESPONSE[..length]),
                Err(DecodeError::TooShort {
                    message: "Negotiate Response",
                    minimum: 32,
                    length
                })
            );
        }
        let mut padded = [0xee; 512];
        padded[..20].copy_from_slice(&REQUEST);
        assert_eq!(NegotiateRequest::decode(&padded), Ok(request()));
    }

    //= SMBD-2.2-03 test
    #[test]
    fn reserved_fields_are_ignored() {
        let mut bytes = REQUEST;
        bytes[4..6].copy_from_slice(&[0xff, 0xff]);
        assert_eq!(NegotiateRequest::decode(&bytes), Ok(request()));
        let mut bytes = RESPONSE;
        bytes[6..8].copy_from_slice(&[0xff, 0xff]);
        assert_eq!(NegotiateResponse::decode(&bytes), Ok(response()));
    }

    proptest! {
        #[test]
        fn any_request_is_unchanged_by_decoding_and_encoding(mut bytes: [u8; 20]) {
            bytes[4..6].fill(0);
            prop_assert_eq!(encoded_request(&NegotiateRequest::decode(&bytes).unwrap()), bytes);
        }

        #[test]
        fn any_response_is_unchanged_by_decoding_and_encoding(mut bytes: [u8; 32]) {
            bytes[6..8].fill(0);
            prop_assert_eq!(encoded_response(&NegotiateResponse::decode(&bytes).unwrap()), bytes);
        }
    }

    #[test]
    fn a_status_displays_its_name() {
        for (status, name) in [
            (Status::SUCCESS, "STATUS_SUCCESS"),
            (Status(0xC000_00BB), "STATUS_NOT_SUPPORTED"),
            (Status(0xC000_009A), "STATUS_INSUFFICIENT_RESOURCES"),
            (Status(0xC000_000D), "NTSTATUS 0xC000000D"),
        ] {
            assert_eq!(status.to_string(), name);
        }
    }
}
