//! Silence that breaks a rule: an end leaves its peer without a send credit.
//!
//! An end that has received a message and has no receive left posts at least one and grants it (3.1.5.9). The
//! specification gives no time for this. Windows and this implementation end a connection after [`GRANT_TIMEOUT`]
//! without a credit, so the rule counts as broken after that time.

use std::{collections::HashMap, time::Duration};

use super::{
    event::{Event, EventKind, Told, broken},
    per_end::{PerEnd, Side},
};

/// The Send Credit Grant Timer of Windows.
const GRANT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of streams that are watched at the same time.
const MAX_STREAMS: usize = 2048;

/// Watches the credits of all streams, over iWARP and over RoCE.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// The times when both ends of a stream spent their last credit, if they have received none since.
    streams: HashMap<u32, PerEnd<Option<Duration>>>,
}

impl Silence {
    /// Takes the next event. If an end was silent for too long before it, returns the event that reports the
    /// silence.
    pub(super) fn event(&mut self, event: &Event) -> Option<Event> {
        if !self.streams.contains_key(&event.stream) && self.streams.len() >= MAX_STREAMS {
            return None;
        }
        let spent = self.streams.entry(event.stream).or_default();
        let now = event.position.time;
        let late = Side::BOTH.into_iter().find_map(|end| {
            let waited = now.saturating_sub(spent[end]?);
            (waited >= GRANT_TIMEOUT).then_some((end, waited))
        });
        for end in Side::BOTH {
            let spends = event.from == end && matches!(event.kind, EventKind::DataTransfer(_));
            match event.credits[end] {
                Some(0) if spends => spent[end] = Some(now),
                Some(0) => {}
                _ => spent[end] = None,
            }
        }
        let silence = late.map(|(end, waited)| {
            // It is reported once.
            spent[end] = None;
            let how = format!(
                "no credit for {:.1} s after the peer had spent its last one",
                waited.as_secs_f64()
            );
            let mut credits = event.credits;
            credits[end] = Some(0);
            let note = "leaves its peer without a send credit";
            let faults = vec![broken("SMBD-3.1.5.9-03", how)];
            let told = Told::from((EventKind::Note { note }, faults));
            let ends = (!end, event.initiator);
            told.event(event.stream, event.position, ends, credits)
        });
        if matches!(event.kind, EventKind::Closed { .. }) {
            self.streams.remove(&event.stream);
        }
        silence
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        event::{DataTransfer, Extra, Payload},
        tcp::Position,
    };

    fn event(milliseconds: u64, from: Side, credits: [u32; 2], kind: EventKind) -> Event {
        Event {
            stream: 1,
            position: Position {
                frame: 1,
                time: Duration::from_millis(milliseconds),
                seconds: 0.0,
            },
            from,
            kind,
            initiator: Some(INITIATOR),
            credits: PerEnd(credits.map(Some)),
            broken: Vec::new(),
            extra: Extra::default(),
        }
    }

    fn transfer() -> EventKind {
        EventKind::DataTransfer(DataTransfer {
            credits_requested: 1,
            credits_granted: 0,
            flags: 0,
            reserved: 0,
            remaining_data_length: 0,
            data_offset: 0,
            data_length: 0,
            payload: Payload::None,
            invalidated: None,
        })
    }

    const INITIATOR: Side = Side::A;
    const RESPONDER: Side = Side::B;
    const END: EventKind = EventKind::Closed { reset: false };

    /// Returns the rule that each event shows to be broken, and the side that broke it.
    fn silences(events: Vec<Event>) -> Vec<Option<Side>> {
        let mut silence = Silence::default();
        events
            .iter()
            .map(|event| {
                let report = silence.event(event)?;
                assert_eq!(report.broken[0].rule, "SMBD-3.1.5.9-03");
                Some(report.from)
            })
            .collect()
    }

    #[test]
    fn an_end_that_grants_nothing_for_five_seconds_is_reported_once() {
        // The end of the connection shows it, whichever side ends the connection.
        for closes in [INITIATOR, RESPONDER] {
            let stalled = vec![
                event(0, INITIATOR, [0, 10], transfer()),
                event(5000, closes, [0, 10], END),
            ];
            assert_eq!(silences(stalled), [None, Some(RESPONDER)]);
        }
        let both = vec![
            event(0, RESPONDER, [3, 0], transfer()),
            event(6000, RESPONDER, [3, 0], EventKind::Note { note: "-" }),
            event(12_000, INITIATOR, [3, 0], END),
        ];
        assert_eq!(silences(both), [None, Some(INITIATOR), None]);
    }

    #[test]
    fn a_grant_in_time_and_an_end_that_has_spent_nothing_are_no_faults() {
        let granted = vec![
            event(0, INITIATOR, [0, 10], transfer()),
            event(4999, RESPONDER, [1, 9], transfer()),
            event(60_000, INITIATOR, [1, 9], END),
        ];
        assert_eq!(silences(granted), [None; 3]);
        // The responder has no credit until the initiator's first message.
        let idle = vec![
            event(0, RESPONDER, [10, 0], EventKind::Note { note: "-" }),
            event(60_000, INITIATOR, [10, 0], END),
        ];
        assert_eq!(silences(idle), [None; 2]);
    }
}
