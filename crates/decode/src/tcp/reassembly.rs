//! One direction of a TCP connection.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

/// The position of a packet in the capture.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Position {
    /// The number of the packet.
    pub frame: u64,
    /// The time of the packet since 1970.
    #[serde(skip)]
    pub time: Duration,
    /// The time since the first packet of the capture, in seconds.
    pub seconds: f64,
}

/// The state of a direction.
#[derive(Debug, Default)]
pub(super) struct Reassembly {
    /// The sequence number of the byte at offset 0.
    pub(super) base: Option<u32>,
    /// The offset of the first byte of the connection, if the handshake is in the capture.
    pub(super) first: Option<i64>,
    /// Whether bytes are reported.
    is_started: bool,
    /// The offset of the next byte to report.
    pub(super) next: i64,
    /// The offset after the last byte that the peer has acknowledged.
    pub(super) acknowledged: i64,
    /// The offset after the last byte for which the peer has offered room.
    offered: Option<i64>,
    /// The bits by which the windows that its sender offers are shifted.
    pub(super) scale: Option<u8>,
    /// Number of packets so far, without RSTs.
    pub(super) seen: u64,
    /// Bytes that wait, by their offset.
    pub(super) held: BTreeMap<i64, Held>,
    pub(super) held_bytes: usize,
    /// Packets of the connection since the first byte began to wait.
    pub(super) waited: u64,
    /// The offsets where the direction may end, by the FINs so far.
    ends: BTreeMap<i64, Fin>,
    pub(super) ended: bool,
}

/// The position of a packet with FIN, and its acknowledgement number.
type Fin = (Position, Option<u32>);

/// Bytes that wait, or the missing part of a packet that was cut, or none.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) bytes: Vec<u8>,
    pub(super) missing: u32,
    pub(super) acknowledged: Option<u32>,
    pub(super) position: Position,
    /// The number of the packet within the connection, as long as another copy may still bring the missing bytes;
    /// `None` once another copy is no longer waited for.
    pub(super) number: Option<u64>,
    /// Number of packets of the peer before it.
    pub(super) heard: u64,
}

/// Number of packets by which a packet may be late in the file, because two processors or network
/// cards can put packets into the wrong order.
pub(crate) const LATE_PACKETS: u64 = 64;
/// The largest receive window. A larger segment counts as one of this size, so that fewer sequence numbers are
/// taken for numbers of the connection.
pub(super) const MAX_WINDOW: i64 = 64 << 20;
/// Maximum number of bytes that wait after a gap in one direction.
const MAX_HELD_BYTES: usize = 4 << 20;
/// Maximum number of packets that wait after a gap in one direction.
const MAX_HELD_PACKETS: usize = 4096;
/// Maximum number of offsets where a direction may end. All but one belong to stray packets.
const MAX_ENDS: usize = 4;
/// Number of packets of the peer after which bytes that still have no room are judged to be a stray packet. At
/// the end of a capture, if more packets than this have such bytes, the bytes count as part of the connection.
const STRAY_PACKETS: u64 = 16;

impl Reassembly {
    /// Sets offset 0 to the first sequence number.
    pub(super) fn begin(&mut self, sequence: u32) {
        self.base.get_or_insert(sequence);
    }

    /// Sets the first offset to report.
    pub(super) fn start(&mut self) {
        self.is_started = true;
        self.next = self.first.unwrap_or_else(|| self.first_held());
    }

    /// Returns the first offset from which on bytes without a gap reach offset 0.
    fn first_held(&self) -> i64 {
        let mut first = 0;
        while let Some((&at, held)) = self.held.range(..first).next_back()
            && at + held.length() >= first
        {
            first = at;
        }
        first
    }

    /// Returns whether the beginning of the direction is known and a packet waits.
    pub(super) const fn has_begun(&self) -> bool {
        self.first.is_some() && self.seen > 0
    }

    /// Returns whether the connection may begin at this offset.
    pub(super) fn may_begin(&self, at: i64) -> bool {
        match self.first {
            Some(first) => at == first,
            None => (-MAX_WINDOW..=self.first_held()).contains(&at),
        }
    }

    /// Returns the offset of a sequence number: of all offsets with this number, the one nearest to the next byte.
    pub(super) fn offset(&self, sequence: u32) -> i64 {
        let Some(base) = self.base else {
            return 0;
        };
        let next = base.wrapping_add(self.next as u32);
        self.next + i64::from(sequence.wrapping_sub(next) as i32)
    }

    /// Returns the offset after the last byte for which there is room.
    pub(super) fn edge(&self) -> i64 {
        self.offered.unwrap_or(self.next + MAX_WINDOW)
    }

    /// Returns whether the direction may have come so far that the peer acknowledges this number:
    /// there was room for it, or its bytes are in the capture.
    pub(super) fn may_have(&self, acknowledged: u32) -> bool {
        let at = self.offset(acknowledged);
        let before = self.held.range(..=at).next_back();
        // A FIN counts as one byte.
        self.base.is_none()
            || at <= self.edge() + 1
            || before.is_some_and(|(&start, held)| start + held.length() >= at)
    }

    /// Handles an acknowledgement and the window after it. Returns the number, if the direction
    /// may have come so far.
    pub(super) fn acknowledge(&mut self, number: u32, window: i64) -> Option<u32> {
        if !self.may_have(number) {
            return None;
        }
        if self.base.is_some() {
            let at = self.offset(number);
            self.acknowledged = self.acknowledged.max(at);
            self.offered = self.offered.max(Some(at + window));
        }
        Some(number)
    }

    /// Returns whether everything that a packet of the other direction acknowledges has been reported. Bytes that
    /// the capture lacks completely do not count.
    pub(super) fn has_told(&self, acknowledged: Option<u32>) -> bool {
        match (self.base, acknowledged) {
            (Some(_), Some(acknowledged)) if self.seen > 0 => {
                // A FIN counts as one byte.
                self.offset(acknowledged) <= self.next + 1
            }
            _ => true,
        }
    }

    /// Notes an offset where the direction may end.
    pub(super) fn take_end(&mut self, at: i64, fin: Fin) {
        if at >= self.next {
            self.ends.entry(at).or_insert(fin);
            if self.ends.len() > MAX_ENDS {
                self.ends.pop_last();
            }
        }
    }

    /// Returns the FIN if the direction has ended.
    pub(super) fn at_end(&mut self) -> Option<Fin> {
        self.ends = self.ends.split_off(&self.next);
        let fin = self.ends.get(&self.next)?;
        (!self.ended).then_some(*fin)
    }

    /// Keeps the new bytes of a packet; `held` is everything else about it.
    pub(super) fn take(&mut self, at: i64, bytes: &[u8], held: Held) {
        let end = at + bytes.len() as i64 + i64::from(held.missing);
        let next = if self.is_started {
            self.next
        } else {
            -MAX_WINDOW
        };
        if end <= next || self.ended {
            return;
        }
        let known = usize::try_from(next - at).unwrap_or(0);
        let Some(bytes) = bytes.get(known..) else {
            return;
        };
        let bytes = bytes.to_vec();
        self.insert(at + known as i64, Held { bytes, ..held });
    }

    /// Waits for the part up to `end` that a packet lacks: another copy of it may have more.
    pub(super) fn wait_for_rest(&mut self, end: i64, held: &Held) {
        let rest = Held {
            bytes: Vec::new(),
            missing: (end - self.next) as u32,
            acknowledged: None,
            ..*held
        };
        self.insert(self.next, rest);
    }

    fn insert(&mut self, at: i64, held: Held) {
        let parts = |held: &Held| (held.bytes.len(), held.missing);
        let has_more = |known: &Held| parts(known) >= parts(&held);
        if self.held.get(&at).is_some_and(has_more) {
            return;
        }
        self.held_bytes += held.bytes.len();
        if let Some(old) = self.held.insert(at, held) {
            self.held_bytes -= old.bytes.len();
        }
    }

    /// Removes the first bytes that wait.
    pub(super) fn pop(&mut self) -> Held {
        let (_, held) = self.held.pop_first().expect("the caller has seen it");
        self.held_bytes -= held.bytes.len();
        held
    }

    /// Returns whether the byte at this offset waits.
    pub(super) fn covers(&self, offset: i64) -> bool {
        let before = self.held.range(..=offset).next_back();
        before.is_some_and(|(&at, held)| at + held.bytes.len() as i64 > offset)
    }

    /// Discards the waiting pieces that begin at this offset or after it.
    pub(super) fn forget_from(&mut self, at: i64) {
        let forgotten = self.held.split_off(&at);
        let bytes = forgotten.values().map(|held| held.bytes.len());
        self.held_bytes -= bytes.sum::<usize>();
    }

    /// Discards bytes for which the peer has offered no room, although it has been `heard` since.
    pub(super) fn forget_strays(&mut self, heard: u64) {
        while let Some((&at, last)) = self.held.last_key_value()
            && at > self.edge()
            && heard > last.heard + STRAY_PACKETS
        {
            self.forget_from(at);
        }
    }

    /// Discards bytes for which the peer has offered no room, if they are few packets or it has been
    /// `heard` since.
    pub(super) fn forget_few_strays(&mut self, heard: u64) {
        let outside = self.edge() + 1;
        let last = self
            .held
            .range(outside..)
            .filter(|(_, held)| held.heard == heard);
        if (last.count() as u64) < STRAY_PACKETS {
            self.forget_from(outside);
        }
    }

    /// Returns whether too much waits.
    pub(super) fn is_full(&self) -> bool {
        self.held_bytes > MAX_HELD_BYTES || self.held.len() > MAX_HELD_PACKETS
    }

    /// Returns whether the bytes have waited long enough.
    pub(super) fn gives_up(&self) -> bool {
        let Some((&at, _)) = self.held.first_key_value() else {
            return false;
        };
        // Either the peer has acknowledged the bytes that are missing in this direction, or the
        // bytes that wait answer bytes that are missing in the other direction.
        let is_acknowledged = self.acknowledged > self.next && at <= self.edge();
        let lost = at <= self.next || is_acknowledged;
        (lost && self.waited > LATE_PACKETS) || self.is_full()
    }
}

impl Held {
    /// Returns the number of bytes with the missing ones.
    pub(super) fn length(&self) -> i64 {
        self.bytes.len() as i64 + i64::from(self.missing)
    }
}
