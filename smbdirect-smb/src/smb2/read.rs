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
    /// Padding: where the client would like the data to be.
    pub padding: u8,
    /// Flags.
    pub flags: u8,
    /// Bytes to read.
    pub length: u32,
    /// Offset in the file.
    pub offset: u64,
    /// FileId.
    pub file_id: [u8; 16],
    /// Fewer bytes than this are an error.
    pub minimum_count: u32,
    /// How the data is to travel.
    pub channel: Channel,
    /// RemainingBytes: a hint.
    pub remaining_bytes: u32,
    /// Where the data is to go; empty without a channel.
    pub descriptors: Vec<BufferDescriptorV1>,
}

impl ReadRequest {
    /// SMB2_READFLAG_REQUEST_COMPRESSED: the answer may come compressed.
    pub const REQUEST_COMPRESSED: u8 = 0x02;
    /// Bytes from the header to the Buffer.
    pub const FIXED: usize = channel::REQUEST_FIXED;

    const STRUCTURE: &str = "READ request";
    const STRUCTURE_SIZE: u16 = 49;

    /// Returns Flags of a request that has its fixed part.
    ///
    /// # Panics
    /// If it does not.
    pub const fn flags_of(element: &[u8]) -> u8 {
        element[Header::LENGTH + 3]
    }

    /// Reads the body of an element. Descriptors are read only where there is a channel.
    ///
    /// # Errors
    /// The element is too short, or says that its descriptors lie outside of it.
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

    /// Appends the body: 48 bytes and the descriptors, or one byte in place of these.
    ///
    /// # Panics
    /// If `out` has no room for it, or there are more than 4095 descriptors.
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

/// Bytes of the descriptors, as a request has them.
pub(super) fn descriptors_length(descriptors: &[BufferDescriptorV1]) -> u16 {
    u16::try_from(descriptors.len() * BufferDescriptorV1::LENGTH)
        .expect("a request has at most 4095 descriptors")
}

/// A successful READ response, without its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadResponse {
    /// Where the data is in the element.
    pub data: Range<usize>,
    /// DataRemaining: bytes that went by RDMA.
    pub data_remaining: u32,
    /// Flags, or Reserved2 before dialect 3.1.1.
    pub flags: u32,
}

impl ReadResponse {
    /// Bytes from the header to the data.
    pub const FIXED: usize = Header::LENGTH + 16;

    const STRUCTURE: &str = "READ response";
    const STRUCTURE_SIZE: u16 = 17;

    /// Reads the body of an element of `length` bytes, of which `head` has the first ones; its
    /// data need not be there.
    ///
    /// # Errors
    /// The element is too short, or says that its data lies outside of it.
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

    /// Appends the 16 bytes of a body whose `data_length` bytes of data follow it.
    ///
    /// # Panics
    /// If `out` has no room for them.
    pub fn encode(data_length: u32, data_remaining: u32, flags: u32, out: &mut impl BufMut) {
        out.put_u16_le(Self::STRUCTURE_SIZE);
        out.put_u8(Self::FIXED as u8);
        out.put_u8(0);
        out.put_u32_le(data_length);
        out.put_u32_le(data_remaining);
        out.put_u32_le(flags);
    }

    /// The data of a response that is there whole.
    ///
    /// # Errors
    /// The element is shorter than it was said to be.
    pub fn data<'a>(&self, element: &'a [u8]) -> Result<&'a [u8], Malformed> {
        let length = self.data.len() as u32;
        buffer("the data", element, self.data.start as u32, length)
    }
}
