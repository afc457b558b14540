//! The check of the IPv4 Identification of a connection's packets.
//!
//! A UDP socket does not show the Identification of a received packet, but the ICRC covers it.
//! [`icrc::solve`](crate::rdma::roce::icrc::solve) finds the one value that makes the ICRC right,
//! and for a damaged packet it finds one in 65536 cases. Senders number their packets upward from a
//! random start (Linux rxe), from 0 in each group of packets (this library), or send 0 always. So a
//! value far from the previous one shows a damaged packet.

/// How far an Identification may be ahead of the previous one.
const MAX_STEP: u16 = 256;
/// The Identifications from 0 on that this library uses: the packets of one group.
const GROUP: u16 = 128;
/// The packets with unexpected values in a row, after which the values of the sender have no order.
const MAX_UNEXPECTED: u8 = 8;

/// The Identifications of the packets that one peer sends on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identification {
    /// The value of the last accepted packet.
    last: Option<u16>,
    /// The difference between the last two accepted packets, 0 or 1.
    step: u16,
    /// The value of the last packet that was not accepted.
    candidate: Option<u16>,
    /// The unexpected values in a row.
    unexpected: u8,
    /// Whether the sender's values have no order, and all are accepted.
    is_unordered: bool,
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
        }
    }

    /// Returns the most probable value of the next packet.
    pub(super) const fn guess(&self) -> u16 {
        match self.last {
            None => 0,
            Some(last) => last.wrapping_add(self.step),
        }
    }

    /// Returns whether a packet with this value is accepted.
    pub(super) fn accept(&mut self, value: u16) -> bool {
        //= ROCE-UDP-03
        let expected = self.is_unordered || value < GROUP || self.follows(self.last, value);
        if expected || self.last.is_none() || self.follows(self.candidate, value) {
            self.step = match self.last {
                Some(last) => u16::from(value != last),
                None => self.step,
            };
            self.last = Some(value);
            self.candidate = None;
            self.unexpected = 0;
            return true;
        }
        self.candidate = Some(value);
        self.unexpected += 1;
        self.is_unordered = self.unexpected >= MAX_UNEXPECTED;
        self.is_unordered
    }

    /// Returns whether `value` is close to `previous`. Reordered packets are a little behind it.
    fn follows(&self, previous: Option<u16>, value: u16) -> bool {
        let ahead = |previous| value.wrapping_sub(previous) as i16;
        previous.is_some_and(|previous| ahead(previous).unsigned_abs() <= MAX_STEP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(values: impl IntoIterator<Item = u16>) -> Vec<bool> {
        let mut identification = Identification::new();
        let values = values.into_iter();
        values.map(|value| identification.accept(value)).collect()
    }

    //= ROCE-UDP-03 test
    #[test]
    fn the_order_of_known_senders_is_accepted() {
        let rxe = (0..1000).map(|i| 65_000_u16.wrapping_add(i));
        let groups = (0..1000).map(|i| i % 64);
        for values in [rxe.collect::<Vec<_>>(), groups.collect(), vec![0; 100]] {
            assert!(accepted(values).iter().all(|&accepted| accepted));
        }
        let mut identification = Identification::new();
        assert_eq!(identification.guess(), 0);
        for value in [500, 501, 502] {
            identification.accept(value);
        }
        assert_eq!(identification.guess(), 503);
        identification.accept(502);
        assert_eq!(identification.guess(), 502);
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
}
