//! The sending direction of a stream: work and Read Responses become FPDUs, late and in order.

use std::{collections::VecDeque, io::IoSlice};

use bytes::{Bytes, BytesMut};

use super::{
    ddp::{Tagged, Untagged},
    error::StreamError,
    mpa::Fpdu,
    outgoing::Outgoing,
    rdmap::{Opcode, QUEUE_READ_REQUEST, QUEUE_SEND, ReadRequest, Terminate},
    shared::{Fault, InboundRead, OutboundRead, Shared},
    startup::Rtr,
    stream::StreamConfig,
};
use crate::rdma::work::{Completion, Inline, RemoteAddress, Token, WorkId, WorkRequest};

/// Bytes that may wait for the socket before no more FPDUs are made. It is what one write takes
/// at best, and it bounds what a Terminate has to wait for.
const BACKLOG: usize = 256 * 1024;
/// Payloads below this are copied behind their header, larger ones shared: a slice of its own
/// costs about as much as copying so many bytes.
const COPY_BELOW: usize = 2048;

/// The sending direction.
#[derive(Debug)]
pub(super) struct Transmit {
    outgoing: Outgoing,
    max_fpdu: usize,
    /// Nothing may be sent before the initiator's first FPDU has come.
    held: bool,
    /// Reads of ours that may be outstanding.
    max_outbound_reads: usize,
    /// Posted and not begun.
    work: VecDeque<WorkRequest>,
    /// Begun and not finished. Messages never interleave.
    current: Option<Message>,
    /// Whether the last message begun was a Read Response: the two sources take turns.
    responded: bool,
    /// Work whose bytes are all in `outgoing`, and the count of bytes it waits for.
    finished: VecDeque<(u64, Finished)>,
    next_send: u32,
    next_read_request: u32,
    next_sink_stag: u32,
}

/// A message that is being cut into segments.
#[derive(Debug)]
struct Message {
    body: Body,
    sent: u32,
}

#[derive(Debug)]
enum Body {
    Send {
        id: WorkId,
        header: Inline,
        payload: Bytes,
        invalidate: Option<Token>,
        message_sequence_number: u32,
    },
    Write {
        id: WorkId,
        data: Bytes,
        to: RemoteAddress,
    },
    /// To the oldest of the inbound reads, which stays there until it is answered.
    ReadResponse,
}

#[derive(Clone, Copy, Debug)]
enum Finished {
    Sent(WorkId),
    Written(WorkId),
}

impl Finished {
    const fn id(self) -> WorkId {
        match self {
            Self::Sent(id) | Self::Written(id) => id,
        }
    }

    const fn completion(self) -> Completion {
        match self {
            Self::Sent(id) => Completion::Sent { id },
            Self::Written(id) => Completion::Written { id },
        }
    }
}

/// The first sink STag of ours. They need no secrecy: responses are checked against the request
/// they answer, and no table knows these STags.
const FIRST_SINK_STAG: u32 = 0x100;

impl Transmit {
    pub(super) fn new(config: &StreamConfig) -> Self {
        Self {
            outgoing: Outgoing::new(config.crc, config.one_fpdu_a_write),
            max_fpdu: config.max_fpdu,
            //= MPA-07
            held: !config.initiator,
            max_outbound_reads: config.max_outbound_reads as usize,
            work: VecDeque::new(),
            current: None,
            responded: false,
            finished: VecDeque::new(),
            next_send: 1,
            next_read_request: 1,
            next_sink_stag: FIRST_SINK_STAG,
        }
    }

    pub(super) fn post(&mut self, work: WorkRequest) {
        self.work.push_back(work);
    }

    /// Work posted and not completed, without the Reads that the peer has been asked for.
    pub(super) fn outstanding(&self) -> usize {
        let current = matches!(&self.current, Some(message) if message.id().is_some());
        self.work.len() + usize::from(current) + self.finished.len()
    }

    /// Whether all that was posted is on its way.
    pub(super) fn is_idle(&self) -> bool {
        self.work.is_empty() && self.current.is_none() && self.outgoing.backlog() == 0
    }

    pub(super) const fn backlog(&self) -> usize {
        self.outgoing.backlog()
    }

    pub(super) const fn transmitted_bytes(&self) -> u64 {
        self.outgoing.transmitted()
    }

    pub(super) const fn set_max_fpdu(&mut self, max_fpdu: usize) {
        self.max_fpdu = max_fpdu;
    }

    /// The initiator has shown that it is ready.
    pub(super) const fn release(&mut self) {
        self.held = false;
    }

    /// The ready-to-receive frame, the first FPDU of an initiator that promised one.
    pub(super) fn ready_to_receive(&mut self, kind: Rtr, shared: &mut Shared) {
        //= EST-03
        //= EST-06
        match kind {
            Rtr::Write => self.write_nothing(),
            //= EST-07
            Rtr::Read => {
                let from = RemoteAddress {
                    token: Token(1),
                    offset: 0,
                };
                self.request_read(None, from, BytesMut::new(), 0, shared);
            }
        }
    }

    /// Whether the peer has every byte that there was to send so far, and there were some.
    pub(super) fn is_all_sent(&self) -> bool {
        self.is_idle() && self.outgoing.transmitted() > 0
    }

    /// Sends an RDMA Write of length 0: every peer takes it, and nobody is told of it.
    pub(super) fn write_nothing(&mut self) {
        assert!(self.current.is_none(), "messages never interleave");
        let header = Tagged {
            last: true,
            rdmap_control: Opcode::RdmaWrite.control(),
            stag: 1,
            tagged_offset: 0,
        };
        self.outgoing.push_copied(&header.encode(), [&[], &[]]);
    }

    /// Makes FPDUs until enough of them wait for the socket.
    pub(super) fn prepare(&mut self, shared: &mut Shared) -> Result<(), Fault> {
        while !self.held && self.outgoing.backlog() < BACKLOG {
            if self.current.is_none() && !self.begin_message(shared) {
                break;
            }
            self.send_segment(shared)?;
        }
        Ok(())
    }

    pub(super) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.outgoing.slices(slices)
    }

    /// The socket took `count` bytes: the work they were the last of is done.
    pub(super) fn transmitted(&mut self, count: usize, shared: &mut Shared) {
        self.outgoing.advance(count);
        //= RDMAP-15
        while let Some(&(end, finished)) = self.finished.front()
            && end <= self.outgoing.transmitted()
        {
            self.finished.pop_front();
            shared.completions.push_back(finished.completion());
        }
    }

    /// Begins the next message, of whichever source has its turn.
    fn begin_message(&mut self, shared: &mut Shared) -> bool {
        let response_first = !self.responded;
        (response_first && self.begin_response(shared))
            || self.begin_work(shared)
            || self.begin_response(shared)
    }

    fn begin_response(&mut self, shared: &Shared) -> bool {
        //= RDMAP-06
        if shared.inbound_reads.is_empty() {
            return false;
        }
        self.responded = true;
        self.begin(Body::ReadResponse);
        true
    }

    fn begin_work(&mut self, shared: &mut Shared) -> bool {
        loop {
            //= RDMAP-05
            if matches!(self.work.front(), Some(WorkRequest::Read { .. }))
                && shared.reads.len() >= self.max_outbound_reads
            {
                return false;
            }
            let Some(work) = self.work.pop_front() else {
                return false;
            };
            self.responded = false;
            match work {
                WorkRequest::Receive { .. } => unreachable!("receives are not queued to be sent"),
                WorkRequest::Read { id, from, into } => {
                    let sink_stag = self.next_sink_stag;
                    self.next_sink_stag = sink_stag.checked_add(1).unwrap_or(FIRST_SINK_STAG);
                    self.request_read(Some(id), from, into, sink_stag, shared);
                    // A Read Request is one segment: there is nothing to go on with.
                    if self.outgoing.backlog() >= BACKLOG {
                        return false;
                    }
                }
                WorkRequest::Write { id, data, to } => {
                    self.begin(Body::Write { id, data, to });
                    return true;
                }
                WorkRequest::Send {
                    id,
                    header,
                    payload,
                    invalidate,
                } => {
                    //= DDP-04
                    let message_sequence_number = self.next_send;
                    self.next_send = message_sequence_number.wrapping_add(1);
                    self.begin(Body::Send {
                        id,
                        header,
                        payload,
                        invalidate,
                        message_sequence_number,
                    });
                    return true;
                }
            }
        }
    }

    fn begin(&mut self, body: Body) {
        self.current = Some(Message { body, sent: 0 });
    }

    fn request_read(
        &mut self,
        id: Option<WorkId>,
        from: RemoteAddress,
        buffer: BytesMut,
        sink_stag: u32,
        shared: &mut Shared,
    ) {
        let request = ReadRequest {
            sink_stag,
            sink_tagged_offset: 0,
            read_message_size: u32::try_from(buffer.len()).expect("a Read has less than 4 GiB"),
            source_stag: from.token.0,
            source_tagged_offset: from.offset,
        };
        let header = read_request_header(self.next_read_request);
        self.next_read_request = self.next_read_request.wrapping_add(1);
        self.outgoing
            .push_copied(&header.encode(), [&request.encode(), &[]]);
        shared.reads.push_back(OutboundRead {
            id,
            buffer,
            filled: 0,
            sink_stag,
        });
    }

    /// Makes one FPDU of the current message and finishes the message with the last.
    fn send_segment(&mut self, shared: &mut Shared) -> Result<(), Fault> {
        //= DDP-10
        //= DDP-11
        let Some(message) = &mut self.current else {
            return Ok(());
        };
        let last = message.send_segment(&mut self.outgoing, self.max_fpdu, shared)?;
        if last {
            let end = self.outgoing.queued();
            match message.body {
                Body::Send { id, .. } => self.finished.push_back((end, Finished::Sent(id))),
                Body::Write { id, .. } => self.finished.push_back((end, Finished::Written(id))),
                Body::ReadResponse => drop(shared.inbound_reads.pop_front()),
            }
            self.current = None;
        }
        Ok(())
    }

    /// Drops all that is not yet FPDUs, and says goodbye behind those that are.
    pub(super) fn fail(&mut self, terminate: Option<Terminate>, shared: &mut Shared) {
        self.flush(shared);
        match terminate {
            Some(terminate) if !self.held => {
                self.outgoing.push_copied(&terminate.ulpdu(), [&[], &[]]);
            }
            _ => self.outgoing.clear(),
        }
    }

    /// Forgets all bytes that wait for the socket.
    pub(super) fn clear(&mut self) {
        self.outgoing.clear();
    }

    /// Completes all outstanding work as flushed, oldest first.
    pub(super) fn flush(&mut self, shared: &mut Shared) {
        for (_, finished) in std::mem::take(&mut self.finished) {
            shared.flush(finished.id(), None);
        }
        if let Some(id) = self.current.take().and_then(|message| message.id()) {
            shared.flush(id, None);
        }
        for read in std::mem::take(&mut shared.reads) {
            if let Some(id) = read.id {
                shared.flush(id, Some(read.buffer));
            }
        }
        for work in std::mem::take(&mut self.work) {
            shared.flush_work(work);
        }
    }
}

impl Message {
    const fn id(&self) -> Option<WorkId> {
        match &self.body {
            Body::Send { id, .. } | Body::Write { id, .. } => Some(*id),
            Body::ReadResponse => None,
        }
    }

    /// Makes the next FPDU; tells whether it was the last.
    fn send_segment(
        &mut self,
        outgoing: &mut Outgoing,
        max_fpdu: usize,
        shared: &Shared,
    ) -> Result<bool, Fault> {
        let (total, header_length) = match &self.body {
            Body::Send {
                header, payload, ..
            } => (header.as_slice().len() + payload.len(), Untagged::LENGTH),
            Body::Write { data, .. } => (data.len(), Tagged::LENGTH),
            Body::ReadResponse => (
                answered(shared).request.read_message_size as usize,
                Tagged::LENGTH,
            ),
        };
        let capacity = max_fpdu - Fpdu::HEADER_LENGTH - header_length - Fpdu::CRC_LENGTH;
        let begin = self.sent as usize;
        let end = total.min(begin + capacity);
        //= DDP-09
        let last = end == total;
        match &self.body {
            Body::Send {
                header: inline,
                payload,
                invalidate,
                message_sequence_number,
                ..
            } => {
                let opcode = match invalidate {
                    Some(_) => Opcode::SendInvalidate,
                    None => Opcode::Send,
                };
                let header = Untagged {
                    last,
                    rdmap_control: opcode.control(),
                    rsvd_ulp: invalidate.map_or(0, |token| token.0),
                    queue_number: QUEUE_SEND,
                    message_sequence_number: *message_sequence_number,
                    message_offset: self.sent,
                };
                let inline = inline.as_slice();
                let split = inline.len();
                let first = &inline[begin.min(split)..end.min(split)];
                let rest = begin.max(split) - split..end.max(split) - split;
                push(outgoing, &header.encode(), first, payload, rest);
            }
            Body::Write { data, to, .. } => {
                let header = Tagged {
                    last,
                    rdmap_control: Opcode::RdmaWrite.control(),
                    stag: to.token.0,
                    // An address of the peer's that wraps is for the peer to refuse.
                    tagged_offset: to.offset.wrapping_add(u64::from(self.sent)),
                };
                push(outgoing, &header.encode(), &[], data, begin..end);
            }
            Body::ReadResponse => {
                let read = answered(shared);
                let header = Tagged {
                    last,
                    rdmap_control: Opcode::RdmaReadResponse.control(),
                    stag: read.request.sink_stag,
                    tagged_offset: read
                        .request
                        .sink_tagged_offset
                        .wrapping_add(u64::from(self.sent)),
                };
                let data = source_of(read, self.sent, (end - begin) as u32, shared)?;
                push(outgoing, &header.encode(), &[], &data, 0..data.len());
            }
        }
        self.sent = end as u32;
        Ok(last)
    }
}

/// The read that a Read Response under way answers.
fn answered(shared: &Shared) -> &InboundRead {
    shared
        .inbound_reads
        .front()
        .expect("a read stays until its response is made")
}

/// The bytes that a Read Response brings next. The right to read them is looked up again for
/// each segment: it may have ended since the request came.
fn source_of(read: &InboundRead, sent: u32, length: u32, shared: &Shared) -> Result<Bytes, Fault> {
    let request = &read.request;
    //= RDMAP-10
    if request.read_message_size == 0 {
        return Ok(Bytes::new());
    }
    let from = RemoteAddress {
        token: Token(request.source_stag),
        offset: request.source_tagged_offset + u64::from(sent),
    };
    //= RDMAP-07
    //= SEC-05
    shared.memory.read(from, length).map_err(|fault| {
        let header = read_request_header(read.message_sequence_number);
        let ulpdu = [&header.encode()[..], &request.encode()].concat();
        Fault::within(StreamError::ReadSource(fault), &ulpdu)
    })
}

const fn read_request_header(message_sequence_number: u32) -> Untagged {
    Untagged {
        last: true,
        rdmap_control: Opcode::RdmaReadRequest.control(),
        rsvd_ulp: 0,
        queue_number: QUEUE_READ_REQUEST,
        message_sequence_number,
        message_offset: 0,
    }
}

fn push(
    outgoing: &mut Outgoing,
    header: &[u8],
    first: &[u8],
    payload: &Bytes,
    range: std::ops::Range<usize>,
) {
    //= PERF-02
    if range.len() < COPY_BELOW {
        outgoing.push_copied(header, [first, &payload[range]]);
    } else {
        outgoing.push_shared(header, first, payload.slice(range));
    }
}
