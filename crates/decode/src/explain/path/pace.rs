//! How many bytes an end sends in each round trip, and whether a buffer limits them.
//!
//! ```text
//!   bytes in a round trip   = the window that the peer offers   -> the receive buffer of the peer
//!                           = the same in each of many          -> the send buffer of the end
//!                           anything else                       -> no buffer
//! ```
//!
//! A congestion window that is used up grows in each round trip without a loss, so it is not the same in many.

use super::super::timeline::Buffer;

/// What an end sends.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The time of the first packet of this round trip, its bytes, and the longest pause between two packets.
    since: u64,
    bytes: u64,
    pause: u64,
    last: u64,
    /// The smallest window of the peer in this round trip.
    window: Option<u32>,
    largest_packet: u64,
    /// The bytes of the last round trips, if they were the same, how many, and when the first began.
    same: (u64, u32, u64),
    /// Whether a loss has reduced the congestion window, which can be the same for long after that.
    has_lost: bool,
}

/// Round trips with the same bytes that show a buffer: a congestion window has grown by as many packets meanwhile.
const SAME_ROUND_TRIPS: u32 = 12;
/// Round trips count as the same if their bytes differ by less than this: two packets of Ethernet.
const SAME_BYTES: u64 = 3000;
/// Bytes in a round trip from this part of the window on use it up: the rest is less than a packet, or on its way.
const WINDOW_PERCENT: u64 = 75;
/// More than this part of the window in one round trip shows that the round trip is longer than it seems.
const MAX_WINDOW_PERCENT: u64 = 125;

impl Pace {
    /// Takes a packet with so many bytes at a time; `is_new` if they were not sent before. If a round trip has ended that a
    /// buffer limited, returns the end of that buffer and the beginning of the round trip.
    pub(super) fn send(
        &mut self,
        (bytes, now, is_new): (u64, u64, bool),
        window: Option<u32>,
        round_trip: u64,
    ) -> Option<(Buffer, u64)> {
        let length = now.saturating_sub(self.since);
        let mut limit = None;
        self.has_lost |= !is_new;
        if length >= round_trip - round_trip / 10 {
            self.pause = self.pause.max(now.saturating_sub(self.last));
            if length <= 2 * round_trip {
                limit = self.limit(round_trip);
            } else {
                self.same = (0, 0, now);
            }
            (self.since, self.bytes, self.pause, self.window) = (now, 0, 0, None);
        } else if self.bytes > 0 {
            self.pause = self.pause.max(now.saturating_sub(self.last));
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.last = now;
        self.largest_packet = self.largest_packet.max(bytes);
        if let Some(window) = window {
            self.window = Some(self.window.map_or(window, |least| least.min(window)));
        }
        limit
    }

    /// Returns the buffer that has limited the round trip that ends, and since when.
    fn limit(&mut self, round_trip: u64) -> Option<(Buffer, u64)> {
        let window = self.window.map(u64::from).filter(|&window| window > 0);
        if let Some(window) = window {
            let percent = self.bytes.saturating_mul(100) / window;
            let leaves_no_packet = self.bytes.saturating_add(self.largest_packet) >= window;
            if (percent >= WINDOW_PERCENT || leaves_no_packet) && percent <= MAX_WINDOW_PERCENT {
                return Some((Buffer::Receive, self.since));
            }
        }
        let (before, count, first) = self.same;
        let difference = self.bytes.abs_diff(before);
        // On a path that is full, packets follow each other without a pause.
        let has_paused = self.pause >= round_trip / 4 && !self.has_lost;
        let is_same = has_paused && difference <= SAME_BYTES;
        self.same = if is_same {
            (before, count.saturating_add(1), first)
        } else {
            (self.bytes, 0, self.since)
        };
        // All of them count when there are enough.
        match self.same.1 {
            SAME_ROUND_TRIPS => Some((Buffer::Send, self.same.2)),
            count if count > SAME_ROUND_TRIPS => Some((Buffer::Send, self.since)),
            _ => None,
        }
    }
}
