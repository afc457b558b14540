//! [`Statistics`]: the traffic of a connection, its waits, and its outstanding work.

use std::{ops::AddAssign, time::Duration};

/// The traffic of a connection since it began, and its outstanding work now.
///
/// Statistics can be added up, for example over all connections of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Upper-layer messages sent.
    pub messages_sent: u64,
    /// Upper-layer messages received completely.
    pub messages_received: u64,
    /// Data Transfer messages sent with a payload.
    pub segments_sent: u64,
    /// Data Transfer messages received with a payload.
    pub segments_received: u64,
    /// Data Transfer messages sent without a payload.
    pub empty_sent: u64,
    /// Data Transfer messages received without a payload.
    pub empty_received: u64,
    /// Payload bytes sent in messages.
    pub bytes_sent: u64,
    /// Payload bytes received in messages.
    pub bytes_received: u64,
    /// Credits granted to the peer.
    pub credits_granted: u64,
    /// Credits granted by the peer.
    pub credits_received: u64,
    /// Times that a message began to wait for a send credit.
    pub credit_stalls: u64,
    /// Time during which messages waited for a send credit.
    pub credit_stall_time: Duration,
    /// The waits for a send credit that have ended.
    pub credit_waits: RoundTrips,
    /// Times that a message, read or write began to wait because the send queue of the queue pair
    /// was full.
    pub send_queue_stalls: u64,
    /// Keepalives sent (RESPONSE_REQUESTED).
    pub keepalives_sent: u64,
    /// Keepalives received.
    pub keepalives_received: u64,
    /// Times from sending a keepalive to the next message of the peer.
    pub keepalive_round_trips: RoundTrips,
    /// Local tokens that the peer invalidated.
    pub tokens_invalidated: u64,
    /// Tokens of the peer that messages sent from here invalidate. Providers without Send with
    /// Invalidate send these messages without the invalidation.
    pub invalidations_sent: u64,
    /// RDMA Read operations completed; a long read takes several.
    pub reads: u64,
    /// RDMA Write operations completed; a long write takes several.
    pub writes: u64,
    /// Bytes read by RDMA.
    pub bytes_read: u64,
    /// Bytes written by RDMA.
    pub bytes_written: u64,
    /// Bytes sent on the network, with the headers of RDMA and without those of TCP, UDP and IP; in process, bytes
    /// of segments, reads and writes. 0 over RDMA adapters, which do not count them.
    pub wire_bytes_sent: u64,
    /// Bytes received from the network, counted as `wire_bytes_sent` are.
    pub wire_bytes_received: u64,
    /// Memory regions registered since the connection began.
    pub registrations: u64,
    /// Receives posted now.
    pub receives_outstanding: u64,
    /// Sends, Reads and Writes posted now.
    pub work_outstanding: u64,
    /// Memory regions registered now.
    pub regions: u64,
}

impl AddAssign for Statistics {
    fn add_assign(&mut self, other: Self) {
        // Every field is named, so that a new one is not forgotten.
        let Self {
            messages_sent,
            messages_received,
            segments_sent,
            segments_received,
            empty_sent,
            empty_received,
            bytes_sent,
            bytes_received,
            credits_granted,
            credits_received,
            credit_stalls,
            credit_stall_time,
            credit_waits,
            send_queue_stalls,
            keepalives_sent,
            keepalives_received,
            keepalive_round_trips,
            tokens_invalidated,
            invalidations_sent,
            reads,
            writes,
            bytes_read,
            bytes_written,
            wire_bytes_sent,
            wire_bytes_received,
            registrations,
            receives_outstanding,
            work_outstanding,
            regions,
        } = other;
        self.messages_sent += messages_sent;
        self.messages_received += messages_received;
        self.segments_sent += segments_sent;
        self.segments_received += segments_received;
        self.empty_sent += empty_sent;
        self.empty_received += empty_received;
        self.bytes_sent += bytes_sent;
        self.bytes_received += bytes_received;
        self.credits_granted += credits_granted;
        self.credits_received += credits_received;
        self.credit_stalls += credit_stalls;
        self.credit_stall_time += credit_stall_time;
        self.credit_waits += credit_waits;
        self.send_queue_stalls += send_queue_stalls;
        self.keepalives_sent += keepalives_sent;
        self.keepalives_received += keepalives_received;
        self.keepalive_round_trips += keepalive_round_trips;
        self.tokens_invalidated += tokens_invalidated;
        self.invalidations_sent += invalidations_sent;
        self.reads += reads;
        self.writes += writes;
        self.bytes_read += bytes_read;
        self.bytes_written += bytes_written;
        self.wire_bytes_sent += wire_bytes_sent;
        self.wire_bytes_received += wire_bytes_received;
        self.registrations += registrations;
        self.receives_outstanding += receives_outstanding;
        self.work_outstanding += work_outstanding;
        self.regions += regions;
    }
}

/// A histogram of times, with fixed buckets: of round trips, or of waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RoundTrips {
    /// Number of times.
    pub count: u64,
    /// Sum of all times.
    pub sum: Duration,
    /// The last time.
    pub last: Option<Duration>,
    /// Number of times in each bucket of [`BOUNDS`](Self::BOUNDS). A time above the last bound is in no bucket.
    pub buckets: [u64; 12],
}

impl RoundTrips {
    /// The longest time of each bucket.
    pub const BOUNDS: [Duration; 12] = [
        Duration::from_micros(10),
        Duration::from_micros(25),
        Duration::from_micros(50),
        Duration::from_micros(100),
        Duration::from_micros(250),
        Duration::from_micros(500),
        Duration::from_millis(1),
        Duration::from_micros(2500),
        Duration::from_millis(10),
        Duration::from_millis(100),
        Duration::from_secs(1),
        Duration::from_secs(10),
    ];

    /// Counts a time.
    #[cold]
    pub(super) fn record(&mut self, time: Duration) {
        self.count += 1;
        self.sum += time;
        self.last = Some(time);
        let bucket = Self::BOUNDS.iter().position(|&bound| time <= bound);
        if let Some(bucket) = bucket {
            self.buckets[bucket] += 1;
        }
    }
}

impl AddAssign for RoundTrips {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.sum += other.sum;
        self.last = other.last.or(self.last);
        for (bucket, more) in self.buckets.iter_mut().zip(other.buckets) {
            *bucket += more;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_are_counted_in_the_bucket_of_their_time() {
        let mut trips = RoundTrips::default();
        for time in [0, 10, 11, 25, 1000, 10_000_000, 10_000_001] {
            trips.record(Duration::from_micros(time));
        }
        assert_eq!(trips.buckets, [2, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]);
        assert_eq!(
            (trips.count, trips.sum),
            (7, Duration::from_micros(20_001_047))
        );
        assert_eq!(trips.last, Some(Duration::from_micros(10_000_001)));
        assert!(RoundTrips::BOUNDS.is_sorted());
    }

    #[test]
    fn a_sum_has_the_figures_of_both() {
        let mut trips = [RoundTrips::default(); 2];
        trips[0].record(Duration::from_millis(1));
        trips[1].record(Duration::from_millis(1));
        trips[1].record(Duration::from_millis(2));
        let mut sum = numbered(3, trips[0]);
        sum += numbered(7, trips[1]);
        trips[0] += trips[1];
        assert_eq!(sum, numbered(10, trips[0]));
        let [trips, _] = trips;
        assert_eq!((trips.count, trips.sum), (3, Duration::from_millis(4)));
        assert_eq!((trips.buckets[6], trips.buckets[7]), (2, 1));
        assert_eq!(trips.last, Some(Duration::from_millis(2)));
        let before = sum;
        sum += Statistics::default();
        assert_eq!(sum, before, "the last round trip time is kept");
    }

    /// Returns statistics in which each figure is another multiple of `unit`.
    fn numbered(unit: u64, keepalive_round_trips: RoundTrips) -> Statistics {
        Statistics {
            messages_sent: unit,
            messages_received: 2 * unit,
            segments_sent: 3 * unit,
            segments_received: 4 * unit,
            empty_sent: 5 * unit,
            empty_received: 6 * unit,
            bytes_sent: 7 * unit,
            bytes_received: 8 * unit,
            credits_granted: 9 * unit,
            credits_received: 10 * unit,
            credit_stalls: 11 * unit,
            credit_stall_time: Duration::from_secs(12 * unit),
            credit_waits: keepalive_round_trips,
            send_queue_stalls: 13 * unit,
            keepalives_sent: 14 * unit,
            keepalives_received: 15 * unit,
            keepalive_round_trips,
            tokens_invalidated: 16 * unit,
            invalidations_sent: 17 * unit,
            reads: 18 * unit,
            writes: 19 * unit,
            bytes_read: 20 * unit,
            bytes_written: 21 * unit,
            wire_bytes_sent: 22 * unit,
            wire_bytes_received: 23 * unit,
            registrations: 24 * unit,
            receives_outstanding: 25 * unit,
            work_outstanding: 26 * unit,
            regions: 27 * unit,
        }
    }
}
