//! WRITE: request ([MS-SMB2] 2.2.21). The response goes through a gateway as it is.

use std::ops::Range;

use bytes::BufMut;
use smbdirect::BufferDescriptorV1;

use super::{
    channel::{self, Channel},
    read::descriptors_length,
    reader::{Malformed, Reader},
};

/// A WRITE request, without its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteRequest {
    /// Where the data is in the element; empty if it goes by RDMA.
    pub data: Range<usize>,
    /// Offset in the file.
    pub offset: u64,
    /// FileId.
    pub file_id: [u8; 16],
    /// How the data is to travel.
    pub channel: Channel,
    /// RemainingBytes: with a channel, the bytes to write.
    pub remaining_bytes: u32,
    /// Flags.
    pub flags: u32,
    /// Where the data is to come from; empty without a channel.
    pub descriptors: Vec<BufferDescriptorV1>,
}

impl WriteRequest {
    /// Bytes from the header to the Buffer.
    pub const FIXED: usize = channel::REQUEST_FIXED;

    const STRUCTURE: &str = "WRITE request";
    const STRUCTURE_SIZE: u16 = 49;

    /// Reads the body of an element of `length` bytes, of which `head` has the first ones; its
    /// data need not be there. Descriptors are read only where there is a channel.
    ///
    /// # Errors
    /// The element is too short, or says that its data or its descriptors lie outside of it.
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

    /// Appends the body of a request whose data follows: 48 bytes. With no data, one byte follows.
    ///
    /// # Panics
    /// If `out` has no room for it.
    pub fn encode_inline(&self, data_length: u32, out: &mut impl BufMut) {
        self.encode_fixed(Self::FIXED as u16, data_length, Channel::None, 0, 0, out);
        if data_length == 0 {
            out.put_u8(0);
        }
    }

    /// Appends the body of a request whose data goes by RDMA: 48 bytes and the descriptors.
    ///
    /// # Panics
    /// If `out` has no room for it, or there are more than 4095 descriptors.
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
