//! WRITE: request ([MS-SMB2] 2.2.21) and response (2.2.22).

use std::ops::Range;

use bytes::BufMut;
use smbdirect::BufferDescriptorV1;

use super::{
    channel::{self, Channel},
    header::Header,
    read::descriptors_length,
    reader::{Malformed, Reader},
};

/// A WRITE request, without its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteRequest {
    /// The range of the data in the element; empty if the data moves by RDMA.
    pub data: Range<usize>,
    /// Offset in the file.
    pub offset: u64,
    /// FileId.
    pub file_id: [u8; 16],
    /// The channel by which the data moves.
    pub channel: Channel,
    /// RemainingBytes: with a channel, the number of bytes to write.
    pub remaining_bytes: u32,
    /// Flags.
    pub flags: u32,
    /// The client's memory that holds the data; empty without a channel.
    pub descriptors: Vec<BufferDescriptorV1>,
}

impl WriteRequest {
    /// Number of bytes before the Buffer, including the header.
    pub const FIXED: usize = channel::REQUEST_FIXED;

    const STRUCTURE: &str = "WRITE request";
    const STRUCTURE_SIZE: u16 = 49;

    /// Decodes the body of an element of `length` bytes. `head` has at least the fixed part, and with a
    /// channel also the descriptors; the data may be missing.
    ///
    /// # Errors
    /// `head` is too short or has another StructureSize, or the data or the descriptors are not inside
    /// the element.
    pub fn decode(head: &[u8], length: usize) -> Result<Self, Malformed> {
        let mut reader = Reader::body(Self::STRUCTURE, head, Self::FIXED, Self::STRUCTURE_SIZE)?;
        let data_offset = reader.u16();
        let data_length = reader.u32();
        let mut request = Self {
            data: 0..0,
            offset: reader.u64(),
            file_id: reader.take(),
            channel: Channel::from_number(reader.u32()),
            remaining_bytes: reader.u32(),
            flags: 0,
            descriptors: Vec::new(),
        };
        let (info_offset, info_length) = (reader.u16(), reader.u16());
        request.flags = reader.u32();
        if data_length > 0 {
            let start = usize::from(data_offset);
            let end = start.saturating_add(data_length as usize);
            if start < Self::FIXED || end > length {
                return Err(Malformed::OutOfBounds {
                    field: "the data",
                    offset: data_offset.into(),
                    length: data_length,
                });
            }
            request.data = start..end;
        }
        if request.channel != Channel::None {
            request.descriptors =
                channel::descriptors("WriteChannelInfo", head, info_offset, info_length)?;
        }
        Ok(request)
    }

    /// Appends the 48 bytes of the body that precede the data, and one zero byte if there is no data.
    ///
    /// # Panics
    /// Panics if `out` has no room for the body.
    pub fn encode_inline(&self, data_length: u32, out: &mut impl BufMut) {
        self.encode_fixed(Self::FIXED as u16, data_length, Channel::None, 0, 0, out);
        if data_length == 0 {
            out.put_u8(0);
        }
    }

    /// Appends the body of a request whose data moves by RDMA: 48 bytes and the descriptors.
    ///
    /// # Panics
    /// Panics if `out` has no room for the body, or if there are more than 4095 descriptors.
    pub fn encode_channel(&self, out: &mut impl BufMut) {
        let length = descriptors_length(&self.descriptors);
        self.encode_fixed(0, 0, self.channel, self.remaining_bytes, length, out);
        channel::encode_buffer(&self.descriptors, out);
    }

    fn encode_fixed(
        &self,
        data_offset: u16,
        data_length: u32,
        channel: Channel,
        remaining_bytes: u32,
        info_length: u16,
        out: &mut impl BufMut,
    ) {
        out.put_u16_le(Self::STRUCTURE_SIZE);
        out.put_u16_le(data_offset);
        out.put_u32_le(data_length);
        out.put_u64_le(self.offset);
        out.put_slice(&self.file_id);
        out.put_u32_le(channel.number());
        out.put_u32_le(remaining_bytes);
        out.put_u16_le(if info_length == 0 {
            0
        } else {
            Self::FIXED as u16
        });
        out.put_u16_le(info_length);
        out.put_u32_le(self.flags);
    }
}

/// A successful WRITE response, without its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteResponse {
    /// Count: bytes written.
    pub count: u32,
}

impl WriteResponse {
    /// Number of bytes of the element that are decoded.
    pub const FIXED: usize = Header::LENGTH + 16;

    /// Decodes the body of an element.
    ///
    /// # Errors
    /// The element is too short or has another StructureSize.
    pub fn decode(element: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::body("WRITE response", element, Self::FIXED, 17)?;
        let _reserved = reader.u16();
        Ok(Self {
            count: reader.u32(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::*;

    #[rustfmt::skip]
    const BODY: [u8; 64] = [
        0x31, 0x00, // StructureSize
        0x00, 0x00, // DataOffset
        0x00, 0x00, 0x00, 0x00, // Length
        0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, // Offset
        0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, // FileId
        0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f,
        0x01, 0x00, 0x00, 0x00, // Channel
        0x31, 0x32, 0x33, 0x34, // RemainingBytes
        0x70, 0x00, // WriteChannelInfoOffset
        0x10, 0x00, // WriteChannelInfoLength
        0x03, 0x00, 0x00, 0x00, // Flags
        0x48, 0x47, 0x46, 0x45, 0x44, 0x43, 0x42, 0x41, // Offset of the descriptor
        0x54, 0x53, 0x52, 0x51, // Token
        0x00, 0x00, 0x02, 0x00, // Length
    ];

    fn request() -> WriteRequest {
        WriteRequest {
            data: 0..0,
            offset: 0x0102_0304_0506_0708,
            file_id: std::array::from_fn(|at| 0x10 + at as u8),
            channel: Channel::RdmaV1,
            remaining_bytes: 0x3433_3231,
            flags: 3,
            descriptors: vec![descriptor(0x4142_4344_4546_4748, 0x5152_5354, 0x0002_0000)],
        }
    }

    fn element(body: &[u8]) -> Vec<u8> {
        other(header(WRITE, 1), body)
    }

    #[test]
    fn request_by_rdma_is_the_same_in_both_directions() {
        let element = element(&BODY);
        assert_eq!(WriteRequest::decode(&element, element.len()), Ok(request()));
        let mut bytes = Vec::new();
        request().encode_channel(&mut bytes);
        assert_eq!(bytes, BODY);
    }

    #[test]
    fn request_with_its_data_is_the_same_in_both_directions() {
        let mut body = BODY[..48].to_vec();
        put(&mut body, 2, &[0x70, 0, 3, 0, 0, 0]);
        put(&mut body, 32, &[0; 12]);
        let mut bytes = Vec::new();
        request().encode_inline(3, &mut bytes);
        assert_eq!(bytes, body);
        let element = element(&[&body[..], b"abc"].concat());
        let expected = WriteRequest {
            data: 112..115,
            channel: Channel::None,
            remaining_bytes: 0,
            descriptors: Vec::new(),
            ..request()
        };
        assert_eq!(WriteRequest::decode(&element, 115), Ok(expected.clone()));
        // The data need not be there to be found.
        assert_eq!(WriteRequest::decode(&element[..112], 115), Ok(expected));
    }

    #[test]
    fn request_for_no_bytes_has_a_buffer_of_one_byte() {
        let mut bytes = Vec::new();
        request().encode_inline(0, &mut bytes);
        assert_eq!(bytes.len(), 49);
        let element = element(&bytes);
        assert_eq!(WriteRequest::decode(&element, 113).unwrap().data, 0..0);
    }

    #[test]
    fn every_truncation_is_an_error() {
        for element in [element(&BODY), write(1, 0, b"abc")] {
            for length in 0..element.len() {
                let head = &element[..length];
                assert!(WriteRequest::decode(head, length).is_err(), "{length}");
            }
        }
    }

    #[test]
    fn structure_size_is_checked() {
        let element = with(element(&BODY), 64, &[48, 0]);
        let fault = WriteRequest::decode(&element, element.len());
        let expected = Malformed::StructureSize {
            structure: "WRITE request",
            expected: 49,
            found: 48,
        };
        assert_eq!(fault, Err(expected));
    }

    #[test]
    fn data_lies_behind_the_fixed_part_and_in_the_element() {
        let element = write(1, 0, b"abc");
        for (at, bytes) in [
            (66, &[111_u8, 0][..]),
            (66, &[113, 0]),
            (66, &[0xff; 2]),
            (68, &[4]),
            (68, &[0xff; 4]),
        ] {
            let element = with(element.clone(), at, bytes);
            let fault = WriteRequest::decode(&element, element.len());
            assert!(matches!(fault, Err(Malformed::OutOfBounds { .. })));
        }
    }

    #[test]
    fn response_has_the_number_of_bytes_written() {
        let element = write_answer(1, 0x0102_0304);
        let response = WriteResponse::decode(&element);
        assert_eq!(response, Ok(WriteResponse { count: 0x0102_0304 }));
        for length in 0..WriteResponse::FIXED {
            assert!(WriteResponse::decode(&element[..length]).is_err());
        }
    }
}
