//! What a connection waits for: what took the largest part of the time since the last reading.

use smbdirect_smb::slow::Cause;

use super::rates::{Rate, Rated};
use smbdirect_gateway::observe::ConnectionStatus;

use crate::report;

/// A connection of a command without sessions that waits for a smaller part of the time is not slowed down by it.
const NOTABLE_PART: f64 = 0.05;
/// A thread that takes this part of a processor core has none to spare. The time of threads is counted in ticks of
/// 10 ms.
const BUSY_PART: f64 = 0.9;

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitsFor {
    /// A thread of the command needs all of a processor core.
    Cpu,
    /// Messages wait until the peer grants send credits.
    PeerCredits,
    /// The peer has used all credits of this end, which grants more when messages are taken.
    OwnCredits,
    /// Messages wait for memory of the gateway.
    Memory,
    /// Data waits for the network to the client, or for its window.
    Window,
    /// The server has not answered.
    Server,
    /// The client asks for nothing.
    Client,
    /// Work waits because the send queue is full.
    SendQueue,
    /// Data moves, and nothing of SMB Direct waits.
    Nothing,
    /// No message moves: the client asks for nothing, or the server has not answered.
    Messages,
}

impl WaitsFor {
    /// Returns what a connection waits for, and for which part of the time. `cpu` is the part of a core that the busiest
    /// thread takes.
    pub(super) fn of(one: &ConnectionStatus, rate: &Rate, cpu: f64) -> (Self, f64) {
        if cpu >= BUSY_PART && rate.bytes() > 0.0 {
            return (Self::Cpu, cpu);
        }
        let has_no_credits = one.granted_credits == 0 && one.receive_credit_max > 0;
        let Some(largest) = Self::largest(one, rate) else {
            return if rate.waiting >= NOTABLE_PART {
                (Self::PeerCredits, rate.waiting)
            } else if has_no_credits {
                (Self::OwnCredits, 0.0)
            } else if rate.send_queue_stalls > 0.0 {
                (Self::SendQueue, 0.0)
            } else if rate.bytes() > 0.0 {
                (Self::Nothing, 0.0)
            } else {
                (Self::Messages, 0.0)
            };
        };
        match largest {
            // It cannot ask.
            (Self::Client, part) if has_no_credits => (Self::OwnCredits, part),
            largest => largest,
        }
    }

    /// Returns what the session of the connection has waited for most; `None` if the command does not tell.
    fn largest(one: &ConnectionStatus, rate: &Rate) -> Option<(Self, f64)> {
        let waits = rate.waits?;
        // The wait for a credit of the client is part of that for its window, and one of the server of that for it.
        let (of_client, of_server) = match &*one.role {
            "active" => (0.0, rate.waiting),
            _ => (rate.waiting, 0.0),
        };
        // Of equal ones, as of a session without a request so far, the last counts.
        let parts = [
            (Self::PeerCredits, rate.waiting),
            (Self::Memory, waits.memory),
            (Self::Window, waits.window - of_client),
            (Self::Server, waits.server - of_server),
            (Self::Client, waits.client),
        ];
        parts
            .into_iter()
            .max_by(|one, other| one.1.total_cmp(&other.1))
            .map(|(cause, part)| (cause, part.clamp(0.0, 1.0)))
    }

    /// Returns the cause; `None` if the connection is not slowed down, or it is not known by what.
    const fn cause(self) -> Option<Cause> {
        Some(match self {
            Self::Cpu => Cause::ThisMachine,
            Self::PeerCredits => Cause::SendCredits,
            Self::OwnCredits => Cause::OwnCredits,
            Self::Memory => Cause::Memory,
            Self::Window => Cause::Network,
            Self::Server => Cause::Server,
            Self::Client => Cause::Think,
            Self::SendQueue => Cause::SendQueue,
            Self::Nothing | Self::Messages => return None,
        })
    }

    /// Returns the text of the column.
    pub(super) const fn name(self) -> &'static str {
        match self.cause() {
            Some(cause) => cause.slug(),
            None if matches!(self, Self::Nothing) => "-",
            None => "messages",
        }
    }

    /// Returns the cause, its figures and a cure in words; `None` if the connection is not slowed down.
    fn explanation(self, one: &ConnectionStatus, part: f64) -> Option<String> {
        let cause = self.cause().filter(|&cause| cause != Cause::Think)?;
        let percent = part * 100.0;
        let unanswered = one.waited.map_or(0, |waited| waited.unanswered) as u64;
        let figures = match self {
            Self::PeerCredits => format!(
                "{percent:.0} % of the time, {} of {} held",
                one.send_credits, one.send_credit_target
            ),
            Self::OwnCredits => format!(
                "{} of messages received, --receive-credit-max {}",
                report::bytes(one.received_message_bytes),
                one.receive_credit_max
            ),
            Self::Server => format!(
                "{percent:.0} % of the time, {} now",
                report::plural(unanswered, "request")
            ),
            _ => format!("{percent:.0} % of the time"),
        };
        let [system, cure] = cause.cures()[0];
        let sentence = cause.sentence().trim_end_matches('.');
        Some(format!("{sentence} ({figures}). {system}: {cure}"))
    }
}

/// Returns a line about the connection that waits most.
pub(super) fn worst(rated: &Rated) -> String {
    let connections = rated.status.connections.iter();
    let waiting = connections.zip(&rated.connection_rates);
    let waiting = waiting.filter_map(|(one, rate)| {
        let (cause, part) = WaitsFor::of(one, rate, rated.busiest_thread);
        let explanation = cause.explanation(one, part)?;
        Some((one, (part, rate.send_queue_stalls), explanation))
    });
    let worst = waiting.max_by(|(_, one, _), (_, other, _)| {
        one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1))
    });
    worst.map_or_else(
        || "no connection waits, except for its client to ask".into(),
        |(one, _, explanation)| format!("{}: {explanation}", one.peer),
    )
}

#[cfg(test)]
mod tests {
    use super::{
        super::rates::{
            Rates, WaitRate,
            tests::{connection, status},
        },
        *,
    };

    #[test]
    fn each_wait_of_a_command_without_sessions_is_named() {
        let busy = Rate {
            bytes_sent: 1.0,
            ..Rate::default()
        };
        let idle = Rate::default();
        let of = |granted_credits, rate: Rate| {
            let mut one = connection(1, 10.0, 0);
            one.granted_credits = granted_credits;
            WaitsFor::of(&one, &rate, 0.5).0
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

    /// The parts of the time: client, server, window, memory; waits for credits; the busiest thread; the credits that the
    /// peer has; and what follows.
    const SESSIONS: &[([f64; 4], f64, f64, u16, WaitsFor)] = &[
        ([1.0, 0.0, 0.0, 0.0], 0.0, 0.0, 255, WaitsFor::Client),
        ([0.0, 0.0, 0.0, 0.0], 0.0, 0.0, 255, WaitsFor::Client),
        ([0.1, 0.8, 0.1, 0.0], 0.0, 0.5, 255, WaitsFor::Server),
        ([0.6, 0.4, 0.0, 0.0], 0.0, 0.5, 255, WaitsFor::Client),
        ([0.1, 0.2, 0.7, 0.0], 0.1, 0.5, 255, WaitsFor::Window),
        ([0.1, 0.2, 0.7, 0.0], 0.5, 0.5, 255, WaitsFor::PeerCredits),
        ([0.0, 0.1, 0.2, 0.7], 0.1, 0.5, 255, WaitsFor::Memory),
        ([0.1, 0.8, 0.1, 0.0], 0.0, 0.95, 255, WaitsFor::Cpu),
        ([0.8, 0.2, 0.0, 0.0], 0.0, 0.5, 0, WaitsFor::OwnCredits),
        ([0.1, 0.2, 0.0, 0.7], 0.0, 0.5, 0, WaitsFor::Memory),
        ([0.1, 0.2, 0.7, 0.0], 0.0, 0.5, 0, WaitsFor::Window),
    ];

    #[test]
    fn the_largest_part_of_the_time_of_a_session_is_named() {
        for &([client, server, window, memory], waiting, cpu, granted, expected) in SESSIONS {
            let rate = Rate {
                bytes_sent: 1.0,
                waiting,
                waits: Some(WaitRate {
                    client,
                    server,
                    window,
                    memory,
                }),
                ..Rate::default()
            };
            let mut one = connection(1, 10.0, 0);
            one.granted_credits = granted;
            let (cause, part) = WaitsFor::of(&one, &rate, cpu);
            assert_eq!(cause, expected, "{rate:?}");
            let has_line = cause.explanation(&one, part).is_some();
            assert_eq!(has_line, cause != WaitsFor::Client);
        }
    }

    #[test]
    fn credits_of_the_server_are_part_of_the_wait_for_it() {
        let rate = Rate {
            waiting: 0.5,
            waits: Some(WaitRate {
                server: 0.9,
                ..WaitRate::default()
            }),
            ..Rate::default()
        };
        let mut one = connection(1, 10.0, 0);
        one.role = "active".into();
        assert_eq!(WaitsFor::of(&one, &rate, 0.0), (WaitsFor::PeerCredits, 0.5));
    }

    #[test]
    fn an_idle_connection_does_not_wait_for_a_busy_core() {
        let one = connection(1, 10.0, 0);
        let (cause, _) = WaitsFor::of(&one, &Rate::default(), 1.0);
        assert_eq!(cause, WaitsFor::Messages);
    }

    #[test]
    fn the_connection_that_waits_most_is_explained() {
        // The test connection waits longer, the more bytes it has sent.
        let connections = vec![connection(1, 10.0, 10_000), connection(2, 10.0, 90_000)];
        let rated = Rates::default().next(status(20.0, connections));
        let line = worst(&rated);
        assert!(line.contains("send credits"), "{line}");
        assert!(line.contains("90 % of the time, 200 of 255 held"), "{line}");
        let rated = Rates::default().next(status(20.0, vec![connection(1, 10.0, 0)]));
        assert!(worst(&rated).starts_with("no connection waits"));
    }
}
