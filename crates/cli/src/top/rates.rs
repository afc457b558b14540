//! Rates from two readings of the counters.

use std::collections::HashMap;

use serde::Serialize;

use smbdirect_gateway::{
    Waited,
    observe::{ConnectionStatus, Status, ThreadStatus, Traffic},
};

/// Keeps the last reading of the counters.
#[derive(Debug, Default)]
pub(super) struct Rates {
    before: Option<Status>,
}

/// A status with the rates since the previous status.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Rated {
    event: &'static str,
    #[serde(flatten)]
    pub(super) status: Status,
    /// Rates of all connections together.
    pub(super) rates: Rate,
    /// Rates of each connection, in the order of the connections.
    pub(super) connection_rates: Vec<Rate>,
    /// The part of a processor core that the busiest thread takes.
    pub(super) busiest_thread: f64,
}

/// Events per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Rate {
    pub(super) messages_sent: f64,
    pub(super) messages_received: f64,
    pub(super) bytes_sent: f64,
    pub(super) bytes_received: f64,
    pub(super) bytes_read: f64,
    pub(super) bytes_written: f64,
    pub(super) registrations: f64,
    pub(super) credit_stalls: f64,
    /// Part of the time during which messages waited for a send credit; the sum over all
    /// connections for the rates of all.
    pub(super) waiting: f64,
    pub(super) send_queue_stalls: f64,
    /// What the session of the connection has waited for, if the command tells.
    pub(super) waits: Option<WaitRate>,
}

/// The parts of the time that a session has waited, by what it has waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct WaitRate {
    pub(super) client: f64,
    pub(super) server: f64,
    pub(super) window: f64,
    pub(super) memory: f64,
}

impl WaitRate {
    fn of(before: &Waited, now: &Waited, seconds: f64) -> Self {
        let part = |of: fn(&Waited) -> f64| ((of(now) - of(before)) / seconds).max(0.0);
        Self {
            client: part(|waited| waited.think_seconds),
            server: part(|waited| waited.server_seconds),
            window: part(|waited| waited.network_seconds),
            memory: part(|waited| waited.memory_seconds),
        }
    }
}

impl Rate {
    pub(super) fn bytes(&self) -> f64 {
        self.bytes_sent + self.bytes_received + self.bytes_read + self.bytes_written
    }

    fn of(before: &Traffic, now: &Traffic, seconds: f64) -> Self {
        if seconds <= 0.0 {
            return Self::default();
        }
        let rate = |counter: fn(&Traffic) -> u64| {
            counter(now).saturating_sub(counter(before)) as f64 / seconds
        };
        let waited = now.credit_stall_seconds - before.credit_stall_seconds;
        Self {
            messages_sent: rate(|traffic| traffic.messages_sent),
            messages_received: rate(|traffic| traffic.messages_received),
            bytes_sent: rate(|traffic| traffic.bytes_sent),
            bytes_received: rate(|traffic| traffic.bytes_received),
            bytes_read: rate(|traffic| traffic.bytes_read),
            bytes_written: rate(|traffic| traffic.bytes_written),
            registrations: rate(|traffic| traffic.registrations),
            credit_stalls: rate(|traffic| traffic.credit_stalls),
            waiting: waited.max(0.0) / seconds,
            send_queue_stalls: rate(|traffic| traffic.send_queue_stalls),
            waits: None,
        }
    }

    /// Returns the rates of a connection since `before`, or since it began.
    fn of_connection(
        before: Option<&ConnectionStatus>,
        now: &ConnectionStatus,
        seconds: f64,
    ) -> Self {
        let nothing = Traffic::default();
        let (traffic, seconds) = match before {
            Some(before) => (&before.traffic, seconds),
            None => (&nothing, now.seconds),
        };
        let waited = before.and_then(|before| before.waited).unwrap_or_default();
        let waits = now.waited.filter(|_| seconds > 0.0);
        Self {
            waits: waits.map(|now| WaitRate::of(&waited, &now, seconds)),
            ..Self::of(traffic, &now.traffic, seconds)
        }
    }
}

/// Returns the part of a processor core that the busiest thread has taken since `before`, or since the start.
fn busiest_thread(before: &[ThreadStatus], now: &[ThreadStatus], seconds: f64) -> f64 {
    if seconds <= 0.0 {
        return 0.0;
    }
    let before: HashMap<u64, f64> = before.iter().map(|one| (one.id, one.cpu_seconds)).collect();
    let taken = |one: &ThreadStatus| one.cpu_seconds - before.get(&one.id).unwrap_or(&0.0);
    now.iter().map(taken).fold(0.0, f64::max) / seconds
}

impl Rates {
    /// Returns the rates since the last call. A connection that is new, and a command that has
    /// started again, has its average rates since it began.
    pub(super) fn next(&mut self, status: Status) -> Rated {
        let before = self
            .before
            .take()
            .filter(|before| before.seconds <= status.seconds);
        let nothing = Traffic::default();
        let (total, seconds) = match &before {
            Some(before) => (&before.total, status.seconds - before.seconds),
            None => (&nothing, status.seconds),
        };
        let rates = Rate::of(total, &status.total, seconds);
        let known: HashMap<u64, &ConnectionStatus> = before
            .iter()
            .flat_map(|before| &before.connections)
            .map(|one| (one.id, one))
            .collect();
        let rate =
            |one: &ConnectionStatus| Rate::of_connection(known.get(&one.id).copied(), one, seconds);
        let connection_rates = status.connections.iter().map(rate).collect();
        let threads = before.as_ref().map_or(&[][..], |before| &before.threads);
        let busiest_thread = busiest_thread(threads, &status.threads, seconds);
        self.before = Some(status.clone());
        Rated {
            event: "top",
            status,
            rates,
            connection_rates,
            busiest_thread,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn connection(id: u64, seconds: f64, bytes_sent: u64) -> ConnectionStatus {
        ConnectionStatus {
            id,
            role: "passive".into(),
            peer: "10.0.0.2:40000".parse().unwrap(),
            local: "10.0.0.1:5445".parse().unwrap(),
            seconds,
            send_credits: 200,
            send_credit_target: 255,
            granted_credits: 255,
            receive_credit_max: 255,
            received_message_bytes: 0,
            traffic: Traffic {
                bytes_sent,
                messages_sent: bytes_sent / 100,
                credit_stall_seconds: bytes_sent as f64 / 10_000.0,
                ..Traffic::default()
            },
            waited: None,
        }
    }

    pub(crate) fn status(seconds: f64, connections: Vec<ConnectionStatus>) -> Status {
        let mut total = Traffic::default();
        for one in &connections {
            total.bytes_sent += one.traffic.bytes_sent;
        }
        Status {
            server_version: "1.2.3".into(),
            title: "gateway 10.0.0.1:5445 to nas".into(),
            seconds,
            established: 7,
            failed: 1,
            total,
            connections,
            threads: Vec::new(),
        }
    }

    #[test]
    fn waits_are_parts_of_the_time_since_the_last_moment() {
        let mut rates = Rates::default();
        let at = |seconds: f64, waited, cpu_seconds: &[f64]| {
            let threads = cpu_seconds.iter().zip(1..);
            Status {
                connections: vec![ConnectionStatus {
                    waited,
                    ..connection(1, seconds, 0)
                }],
                threads: threads
                    .map(|(&cpu_seconds, id)| ThreadStatus { id, cpu_seconds })
                    .collect(),
                ..status(seconds, Vec::new())
            }
        };
        let waited = Waited {
            think_seconds: 2.0,
            server_seconds: 1.0,
            ..Waited::default()
        };
        let first = rates.next(at(4.0, Some(waited), &[1.0, 3.0]));
        let waits = first.connection_rates[0].waits.unwrap();
        assert_eq!((waits.client, waits.server), (0.5, 0.25));
        assert_eq!(first.busiest_thread, 0.75);
        let later = Waited {
            server_seconds: 2.0,
            memory_seconds: 1.0,
            ..waited
        };
        let second = rates.next(at(6.0, Some(later), &[2.0, 3.5, 0.2]));
        let expected = WaitRate {
            server: 0.5,
            memory: 0.5,
            ..WaitRate::default()
        };
        assert_eq!(second.connection_rates[0].waits, Some(expected));
        assert_eq!(
            second.busiest_thread, 0.5,
            "not the one that was busy before"
        );
        let third = rates.next(at(6.0, None, &[]));
        assert_eq!(third.connection_rates[0].waits, None);
        assert_eq!(third.busiest_thread, 0.0);
    }

    #[test]
    fn rates_are_those_since_the_last_moment() {
        let mut rates = Rates::default();
        let first = rates.next(status(10.0, vec![connection(1, 4.0, 1000)]));
        assert_eq!(first.rates.bytes_sent, 100.0, "since the start");
        assert_eq!(
            first.connection_rates[0].bytes_sent, 250.0,
            "since its start"
        );
        let both = vec![connection(1, 6.0, 5000), connection(2, 0.5, 100)];
        let second = rates.next(status(12.0, both));
        assert_eq!(second.rates.bytes_sent, 2050.0);
        assert_eq!(second.connection_rates[0].bytes_sent, 2000.0);
        assert_eq!(second.connection_rates[0].messages_sent, 20.0);
        assert!((second.connection_rates[0].waiting - 0.2).abs() < 1e-9);
        assert_eq!(second.connection_rates[1].bytes_sent, 200.0);
    }

    #[test]
    fn a_command_that_started_again_begins_anew() {
        let mut rates = Rates::default();
        rates.next(status(100.0, vec![connection(1, 90.0, 100_000)]));
        let again = rates.next(status(2.0, vec![connection(1, 1.0, 300)]));
        assert_eq!(again.rates.bytes_sent, 150.0);
        assert_eq!(again.connection_rates[0].bytes_sent, 300.0);
        let same = rates.next(status(2.0, vec![connection(1, 1.0, 300)]));
        assert_eq!(same.rates, Rate::default(), "no time has passed");
    }
}
