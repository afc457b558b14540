//! What a connection waits for, as far as its SMB Direct shows it.

use super::rates::{Rate, Rated};
use crate::{metrics::ConnectionStatus, report};

/// A connection that waits for a smaller part of the time is not slowed down by it.
const NOTABLE_PART: f64 = 0.05;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitsFor {
    /// Messages wait until the peer grants send credits.
    PeerCredits,
    /// The peer has used all credits of this end, which grants more when messages are taken.
    OwnCredits,
    /// Work waits because the send queue is full.
    SendQueue,
    /// Data moves, and nothing of SMB Direct waits.
    Nothing,
    /// No message moves: the client asks for nothing, or the server has not answered.
    Messages,
}

impl WaitsFor {
    /// Returns what a connection waits for. A cause that is measured in time comes first.
    pub(super) fn of(one: &ConnectionStatus, rate: &Rate) -> Self {
        if rate.waiting >= NOTABLE_PART {
            Self::PeerCredits
        } else if one.granted_credits == 0 && one.receive_credit_max > 0 {
            Self::OwnCredits
        } else if rate.send_queue_stalls > 0.0 {
            Self::SendQueue
        } else if rate.bytes() > 0.0 {
            Self::Nothing
        } else {
            Self::Messages
        }
    }

    /// Returns the text of the column.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::PeerCredits => "peer credits",
            Self::OwnCredits => "own credits",
            Self::SendQueue => "send queue",
            Self::Nothing => "-",
            Self::Messages => "messages",
        }
    }

    /// Returns the cause and the cure in words; `None` if the connection is not slowed down.
    fn explanation(self, one: &ConnectionStatus, rate: &Rate) -> Option<String> {
        match self {
            Self::PeerCredits => Some(format!(
                "messages wait {:.0} % of the time for send credits: the peer is slow to take messages, or grants few \
                 ({} of {} held)",
                rate.waiting * 100.0,
                one.send_credits,
                one.send_credit_target
            )),
            Self::OwnCredits => Some(format!(
                "the peer has no credits left: this end is slow to take {} of messages, or --receive-credit-max is low \
                 ({})",
                report::bytes(one.received_message_bytes),
                one.receive_credit_max
            )),
            Self::SendQueue => Some(
                "work waits for the send queue: the network takes less than this end sends".into(),
            ),
            Self::Nothing | Self::Messages => None,
        }
    }
}

/// Returns a line about the connection that waits most.
pub(super) fn worst(rated: &Rated) -> String {
    let connections = rated.status.connections.iter();
    let waiting = connections.zip(&rated.connection_rates);
    let waiting = waiting.filter_map(|(one, rate)| {
        let explanation = WaitsFor::of(one, rate).explanation(one, rate)?;
        Some((one, rate, explanation))
    });
    let key = |rate: &Rate| (rate.waiting, rate.send_queue_stalls);
    let worst = waiting.max_by(|one, other| {
        let (one, other) = (key(one.1), key(other.1));
        one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1))
    });
    worst.map_or_else(
        || "no connection waits for credits or its send queue".into(),
        |(one, _, explanation)| format!("{}: {explanation}", one.peer),
    )
}

#[cfg(test)]
mod tests {
    use super::{
        super::rates::{
            Rates,
            tests::{connection, status},
        },
        *,
    };

    #[test]
    fn each_wait_is_named() {
        let busy = Rate {
            bytes_sent: 1.0,
            ..Rate::default()
        };
        let idle = Rate::default();
        let of = |granted_credits, rate: Rate| {
            let mut one = connection(1, 10.0, 0);
            one.granted_credits = granted_credits;
            WaitsFor::of(&one, &rate)
        };
        assert_eq!(of(255, busy), WaitsFor::Nothing);
        assert_eq!(of(255, idle), WaitsFor::Messages);
        assert_eq!(of(0, busy), WaitsFor::OwnCredits);
        assert_eq!(of(1, busy), WaitsFor::Nothing);
        for (waiting, expected) in [(0.04, WaitsFor::Nothing), (0.06, WaitsFor::PeerCredits)] {
            assert_eq!(of(255, Rate { waiting, ..busy }), expected);
        }
        let send_queue_stalls = 0.5;
        let full = Rate {
            send_queue_stalls,
            ..busy
        };
        assert_eq!(of(255, full), WaitsFor::SendQueue);
        // Credits explain a full queue, because the queue holds what waits for them.
        let both = Rate {
            waiting: 0.5,
            ..full
        };
        assert_eq!(of(255, both), WaitsFor::PeerCredits);
    }

    #[test]
    fn the_connection_that_waits_most_is_explained() {
        // The test connection waits longer, the more bytes it has sent.
        let connections = vec![connection(1, 10.0, 10_000), connection(2, 10.0, 90_000)];
        let rated = Rates::default().next(status(20.0, connections));
        let line = worst(&rated);
        assert!(line.contains("messages wait 90 % of the time"), "{line}");
        assert!(line.contains("200 of 255"), "{line}");
        let rated = Rates::default().next(status(20.0, vec![connection(1, 10.0, 0)]));
        assert!(worst(&rated).starts_with("no connection waits"));
    }
}
