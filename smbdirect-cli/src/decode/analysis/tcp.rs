//! One TCP connection of a capture: the bytes of both directions, in an order that was possible.
//!
//! A direction is put together by its sequence numbers: what came twice counts once, what came
//! early waits for what is before it. Between the directions the acknowledgements decide: bytes
//! whose sender had already seen some of the other direction wait until those have been told, so
//! an answer never comes before what it answers, however the packets stand in the file.
//!
//! What never comes is a gap. It is told when the peer has acknowledged the missing bytes and
//! they still have not shown up, when too much waits behind them, or when the capture ends.

use std::{collections::BTreeMap, time::Duration};

use super::packet::Segment;

/// Where in the file something stands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    /// The number of the packet.
    pub(crate) frame: u64,
    /// Its time, since 1970.
    pub(crate) time: Duration,
}

/// What comes next in a direction.
#[derive(Debug)]
pub(crate) enum Piece<'a> {
    Bytes(&'a [u8]),
    /// So many bytes are not in the capture.
    Gap(u64),
    /// Nothing more: TCP was closed, or reset.
    End {
        reset: bool,
    },
}

/// Takes what comes next: the direction, what, and where it stands.
pub(crate) type Told<'a> = &'a mut dyn FnMut(usize, Piece<'_>, Place);

/// What is kept of a connection.
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
    /// The place of the next byte to tell.
    next: i64,
    /// The place behind the last byte that the peer has acknowledged.
    acknowledged: i64,
    /// What waits, by its place.
    held: BTreeMap<i64, Held>,
    held_bytes: usize,
    /// Packets of the connection since something waits.
    waited: u32,
    /// Where the direction ends, once a FIN has been seen.
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

/// How long bytes that the peer has acknowledged may be late, in packets of the connection: what
/// two processors, or two network cards, may put into the wrong order.
const LATE_PACKETS: u32 = 64;
/// What may wait behind a hole in one direction.
const MAX_HELD_BYTES: usize = 4 << 20;
const MAX_HELD: usize = 4096;

impl Connection {
    /// Takes the next packet; `way` is its direction.
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

    /// Tells what waits, with the gaps before it.
    pub(crate) fn flush(&mut self, told: Told<'_>) {
        while self.ways.iter().any(|way| !way.held.is_empty()) {
            self.force(told);
        }
    }

    /// Nobody wants the rest of it.
    pub(crate) fn forget(&mut self) {
        self.ended = true;
        for way in &mut self.ways {
            way.held.clear();
            way.held_bytes = 0;
        }
    }

    /// Bytes that wait.
    pub(crate) fn held_bytes(&self) -> usize {
        self.ways.iter().map(|way| way.held_bytes).sum()
    }

    /// Whether nothing more can come of it.
    pub(crate) const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Whether a SYN is that of another connection between the same ends.
    pub(crate) fn is_another(&self, way: usize, segment: &Segment<'_>) -> bool {
        let first = segment.sequence.wrapping_add(1);
        segment.syn && self.ways[way].base.is_some_and(|base| base != first)
    }

    /// Tells what can be told.
    fn drain(&mut self, told: Told<'_>) {
        while (0..2).any(|way| self.advance(way, told)) {}
    }

    /// Tells the next piece of a direction, if it is there and its time has come.
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
        // A packet that was cut; the missing part may come again, whole.
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

    /// Declares lost what the packet waits for that has waited longest.
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
            // It waits for the other direction.
            let held = self.ways[way].held.get_mut(&at).expect("it is there");
            let acknowledged = held.acknowledged.take();
            let place = held.place;
            let other = &mut self.ways[1 - way];
            let seen = acknowledged.map_or(other.next, |seen| other.place(seen));
            let until = match other.held.first_key_value() {
                Some((&at, _)) => at.min(seen),
                None => seen,
            };
            // One less may be a FIN, which is no byte.
            if until > other.next + 1 {
                let gap = until - other.next;
                other.next = until;
                told(1 - way, Piece::Gap(gap as u64), place);
            }
        }
        self.drain(told);
    }

    /// What is before the place `until` is lost.
    fn lose(&mut self, way: usize, until: i64, told: Told<'_>) {
        let this = &mut self.ways[way];
        let gap = until - this.next;
        let place = this.held.get(&until).map(|held| held.place);
        this.next = until;
        told(way, Piece::Gap(gap as u64), place.unwrap_or_default());
    }
}

impl Way {
    /// The first packet of a direction says where its bytes begin.
    fn begin(&mut self, segment: &Segment<'_>) {
        let syn = u32::from(segment.syn);
        self.base
            .get_or_insert_with(|| segment.sequence.wrapping_add(syn));
    }

    /// The place of a sequence number, which is near the next byte.
    fn place(&self, sequence: u32) -> i64 {
        let Some(base) = self.base else {
            return 0;
        };
        let next = base.wrapping_add(self.next as u32);
        self.next + i64::from(sequence.wrapping_sub(next) as i32)
    }

    /// Whether all that a packet of the other direction acknowledges has been told.
    fn has_told(&self, acknowledged: Option<u32>) -> bool {
        match (self.base, acknowledged) {
            // A FIN counts as a byte.
            (Some(_), Some(acknowledged)) => self.place(acknowledged) <= self.next + 1,
            _ => true,
        }
    }

    /// Keeps what a packet carries, as far as it is new.
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

    /// Whether what waits has the byte at this place.
    fn covers(&self, place: i64) -> bool {
        let before = self.held.range(..=place).next_back();
        before.is_some_and(|(&at, held)| at + held.bytes.len() as i64 > place)
    }

    /// Whether what waits has waited long enough.
    fn gives_up(&self) -> bool {
        let Some((&at, _)) = self.held.first_key_value() else {
            return false;
        };
        // Either the peer has got what is missing here, or it has been sent to somebody who is
        // known to have got what is missing there.
        let lost = at <= self.next || self.acknowledged > self.next;
        (lost && self.waited > LATE_PACKETS)
            || self.held_bytes > MAX_HELD_BYTES
            || self.held.len() > MAX_HELD
    }
}
