//! How many bytes an end sends in each round trip, and whether a buffer limits them.
//!
//! ```text
//!   bytes in a round trip   = the window that the peer offers   -> the receive buffer of the peer
//!                           = about the same, for many of them   -> the send buffer of the end
//!                           anything else                       -> no buffer
//! ```
//!
//! A congestion window that is used up grows in each round trip without a loss, so it does not stay the same.

use std::collections::VecDeque;

use super::super::timeline::Buffer;

/// The bytes that an end sends in each round trip.
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
    /// Beginning and bytes of the last round trips that have no pause between them.
    last_trips: VecDeque<(u64, u64)>,
    /// Whether all of them were limited by the send buffer.
    is_limited: bool,
    /// Whether a loss has reduced the congestion window, which can be the same for long after that.
    has_lost: bool,
}

/// Round trips that show a buffer. A congestion window has grown by half a packet in each of them, or more.
const TRIPS: usize = 16;
/// The mean bytes of the first and of the last [`ENDS`] of them differ by less than this: four packets of Ethernet.
const GROWTH_BYTES: u64 = 4 * 1460;
const ENDS: usize = 4;
/// Bytes in a round trip from this part of the window on use it up: the rest is less than a packet, or on its way.
const WINDOW_PERCENT: u64 = 75;
/// More than this part of the window in one round trip shows that the round trip is longer than it seems.
const MAX_WINDOW_PERCENT: u64 = 125;

impl Pace {
    /// Takes a packet of `bytes` bytes at `now`; `is_new` if they were not sent before. If a round trip has ended that a
    /// buffer may have limited, returns that buffer, the bytes, and the beginning.
    pub(super) fn send(
        &mut self,
        (bytes, now, is_new): (u64, u64, bool),
        window: Option<u32>,
        round_trip: u64,
    ) -> Option<(Buffer, u64, u64)> {
        let length = now.saturating_sub(self.since);
        let mut limit = None;
        self.has_lost |= !is_new;
        if length >= round_trip - round_trip / 10 {
            self.pause = self.pause.max(now.saturating_sub(self.last));
            if length <= 2 * round_trip {
                limit = self.limit(round_trip);
            } else {
                self.forget();
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

    /// Returns the buffer that has limited the round trip that ends, the bytes, and since when.
    fn limit(&mut self, round_trip: u64) -> Option<(Buffer, u64, u64)> {
        let window = self.window.map(u64::from).filter(|&window| window > 0);
        if let Some(window) = window {
            let percent = self.bytes.saturating_mul(100) / window;
            let leaves_no_packet = self.bytes.saturating_add(self.largest_packet) >= window;
            if (percent >= WINDOW_PERCENT || leaves_no_packet) && percent <= MAX_WINDOW_PERCENT {
                return Some((Buffer::Receive, self.bytes, self.since));
            }
        }
        // On a path that is full, packets follow each other without a pause.
        if self.has_lost || self.pause < round_trip / 4 {
            self.forget();
            return None;
        }
        self.last_trips.truncate(TRIPS - 1);
        self.last_trips.push_front((self.since, self.bytes));
        let all = || self.last_trips.iter().map(|&(_, bytes)| bytes);
        let mean = |bytes: u64| bytes / ENDS as u64;
        let newest = mean(all().take(ENDS).sum());
        let oldest = mean(all().rev().take(ENDS).sum());
        let [least, most] = [all().min(), all().max()].map(Option::unwrap_or_default);
        let is_same = self.last_trips.len() == TRIPS
            && newest.abs_diff(oldest) < GROWTH_BYTES
            && most / 2 <= least;
        // All of them count when there are enough.
        let was_limited = std::mem::replace(&mut self.is_limited, is_same);
        let first = self.last_trips.back().filter(|_| !was_limited);
        let since = first.map_or(self.since, |&(since, _)| since);
        is_same.then_some((Buffer::Send, most, since))
    }

    /// Forgets the last round trips.
    fn forget(&mut self) {
        self.last_trips.clear();
        self.is_limited = false;
    }
}
