//! A client, with RDMA or without: its requests, and the answers that it must receive.

use std::collections::HashMap;

use fastrand::Rng;
use smbdirect::BufferDescriptorV1;

use crate::{
    Sent, Totals,
    meaning::{channel, command, elements, is_read_with_data},
    memory::Memory,
    messages::*,
};

/// Longest READ or WRITE.
const LONGEST: usize = 3000;
/// Bytes of a file that are read and written.
pub(crate) const FILE: u64 = 8000;
/// Number of files.
pub(crate) const FILES: u8 = 3;

#[derive(Debug)]
pub(crate) struct Client {
    /// Its READs and WRITEs may have a channel.
    pub(crate) rdma: bool,
    /// Whether the client is not hostile, so that answers to it are checked as well.
    pub(crate) honest: bool,
    next_message_id: u64,
    /// Requests that have not had their final answer.
    pub(crate) waiting: HashMap<u64, Operation>,
}

/// A request of a client.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) command: u16,
    /// 0 if its data is in the messages.
    pub(crate) channel: u32,
    pub(crate) length: u32,
    pub(crate) descriptors: Vec<BufferDescriptorV1>,
    /// The content of the client's memory at the time of the request.
    before: Vec<u8>,
}

impl Client {
    pub(crate) fn new(rdma: bool, honest: bool) -> Self {
        Self {
            rdma,
            honest,
            next_message_id: 1,
            waiting: HashMap::new(),
        }
    }

    /// The next message.
    pub(crate) fn ask(&mut self, random: &mut Rng, memory: &mut Memory) -> Vec<u8> {
        match random.u8(..16) {
            0 => encrypted(random.usize(..300)),
            1 => compressed(random.usize(..300)),
            2 | 3 => self.cancel(random),
            4..=6 => self.compound(random, memory),
            7 => flagged(self.element(random, memory, false), SIGNED),
            _ => self.element(random, memory, self.rdma),
        }
    }

    fn cancel(&mut self, random: &mut Rng) -> Vec<u8> {
        let mut ids: Vec<_> = self.waiting.keys().copied().collect();
        ids.sort_unstable();
        let id = random.choice(ids).unwrap_or(0);
        other(header(CANCEL, id), &[4, 0, 0, 0])
    }

    fn compound(&mut self, random: &mut Rng, memory: &mut Memory) -> Vec<u8> {
        let (signed, related) = (random.u8(..4) == 0, random.bool());
        let elements: Vec<_> = (0..random.usize(2..6))
            .map(|index| {
                let rdma = self.rdma && !signed && random.bool();
                let mut element = self.element(random, memory, rdma);
                if signed {
                    element = flagged(element, SIGNED);
                }
                if related && index > 0 {
                    element = flagged(element, RELATED);
                }
                element
            })
            .collect();
        let padding = if random.bool() { 0 } else { 0xaa };
        compound_padded(&elements, padding)
    }

    fn element(&mut self, random: &mut Rng, memory: &mut Memory, rdma: bool) -> Vec<u8> {
        self.next_message_id += random.u64(1..4);
        let id = self.next_message_id;
        let length = match random.u8(..8) {
            0 => 0,
            1 => 1,
            2 => random.usize(..100),
            _ => random.usize(..LONGEST),
        };
        let offset = random.u64(..FILE);
        let mut bytes = Vec::with_capacity(length + 20);
        bytes.resize_with(length, || random.u8(..));
        let channel = random.u32(V1..=V1_INVALIDATE);
        let mut message = match random.u8(..8) {
            0 => {
                let mut body = vec![0; random.usize(..40)];
                random.fill(&mut body);
                let commands = [CREATE, CLOSE, ECHO, 11, 16];
                return other(header(commands[random.usize(..commands.len())], id), &body);
            }
            1..=4 if rdma => {
                // More memory than is asked for.
                bytes.resize(length + random.usize(..2) * random.usize(..20), 0x5c);
                let descriptors = self.descriptors(random, memory, &bytes);
                read(id, offset, length as u32, channel, &descriptors)
            }
            1..=4 => read(id, offset, length as u32, 0, &[]),
            _ if rdma => {
                bytes.resize(length + random.usize(..2) * random.usize(..20), 0x5c);
                let descriptors = self.descriptors(random, memory, &bytes);
                write_by_rdma(id, offset, length as u32, channel, &descriptors)
            }
            _ => write(id, offset, &bytes),
        };
        message[80] = random.u8(..FILES);
        message
    }

    fn descriptors(
        &self,
        random: &mut Rng,
        memory: &mut Memory,
        bytes: &[u8],
    ) -> Vec<BufferDescriptorV1> {
        if bytes.is_empty() && random.bool() {
            Vec::new()
        } else {
            memory.register_pieces(random, bytes)
        }
    }

    /// Notes what a message, as it is sent, asks for.
    pub(crate) fn sends(&mut self, message: &[u8], memory: &Memory) {
        for place in elements(message).unwrap_or_default() {
            let element = &message[place];
            let (channel, length, descriptors) = match channel(element) {
                Some(found) => found,
                None if command(element) == CANCEL => continue,
                None => (0, u32::MAX, Vec::new()),
            };
            let before = if self.honest {
                memory.content(&descriptors)
            } else {
                Vec::new()
            };
            let operation = Operation {
                command: command(element),
                channel,
                length,
                descriptors,
                before,
            };
            self.waiting.insert(u64_at(element, 24), operation);
        }
    }

    /// Takes a message of a server that is honest or is not.
    pub(crate) fn receives(
        &mut self,
        sent: &Sent,
        is_honest: bool,
        memory: &mut Memory,
        totals: &mut Totals,
    ) {
        if !self.honest {
            return;
        }
        let mut tokens = Vec::new();
        for place in elements(&sent.bytes).unwrap_or_default() {
            let element = &sent.bytes[place];
            let id = u64_at(element, 24);
            let is_interim = u32_at(element, 8) == PENDING;
            let is_answer = self
                .waiting
                .get(&id)
                .is_some_and(|operation| operation.command == command(element));
            if is_interim || !is_answer {
                continue;
            }
            let operation = self.waiting.remove(&id).expect("it waits");
            if operation.channel == V1_INVALIDATE {
                tokens.extend(operation.descriptors.first().map(|first| first.token));
            }
            match operation.channel {
                // A client without RDMA expects its data in the message only.
                0 => assert!(!is_honest || remaining(element) == 0),
                _ => operation.check(element, memory, totals),
            }
            totals.answers += 1;
            for descriptor in &operation.descriptors {
                if tokens.contains(&descriptor.token) {
                    memory
                        .invalidate(descriptor.token)
                        .expect("it was valid until its final answer");
                    totals.invalidations += 1;
                }
            }
            memory.release(&operation.descriptors);
        }
        // A message carries one token, which the final answer in it invalidates.
        assert!(tokens.len() <= 1, "{tokens:x?} in one message");
        assert_eq!(sent.invalidate, tokens.first().copied());
    }
}

/// DataRemaining of an answer to a READ with data.
fn remaining(element: &[u8]) -> u32 {
    if is_read_with_data(element) {
        u32_at(element, 72)
    } else {
        0
    }
}

impl Operation {
    /// Checks the final answer of a request with a channel, and the memory of the client.
    fn check(&self, element: &[u8], memory: &Memory, totals: &mut Totals) {
        let after = memory.content(&self.descriptors);
        let placed = if is_read_with_data(element) {
            // A client that asks for RDMA expects the data in its memory only.
            assert_eq!(u32_at(element, 68), 0, "data in the message");
            let placed = u32_at(element, 72);
            assert!(placed <= self.length);
            placed as usize
        } else {
            0
        };
        totals.placed += placed;
        // The check of the answer's meaning also compares the first bytes with the file.
        assert_eq!(after[placed..], self.before[placed..]);
    }
}
