//! How many bytes an end sends in each round trip, and whether the window of its peer limits them: the bytes of one
//! window pass in each round trip.

/// The bytes that an end sends in each round trip.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The time of the first packet of this round trip, and the bytes since then.
    since: u64,
    bytes: u64,
    /// The smallest window of the peer in this round trip.
    window: Option<u32>,
    largest_packet: u64,
}

/// Bytes in a round trip from this part of the window on use it up: the rest is less than a packet, or on its way.
const WINDOW_PERCENT: u64 = 75;
/// More than this part of the window in one round trip shows that the round trip is longer than it seems.
const MAX_WINDOW_PERCENT: u64 = 125;

impl Pace {
    /// Takes a packet with so many bytes at a time. If a round trip has ended that the window has limited, returns its bytes
    /// and when it began.
    pub(super) fn send(
        &mut self,
        (bytes, now): (u64, u64),
        window: Option<u32>,
        round_trip: u64,
    ) -> Option<(u64, u64)> {
        let length = now.saturating_sub(self.since);
        let mut limit = None;
        if length >= round_trip - round_trip / 10 {
            let is_full = length / 2 <= round_trip && self.uses_up_window();
            limit = is_full.then_some((self.bytes, self.since));
            (self.since, self.bytes, self.window) = (now, 0, None);
        }
        self.bytes = self.bytes.saturating_add(bytes);
        self.largest_packet = self.largest_packet.max(bytes);
        if let Some(window) = window {
            self.window = Some(self.window.map_or(window, |least| least.min(window)));
        }
        limit
    }

    fn uses_up_window(&self) -> bool {
        let Some(window @ 1..) = self.window.map(u64::from) else {
            return false;
        };
        let percent = self.bytes.saturating_mul(100) / window;
        let leaves_no_packet = self.bytes.saturating_add(self.largest_packet) >= window;
        (percent >= WINDOW_PERCENT || leaves_no_packet) && percent <= MAX_WINDOW_PERCENT
    }
}
