//! Each case can fail: servers that break rules on purpose are judged.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::Bytes;
use smbdirect::wire::{DataTransfer, Flags, NegotiateRequest, NegotiateResponse, Status};
use smbdirect_conform::{
    Echo, Group, Link, Next, Outcome, PeerFacts, PeerSettings, Server, Timers, Verdict, run,
    server_cases,
};

/// How a server deviates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deviation {
    /// It never ends a connection because of a message.
    EndsNothing,
    /// It ends each connection at the first message.
    EndsEverything,
    /// It negotiates, and then sends nothing more.
    FallsSilent,
    /// It answers, but never grants a credit.
    GrantsNothing,
    /// It answers with messages that have the flag SMB_DIRECT_RESPONSE_REQUESTED and wrong padding.
    WritesHeadersWrong,
}

#[derive(Clone, Copy)]
struct Deviating(Deviation);

impl Server for Deviating {
    fn prepare(&mut self, _wish: &PeerSettings) -> Verdict {
        Ok(())
    }

    fn facts(&self) -> PeerFacts {
        PeerFacts {
            settings: None,
            timers: Timers::SERVER,
            prompt: Duration::from_secs(1),
            silence: Duration::from_secs(1),
            margin: Duration::from_secs(1),
            early: Duration::ZERO,
            late: Duration::ZERO,
            patience: Duration::MAX,
        }
    }

    fn connect(&mut self) -> Verdict<Box<dyn Link>> {
        let now = Instant::now();
        Ok(Box::new(Connection {
            deviation: self.0,
            connected: now,
            now,
            is_negotiated: false,
            is_over: false,
            message: Vec::new(),
            arriving: VecDeque::new(),
        }))
    }
}

/// A connection whose answers arrive immediately, in virtual time.
struct Connection {
    deviation: Deviation,
    connected: Instant,
    now: Instant,
    is_negotiated: bool,
    is_over: bool,
    /// The received part of the current message.
    message: Vec<u8>,
    arriving: VecDeque<Bytes>,
}

impl Connection {
    fn accept(&mut self, message: &[u8]) {
        self.is_negotiated = true;
        let request = NegotiateRequest::decode(message).ok();
        let response = NegotiateResponse {
            min_version: 0x0100,
            max_version: 0x0100,
            negotiated_version: 0x0100,
            credits_requested: 255,
            credits_granted: request.map_or(1, |request| request.credits_requested.clamp(1, 255)),
            status: Status::SUCCESS,
            max_read_write_size: 1 << 20,
            preferred_send_size: request
                .map_or(128, |request| request.max_receive_size.clamp(128, 1364)),
            max_receive_size: request
                .map_or(128, |request| request.preferred_send_size.clamp(128, 1364)),
            max_fragmented_size: 131_072,
        };
        let mut bytes = Vec::new();
        response.encode(&mut bytes);
        self.arriving.push_back(bytes.into());
    }

    /// Echoes the payload, as far as the message can be read at all.
    fn answer(&mut self, message: &[u8]) {
        let Ok(header) = DataTransfer::decode(message) else {
            return;
        };
        self.message.extend_from_slice(&message[header.payload()]);
        if header.remaining_data_length > 0 || header.data_length == 0 {
            return;
        }
        let payload = std::mem::take(&mut self.message);
        let wrong = self.deviation == Deviation::WritesHeadersWrong;
        let mut left = payload.len();
        for part in payload.chunks(1000) {
            left -= part.len();
            let header = DataTransfer {
                data_offset: 24,
                data_length: part.len() as u32,
                remaining_data_length: left as u32,
                ..DataTransfer::empty(255, self.grant(), flags(wrong))
            };
            let mut bytes = Vec::new();
            header.encode(&mut bytes);
            bytes.extend_from_slice(part);
            if wrong {
                bytes[21] = 0xa5;
            }
            self.arriving.push_back(bytes.into());
        }
    }

    fn grant(&self) -> u16 {
        u16::from(self.deviation != Deviation::GrantsNothing)
    }
}

fn flags(wrong: bool) -> Flags {
    if wrong {
        Flags::RESPONSE_REQUESTED
    } else {
        Flags::empty()
    }
}

impl Link for Connection {
    fn send(&mut self, message: &[u8]) -> Verdict {
        match (self.deviation, self.is_negotiated) {
            (Deviation::EndsEverything, _) => self.is_over = true,
            (_, false) => self.accept(message),
            (Deviation::FallsSilent, true) => {}
            (_, true) => self.answer(message),
        }
        Ok(())
    }

    fn next(&mut self, limit: Duration) -> Next {
        if let Some(message) = self.arriving.pop_front() {
            return Next::Message(message);
        }
        if self.is_over {
            return Next::End;
        }
        self.now += limit;
        Next::Silence
    }

    fn post_receives(&mut self, _count: u16, _length: u32) {}

    fn disconnect(&mut self) {
        self.is_over = true;
    }

    fn connected(&self) -> Instant {
        self.connected
    }

    fn now(&self) -> Instant {
        self.now
    }
}

/// Returns the ids of Microsoft's cases, and of the cases that need no bytes below RDMA, that a
/// deviating server passes.
fn passed(deviation: Deviation) -> Vec<&'static str> {
    let outcomes = server_cases().map(|case| (case, run(case, &mut Deviating(deviation), &Echo)));
    let passed = outcomes.filter(|(_, outcome)| *outcome == Outcome::Pass);
    passed.map(|(case, _)| case.id).collect()
}

#[test]
fn a_server_that_ends_nothing_fails_every_case_that_breaks_a_rule() {
    let passed = passed(Deviation::EndsNothing);
    for case in server_cases().filter(|case| case.group == Group::Microsoft) {
        let breaks_a_rule = case.does.contains("terminate") || case.does.contains("STATUS_");
        if breaks_a_rule {
            assert!(!passed.contains(&case.id), "{}", case.id);
        }
    }
    for id in ["h14", "b9", "b10", "b11"] {
        assert!(!passed.contains(&id), "{id}");
    }
    // The cases that the peer passes are checked, too.
    for id in ["m1", "m10", "m13", "m19", "m20"] {
        assert!(passed.contains(&id), "{id} of {passed:?}");
    }
}

#[test]
fn a_server_that_ends_everything_passes_nothing() {
    assert_eq!(passed(Deviation::EndsEverything), Vec::<&str>::new());
}

#[test]
fn a_server_that_falls_silent_passes_nothing() {
    assert_eq!(passed(Deviation::FallsSilent), Vec::<&str>::new());
}

#[test]
fn a_server_that_grants_nothing_fails_long_requests() {
    let passed = passed(Deviation::GrantsNothing);
    for id in [
        "m21", "m22", "m34", "m37", "m38", "m39", "m40", "b1", "b2", "b7",
    ] {
        assert!(!passed.contains(&id), "{id}");
    }
}

#[test]
fn wrong_headers_fail_every_case_with_an_answer() {
    let passed = passed(Deviation::WritesHeadersWrong);
    assert_eq!(passed, Vec::<&str>::new());
}

#[test]
fn failures_say_what_was_expected_and_seen() {
    let outcome_of = |id: &str, deviation| {
        let case = server_cases().find(|case| case.id == id).unwrap();
        match run(case, &mut Deviating(deviation), &Echo) {
            Outcome::Fail { expected, seen } => (expected, seen),
            other => panic!("{id}: {other:?}"),
        }
    };
    let (expected, seen) = outcome_of("m42", Deviation::EndsNothing);
    assert!(expected.contains("the connection ends"), "{expected}");
    assert!(seen.contains("DataLength"), "{seen}");
    let (expected, seen) = outcome_of("m19", Deviation::FallsSilent);
    assert!(
        expected.contains("a message") && seen.contains("nothing within 1s"),
        "{seen}"
    );
    let (expected, _) = outcome_of("m19", Deviation::WritesHeadersWrong);
    assert!(expected.contains("padding of zeros"), "{expected}");
}
