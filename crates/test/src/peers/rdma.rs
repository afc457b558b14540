//! Clients with RDMA and their memory, and settings for large messages.

use bytes::BytesMut;
use smbdirect::{
    Access, BufferDescriptorV1, Config, Connection, MemoryRegion, Message, Settings, Token,
};

use super::{End, soon};
use crate::{messages::*, noise};

/// Settings of an end that receives messages with 8 MiB of data, and waits for credits without a
/// time limit.
pub fn patient() -> Config {
    let mut settings = Settings::default();
    settings.max_fragmented_receive_size = (8 << 20) + (64 << 10);
    settings.credit_grant_timeout = None;
    Config::new(settings).unwrap()
}

/// The content of memory that was not written to.
pub const UNTOUCHED: u8 = 0xee;

/// Memory of a client with RDMA, registered in one or more parts.
#[derive(Debug)]
pub struct Memory {
    regions: Vec<MemoryRegion>,
}

impl Memory {
    fn register(client: &Connection, contents: &[u8], parts: usize, access: Access) -> Self {
        let mut rest = contents;
        let mut regions = Vec::new();
        for left in (1..=parts).rev() {
            // The parts differ in length, and not all of them are aligned.
            let length = match left {
                1 => rest.len(),
                _ => (rest.len() / left + 3 * left).min(rest.len()),
            };
            let (part, behind) = rest.split_at(length);
            let buffer = BytesMut::from(part);
            let access = access | Access::REMOTE_INVALIDATE;
            regions.push(client.register(buffer, access).unwrap());
            rest = behind;
        }
        Self { regions }
    }

    /// Registers memory for the data of a READ.
    pub fn to_fill(client: &Connection, length: usize, parts: usize) -> Self {
        let contents = vec![UNTOUCHED; length];
        Self::register(client, &contents, parts, Access::REMOTE_WRITE)
    }

    /// Registers memory with the data of a WRITE.
    pub fn holding(client: &Connection, contents: &[u8], parts: usize) -> Self {
        Self::register(client, contents, parts, Access::REMOTE_READ)
    }

    pub fn descriptors(&self) -> Vec<BufferDescriptorV1> {
        self.regions.iter().map(MemoryRegion::descriptor).collect()
    }

    /// Returns the token that the final answer to a request with this memory invalidates.
    pub fn invalidated_by(&self, channel: u32) -> Option<Token> {
        (channel == V1_INVALIDATE).then(|| self.regions[0].token())
    }

    /// Deregisters the memory, and returns the contents of its parts.
    pub async fn contents(self) -> Vec<u8> {
        let mut contents = Vec::new();
        for region in self.regions {
            contents.extend_from_slice(&soon(region.deregister()).await.unwrap());
        }
        contents
    }
}

/// Returns the contents of memory of `length` bytes to which `data` was written.
pub fn filled(data: &[u8], length: usize) -> Vec<u8> {
    let mut contents = data.to_vec();
    contents.resize(length, UNTOUCHED);
    contents
}

/// Submits a message, and does not wait until it is sent.
pub fn submit(connection: &Connection, message: impl Into<Message>) {
    drop(connection.send(message).unwrap());
}

/// Waits for a message, and returns it with the token that it invalidated.
pub async fn received(connection: &Connection) -> (Vec<u8>, Option<Token>) {
    let message = soon(connection.recv()).await.unwrap();
    let token = message.invalidated_token();
    (message.into_bytes().to_vec(), token)
}

/// Negotiates a dialect between the client and the server.
pub async fn negotiate(client: &mut End, server: &mut End, dialect: u16) {
    let request = other(header(NEGOTIATE, 0), &noise(40, 1));
    client.send(&request).await;
    assert_eq!(server.receive().await, Some(request));
    server.send(&negotiated(dialect)).await;
    assert_eq!(client.receive().await, Some(negotiated(dialect)));
}

/// Returns the channel of a READ or WRITE as a server receives it, and the descriptors at its end.
pub fn described(request: &[u8]) -> (u32, Vec<BufferDescriptorV1>) {
    let channel = match u16_at(request, 12) {
        READ => u32_at(request, 100),
        _ => u32_at(request, 96),
    };
    let descriptors = match channel {
        0 => Vec::new(),
        _ => BufferDescriptorV1::decode_array(&request[112..]).unwrap(),
    };
    (channel, descriptors)
}

/// Returns a READ to which the gateway has added a channel, for dialect 3.0.2 and later.
pub fn read_by_rdma(
    message_id: u64,
    offset: u64,
    length: u32,
    descriptors: &[BufferDescriptorV1],
) -> Vec<u8> {
    let request = read(message_id, offset, length, V1_INVALIDATE, descriptors);
    // RemainingBytes means nothing in a READ.
    with(request, 104, &[0; 4])
}

/// Answers a request, and ends the registration of its memory if `invalidates`.
pub fn reply(
    server: &Connection,
    answer: Vec<u8>,
    memory: &[BufferDescriptorV1],
    invalidates: bool,
) {
    if invalidates {
        let token = Token(memory[0].token);
        drop(server.send_and_invalidate(answer, token).unwrap());
    } else {
        submit(server, answer);
    }
}
