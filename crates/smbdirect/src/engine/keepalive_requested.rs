//! KeepaliveRequested, and the action when the Idle Connection Timer expires (3.1.6.2).

/// The state of a keepalive exchange (3.1.1.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) enum KeepaliveRequested {
    /// No keepalive is outstanding.
    #[default]
    None,
    /// The next message sent shall request a response.
    Pending,
    /// A message that requests a response has been sent.
    Sent,
}

/// The action of a connection whose Idle Connection Timer has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnIdle {
    /// Send a keepalive.
    Ask,
    /// End the connection, because the peer did not answer a keepalive.
    Terminate,
}

impl KeepaliveRequested {
    /// Handles the expiry of the Idle Connection Timer.
    pub(super) fn idle(&mut self) -> OnIdle {
        //= SMBD-3.1.6.2-01
        if *self != Self::None {
            return OnIdle::Terminate;
        }
        //= SMBD-3.1.6.2-02
        *self = Self::Pending;
        OnIdle::Ask
    }

    /// Makes the next message request a response, unless one is outstanding.
    pub(super) fn ask(&mut self) {
        if *self == Self::None {
            *self = Self::Pending;
        }
    }

    /// Handles a message of the peer, and returns whether it answers a keepalive. It also answers a
    /// keepalive that has not been sent yet, which is then not sent.
    pub(super) fn received(&mut self) -> bool {
        //= SMBD-3.1.5.5-02
        std::mem::take(self) != Self::None
    }

    /// Returns whether the message sent now shall request a response, and records that it does.
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
    fn each_state_handles_each_event() {
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
