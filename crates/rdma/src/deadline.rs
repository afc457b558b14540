//! The rule for checking the deadlines of a peer.
//!
//! A stall of this process is not the peer's fault. A blocked thread, SIGSTOP, a debugger or a suspended machine
//! delays the check of a deadline, while the answer of the peer is already in the socket, or the request is still
//! in this process. Therefore:
//!
//! 1. The caller reads everything that has arrived before it checks a deadline.
//! 2. A deadline that is checked late is postponed by one second, and so is a deadline before which not everything
//!    could be read.
//! 3. A deadline is postponed at most three times, so that a peer that keeps this end busy cannot postpone it
//!    without end.

use std::time::{Duration, Instant};

/// Time after a deadline from which its check counts as late. While the process runs, timers fire sooner even on
/// a busy machine, and a shorter stall matters little compared with deadlines of seconds.
const LATE: Duration = Duration::from_millis(100);
/// Time by which a deadline is postponed: enough for some round trips and a retransmission.
const GRACE: Duration = Duration::from_secs(1);
/// Number of times that one deadline is postponed.
const MAX_POSTPONEMENTS: u8 = 3;

/// Longest time from now to a deadline: a hundred years. Adding a longer one to an `Instant` can overflow.
const MAX_LIMIT: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// Returns `limit`, or a hundred years if it is longer. Settings such as `Duration::MAX`, which stand for "never", go
/// through this before they are added to an `Instant`.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// let never = Instant::now() + smbdirect_rdma::deadline::bounded(Duration::MAX);
/// ```
pub const fn bounded(limit: Duration) -> Duration {
    if limit.as_secs() < MAX_LIMIT.as_secs() {
        limit
    } else {
        MAX_LIMIT
    }
}

/// How many times a deadline was postponed.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// use smbdirect_rdma::deadline::Postponements;
///
/// let (due, mut postponements) = (Instant::now(), Postponements::default());
/// assert_eq!(postponements.postpone(due, due, true), None, "it counts");
/// let late = due + Duration::from_secs(9);
/// assert!(postponements.postpone(due, late, true) > Some(late));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Postponements(u8);

impl Postponements {
    /// Returns the time to which the deadline `due` is postponed, or `None` if the deadline applies at `now`.
    /// `all_read` is false if there may be more to read from the peer.
    pub fn postpone(&mut self, due: Instant, now: Instant, all_read: bool) -> Option<Instant> {
        let is_late = now.saturating_duration_since(due) > LATE;
        if all_read && !is_late || self.0 == MAX_POSTPONEMENTS {
            return None;
        }
        self.0 += 1;
        Some(now + GRACE)
    }
}

#[cfg(feature = "tokio")]
pub use of_tokio::Deadline;
#[cfg(feature = "tokio")]
pub use of_tokio::within;

#[cfg(feature = "tokio")]
mod of_tokio {
    use std::{
        future::{Future, poll_fn},
        pin::{Pin, pin},
        task::{Context, Poll},
        time::Duration,
    };

    use tokio::{
        task::unconstrained,
        time::{Instant, Sleep, sleep},
    };

    use super::Postponements;

    /// A deadline on tokio's clock.
    #[derive(Debug)]
    pub struct Deadline {
        sleep: Pin<Box<Sleep>>,
        postponements: Postponements,
    }

    impl Deadline {
        /// Makes a deadline that is `limit` from now.
        pub fn after(limit: Duration) -> Self {
            Self {
                sleep: Box::pin(sleep(limit)),
                postponements: Postponements::default(),
            }
        }

        /// Returns whether the deadline has passed. If not, `context` is woken at the deadline. The caller has
        /// read what has arrived; `all_read` is false if there may be more.
        pub fn has_passed(&mut self, context: &mut Context<'_>, all_read: bool) -> bool {
            while pin!(unconstrained(self.sleep.as_mut()))
                .poll(context)
                .is_ready()
            {
                let (due, now) = (self.sleep.deadline(), Instant::now());
                let later = self
                    .postponements
                    .postpone(due.into_std(), now.into_std(), all_read);
                match later {
                    Some(later) => self.sleep.as_mut().reset(Instant::from_std(later)),
                    None => return true,
                }
            }
            false
        }
    }

    /// Returns the output of `future`, or `None` if it has none within `limit`. If this process stalls past the
    /// limit, the future gets one more second.
    ///
    /// # Cancel safety
    /// Dropping the future drops `future`.
    pub async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let mut deadline = Deadline::after(limit);
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if deadline.has_passed(context, true) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_deadline_is_postponed_a_few_times() {
        let due = Instant::now();
        let mut postponements = Postponements::default();
        assert_eq!(postponements.postpone(due, due + LATE, true), None);
        let mut due = due;
        for all_read in [true, false, true] {
            let now = if all_read {
                due + LATE + Duration::from_nanos(1)
            } else {
                due
            };
            due = postponements.postpone(due, now, all_read).unwrap();
            assert_eq!(due, now + GRACE);
        }
        let much_later = due + Duration::from_secs(3600);
        assert_eq!(postponements.postpone(due, much_later, false), None);
    }

    #[cfg(feature = "tokio")]
    #[tokio::test(start_paused = true)]
    async fn a_future_is_given_up_at_its_deadline_or_a_second_after_a_stall() {
        use tokio::time::{Instant, advance, sleep};
        let second = Duration::from_secs(1);
        let start = Instant::now();
        assert_eq!(within(second, sleep(5 * second)).await, None);
        assert_eq!(start.elapsed(), second);
        // The clock jumps over the deadline, so the future gets one more second.
        for (takes, output) in [(second * 3 / 2, Some(())), (3 * second, None)] {
            let mut future = Box::pin(within(second, async {
                sleep(second / 2).await;
                sleep(takes - second).await;
            }));
            let polled = tokio::time::timeout(Duration::ZERO, &mut future).await;
            assert!(polled.is_err());
            advance(Duration::from_millis(1200)).await;
            let start = Instant::now();
            assert_eq!(future.await, output);
            assert!(start.elapsed() <= second);
        }
    }
}
