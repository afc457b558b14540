//! The iWARP byte machine on an established stream, against an arbitrary peer.
//!
//! The input posts work, registers memory, and makes valid and invalid segments. [`peer`] reads the
//! same bytes with a second implementation of the rules and knows which segment ends the stream.
//! [`own`] compares the machine's output with the posted work. The target also asserts that only
//! memory that the peer may write changes, that work completes once, and that at most one Terminate
//! is sent, as the last.

mod own;
mod peer;

use std::{collections::VecDeque, io::IoSlice, ops::Range};

use bytes::{BufMut, Bytes, BytesMut};
use smbdirect::rdma::{
    iwarp::{Rtr, Stream, StreamConfig},
    work::{
        Access, Completion, Disconnect, Inline, ProviderError, ProviderErrorKind, RemoteAddress,
        Token, WorkId, WorkRequest,
    },
};

use self::{
    own::{Own, Said},
    peer::{Peer, Verdict},
};
use crate::input::Input;

/// Maximum number of outstanding work requests, and of registered buffers. More would only be slower.
const MAX_WAITING: usize = 24;
/// Maximum number of bytes in outstanding work.
const MAX_WAITING_BYTES: usize = 300_000;

/// Runs the operations that `data` encodes.
pub fn rdmap_stream(data: &[u8]) {
    let mut input = Input::new(data);
    let mut machine = Machine::new(&mut input);
    while !input.is_empty() {
        machine.step(&mut input);
    }
    machine.finish(&mut input);
}

struct Machine {
    stream: Stream,
    peer: Peer,
    own: Own,
    posted: Posted,
    next_id: u64,
    closing: bool,
    /// Whether FIN was sent. Nothing is written after it.
    finished: bool,
    disconnected: bool,
}

/// Outstanding work of each kind, in order.
#[derive(Default)]
struct Posted {
    receives: VecDeque<(WorkId, u32)>,
    /// How many of these were posted after the close, and can never be used.
    late_receives: usize,
    sends: VecDeque<WorkId>,
    reads: VecDeque<(WorkId, usize)>,
    writes: VecDeque<WorkId>,
    bytes: usize,
}

/// A registered buffer and its expected content.
struct Region {
    at: RemoteAddress,
    access: Access,
    valid: bool,
    content: Vec<u8>,
}

impl Region {
    /// Returns the range that the peer names, if it is inside the buffer and `right` is granted.
    fn range(&self, offset: u64, length: usize, right: Access) -> Option<Range<usize>> {
        let start = usize::try_from(offset.checked_sub(self.at.offset)?).ok()?;
        let end = start.checked_add(length)?;
        let allowed = self.valid && self.access.contains(right) && end <= self.content.len();
        allowed.then_some(start..end)
    }
}

impl Posted {
    fn len(&self) -> usize {
        self.receives.len() + self.sends.len() + self.reads.len() + self.writes.len()
    }
}

impl Machine {
    fn new(input: &mut Input<'_>) -> Self {
        let initiator = input.is_odd();
        let max_outbound_reads = input.pick(&[4, 1, 0]);
        let ready_to_receive = match input.up_to(2) {
            0 if initiator => Some(Rtr::Write),
            1 if initiator && max_outbound_reads > 0 => Some(Rtr::Read),
            _ => None,
        };
        let config = StreamConfig {
            initiator,
            crc: !input.is_odd(),
            max_fpdu: input.pick(&[1448, 136, 65_480]),
            one_fpdu_a_write: input.is_odd(),
            max_backlog: 512 * 1024,
            max_outbound_reads,
            max_inbound_reads: input.pick(&[4, 1, 0]),
            ready_to_receive,
        };
        Self {
            stream: Stream::new(&config),
            peer: Peer::new(&config),
            own: Own::new(&config),
            posted: Posted::default(),
            next_id: 0,
            closing: false,
            finished: false,
            disconnected: false,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.up_to(15) {
            0..=4 => self.peer.speak(input),
            5 | 6 => self.deliver(input),
            7 => self.take(input),
            8 => self.post_receive(input),
            9 => self.post_send(input),
            10 => self.post_write(input),
            11 => self.post_read(input),
            12 => self.register(input),
            13 => self.give_up_memory(input),
            14 => self.take_completions(),
            _ => self.end_in_some_way(input),
        }
    }

    // Input from the peer

    /// Passes bytes of the peer to the machine, all or some.
    fn deliver(&mut self, input: &mut Input<'_>) {
        let waiting = self.peer.waiting();
        let count = match input.up_to(3) {
            0 | 1 => waiting,
            2 => input.length(waiting),
            _ => waiting.saturating_sub(input.up_to(30)),
        };
        let piece = if input.is_odd() {
            usize::MAX
        } else {
            1 + input.length(20_000)
        };
        self.deliver_pieces(count, piece);
    }

    fn deliver_pieces(&mut self, mut count: usize, piece: usize) {
        let piece = piece.max(count / 100);
        while count > 0 && !self.stream.has_ended() {
            let bytes = self.peer.next_bytes(count.min(piece));
            count -= bytes.len();
            if piece % 2 == 1 {
                self.stream.handle_bytes(&bytes);
            } else {
                self.fill_slices(&bytes);
            }
            self.judge();
        }
    }

    /// Fills one slice and then the other, as a socket does.
    fn fill_slices(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let mut count = 0;
            for slice in self.stream.receive_slices() {
                let (now, later) = bytes.split_at(slice.len().min(bytes.len()));
                slice[..now.len()].copy_from_slice(now);
                count += now.len();
                bytes = later;
            }
            if count == 0 {
                assert!(self.stream.has_ended(), "there is no place for bytes");
                return;
            }
            self.stream.received(count);
        }
    }

    /// Compares the machine's reaction to the peer's bytes with the expected one.
    fn judge(&mut self) {
        let ended = self.stream.has_ended();
        let verdict = self.peer.judge(&self.posted, self.own.has_backlog());
        // After FIN, what follows a wrong segment is discarded, and the stream waits for the end.
        let discards = self.finished && matches!(verdict, Verdict::Wrong);
        match verdict {
            Verdict::Right => {
                if ended {
                    assert!(self.peer.fails_early(), "a right segment ends the stream");
                }
            }
            Verdict::Wrong => assert!(ended || discards, "a wrong segment does not end the stream"),
            Verdict::Unknown => {}
        }
        if ended || discards {
            self.peer.fall_silent();
        }
    }

    // Output of the machine

    fn take(&mut self, input: &mut Input<'_>) {
        if self.finished {
            return;
        }
        let piece = 1 + input.length(10_000);
        let most = if input.up_to(3) == 3 {
            piece
        } else {
            usize::MAX
        };
        match input.up_to(31) {
            31 => {
                let max_fpdu = input.pick(&[136, 1448, 65_480]);
                self.stream.set_max_fpdu(max_fpdu);
                self.own.may_be_so_long(max_fpdu);
            }
            26..=30 => {
                if self.stream.is_unanswered() {
                    self.own.is_to_nudge();
                }
                self.stream.startup_probe();
            }
            _ => {}
        }
        self.take_up_to(most, piece);
    }

    fn take_up_to(&mut self, most: usize, piece: usize) {
        let mut taken = 0;
        loop {
            let had_ended = self.stream.has_ended();
            let backlog = self.stream.prepare();
            if self.stream.has_ended() && !had_ended {
                // The only possible error here is memory that is no longer registered.
                assert!(
                    self.peer.asks_for_what_is_gone(),
                    "the machine gave up by itself"
                );
                self.peer.fall_silent();
            }
            let mut slices = [IoSlice::new(&[]); 16];
            let count = self.stream.transmit_slices(&mut slices);
            // A large backlog in tiny pieces would take too long.
            let mut room = piece.max(backlog / 100).min(most - taken);
            let mut bytes = Vec::new();
            for slice in &slices[..count] {
                let length = slice.len().min(room);
                bytes.extend_from_slice(&slice[..length]);
                room -= length;
            }
            assert!(backlog >= bytes.len());
            assert!(!bytes.is_empty() || backlog == 0 || taken == most);
            if bytes.is_empty() {
                break;
            }
            taken += bytes.len();
            self.stream.transmitted(bytes.len());
            for said in self.own.hear(&bytes) {
                self.said(said);
            }
        }
        let left = self.stream.prepare();
        if self.stream.has_ended() {
            self.peer.fall_silent();
        }
        self.own.leave(left, self.stream.has_ended());
    }

    /// Passes the machine's output to the peer.
    fn said(&mut self, said: Said) {
        match said {
            Said::ReadRequest {
                id,
                sink_stag,
                length,
            } => {
                self.peer.is_asked(id, sink_stag, length);
            }
            Said::ReadResponse {
                stag,
                tagged_offset,
                payload,
                last,
            } => self.peer.is_answered(stag, tagged_offset, &payload, last),
            Said::Terminate => assert!(self.stream.is_broken(), "a Terminate without a reason"),
        }
    }

    // Posting work

    fn id(&mut self) -> Option<WorkId> {
        let many = self.posted.len() >= MAX_WAITING || self.posted.bytes > MAX_WAITING_BYTES;
        self.next_id += 1;
        (!many).then_some(WorkId(self.next_id))
    }

    fn post_receive(&mut self, input: &mut Input<'_>) {
        let length = input.pick(&[1000, 0, 10, 100_000]);
        let count = 1 + input.up_to(2) as u32;
        let Some(id) = self.id() else { return };
        for _ in 0..count {
            if !self.disconnected {
                self.posted.receives.push_back((id, length));
            }
            if self.closing && !self.disconnected {
                self.posted.late_receives += 1;
            }
        }
        self.stream.post(WorkRequest::Receive { id, length, count });
    }

    fn post_send(&mut self, input: &mut Input<'_>) {
        let header = vec![0x11; input.up_to(32)];
        let payload = pattern(input.byte(), input.length(20_000));
        let invalidate = (input.up_to(3) == 3).then(|| Token(input.any()));
        let Some(id) = self.id() else { return };
        if !self.disconnected {
            self.posted.sends.push_back(id);
            self.posted.bytes += payload.len();
        }
        if !self.closing && !self.stream.has_ended() {
            self.own
                .is_to_send(id, [&header[..], &payload].concat(), invalidate);
        }
        self.stream.post(WorkRequest::Send {
            id,
            header: Inline::build(|out| out.put_slice(&header)),
            payload: payload.into(),
            invalidate,
        });
    }

    fn post_write(&mut self, input: &mut Input<'_>) {
        let data = pattern(input.byte(), input.length(100_000));
        let to = RemoteAddress {
            token: Token(input.byte().into()),
            offset: if input.is_odd() { u64::MAX - 50 } else { 4096 },
        };
        let Some(id) = self.id() else { return };
        if !self.disconnected {
            self.posted.writes.push_back(id);
            self.posted.bytes += data.len();
        }
        if !self.closing && !self.stream.has_ended() {
            self.own.is_to_write(id, data.clone(), to);
        }
        let data = Bytes::from(data);
        self.stream.post(WorkRequest::Write { id, data, to });
    }

    fn post_read(&mut self, input: &mut Input<'_>) {
        let length = input.length(70_000);
        let Some(id) = self.id() else { return };
        if self.stream.limits().max_outbound_reads == 0 {
            return;
        }
        let from = RemoteAddress {
            token: Token(0x55),
            offset: id.0,
        };
        if !self.disconnected {
            self.posted.reads.push_back((id, length));
            self.posted.bytes += length;
        }
        if !self.closing && !self.stream.has_ended() {
            self.own.is_to_read(id, from, length);
        }
        let into = BytesMut::zeroed(length);
        self.stream.post(WorkRequest::Read { id, from, into });
    }

    // Memory

    fn register(&mut self, input: &mut Input<'_>) {
        if self.peer.regions.len() >= MAX_WAITING {
            return;
        }
        let access = Access::from_bits_truncate(input.byte());
        let content = pattern(input.byte(), input.length(70_000));
        let buffer = BytesMut::from(&content[..]);
        let registration = self.stream.memory().register(buffer, access);
        self.peer.regions.push(Region {
            at: registration
                .expect("the buffer is shorter than the largest region")
                .address,
            access,
            valid: true,
            content,
        });
    }

    fn give_up_memory(&mut self, input: &mut Input<'_>) {
        let index = input.up_to(MAX_WAITING as u8);
        if let Some(region) = self.peer.regions.get_mut(index) {
            region.valid = false;
            let token = region.at.token;
            if input.is_odd() || self.stream.memory().invalidate(token).is_err() {
                self.deregister(index);
            }
        }
    }

    /// Deregisters a buffer, unless queued segments share it, and checks its content.
    fn deregister(&mut self, index: usize) -> bool {
        let token = self.peer.regions[index].at.token;
        let buffer = self.stream.memory().deregister(token);
        if let Ok(buffer) = &buffer {
            let region = self.peer.regions.remove(index);
            self.peer.compare(&region, buffer);
        }
        buffer.is_ok()
    }

    // Completions

    fn take_completions(&mut self) {
        while let Some(completion) = self.stream.poll_completion() {
            assert!(!self.disconnected, "{completion:?} behind the end");
            self.completed(completion);
        }
        assert!(!self.stream.has_completion());
        assert_eq!(self.disconnected, self.stream.has_ended());
    }

    fn completed(&mut self, completion: Completion) {
        let posted = &mut self.posted;
        match completion {
            Completion::Head(_) => unreachable!("a stream has messages in one piece"),
            Completion::Received {
                id,
                message,
                invalidated,
            } => {
                let receive = posted.receives.pop_front();
                let (expected, length) = receive.expect("a receive was posted");
                assert_eq!(id, expected);
                assert!(message.len() <= length as usize);
                self.peer.is_received(&message, invalidated);
            }
            Completion::Sent { id } => {
                // It also completes all earlier ones.
                while let Some(sent) = posted.sends.pop_front() {
                    self.own.has_said(sent);
                    if sent == id {
                        return;
                    }
                }
                panic!("{id:?} was not posted, or was told of already");
            }
            Completion::Written { id } => {
                assert_eq!(posted.writes.pop_front(), Some(id));
                self.own.has_said(id);
            }
            Completion::Read { id, buffer } => {
                assert_eq!(posted.reads.pop_front(), Some((id, buffer.len())));
                self.peer.is_read(id, &buffer);
            }
            Completion::Flushed { id, buffer } => {
                assert!(self.stream.has_ended(), "work is flushed on a live stream");
                if let Some(buffer) = buffer {
                    assert_eq!(posted.reads.pop_front(), Some((id, buffer.len())));
                } else if posted.sends.front() == Some(&id) {
                    posted.sends.pop_front();
                } else if posted.writes.front() == Some(&id) {
                    posted.writes.pop_front();
                } else {
                    let receive = posted.receives.pop_front();
                    assert_eq!(
                        receive.map(|(id, _)| id),
                        Some(id),
                        "out of order, or twice"
                    );
                }
            }
            Completion::Disconnected(_) => {
                assert_eq!(posted.len(), 0, "work is left behind the end");
                self.disconnected = true;
            }
        }
        if self.posted.len() == 0 {
            self.posted.bytes = 0;
        }
    }

    // The end

    fn end_in_some_way(&mut self, input: &mut Input<'_>) {
        match input.up_to(7) {
            0 | 1 => self.close(),
            2 if self.stream.is_drained() && self.closing => {
                self.finished = true;
                self.stream.finish();
            }
            3 if input.up_to(3) == 3 => self.hear_the_end(),
            4 if input.up_to(7) == 7 => {
                let error = ProviderError::new(ProviderErrorKind::Reset, "the network is gone");
                self.stream.handle_loss(error);
                self.peer.fall_silent();
            }
            5 if input.up_to(7) == 7 => {
                self.stream.end(Disconnect::Local);
                self.peer.fall_silent();
            }
            6 if self.stream.has_ended() => self.stream.give_up_transmitting(),
            _ => {}
        }
    }

    fn close(&mut self) {
        self.stream.close();
        self.closing = true;
    }

    fn hear_the_end(&mut self) {
        let had_ended = self.stream.has_ended();
        let at_boundary = self.peer.is_at_boundary();
        self.stream.handle_end();
        assert!(self.stream.has_ended());
        if !had_ended && let Some(at_boundary) = at_boundary {
            assert_eq!(self.stream.is_broken(), !at_boundary && !self.finished);
        }
        self.peer.fall_silent();
    }

    /// Ends the stream and checks that all work and buffers are returned.
    fn finish(mut self, input: &mut Input<'_>) {
        let waiting = self.peer.waiting();
        self.deliver_pieces(waiting, usize::MAX);
        if !self.finished {
            self.take_up_to(usize::MAX, usize::MAX);
        }
        self.take_completions();
        if input.is_odd() {
            self.close();
        }
        self.hear_the_end();
        self.take_completions();
        assert!(self.disconnected);
        self.stream.post(WorkRequest::Receive {
            id: WorkId(0),
            length: 1,
            count: 1,
        });
        self.take_completions();
        // When no output is left, no segment shares a buffer.
        self.stream.give_up_transmitting();
        assert_eq!(self.stream.prepare(), 0);
        while !self.peer.regions.is_empty() {
            assert!(self.deregister(0), "a buffer does not come back");
        }
        assert!(self.stream.memory().is_empty());
    }
}

fn pattern(fill: u8, length: usize) -> Vec<u8> {
    (0..length)
        .map(|at| fill.wrapping_add(at as u8) ^ (at >> 8) as u8)
        .collect()
}
