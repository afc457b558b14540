//! The state machine of an established iWARP stream. It does no I/O and has no clock.
//!
//! ```text
//!   post(work) ──> transmit: cut into segments ──> transmit_slices / transmitted ──> socket
//!                      ^ read requests of the peer
//!   completions <── receive: check and place <── receive_slices / received <──────── socket
//! ```
//!
//! The caller moves bytes between the slices and a socket, and polls completions until there are
//! none. The bytes of the peer are checked as they arrive, before they have any effect. The first
//! check that fails ends the stream with a Terminate, and then only
//! [`transmit_slices`](Stream::transmit_slices) and [`poll_completion`](Stream::poll_completion)
//! still return something.

use std::{fmt, io::IoSlice};

#[cfg(feature = "tokio")]
use super::alignment::Cut;
use super::{
    config::StreamConfig,
    error::StreamError,
    mpa,
    rdmap::{Terminate, TerminateCode},
    receive::Receive,
    shared::{Fault, Shared},
    transmit::Transmit,
};
use crate::{
    memory::MemoryTable,
    software::receive_queue::Receives,
    work::{Completion, Disconnect, Limits, ProviderError, Room, WorkRequest},
};

/// The state machine of an established stream, which does no I/O and has no clock.
pub struct Stream {
    transmit: Transmit,
    receive: Receive,
    shared: Shared,
    limits: Limits,
    initiator: bool,
    /// Whether the stream takes no more work and finishes what was posted.
    closing: bool,
    /// The work posted while closing, which completes as flushed after earlier work.
    late: Vec<WorkRequest>,
    /// Whether FIN is sent.
    finished: bool,
    /// Memory for the bytes that arrive after an error of the peer, if FIN was sent before the error. They are
    /// not examined.
    discarded: Option<Box<[u8; DISCARD_BYTES]>>,
    /// How the stream ended, which is reported after all other completions.
    ended: Option<Disconnect>,
    /// Whether the end was reported.
    reported: bool,
}

/// Shows the state of the stream, and not the bytes of messages.
impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("room", &self.room())
            .field("closing", &self.closing)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}

/// The most bytes that one read discards.
const DISCARD_BYTES: usize = 4096;

/// The most work requests that may be outstanding in each direction. It bounds the memory of a
/// caller that posts and never polls.
const MAX_QUEUE_ENTRIES: usize = 8192;

impl Stream {
    /// Creates a stream whose next byte in either direction belongs to an FPDU.
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
            discarded: None,
            ended: None,
            reported: false,
        }
    }

    /// Returns the limits of a stream with these read depths.
    pub const fn limits_of(max_outbound_reads: u32, max_inbound_reads: u32) -> Limits {
        Limits {
            max_send_queue: MAX_QUEUE_ENTRIES,
            max_receive_queue: MAX_QUEUE_ENTRIES,
            max_outbound_reads,
            max_inbound_reads,
            max_transfer: u32::MAX,
            send_with_invalidate: true,
            packet_bytes: None,
        }
    }

    /// Returns the limits of this stream.
    pub const fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns how much work may be posted now.
    pub fn room(&self) -> Room {
        let sends = self.transmit.outstanding() + self.shared.reads.len();
        Room {
            sends: MAX_QUEUE_ENTRIES.saturating_sub(sends),
            receives: MAX_QUEUE_ENTRIES.saturating_sub(self.shared.receives.len()),
        }
    }

    /// Queues `work`. A later [`prepare`](Self::prepare) makes its FPDUs if this call does not.
    ///
    /// # Panics
    /// Panics on a Read, a Write or a Send of 4 GiB or more, and on a Read if `max_outbound_reads`
    /// is 0.
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
        if !self.transmit.try_begin(&work, &self.shared) {
            self.transmit.post(work);
        }
    }

    /// Takes work that is posted after the stream was closed or has ended.
    #[cold]
    fn post_late(&mut self, work: WorkRequest) {
        if self.ended.is_none() {
            self.late.push(work);
        } else if !self.reported {
            self.shared.flush_work(work);
        }
    }

    /// Returns the next completion. [`Completion::Disconnected`] is the last.
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

    /// Returns the completion that reports the end, if it was not returned before.
    #[cold]
    fn report_end(&mut self) -> Option<Completion> {
        let ended = self.ended.clone().filter(|_| !self.reported)?;
        self.reported = true;
        Some(Completion::Disconnected(ended))
    }

    /// Returns whether [`poll_completion`](Self::poll_completion) has a completion.
    pub fn has_completion(&self) -> bool {
        !self.shared.completions.is_empty()
            || self.transmit.has_finished()
            || (self.ended.is_some() && !self.reported)
    }

    /// Returns the registered memory of this stream.
    pub const fn memory(&mut self) -> &mut MemoryTable {
        &mut self.shared.memory
    }

    /// Makes FPDUs of posted work, up to a limit on the bytes that wait, and returns how many bytes
    /// wait for the socket.
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

    /// Sets how many bytes may wait for the socket before no more FPDUs are made.
    #[cfg(feature = "tokio")]
    pub(super) const fn set_max_backlog(&mut self, bytes: usize) {
        self.transmit.set_max_backlog(bytes);
    }

    /// Returns whether bytes wait for the socket, or [`prepare`](Self::prepare) may make some.
    #[cfg(feature = "tokio")]
    pub(super) fn has_output(&self) -> bool {
        self.transmit.backlog() > 0
            || self.transmit.has_more()
            || !self.shared.inbound_reads.is_empty()
    }

    /// Fills `slices` with the next bytes to write and returns how many slices there are.
    pub fn transmit_slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let room = self.transmit.rest_of_fpdu().unwrap_or(usize::MAX);
        self.transmit.slices(slices, room)
    }

    /// Returns how many bytes of the next FPDU are not written yet, if the stream returns one FPDU at
    /// a time.
    #[cfg(feature = "tokio")]
    pub(super) fn rest_of_fpdu(&self) -> Option<usize> {
        self.transmit.rest_of_fpdu()
    }

    /// Returns the length of the next record within the limits of `cut`, or `None` if no record may be
    /// written.
    #[cfg(feature = "tokio")]
    pub(super) fn record(&self, cut: &Cut) -> Option<usize> {
        self.transmit.record(cut)
    }

    /// Fills `slices` with the next `length` bytes to write and returns how many slices there are.
    #[cfg(feature = "tokio")]
    pub(super) fn record_slices<'a>(&'a self, slices: &mut [IoSlice<'a>], length: usize) -> usize {
        self.transmit.slices(slices, length)
    }

    /// Returns how many bytes of memory the readers of messages keep in use.
    #[cfg(feature = "tokio")]
    pub(super) fn lent_bytes(&self) -> usize {
        self.receive.lent_bytes()
    }

    /// Returns whether this end is an initiator whose bytes are all sent, and no FPDU of the
    /// responder has arrived yet.
    pub fn is_unanswered(&self) -> bool {
        self.initiator
            && !self.closing
            && self.ended.is_none()
            && !self.receive.any_fpdu()
            && self.transmit.is_all_sent()
    }

    /// Adds an RDMA Write of length 0, which has no effect at the peer, if the stream
    /// [is unanswered](Self::is_unanswered).
    ///
    /// Linux siw overlooks a first FPDU that arrives while it still processes its Reply, and finds
    /// it when more bytes arrive.
    pub fn startup_probe(&mut self) {
        //= MPA-36
        if self.is_unanswered() {
            self.transmit.push_empty_write();
        }
    }

    /// Records that the socket took the first `count` bytes of the slices.
    pub fn transmitted(&mut self, count: usize) {
        self.transmit.transmitted(count);
    }

    /// Returns how many bytes the socket has taken so far.
    pub const fn transmitted_bytes(&self) -> u64 {
        self.transmit.transmitted_bytes()
    }

    /// Returns how many bytes of Read data the peer owes. At least this many arrive from the socket before the
    /// Reads are done.
    #[cfg(feature = "tokio")]
    pub(super) fn owed_bytes(&self) -> usize {
        let reads = self.shared.reads.iter();
        let owed: usize = reads.map(|read| read.buffer.len() - read.filled).sum();
        owed.saturating_sub(self.receive.unfinished())
    }

    /// Sets the longest FPDU to make from now on.
    pub fn set_max_fpdu(&mut self, max_fpdu: usize) {
        assert!(max_fpdu >= mpa::max_fpdu(0), "no header fits");
        self.transmit.set_max_fpdu(max_fpdu);
    }

    /// Returns where the next bytes from the socket go: first the first slice, which may be empty,
    /// then the second. After the end of the stream both are empty.
    pub fn receive_slices(&mut self) -> [&mut [u8]; 2] {
        if self.ended.is_some() {
            return [&mut [], &mut []];
        }
        // This fails if the memory was deregistered while a payload for it was arriving.
        if self.discarded.is_none()
            && let Err(error) = self.receive.check_placement(&mut self.shared)
        {
            self.fail(error.into());
            if self.ended.is_some() {
                return [&mut [], &mut []];
            }
        }
        match &mut self.discarded {
            None => self.receive.slices(&mut self.shared),
            Some(discarded) => [&mut discarded[..], &mut []],
        }
    }

    /// Processes `count` bytes that were read into the [`receive_slices`](Self::receive_slices).
    pub fn received(&mut self, count: usize) {
        if self.ended.is_some() || self.discarded.is_some() {
            return;
        }
        //= MPA-22
        let received = self.receive.received(count, &mut self.shared);
        // This precedes the handling of a fault, because a responder may send nothing before the first FPDU has
        // arrived, not even a Terminate.
        //= MPA-07
        if self.receive.any_fpdu() {
            self.transmit.release();
        }
        if let Err(fault) = received {
            self.fail(fault);
        }
    }

    /// Processes bytes that the caller has in memory of its own.
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

    /// Handles the FIN of the peer.
    #[cold]
    pub fn handle_end(&mut self) {
        //= MPA-34
        if self.finished {
            self.end(Disconnect::Local);
        } else if !self.receive.at_boundary(&self.shared) {
            self.fail(StreamError::Truncated.into());
        } else if self.closing {
            self.end(Disconnect::Local);
        } else {
            self.end(Disconnect::Remote);
        }
    }

    /// Handles the loss of the transport, with the error of the socket.
    #[cold]
    pub fn handle_loss(&mut self, error: impl Into<ProviderError>) {
        if self.finished {
            return self.end(Disconnect::Local);
        }
        self.fail(StreamError::Lost(error.into()).into());
    }

    /// Closes the stream for new work. Posted work continues.
    pub const fn close(&mut self) {
        //= RDMAP-22
        self.closing = true;
    }

    /// Records that FIN is sent. From now on no error of the peer breaks the stream: the bytes that the peer
    /// sends after an error are discarded until its FIN, because a socket that is closed earlier resets the
    /// connection, and the peer would not learn of the orderly end.
    pub const fn finish(&mut self) {
        self.finished = true;
    }

    /// Returns whether all work is finished in both directions, so that FIN may be sent.
    pub fn is_drained(&self) -> bool {
        //= RDMAP-23
        self.transmit.is_idle()
            && self.shared.reads.is_empty()
            && self.shared.inbound_reads.is_empty()
    }

    /// Ends the stream, unless it has ended already. All outstanding work completes as flushed.
    pub fn end(&mut self, how: Disconnect) {
        if self.ended.is_some() {
            return;
        }
        self.flush();
        self.transmit.clear();
        self.ended = Some(how);
    }

    /// Ends the stream, unless it has ended already, with a Terminate after what was transmitted.
    pub fn terminate(&mut self) {
        if self.ended.is_none() && !self.finished {
            let terminate = Terminate::new(TerminateCode::LOCAL_CATASTROPHIC, None);
            self.transmit.fail(Some(terminate), &mut self.shared);
            self.flush();
            self.ended = Some(Disconnect::Local);
        }
    }

    /// Returns whether the stream has ended.
    pub const fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Returns whether the stream has ended because of an error.
    pub const fn is_broken(&self) -> bool {
        matches!(self.ended, Some(Disconnect::Broken(_)))
    }

    /// Drops the bytes that wait for the socket. After an error they include the Terminate.
    pub fn give_up_transmitting(&mut self) {
        self.transmit.clear();
    }

    /// Breaks the stream, with a Terminate if the error has one.
    #[cold]
    fn fail(&mut self, fault: Fault) {
        if self.ended.is_some() {
            return;
        }
        if self.finished {
            self.discarded = Some(Box::new([0; DISCARD_BYTES]));
            return;
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

    /// Completes all outstanding work as flushed.
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

/// Panics if a message has 4 GiB or more.
fn assert_less_than_4_gib(length: usize) {
    //= RDMAP-24
    assert!(
        u32::try_from(length).is_ok(),
        "RDMAP messages have less than 4 GiB"
    );
}
