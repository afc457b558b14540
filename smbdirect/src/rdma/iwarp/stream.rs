//! The byte machine of an established iWARP stream. It does no I/O and has no clock.
//!
//! ```text
//!   post(work) ──> transmit: cut into segments ──> transmit_slices / transmitted ──> socket
//!                      ^ read requests of the peer's
//!   completions <── receive: check and place <── receive_slices / received <──────── socket
//! ```
//!
//! Whoever holds it moves bytes between the slices and a socket and takes completions until there
//! are none. All checks of the peer's bytes happen on the way in, before anything is touched; the
//! first that fails ends the stream with a Terminate, and then only
//! [`transmit_slices`](Stream::transmit_slices) and [`poll_completion`](Stream::poll_completion)
//! still have something to say.

use std::io::IoSlice;

use super::{
    config::StreamConfig,
    error::StreamError,
    mpa,
    rdmap::Terminate,
    receive::Receive,
    shared::{Fault, Shared},
    transmit::Transmit,
};
use crate::rdma::{
    memory::MemoryTable,
    receive_queue::Receives,
    work::{Completion, Disconnect, Limits, ProviderError, Room, WorkRequest},
};

/// The byte machine of an established stream.
#[derive(Debug)]
pub struct Stream {
    transmit: Transmit,
    receive: Receive,
    shared: Shared,
    limits: Limits,
    initiator: bool,
    /// No more work is taken; what was posted is finished.
    closing: bool,
    /// Posted after that; completes as flushed, behind what was posted before.
    late: Vec<WorkRequest>,
    /// FIN is sent.
    finished: bool,
    /// How it ended; told behind all other completions.
    ended: Option<Disconnect>,
    /// That it ended was told.
    reported: bool,
}

/// Work that may be outstanding in each direction. There is no hardware to run full: this is to
/// bound the memory of somebody who posts and never polls.
const MAX_QUEUE: usize = 8192;

impl Stream {
    /// A stream whose next byte in either direction belongs to an FPDU.
    pub fn new(config: &StreamConfig) -> Self {
        assert!(config.max_fpdu >= mpa::max_fpdu(0), "no header fits");
        let mut shared = Shared::new();
        let mut transmit = Transmit::new(config);
        if let Some(kind) = config.ready_to_receive {
            transmit.ready_to_receive(kind, &mut shared);
        }
        Self {
            transmit,
            receive: Receive::new(config),
            shared,
            limits: Self::limits_of(config.max_outbound_reads, config.max_inbound_reads),
            initiator: config.initiator,
            closing: false,
            late: Vec::new(),
            finished: false,
            ended: None,
            reported: false,
        }
    }

    /// What a stream with these depths can do.
    pub const fn limits_of(max_outbound_reads: u32, max_inbound_reads: u32) -> Limits {
        Limits {
            max_send_queue: MAX_QUEUE,
            max_receive_queue: MAX_QUEUE,
            max_outbound_reads,
            max_inbound_reads,
            max_transfer: u32::MAX,
            send_with_invalidate: true,
        }
    }

    /// What this stream can do.
    pub const fn limits(&self) -> Limits {
        self.limits
    }

    /// How much may be posted now.
    pub fn room(&self) -> Room {
        let sends = self.transmit.outstanding() + self.shared.reads.len();
        Room {
            sends: MAX_QUEUE.saturating_sub(sends),
            receives: MAX_QUEUE.saturating_sub(self.shared.receives.len()),
        }
    }

    /// Queues `work`; [`prepare`](Self::prepare) makes the rest of what has to be sent for it.
    ///
    /// # Panics
    /// On a Read, a Write or a Send of 4 GiB or more, and on a Read where none may be posted.
    #[inline(always)]
    pub fn post(&mut self, work: WorkRequest) {
        if self.ended.is_some() || self.closing {
            return self.post_late(work);
        }
        match &work {
            &WorkRequest::Receive { id, length, count } => {
                return self.shared.receives.post(Receives { id, length, count });
            }
            WorkRequest::Read { into, .. } => {
                assert_less_than_4_gib(into.len());
                assert!(self.limits.max_outbound_reads > 0, "no Read may be posted");
                return self.transmit.post(work);
            }
            WorkRequest::Send {
                header, payload, ..
            } => assert_less_than_4_gib(header.as_slice().len() + payload.len()),
            WorkRequest::Write { data, .. } => assert_less_than_4_gib(data.len()),
        }
        if !self.transmit.begin_at_once(&work, &self.shared) {
            self.transmit.post(work);
        }
    }

    /// Takes what is posted when no more work is done.
    #[cold]
    fn post_late(&mut self, work: WorkRequest) {
        if self.ended.is_none() {
            self.late.push(work);
        } else if !self.reported {
            self.shared.flush_work(work);
        }
    }

    /// The next completion; [`Completion::Disconnected`] is the last.
    #[inline]
    pub fn poll_completion(&mut self) -> Option<Completion> {
        if self.transmit.has_finished() {
            return self.transmit.poll_finished();
        }
        if self.shared.completions.is_empty() && self.ended.is_some() {
            return self.report_end();
        }
        self.shared.completions.pop_front()
    }

    /// How it ended, once.
    #[cold]
    fn report_end(&mut self) -> Option<Completion> {
        let ended = self.ended.clone().filter(|_| !self.reported)?;
        self.reported = true;
        Some(Completion::Disconnected(ended))
    }

    /// Whether [`poll_completion`](Self::poll_completion) has one.
    pub fn has_completion(&self) -> bool {
        !self.shared.completions.is_empty()
            || self.transmit.has_finished()
            || (self.ended.is_some() && !self.reported)
    }

    /// Registered memory of this stream.
    pub const fn memory(&mut self) -> &mut MemoryTable {
        &mut self.shared.memory
    }

    /// Makes FPDUs of what was posted, as many as are worth having, and tells how many bytes
    /// now wait for the socket.
    #[inline]
    pub fn prepare(&mut self) -> usize {
        let has_more = self.transmit.has_more() || !self.shared.inbound_reads.is_empty();
        if has_more
            && self.ended.is_none()
            && let Err(fault) = self.transmit.prepare(&mut self.shared)
        {
            self.fail(fault);
        }
        self.transmit.backlog()
    }

    /// Fills `slices` with what to write next, in one go, and tells how many there are.
    pub fn transmit_slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.transmit.slices(slices)
    }

    /// Whether the socket has all that this initiator had to say, and no FPDU of the responder's
    /// has come yet.
    pub fn is_unanswered(&self) -> bool {
        self.initiator
            && !self.closing
            && self.ended.is_none()
            && !self.receive.any_fpdu()
            && self.transmit.is_all_sent()
    }

    /// Adds an RDMA Write of length 0, which changes nothing at the peer, where the stream
    /// [is unanswered](Self::is_unanswered).
    ///
    /// Linux siw overlooks a first FPDU that comes while it is still busy with its Reply, and
    /// finds it when more bytes come.
    pub fn startup_probe(&mut self) {
        //= MPA-36
        if self.is_unanswered() {
            self.transmit.write_nothing();
        }
    }

    /// The socket took the first `count` bytes of the slices.
    pub fn transmitted(&mut self, count: usize) {
        self.transmit.transmitted(count);
    }

    /// Bytes that sockets ever took.
    pub const fn transmitted_bytes(&self) -> u64 {
        self.transmit.transmitted_bytes()
    }

    /// Bytes that the peer owes as data of Reads: so many at least come from the socket before the
    /// Reads are done.
    #[cfg(feature = "tokio")]
    pub(super) fn owed_bytes(&self) -> usize {
        let reads = self.shared.reads.iter();
        let owed: usize = reads.map(|read| read.buffer.len() - read.filled).sum();
        owed.saturating_sub(self.receive.unfinished())
    }

    /// Sets the length of the FPDUs to come.
    pub fn set_max_fpdu(&mut self, max_fpdu: usize) {
        assert!(max_fpdu >= mpa::max_fpdu(0), "no header fits");
        self.transmit.set_max_fpdu(max_fpdu);
    }

    /// Where the next bytes from the socket go: as many as there are into the first slice, which
    /// may be empty, the others into the second. After the end of the stream both are empty.
    pub fn receive_slices(&mut self) -> [&mut [u8]; 2] {
        if self.ended.is_some() {
            return [&mut [], &mut []];
        }
        // Memory that was deregistered while a payload was on its way in fails here.
        if let Err(error) = self.receive.check_place(&mut self.shared) {
            self.fail(error.into());
            return [&mut [], &mut []];
        }
        self.receive.slices(&mut self.shared)
    }

    /// `count` bytes are where [`receive_slices`](Self::receive_slices) pointed.
    pub fn received(&mut self, count: usize) {
        if self.ended.is_some() {
            return;
        }
        //= MPA-22
        let received = self.receive.received(count, &mut self.shared);
        // Before a fault is told: the first FPDU lets even a Terminate pass.
        //= MPA-07
        if self.receive.any_fpdu() {
            self.transmit.release();
        }
        if let Err(fault) = received {
            self.fail(fault);
        }
    }

    /// Takes bytes that were read elsewhere.
    pub fn handle_bytes(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() && self.ended.is_none() {
            let mut count = 0;
            for slice in self.receive_slices() {
                let (now, later) = bytes.split_at(slice.len().min(bytes.len()));
                slice[..now.len()].copy_from_slice(now);
                count += now.len();
                bytes = later;
            }
            self.received(count);
        }
    }

    /// The peer will send no more: its FIN has come.
    #[cold]
    pub fn handle_end(&mut self) {
        //= MPA-34
        if !self.receive.at_boundary(&self.shared) {
            self.fail(StreamError::Truncated.into());
        } else if self.closing {
            self.end(Disconnect::Local);
        } else {
            self.end(Disconnect::Remote);
        }
    }

    /// The TCP connection failed.
    #[cold]
    pub fn handle_loss(&mut self, error: ProviderError) {
        self.fail(StreamError::Lost(error).into());
    }

    /// Takes no more work; what was posted goes on.
    pub const fn close(&mut self) {
        //= RDMAP-22
        self.closing = true;
    }

    /// FIN is sent: nothing can go wrong any more, and what the peer still says is taken or left.
    pub const fn finish(&mut self) {
        self.finished = true;
    }

    /// Whether all work is finished in both directions, so that FIN may be sent.
    pub fn is_drained(&self) -> bool {
        //= RDMAP-23
        self.transmit.is_idle()
            && self.shared.reads.is_empty()
            && self.shared.inbound_reads.is_empty()
    }

    /// Ends the stream, if it has not ended: all outstanding work completes as flushed.
    pub fn end(&mut self, how: Disconnect) {
        if self.ended.is_some() {
            return;
        }
        self.flush();
        self.transmit.clear();
        self.ended = Some(how);
    }

    /// Whether the stream is over.
    pub const fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Whether the stream is over because something went wrong.
    pub const fn is_broken(&self) -> bool {
        matches!(self.ended, Some(Disconnect::Broken(_)))
    }

    /// Forgets what could still be written; after an error that is the Terminate.
    pub fn give_up_transmitting(&mut self) {
        self.transmit.clear();
    }

    #[cold]
    fn fail(&mut self, fault: Fault) {
        if self.ended.is_some() {
            return;
        }
        if self.finished {
            return self.end(Disconnect::Local);
        }
        let Fault { error, segment } = fault;
        let terminate = error.terminate_code().map(|code| {
            let segment = segment.filter(|_| StreamError::shows_headers(code));
            let segment = segment
                .as_ref()
                .map(|(length, ulpdu)| (*length, &ulpdu[..]));
            Terminate::new(code, segment)
        });
        //= RDMAP-18
        self.transmit.fail(terminate, &mut self.shared);
        self.flush();
        self.ended = Some(Disconnect::Broken(error.into()));
    }

    fn flush(&mut self) {
        //= RDMAP-21
        self.transmit.flush(&mut self.shared);
        while let Some(id) = self.shared.receives.pop() {
            self.shared.flush(id, None);
        }
        self.shared.inbound_reads.clear();
        for work in std::mem::take(&mut self.late) {
            self.shared.flush_work(work);
        }
    }
}

fn assert_less_than_4_gib(length: usize) {
    //= RDMAP-24
    assert!(
        u32::try_from(length).is_ok(),
        "RDMAP messages have less than 4 GiB"
    );
}
