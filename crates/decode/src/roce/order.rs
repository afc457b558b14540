//! The requests of one direction, in the order of their PSNs.
//!
//! An index counts the packets of a direction from its first one; unlike a PSN it does not wrap. A packet that
//! arrives early waits for the packets before it, which its sender sends again if the receiver lacks them too. If
//! the receiver has acknowledged them, the capture lacks them.
//!
//! A Read request takes as many PSNs as its response has packets. As long as the path MTU is
//! unknown, any request within the largest possible number may follow it.

use std::collections::BTreeMap;

use smbdirect::rdma::roce::Psn;

use super::{super::tcp::Position, datagram::Packet};

/// A packet that waits.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) packet: Packet,
    /// The index in the other direction up to which the sender had acknowledged before it sent this packet.
    pub(super) after: i64,
}

/// The state of a direction.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// The PSN at index 0.
    base: Option<Psn>,
    /// The index of the next request.
    next: i64,
    /// How far beyond `next` the index of the next request can be, while it is not known how many packets a Read
    /// response takes.
    slack: i64,
    /// The index after the last packet that the peer has acknowledged.
    acknowledged: i64,
    /// The range of indices of the packets that were most recently given up: the first, and the index after the
    /// last.
    given_up: (i64, i64),
    held: BTreeMap<i64, Held>,
    held_bytes: usize,
    /// Packets of the connection since the first packet began to wait.
    waited: u32,
}

/// Number of later packets of the connection for which an acknowledged packet may still follow. A capture
/// can contain packets in the wrong order if several processors or network cards received them.
const LATE_PACKETS: u32 = 64;
/// Number of later packets of the connection for which an unacknowledged packet may still follow. It is
/// larger, because the sender repeats the packet only after a timeout.
const UNACKNOWLEDGED_PACKETS: u32 = 2048;
/// Maximum number of bytes that wait after a gap in one direction.
const MAX_HELD_BYTES: usize = 4 << 20;
/// Maximum number of packets that wait after a gap in one direction.
const MAX_HELD_PACKETS: usize = 4096;
/// The largest number of packets that a sender goes back.
const MAX_STEP_BACK: i64 = 1 << 20;

impl Requests {
    /// Sets the PSN of the first request.
    pub(super) fn start(&mut self, psn: Psn) {
        self.base = Some(psn);
    }

    /// Returns whether the PSN of some request is known.
    pub(super) const fn has_started(&self) -> bool {
        self.base.is_some()
    }

    /// Returns whether no request has been taken.
    pub(super) fn is_new(&self) -> bool {
        self.next == 0 && self.held.is_empty()
    }

    /// Returns the index of a PSN: of all indices with this PSN, the one nearest to the next request.
    pub(super) fn index(&self, psn: Psn) -> Option<i64> {
        let next = self.base?.add(self.next as u32);
        Some(self.next + i64::from(psn.distance(next)))
    }

    /// Returns the index up to which every request has been handed on.
    pub(super) const fn next(&self) -> i64 {
        self.next
    }

    /// Returns the index before which all requests may have been handed on.
    pub(super) const fn reach(&self) -> i64 {
        self.next + self.slack
    }

    /// Returns whether the request at this index has been handed on.
    pub(super) const fn has(&self, at: i64) -> bool {
        let (start, end) = self.given_up;
        0 <= at && at < self.next && !(start <= at && at < end)
    }

    /// Returns the index after the last packet that the peer has acknowledged.
    pub(super) const fn acknowledged(&self) -> i64 {
        self.acknowledged
    }

    /// Returns the number of bytes that wait.
    pub(super) const fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Handles an acknowledgement of everything before an index.
    pub(super) fn acknowledge(&mut self, before: i64) {
        self.acknowledged = self.acknowledged.max(before);
    }

    /// Returns whether a packet cannot be of this connection, because its PSN is far behind.
    pub(super) fn is_foreign(&self, psn: Psn) -> bool {
        let at = self.index(psn);
        at.is_some_and(|at| at < self.next - MAX_STEP_BACK)
    }

    /// Takes a packet. Returns its index, and whether it is new.
    pub(super) fn take(&mut self, packet: Packet, after: i64) -> (i64, bool) {
        let psn = packet.bth.psn;
        self.base.get_or_insert(psn);
        let at = self.index(psn).unwrap_or_default();
        if at < self.next || self.held.contains_key(&at) {
            return (at, false);
        }
        if self.held.is_empty() {
            self.waited = 0;
        }
        self.held_bytes += size(&packet);
        let held = Held { packet, after };
        self.held.insert(at, held);
        (at, true)
    }

    /// Returns the next packet, with its index, if it is in order. `peer_reach` is the index up to which
    /// the requests of the other direction have been handed on.
    pub(super) fn pop(&mut self, peer_reach: Option<i64>) -> Option<(i64, Held)> {
        let (&at, held) = self.held.first_key_value()?;
        if at > self.reach() || peer_reach.is_some_and(|peer_reach| held.after > peer_reach) {
            return None;
        }
        let held = self.held.remove(&at)?;
        self.held_bytes -= size(&held.packet);
        self.next = at + 1;
        self.slack = 0;
        Some((at, held))
    }

    /// Counts the packets of a Read response: at least `least` after its request, and perhaps
    /// `more`.
    pub(super) fn skip(&mut self, least: i64, more: i64) {
        self.next += least;
        self.slack = more;
    }

    /// Learns the index after the last Read, if any of several could be it.
    pub(super) fn resolve(&mut self, end: i64) {
        if self.slack > 0 && end >= self.next {
            self.next = end;
            self.slack = 0;
        }
    }

    /// Counts a packet of the connection.
    pub(super) fn tick(&mut self) {
        self.waited = if self.held.is_empty() {
            0
        } else {
            self.waited + 1
        };
    }

    /// Returns whether the first packet has waited long enough.
    pub(super) fn gives_up(&self) -> bool {
        let Some((&at, _)) = self.held.first_key_value() else {
            return false;
        };
        // Either the peer has acknowledged packets that are missing in this direction, or the waiting packets
        // answer packets that are missing in the other direction.
        let lost = at <= self.reach() || self.acknowledged > self.reach();
        (lost && self.waited > LATE_PACKETS)
            || self.waited > UNACKNOWLEDGED_PACKETS
            || self.held_bytes > MAX_HELD_BYTES
            || self.held.len() > MAX_HELD_PACKETS
    }

    /// Returns the frame of the packet that waits first.
    pub(super) fn first_held(&self) -> Option<Position> {
        let (_, held) = self.held.first_key_value()?;
        Some(held.packet.position)
    }

    /// Returns the index in the other direction that the first packet waits for, if its own index
    /// is next. The packet then no longer waits for it.
    pub(super) fn wanted(&mut self) -> Option<i64> {
        let reach = self.reach();
        let mut first = self.held.first_entry()?;
        (*first.key() <= reach).then(|| std::mem::replace(&mut first.get_mut().after, i64::MIN))
    }

    /// Gives up the packets that are missing before the first waiting packet, but none at `until` or
    /// after it. Returns their number.
    pub(super) fn lose(&mut self, until: i64) -> u64 {
        let first = self.held.first_key_value().map_or(until, |(&at, _)| at);
        let until = first.min(until);
        let missing = until - self.reach();
        if missing <= 0 {
            return 0;
        }
        self.given_up = (self.next, until);
        self.next = until;
        self.slack = 0;
        missing as u64
    }
}

fn size(packet: &Packet) -> usize {
    size_of::<Held>() + packet.head.len()
}
