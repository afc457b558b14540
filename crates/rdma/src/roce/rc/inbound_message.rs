//! [`InboundMessage`], the Send or Write whose packets are arriving.

use std::mem;

use bytes::BytesMut;

use super::{
    error::QueuePairError, payload::Payload, send_queue::MAX_MESSAGE_BYTES, shared::Shared,
};
use crate::{
    roce::packet::{Bth, Extended, Opcode, Reth},
    software::arena::Arena,
    software::pool,
    work::{Access, Completion, RemoteAddress, Token},
};

/// The Send or Write whose packets are arriving, and the memory for Sends.
#[derive(Debug, Default)]
pub(super) struct InboundMessage {
    progress: Progress,
    /// The payload of the first packets of a Send.
    partial_send: BytesMut,
    /// The memory for Sends of one packet that are copied.
    arena: Arena,
}

/// The part of a message that has arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Progress {
    /// No message has begun.
    #[default]
    Between,
    /// A Send, of which `length` bytes have arrived.
    Send { length: u64 },
    /// A Write.
    Write {
        /// Where the next byte goes.
        next: RemoteAddress,
        /// The bytes that are still to arrive.
        left: u32,
    },
}

/// The outcome of a packet that continues a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The packet was processed.
    Packet,
    /// The packet was the last of its message.
    Message,
    /// The packet begins a Send, and no receive is posted. It was not processed.
    NoReceive,
}

impl InboundMessage {
    /// Returns whether the next packet begins a message.
    pub(super) fn is_between(&self) -> bool {
        self.progress == Progress::Between
    }

    /// Processes the next packet of a Send.
    pub(super) fn receive_send(
        &mut self,
        bth: &Bth,
        extended: &Extended,
        payload: Payload<'_>,
        shared: &mut Shared,
    ) -> Result<Arrival, QueuePairError> {
        //= ROCE-9.7.4-01
        let before = match (is_beginning(bth.opcode), self.progress) {
            (true, Progress::Between) => 0,
            (false, Progress::Send { length }) => length,
            (begins, _) => return Err(out_of_sequence(bth.opcode, begins)),
        };
        let Some(receive) = shared.receives.front() else {
            return Ok(Arrival::NoReceive);
        };
        let limit = receive.length;
        let length = before + payload.bytes.len() as u64;
        //= ROCE-9.7.4-05
        if length > u64::from(limit) {
            return Err(QueuePairError::MessageTooLong { length, limit });
        }
        if !bth.opcode.ends_message() {
            if before == 0 {
                match pool::for_message(limit as usize) {
                    Some(buffer) => self.partial_send = buffer,
                    None => self.partial_send.reserve(limit as usize),
                }
            }
            self.partial_send.extend_from_slice(payload.bytes);
            self.progress = Progress::Send { length };
            return Ok(Arrival::Packet);
        }
        let mut invalidated = None;
        //= ROCE-9.4.1-01
        if let Some(ieth) = extended.ieth() {
            let token = Token(ieth.r_key);
            shared
                .memory
                .invalidate(token)
                .map_err(|fault| QueuePairError::Invalidate { token, fault })?;
            invalidated = Some(token);
        }
        let id = shared
            .receives
            .pop()
            .expect("the front of the queue was checked");
        let message = match mem::take(&mut self.progress) {
            Progress::Between => payload.to_bytes(&mut self.arena),
            _ => {
                self.partial_send.extend_from_slice(payload.bytes);
                pool::fitting(mem::take(&mut self.partial_send))
            }
        };
        shared.completions.push_back(Completion::Received {
            id,
            message,
            invalidated,
        });
        Ok(Arrival::Message)
    }

    /// Processes the next packet of a Write.
    pub(super) fn receive_write(
        &mut self,
        bth: &Bth,
        extended: &Extended,
        payload: &[u8],
        shared: &mut Shared,
    ) -> Result<Arrival, QueuePairError> {
        //= ROCE-9.7.4-01
        let (next, left) = match (extended.reth(), self.progress) {
            (Some(reth), Progress::Between) => begin_write(reth, shared)?,
            (None, Progress::Write { next, left }) => (next, left),
            (reth, _) => return Err(out_of_sequence(bth.opcode, reth.is_some())),
        };
        let length = payload.len() as u32;
        let is_last = bth.opcode.ends_message();
        //= ROCE-9.7.4-06
        let left = left
            .checked_sub(length)
            .filter(|&left| is_last == (left == 0))
            .ok_or(QueuePairError::WriteLength)?;
        if length > 0 {
            // The right to write may have ended since the first packet.
            let place = shared.memory.write(next, length);
            place
                .map_err(QueuePairError::Write)?
                .copy_from_slice(payload);
        }
        if is_last {
            self.progress = Progress::Between;
            return Ok(Arrival::Message);
        }
        let next = RemoteAddress {
            offset: next.offset + u64::from(length),
            ..next
        };
        self.progress = Progress::Write { next, left };
        Ok(Arrival::Packet)
    }
}

/// Checks the destination of a Write, and returns it with its length.
fn begin_write(reth: Reth, shared: &Shared) -> Result<(RemoteAddress, u32), QueuePairError> {
    let address = address_of(&reth);
    //= ROCE-9.7.7-01
    if reth.length > MAX_MESSAGE_BYTES {
        return Err(QueuePairError::TooLong(reth.length));
    }
    //= ROCE-9.7.4-08
    if reth.length > 0 {
        //= ROCE-9.7.4-07
        shared
            .memory
            .check(address, reth.length, Access::REMOTE_WRITE)
            .map_err(QueuePairError::Write)?;
    }
    Ok((address, reth.length))
}

/// Returns the address of a RETH.
pub(super) const fn address_of(reth: &Reth) -> RemoteAddress {
    RemoteAddress {
        token: Token(reth.r_key),
        offset: reth.virtual_address,
    }
}

/// Returns whether a packet begins a message.
const fn is_beginning(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::SendFirst | Opcode::SendOnly | Opcode::SendOnlyInvalidate
    )
}

/// Returns the error of a packet that does not continue the message before it.
pub(super) const fn out_of_sequence(opcode: Opcode, begins: bool) -> QueuePairError {
    let place = if begins {
        "inside another message"
    } else {
        "that continues no message"
    };
    QueuePairError::OpcodeSequence { opcode, place }
}
