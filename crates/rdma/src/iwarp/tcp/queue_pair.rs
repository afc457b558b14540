//! The queue pair: one end of a connection, driven by the polls of its owner.

use std::{
    fmt,
    future::Future,
    io, mem,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::Interest,
    runtime::Handle,
    time::{self, Sleep, sleep},
};
use tracing::{Span, debug};

use super::{
    close_timer::{self, CloseTimer},
    config::IwarpConfig,
    socket::Socket,
    wait::{in_runtime, ready},
    window_wait::WindowWait,
};
use crate::{
    iwarp::{
        alignment::{Alignment, Cut, FpduAlignment},
        config::StreamConfig,
        low_water::{self, LowWater},
        mpa,
        startup::Agreement,
        stream::Stream,
    },
    memory::{DeregisterError, RegisterError, Registration},
    provider::{Connected, QueuePair, Usage},
    software::os_error::os_error,
    work::{Access, Completion, Disconnect, ProviderError, Room, Teardown, Token, WorkRequest},
};

/// One end of a connection.
pub(super) struct IwarpQueuePair {
    machine: Stream,
    /// The socket; `None` once nothing can be sent or received any more.
    socket: Option<Socket>,
    /// The most bytes that wait for the socket, unless the owner limits a call to fewer.
    max_backlog: usize,
    /// Aligns FPDUs with TCP segments; `None` if they are not aligned.
    alignment: Option<Alignment>,
    /// The wait until the peer has room for the next record.
    window_wait: Option<WindowWait>,
    /// Whether the FPDU length is adjusted when the size of TCP segments (MSS) changes.
    follow_mss: bool,
    /// The total number of sent bytes at which the MSS is read again.
    next_mss_check: u64,
    /// The total number of sent bytes at which nothing more is sent before the next flush.
    until: u64,
    /// Whether the last call has left work that no event of the socket announces.
    is_unfinished: bool,
    /// Whether the next read is made without asking the runtime if the socket is ready.
    skip_readiness_check: bool,
    /// The number of bytes read so far.
    received: u64,
    /// Chooses how many bytes the socket collects before it wakes this end.
    low_water: LowWater,
    /// Bounds a sleep while the low-water mark is above one byte.
    low_water_timer: Option<Pin<Box<Sleep>>>,
    /// How long to wait for an answer before each of the remaining startup probes.
    probe_delays: &'static [Duration],
    /// The timer of the next startup probe.
    probe_timer: Option<Pin<Box<Sleep>>>,
    /// The error of the last write. After that error the queue pair only reads, because the last bytes of the
    /// peer may still be in the receive buffer of the socket.
    broken_pipe: Option<ProviderError>,
    closing: Closing,
    close_timer: CloseTimer,
    /// The runtime that has the socket and the timers.
    runtime: Handle,
    /// The tracing span of every log line.
    span: Span,
}

/// The progress of a disconnect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    /// No disconnect was asked for.
    No,
    /// Posted work is being finished.
    Draining,
    /// FIN is sent, and the peer's FIN has not arrived.
    Finished,
    /// The stream broke, and a Terminate is sent.
    Terminated,
}

/// The bytes that are sent between two reads of the MSS. It is not more than the backlog of a
/// stream. Where FPDUs are aligned, the MSS is read before each round of writes instead.
const MSS_CHECK_INTERVAL_BYTES: u64 = 256 * 1024;
/// How long to wait for an answer to the first FPDU before each startup probe. A healthy peer
/// answers sooner, and a Linux server gives up after 5 seconds.
const STARTUP_PROBE_DELAYS: [Duration; 3] = [
    Duration::from_millis(50),
    Duration::from_millis(150),
    Duration::from_millis(800),
];
/// The most writes in one call, so that other tasks can run.
const MAX_WRITES_PER_CALL: usize = 16;
/// The most records that one call writes.
const MAX_RECORDS_PER_CALL: usize = 256;
/// The bytes after which a call writes no more records.
const MAX_RECORD_BYTES_PER_CALL: u64 = 4 * 1024 * 1024;
/// The most reads in one poll that yield no completion. One read can return ten thousand of the
/// smallest FPDUs.
const MAX_READS_PER_POLL: usize = 4;
/// The bytes after which a poll that yields no completion reads no more.
const MAX_READ_BYTES_PER_POLL: u64 = 96 * 1024;

impl IwarpQueuePair {
    /// Creates the connection that `socket` carries after the startup.
    pub(super) fn connected(
        socket: Socket,
        config: &IwarpConfig,
        initiator: bool,
        agreement: &Agreement,
        receive: WorkRequest,
        private_data: Bytes,
    ) -> Connected {
        let (local_addr, peer_addr) = (socket.local, socket.remote);
        //= MPA-35
        let tuning = &config.tuning;
        let may_require_alignment = agreement.crc && !agreement.peer_is_smbdirect;
        let alignment = match tuning.fpdu_alignment {
            FpduAlignment::Auto if may_require_alignment => Some(Alignment::new(true)),
            FpduAlignment::Auto | FpduAlignment::Off => None,
            FpduAlignment::Single => Some(Alignment::new(false)),
            FpduAlignment::Runs => Some(Alignment::new(true)),
        };
        let is_aligned = alignment.is_some();
        //= MPA-27
        let fixed = match tuning.max_fpdu {
            _ if is_aligned => None,
            None if agreement.peer_is_smbdirect => Some(u32::MAX),
            chosen => chosen,
        };
        let max_backlog = socket.max_backlog();
        let mut machine = Stream::new(&StreamConfig {
            initiator,
            crc: agreement.crc,
            max_fpdu: fixed.map_or_else(|| socket.max_fpdu(), mpa::max_fpdu),
            one_fpdu_a_write: is_aligned,
            max_backlog,
            max_outbound_reads: agreement.ord,
            max_inbound_reads: agreement.ird,
            ready_to_receive: agreement.ready_to_receive,
        });
        machine.post(receive);
        debug!(
            %local_addr, %peer_addr, crc = agreement.crc, ird = agreement.ird,
            ord = agreement.ord, "iWARP connection"
        );
        let queue_pair = Self {
            machine,
            socket: Some(socket),
            max_backlog,
            alignment,
            window_wait: None,
            follow_mss: fixed.is_none(),
            next_mss_check: 0,
            until: u64::MAX,
            is_unfinished: false,
            skip_readiness_check: false,
            received: 0,
            low_water: LowWater::new(),
            low_water_timer: None,
            probe_delays: if tuning.startup_probe && initiator && !agreement.peer_is_smbdirect {
                &STARTUP_PROBE_DELAYS
            } else {
                &[]
            },
            probe_timer: None,
            broken_pipe: None,
            closing: Closing::No,
            close_timer: CloseTimer::new(config.close_timeout),
            runtime: Handle::current(),
            span: Span::current(),
        };
        Connected {
            limits: queue_pair.machine.limits(),
            is_zero_copy: false,
            poll_window: tuning.poll_window,
            queue_pair: Box::new(queue_pair),
            peer_addr,
            local_addr,
            private_data,
        }
    }

    /// Writes the bytes that the stream has to send, until the socket is full or the limit of one call is
    /// reached.
    fn write(&mut self, context: &mut Context<'_>) {
        // Nothing follows FIN, although the peer may still send Read Requests.
        if self.closing == Closing::Finished {
            return;
        }
        if self.alignment.is_some() {
            return self.write_records(context);
        }
        if let (true, Some(socket)) = (self.follow_mss, &self.socket)
            && self.machine.transmitted_bytes() >= self.next_mss_check
        {
            self.next_mss_check = self.machine.transmitted_bytes() + MSS_CHECK_INTERVAL_BYTES;
            self.machine.set_max_fpdu(socket.max_fpdu());
        }
        for _ in 0..MAX_WRITES_PER_CALL {
            if self.machine.transmitted_bytes() >= self.until {
                break;
            }
            if self.machine.prepare() == 0 || self.machine.has_ended() {
                return;
            }
            let (Some(socket), None) = (&self.socket, &self.broken_pipe) else {
                return;
            };
            if !ready(&socket.stream, Interest::WRITABLE, context) {
                return;
            }
            match socket.write_from(&self.machine) {
                Ok(count) => self.machine.transmitted(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => self.break_pipe(&error),
            }
        }
        self.is_unfinished |= self.machine.has_output();
    }

    /// Records the error of a write. The next poll reads what the peer has sent before.
    #[cold]
    fn break_pipe(&mut self, error: &io::Error) {
        self.broken_pipe = Some(os_error("sending", error));
        self.is_unfinished = true;
    }

    /// Writes records of whole FPDUs, until the socket is full, the peer has no room for the next
    /// record, or the limit of one call is reached.
    fn write_records(&mut self, context: &mut Context<'_>) {
        let last = self.machine.transmitted_bytes() + MAX_RECORD_BYTES_PER_CALL;
        let last = last.min(self.until);
        let mut known: Option<Cut> = None;
        for _ in 0..MAX_RECORDS_PER_CALL {
            let sent = self.machine.transmitted_bytes();
            if sent >= last {
                break;
            }
            let (Some(alignment), Some(socket), None, true) = (
                &mut self.alignment,
                &self.socket,
                &self.broken_pipe,
                self.machine.has_output() && !self.machine.has_ended(),
            ) else {
                return;
            };
            let mut read = || alignment.cut(socket.tcp_state(), sent, Instant::now);
            let is_new = known.is_none();
            let mut cut = *known.get_or_insert_with(&mut read);
            self.machine.set_max_fpdu(cut.max_fpdu);
            if self.machine.prepare() == 0 || self.machine.has_ended() {
                return;
            }
            let mut record = self.machine.record(&cut);
            if record.is_none() && !is_new {
                // The peer may have made room since the last report.
                cut = *known.insert(read());
                record = self.machine.record(&cut);
            }
            let Some(length) = record.or_else(|| self.record_without_room(&cut)) else {
                return self.wait_for_window(context);
            };
            let Some(socket) = &self.socket else { return };
            if !ready(&socket.stream, Interest::WRITABLE, context) {
                return;
            }
            match socket.write_record(&self.machine, length) {
                Ok(count) => {
                    self.machine.transmitted(count);
                    cut.room = cut.room.saturating_sub(count);
                    known = Some(cut);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => self.break_pipe(&error),
            }
            self.end_window_wait();
        }
        self.is_unfinished |= self.machine.has_output();
    }

    /// Returns whether bytes wait for the socket. If FPDUs are aligned, this includes FPDUs that are made only
    /// when the size of a segment is known.
    fn has_output(&mut self) -> bool {
        match self.alignment {
            Some(_) => self.machine.has_output(),
            None => self.machine.prepare() > 0,
        }
    }

    /// Returns the length of the next FPDU if waiting for room is useless: if the peer never offered a window
    /// that is large enough, or has offered a smaller one for too long. TCP then cuts the FPDU.
    #[cold]
    fn record_without_room(&mut self, cut: &Cut) -> Option<usize> {
        let length = self.machine.rest_of_fpdu()?;
        let alignment = self.alignment.as_mut()?;
        let wait = self.window_wait.as_ref();
        if cut.room > 0 && wait.is_some_and(WindowWait::is_overdue) {
            alignment.accept_small_windows(cut.room);
        }
        alignment.exceeds_windows(length).then_some(length)
    }

    /// Wakes the context when the peer may have room for the next record.
    #[cold]
    fn wait_for_window(&mut self, context: &mut Context<'_>) {
        if let Some(socket) = &self.socket {
            let wait = self
                .window_wait
                .get_or_insert_with(|| in_runtime(&self.runtime, WindowWait::new));
            wait.poll(socket, context);
        }
    }

    /// Ends the wait for the window, if there is one.
    fn end_window_wait(&mut self) {
        if let (Some(socket), Some(wait)) = (&self.socket, self.window_wait.take()) {
            wait.end(socket);
        }
    }

    /// Returns whether a startup probe remains and the peer has not answered the first FPDU.
    fn awaits_first_fpdu(&self) -> bool {
        !self.probe_delays.is_empty() && self.machine.is_unanswered()
    }

    /// Sends the startup probes that are due, so that a peer which overlooked the first FPDU finds
    /// it.
    #[cold]
    fn startup_probe(&mut self, context: &mut Context<'_>) {
        while let [after, later @ ..] = self.probe_delays
            && self.machine.is_unanswered()
        {
            let timer = self
                .probe_timer
                .get_or_insert_with(|| in_runtime(&self.runtime, || Box::pin(sleep(*after))));
            if timer.as_mut().poll(context).is_pending() {
                return;
            }
            self.span
                .in_scope(|| debug!("the peer is silent, and gets an RDMA Write of length 0"));
            (self.probe_delays, self.probe_timer) = (later, None);
            self.machine.startup_probe();
            self.write(context);
        }
    }

    /// Reads once, if the socket is ready or `skip_readiness_check` is set. Returns whether the caller
    /// should call this again before it returns `Pending`, as [`read_now`](Self::read_now) does.
    fn read(&mut self, context: &mut Context<'_>, skip_readiness_check: bool) -> bool {
        let Some(socket) = &self.socket else {
            return false;
        };
        if !skip_readiness_check && !ready(&socket.stream, Interest::READABLE, context) {
            return false;
        }
        self.read_now(skip_readiness_check)
    }

    /// Reads once without waiting for readiness. Returns false if there was nothing to read. If the
    /// socket was reported ready and had no bytes, returns true, so that the caller checks the
    /// readiness again and registers its waker.
    fn read_now(&mut self, skip_readiness_check: bool) -> bool {
        let Some(socket) = &self.socket else {
            return false;
        };
        let slices = self.machine.receive_slices();
        if slices.iter().all(|slice| slice.is_empty()) {
            return false;
        }
        match socket.read(slices, skip_readiness_check) {
            Ok(0) => self.end_of_file(),
            Ok(count) => {
                self.machine.received(count);
                self.received += count as u64;
            }
            // This call gives back the memory of the receive slices.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.machine.received(0);
                // The readiness was cleared, so the caller has to check it again.
                return !skip_readiness_check;
            }
            Err(error) => self.machine.handle_loss(os_error("receiving", &error)),
        }
        true
    }

    /// Sets how many bytes must arrive before the socket wakes this end.
    fn update_low_water(&mut self, context: &mut Context<'_>) {
        let before = self.low_water.mark();
        let owed = self.machine.owed_bytes();
        let arrived = self.low_water.record_sleep(self.received, owed);
        let after = self.low_water.mark();
        if before == 1 && after == 1 {
            return;
        }
        let timer = self.low_water_timer.get_or_insert_with(|| {
            in_runtime(&self.runtime, || Box::pin(sleep(low_water::MAX_SLEEP)))
        });
        if arrived || before == 1 {
            timer
                .as_mut()
                .reset(time::Instant::now() + low_water::MAX_SLEEP);
        }
        if timer.as_mut().poll(context).is_ready() {
            self.low_water.give_up();
        }
        let mark = self.low_water.mark();
        if let Some(socket) = &self.socket
            && mark != before
        {
            socket.set_low_water(mark);
        }
    }

    /// Handles the end of file of a read.
    #[cold]
    fn end_of_file(&mut self) {
        // If a write has failed with a reset, later reads report an end of file.
        match self.broken_pipe.take() {
            Some(error) => self.machine.handle_loss(error),
            None => self.machine.handle_end(),
        }
    }

    /// Sends the Terminate of a stream that has ended, if there is one, and closes the socket.
    ///
    /// A socket that sent a Terminate stays open until the queue pair is dropped, because TCP
    /// discards sent data if it is closed with bytes unread.
    fn close_if_ended(&mut self) {
        if self.machine.has_ended() {
            self.close_ended();
        }
    }

    /// Does the work of [`close_if_ended`](Self::close_if_ended).
    #[cold]
    fn close_ended(&mut self) {
        let Some(socket) = &self.socket else { return };
        if self.machine.prepare() == 0 {
            if self.closing != Closing::Terminated {
                if self.machine.is_broken() {
                    socket.reset();
                }
                self.socket = None;
            }
            return;
        }
        while self.machine.prepare() > 0 {
            // The Terminate does not wait for room.
            let written = match self.machine.rest_of_fpdu() {
                Some(length) => socket.write_record(&self.machine, length),
                None => socket.write_from(&self.machine),
            };
            match written {
                Ok(count) => self.machine.transmitted(count),
                Err(_) => {
                    // Without the Terminate, FIN would look like a graceful end.
                    self.machine.give_up_transmitting();
                    socket.reset();
                    self.socket = None;
                    return;
                }
            }
        }
        socket.shut_down();
        self.closing = Closing::Terminated;
    }

    /// Takes the next step of a graceful disconnect. `all_read` is false if there may be more to read.
    #[cold]
    fn close(&mut self, context: &mut Context<'_>, all_read: bool) {
        if self.closing == Closing::Draining && self.machine.is_drained() {
            //= RDMAP-22
            if let Some(socket) = &self.socket {
                socket.shut_down();
            }
            self.machine.finish();
            self.closing = Closing::Finished;
        }
        if matches!(self.closing, Closing::Draining | Closing::Finished) {
            let _runtime = self.runtime.enter();
            let (machine, socket, received) = (&self.machine, &self.socket, self.received);
            // After FIN, arriving bytes are discarded and do not count as progress.
            let received = if self.closing == Closing::Draining {
                received
            } else {
                0
            };
            let moved = || {
                let acknowledged = socket.as_ref().map_or(0, Socket::acknowledged_bytes);
                machine.transmitted_bytes() + acknowledged + received
            };
            if self.close_timer.poll(context, all_read, moved) {
                let how = if socket.as_ref().is_none_or(Socket::is_all_acknowledged) {
                    Disconnect::Local
                } else {
                    Disconnect::Broken(close_timer::not_taken())
                };
                self.machine.end(how);
                // The system still delivers the bytes that it has accepted.
                self.socket = None;
            }
        }
    }
}

impl QueuePair for IwarpQueuePair {
    fn room(&self) -> Room {
        self.machine.room()
    }

    fn post(&mut self, work: WorkRequest) {
        self.machine.post(work);
    }

    fn flush(&mut self, context: &mut Context<'_>, until: u64) {
        if until != self.until {
            self.until = until;
            let limit = until.saturating_sub(self.machine.transmitted_bytes());
            let backlog = limit.clamp(1, self.max_backlog as u64);
            self.machine.set_max_backlog(backlog as usize);
        }
        self.write(context);
        if self.awaits_first_fpdu() {
            self.startup_probe(context);
        }
        self.close_if_ended();
    }

    fn usage(&self) -> Usage {
        Usage {
            sent: self.machine.transmitted_bytes(),
            received: self.received,
            lent: self.machine.lent_bytes(),
        }
    }

    fn poll_completion(&mut self, context: &mut Context<'_>) -> Poll<Completion> {
        let (mut reads, before) = (0, self.received);
        // The flag applies to this poll only, because the next caller may be one that sleeps.
        let mut skip_readiness_check = mem::take(&mut self.skip_readiness_check);
        loop {
            self.close_if_ended();
            if self.machine.has_completion() {
                // In this form the completion is moved only once, directly to the caller.
                return match self.machine.poll_completion() {
                    Some(completion) => Poll::Ready(completion),
                    None => Poll::Pending,
                };
            }
            // The bytes that the last call did not read remain unread until this call reads them.
            let was_unfinished = mem::take(&mut self.is_unfinished);
            if self.machine.has_ended() {
                return Poll::Pending;
            }
            self.write(context);
            if self.machine.has_completion() {
                self.is_unfinished |= was_unfinished;
                continue;
            }
            if reads == MAX_READS_PER_POLL || self.received - before >= MAX_READ_BYTES_PER_POLL {
                if self.closing != Closing::No {
                    self.close(context, false);
                }
                self.is_unfinished = true;
                return Poll::Pending;
            }
            let skip_readiness_check = mem::take(&mut skip_readiness_check);
            if self.read(context, skip_readiness_check) {
                reads += 1;
                // There may be more, and no waker is registered.
                self.is_unfinished = true;
                continue;
            }
            if skip_readiness_check && self.broken_pipe.is_none() && self.closing == Closing::No {
                // The caller busy-polls, so no waker is registered here. If the last poll registered none either,
                // `is_unfinished` stays set, so that the owner polls again before it sleeps.
                self.is_unfinished |= was_unfinished;
                return Poll::Pending;
            }
            if let Some(error) = self.broken_pipe.take() {
                self.machine.handle_loss(error);
            }
            if self.awaits_first_fpdu() {
                self.startup_probe(context);
            }
            if self.closing != Closing::No {
                self.close(context, true);
            }
            if !self.machine.has_ended() {
                self.update_low_water(context);
                return Poll::Pending;
            }
        }
    }

    fn needs_poll(&self) -> bool {
        self.is_unfinished || self.machine.has_completion()
    }

    fn busy_poll(&mut self) -> bool {
        let quiet = !self.machine.has_completion()
            && !self.machine.has_ended()
            && self.closing == Closing::No
            && self.broken_pipe.is_none()
            && !self.has_output();
        // Usually there is nothing to read, and one read is enough to detect that.
        self.skip_readiness_check = !quiet || self.read_now(true);
        self.skip_readiness_check
    }

    fn change_runtime(&mut self) -> bool {
        self.end_window_wait();
        (self.probe_timer, self.low_water_timer) = (None, None);
        self.close_timer.stop();
        self.runtime = Handle::current();
        if let Some(socket) = self.socket.take() {
            self.socket = socket.change_runtime().ok();
            return self.socket.is_some();
        }
        true
    }

    fn disconnect(&mut self, how: Teardown) {
        match how {
            Teardown::Graceful if self.closing == Closing::No => {
                self.machine.close();
                self.closing = Closing::Draining;
                self.is_unfinished = true;
            }
            Teardown::Graceful => {}
            Teardown::Abort => {
                if let Some(socket) = &self.socket
                    && !self.machine.has_ended()
                {
                    socket.reset();
                }
                self.machine.end(Disconnect::Local);
            }
            Teardown::Terminate => {
                self.machine.terminate();
                self.close_if_ended();
            }
        }
    }

    fn register(
        &mut self,
        buffer: BytesMut,
        access: Access,
    ) -> Result<Registration, RegisterError> {
        self.machine.memory().register(buffer, access)
    }

    fn deregister(&mut self, token: Token) -> Result<BytesMut, DeregisterError> {
        self.machine.memory().deregister(token)
    }
}

/// Dropping a queue pair without a disconnect aborts the connection.
impl Drop for IwarpQueuePair {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket
            && self.closing == Closing::No
            && !self.machine.has_ended()
        {
            socket.reset();
        }
    }
}

impl fmt::Debug for IwarpQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IwarpQueuePair")
            .field("remote", &self.socket.as_ref().map(|socket| socket.remote))
            .field("limits", &self.machine.limits())
            .finish_non_exhaustive()
    }
}
