//! READ: request ([MS-SMB2] 2.2.19) and response (2.2.20).

use std::ops::Range;

use bytes::BufMut;
use smbdirect::BufferDescriptorV1;

use super::{
    channel::{self, Channel},
    header::Header,
    reader::{Malformed, Reader, buffer},
};

/// A READ request, without its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Padding: the offset of the data in the answer that the client prefers.
    pub padding: u8,
    /// Flags.
    pub flags: u8,
    /// Bytes to read.
    pub length: u32,
    /// Offset in the file.
    pub offset: u64,
    /// FileId.
    pub file_id: [u8; 16],
    /// MinimumCount: the server fails the request if it reads fewer bytes than this.
    pub minimum_count: u32,
    /// The channel by which the data moves.
    pub channel: Channel,
    /// RemainingBytes: a hint about further READs.
    pub remaining_bytes: u32,
    /// The client's memory for the data; empty without a channel.
    pub descriptors: Vec<BufferDescriptorV1>,
}

impl ReadRequest {
    /// SMB2_READFLAG_REQUEST_COMPRESSED: the server may compress the answer.
    pub const REQUEST_COMPRESSED: u8 = 0x02;
    /// Number of bytes before the Buffer, including the header.
    pub const FIXED: usize = channel::REQUEST_FIXED;

    const STRUCTURE: &str = "READ request";
    const STRUCTURE_SIZE: u16 = 49;

    /// Returns the Flags of a request.
    ///
    /// # Panics
    /// Panics if the request is shorter than its fixed part.
    pub const fn flags_of(element: &[u8]) -> u8 {
        element[Header::LENGTH + 3]
    }

    /// Decodes the body of an element. Descriptors are decoded only if there is a channel.
    ///
    /// # Errors
    /// The element is too short or has another StructureSize, or its descriptors are not inside it.
    pub fn decode(element: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::body(Self::STRUCTURE, element, Self::FIXED, Self::STRUCTURE_SIZE)?;
        let mut request = Self {
            padding: reader.u8(),
            flags: reader.u8(),
            length: reader.u32(),
            offset: reader.u64(),
            file_id: reader.take(),
            minimum_count: reader.u32(),
            channel: Channel::from_number(reader.u32()),
            remaining_bytes: reader.u32(),
            descriptors: Vec::new(),
        };
        let (offset, length) = (reader.u16(), reader.u16());
        if request.channel != Channel::None {
            request.descriptors = channel::descriptors("ReadChannelInfo", element, offset, length)?;
        }
        Ok(request)
    }

    /// Appends the body: 48 bytes, and the descriptors or one zero byte.
    ///
    /// # Panics
    /// Panics if `out` has no room for the body, or if there are more than 4095 descriptors.
    pub fn encode(&self, out: &mut impl BufMut) {
        let length = descriptors_length(&self.descriptors);
        out.put_u16_le(Self::STRUCTURE_SIZE);
        out.put_u8(self.padding);
        out.put_u8(self.flags);
        out.put_u32_le(self.length);
        out.put_u64_le(self.offset);
        out.put_slice(&self.file_id);
        out.put_u32_le(self.minimum_count);
        out.put_u32_le(self.channel.number());
        out.put_u32_le(self.remaining_bytes);
        out.put_u16_le(if length == 0 { 0 } else { Self::FIXED as u16 });
        out.put_u16_le(length);
        channel::encode_buffer(&self.descriptors, out);
    }
}

/// Returns the length in bytes of encoded descriptors.
pub(super) fn descriptors_length(descriptors: &[BufferDescriptorV1]) -> u16 {
    u16::try_from(descriptors.len() * BufferDescriptorV1::LENGTH)
        .expect("a request has at most 4095 descriptors")
}

/// A successful READ response, without its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadResponse {
    /// The range of the data in the element.
    pub data: Range<usize>,
    /// DataRemaining: the number of bytes that moved by RDMA.
    pub data_remaining: u32,
    /// Flags, or Reserved2 before dialect 3.1.1.
    pub flags: u32,
}

impl ReadResponse {
    /// Number of bytes before the data, including the header.
    pub const FIXED: usize = Header::LENGTH + 16;

    const STRUCTURE: &str = "READ response";
    const STRUCTURE_SIZE: u16 = 17;

    /// Decodes the body of an element of `length` bytes. `head` has at least the fixed part; the data may
    /// be missing.
    ///
    /// # Errors
    /// `head` is too short or has another StructureSize, or the data is not inside the element.
    pub fn decode(head: &[u8], length: usize) -> Result<Self, Malformed> {
        let mut reader = Reader::body(Self::STRUCTURE, head, Self::FIXED, Self::STRUCTURE_SIZE)?;
        let data_offset = u32::from(reader.u8());
        let _reserved = reader.u8();
        let data_length = reader.u32();
        let (data_remaining, flags) = (reader.u32(), reader.u32());
        let start = data_offset as usize;
        let end = start.saturating_add(data_length as usize);
        if data_length > 0 && (start < Self::FIXED || end > length) {
            return Err(Malformed::OutOfBounds {
                field: "the data",
                offset: data_offset,
                length: data_length,
            });
        }
        Ok(Self {
            data: if data_length == 0 { 0..0 } else { start..end },
            data_remaining,
            flags,
        })
    }

    /// Appends the 16 bytes of the body that precede `data_length` bytes of data.
    ///
    /// # Panics
    /// Panics if `out` has no room for them.
    pub fn encode(data_length: u32, data_remaining: u32, flags: u32, out: &mut impl BufMut) {
        out.put_u16_le(Self::STRUCTURE_SIZE);
        out.put_u8(Self::FIXED as u8);
        out.put_u8(0);
        out.put_u32_le(data_length);
        out.put_u32_le(data_remaining);
        out.put_u32_le(flags);
    }

    /// Returns the data of a response. `element` is the complete element.
    ///
    /// # Errors
    /// The element is shorter than the `length` given to [`decode`](Self::decode).
    pub fn data<'a>(&self, element: &'a [u8]) -> Result<&'a [u8], Malformed> {
        let length = self.data.len() as u32;
        buffer("the data", element, self.data.start as u32, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::*;

    /// Body of a READ request for 65536 bytes with one descriptor, in the order of 2.2.19.
    #[rustfmt::skip]
    const BODY: [u8; 64] = [
        0x31, 0x00, // StructureSize
        0x50, // Padding
        0x01, // Flags
        0x00, 0x00, 0x01, 0x00, // Length
        0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, // Offset
        0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, // FileId
        0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f,
        0x21, 0x22, 0x23, 0x24, // MinimumCount
        0x02, 0x00, 0x00, 0x00, // Channel
        0x31, 0x32, 0x33, 0x34, // RemainingBytes
        0x70, 0x00, // ReadChannelInfoOffset
        0x10, 0x00, // ReadChannelInfoLength
        0x48, 0x47, 0x46, 0x45, 0x44, 0x43, 0x42, 0x41, // Offset of the descriptor
        0x54, 0x53, 0x52, 0x51, // Token
        0x00, 0x00, 0x02, 0x00, // Length
    ];

    fn request() -> ReadRequest {
        ReadRequest {
            padding: 0x50,
            flags: 0x01,
            length: 65_536,
            offset: 0x0102_0304_0506_0708,
            file_id: std::array::from_fn(|at| 0x10 + at as u8),
            minimum_count: 0x2423_2221,
            channel: Channel::RdmaV1Invalidate,
            remaining_bytes: 0x3433_3231,
            descriptors: vec![descriptor(0x4142_4344_4546_4748, 0x5152_5354, 0x0002_0000)],
        }
    }

    fn element(body: &[u8]) -> Vec<u8> {
        other(header(READ, 1), body)
    }

    #[test]
    fn request_is_the_same_in_both_directions() {
        assert_eq!(ReadRequest::decode(&element(&BODY)), Ok(request()));
        let mut bytes = Vec::new();
        request().encode(&mut bytes);
        assert_eq!(bytes, BODY);
        assert_eq!(ReadRequest::flags_of(&element(&BODY)), 0x01);
    }

    #[test]
    fn request_without_a_channel_has_a_buffer_of_one_byte() {
        let mut body = BODY[..49].to_vec();
        put(&mut body, 36, &[0; 13]);
        let request = ReadRequest {
            channel: Channel::None,
            remaining_bytes: 0,
            descriptors: Vec::new(),
            ..request()
        };
        assert_eq!(ReadRequest::decode(&element(&body)), Ok(request.clone()));
        // The byte may be missing, and fields without a meaning may have any value.
        assert_eq!(
            ReadRequest::decode(&element(&body[..48])),
            Ok(request.clone())
        );
        let anything = with(body.clone(), 44, &[0xff; 4]);
        assert_eq!(
            ReadRequest::decode(&element(&anything)),
            Ok(request.clone())
        );
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        assert_eq!(bytes, body);
    }

    #[test]
    fn every_truncation_of_a_request_is_an_error() {
        let element = element(&BODY);
        for length in 0..element.len() {
            assert!(ReadRequest::decode(&element[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn structure_sizes_are_checked() {
        let request = with(element(&BODY), 64, &[50, 0]);
        let fault = |structure, expected, found| Malformed::StructureSize {
            structure,
            expected,
            found,
        };
        let error = ReadRequest::decode(&request).unwrap_err();
        assert_eq!(error, fault("READ request", 49, 50));
        let response = error_of_response(&with(read_answer(1, b"x", 0), 64, &[9, 0]));
        assert_eq!(response, fault("READ response", 17, 9));
    }

    fn error_of_response(element: &[u8]) -> Malformed {
        ReadResponse::decode(element, element.len()).unwrap_err()
    }

    #[rustfmt::skip]
    const RESPONSE_BODY: [u8; 16] = [
        0x11, 0x00, // StructureSize
        0x50, // DataOffset
        0x00, // Reserved
        0x03, 0x00, 0x00, 0x00, // DataLength
        0x04, 0x03, 0x02, 0x01, // DataRemaining
        0x08, 0x07, 0x06, 0x05, // Flags
    ];

    #[test]
    fn response_is_the_same_in_both_directions() {
        let mut bytes = Vec::new();
        ReadResponse::encode(3, 0x0102_0304, 0x0506_0708, &mut bytes);
        assert_eq!(bytes, RESPONSE_BODY);
        let element = other(element(&bytes), b"abc");
        let expected = ReadResponse {
            data: 80..83,
            data_remaining: 0x0102_0304,
            flags: 0x0506_0708,
        };
        let response = ReadResponse::decode(&element, element.len()).unwrap();
        assert_eq!(response, expected);
        assert_eq!(response.data(&element), Ok(&b"abc"[..]));
        // The data need not be there to be found.
        assert_eq!(ReadResponse::decode(&element[..80], 83), Ok(expected));
        assert!(response.data(&element[..82]).is_err());
    }

    #[test]
    fn response_without_data_needs_no_data_offset() {
        for data_offset in [0, 79, 80, 255] {
            let element = with(read_answer(1, &[], 7), 66, &[data_offset]);
            let response = ReadResponse::decode(&element, 80).unwrap();
            assert_eq!((response.data, response.data_remaining), (0..0, 7));
        }
    }

    #[test]
    fn data_of_a_response_lies_behind_its_fixed_part_and_in_the_element() {
        let element = read_answer(1, b"abc", 0);
        for length in 0..element.len() {
            let head = &element[..length.min(80)];
            assert!(ReadResponse::decode(head, length).is_err());
        }
        for (at, bytes) in [
            (66, &[79_u8][..]),
            (66, &[81]),
            (68, &[4]),
            (68, &[0xff; 4]),
        ] {
            let fault = error_of_response(&with(element.clone(), at, bytes));
            assert!(matches!(fault, Malformed::OutOfBounds { .. }));
        }
    }

    #[test]
    #[should_panic(expected = "4095 descriptors")]
    fn request_with_more_descriptors_than_fit_panics() {
        let descriptors = vec![descriptor(0, 0, 1); 4096];
        let request = ReadRequest {
            descriptors,
            ..request()
        };
        request.encode(&mut Vec::new());
    }
}
