//! What the packets of a TCP connection say about the path: losses, windows, round trips.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use serde::Serialize;

use super::super::{
    packet::Segment,
    per_end::{PerEnd, Side},
};

/// What a packet of TCP says about the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TcpPacket {
    /// Bytes of payload.
    pub length: u32,
    /// Whether it acknowledges bytes that no packet before it did.
    pub acknowledges: bool,
    /// If it acknowledges bytes that the capture lacks, the time, since 1970, of the first packet after them.
    pub gap_before: Option<Duration>,
    /// Whether it repeats an acknowledgement.
    pub duplicate_ack: bool,
    /// Whether its sender offers no window.
    pub zero_window: bool,
    /// Whether it uses up the window that the peer offers.
    pub window_full: bool,
    /// Bytes that its sender has in flight after it.
    pub in_flight: u32,
    /// Time since the packet that it acknowledges.
    pub round_trip: Option<Duration>,
    /// Whether its bytes were sent before, or fill a hole.
    pub sent_again: bool,
    /// The recovery from a loss that it is part of, or ends.
    pub recovery: Option<Recovery>,
    /// The window that its sender offers, if the capture has the scale of it.
    pub window: Option<u32>,
    /// The time since another copy of the same packet, if the network or the capture has made one. A copy says nothing.
    pub copied_after: Option<Duration>,
}

/// The recovery from a loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Recovery {
    /// The time, since 1970, of the first packet that shows the loss.
    pub since: Duration,
    /// How often the first missing byte was sent again.
    pub attempts: u32,
    /// Whether the receiver has acknowledged the bytes that were missing.
    pub ended: bool,
    /// Whether that acknowledgement echoes the timestamp of a packet from before the repetition (RFC 3522): nothing was
    /// lost, but the receiver was late.
    pub spurious: bool,
}

/// The state of both directions.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    directions: PerEnd<Direction>,
    /// The last packets and their times, and their order.
    recent: HashMap<Identity, Duration>,
    order: VecDeque<Identity>,
}

/// What two copies of a packet have in common, and a packet that is sent again has not: the sender, the Identification,
/// sequence number, acknowledgement number and timestamps.
type Identity = (Side, Option<u16>, u32, Option<u32>, Option<[u32; 2]>, u32);

/// The state of a direction, as that of a sender of bytes.
#[derive(Debug, Default)]
struct Direction {
    /// The sequence number after the last byte that was sent.
    next: Option<u32>,
    /// The last acknowledgement number of the peer, and the window that it offers.
    acknowledged: Option<u32>,
    window: Option<u32>,
    /// The bits by which the windows that this end offers are shifted.
    scale: Option<u8>,
    /// The time of the last packet with bytes.
    last_sent: Duration,
    /// The time of the first repeated acknowledgement since the last new one.
    first_duplicate: Option<Duration>,
    /// The end of a hole that the capture shows, and the time of the packet after it.
    hole: Option<(u32, Duration)>,
    /// The end and the time of a packet whose acknowledgement is waited for.
    probe: Option<(u32, Duration)>,
    lost: Option<Lost>,
}

/// A loss whose recovery has not ended.
#[derive(Clone, Copy, Debug)]
struct Lost {
    since: Duration,
    /// The sequence number up to which the receiver must acknowledge.
    until: u32,
    /// The sequence number that was sent again, and how often.
    first: u32,
    attempts: u32,
    /// The timestamp of the first packet that was sent again.
    timestamp: Option<u32>,
}

/// Packets among which a copy is searched: those of 5 ms at 10 Gbit/s. Captures of both ends, merged, are so far apart.
const RECENT_PACKETS: usize = 4096;
/// A sender with less than this many bytes of window left does not send a segment.
const MIN_ROOM: u32 = 1024;

impl Watch {
    /// Takes the next packet, in the order of the file.
    pub(crate) fn packet(&mut self, side: Side, segment: &Segment<'_>, now: Duration) -> TcpPacket {
        let head = &segment.head;
        let length = segment.payload.len() as u32 + segment.missing;
        let mut packet = TcpPacket {
            length,
            ..TcpPacket::default()
        };
        packet.copied_after = self.copied_after(side, segment, length, now);
        if packet.copied_after.is_some() {
            return packet;
        }
        if head.syn {
            self.directions[side].scale = Some(head.window_scale);
            self.directions[side].probe = Some((head.sequence.wrapping_add(1), now));
        }
        if let Some(number) = head.acknowledged {
            let scale = if head.syn {
                Some(0)
            } else {
                self.directions[side].scale
            };
            let window = scale.map(|scale| u32::from(head.window) << scale.min(14));
            packet.window = window;
            packet.zero_window = head.window == 0 && !head.rst;
            let is_plain = length == 0 && !head.syn && !head.fin && !head.rst;
            let echoed = head.timestamps.map(|[_, echoed]| echoed);
            let acknowledged = (number, echoed);
            self.directions[!side].acknowledge(acknowledged, window, is_plain, now, &mut packet);
        }
        if length > 0 {
            let timestamp = head.timestamps.map(|[sent, _]| sent);
            let place = (head.sequence, timestamp);
            self.directions[side].send(place, length, now, &mut packet);
        }
        packet
    }

    /// Returns the time since the same packet was seen before; if it was not, remembers it.
    fn copied_after(
        &mut self,
        side: Side,
        segment: &Segment<'_>,
        length: u32,
        now: Duration,
    ) -> Option<Duration> {
        let head = &segment.head;
        // Without an Identification, acknowledgements are repeated without a difference.
        if head.identification.is_none() && (head.timestamps.is_none() || length == 0) {
            return None;
        }
        let identity = (
            side,
            head.identification,
            head.sequence,
            head.acknowledged,
            head.timestamps,
            length,
        );
        if let Some(&before) = self.recent.get(&identity) {
            return Some(now.saturating_sub(before));
        }
        if self.order.len() == RECENT_PACKETS
            && let Some(oldest) = self.order.pop_front()
        {
            self.recent.remove(&oldest);
        }
        self.recent.insert(identity, now);
        self.order.push_back(identity);
        None
    }
}

impl Direction {
    /// Handles an acknowledgement of the peer.
    fn acknowledge(
        &mut self,
        (number, echoed): (u32, Option<u32>),
        window: Option<u32>,
        is_plain: bool,
        now: Duration,
        packet: &mut TcpPacket,
    ) {
        let before = self.acknowledged.unwrap_or(number);
        let progress = distance(number, before);
        let beyond = self.next.map_or(0, |next| distance(number, next));
        if beyond > 0 {
            // The capture lacks the bytes; a single one is a FIN.
            packet.gap_before = (beyond > 1).then_some(now);
            self.next = Some(number);
            self.hole = None;
        }
        let has_same_window = window == self.window;
        if progress >= 0 {
            self.window = window;
        }
        if progress > 0 || self.acknowledged.is_none() {
            self.acknowledged = Some(number);
            self.first_duplicate = None;
            packet.acknowledges = progress > 0;
        } else if progress == 0
            && is_plain
            && has_same_window
            && self.next.is_some_and(|next| distance(next, number) > 0)
        {
            packet.duplicate_ack = true;
            self.first_duplicate.get_or_insert(now);
        }
        if let Some((end, since)) = self.hole
            && distance(number, end) >= 0
        {
            self.hole = None;
            if self.lost.is_none() {
                packet.gap_before = Some(since);
            }
        }
        if let Some((end, sent)) = self.probe
            && distance(number, end) >= 0
        {
            packet.round_trip = Some(now.saturating_sub(sent));
            self.probe = None;
        }
        if let Some(lost) = self.lost
            && distance(number, lost.until) >= 0
        {
            let is_before = |(echoed, sent)| distance(echoed, sent) < 0;
            packet.recovery = Some(Recovery {
                ended: true,
                spurious: echoed.zip(lost.timestamp).is_some_and(is_before),
                ..lost.recovery()
            });
            self.lost = None;
        }
    }

    /// Handles bytes that this end sends.
    fn send(
        &mut self,
        (sequence, timestamp): (u32, Option<u32>),
        length: u32,
        now: Duration,
        packet: &mut TcpPacket,
    ) {
        let end = sequence.wrapping_add(length);
        let next = self.next.unwrap_or(sequence);
        let ahead = distance(sequence, next);
        // A keepalive of TCP has a byte that was acknowledged.
        let is_keepalive = length == 1 && ahead == -1;
        if ahead < 0 && !is_keepalive {
            self.send_again((sequence, timestamp), end, next, now, packet);
        } else if ahead > 0 && self.hole.is_none() {
            self.hole = Some((sequence, now));
        }
        if distance(end, next) > 0 || self.next.is_none() {
            self.next = Some(end);
            if ahead == 0 && self.probe.is_none() && self.lost.is_none() {
                self.probe = Some((end, now));
            }
        }
        self.last_sent = now;
        let next = self.next.unwrap_or(end);
        let in_flight = self.acknowledged.map_or(0, |number| distance(next, number));
        packet.in_flight = u32::try_from(in_flight).unwrap_or(0);
        let room = self
            .window
            .map(|window| window.saturating_sub(packet.in_flight));
        packet.window_full = room.is_some_and(|room| room < MIN_ROOM);
    }

    /// Handles bytes that were sent before, or that fill a hole.
    fn send_again(
        &mut self,
        (sequence, timestamp): (u32, Option<u32>),
        end: u32,
        next: u32,
        now: Duration,
        packet: &mut TcpPacket,
    ) {
        let is_acknowledged = self
            .acknowledged
            .is_some_and(|number| distance(end, number) <= 0);
        // The receiver has the bytes, so nobody waits for them.
        if is_acknowledged {
            return;
        }
        packet.sent_again = true;
        self.probe = None;
        let shown = self.hole.map(|(_, time)| time).or(self.first_duplicate);
        let since = shown.unwrap_or(self.last_sent).min(now);
        let lost = self.lost.get_or_insert(Lost {
            since,
            until: next,
            first: sequence,
            attempts: 0,
            timestamp,
        });
        if distance(next, lost.until) > 0 {
            lost.until = next;
        }
        if sequence == lost.first {
            lost.attempts += 1;
        } else if self
            .acknowledged
            .is_some_and(|number| distance(number, lost.first) > 0)
        {
            (lost.first, lost.attempts) = (sequence, 1);
        }
        packet.recovery = Some(lost.recovery());
    }
}

impl Lost {
    const fn recovery(&self) -> Recovery {
        Recovery {
            since: self.since,
            attempts: self.attempts,
            ended: false,
            spurious: false,
        }
    }
}

/// Returns how far a sequence number is after another one.
const fn distance(sequence: u32, from: u32) -> i32 {
    sequence.wrapping_sub(from) as i32
}
