//! The sending direction of a stream: work and Read Responses become FPDUs, in order, and only as
//! the socket needs them.

use std::{collections::VecDeque, io::IoSlice};

use bytes::BytesMut;

#[cfg(feature = "tokio")]
use super::alignment::Cut;
use super::{
    config::StreamConfig,
    ddp::{Tagged, Untagged},
    error::StreamError,
    outgoing::Outgoing,
    rdmap::{Opcode, QUEUE_READ_REQUEST, ReadRequest, Terminate},
    segments::Segments,
    shared::{Fault, InboundRead, OutboundRead, Shared},
    startup::Rtr,
};
use crate::{
    memory::Readable,
    software::pop_front_if,
    work::{Completion, RemoteAddress, Token, WorkId, WorkRequest},
};

/// The sending direction.
#[derive(Debug)]
pub(super) struct Transmit {
    segments: Segments,
    /// Whether work becomes FPDUs when it is posted. This is false if each FPDU is one write, because
    /// the largest FPDU length is then known only at the write.
    frames_on_post: bool,
    /// Whether nothing may be sent yet, because the initiator's first FPDU has not arrived.
    held: bool,
    /// The most RDMA Reads that this end may have outstanding.
    max_outbound_reads: usize,
    /// The posted work that is not completely in FPDUs.
    work: VecDeque<WorkRequest>,
    /// The message that is partly in FPDUs. Messages never interleave.
    current: Option<Message>,
    /// Whether the last message was a Read Response. Responses and work alternate.
    responded: bool,
    /// The work that is completely in FPDUs, each with the count of transmitted bytes that
    /// completes it.
    finished: VecDeque<(u64, Finished)>,
    next_read_request: u32,
    next_sink_stag: u32,
    /// The backlog at which no more FPDUs are made.
    max_backlog: usize,
}

/// A message that is being cut into segments.
#[derive(Clone, Copy, Debug)]
struct Message {
    body: Body,
    /// The number of bytes of the message that are in FPDUs.
    sent: u32,
}

/// The source of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    /// The oldest work request, which stays in its queue until the message is finished.
    Work,
    /// The oldest inbound read, which stays in its queue until the response is finished.
    ReadResponse,
}

/// Work that is completely in FPDUs.
#[derive(Clone, Copy, Debug)]
enum Finished {
    Sent(WorkId),
    Written(WorkId),
}

impl Finished {
    const fn of(work: &WorkRequest) -> Self {
        let id = work.id();
        match work {
            WorkRequest::Write { .. } => Self::Written(id),
            _ => Self::Sent(id),
        }
    }

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

/// The first sink STag of this end. Sink STags need not be secret, because each response is checked
/// against its request, and no memory table contains them.
const FIRST_SINK_STAG: u32 = 0x100;

impl Transmit {
    /// Creates the sending direction of a new stream.
    pub(super) fn new(config: &StreamConfig) -> Self {
        Self {
            segments: Segments {
                outgoing: Outgoing::new(config.crc, config.one_fpdu_a_write),
                max_fpdu: config.max_fpdu,
                next_send: 1,
            },
            frames_on_post: !config.one_fpdu_a_write,
            //= MPA-07
            held: !config.initiator,
            max_outbound_reads: config.max_outbound_reads as usize,
            work: VecDeque::new(),
            current: None,
            responded: false,
            finished: VecDeque::new(),
            next_read_request: 1,
            next_sink_stag: FIRST_SINK_STAG,
            max_backlog: config.max_backlog,
        }
    }

    /// Makes FPDUs of a Send or a Write immediately, if no other work precedes it and there is room.
    /// Returns whether all of it is in FPDUs. If not, the caller has to post it.
    #[inline(always)]
    pub(super) fn try_begin(&mut self, work: &WorkRequest, shared: &Shared) -> bool {
        let is_next = self.frames_on_post
            && !self.held
            && self.work.is_empty()
            && shared.inbound_reads.is_empty()
            && self.backlog() < self.max_backlog;
        if !is_next {
            return false;
        }
        self.responded = false;
        let rest = if self.segments.try_push_short(work) {
            None
        } else {
            self.segments.push_work(work, 0)
        };
        match rest {
            None => self.finish_work(Finished::of(work)),
            Some(sent) => {
                let body = Body::Work;
                self.current = Some(Message { body, sent });
            }
        }
        rest.is_none()
    }

    pub(super) fn post(&mut self, work: WorkRequest) {
        self.work.push_back(work);
    }

    /// Records that all of a work request is in FPDUs.
    fn finish_work(&mut self, finished: Finished) {
        self.finished
            .push_back((self.segments.outgoing.queued(), finished));
    }

    /// Returns the number of work requests that are posted and not completed, except for Reads
    /// whose request is sent.
    pub(super) fn outstanding(&self) -> usize {
        self.work.len() + self.finished.len()
    }

    /// Returns whether the socket has taken everything that was posted.
    pub(super) fn is_idle(&self) -> bool {
        !self.has_more() && self.segments.outgoing.backlog() == 0
    }

    /// Returns how many bytes wait for the socket.
    pub(super) const fn backlog(&self) -> usize {
        self.segments.outgoing.backlog()
    }

    /// Returns how many bytes the socket has taken so far.
    pub(super) const fn transmitted_bytes(&self) -> u64 {
        self.segments.outgoing.transmitted()
    }

    /// Sets the longest FPDU to make from now on.
    pub(super) const fn set_max_fpdu(&mut self, max_fpdu: usize) {
        self.segments.max_fpdu = max_fpdu;
    }

    /// Permits sending, because the initiator has shown that it is ready.
    pub(super) const fn release(&mut self) {
        self.held = false;
    }

    /// Adds the ready-to-receive frame, the first FPDU of an initiator that agreed to send one.
    pub(super) fn ready_to_receive(&mut self, kind: Rtr, shared: &mut Shared) {
        //= EST-03
        //= EST-06
        match kind {
            Rtr::Write => self.push_empty_write(),
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

    /// Returns whether bytes were sent and none are left to send.
    pub(super) fn is_all_sent(&self) -> bool {
        self.is_idle() && self.segments.outgoing.transmitted() > 0
    }

    /// Adds an RDMA Write of length 0, which every peer accepts and no application notices.
    pub(super) fn push_empty_write(&mut self) {
        assert!(self.current.is_none(), "messages never interleave");
        let header = Tagged {
            last: true,
            rdmap_control: Opcode::RdmaWrite.control(),
            stag: 1,
            tagged_offset: 0,
        };
        self.segments.outgoing.push_ulpdu([&header.encode(), &[]]);
    }

    /// Returns whether a message is partly in FPDUs, or work waits.
    pub(super) fn has_more(&self) -> bool {
        self.current.is_some() || !self.work.is_empty()
    }

    /// Sets how many bytes may wait for the socket before no more FPDUs are made.
    #[cfg(feature = "tokio")]
    pub(super) const fn set_max_backlog(&mut self, bytes: usize) {
        self.max_backlog = bytes;
    }

    /// Makes FPDUs until `max_backlog` bytes wait for the socket.
    pub(super) fn prepare(&mut self, shared: &mut Shared) -> Result<(), Fault> {
        while !self.held && self.segments.outgoing.backlog() < self.max_backlog {
            if self.current.is_none() && !self.begin_message(shared) {
                break;
            }
            self.send_segment(shared)?;
        }
        Ok(())
    }

    /// Fills `slices` with the next bytes to write, at most `room`, and returns how many slices there
    /// are.
    pub(super) fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>], room: usize) -> usize {
        self.segments.outgoing.slices(slices, room)
    }

    /// Returns how many bytes of the next FPDU are not written yet, if the stream returns one FPDU at
    /// a time.
    pub(super) fn rest_of_fpdu(&self) -> Option<usize> {
        let outgoing = &self.segments.outgoing;
        outgoing.ends()?.rest(outgoing.transmitted())
    }

    /// Returns the length of the next record within the limits of `cut`.
    #[cfg(feature = "tokio")]
    pub(super) fn record(&self, cut: &Cut) -> Option<usize> {
        let outgoing = &self.segments.outgoing;
        let ends = outgoing.ends()?;
        ends.record(outgoing.transmitted(), cut.run, cut.room)
    }

    /// Records that the socket took `count` bytes, which finishes the work that ends with them.
    pub(super) fn transmitted(&mut self, count: usize) {
        self.segments.outgoing.advance(count);
    }

    /// Returns the completion of the oldest work that the socket has taken.
    pub(super) fn poll_finished(&mut self) -> Option<Completion> {
        //= RDMAP-15
        let transmitted = self.segments.outgoing.transmitted();
        let is_done = |(end, _): &mut (u64, Finished)| *end <= transmitted;
        let (_, mut finished) = pop_front_if(&mut self.finished, is_done)?;
        // Consecutive Sends are completed by the last of them.
        let is_sent =
            |next: &mut (u64, Finished)| is_done(next) && matches!(next.1, Finished::Sent(_));
        while let Finished::Sent(_) = finished
            && let Some((_, next)) = pop_front_if(&mut self.finished, is_sent)
        {
            finished = next;
        }
        Some(finished.completion())
    }

    /// Returns whether [`poll_finished`](Self::poll_finished) has a completion.
    pub(super) fn has_finished(&self) -> bool {
        let oldest = self.finished.front();
        oldest.is_some_and(|&(end, _)| end <= self.segments.outgoing.transmitted())
    }

    /// Begins the next message, alternately a Read Response and work.
    fn begin_message(&mut self, shared: &mut Shared) -> bool {
        let response_first = !self.responded;
        (response_first && self.begin_response(shared))
            || self.begin_work(shared)
            || self.begin_response(shared)
    }

    /// Begins the response to the oldest inbound read, if there is one.
    fn begin_response(&mut self, shared: &Shared) -> bool {
        //= RDMAP-06
        if shared.inbound_reads.is_empty() {
            return false;
        }
        self.responded = true;
        self.begin(Body::ReadResponse);
        true
    }

    /// Sends the Read Requests that are next, and begins the next Send or Write, if there is one.
    fn begin_work(&mut self, shared: &mut Shared) -> bool {
        loop {
            match self.work.front() {
                None => return false,
                Some(WorkRequest::Receive { .. }) => {
                    unreachable!("receives are not queued to be sent")
                }
                //= RDMAP-05
                Some(WorkRequest::Read { .. }) if shared.reads.len() >= self.max_outbound_reads => {
                    return false;
                }
                Some(WorkRequest::Read { .. }) => {}
                Some(WorkRequest::Send { .. } | WorkRequest::Write { .. }) => {
                    self.responded = false;
                    self.begin(Body::Work);
                    return true;
                }
            }
            if let Some(WorkRequest::Read { id, from, into }) = self.work.pop_front() {
                self.responded = false;
                let sink_stag = self.next_sink_stag;
                self.next_sink_stag = sink_stag.checked_add(1).unwrap_or(FIRST_SINK_STAG);
                self.request_read(Some(id), from, into, sink_stag, shared);
                // A Read Request is one segment, so there is no message to continue.
                if self.segments.outgoing.backlog() >= self.max_backlog {
                    return false;
                }
            }
        }
    }

    fn begin(&mut self, body: Body) {
        self.current = Some(Message { body, sent: 0 });
    }

    /// Adds a Read Request.
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
        self.segments
            .outgoing
            .push_ulpdu([&header.encode(), &request.encode()]);
        shared.reads.push_back(OutboundRead {
            id,
            buffer,
            filled: 0,
            sink_stag,
        });
    }

    /// Makes one FPDU of the current message, and finishes the message with its last FPDU.
    fn send_segment(&mut self, shared: &mut Shared) -> Result<(), Fault> {
        //= DDP-10
        //= DDP-11
        let Some(Message { body, sent }) = self.current else {
            return Ok(());
        };
        let now_sent = match body {
            Body::Work => {
                let work = self
                    .work
                    .front()
                    .expect("work stays queued until it is finished");
                self.segments.push_work(work, sent)
            }
            Body::ReadResponse => self.send_response(sent, shared)?,
        };
        self.current = now_sent.map(|sent| Message { body, sent });
        if self.current.is_some() {
            return Ok(());
        }
        match body {
            Body::Work => {
                let work = self
                    .work
                    .pop_front()
                    .expect("work stays queued until it is finished");
                self.finish_work(Finished::of(&work));
            }
            Body::ReadResponse => drop(shared.inbound_reads.pop_front()),
        }
        Ok(())
    }

    /// Makes the next FPDU of the oldest Read Response. Returns how many bytes of the response are
    /// then in FPDUs, or `None` if all are.
    fn send_response(&mut self, sent: u32, shared: &Shared) -> Result<Option<u32>, Fault> {
        let read = shared
            .inbound_reads
            .front()
            .expect("a read stays until its response is made");
        let total = read.request.read_message_size as usize;
        let (end, rest) = self.segments.cut(sent as usize, total, Tagged::LENGTH);
        let header = Tagged {
            last: rest.is_none(),
            rdmap_control: Opcode::RdmaReadResponse.control(),
            stag: read.request.sink_stag,
            tagged_offset: read
                .request
                .sink_tagged_offset
                .wrapping_add(u64::from(sent)),
        }
        .encode();
        match source_of(read, sent, (end - sent as usize) as u32, shared)? {
            Readable::Shared(data) => {
                let range = 0..data.len();
                self.segments.push(&header, &[], &data, range);
            }
            // The bytes are copied, because the peer may overwrite them before the socket takes them.
            Readable::Borrowed(data) => self.segments.outgoing.push_copied(&header, [data, &[]]),
        }
        Ok(rest)
    }

    /// Drops everything that is not in FPDUs, and adds the Terminate after the FPDUs that remain.
    pub(super) fn fail(&mut self, terminate: Option<Terminate>, shared: &mut Shared) {
        self.flush(shared);
        match terminate {
            Some(terminate) if !self.held => {
                self.segments.outgoing.push_ulpdu([&terminate.ulpdu(), &[]]);
            }
            _ => self.segments.outgoing.clear(),
        }
    }

    /// Drops all bytes that wait for the socket.
    pub(super) fn clear(&mut self) {
        self.segments.outgoing.clear();
    }

    /// Completes all outstanding work as flushed, in the order of posting within each kind.
    pub(super) fn flush(&mut self, shared: &mut Shared) {
        while let Some(completion) = self.poll_finished() {
            shared.completions.push_back(completion);
        }
        for (_, finished) in std::mem::take(&mut self.finished) {
            shared.flush(finished.id(), None);
        }
        // This work is partly in FPDUs, so it is the oldest Send or Write. The Reads in `shared` are older than
        // those in `work`.
        if let Some(Message {
            body: Body::Work, ..
        }) = self.current.take()
            && let Some(work) = self.work.pop_front()
        {
            shared.flush_work(work);
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

/// Returns the next `length` bytes of a Read Response. The right to read them is checked again for
/// each segment, because it may have ended since the request arrived.
fn source_of<'a>(
    read: &InboundRead,
    sent: u32,
    length: u32,
    shared: &'a Shared,
) -> Result<Readable<'a>, Fault> {
    let request = &read.request;
    //= RDMAP-10
    if request.read_message_size == 0 {
        return Ok(Readable::Borrowed(&[]));
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

/// Returns the header of a Read Request.
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
