//! Credits both ways (3.1.5.9).
//!
//! The specification counts the receives we posted in one number, ReceiveCredits. Three are
//! needed: what is posted, how much of that the peer knows of (`granted`), and how much it does
//! not yet know of (`available`). Only `available` credits are ever given away, so a credit
//! always has a receive behind it.

use super::config::GrantPolicy;

/// Credits that are worth a message of their own, however many the peer still has. A sender and a
/// receiver of full speed that share 255 credits then work side by side and not in turn.
const BATCH: u16 = 64;

/// The numbers of a connection's credits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Credits {
    /// SendCredits: Data Transfer messages we may send now.
    pub send_credits: u16,
    /// SendCreditTarget: what we ask the peer for.
    pub send_credit_target: u16,
    /// ReceiveCredits: receives posted for the peer.
    pub receive_credits: u16,
    /// Those of them that the peer was told of and has not used.
    pub granted: u16,
    /// Those of them that the peer does not know of yet.
    pub available: u16,
    /// ReceiveCreditTarget: what the peer asked for last.
    pub receive_credit_target: u16,
    /// ReceiveCreditMax: most we give.
    pub receive_credit_max: u16,
}

/// ReceiveCredits and what belongs to them.
#[derive(Clone, Debug, Hash)]
pub(super) struct ReceiveCredits {
    available: u16,
    granted: u16,
    target: u16,
    max: u16,
    /// The peer asked for more than before, and was given none since.
    target_rose: bool,
    /// The last message received was empty and asked for nothing. Two ends that answer such
    /// messages with such messages never stop.
    quiet: bool,
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

    /// The provider holds so many receives. Two of them stay out of the credits that the peer
    /// may hoard: the last send credit needs one to grant, and the returned token one more.
    pub(super) fn fit_into(&mut self, max_receive_queue: usize) {
        let most = max_receive_queue
            .min(usize::from(u16::MAX))
            .saturating_sub(2)
            .max(1);
        self.max = self.max.min(most as u16);
    }

    /// Receives that are posted.
    pub(super) fn posted(&self) -> u16 {
        self.granted + self.available
    }

    pub(super) fn granted(&self) -> u16 {
        self.granted
    }

    pub(super) fn report(&self, send_credits: u16, send_credit_target: u16) -> Credits {
        Credits {
            send_credits,
            send_credit_target,
            receive_credits: self.posted(),
            granted: self.granted,
            available: self.available,
            receive_credit_target: self.target,
            receive_credit_max: self.max,
        }
    }

    /// Credits the peer is to hold at most: what it asked for, as far as we go along.
    fn limit(&self) -> u16 {
        //= SMBD-3.1.5.9-02
        //= SMBD-3.1.5.9-06
        self.target.min(self.max)
    }

    /// The peer says how many it wants.
    pub(super) fn set_target(&mut self, target: u16) {
        //= SMBD-3.1.5.8-08
        self.target_rose |= target.min(self.max) > self.limit();
        self.target = target;
    }

    /// How many more receives are to be posted, where `last_credit` says that a message waits
    /// to spend our last send credit.
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

    /// So many receives are posted.
    pub(super) fn post(&mut self, count: u16) {
        self.available += count;
    }

    /// A message used a receive. False if the peer held no credit for it.
    pub(super) fn received(&mut self, quiet: bool) -> bool {
        self.quiet = quiet;
        //= SMBD-3.1.5.8-06
        let Some(granted) = self.granted.checked_sub(1) else {
            return false;
        };
        self.granted = granted;
        true
    }

    /// Credits that the next message carries if it leaves now.
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

    /// A message leaves with `grant` credits for the peer.
    pub(super) fn grant(&mut self, grant: u16) {
        self.available -= grant;
        self.granted += grant;
        if grant > 0 {
            self.target_rose = false;
            self.quiet = false;
        }
    }

    /// Whether an idle end is to say by an empty message that there are credits.
    pub(super) fn should_grant(&self, policy: GrantPolicy) -> bool {
        let grant = self.grantable(false);
        if grant == 0 {
            return false;
        }
        if self.granted == 0 {
            return !self.quiet || grant >= 2;
        }
        // One missing credit alone never makes an empty message answer an empty message.
        if self.quiet && grant == 1 {
            return false;
        }
        match policy {
            // Low, and worth a message: where untaken messages hold receives back, credits would
            // otherwise go out one by one. Or enough of them that a sender who never pauses gets
            // more before it has to.
            GrantPolicy::Hysteresis => {
                let quarter = self.limit() / 4;
                let low = self.granted <= quarter && grant >= quarter;
                self.target_rose || low || grant >= BATCH
            }
            GrantPolicy::Eager => true,
        }
    }

    /// With a target of 1 on both sides there would be a single credit to hand to and fro for
    /// ever, or to withhold until the peer gives up. 3.1.5.9 sets no most to what the rule of
    /// the last credit posts: we hand back two, the peer returns one, and each end rests with
    /// one in hand.
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
    fn posts_and_grants_up_to_the_smaller_of_target_and_max() {
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
        assert_eq!(credits.granted(), 4);
    }

    //= SMBD-3.1.5.1-04 test
    #[test]
    fn a_message_without_a_credit_is_noticed() {
        let mut credits = credits(2, 2);
        post_all(&mut credits);
        credits.grant(2);
        assert!(credits.received(false) && credits.received(false));
        post_all(&mut credits);
        assert!(!credits.received(false), "posted is not granted");
    }

    #[test]
    fn hysteresis_waits_for_three_quarters_or_a_batch() {
        for (target, due) in [(20, 15), (80, 60), (100, 64), (255, 64)] {
            let mut credits = credits(target, 255);
            post_all(&mut credits);
            credits.grant(target);
            for used in 1..=target {
                assert!(credits.received(false));
                post_all(&mut credits);
                assert_eq!(
                    credits.should_grant(GrantPolicy::Hysteresis),
                    used >= due,
                    "{used} of {target}"
                );
                assert!(credits.should_grant(GrantPolicy::Eager));
            }
        }
    }

    #[test]
    fn a_higher_target_is_served_and_a_lower_one_is_not_taken_back() {
        let mut credits = credits(10, 255);
        post_all(&mut credits);
        credits.grant(10);
        credits.set_target(20);
        post_all(&mut credits);
        assert!(credits.should_grant(GrantPolicy::Hysteresis));
        credits.grant(credits.grantable(false));
        assert_eq!(credits.granted(), 20);
        credits.set_target(5);
        assert_eq!((credits.grantable(false), post_all(&mut credits)), (0, 0));
        assert!(!credits.should_grant(GrantPolicy::Hysteresis));
    }

    #[test]
    fn a_quiet_message_is_not_answered_for_one_credit() {
        let mut credits = credits(2, 2);
        post_all(&mut credits);
        credits.grant(2);
        assert!(credits.received(true));
        post_all(&mut credits);
        for policy in [GrantPolicy::Hysteresis, GrantPolicy::Eager] {
            assert!(!credits.should_grant(policy));
        }
    }

    #[test]
    fn a_peer_without_credits_gets_the_one_there_is_unless_it_was_quiet() {
        for (quiet, answered) in [(false, true), (true, false)] {
            let mut credits = credits(3, 3);
            credits.post(1);
            credits.grant(1);
            assert!(credits.received(quiet));
            // There is no room for more than one receive.
            credits.post(1);
            assert_eq!((credits.granted(), credits.posted()), (0, 1));
            assert_eq!(credits.should_grant(GrantPolicy::Hysteresis), answered);
        }
    }

    #[test]
    fn a_message_without_credits_changes_nothing() {
        let mut quiet = credits(2, 2);
        post_all(&mut quiet);
        quiet.grant(2);
        assert!(quiet.received(true));
        quiet.grant(0);
        post_all(&mut quiet);
        assert!(!quiet.should_grant(GrantPolicy::Eager), "still quiet");

        let mut asked = credits(10, 255);
        post_all(&mut asked);
        asked.grant(10);
        asked.set_target(20);
        asked.grant(0);
        post_all(&mut asked);
        assert!(asked.should_grant(GrantPolicy::Hysteresis), "still asked");
    }

    #[test]
    fn the_single_token_comes_back_doubled() {
        let mut credits = credits(1, 1);
        post_all(&mut credits);
        credits.grant(1);
        assert!(credits.received(true));
        assert_eq!(post_all(&mut credits), 2);
        assert!(credits.should_grant(GrantPolicy::Hysteresis));
        credits.grant(credits.grantable(false));
        assert_eq!(credits.granted(), 2);
        assert!(credits.received(true));
        post_all(&mut credits);
        assert!(!credits.should_grant(GrantPolicy::Hysteresis));
    }
}
