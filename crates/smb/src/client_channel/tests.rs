//! Tests of the translation for a client with RDMA and a server without.

mod answers;
mod compounds;
mod data;
mod limits;
mod refusals;

use smbdirect::BufferDescriptorV1;

use super::*;
use crate::messages::*;

const TOKENS: [u32; 3] = [0x1111_0001, 0x2222_0002, 0x3333_0003];

/// Three descriptors for 100, 4096 and 50 bytes.
fn descriptors() -> Vec<BufferDescriptorV1> {
    vec![
        descriptor(0x1000, TOKENS[0], 100),
        descriptor(u64::MAX - 4096, TOKENS[1], 4096),
        descriptor(0, TOKENS[2], 50),
    ]
}

/// Returns a message of one part.
fn message(bytes: &[u8]) -> Message {
    Bytes::copy_from_slice(bytes).into()
}

/// Returns a message whose parts have at most `length` bytes.
fn in_parts_of(length: usize, bytes: &[u8]) -> Message {
    let parts = bytes.chunks(length).map(Bytes::copy_from_slice);
    parts.collect()
}

fn request(channel: &mut ClientChannel, bytes: &[u8]) -> Request {
    channel.request(message(bytes)).unwrap()
}

/// Returns the parts of a request, and asserts that the request is translated.
fn translated(channel: &mut ClientChannel, bytes: &[u8]) -> Vec<Part> {
    match request(channel, bytes) {
        Request::Translated(parts) => parts,
        Request::Pass(_) => panic!("the request passes"),
    }
}

/// Asserts that a request is forwarded unchanged.
fn passes(channel: &mut ClientChannel, bytes: &[u8]) {
    match request(channel, bytes) {
        Request::Pass(message) => assert_eq!(message.into_bytes(), bytes),
        Request::Translated(parts) => panic!("the request is translated: {parts:?}"),
    }
}

fn refused(bytes: &[u8]) -> Refusal {
    ClientChannel::new().request(message(bytes)).unwrap_err()
}

/// The value of every byte of the client's memory in messages that [`sent`] returns.
const REMOTE: u8 = 0xee;

fn sent(parts: &[Part]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        assert!(!part.is_empty(), "an empty part");
        match part {
            Part::Bytes(part) => bytes.extend_from_slice(part),
            Part::Remote { length, .. } => {
                bytes.resize(bytes.len() + *length as usize, REMOTE);
            }
        }
    }
    bytes
}

/// Passes only the head of an answer to the translator, as a caller that has not received all of it does.
fn answer_of(channel: &mut ClientChannel, bytes: &[u8]) -> Result<Answer, ServerFault> {
    let head = bytes.len().min(ClientChannel::ANSWER_HEAD);
    channel.answer(&bytes[..head], bytes.len())
}

fn pass(token: Option<u32>) -> Answer {
    Answer::Pass {
        invalidate: token.map(Token),
    }
}

/// Returns a READ as the server receives it: without channel, descriptors and RemainingBytes.
fn read_without_channel(read: &[u8]) -> Vec<u8> {
    let mut plain = read[..112].to_vec();
    put(&mut plain, 100, &[0; 12]);
    plain.push(0);
    plain
}

fn write_with_data(write: &[u8], length: u32) -> Vec<u8> {
    let mut plain = write[..112].to_vec();
    put(&mut plain, 66, &112_u16.to_le_bytes());
    put(&mut plain, 68, &length.to_le_bytes());
    put(&mut plain, 96, &[0; 12]);
    plain.resize(112 + length as usize, REMOTE);
    if length == 0 {
        plain.push(0);
    }
    plain
}
