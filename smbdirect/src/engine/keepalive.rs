//! KeepaliveRequested and what the Idle Connection Timer makes of it (3.1.6.2).

/// Where an exchange of keepalives stands (3.1.1.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum KeepaliveRequested {
    /// None is under way.
    #[default]
    None,
    /// The next message out is to ask for an answer.
    Pending,
    /// A message that asks is out.
    Sent,
}

/// What an idle connection is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnIdle {
    /// Ask the peer for a sign of life.
    Ask,
    /// The peer was asked and said nothing.
    Terminate,
}

impl KeepaliveRequested {
    /// The Idle Connection Timer ran out.
    pub(super) fn idle(&mut self) -> OnIdle {
        //= SMBD-3.1.6.2-01
        if *self != Self::None {
            return OnIdle::Terminate;
        }
        //= SMBD-3.1.6.2-02
        *self = Self::Pending;
        OnIdle::Ask
    }

    /// The message that leaves next is to ask for an answer, unless one is awaited.
    pub(super) fn ask(&mut self) {
        if *self == Self::None {
            *self = Self::Pending;
        }
    }

    /// Anything came from the peer. Says whether a sign of life was wanted: one that comes
    /// before the question could leave will do, for then the question does not leave.
    pub(super) fn received(&mut self) -> bool {
        //= SMBD-3.1.5.5-02
        std::mem::take(self) != Self::None
    }

    /// A message leaves. Says whether it is to ask for an answer.
    pub(super) fn take_flag(&mut self) -> bool {
        //= SMBD-3.1.5.1-09
        let pending = *self == Self::Pending;
        if pending {
            *self = Self::Sent;
        }
        pending
    }
}

#[cfg(test)]
mod tests {
    use super::{KeepaliveRequested::*, *};

    //= SMBD-3.1.6.2-01 test
    //= SMBD-3.1.6.2-02 test
    //= SMBD-3.1.5.5-02 test
    //= SMBD-3.1.5.1-09 test
    #[test]
    fn every_state_and_event() {
        for (before, action, after) in [
            (None, OnIdle::Ask, Pending),
            (Pending, OnIdle::Terminate, Pending),
            (Sent, OnIdle::Terminate, Sent),
        ] {
            let mut state = before;
            assert_eq!((state.idle(), state), (action, after));
        }
        for (before, answered) in [(None, false), (Pending, true), (Sent, true)] {
            let mut state = before;
            assert_eq!((state.received(), state), (answered, None));
        }
        for (before, flag, after) in [
            (None, false, None),
            (Pending, true, Sent),
            (Sent, false, Sent),
        ] {
            let mut state = before;
            assert_eq!((state.take_flag(), state), (flag, after));
        }
    }
}
