//! READ and WRITE with a channel ([MS-SMB2] 2.2.19, 2.2.21), whose data does not come in the
//! message: the buffer behind the fixed part has the descriptors.

use smb2::{
    pack::{Pack, WriteCursor},
    types::FileId,
};

/// SMB2_CHANNEL_RDMA_V1 and SMB2_CHANNEL_RDMA_V1_INVALIDATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    RdmaV1 = 1,
    RdmaV1Invalidate = 2,
}

/// Both requests have a fixed part of 48 bytes behind the header's 64.
const STRUCTURE_SIZE: u16 = 49;
const BUFFER_OFFSET: u16 = 64 + 48;

/// READ: the server writes `length` bytes from the file's beginning to the descriptors.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) file_id: FileId,
    pub(crate) channel: Channel,
    pub(crate) length: u32,
    pub(crate) descriptors: Vec<u8>,
}

impl Pack for Read {
    fn pack(&self, cursor: &mut WriteCursor) {
        cursor.write_u16_le(STRUCTURE_SIZE);
        cursor.write_u8(0); // Padding
        cursor.write_u8(0); // Flags
        cursor.write_u32_le(self.length);
        cursor.write_u64_le(0); // Offset
        cursor.write_u64_le(self.file_id.persistent);
        cursor.write_u64_le(self.file_id.volatile);
        cursor.write_u32_le(self.length); // MinimumCount
        cursor.write_u32_le(self.channel as u32);
        cursor.write_u32_le(0); // RemainingBytes
        cursor.write_u16_le(BUFFER_OFFSET);
        cursor.write_u16_le(self.descriptors.len() as u16);
        cursor.write_bytes(&self.descriptors);
    }
}

/// WRITE: the server reads `length` bytes from the descriptors and puts them to the file's
/// beginning.
#[derive(Debug)]
pub(crate) struct Write {
    pub(crate) file_id: FileId,
    pub(crate) channel: Channel,
    pub(crate) length: u32,
    pub(crate) descriptors: Vec<u8>,
}

impl Pack for Write {
    fn pack(&self, cursor: &mut WriteCursor) {
        cursor.write_u16_le(STRUCTURE_SIZE);
        // DataOffset and Length tell of data in the message, and there is none.
        cursor.write_u16_le(0);
        cursor.write_u32_le(0);
        cursor.write_u64_le(0); // Offset
        cursor.write_u64_le(self.file_id.persistent);
        cursor.write_u64_le(self.file_id.volatile);
        cursor.write_u32_le(self.channel as u32);
        cursor.write_u32_le(self.length); // RemainingBytes
        cursor.write_u16_le(BUFFER_OFFSET);
        cursor.write_u16_le(self.descriptors.len() as u16);
        cursor.write_u32_le(0); // Flags
        cursor.write_bytes(&self.descriptors);
    }
}

fn field(body: &[u8], at: usize) -> Option<u32> {
    let bytes = body.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*bytes))
}

/// DataLength and DataRemaining of the answer to READ: what came in the message, and by RDMA.
pub(crate) fn read(body: &[u8]) -> Option<(u32, u32)> {
    Some((field(body, 4)?, field(body, 8)?))
}

/// Count of the answer to WRITE.
pub(crate) fn written(body: &[u8]) -> Option<u32> {
    field(body, 4)
}
