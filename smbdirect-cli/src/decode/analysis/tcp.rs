//! One TCP connection of a capture: the bytes of both directions, in a possible order.
//!
//! A direction is reassembled by its sequence numbers: repeated bytes count once, early bytes wait
//! for those before them. Acknowledgements order the two directions: bytes whose sender had seen
//! some of the other direction wait until those have been reported, so an answer never comes before
//! what it answers, whatever the order of the packets in the file.
//!
//! Bytes that never come are a gap. It is reported when the peer has acknowledged the missing bytes
//! and they still have not appeared, when too much waits for them, or when the capture ends.

use std::{collections::BTreeMap, time::Duration};

use super::packet::Segment;

/// A place in the capture file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    /// The number of the packet.
    pub(crate) frame: u64,
    /// The time of the packet since 1970.
    pub(crate) time: Duration,
}

/// The next item of a direction.
#[derive(Debug)]
pub(crate) enum Piece<'a> {
    Bytes(&'a [u8]),
    /// This many bytes are not in the capture.
    Gap(u64),
    /// The end: TCP was closed or reset.
    End {
        reset: bool,
    },
}

/// Receives the next item, with its direction and place.
pub(crate) type Told<'a> = &'a mut dyn FnMut(usize, Piece<'_>, Place);

/// The state of a connection.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    ways: [Way; 2],
    ended: bool,
}

/// One direction.
#[derive(Debug, Default)]
struct Way {
    /// The sequence number of the byte at place 0.
    base: Option<u32>,
    /// The place of the next byte to report.
    next: i64,
    /// The place after the last byte that the peer has acknowledged.
    acknowledged: i64,
    /// Bytes that wait, by their place.
    held: BTreeMap<i64, Held>,
    held_bytes: usize,
    /// Packets of the connection since the first byte began to wait.
    waited: u32,
    /// The place where the direction ends, once a FIN was seen.
    fin: Option<(i64, Place)>,
    ended: bool,
}

#[derive(Debug)]
struct Held {
    bytes: Vec<u8>,
    missing: u32,
    acknowledged: Option<u32>,
    place: Place,
}

/// Number of packets of the connection by which acknowledged bytes may be late, because two processors
/// or network cards can put packets into the wrong order.
const LATE_PACKETS: u32 = 64;
/// Most bytes that wait after a gap in one direction.
const MAX_HELD_BYTES: usize = 4 << 20;
/// Most packets that wait after a gap in one direction.
const MAX_HELD_PACKETS: usize = 4096;

impl Connection {
    /// Handles the next packet; `way` is its direction.
    pub(crate) fn segment(
        &mut self,
        way: usize,
        segment: &Segment<'_>,
        place: Place,
        told: Told<'_>,
    ) {
        if self.ended {
            return;
        }
        self.ways[way].begin(segment);
        if let Some(acknowledged) = segment.acknowledged {
            let other = &mut self.ways[1 - way];
            let at = other.place(acknowledged);
            other.acknowledged = other.acknowledged.max(at);
        }
        self.ways[way].take(segment, place);
        self.drain(told);
        for side in 0..2 {
            self.ways[side].waited += u32::from(!self.ways[side].held.is_empty());
        }
        while (0..2).any(|side| self.ways[side].gives_up()) {
            self.force(told);
        }
        if segment.rst {
            self.flush(told);
            for side in 0..2 {
                self.end(side, true, place, told);
            }
        }
        self.ended = self.ways.iter().all(|way| way.ended);
    }

    /// Reports what waits, with the gaps before it.
    pub(crate) fn flush(&mut self, told: Told<'_>) {
        while self.ways.iter().any(|way| !way.held.is_empty()) {
            self.force(told);
        }
    }

    /// Discards the rest of the connection.
    pub(crate) fn forget(&mut self) {
        self.ended = true;
        for way in &mut self.ways {
            way.held.clear();
            way.held_bytes = 0;
        }
    }

    /// Returns the number of bytes that wait.
    pub(crate) fn held_bytes(&self) -> usize {
        self.ways.iter().map(|way| way.held_bytes).sum()
    }

    /// Returns whether the connection has ended.
    pub(crate) const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns whether a SYN begins another connection between the same ends.
    pub(crate) fn is_another(&self, way: usize, segment: &Segment<'_>) -> bool {
        let first = segment.sequence.wrapping_add(1);
        segment.syn && self.ways[way].base.is_some_and(|base| base != first)
    }

    /// Reports everything that is in order.
    fn drain(&mut self, told: Told<'_>) {
        while (0..2).any(|way| self.advance(way, told)) {}
    }

    /// Reports the next piece of a direction, if it is in order.
    fn advance(&mut self, way: usize, told: Told<'_>) -> bool {
        let Some((&at, held)) = self.ways[way].held.first_key_value() else {
            return self.advance_to_end(way, told);
        };
        if at > self.ways[way].next || !self.ways[1 - way].has_told(held.acknowledged) {
            return false;
        }
        let this = &mut self.ways[way];
        let (_, held) = this.held.pop_first().expect("it was just there");
        this.held_bytes -= held.bytes.len();
        this.waited = 0;
        let known = usize::try_from(this.next - at).unwrap_or(usize::MAX);
        if let Some(bytes) = held.bytes.get(known..)
            && !bytes.is_empty()
        {
            this.next += bytes.len() as i64;
            told(way, Piece::Bytes(bytes), held.place);
        }
        let end = at + held.bytes.len() as i64 + i64::from(held.missing);
        // The packet was cut; the missing part may come again in another packet.
        if held.missing > 0 && end > this.next && !this.covers(this.next) {
            let gap = end - this.next;
            this.next = end;
            told(way, Piece::Gap(gap as u64), held.place);
        }
        true
    }

    fn advance_to_end(&mut self, way: usize, told: Told<'_>) -> bool {
        match self.ways[way].fin {
            Some((at, place)) if at <= self.ways[way].next && !self.ways[way].ended => {
                self.end(way, false, place, told);
                true
            }
            _ => false,
        }
    }

    fn end(&mut self, way: usize, reset: bool, place: Place, told: Told<'_>) {
        if !self.ways[way].ended {
            self.ways[way].ended = true;
            told(way, Piece::End { reset }, place);
        }
    }

    /// Declares lost the bytes that the longest-waiting packet waits for.
    fn force(&mut self, told: Told<'_>) {
        let first = |way: &usize| {
            let held = self.ways[*way].held.first_key_value();
            held.map(|(&at, held)| (held.place.frame, *way, at))
        };
        let Some((_, way, at)) = (0..2).filter_map(|way| first(&way)).min() else {
            return;
        };
        if at > self.ways[way].next {
            self.lose(way, at, told);
        } else {
            // The packet waits for the other direction.
            let held = self.ways[way].held.get_mut(&at).expect("it is there");
            let acknowledged = held.acknowledged.take();
            let place = held.place;
            let other = &mut self.ways[1 - way];
            let seen = acknowledged.map_or(other.next, |seen| other.place(seen));
            let until = match other.held.first_key_value() {
                Some((&at, _)) => at.min(seen),
                None => seen,
            };
            // The last place may be a FIN, which is no byte.
            if until > other.next + 1 {
                let gap = until - other.next;
                other.next = until;
                told(1 - way, Piece::Gap(gap as u64), place);
            }
        }
        self.drain(told);
    }

    /// Declares lost everything before the place `until`.
    fn lose(&mut self, way: usize, until: i64, told: Told<'_>) {
        let this = &mut self.ways[way];
        let gap = until - this.next;
        let place = this.held.get(&until).map(|held| held.place);
        this.next = until;
        told(way, Piece::Gap(gap as u64), place.unwrap_or_default());
    }
}

impl Way {
    /// Sets the first place of a direction by its first packet.
    fn begin(&mut self, segment: &Segment<'_>) {
        let syn = u32::from(segment.syn);
        self.base
            .get_or_insert_with(|| segment.sequence.wrapping_add(syn));
    }

    /// Returns the place of a sequence number, which is near the next byte.
    fn place(&self, sequence: u32) -> i64 {
        let Some(base) = self.base else {
            return 0;
        };
        let next = base.wrapping_add(self.next as u32);
        self.next + i64::from(sequence.wrapping_sub(next) as i32)
    }

    /// Returns whether everything that a packet of the other direction acknowledges has been
    /// reported.
    fn has_told(&self, acknowledged: Option<u32>) -> bool {
        match (self.base, acknowledged) {
            // A FIN counts as one byte.
            (Some(_), Some(acknowledged)) => self.place(acknowledged) <= self.next + 1,
            _ => true,
        }
    }

    /// Keeps the new bytes of a packet.
    fn take(&mut self, segment: &Segment<'_>, place: Place) {
        let first = segment.sequence.wrapping_add(u32::from(segment.syn));
        let at = self.place(first);
        let end = at + segment.payload.len() as i64 + i64::from(segment.missing);
        if segment.fin && self.fin.is_none() && end >= self.next {
            self.fin = Some((end, place));
        }
        if end <= self.next || self.ended {
            return;
        }
        let known = usize::try_from(self.next - at).unwrap_or(0);
        let Some(bytes) = segment.payload.get(known..) else {
            return;
        };
        let at = at + known as i64;
        if self
            .held
            .get(&at)
            .is_some_and(|held| held.bytes.len() >= bytes.len())
        {
            return;
        }
        let held = Held {
            bytes: bytes.to_vec(),
            missing: segment.missing,
            acknowledged: segment.acknowledged,
            place,
        };
        self.held_bytes += bytes.len();
        if let Some(old) = self.held.insert(at, held) {
            self.held_bytes -= old.bytes.len();
        }
    }

    /// Returns whether the byte at this place waits.
    fn covers(&self, place: i64) -> bool {
        let before = self.held.range(..=place).next_back();
        before.is_some_and(|(&at, held)| at + held.bytes.len() as i64 > place)
    }

    /// Returns whether the bytes have waited long enough.
    fn gives_up(&self) -> bool {
        let Some((&at, _)) = self.held.first_key_value() else {
            return false;
        };
        // Either the peer has acknowledged the bytes that are missing in this direction, or the
        // bytes that wait answer bytes that are missing in the other direction.
        let lost = at <= self.next || self.acknowledged > self.next;
        (lost && self.waited > LATE_PACKETS)
            || self.held_bytes > MAX_HELD_BYTES
            || self.held.len() > MAX_HELD_PACKETS
    }
}
