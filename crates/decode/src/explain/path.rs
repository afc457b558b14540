//! What the packets of a connection say about its path: round trips, losses, and windows.

mod pace;

use smbdirect::rdma::roce::{
    Psn,
    packet::{Opcode, Syndrome},
};

use super::{
    PACKET_INTERVAL,
    operations::nanos,
    report::PathReport,
    timeline::{LONG_ROUND_TRIP, RoundTrips, What},
};
use crate::{
    event::{Event, EventKind, Repeated, RocePacket},
    per_end::{PerEnd, Role},
    tcp::{Recovery, TcpPacket},
};

use self::pace::Pace;

/// The path of a connection.
#[derive(Debug, Default)]
pub(super) struct Path {
    /// The shortest round trips to the client and to the server, in nanoseconds, by any packet, and by those that only
    /// acknowledge: an answer acknowledges when the server has it.
    shortest: PerEnd<Option<u64>>,
    by_acknowledgement: PerEnd<Option<u64>>,
    /// Whether the client and the server have used up the window of their peer.
    full: PerEnd<bool>,
    is_full: bool,
    /// The last window that the client and the server offered, and the largest.
    windows: PerEnd<Option<[u32; 2]>>,
    /// What the client and the server send in each round trip.
    paces: PerEnd<Pace>,
    /// Packets of the client and the server.
    packets: PerEnd<u64>,
    /// Packets that the capture has a second time, and how long after the first in total.
    copies: (u64, u64),
    ends: PerEnd<EndOfRoce>,
    /// A recovery of TCP that has not ended.
    recovery: Option<Sending>,
    /// The time and the sort of the last packet that was marked.
    last: Option<(u64, SortOfPacket)>,
    /// Bytes of packets that were not marked since.
    unmarked_bytes: u32,
    pub(super) report: PathReport,
}

/// The sender of a packet, and whether it has data and whether it acknowledges.
type SortOfPacket = (Role, bool, bool);

/// Bytes that are sent again: since when, how often, and the lengths of the largest and of the last packet with them.
#[derive(Clone, Copy, Debug)]
struct Sending {
    since: u64,
    attempts: u32,
    largest: u32,
    last: u32,
}

impl Sending {
    /// Returns the length of a packet that has not arrived, if the bytes have arrived now: they came in a smaller one.
    const fn never_arrived(self) -> u32 {
        if self.last < self.largest {
            self.largest
        } else {
            0
        }
    }
}

/// What an end of RoCE has sent.
#[derive(Debug, Default)]
struct EndOfRoce {
    /// The highest PSN.
    highest: Option<Psn>,
    /// The time of the last packet that was not sent again.
    last_new: u64,
    /// The packet that the peer lacks, and the time of its NAK, until that packet was sent again.
    nak: Option<(Psn, u64)>,
    /// A request whose acknowledgement is waited for, and its time.
    probe: Option<(Psn, u64)>,
    loss: Option<RoceLoss>,
}

/// A loss of RoCE that has not ended.
#[derive(Clone, Copy, Debug)]
struct RoceLoss {
    since: u64,
    first: Psn,
    until: Psn,
    attempts: u32,
    length: u32,
}

/// What an event means for the timeline.
#[derive(Debug, Default)]
pub(super) struct Signs {
    pub(super) marks: Vec<(u64, What)>,
}

/// If at least one packet in this many is in the capture twice, two captures have been merged.
const MERGED_PART: u64 = 4;
/// Copies that a switch or an interface makes are closer to each other, in nanoseconds.
const MERGED_TIME: u64 = 50_000;
/// If the first packet of a loss was sent again this often, no copy of it arrives.
const BLACK_HOLE_ATTEMPTS: u32 = 3;
/// A smaller packet passes every link.
const BLACK_HOLE_BYTES: u32 = 1000;

impl Path {
    /// Returns the round trips, as far as they are known.
    pub(super) fn round_trips(&self) -> RoundTrips {
        let ends = self.by_acknowledgement.iter().zip(self.shortest.iter());
        let longer = ends.max_by_key(|(_, any)| any.unwrap_or_default());
        let pair = longer.and_then(|(measured, any)| measured.zip(*any));
        let is_near = pair.is_some_and(|(measured, any)| measured / 8 <= any / 7);
        RoundTrips {
            to: PerEnd(self.shortest.map(Option::unwrap_or_default)),
            is_known: self.shortest.iter().any(Option::is_some),
            is_certain: is_near && !self.is_merged(),
        }
    }

    /// Returns the largest window that an end has offered.
    pub(super) fn largest_window(&self, end: Role) -> Option<u32> {
        self.windows[end].map(|[_, most]| most)
    }

    /// Returns whether the packets are those of captures of both ends: each is there twice, some time apart.
    pub(super) fn is_merged(&self) -> bool {
        let (copies, time) = self.copies;
        let packets: u64 = self.packets.iter().sum();
        copies >= packets / MERGED_PART && time >= copies.saturating_mul(MERGED_TIME) && copies > 0
    }

    /// Returns the mean time between the two copies of a packet in nanoseconds.
    pub(super) fn copied_after(&self) -> u64 {
        self.copies.1 / self.copies.0.max(1)
    }

    /// Returns whether the capture has packets of one end only.
    pub(super) fn lacks_an_end(&self) -> bool {
        let [one, other] = self.packets.0;
        one.min(other) == 0 && one.max(other) > 0
    }

    /// Returns the shortest round trips to the client and to the server in seconds.
    pub(super) fn shortest(&self) -> [Option<f64>; 2] {
        self.shortest
            .map(|shortest| shortest.map(|nanos| nanos as f64 / 1e9))
    }

    /// Takes an event of the client or the server.
    pub(super) fn event(&mut self, event: &Event, from: Role, signs: &mut Signs) {
        let now = nanos(event.position);
        match &event.kind {
            EventKind::TcpPacket(packet) => {
                if let Some(after) = packet.copied_after {
                    let after = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
                    self.copies.0 += 1;
                    self.copies.1 = self.copies.1.saturating_add(after);
                    return;
                }
                self.packets[from] += 1;
                self.tcp(packet, from, (now, event.position.frame), signs);
            }
            EventKind::Packet(packet) if packet.repeated != Repeated::CapturedAgain => {
                self.packets[from] += 1;
                self.roce(packet, from, (now, event.position.frame), signs);
            }
            EventKind::Nak { psn, .. } => {
                self.report.naks += 1;
                let end = &mut self.ends[!from];
                end.nak.get_or_insert((*psn, now));
            }
            EventKind::RnrNak { .. } => self.report.rnr_naks += 1,
            _ => {}
        }
    }

    /// Ends the recoveries that the capture does not show the end of.
    pub(super) fn finish(&mut self, now: u64, signs: &mut Signs) {
        if let Some(sending) = self.recovery.take() {
            loss(sending.since, now, sending.attempts, sending.largest, signs);
        }
        for end in self.ends.iter_mut() {
            end.end_loss(now, false, signs);
        }
    }

    fn tcp(&mut self, packet: &TcpPacket, from: Role, (now, frame): (u64, u64), signs: &mut Signs) {
        let has_data = packet.length > 0;
        if let Some(gap) = packet.gap_before {
            let time = u64::try_from(gap.as_nanos()).unwrap_or(now);
            signs.marks.push((time, What::Gap));
        }
        let sort = (from, has_data, packet.acknowledges);
        let bytes = if packet.sent_again { 0 } else { packet.length };
        self.mark_packet(now, sort, bytes, signs);
        if let Some(round_trip) = packet.round_trip {
            let nanos = u64::try_from(round_trip.as_nanos()).unwrap_or(u64::MAX);
            self.round_trip(from, nanos, !has_data);
        }
        self.pace(packet, from, now, signs);
        self.report.duplicate_acks += u64::from(packet.duplicate_ack);
        self.report.zero_windows += u64::from(packet.zero_window);
        if packet.sent_again {
            self.sent_again(frame);
        }
        if let Some(recovery) = packet.recovery {
            self.recovery(&recovery, packet.length, now, signs);
        }
        if has_data {
            self.full[from] = packet.window_full;
        }
        if packet.zero_window {
            self.full[!from] = true;
        } else if packet.acknowledges {
            self.full[!from] = false;
        }
        let is_full = self.full.contains(&true);
        if std::mem::replace(&mut self.is_full, is_full) != is_full {
            signs.marks.push((now, What::WindowFull(is_full)));
        }
    }

    fn recovery(&mut self, recovery: &Recovery, length: u32, now: u64, signs: &mut Signs) {
        let since = u64::try_from(recovery.since.as_nanos()).unwrap_or(now);
        if recovery.spurious {
            self.recovery = None;
        } else if recovery.ended {
            let length = self.recovery.take().map_or(0, Sending::never_arrived);
            loss(since, now, recovery.attempts, length, signs);
        } else {
            let largest = self
                .recovery
                .map_or(length, |before| before.largest.max(length));
            self.recovery = Some(Sending {
                since,
                attempts: recovery.attempts,
                largest,
                last: length,
            });
        }
    }

    fn sent_again(&mut self, frame: u64) {
        self.report.sent_again += 1;
        self.report.first_sent_again.get_or_insert(frame);
    }

    /// Takes what an end sends in each round trip, and the window that it offers.
    fn pace(&mut self, packet: &TcpPacket, from: Role, now: u64, signs: &mut Signs) {
        let round_trips = self.round_trips();
        if packet.length > 0 && round_trips.longest() >= LONG_ROUND_TRIP {
            let window = self.windows[!from].map(|[last, _]| last);
            let sent = (u64::from(packet.length), now);
            let limit = self.paces[from].send(sent, window, round_trips.longest());
            if let Some((bytes, since)) = limit {
                for (time, begins) in [(since, true), (now, false)] {
                    let what = What::Limited { bytes, begins };
                    signs.marks.push((time, what));
                }
            }
        }
        if let Some(window) = packet.window {
            let most = self.windows[from].map_or(window, |[_, most]| most.max(window));
            self.windows[from] = Some([window, most]);
        }
    }

    fn round_trip(&mut self, to: Role, nanos: u64, is_pure: bool) {
        let least = |known: &mut Option<u64>| {
            *known = Some(known.map_or(nanos, |known| known.min(nanos)));
        };
        least(&mut self.shortest[to]);
        if is_pure {
            least(&mut self.by_acknowledgement[to]);
        }
    }

    /// Marks a packet, unless another one like it was marked just before.
    fn mark_packet(&mut self, now: u64, sort: SortOfPacket, bytes: u32, signs: &mut Signs) {
        self.unmarked_bytes = self.unmarked_bytes.saturating_add(bytes);
        let is_same = |&(time, before): &(u64, SortOfPacket)| {
            before == sort && now.saturating_sub(time) < PACKET_INTERVAL
        };
        if self.last.as_ref().is_some_and(is_same) {
            return;
        }
        self.last = Some((now, sort));
        let (from, has_data, acknowledges) = sort;
        let what = What::Packet {
            from,
            has_data,
            acknowledges,
            bytes: std::mem::take(&mut self.unmarked_bytes),
        };
        signs.marks.push((now, what));
    }

    fn roce(
        &mut self,
        packet: &RocePacket,
        from: Role,
        (now, frame): (u64, u64),
        signs: &mut Signs,
    ) {
        let opcode = packet.bth.opcode;
        if matches!(opcode, Opcode::UdSendOnly | Opcode::CongestionNotification) {
            return;
        }
        let psn = packet.bth.psn;
        let is_again = packet.repeated == Repeated::SentAgain;
        let bytes = if is_again { 0 } else { packet.length };
        if opcode.is_response() {
            let is_ack = opcode == Opcode::Acknowledge;
            self.mark_packet(now, (from, !is_ack, is_ack), bytes, signs);
            let is_negative = packet.aeth.is_some_and(|aeth| {
                matches!(aeth.syndrome, Syndrome::Nak(_) | Syndrome::RnrNak { .. })
            });
            if !is_negative && !is_again {
                self.acknowledged(psn, from, is_ack, now, signs);
            }
            if is_again {
                self.sent_again(frame);
            }
            return;
        }
        self.mark_packet(now, (from, true, false), bytes, signs);
        let end = &mut self.ends[from];
        if is_again {
            end.send_again(psn, packet.length, now);
            self.sent_again(frame);
            return;
        }
        if end.loss.is_some_and(|loss| psn.distance(loss.until) > 0) {
            end.end_loss(now, true, signs);
        }
        if end.highest.is_none_or(|highest| psn.distance(highest) > 0) {
            end.highest = Some(psn);
        }
        // The capture can be where the first copy of the packet did not arrive.
        if let Some((_, since)) = end.nak.take_if(|&mut (lacks, _)| lacks == psn) {
            loss(since, now, 1, 0, signs);
        }
        end.last_new = now;
        if packet.bth.ack_request && opcode != Opcode::ReadRequest {
            end.probe.get_or_insert((psn, now));
        }
    }

    /// The peer of an end acknowledges its packets up to a PSN.
    fn acknowledged(&mut self, psn: Psn, from: Role, is_ack: bool, now: u64, signs: &mut Signs) {
        let end = &mut self.ends[!from];
        if end.loss.is_some_and(|loss| psn.distance(loss.until) >= 0) {
            end.end_loss(now, true, signs);
        }
        if let Some((probe, sent)) = end.probe
            && psn.distance(probe) >= 0
        {
            end.probe = None;
            if is_ack {
                self.round_trip(from, now.saturating_sub(sent), true);
            }
        }
    }
}

impl EndOfRoce {
    fn send_again(&mut self, psn: Psn, length: u32, now: u64) {
        self.probe = None;
        let nak = self.nak.take().map(|(_, since)| since);
        let since = nak.unwrap_or(self.last_new).min(now);
        let until = self.highest.unwrap_or(psn);
        let loss = self.loss.get_or_insert(RoceLoss {
            since,
            first: psn,
            until,
            attempts: 0,
            length,
        });
        if loss.first == psn {
            loss.attempts += 1;
        }
    }

    fn end_loss(&mut self, now: u64, has_arrived: bool, signs: &mut Signs) {
        if let Some(ended) = self.loss.take() {
            let length = if has_arrived { 0 } else { ended.length };
            loss(ended.since, now, ended.attempts, length, signs);
        }
    }
}

/// Marks a loss; `length` is that of a packet that has never arrived.
fn loss(since: u64, until: u64, attempts: u32, length: u32, signs: &mut Signs) {
    let is_black_hole = attempts >= BLACK_HOLE_ATTEMPTS && length >= BLACK_HOLE_BYTES;
    for (time, begins) in [(since, true), (until.max(since), false)] {
        let what = What::Loss {
            begins,
            is_black_hole,
        };
        signs.marks.push((time, what));
    }
}
