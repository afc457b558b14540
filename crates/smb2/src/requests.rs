//! READ and WRITE of `smbdirect_smb` as bodies of the crate smb2, whose types cannot express a WRITE with an RDMA
//! channel, and changes of files by SET_INFO.
//!
//! [MS-SMB2]: https://learn.microsoft.com/en-us/openspecs/windows_protocols/ms-smb2/

use smb2::{
    msg::set_info::{InfoType, SetInfoRequest},
    pack::{Pack, WriteCursor},
    types::FileId,
};
use smbdirect::BufferDescriptorV1;
use smbdirect_smb::{
    file_information,
    smb2::{self as codec, Channel, Header, Malformed, ReadResponse, WriteResponse},
};

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
        let (channel, descriptors) = self.channel.clone().unwrap_or((Channel::None, Vec::new()));
        let request = codec::ReadRequest {
            padding: 0,
            flags: 0,
            length: self.length,
            offset: self.offset,
            file_id: bytes_of(self.file_id),
            minimum_count: 0,
            channel,
            remaining_bytes: 0,
            descriptors,
        };
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        cursor.write_bytes(&bytes);
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
        let mut request = codec::WriteRequest {
            data: 0..0,
            offset: self.offset,
            file_id: bytes_of(self.file_id),
            channel: Channel::None,
            remaining_bytes: 0,
            flags: 0,
            descriptors: Vec::new(),
        };
        let mut bytes = Vec::new();
        match &self.source {
            Source::Inline(data) => {
                request.encode_inline(data.len() as u32, &mut bytes);
                cursor.write_bytes(&bytes);
                cursor.write_bytes(data);
            }
            Source::Memory {
                length,
                channel,
                descriptors,
            } => {
                request.channel = *channel;
                request.remaining_bytes = *length;
                request.descriptors.clone_from(descriptors);
                request.encode_channel(&mut bytes);
                cursor.write_bytes(&bytes);
            }
        }
    }
}

/// Returns a FileId as it is in messages.
fn bytes_of(file_id: FileId) -> [u8; 16] {
    (u128::from(file_id.persistent) | u128::from(file_id.volatile) << 64).to_le_bytes()
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
    /// Decodes the bytes after the header.
    ///
    /// # Errors
    /// The bytes are not an answer to READ.
    pub fn decode(body: &'a [u8]) -> Result<Self, Malformed> {
        let response = ReadResponse::decode(&head(body), Header::LENGTH + body.len())?;
        let data = response.data;
        Ok(Self {
            // Without data the range is 0..0; with data it begins after the header.
            inline: body
                .get(data.start.saturating_sub(Header::LENGTH)..)
                .and_then(|rest| rest.get(..data.len()))
                .unwrap_or_default(),
            by_rdma: response.data_remaining,
        })
    }
}

/// Returns Count of a successful answer to WRITE: the bytes written.
///
/// # Errors
/// The bytes after the header are not an answer to WRITE.
pub fn written(body: &[u8]) -> Result<u32, Malformed> {
    WriteResponse::decode(&head(body)).map(|response| response.count)
}

/// Returns the fixed part of an answer to READ or WRITE with this body. Its header is empty: the offsets within an
/// element count from there.
fn head(body: &[u8]) -> Vec<u8> {
    let fixed = ReadResponse::FIXED - Header::LENGTH;
    [&[0; Header::LENGTH], &body[..body.len().min(fixed)]].concat()
}

/// Returns a SET_INFO request that marks a file to be deleted when it is closed, or ends the mark
/// (FileDispositionInformation, [MS-FSCC] 2.4.11).
///
/// [MS-FSCC]: https://learn.microsoft.com/en-us/openspecs/windows_protocols/ms-fscc/
pub(crate) fn disposition(file_id: FileId, delete: bool) -> SetInfoRequest {
    set_info(file_id, file_information::DISPOSITION, vec![delete.into()])
}

/// Returns a SET_INFO request that gives a file the name `path`, which is encoded for the server
/// (FileRenameInformation, [MS-FSCC] 2.4.42.2).
///
/// [MS-FSCC]: https://learn.microsoft.com/en-us/openspecs/windows_protocols/ms-fscc/
pub(crate) fn rename(file_id: FileId, path: &str, replace: bool) -> SetInfoRequest {
    let buffer = file_information::encode_rename(path, replace);
    set_info(file_id, file_information::RENAME, buffer)
}

/// Returns a SET_INFO request that sets the length of a file (FileEndOfFileInformation, [MS-FSCC] 2.4.14).
///
/// [MS-FSCC]: https://learn.microsoft.com/en-us/openspecs/windows_protocols/ms-fscc/
pub(crate) fn end_of_file(file_id: FileId, length: u64) -> SetInfoRequest {
    let buffer = length.to_le_bytes().to_vec();
    set_info(file_id, file_information::END_OF_FILE, buffer)
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
        [&[0; Header::LENGTH], &cursor.into_inner()[..]].concat()
    }

    #[test]
    fn a_read_is_with_a_channel_or_without() {
        let mut request = ReadRequest {
            file_id: FILE,
            offset: 7,
            length: 9000,
            channel: Some((Channel::RdmaV1Invalidate, vec![MEMORY])),
        };
        let decoded = codec::ReadRequest::decode(&packed(&request)).unwrap();
        assert_eq!((decoded.offset, decoded.length), (7, 9000));
        assert_eq!(decoded.file_id[..9], [0x11, 0, 0, 0, 0, 0, 0, 0, 0x22]);
        assert_eq!(decoded.channel, Channel::RdmaV1Invalidate);
        assert_eq!(decoded.descriptors, [MEMORY]);
        request.channel = None;
        let decoded = codec::ReadRequest::decode(&packed(&request)).unwrap();
        assert_eq!(decoded.channel, Channel::None);
    }

    #[test]
    fn a_write_has_its_data_or_its_descriptors() {
        let mut request = WriteRequest {
            file_id: FILE,
            offset: 7,
            source: Source::Inline(b"data"),
        };
        let bytes = packed(&request);
        let decoded = codec::WriteRequest::decode(&bytes, bytes.len()).unwrap();
        assert_eq!((decoded.channel, decoded.offset), (Channel::None, 7));
        assert_eq!(bytes[decoded.data], *b"data");
        request.source = Source::Memory {
            length: 9000,
            channel: Channel::RdmaV1,
            descriptors: vec![MEMORY],
        };
        let bytes = packed(&request);
        let decoded = codec::WriteRequest::decode(&bytes, bytes.len()).unwrap();
        assert!(decoded.data.is_empty(), "no data in the message");
        let (channel, remaining) = (decoded.channel, decoded.remaining_bytes);
        assert_eq!((channel, remaining), (Channel::RdmaV1, 9000));
        assert_eq!(decoded.descriptors, [MEMORY]);
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
        for (offset, length, inline) in [(80, 3, &b"abc"[..]), (81, 2, b"bc"), (0, 0, b"")] {
            let body = answer(offset, length, b"abc");
            assert_eq!(ReadAnswer::decode(&body).unwrap().inline, inline);
        }
        for (offset, length) in [(80, 4), (81, 3), (63, 3), (0, 1), (80, u32::MAX)] {
            let body = answer(offset, length, b"abc");
            assert!(ReadAnswer::decode(&body).is_err(), "{offset} {length}");
        }
        assert!(ReadAnswer::decode(&[17, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(written(&[17, 0, 0, 0, 5, 0, 0]).is_err());
    }
}
