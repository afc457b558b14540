//! One TCP connection of a capture: the bytes of both directions, in a possible order.
//!
//! A direction is reassembled by its sequence numbers: repeated bytes count once, early bytes wait for the bytes
//! before them. Acknowledgements order the two directions: bytes whose sender had seen some of the other
//! direction wait until those have been reported, so an answer never comes before its question, independent of
//! the order of the packets in the file. Nothing is reported before the capture has shown both halves of the
//! handshake, or enough packets to suggest that the handshake is missing.
//!
//! Bytes that never arrive are a gap. It is reported when the peer has acknowledged the missing bytes and they
//! still have not appeared, when too much waits for them, or when the capture ends.
//!
//! A packet outside of the receive window of RFC 9293 is a stray one, which changes nothing: its bytes wait, and
//! are discarded if the peer continues without offering room for them. A SYN within a connection begins another
//! one only if a packet continues it, and a RST counts only where the receiver of RFC 5961 accepts it.

mod handshake;
mod reassembly;
mod watch;

use super::{
    packet::{Head, Segment},
    per_end::{PerEnd, Side},
};
pub(crate) use reassembly::LATE_PACKETS;
pub use reassembly::Position;
use reassembly::{Held, MAX_WINDOW, Reassembly};
pub(crate) use watch::Watch;
pub use watch::{Recovery, TcpPacket};

/// The next item of a direction.
#[derive(Debug)]
pub(crate) enum Piece<'a> {
    /// The beginning is in the capture. `connects` if its sender asked for the connection.
    Begins {
        connects: bool,
    },
    Bytes(&'a [u8]),
    /// This many bytes are not in the capture.
    Gap(u64),
    /// This many bytes at the end of a packet are not in the capture, which keeps only the beginning of packets.
    Cut(u64),
    /// The end: TCP was closed or reset.
    End {
        reset: bool,
    },
}

/// Receives the next item, with its direction and the position of its packet.
pub(crate) type PieceSink<'a> = &'a mut dyn FnMut(Side, Piece<'_>, Position);

/// The state of a connection.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    streams: PerEnd<Reassembly>,
    /// Number of packets so far.
    packets: u64,
    /// Whether items are reported.
    started: bool,
    /// The direction of the end that asked for the connection, if a SYN says so.
    initiator: Option<Side>,
    /// Whether a packet had data.
    pub(super) has_data: bool,
    reset: Option<Reset>,
    /// A SYN that does not belong to this connection.
    candidate: Option<Candidate>,
    pub(super) ended: bool,
}

/// A RST that its receiver may have accepted. Packets before it may be later in the file.
#[derive(Debug)]
struct Reset {
    side: Side,
    /// The offset of the RST in the direction.
    at: i64,
    /// The offset after the last byte of the direction that precedes the RST in the file. If later packets
    /// have bytes after this offset, the RST has not ended the connection, unless it was exactly in sequence.
    limit: i64,
    is_exact: bool,
    position: Position,
}

/// A SYN that may begin another connection between the same ends.
#[derive(Debug)]
struct Candidate {
    side: Side,
    head: Head,
    position: Position,
}

/// Whether a packet is of another connection between the same ends.
#[derive(Debug)]
pub(crate) enum Another {
    No,
    /// The packet is a SYN that does not belong to this connection, and does not end it.
    Stray,
    /// The packet begins a connection, or continues the connection that this SYN has begun.
    Yes(Option<(Head, Position)>),
}

/// The largest shift of a window, which is assumed if the SYN is not in the capture.
const MAX_WINDOW_SCALE: u8 = 14;

impl Connection {
    /// Handles the next packet of a direction.
    pub(crate) fn segment(
        &mut self,
        side: Side,
        segment: &Segment<'_>,
        position: Position,
        sink: PieceSink<'_>,
    ) {
        if self.ended {
            return;
        }
        self.packets += 1;
        self.has_data |= !segment.payload.is_empty();
        if segment.head.rst {
            self.take_reset(side, segment, position);
            return;
        }
        self.streams[side].begin(segment.head.sequence.wrapping_add(segment.head.syn.into()));
        self.streams[side].seen += 1;
        if segment.head.syn {
            self.handshake(side, segment);
        }
        let acknowledged = self.acknowledge(side, segment);
        self.take(side, segment, acknowledged, position);
        if !self.started {
            let is_known = self.streams.iter().all(Reassembly::has_begun);
            let is_late =
                self.packets > LATE_PACKETS || self.streams.iter().any(Reassembly::is_full);
            if !is_known && !is_late {
                return;
            }
            self.start(sink);
        }
        self.drain(sink);
        for side in Side::BOTH {
            let heard = self.streams[!side].seen;
            self.streams[side].forget_strays(heard);
            self.streams[side].waited += u64::from(!self.streams[side].held.is_empty());
        }
        while Side::BOTH
            .into_iter()
            .any(|side| self.streams[side].gives_up())
        {
            self.force(sink);
        }
        self.ended = self.streams.iter().all(|stream| stream.ended);
    }

    /// Reports the waiting bytes, with the gaps before them.
    pub(crate) fn flush(&mut self, sink: PieceSink<'_>) {
        if !self.started {
            self.start(sink);
        }
        self.drain(sink);
        for side in Side::BOTH {
            let heard = self.streams[!side].seen;
            self.streams[side].forget_few_strays(heard);
        }
        while self.streams.iter().any(|stream| !stream.held.is_empty()) {
            self.force(sink);
        }
        // An end may wait for bytes of the other direction that the capture lacks.
        for side in Side::BOTH {
            if let Some((position, _)) = self.streams[side].at_end() {
                self.end(side, false, position, sink);
            }
        }
    }

    /// Ends the connection if the RST of this frame has reset it.
    pub(crate) fn settle(&mut self, frame: u64, sink: PieceSink<'_>) {
        if self.reset_frame() == Some(frame)
            && let Some(reset) = self.reset.take()
        {
            self.streams[reset.side].forget_from(reset.limit.max(reset.at));
            self.flush(sink);
            for side in Side::BOTH {
                self.end(side, true, reset.position, sink);
            }
            self.ended = true;
        }
    }

    /// Discards the rest of the connection.
    pub(crate) fn forget(&mut self) {
        self.ended = true;
        for stream in self.streams.iter_mut() {
            stream.forget_from(i64::MIN);
        }
    }

    /// Returns the number of bytes that wait.
    pub(crate) fn held_bytes(&self) -> usize {
        self.streams.iter().map(|stream| stream.held_bytes).sum()
    }

    /// Returns the frame of the RST that may have ended the connection.
    pub(crate) fn reset_frame(&self) -> Option<u64> {
        self.reset.as_ref().map(|reset| reset.position.frame)
    }

    /// Begins to report, with the first byte of each direction that is known.
    fn start(&mut self, sink: PieceSink<'_>) {
        self.started = true;
        for side in Side::BOTH {
            self.streams[side].start();
            if self.streams[side].first.is_some() {
                let connects = self.initiator == Some(side);
                sink(side, Piece::Begins { connects }, Position::default());
            }
        }
    }

    /// Handles the acknowledgement of a packet, and the window after it. Returns the number, if
    /// the other direction may have come so far.
    fn acknowledge(&mut self, side: Side, segment: &Segment<'_>) -> Option<u32> {
        let number = segment.head.acknowledged?;
        let scale = if segment.head.syn {
            0
        } else {
            self.streams[side].scale.unwrap_or(MAX_WINDOW_SCALE)
        };
        let window = i64::from(segment.head.window) << scale.min(MAX_WINDOW_SCALE);
        self.streams[!side].acknowledge(number, window.min(MAX_WINDOW))
    }

    /// Handles a RST, which ends the direction for the bytes after it in sequence.
    fn take_reset(&mut self, side: Side, segment: &Segment<'_>, position: Position) {
        let (this, other) = (&self.streams[side], &self.streams[!side]);
        let answers = segment
            .head
            .acknowledged
            .is_none_or(|ack| other.may_have(ack));
        if self.reset.is_some() || (this.base.is_none() && !answers) {
            return;
        }
        let this = &mut self.streams[side];
        this.begin(segment.head.sequence);
        let at = this.offset(segment.head.sequence);
        if at < this.acknowledged || at > this.edge() + 1 {
            return;
        }
        let last = this.held.last_key_value();
        let limit = last
            .map_or(this.next, |(&at, held)| at + held.length())
            .max(this.next);
        let limit = limit.max(at);
        self.reset = Some(Reset {
            side,
            at,
            limit,
            is_exact: limit == at && at == this.next,
            position,
        });
    }

    /// Keeps the new bytes of a packet.
    fn take(
        &mut self,
        side: Side,
        segment: &Segment<'_>,
        acknowledged: Option<u32>,
        position: Position,
    ) {
        let this = &self.streams[side];
        let at = this.offset(segment.head.sequence.wrapping_add(segment.head.syn.into()));
        let end = at + segment.payload.len() as i64 + i64::from(segment.missing);
        if let Some(reset) = &self.reset
            && reset.side == side
            && end > reset.limit
            && end <= this.edge()
        {
            if reset.is_exact {
                return;
            }
            // Its receiver has not accepted it.
            self.reset = None;
        }
        let held = Held {
            bytes: Vec::new(),
            missing: segment.missing,
            acknowledged,
            position,
            number: Some(self.packets),
            heard: self.streams[!side].seen,
        };
        let this = &mut self.streams[side];
        if segment.head.fin {
            this.take_end(end, (position, acknowledged));
        }
        this.take(at, segment.payload, held);
    }

    /// Reports everything that is in order.
    fn drain(&mut self, sink: PieceSink<'_>) {
        while Side::BOTH.into_iter().any(|side| self.advance(side, sink)) {}
    }

    /// Reports the next piece of a direction, if it is in order.
    fn advance(&mut self, side: Side, sink: PieceSink<'_>) -> bool {
        if let Some((position, acknowledged)) = self.streams[side].at_end()
            && self.streams[!side].has_told(acknowledged)
        {
            self.end(side, false, position, sink);
            return true;
        }
        let Some((&at, held)) = self.streams[side].held.first_key_value() else {
            return false;
        };
        let other = &self.streams[!side];
        if at > self.streams[side].next || !other.has_told(held.acknowledged) {
            return false;
        }
        let is_rest = held.bytes.is_empty() && held.missing > 0;
        if is_rest
            && held
                .number
                .is_some_and(|number| number + LATE_PACKETS >= self.packets)
        {
            return false;
        }
        let this = &mut self.streams[side];
        let held = this.pop();
        this.waited = 0;
        let known = usize::try_from(this.next - at).unwrap_or(usize::MAX);
        if let Some(bytes) = held.bytes.get(known..)
            && !bytes.is_empty()
        {
            this.next += bytes.len() as i64;
            sink(side, Piece::Bytes(bytes), held.position);
        }
        // The packet was cut; the missing part may come in another copy or another packet.
        let end = at + held.bytes.len() as i64 + i64::from(held.missing);
        if end > this.next && !this.covers(this.next) {
            if is_rest {
                let gap = end - this.next;
                this.next = end;
                sink(side, Piece::Cut(gap as u64), held.position);
            } else {
                this.wait_for_rest(end, &held);
            }
        }
        true
    }

    fn end(&mut self, side: Side, reset: bool, position: Position, sink: PieceSink<'_>) {
        if !self.streams[side].ended {
            self.streams[side].ended = true;
            self.streams[side].forget_from(i64::MIN);
            sink(side, Piece::End { reset }, position);
        }
    }

    /// Declares lost the bytes that the longest-waiting packet waits for.
    fn force(&mut self, sink: PieceSink<'_>) {
        let first = |side: &Side| {
            let held = self.streams[*side].held.first_key_value();
            held.map(|(&at, held)| (held.position.frame, *side, at))
        };
        let Some((_, side, at)) = Side::BOTH.into_iter().filter_map(|side| first(&side)).min()
        else {
            return;
        };
        if at > self.streams[side].next {
            self.lose(side, at, sink);
        } else {
            // The packet waits for the other direction, or for another copy of itself.
            let held = self.streams[side]
                .held
                .get_mut(&at)
                .expect("`at` is a key of `held`");
            held.number = None;
            let acknowledged = held.acknowledged.take();
            let position = held.position;
            let other = &mut self.streams[!side];
            let seen = acknowledged.map_or(other.next, |seen| other.offset(seen));
            let until = match other.held.first_key_value() {
                Some((&at, _)) => at.min(seen),
                None => seen,
            };
            // The last offset may be a FIN, which does not count as a byte.
            if until > other.next + 1 {
                let gap = until - other.next;
                other.next = until;
                sink(!side, Piece::Gap(gap as u64), position);
            }
        }
        self.drain(sink);
    }

    /// Declares lost everything before the offset `until`.
    fn lose(&mut self, side: Side, until: i64, sink: PieceSink<'_>) {
        let this = &mut self.streams[side];
        let gap = until - this.next;
        let (is_fin, position) = match this.held.get(&until) {
            Some(held) => (gap == 1 && held.length() == 0, held.position),
            None => (false, Position::default()),
        };
        this.next = until;
        if !is_fin {
            sink(side, Piece::Gap(gap as u64), position);
        }
    }
}
