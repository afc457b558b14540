//! The credits of both directions (3.1.5.9).
//!
//! The specification counts posted receives in one number, ReceiveCredits. This module splits it in
//! two: receives that have been granted to the peer as credits (`granted`), and receives that have
//! not (`available`). Only `available` credits are ever granted, so every credit of the peer has a
//! posted receive.
//!
//! # Whether the receive buffer allows a receive
//!
//! A receive is posted for one of two reasons, which functions of this module decide:
//!
//! 1. **Ordinary**: the peer shall hold its target, and [`affordable_receives`] says that the receive buffer has room
//!    for one more message of the largest size on every posted receive.
//! 2. **Owed**: a message of the peer has begun, and [`owed_credits`] says that the rest needs more credits than there
//!    are posted receives. The receive buffer does not matter.
//!
//! So a message that has begun always ends, however long the application of the receiver pauses, and the sender may
//! begin a message with one credit. What is owed stays within `max_fragmented_receive_size`, because an owed credit
//! cannot begin another message. Let `g` be the credits of the peer, and `r` the missing bytes of its message. Once
//! `g <= owed(r)` holds within a message, it holds until the end of that message: a segment takes one from `g` and at
//! most one from `owed(r)`, and a grant of owed receives sets `g` to `owed(r)` at most. At the end `owed(0)` is 0, so
//! the next message begins with an ordinary credit.

/// Number of grantable credits at which an empty message grants them, regardless of how many the
/// peer still holds. A sender with a target of 255 then does not run out of credits while the
/// receiver keeps pace with it.
const GRANT_BATCH: u16 = 64;

/// The credit counters of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Credits {
    /// SendCredits: number of Data Transfer messages that this end may send now.
    pub send_credits: u16,
    /// SendCreditTarget: number of credits that this end requests from the peer.
    pub send_credit_target: u16,
    /// ReceiveCredits: number of receives posted for Data Transfer messages of the peer.
    pub receive_credits: u16,
    /// Number of posted receives that have been granted to the peer and are unused. The others, `receive_credits -
    /// granted`, can still be granted.
    pub granted: u16,
    /// ReceiveCreditTarget: number of credits that the peer requested last.
    pub receive_credit_target: u16,
    /// ReceiveCreditMax: largest number of credits that this end grants.
    pub receive_credit_max: u16,
}

/// ReceiveCredits, ReceiveCreditTarget and ReceiveCreditMax, and the decisions based on them.
#[derive(Clone, Debug, Hash)]
pub(super) struct ReceiveCredits {
    available: u16,
    granted: u16,
    target: u16,
    max: u16,
    /// The peer has raised its target and has been granted no credit since.
    target_rose: bool,
    /// The last received message was empty and requested no response. Two ends that answered such messages with
    /// messages of the same kind would never stop.
    quiet: bool,
}

/// Returns the number of receives, in addition to the `posted` ones, for which the receive buffer has room beside the
/// `unread` bytes of messages that the application has not taken.
pub(super) const fn affordable_receives(
    receive_buffer: usize,
    unread: usize,
    max_receive_size: u32,
    posted: u16,
) -> u16 {
    let receives = receive_buffer.saturating_sub(unread) / max_receive_size as usize;
    let left = receives.saturating_sub(posted as usize);
    if left < u16::MAX as usize {
        left as u16
    } else {
        u16::MAX
    }
}

/// Returns the number of credits that the peer shall hold for the `remaining` bytes of its message, of which the first
/// segment has arrived: one for each segment of the largest size, up to `limit`. A segment counts as all payload, because
/// a hostile peer can place its payload over the header: it never needs fewer credits than these. A peer that needs more
/// is granted them when these are used.
pub(super) const fn owed_credits(remaining: u32, max_receive_size: u32, limit: u16) -> u16 {
    let segments = remaining.div_ceil(max_receive_size);
    if segments < limit as u32 {
        segments as u16
    } else {
        limit
    }
}

/// Returns how many receives to post now, if `missing` are missing to the target, `affordable` of them find room in the
/// receive buffer, the peer is owed `owed` credits, and the queue pair has room for `room` receives.
pub(super) const fn receives_to_post(
    missing: u16,
    affordable: u16,
    owed: u16,
    posted: u16,
    room: u16,
) -> u16 {
    let owed = owed.saturating_sub(posted);
    let allowed = if owed > affordable { owed } else { affordable };
    let wanted = if missing < allowed { missing } else { allowed };
    if wanted < room { wanted } else { room }
}

/// Returns whether a message waits to spend the last send credit, for which it has to carry a grant. `waiting` is true if
/// the send queue is not empty.
pub(super) const fn spends_last_credit(
    send_credits: u16,
    send_immediate: bool,
    waiting: bool,
) -> bool {
    send_credits == 1 && (send_immediate || waiting)
}

/// Returns whether a received message is quiet: it is empty and requests no response.
pub(super) const fn is_quiet(data_length: u32, remaining_data_length: u32, asks: bool) -> bool {
    data_length == 0 && remaining_data_length == 0 && !asks
}

/// Returns whether a received message is answered immediately, even if there are no credits to grant. `waiting` is true if the
/// send queue is not empty.
pub(super) const fn prompts(asks: bool, quiet: bool, is_2014: bool, waiting: bool) -> bool {
    //= SMBD-3.1.5.8-09
    //= SMBD-3.1.5.8-09b
    //= SMBD-3.1.5.8-07b
    asks || (is_2014 && !quiet && !waiting)
}

/// Returns whether a message may begin with the last send credit: it can carry a grant, or the policy permits a message
/// without one because the peer holds `granted` credits.
const fn may_spend_last(grantable: u16, is_strict: bool, granted: u16) -> bool {
    grantable > 0 || (!is_strict && granted > 0)
}

impl ReceiveCredits {
    pub(super) fn new(max: u16) -> Self {
        Self {
            available: 0,
            granted: 0,
            target: 0,
            max,
            target_rose: false,
            quiet: false,
        }
    }

    /// Limits the credits to a provider that holds `max_receive_queue` receives. Two of them are
    /// kept back from ordinary grants: the last send credit needs one to grant, and
    /// [`returns_token`](Self::returns_token) needs another.
    pub(super) fn fit_into(&mut self, max_receive_queue: usize) {
        let most = max_receive_queue
            .min(usize::from(u16::MAX))
            .saturating_sub(2)
            .max(1);
        self.max = self.max.min(most as u16);
    }

    /// Returns the number of posted receives.
    pub(super) fn posted(&self) -> u16 {
        self.granted + self.available
    }

    pub(super) fn report(&self, send_credits: u16, send_credit_target: u16) -> Credits {
        Credits {
            send_credits,
            send_credit_target,
            receive_credits: self.posted(),
            granted: self.granted,
            receive_credit_target: self.target,
            receive_credit_max: self.max,
        }
    }

    /// Returns the number of credits that the peer shall hold: its target, up to ReceiveCreditMax.
    pub(super) fn limit(&self) -> u16 {
        //= SMBD-3.1.5.9-02
        //= SMBD-3.1.5.9-06
        self.target.min(self.max)
    }

    /// Sets the number of credits that the peer requests.
    pub(super) fn set_target(&mut self, target: u16) {
        //= SMBD-3.1.5.8-08
        self.target_rose |= target.min(self.max) > self.limit();
        self.target = target;
    }

    /// Returns how many more receives shall be posted. `last_credit` is true if a message waits to
    /// spend the last send credit.
    pub(super) fn missing(&self, last_credit: bool) -> u16 {
        if self.target == 0 {
            return 0;
        }
        //= SMBD-3.1.5.9-01
        //= SMBD-3.1.5.9-04
        let mut wanted = self.limit();
        //= SMBD-3.1.5.9-03
        if last_credit {
            wanted = wanted.max(self.granted.saturating_add(1));
        }
        if self.returns_token() {
            wanted = wanted.max(2);
        }
        wanted.saturating_sub(self.posted())
    }

    /// Records that `count` more receives are posted.
    pub(super) fn post(&mut self, count: u16) {
        self.available += count;
    }

    /// Records that a message used a receive. Returns whether the peer held a credit for it.
    pub(super) fn received(&mut self, quiet: bool) -> bool {
        self.quiet = quiet;
        //= SMBD-3.1.5.8-06
        let Some(granted) = self.granted.checked_sub(1) else {
            return false;
        };
        self.granted = granted;
        true
    }

    /// Returns the number of credits that a message sent now would carry.
    pub(super) fn grantable(&self, last_credit: bool) -> u16 {
        //= SMBD-3.1.5.9-05
        let mut most = self.limit().saturating_sub(self.granted);
        if self.returns_token() {
            most = most.max(2);
        }
        if last_credit {
            most = most.max(1);
        }
        self.available.min(most)
    }

    /// Records that a message with `grant` credits for the peer is sent.
    pub(super) fn grant(&mut self, grant: u16) {
        self.available -= grant;
        self.granted += grant;
        if grant > 0 {
            self.target_rose = false;
            self.quiet = false;
        }
    }

    /// Returns whether an end with nothing to send shall grant credits by an empty message, which
    /// 3.1.5.9 does not specify.
    ///
    /// The end shall grant when the peer holds no credit, when the peer holds a quarter or less of its target and
    /// another quarter can be granted, when 64 credits can be granted, or after the peer has raised its target.
    fn should_grant(&self) -> bool {
        let grant = self.grantable(false);
        if grant == 0 {
            return false;
        }
        if self.granted == 0 {
            return !self.quiet || grant >= 2;
        }
        // A single credit never causes an empty message in answer to an empty message.
        if self.quiet && grant == 1 {
            return false;
        }
        // The peer is low on credits and the grant is large enough for a message; without the
        // second condition credits would be granted one by one while waiting messages hold
        // receives back. Or the grant is a full batch, which reaches a continuous sender before
        // it runs out.
        let quarter = self.limit() / 4;
        let low = self.granted <= quarter && grant >= quarter;
        self.target_rose || low || grant >= GRANT_BATCH
    }

    /// Returns CreditsGranted of a message sent now, or `None` if no message may be sent now (3.1.5.1).
    #[inline(always)]
    pub(super) fn next_grant(&self, send_credits: u16, is_strict: bool) -> Option<u16> {
        //= SMBD-3.1.5.1-04
        //= SMBD-3.1.5.9-10
        if send_credits == 0 {
            return None;
        }
        //= SMBD-3.1.5.1-05
        //= SMBD-3.1.5.1-05b
        let last = send_credits == 1;
        let grant = self.grantable(last);
        //= SMBD-3.1.5.1-06
        //= SMBD-3.1.5.1-06b
        (!last || may_spend_last(grant, is_strict, self.granted)).then_some(grant)
    }

    /// Returns whether an end may begin a message, if necessary after it has posted one of the `affordable` receives.
    pub(super) fn may_begin(&self, send_credits: u16, is_strict: bool, affordable: u16) -> bool {
        match send_credits {
            0 => false,
            1 => may_spend_last(
                self.grantable(true).max(affordable),
                is_strict,
                self.granted,
            ),
            _ => true,
        }
    }

    /// Returns whether an end with no queued message shall send an empty one.
    pub(super) fn empty_message_is_due(
        &self,
        send_immediate: bool,
        holds_first_grant: bool,
    ) -> bool {
        //= SMBD-3.1.5.8-07
        //= SMBD-3.1.5.9-09
        send_immediate || (!holds_first_grant && self.should_grant())
    }

    /// Returns whether the peer shall be granted two credits even if its target is 1.
    ///
    /// With targets of 1 on both sides, the two ends would pass a single credit back and forth without end, or
    /// one would withhold it until a timer of the peer ends the connection. With two credits, the peer returns
    /// one, and each end keeps one. Section 3.1.5.9 permits this: when a message waits for the last send credit,
    /// it requires at least one receive, and sets no upper limit.
    fn returns_token(&self) -> bool {
        self.quiet && self.granted == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credits(target: u16, max: u16) -> ReceiveCredits {
        let mut credits = ReceiveCredits::new(max);
        credits.set_target(target);
        credits.target_rose = false;
        credits
    }

    fn post_all(credits: &mut ReceiveCredits) -> u16 {
        let missing = credits.missing(false);
        credits.post(missing);
        missing
    }

    //= SMBD-3.1.5.9-01 test
    //= SMBD-3.1.5.9-04 test
    //= SMBD-3.1.5.9-05 test
    //= SMBD-3.1.5.9-06 test
    #[test]
    fn posts_and_grants_the_smaller_of_target_and_max() {
        for (target, max, expected) in [(255, 255, 255), (10, 255, 10), (65535, 8, 8), (1, 1, 1)] {
            let mut credits = credits(target, max);
            assert_eq!(post_all(&mut credits), expected);
            assert_eq!(credits.grantable(false), expected);
            credits.grant(expected);
            assert_eq!((credits.posted(), credits.grantable(false)), (expected, 0));
            assert_eq!(credits.missing(false), 0);
        }
    }

    //= SMBD-3.1.5.9-03 test
    #[test]
    fn the_last_send_credit_can_grant_one_beyond_the_target() {
        let mut credits = credits(3, 3);
        post_all(&mut credits);
        credits.grant(3);
        assert_eq!((credits.missing(false), credits.missing(true)), (0, 1));
        credits.post(1);
        assert_eq!(credits.missing(true), 0);
        assert_eq!((credits.grantable(false), credits.grantable(true)), (0, 1));
        credits.grant(1);
        assert_eq!(credits.granted, 4);
    }

    //= SMBD-3.1.5.1-04 test
    #[test]
    fn a_message_without_a_granted_credit_is_detected() {
        let mut credits = credits(2, 2);
        post_all(&mut credits);
        credits.grant(2);
        assert!(credits.received(false) && credits.received(false));
        post_all(&mut credits);
        assert!(!credits.received(false), "posted is not granted");
    }

    #[test]
    fn credits_are_granted_at_three_quarters_used_or_a_batch() {
        for (target, due) in [(20, 15), (80, 60), (100, 64), (255, 64)] {
            let mut credits = credits(target, 255);
            post_all(&mut credits);
            credits.grant(target);
            for used in 1..=target {
                assert!(credits.received(false));
                post_all(&mut credits);
                assert_eq!(credits.should_grant(), used >= due, "{used} of {target}");
            }
        }
    }

    /// Messages that wait hold receives back, so that few credits can be granted although many are used.
    #[test]
    fn credits_are_not_granted_one_by_one() {
        for (target, granted, grantable, due) in [
            (80, 20, 19, false),
            (80, 20, 20, true),
            (80, 21, 59, false),
            (80, 1, 1, false),
            (80, 0, 1, true),
            (4, 1, 1, true),
            (255, 100, 63, false),
            (255, 100, 64, true),
        ] {
            let mut credits = credits(target, 255);
            credits.post(granted);
            credits.grant(granted);
            credits.post(grantable);
            assert_eq!(credits.grantable(false), grantable);
            let case = format!("{grantable} beside {granted} of {target}");
            assert_eq!(credits.should_grant(), due, "{case}");
        }
    }

    #[test]
    fn a_raised_target_is_granted_and_a_lowered_one_revokes_nothing() {
        let mut credits = credits(10, 255);
        post_all(&mut credits);
        credits.grant(10);
        credits.set_target(20);
        post_all(&mut credits);
        assert!(credits.should_grant());
        credits.grant(credits.grantable(false));
        assert_eq!(credits.granted, 20);
        credits.set_target(5);
        assert_eq!((credits.grantable(false), post_all(&mut credits)), (0, 0));
        assert!(!credits.should_grant());
    }

    #[test]
    fn a_quiet_message_is_not_answered_for_one_credit() {
        let mut credits = credits(2, 2);
        post_all(&mut credits);
        credits.grant(2);
        assert!(credits.received(true));
        post_all(&mut credits);
        assert!(!credits.should_grant());
    }

    #[test]
    fn a_peer_without_credits_is_granted_the_only_one_unless_it_was_quiet() {
        for (quiet, answered) in [(false, true), (true, false)] {
            let mut credits = credits(3, 3);
            credits.post(1);
            credits.grant(1);
            assert!(credits.received(quiet));
            // The provider has room for one receive only.
            credits.post(1);
            assert_eq!((credits.granted, credits.posted()), (0, 1));
            assert_eq!(credits.should_grant(), answered);
        }
    }

    #[test]
    fn a_grant_of_zero_keeps_the_quiet_and_the_raised_target() {
        let mut quiet = credits(2, 2);
        post_all(&mut quiet);
        quiet.grant(2);
        assert!(quiet.received(true));
        quiet.grant(0);
        post_all(&mut quiet);
        assert!(!quiet.should_grant(), "still quiet");

        let mut asked = credits(10, 255);
        post_all(&mut asked);
        asked.grant(10);
        asked.set_target(20);
        asked.grant(0);
        post_all(&mut asked);
        assert!(asked.should_grant(), "still asked");
    }

    //= SMBD-3.1.5.9-11 test
    #[test]
    fn receives_are_posted_for_the_buffer_or_for_what_is_owed() {
        for (buffer, unread, size, posted, expected) in [
            (10_000, 0, 1000, 0, 10),
            (10_000, 0, 1000, 4, 6),
            (10_000, 9000, 1000, 0, 1),
            (10_000, 9001, 1000, 0, 0),
            (10_000, usize::MAX, 1000, 0, 0),
            (10_000, 0, 1000, 11, 0),
            (usize::MAX, 0, 128, 0, u16::MAX),
        ] {
            assert_eq!(affordable_receives(buffer, unread, size, posted), expected);
        }
        for (remaining, max_receive_size, limit, expected) in [
            (0, 104, 255, 0),
            (1, 104, 255, 1),
            (104, 104, 255, 1),
            (105, 104, 255, 2),
            (u32::MAX, 104, 255, 255),
        ] {
            assert_eq!(owed_credits(remaining, max_receive_size, limit), expected);
        }
        for (missing, affordable, owed, posted, room, expected) in [
            (10, 3, 0, 0, 100, 3),
            (10, 0, 7, 4, 100, 3),
            (10, 5, 7, 4, 100, 5),
            (10, 0, 4, 4, 100, 0),
            (2, 9, 9, 0, 100, 2),
            (10, 9, 0, 0, 1, 1),
        ] {
            let count = receives_to_post(missing, affordable, owed, posted, room);
            assert_eq!(count, expected);
        }
    }

    /// Follows a message to its end, from every number of credits and with segments of any length: the credits that
    /// the peer holds at the end are ordinary ones, which the receive buffer has room for.
    //= SMBD-3.1.5.9-11 test
    #[test]
    fn an_owed_credit_is_used_by_the_message_that_it_is_owed_to() {
        const MAX_RECEIVE_SIZE: u32 = 128;
        for seed in 0..2000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (target, begun_with) = (random.u16(1..40), random.u16(1..40));
            let mut credits = credits(target, 40);
            credits.post(begun_with);
            credits.grant(begun_with);
            let mut remaining = random.u32(1..5000);
            loop {
                assert!(credits.received(false), "the peer waits for ever");
                remaining -= random.u32(1..=MAX_RECEIVE_SIZE.min(remaining));
                if remaining == 0 {
                    break;
                }
                let owed = owed_credits(remaining, MAX_RECEIVE_SIZE, credits.limit());
                let missing = credits.missing(false);
                let count = receives_to_post(missing, 0, owed, credits.posted(), u16::MAX);
                credits.post(count);
                if credits.should_grant() {
                    credits.grant(credits.grantable(false));
                }
                let ordinary = begun_with.saturating_sub(1);
                assert!(credits.granted <= owed.max(ordinary), "seed {seed}");
            }
            assert!(credits.granted < begun_with, "seed {seed}");
        }
    }

    //= SMBD-3.1.5.1-15 test
    #[test]
    fn the_last_credit_is_spent_with_a_grant_or_by_policy() {
        for (grantable, is_strict, granted, expected) in [
            (1, true, 0, true),
            (0, true, 5, false),
            (0, false, 5, true),
            (0, false, 0, false),
        ] {
            assert_eq!(may_spend_last(grantable, is_strict, granted), expected);
        }
    }

    #[test]
    fn a_single_credit_is_returned_as_two() {
        let mut credits = credits(1, 1);
        post_all(&mut credits);
        credits.grant(1);
        assert!(credits.received(true));
        assert_eq!(post_all(&mut credits), 2);
        assert!(credits.should_grant());
        credits.grant(credits.grantable(false));
        assert_eq!(credits.granted, 2);
        assert!(credits.received(true));
        post_all(&mut credits);
        assert!(!credits.should_grant());
    }
}
