//! The check of the IPv4 Identification of a connection's packets.
//!
//! A UDP socket does not show the Identification of a received packet, but the ICRC covers it.
//! [`icrc::solve`](crate::roce::icrc::solve) finds the one value that makes the ICRC right,
//! and for a damaged packet it finds one in 65536 cases. Senders number their packets upward from a
//! random start (Linux rxe), from 0 in each group of packets (this library), or send 0 always. So a
//! value far from the previous one shows a damaged packet.
//!
//! Linux has one counter for all packets from one address to another, whatever connection they belong to. After a
//! silence it also advances by a random number, at most the number of clock ticks since the last packet. So a
//! value may continue the value of another connection of the peer, and after a silence every value is accepted.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

/// How far an Identification may be ahead of the previous one.
const MAX_STEP: u16 = 256;
/// The number of Identifications that this library uses, from 0 on: the most packets in one group.
const GROUP: u16 = 128;
/// The number of consecutive packets with unexpected values after which the sender's values are considered
/// unordered.
const MAX_UNEXPECTED: u8 = 8;
/// The time without a packet after which every value is accepted. A peer waits longer than this before each
/// retry.
const SILENCE: Duration = Duration::from_millis(1);

/// The Identifications of the packets that one peer sends on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identification {
    /// The value of the last accepted packet.
    last: Option<u16>,
    /// What is added to `last` to guess the next value: 0 if the last two accepted packets had the same value,
    /// otherwise 1.
    step: u16,
    /// The value of the last packet that was not accepted.
    candidate: Option<u16>,
    /// The number of consecutive unexpected values.
    unexpected: u8,
    /// Whether the sender's values have no order, and all are accepted.
    is_unordered: bool,
    /// The time of the last accepted packet.
    accepted_at: Option<Instant>,
}

impl Identification {
    /// Creates the state before the first packet.
    pub(super) const fn new() -> Self {
        Self {
            last: None,
            step: 0,
            candidate: None,
            unexpected: 0,
            is_unordered: false,
            accepted_at: None,
        }
    }

    /// Returns the most probable value of the next packet.
    pub(super) const fn guess(&self) -> u16 {
        match self.last {
            None => 0,
            Some(last) => last.wrapping_add(self.step),
        }
    }

    /// Returns whether a packet with this value is accepted at `now`. `recent` has the values of other
    /// connections of the peer.
    pub(super) fn accept(
        &mut self,
        now: Instant,
        value: u16,
        peer: IpAddr,
        recent: &RecentIdentifications,
    ) -> bool {
        //= ROCE-UDP-03
        let expected = self.is_unordered || value < GROUP || follows(self.last, value);
        if expected || self.is_plausible(now, value) || recent.precede(peer, value) {
            self.step = match self.last {
                Some(last) => u16::from(value != last),
                None => self.step,
            };
            self.last = Some(value);
            self.candidate = None;
            self.unexpected = 0;
            self.accepted_at = Some(now);
            return true;
        }
        self.candidate = Some(value);
        self.unexpected += 1;
        self.is_unordered = self.unexpected >= MAX_UNEXPECTED;
        self.is_unordered
    }

    /// Returns whether a value that does not continue the last one may come from the sender's counter.
    #[cold]
    fn is_plausible(&self, now: Instant, value: u16) -> bool {
        let silence = self.accepted_at.map(|at| now.saturating_duration_since(at));
        silence.is_none_or(|silence| silence >= SILENCE) || follows(self.candidate, value)
    }
}

/// Returns whether `value` is close to `previous`. Reordered packets are a little behind it.
fn follows(previous: Option<u16>, value: u16) -> bool {
    let ahead = |previous| value.wrapping_sub(previous) as i16;
    previous.is_some_and(|previous| ahead(previous).unsigned_abs() <= MAX_STEP)
}

/// The last values of the connections that received packets most recently, the most recent first.
#[derive(Debug, Default)]
pub(super) struct RecentIdentifications([Option<Recent>; 8]);

#[derive(Clone, Copy, Debug)]
struct Recent {
    queue_pair: u32,
    peer: IpAddr,
    value: u16,
}

impl RecentIdentifications {
    /// Records the value of an accepted packet.
    pub(super) fn record(&mut self, queue_pair: u32, peer: IpAddr, value: u16) {
        match &mut self.0[0] {
            Some(latest) if latest.queue_pair == queue_pair => latest.value = value,
            _ => self.insert(Recent {
                queue_pair,
                peer,
                value,
            }),
        }
    }

    #[cold]
    fn insert(&mut self, latest: Recent) {
        let is_same = |known: &Option<Recent>| {
            known.is_some_and(|known| known.queue_pair == latest.queue_pair)
        };
        let at = self.0.iter().position(is_same).unwrap_or(self.0.len() - 1);
        self.0[..=at].rotate_right(1);
        self.0[0] = Some(latest);
    }

    /// Returns whether `value` continues the value of a connection of `peer`.
    #[cold]
    fn precede(&self, peer: IpAddr, value: u16) -> bool {
        let known = self.0.iter().flatten();
        known
            .filter(|known| known.peer == peer)
            .any(|known| follows(Some(known.value), value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    /// A connection, with a clock that only the test advances.
    struct Receiver {
        identification: Identification,
        now: Instant,
        recent: RecentIdentifications,
    }

    impl Receiver {
        fn new() -> Self {
            Self {
                identification: Identification::new(),
                now: Instant::now(),
                recent: RecentIdentifications::default(),
            }
        }

        fn accept(&mut self, value: u16) -> bool {
            self.identification
                .accept(self.now, value, PEER, &self.recent)
        }
    }

    fn accepted(values: impl IntoIterator<Item = u16>) -> Vec<bool> {
        let mut receiver = Receiver::new();
        values
            .into_iter()
            .map(|value| receiver.accept(value))
            .collect()
    }

    //= ROCE-UDP-03 test
    #[test]
    fn the_order_of_known_senders_is_accepted() {
        let rxe = (0..1000).map(|i| 65_000_u16.wrapping_add(i));
        let groups = (0..1000).map(|i| i % 64);
        for values in [rxe.collect::<Vec<_>>(), groups.collect(), vec![0; 100]] {
            assert!(accepted(values).iter().all(|&accepted| accepted));
        }
        let mut receiver = Receiver::new();
        assert_eq!(receiver.identification.guess(), 0);
        for value in [500, 501, 502] {
            receiver.accept(value);
        }
        assert_eq!(receiver.identification.guess(), 503);
        receiver.accept(502);
        assert_eq!(receiver.identification.guess(), 502);
    }

    //= ROCE-UDP-03 test
    #[test]
    fn a_damaged_packet_is_not_accepted_and_a_new_order_is() {
        let values = [500, 501, 40_000, 502, 30_000, 30_001, 30_002];
        let expected = [true, true, false, true, false, true, true];
        assert_eq!(accepted(values), expected);
    }

    //= ROCE-UDP-03 test
    #[test]
    fn a_sender_without_an_order_is_accepted_after_a_few_packets() {
        let mut random = fastrand::Rng::with_seed(7);
        let accepted = accepted((0..1000).map(|_| random.u16(1000..)));
        assert!(accepted[30..].iter().all(|&accepted| accepted));
        assert!(accepted[..8].iter().filter(|&&accepted| accepted).count() < 3);
    }

    /// A peer with one packet to send, whose counter has moved, must not have to send it again.
    //= ROCE-UDP-03 test
    #[test]
    fn any_value_is_accepted_after_a_silence() {
        let mut receiver = Receiver::new();
        for value in [500, 40_000, 10_000, 30_000] {
            receiver.now += SILENCE;
            assert!(receiver.accept(value));
        }
        receiver.now += SILENCE / 2;
        assert!(!receiver.accept(50_000));
        // The packet is sent again.
        receiver.now += SILENCE / 2;
        assert!(receiver.accept(20_000));
    }

    //= ROCE-UDP-03 test
    #[test]
    fn connections_of_a_peer_share_its_counter() {
        let mut receiver = Receiver::new();
        assert!(receiver.accept(1000));
        assert!(!receiver.accept(2000));
        let other = IpAddr::V6(std::net::Ipv6Addr::LOCALHOST);
        receiver.recent.record(7, other, 3000);
        assert!(!receiver.accept(3001));
        receiver.recent.record(8, PEER, 4000);
        assert!(receiver.accept(4001));
        // Only the latest connections count.
        receiver.recent.record(8, PEER, 5000);
        for queue_pair in 9..16 {
            receiver.recent.record(queue_pair, other, 0);
        }
        assert!(receiver.accept(5001));
        receiver.recent.record(16, other, 0);
        receiver.recent.record(9, other, 0);
        assert!(!receiver.accept(6000));
        assert_eq!(receiver.recent.0.iter().flatten().count(), 8);
    }
}
