//! The messages of the receiving direction: segments are checked, placed and completed.

use std::mem;

use bytes::{Bytes, BytesMut};

use super::{
    ddp::{Header, Tagged, Untagged},
    error::StreamError,
    rdmap::{Opcode, ReadRequest, Terminate},
    shared::{InboundRead, Shared},
};
use crate::{
    software::pool,
    work::{Access, Completion, RemoteAddress, Token},
};

/// The state of the messages that a stream receives.
#[derive(Debug)]
pub(super) struct Messages {
    max_inbound_reads: u32,
    next_send: u32,
    next_read_request: u32,
    /// How many payload bytes of the current Send have arrived; `None` between two Sends.
    assembled_bytes: Option<u32>,
    /// Whether the last segment of an RDMA Write has not arrived yet.
    write_open: bool,
    /// The payload of the first segments of a Send whose last segment has not arrived.
    partial_send: BytesMut,
}

impl Messages {
    /// Creates the state of a stream that serves `max_inbound_reads` RDMA Reads.
    pub(super) fn new(max_inbound_reads: u32) -> Self {
        Self {
            max_inbound_reads,
            next_send: 1,
            next_read_request: 1,
            assembled_bytes: None,
            write_open: false,
            partial_send: BytesMut::new(),
        }
    }

    /// Returns whether every Send and RDMA Write that has begun is complete.
    pub(super) const fn at_boundary(&self) -> bool {
        self.assembled_bytes.is_none() && !self.write_open
    }

    /// Processes one segment, which starts at `at` in `block`.
    //= SEC-08
    pub(super) fn receive_segment(
        &mut self,
        ulpdu: &[u8],
        block: &Bytes,
        at: usize,
        shared: &mut Shared,
    ) -> Result<(), StreamError> {
        match Header::decode(ulpdu)? {
            (Header::Tagged(header), payload) => self.receive_tagged(&header, payload, shared),
            (Header::Untagged(header), payload) => {
                let place = (block, at + Untagged::LENGTH);
                self.receive_untagged(&header, payload, place, shared)
            }
        }
    }

    /// Checks a tagged segment and copies its payload to its destination.
    // Inlined, it would keep the shorter code for Sends from being inlined.
    #[inline(never)]
    fn receive_tagged(
        &mut self,
        header: &Tagged,
        payload: &[u8],
        shared: &mut Shared,
    ) -> Result<(), StreamError> {
        let opcode = Opcode::of(&Header::Tagged(*header))?;
        let length = payload.len() as u32;
        //= DDP-16
        check_tagged(header, opcode, length, shared)?;
        if length > 0 {
            place(header, opcode, 0, length, shared)?.copy_from_slice(payload);
        }
        self.finish_segment(header, opcode, length, shared);
        Ok(())
    }

    /// Finishes a tagged segment whose payload is in place and whose CRC is correct.
    pub(super) fn finish_segment(
        &mut self,
        header: &Tagged,
        opcode: Opcode,
        length: u32,
        shared: &mut Shared,
    ) {
        if opcode == Opcode::RdmaWrite {
            //= RDMAP-11
            self.write_open = !header.last;
            return;
        }
        let read = shared.reads.front_mut().expect("the header was checked");
        read.filled += length as usize;
        //= RDMAP-16
        if header.last
            && let Some(read) = shared.reads.pop_front()
            && let Some(id) = read.id
        {
            let buffer = read.buffer;
            shared
                .completions
                .push_back(Completion::Read { id, buffer });
        }
    }

    /// Checks an untagged segment and delivers it to its queue. `place` is the block that contains the payload, and the
    /// start of the payload in it.
    fn receive_untagged(
        &mut self,
        header: &Untagged,
        payload: &[u8],
        place: (&Bytes, usize),
        shared: &mut Shared,
    ) -> Result<(), StreamError> {
        let opcode = Opcode::of(&Header::Untagged(*header))?;
        //= DDP-06
        if header.queue_number != opcode.queue_number() {
            return Err(StreamError::QueueNumber {
                opcode,
                queue_number: header.queue_number,
            });
        }
        match opcode {
            Opcode::RdmaReadRequest => self.receive_read_request(header, payload, shared),
            Opcode::Terminate => Err(StreamError::Terminated(Terminate::decode(payload))),
            // This end waits for all Sends, solicited or not.
            //= RDMAP-14
            _ => self.receive_send(header, opcode, payload, place, shared),
        }
    }

    /// Adds a segment to the Send that is arriving, and completes the Send with its last segment.
    fn receive_send(
        &mut self,
        header: &Untagged,
        opcode: Opcode,
        payload: &[u8],
        (block, start): (&Bytes, usize),
        shared: &mut Shared,
    ) -> Result<(), StreamError> {
        check_number(header, self.next_send)?;
        //= DDP-07
        let receive = shared.receives.front().ok_or(StreamError::NoReceive)?;
        let before = self.assembled_bytes.unwrap_or(0);
        //= DDP-05
        //= DDP-12
        if header.message_offset != before {
            return Err(StreamError::MessageOffset {
                expected: before.into(),
                received: header.message_offset,
            });
        }
        //= DDP-08
        let length = u64::from(before) + payload.len() as u64;
        if length > u64::from(receive.length) {
            return Err(StreamError::MessageTooLong {
                length,
                limit: receive.length,
            });
        }
        if !header.last {
            if before == 0 {
                let length = receive.length as usize;
                match pool::for_message(length) {
                    Some(buffer) => self.partial_send = buffer,
                    None => self.partial_send.reserve(length),
                }
            }
            self.partial_send.extend_from_slice(payload);
            self.assembled_bytes = Some(length as u32);
            return Ok(());
        }
        let mut invalidated = None;
        //= RDMAP-12
        if opcode.invalidates() {
            let token = Token(header.rsvd_ulp);
            shared
                .memory
                .invalidate(token)
                .map_err(|fault| StreamError::Invalidate { token, fault })?;
            invalidated = Some(token);
        }
        //= DDP-17
        //= RDMAP-25
        let id = shared
            .receives
            .pop()
            .expect("the front of the queue was checked");
        let message = match self.assembled_bytes.take() {
            None => block.slice(start..start + payload.len()),
            Some(_) => {
                self.partial_send.extend_from_slice(payload);
                pool::fitting(mem::take(&mut self.partial_send))
            }
        };
        self.next_send = self.next_send.wrapping_add(1);
        shared.completions.push_back(Completion::Received {
            id,
            message,
            invalidated,
        });
        Ok(())
    }

    /// Queues a Read Request of the peer.
    fn receive_read_request(
        &mut self,
        header: &Untagged,
        payload: &[u8],
        shared: &mut Shared,
    ) -> Result<(), StreamError> {
        check_number(header, self.next_read_request)?;
        let request = ReadRequest::decode(payload)?;
        //= RDMAP-03
        if header.message_offset != 0 {
            return Err(StreamError::MessageOffset {
                expected: 0,
                received: header.message_offset,
            });
        }
        if !header.last {
            return Err(StreamError::NotOneSegment(Opcode::RdmaReadRequest));
        }
        //= RDMAP-04
        //= SEC-06
        if shared.inbound_reads.len() >= self.max_inbound_reads as usize {
            let granted = self.max_inbound_reads;
            return Err(StreamError::TooManyReads { granted });
        }
        //= RDMAP-10
        if request.read_message_size > 0 {
            let from = RemoteAddress {
                token: Token(request.source_stag),
                offset: request.source_tagged_offset,
            };
            //= RDMAP-07
            shared
                .memory
                .check(from, request.read_message_size, Access::REMOTE_READ)
                .map_err(StreamError::ReadSource)?;
        }
        self.next_read_request = self.next_read_request.wrapping_add(1);
        shared.inbound_reads.push_back(InboundRead {
            message_sequence_number: header.message_sequence_number,
            request,
        });
        Ok(())
    }
}

/// Checks the message sequence number of a segment.
const fn check_number(header: &Untagged, expected: u32) -> Result<(), StreamError> {
    //= DDP-04
    let received = header.message_sequence_number;
    if received != expected {
        return Err(StreamError::MessageSequenceNumber { expected, received });
    }
    Ok(())
}

/// Checks that all of a tagged segment may be placed, before its first byte is placed.
pub(super) fn check_tagged(
    header: &Tagged,
    opcode: Opcode,
    length: u32,
    shared: &Shared,
) -> Result<(), StreamError> {
    if opcode == Opcode::RdmaWrite {
        //= DDP-13
        //= EST-06
        if length == 0 {
            return Ok(());
        }
        return shared
            .memory
            .check(address(header, 0), length, Access::REMOTE_WRITE)
            .map_err(StreamError::Write);
    }
    //= RDMAP-09
    let read = shared
        .reads
        .front()
        .ok_or(StreamError::UnexpectedReadResponse)?;
    //= RDMAP-08
    if length > 0 && header.stag != read.sink_stag {
        return Err(StreamError::ReadResponseStag {
            expected: read.sink_stag,
            received: header.stag,
        });
    }
    // The sinks of this end start at offset 0, so a tagged offset is an offset into the buffer.
    let in_order = length == 0 || header.tagged_offset == read.filled as u64;
    let missing = (read.buffer.len() - read.filled) as u64;
    let ends = u64::from(length) == missing;
    if !in_order || u64::from(length) > missing || (header.last && !ends) {
        return Err(StreamError::ReadResponseBounds);
    }
    Ok(())
}

/// Returns the destination of `length` payload bytes of a tagged segment, which start `after` bytes
/// into its payload.
pub(super) fn place<'a>(
    header: &Tagged,
    opcode: Opcode,
    after: u32,
    length: u32,
    shared: &'a mut Shared,
) -> Result<&'a mut [u8], StreamError> {
    if opcode == Opcode::RdmaWrite {
        return shared
            .memory
            .write(address(header, after), length)
            .map_err(StreamError::Write);
    }
    let oldest = shared.reads.front_mut();
    let read = oldest.ok_or(StreamError::UnexpectedReadResponse)?;
    let start = read.filled + after as usize;
    Ok(&mut read.buffer[start..start + length as usize])
}

/// Returns the address `after` bytes into a tagged segment. The sum cannot wrap for a segment that
/// passed its check.
const fn address(header: &Tagged, after: u32) -> RemoteAddress {
    RemoteAddress {
        token: Token(header.stag),
        offset: header.tagged_offset.wrapping_add(after as u64),
    }
}
