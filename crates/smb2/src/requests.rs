//! The bodies of READ and WRITE ([MS-SMB2] 2.2.19 to 2.2.22), with the data inline or with an RDMA
//! channel.
//!
//! With a channel no data is in the message: the buffer after the fixed part has the descriptors of
//! registered memory, which the server writes to or reads from. The types of the crate smb2 cannot express
//! such a WRITE.
//!
//! [MS-SMB2]: https://learn.microsoft.com/en-us/openspecs/windows_protocols/ms-smb2/

use smb2::{
    msg::set_info::{InfoType, SetInfoRequest},
    pack::{Pack, WriteCursor},
    types::FileId,
};
use smbdirect::BufferDescriptorV1;

use crate::transfer::Channel;

/// StructureSize of both requests: 48 bytes, and one byte of the buffer.
const STRUCTURE_SIZE: u16 = 49;
/// Offset of the buffer from the header, which has 64 bytes.
pub(crate) const BUFFER_OFFSET: usize = 64 + 48;
/// Offset of the data of an answer to READ from the header.
const HEADER_BYTES: usize = 64;

/// An SMB2 READ request.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    /// The open file.
    pub file_id: FileId,
    /// Where in the file to begin, in bytes.
    pub offset: u64,
    /// Bytes to read.
    pub length: u32,
    /// The channel and the memory that the server writes to; `None` asks for the data in the answer.
    pub channel: Option<(Channel, Vec<BufferDescriptorV1>)>,
}

impl Pack for ReadRequest {
    fn pack(&self, cursor: &mut WriteCursor) {
        let (channel, descriptors) = channel_fields(self.channel.as_ref());
        cursor.write_u16_le(STRUCTURE_SIZE);
        cursor.write_u8(0); // Padding
        cursor.write_u8(0); // Flags
        cursor.write_u32_le(self.length);
        cursor.write_u64_le(self.offset);
        cursor.write_u64_le(self.file_id.persistent);
        cursor.write_u64_le(self.file_id.volatile);
        cursor.write_u32_le(0); // MinimumCount
        cursor.write_u32_le(channel);
        cursor.write_u32_le(0); // RemainingBytes
        write_channel_info(cursor, &descriptors);
        // The buffer has at least one byte.
        cursor.write_bytes(if descriptors.is_empty() {
            &[0]
        } else {
            &descriptors
        });
    }
}

/// An SMB2 WRITE request.
#[derive(Clone, Debug)]
pub struct WriteRequest<'a> {
    /// The open file.
    pub file_id: FileId,
    /// Where in the file to begin, in bytes.
    pub offset: u64,
    /// The bytes to write.
    pub source: Source<'a>,
}

/// Where the bytes of a WRITE are.
#[derive(Clone, Debug)]
pub enum Source<'a> {
    /// In the message.
    Inline(&'a [u8]),
    /// In registered memory that the server reads.
    Memory {
        /// Number of bytes.
        length: u32,
        /// The channel.
        channel: Channel,
        /// The memory.
        descriptors: Vec<BufferDescriptorV1>,
    },
}

impl Pack for WriteRequest<'_> {
    fn pack(&self, cursor: &mut WriteCursor) {
        let memory;
        let (data_offset, length, channel, remaining, descriptors, data) = match &self.source {
            Source::Inline(data) => {
                let length = data.len() as u32;
                (BUFFER_OFFSET as u16, length, 0, 0, Vec::new(), *data)
            }
            Source::Memory {
                length,
                channel,
                descriptors,
            } => {
                memory = encode(descriptors);
                (0, 0, *channel as u32, *length, memory.clone(), &memory[..])
            }
        };
        cursor.write_u16_le(STRUCTURE_SIZE);
        cursor.write_u16_le(data_offset);
        cursor.write_u32_le(length);
        cursor.write_u64_le(self.offset);
        cursor.write_u64_le(self.file_id.persistent);
        cursor.write_u64_le(self.file_id.volatile);
        cursor.write_u32_le(channel);
        cursor.write_u32_le(remaining);
        write_channel_info(cursor, &descriptors);
        cursor.write_u32_le(0); // Flags
        cursor.write_bytes(data);
    }
}

fn channel_fields(channel: Option<&(Channel, Vec<BufferDescriptorV1>)>) -> (u32, Vec<u8>) {
    match channel {
        Some((channel, descriptors)) => (*channel as u32, encode(descriptors)),
        None => (0, Vec::new()),
    }
}

fn write_channel_info(cursor: &mut WriteCursor, descriptors: &[u8]) {
    let offset = if descriptors.is_empty() {
        0
    } else {
        BUFFER_OFFSET as u16
    };
    cursor.write_u16_le(offset);
    cursor.write_u16_le(descriptors.len() as u16);
}

fn encode(descriptors: &[BufferDescriptorV1]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for descriptor in descriptors {
        descriptor.encode(&mut bytes);
    }
    bytes
}

/// The body of a successful answer to READ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadAnswer<'a> {
    /// The data in the message.
    pub inline: &'a [u8],
    /// DataRemaining: bytes that the server wrote by RDMA.
    pub by_rdma: u32,
}

impl<'a> ReadAnswer<'a> {
    /// Decodes the bytes after the header; `None` if they are not an answer to READ.
    pub fn decode(body: &'a [u8]) -> Option<Self> {
        let length = field(body, 4)? as usize;
        let by_rdma = field(body, 8)?;
        let inline = if length == 0 {
            &[]
        } else {
            let start = usize::from(*body.get(2)?).checked_sub(HEADER_BYTES)?;
            body.get(start..start.checked_add(length)?)?
        };
        Some(Self { inline, by_rdma })
    }
}

/// Returns Count of a successful answer to WRITE: the bytes written.
pub fn written(body: &[u8]) -> Option<u32> {
    field(body, 4)
}

fn field(body: &[u8], at: usize) -> Option<u32> {
    let bytes = body.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*bytes))
}

/// Returns a SET_INFO request that marks a file to be deleted when it is closed, or ends the mark
/// (FileDispositionInformation, [MS-FSCC] 2.4.11).
///
/// [MS-FSCC]: https://learn.microsoft.com/en-us/openspecs/windows_protocols/ms-fscc/
pub(crate) fn disposition(file_id: FileId, delete: bool) -> SetInfoRequest {
    const FILE_DISPOSITION_INFORMATION: u8 = 13;
    set_info(file_id, FILE_DISPOSITION_INFORMATION, vec![delete.into()])
}

/// Returns a SET_INFO request that gives a file the name `path`, which is encoded for the server
/// (FileRenameInformation, [MS-FSCC] 2.4.42.2).
///
/// [MS-FSCC]: https://learn.microsoft.com/en-us/openspecs/windows_protocols/ms-fscc/
pub(crate) fn rename(file_id: FileId, path: &str, replace: bool) -> SetInfoRequest {
    const FILE_RENAME_INFORMATION: u8 = 10;
    let name: Vec<u8> = path.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let mut buffer = vec![u8::from(replace)];
    buffer.extend([0; 7]); // Reserved
    buffer.extend([0; 8]); // RootDirectory
    buffer.extend((name.len() as u32).to_le_bytes());
    buffer.extend(name);
    set_info(file_id, FILE_RENAME_INFORMATION, buffer)
}

fn set_info(file_id: FileId, file_info_class: u8, buffer: Vec<u8>) -> SetInfoRequest {
    SetInfoRequest {
        info_type: InfoType::File,
        file_info_class,
        additional_information: 0,
        file_id,
        buffer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: FileId = FileId {
        persistent: 0x11,
        volatile: 0x22,
    };
    const MEMORY: BufferDescriptorV1 = BufferDescriptorV1 {
        offset: 0x1122_3344_5566_7788,
        token: 0xaabb_ccdd,
        length: 9000,
    };

    fn packed(body: &dyn Pack) -> Vec<u8> {
        let mut cursor = WriteCursor::new();
        body.pack(&mut cursor);
        cursor.into_inner()
    }

    #[test]
    fn a_read_with_a_channel_has_its_descriptors_after_the_fixed_part() {
        let mut request = ReadRequest {
            file_id: FILE,
            offset: 7,
            length: 9000,
            channel: Some((Channel::RdmaV1Invalidate, vec![MEMORY])),
        };
        let bytes = packed(&request);
        assert_eq!(bytes.len(), 48 + 16);
        assert_eq!(field(&bytes, 4), Some(9000));
        assert_eq!(bytes[8], 7);
        assert_eq!(field(&bytes, 36), Some(2), "Channel");
        assert_eq!(bytes[44..48], [112, 0, 16, 0], "offset and length");
        assert_eq!(bytes[48..56], MEMORY.offset.to_le_bytes());
        request.channel = None;
        let bytes = packed(&request);
        assert_eq!(bytes.len(), 49, "one byte of buffer");
        assert_eq!(bytes[36..48], [0; 12], "no channel");
    }

    #[test]
    fn a_write_has_its_data_or_its_descriptors() {
        let inline = packed(&WriteRequest {
            file_id: FILE,
            offset: 0,
            source: Source::Inline(b"data"),
        });
        assert_eq!(inline[2..8], [112, 0, 4, 0, 0, 0]);
        assert_eq!(&inline[48..], b"data");
        let memory = packed(&WriteRequest {
            file_id: FILE,
            offset: 0,
            source: Source::Memory {
                length: 9000,
                channel: Channel::RdmaV1,
                descriptors: vec![MEMORY],
            },
        });
        assert_eq!(memory[2..8], [0; 6], "no data in the message");
        assert_eq!(field(&memory, 32), Some(1), "Channel");
        assert_eq!(field(&memory, 36), Some(9000), "RemainingBytes");
        assert_eq!(memory.len(), 48 + 16);
    }

    #[test]
    fn a_hostile_answer_is_refused() {
        let answer = |offset: u8, length: u32, data: &[u8]| {
            let mut body = vec![17, 0, offset, 0];
            body.extend(length.to_le_bytes());
            body.extend([0; 8]);
            body.extend(data);
            body
        };
        let body = answer(80, 3, b"abc");
        assert_eq!(ReadAnswer::decode(&body).unwrap().inline, b"abc");
        for (offset, length) in [(80, 4), (81, 3), (63, 3), (0, 1), (80, u32::MAX)] {
            let body = answer(offset, length, b"abc");
            assert_eq!(ReadAnswer::decode(&body), None, "{offset} {length}");
        }
        assert_eq!(ReadAnswer::decode(&[17, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(written(&[17, 0, 0, 0, 5, 0, 0]), None);
    }
}
