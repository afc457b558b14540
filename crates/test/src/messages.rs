//! SMB2 messages for tests, put together by the offsets of [MS-SMB2] 2.2, so that a fault of the
//! code under test is not repeated here.

use smbdirect::BufferDescriptorV1;

pub const NEGOTIATE: u16 = 0;
pub const CREATE: u16 = 5;
pub const CLOSE: u16 = 6;
pub const READ: u16 = 8;
pub const WRITE: u16 = 9;
pub const CANCEL: u16 = 12;
pub const ECHO: u16 = 13;

pub const RESPONSE: u32 = 1;
pub const ASYNC: u32 = 2;
pub const RELATED: u32 = 4;
pub const SIGNED: u32 = 8;

pub const SUCCESS: u32 = 0;
pub const PENDING: u32 = 0x0000_0103;
pub const BUFFER_OVERFLOW: u32 = 0x8000_0005;
pub const END_OF_FILE: u32 = 0xc000_0011;
pub const CANCELLED: u32 = 0xc000_0120;

pub const V1: u32 = 1;
pub const V1_INVALIDATE: u32 = 2;

/// The FileId of all requests.
pub const FILE_ID: [u8; 16] = *b"file-id-of-tests";

/// Writes `bytes` at an offset of a message.
pub fn put(message: &mut [u8], at: usize, bytes: &[u8]) {
    message[at..at + bytes.len()].copy_from_slice(bytes);
}

/// The message with other bytes at an offset.
pub fn with(mut message: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    put(&mut message, at, bytes);
    message
}

pub fn u16_at(message: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(message[at..at + 2].try_into().unwrap())
}

pub fn u32_at(message: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(message[at..at + 4].try_into().unwrap())
}

pub fn u64_at(message: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(message[at..at + 8].try_into().unwrap())
}

/// A header without flags in which no field is zero that may pass through.
pub fn header(command: u16, message_id: u64) -> Vec<u8> {
    let mut message = vec![0; 64];
    put(&mut message, 0, b"\xfeSMB\x40\0");
    put(&mut message, 6, &0x0107_u16.to_le_bytes());
    put(&mut message, 8, &0x0000_0009_u32.to_le_bytes());
    put(&mut message, 12, &command.to_le_bytes());
    put(&mut message, 14, &0x0222_u16.to_le_bytes());
    put(&mut message, 24, &message_id.to_le_bytes());
    put(&mut message, 32, &0xa5a4_a3a2_0000_feff_u64.to_le_bytes());
    put(&mut message, 40, &0x5000_0000_0000_0051_u64.to_le_bytes());
    put(&mut message, 48, &[0x77; 16]);
    message
}

/// The header of an answer.
pub fn answer(command: u16, message_id: u64, status: u32) -> Vec<u8> {
    let message = with(header(command, message_id), 8, &status.to_le_bytes());
    flagged(message, RESPONSE)
}

/// The message with more flags set.
pub fn flagged(message: Vec<u8>, flags: u32) -> Vec<u8> {
    let flags = u32_at(&message, 16) | flags;
    with(message, 16, &flags.to_le_bytes())
}

/// A request or answer with a body that gateways do not examine.
pub fn other(mut header: Vec<u8>, body: &[u8]) -> Vec<u8> {
    header.extend_from_slice(body);
    header
}

fn extend_descriptors(message: &mut Vec<u8>, descriptors: &[BufferDescriptorV1]) {
    for descriptor in descriptors {
        message.extend_from_slice(&descriptor.offset.to_le_bytes());
        message.extend_from_slice(&descriptor.token.to_le_bytes());
        message.extend_from_slice(&descriptor.length.to_le_bytes());
    }
}

/// A READ request; with channel 0 its Buffer is one byte.
pub fn read(
    message_id: u64,
    offset: u64,
    length: u32,
    channel: u32,
    descriptors: &[BufferDescriptorV1],
) -> Vec<u8> {
    let mut message = header(READ, message_id);
    message.resize(112, 0);
    put(&mut message, 64, &49_u16.to_le_bytes());
    put(&mut message, 66, &[80, 0x01]);
    put(&mut message, 68, &length.to_le_bytes());
    put(&mut message, 72, &offset.to_le_bytes());
    put(&mut message, 80, &FILE_ID);
    put(&mut message, 96, &3_u32.to_le_bytes());
    put(&mut message, 100, &channel.to_le_bytes());
    if channel == 0 {
        message.push(0);
        return message;
    }
    put(&mut message, 104, &0x0123_u32.to_le_bytes());
    put(&mut message, 108, &112_u16.to_le_bytes());
    let info = (descriptors.len() * 16) as u16;
    put(&mut message, 110, &info.to_le_bytes());
    extend_descriptors(&mut message, descriptors);
    message
}

/// Returns a WRITE request whose data is in the message.
pub fn write(message_id: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    let mut message = header(WRITE, message_id);
    message.resize(112, 0);
    put(&mut message, 64, &49_u16.to_le_bytes());
    put(&mut message, 66, &112_u16.to_le_bytes());
    put(&mut message, 68, &(data.len() as u32).to_le_bytes());
    put(&mut message, 72, &offset.to_le_bytes());
    put(&mut message, 80, &FILE_ID);
    put(&mut message, 108, &1_u32.to_le_bytes());
    message.extend_from_slice(data);
    if data.is_empty() {
        message.push(0);
    }
    message
}

/// Returns a WRITE request whose data is moved by RDMA.
pub fn write_by_rdma(
    message_id: u64,
    offset: u64,
    length: u32,
    channel: u32,
    descriptors: &[BufferDescriptorV1],
) -> Vec<u8> {
    let mut message = write(message_id, offset, &[]);
    message.truncate(112);
    put(&mut message, 66, &[0, 0]);
    put(&mut message, 96, &channel.to_le_bytes());
    put(&mut message, 100, &length.to_le_bytes());
    put(&mut message, 104, &112_u16.to_le_bytes());
    let info = (descriptors.len() * 16) as u16;
    put(&mut message, 106, &info.to_le_bytes());
    extend_descriptors(&mut message, descriptors);
    message
}

/// The answer to a READ, with its data in the message and the rest of it by RDMA.
pub fn read_answer(message_id: u64, data: &[u8], remaining: u32) -> Vec<u8> {
    let mut message = answer(READ, message_id, SUCCESS);
    message.resize(80, 0);
    put(&mut message, 64, &17_u16.to_le_bytes());
    message[66] = 80;
    put(&mut message, 68, &(data.len() as u32).to_le_bytes());
    put(&mut message, 72, &remaining.to_le_bytes());
    message.extend_from_slice(data);
    message
}

/// The answer to a WRITE.
pub fn write_answer(message_id: u64, count: u32) -> Vec<u8> {
    let mut message = answer(WRITE, message_id, SUCCESS);
    message.resize(81, 0);
    put(&mut message, 64, &17_u16.to_le_bytes());
    put(&mut message, 68, &count.to_le_bytes());
    message
}

/// An ERROR response.
pub fn error(command: u16, message_id: u64, status: u32) -> Vec<u8> {
    other(
        answer(command, message_id, status),
        &[9, 0, 0, 0, 0, 0, 0, 0, 0],
    )
}

/// An interim answer.
pub fn interim(command: u16, message_id: u64) -> Vec<u8> {
    flagged(error(command, message_id, PENDING), ASYNC)
}

/// A NEGOTIATE response with a dialect.
pub fn negotiated(dialect: u16) -> Vec<u8> {
    let mut message = answer(NEGOTIATE, 0, SUCCESS);
    message.resize(128, 0);
    put(&mut message, 64, &65_u16.to_le_bytes());
    put(&mut message, 68, &dialect.to_le_bytes());
    message
}

/// A compound of elements, padded with `padding`.
pub fn compound_padded(elements: &[Vec<u8>], padding: u8) -> Vec<u8> {
    let mut message = Vec::new();
    for (index, element) in elements.iter().enumerate() {
        let start = message.len();
        message.extend_from_slice(element);
        if index + 1 < elements.len() {
            message.resize(message.len().next_multiple_of(8), padding);
            let next_command = (message.len() - start) as u32;
            put(&mut message, start + 20, &next_command.to_le_bytes());
        }
    }
    message
}

/// A compound of elements.
pub fn compound(elements: &[Vec<u8>]) -> Vec<u8> {
    compound_padded(elements, 0)
}

/// The elements of a well-formed message, padding included.
pub fn split(message: &[u8]) -> Vec<Vec<u8>> {
    let mut elements = Vec::new();
    let mut rest = message;
    loop {
        match u32_at(rest, 20) as usize {
            0 => break elements.push(rest.to_vec()),
            next => {
                elements.push(rest[..next].to_vec());
                rest = &rest[next..];
            }
        }
    }
    elements
}

/// A message that begins as an encrypted one.
pub fn encrypted(length: usize) -> Vec<u8> {
    let mut message: Vec<u8> = (0..length.max(52)).map(|at| at as u8 ^ 0x5a).collect();
    put(&mut message, 0, b"\xfdSMB");
    message
}

/// A message that begins as a compressed one.
pub fn compressed(length: usize) -> Vec<u8> {
    with(encrypted(length), 0, b"\xfcSMB")
}

/// A buffer descriptor.
pub const fn descriptor(offset: u64, token: u32, length: u32) -> BufferDescriptorV1 {
    BufferDescriptorV1 {
        offset,
        token,
        length,
    }
}

/// An entry of FileBothDirectoryInformation, padded to 8 bytes, with NextEntryOffset unless it is the last.
pub fn directory_entry(name: &[u16], size: u64, is_last: bool) -> Vec<u8> {
    let mut bytes = vec![0; 94];
    put(&mut bytes, 24, &7_u64.to_le_bytes());
    put(&mut bytes, 40, &size.to_le_bytes());
    bytes[56] = 0x20;
    put(&mut bytes, 60, &(2 * name.len() as u32).to_le_bytes());
    bytes.extend(name.iter().flat_map(|unit| unit.to_le_bytes()));
    if !is_last {
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        let next = bytes.len() as u32;
        put(&mut bytes, 0, &next.to_le_bytes());
    }
    bytes
}
