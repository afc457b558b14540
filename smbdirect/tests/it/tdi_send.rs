//! Tests of `Outbound`: a table for each rule of TDI sends, and random sends compared with a model of
//! two FIFO queues.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::Bytes;
use proptest::prelude::*;
use smbdirect::{
    Message, Token,
    tdi::{
        Expedited, NoResponse, NonBlocking, Outbound, OutboundTsdu, RequestId, SendAvailability,
        SendCompletion, SendEvent, SendFlags, SendRequest, SendSettings, Status, Submission,
    },
};

const NONE: SendFlags = SendFlags::empty();
const E: SendFlags = SendFlags::EXPEDITED;
const P: SendFlags = SendFlags::PARTIAL;
const N: SendFlags = SendFlags::NO_RESPONSE_EXPECTED;
const B: SendFlags = SendFlags::NON_BLOCKING;

/// The sends of a connection, with the requests numbered from 1.
struct Sends {
    outbound: Outbound,
    now: Instant,
    last: u64,
}

/// A completion as request, status and information.
type Done = (u64, Status, usize);

impl Sends {
    /// Sends with TSDUs of at most 8 bytes, a send buffer of 16 bytes and a low mark of 4 bytes.
    fn new() -> Self {
        Self::with(settings())
    }

    fn with(settings: SendSettings) -> Self {
        Self {
            outbound: Outbound::new(settings).unwrap(),
            now: Instant::now(),
            last: 0,
        }
    }

    fn submit(&mut self, change: impl FnOnce(&mut SendRequest)) -> Option<SendCompletion> {
        self.last += 1;
        let mut request = SendRequest::write(RequestId(self.last), "");
        change(&mut request);
        match self.outbound.send(self.now, request) {
            Submission::Pending => None,
            Submission::Completed(completion) => Some(completion),
        }
    }

    /// Submits a request. Returns its status and information if it completes immediately.
    fn send(&mut self, data: &'static str, flags: SendFlags) -> Option<(Status, usize)> {
        let completion = self.submit(|request| {
            request.buffer = data.into();
            request.flags = flags;
        })?;
        assert_eq!(completion.id, RequestId(self.last));
        assert_eq!(completion.buffer.into_bytes(), data);
        Some((completion.status, completion.information))
    }

    fn next(&mut self) -> Option<OutboundTsdu> {
        self.outbound.poll_tsdu(SendAvailability::default())
    }

    /// Sends all complete TSDUs, and returns them.
    fn drain(&mut self) -> Vec<String> {
        let mut sent = Vec::new();
        while let Some(tsdu) = self.next() {
            sent.push(text(tsdu.message));
            self.outbound.tsdu_sent();
        }
        sent
    }

    /// Returns the events so far.
    fn events(&mut self) -> Vec<SendEvent> {
        std::iter::from_fn(|| self.outbound.poll_event()).collect()
    }

    /// Returns the events so far, which must all be completions.
    fn done(&mut self) -> Vec<Done> {
        let events = self.events().into_iter();
        events
            .map(|event| match event {
                SendEvent::Completed(SendCompletion {
                    id,
                    status,
                    information,
                    ..
                }) => (id.0, status, information),
                other => panic!("{other:?}"),
            })
            .collect()
    }
}

fn settings() -> SendSettings {
    SendSettings {
        high_water: 16,
        low_water: 4,
        ..SendSettings::new(8)
    }
}

fn text(message: Message) -> String {
    String::from_utf8(message.into_bytes().into()).unwrap()
}

const SUCCESS: Status = Status::SUCCESS;
const INVALID: Option<(Status, usize)> = Some((Status::INVALID_PARAMETER, 0));
const NOT_READY: Option<(Status, usize)> = Some((Status::DEVICE_NOT_READY, 0));
const fn taken(information: usize) -> Option<(Status, usize)> {
    Some((SUCCESS, information))
}

//= TDI-SEND-02 test
//= TDI-SEND-07 test
//= TDI-SEND-28 test
//= TDI-SEND-31 test
#[test]
fn send_without_flags_is_one_tsdu() {
    let mut sends = Sends::new();
    for data in ["a", "bc", "def"] {
        assert_eq!(sends.send(data, NONE), None);
    }
    assert_eq!(sends.drain(), ["a", "bc", "def"]);
    let all = [(1, SUCCESS, 1), (2, SUCCESS, 2), (3, SUCCESS, 3)];
    assert_eq!(sends.done(), all);
    assert!(sends.next().is_none());
}

//= TDI-SEND-03 test
#[test]
fn flags_combine_and_undefined_bits_are_refused() {
    for bits in 0..16 {
        let mut flags = NONE;
        for (bit, flag) in [E, P, N, B].into_iter().enumerate() {
            flags.set(flag, bits & (1 << bit) != 0);
        }
        let mut sends = Sends::new();
        let result = sends.send("ab", flags);
        assert_eq!(
            result,
            flags.intersects(P | B).then_some((SUCCESS, 2)),
            "{flags:?}"
        );
        let expected: &[&str] = if flags.contains(P) { &[] } else { &["ab"] };
        assert_eq!(sends.drain(), expected, "{flags:?}");
    }
    for bit in (0..32).filter(|bit| !(5..=9).contains(bit)) {
        let mut sends = Sends::new();
        let flags = SendFlags::from_bits_retain(1 << bit);
        assert_eq!(sends.send("ab", flags), INVALID, "{flags:?}");
        assert!(sends.next().is_none());
    }
    let mut sends = Sends::new();
    let unsupported = Some((Status::NOT_SUPPORTED, 0));
    assert_eq!(sends.send("ab", SendFlags::AND_DISCONNECT), unsupported);
    assert!(sends.next().is_none());
}

//= TDI-SEND-04 test
//= TDI-SEND-05 test
#[test]
fn expedited_sends_overtake_unstarted_tsdus() {
    let mut sends = Sends::new();
    for data in ["begun", "n1", "n2"] {
        sends.send(data, NONE);
    }
    let begun = sends.next().unwrap();
    assert_eq!(text(begun.message), "begun");
    sends.send("e1", E);
    sends.send("e2", E);
    sends.send("n3", NONE);
    assert_eq!(sends.drain(), ["e1", "e2", "n1", "n2", "n3"]);
}

//= TDI-SEND-06 test
#[test]
fn expedited_flag_is_ignored_if_so_set() {
    let mut sends = Sends::with(SendSettings {
        expedited: Expedited::Ignore,
        high_water: 8,
        ..settings()
    });
    sends.send("n1", NONE);
    sends.send("e", E | P);
    sends.send("n2", NONE);
    assert_eq!(sends.drain(), ["n1", "en2"]);
}

//= TDI-SEND-08 test
//= TDI-SEND-09 test
#[test]
fn partial_sends_are_one_tsdu() {
    let mut sends = Sends::new();
    assert_eq!(sends.send("a", P), taken(1));
    assert_eq!(sends.send("b", P), taken(1));
    assert!(sends.next().is_none());
    // This is of the other class, and hence another TSDU.
    assert_eq!(sends.send("X", E | P), taken(1));
    assert_eq!(sends.send("c", NONE), None);
    assert_eq!(sends.send("d", NONE), None);
    assert_eq!(sends.send("Y", E), None);
    assert_eq!(sends.drain(), ["XY", "abc", "d"]);
    let all = [(6, SUCCESS, 1), (4, SUCCESS, 1), (5, SUCCESS, 1)];
    assert_eq!(sends.done(), all);
}

//= TDI-SEND-12 test
//= TDI-SEND-13 test
#[test]
fn no_response_expected_only_sets_the_prompt() {
    let low = SendAvailability {
        send_credits: 3,
        low_credits: 2,
        segment_payload: 4,
        response_pending: false,
    };
    let plenty = SendAvailability {
        send_credits: 9,
        ..low
    };
    let pending = SendAvailability {
        response_pending: true,
        ..low
    };
    for (policy, availability, prompts) in [
        (NoResponse::Ignore, low, false),
        (NoResponse::WhenLowOnCredits, low, true),
        (NoResponse::WhenLowOnCredits, plenty, false),
        (NoResponse::WhenLowOnCredits, pending, false),
        (NoResponse::Always, low, true),
        (NoResponse::Always, plenty, true),
        (NoResponse::Always, pending, false),
    ] {
        for (flags, prompts) in [(N, prompts), (NONE, false)] {
            let mut sends = Sends::with(SendSettings {
                no_response: policy,
                ..settings()
            });
            assert_eq!(sends.send("ab", P | N), taken(2));
            assert_eq!(sends.send("cd", flags), None);
            let tsdu = sends.outbound.poll_tsdu(availability).unwrap();
            assert_eq!(
                tsdu.prompt, prompts,
                "{policy:?} {availability:?} {flags:?}"
            );
            assert_eq!(text(tsdu.message), "abcd");
            sends.outbound.tsdu_sent();
            assert_eq!(sends.done(), [(2, SUCCESS, 2)]);
        }
    }
    // The credits that the TSDU leaves decide: 8 bytes use two segments, 4 bytes use one.
    for (data, credits, prompts) in [("12345678", 4, true), ("1234", 4, false), ("1234", 1, true)] {
        let mut sends = Sends::new();
        sends.send(data, N);
        let availability = SendAvailability {
            send_credits: credits,
            ..low
        };
        let tsdu = sends.outbound.poll_tsdu(availability).unwrap();
        assert_eq!(tsdu.prompt, prompts, "{data} {credits}");
    }
}

//= TDI-SEND-14 test
//= TDI-SEND-15 test
//= TDI-SEND-16 test
//= TDI-SEND-21 test
#[test]
fn non_blocking_send_takes_what_fits() {
    let mut sends = Sends::new();
    assert_eq!(sends.outbound.available(), 16);
    assert_eq!(sends.send("12345678", B), taken(8));
    assert_eq!(sends.send("abcd", B), taken(4));
    assert_eq!(sends.send("ABCDEF", B), taken(4));
    assert_eq!(
        (sends.outbound.available(), sends.outbound.buffered()),
        (0, 16)
    );
    assert_eq!(sends.send("EF", B), NOT_READY);
    // The part is no whole TSDU and waits for the rest.
    assert_eq!(sends.drain(), ["12345678", "abcd"]);
    assert_eq!(sends.send("EF", B), taken(2));
    assert_eq!(sends.drain(), ["ABCDEF"]);
    assert_eq!(sends.outbound.available(), 16);
}

#[test]
fn atomic_send_takes_all_or_nothing() {
    let mut sends = Sends::with(SendSettings {
        non_blocking: NonBlocking::Atomic,
        ..settings()
    });
    assert_eq!(sends.send("12345678", B), taken(8));
    assert_eq!(sends.send("1234", B), taken(4));
    assert_eq!(sends.send("ABCDEF", B), NOT_READY);
    assert_eq!(sends.send("abcd", B), taken(4));
    sends.next().unwrap();
    sends.next().unwrap();
    sends.outbound.tsdu_sent();
    // 8 bytes are free, but 8 bytes have yet to drain.
    assert_eq!(sends.events().len(), 0);
    sends.outbound.tsdu_sent();
    let events = sends.events();
    assert!(
        matches!(events[..], [SendEvent::SendPossible { available: 12 }]),
        "{events:?}"
    );
    // The buffer has drained to the low mark, but has no room for the refused send.
    assert_eq!(sends.drain(), ["abcd"]);
    assert_eq!(sends.send("open...", B | P), taken(7));
    assert_eq!(sends.send("12345678", E | B), taken(8));
    assert_eq!(sends.send("ab", E | B), NOT_READY);
    assert!(sends.events().is_empty());
    assert_eq!(sends.drain(), ["12345678"]);
    let events = sends.events();
    assert!(
        matches!(events[..], [SendEvent::SendPossible { available: 9 }]),
        "{events:?}"
    );
}

//= TDI-SEND-17 test
#[test]
fn send_possible_follows_when_nothing_more_can_drain() {
    let mut sends = Sends::with(SendSettings {
        non_blocking: NonBlocking::Atomic,
        ..settings()
    });
    assert_eq!(sends.send("123", B), taken(3));
    assert_eq!(sends.send("12345678", E | P), taken(8));
    assert_eq!(sends.send("1234567", B), NOT_READY);
    // Another client opens a TSDU, so there will never be room for 7 more bytes.
    assert_eq!(sends.send("abc", P), taken(3));
    assert_eq!(sends.drain(), ["123"]);
    let events = sends.events();
    assert!(
        matches!(events[..], [SendEvent::SendPossible { available: 5 }]),
        "{events:?}"
    );
}

//= TDI-SEND-17 test
//= TDI-SEND-18 test
#[test]
fn send_possible_is_reported_once_per_refusal() {
    let mut sends = Sends::new();
    for data in ["12345678", "1234", "1234"] {
        assert_eq!(sends.send(data, B), taken(data.len()));
    }
    // Without a refusal there is no event.
    sends.next().unwrap();
    sends.outbound.tsdu_sent();
    assert_eq!(sends.events().len(), 0);
    assert_eq!(sends.send("12345678", B), taken(8));
    assert_eq!(sends.send("a", B), NOT_READY);
    assert_eq!(sends.send("b", B), NOT_READY);
    let mut said = Vec::new();
    for _ in 0..3 {
        sends.next().unwrap();
        sends.outbound.tsdu_sent();
        said.push(sends.events());
    }
    // 12 bytes, and then 8 bytes, are above the low mark of 4.
    assert!(said[0].is_empty() && said[1].is_empty());
    assert!(
        matches!(said[2][..], [SendEvent::SendPossible { available: 16 }]),
        "{said:?}"
    );
    assert!(sends.events().is_empty());
    // The event reserves no room.
    assert_eq!(sends.send("12345678", B), taken(8));
    assert_eq!(sends.send("12345678", B), taken(8));
    assert_eq!(sends.send("c", B), NOT_READY);
}

#[test]
fn open_tsdu_does_not_suppress_send_possible() {
    let mut sends = Sends::new();
    assert_eq!(sends.send("open...", P), taken(7));
    assert_eq!(sends.send("12345678", E | B), taken(8));
    assert_eq!(sends.send("ab", E | B), taken(1));
    assert_eq!(sends.send("b", E | B), NOT_READY);
    assert_eq!(sends.drain(), ["12345678"]);
    // 7 bytes and 1 byte are left, above the low mark, but open TSDUs do not drain.
    let events = sends.events();
    assert!(
        matches!(events[..], [SendEvent::SendPossible { available: 8 }]),
        "{events:?}"
    );
}

//= TDI-SEND-17 test
#[test]
fn smaller_of_two_refusals_decides_send_possible() {
    let mut sends = Sends::with(SendSettings {
        non_blocking: NonBlocking::Atomic,
        ..settings()
    });
    assert_eq!(sends.send("open....", E | P), taken(8));
    assert_eq!(sends.send("1234", B), taken(4));
    assert_eq!(sends.send("12", B), taken(2));
    assert_eq!(sends.send("12345678", B), NOT_READY);
    assert_eq!(sends.send("123", B), NOT_READY);
    assert_eq!(sends.send("1234", B), NOT_READY);
    sends.next().unwrap();
    sends.outbound.tsdu_sent();
    let events = sends.events();
    assert!(
        matches!(events[..], [SendEvent::SendPossible { available: 6 }]),
        "{events:?}"
    );
}

#[test]
fn no_send_possible_event_after_the_end() {
    let mut sends = Sends::new();
    assert_eq!(sends.send("12345678", B), taken(8));
    assert_eq!(sends.send("12345678", B), taken(8));
    assert_eq!(sends.send("a", B), NOT_READY);
    sends.outbound.close(Status::LOCAL_DISCONNECT);
    assert!(!sends.outbound.cancel(RequestId(1)));
    assert!(sends.events().is_empty());
}

//= TDI-SEND-19 test
#[test]
fn non_blocking_is_ignored_without_a_send_buffer() {
    let mut sends = Sends::with(SendSettings {
        high_water: 0,
        low_water: 0,
        ..settings()
    });
    assert_eq!(sends.outbound.available(), 0);
    assert_eq!(sends.send("ab", P | B), None);
    assert_eq!(sends.send("cd", B), None);
    assert_eq!(sends.drain(), ["abcd"]);
    assert_eq!(sends.done(), [(1, SUCCESS, 2), (2, SUCCESS, 2)]);
    assert_eq!(sends.outbound.buffered(), 0);
}

//= TDI-SEND-20 test
#[test]
fn blocking_send_waits_for_room() {
    let mut sends = Sends::new();
    assert_eq!(sends.send("12345678", B), taken(8));
    assert_eq!(sends.send("12345", B), taken(5));
    // The part waits for room, and no later send takes the room that is left.
    assert_eq!(sends.send("wait", P), None);
    assert_eq!(sends.outbound.available(), 0);
    assert_eq!(sends.send("!", E | B), NOT_READY);
    assert_eq!(sends.done(), []);
    sends.next().unwrap();
    sends.outbound.tsdu_sent();
    assert_eq!(sends.done(), [(3, SUCCESS, 4)]);
    assert_eq!(sends.send("...", NONE), None);
    assert_eq!(sends.next().unwrap().message.into_bytes(), "12345");
    sends.outbound.tsdu_sent();
    assert!(matches!(
        sends.events()[..],
        [SendEvent::SendPossible { available: 12 }]
    ));
    assert_eq!(sends.drain(), ["wait..."]);
    assert_eq!(sends.done(), [(5, SUCCESS, 3)]);
    assert_eq!(sends.outbound.buffered(), 0);
}

//= TDI-SEND-20 test
#[test]
fn oldest_waiting_send_gets_room_first() {
    let mut sends = Sends::new();
    assert_eq!(sends.send("12345678", B), taken(8));
    assert_eq!(sends.send("12345678", B), taken(8));
    assert_eq!(sends.send("abcd", E | P), None);
    assert_eq!(sends.send("abcde", P), None);
    sends.next().unwrap();
    sends.outbound.tsdu_sent();
    assert_eq!(sends.done(), [(3, SUCCESS, 4)]);
    sends.next().unwrap();
    sends.outbound.tsdu_sent();
    assert_eq!(sends.done(), [(4, SUCCESS, 5)]);
}

#[test]
fn partial_send_fits_exactly() {
    let mut sends = Sends::new();
    assert_eq!(sends.send("12345678", B), taken(8));
    assert_eq!(sends.send("12345678", B), taken(8));
    assert_eq!(sends.send("abcdefgh", P), None);
    sends.next().unwrap();
    sends.outbound.tsdu_sent();
    assert_eq!(sends.done(), [(3, SUCCESS, 8)]);
    assert_eq!(sends.outbound.available(), 0);
}

#[test]
fn waiting_part_is_sent_with_its_tsdu() {
    let mut sends = Sends::new();
    assert_eq!(sends.send("12345678", B), taken(8));
    assert_eq!(sends.send("12345678", B), taken(8));
    // The part is expedited, and only normal sends after it could free room.
    assert_eq!(sends.send("ab", E | P), None);
    assert_eq!(sends.send("cd", E), None);
    let tsdu = sends.next().unwrap();
    assert_eq!(tsdu.message.into_bytes(), "abcd");
    sends.outbound.tsdu_sent();
    assert_eq!(sends.done(), [(3, SUCCESS, 2), (4, SUCCESS, 2)]);
}

//= TDI-SEND-22 test
#[test]
fn too_long_tsdu_is_refused() {
    let mut sends = Sends::new();
    for flags in [NONE, P, B, E] {
        assert_eq!(sends.send("123456789", flags), INVALID);
    }
    assert_eq!(sends.send("12345678", NONE), None);
    assert_eq!(sends.drain(), ["12345678"]);
    assert_eq!(sends.done(), [(5, SUCCESS, 8)]);
    // The part that exceeds the limit is refused, and the TSDU is unchanged.
    assert_eq!(sends.send("12345", P), taken(5));
    assert_eq!(sends.send("6789", P), INVALID);
    assert_eq!(sends.send("6789", NONE), INVALID);
    assert_eq!(sends.send("678", NONE), None);
    assert_eq!(sends.drain(), ["12345678"]);
}

//= TDI-SEND-24 test
//= TDI-SEND-25 test
#[test]
fn chain_of_buffers_is_sent_without_copying_and_returned() {
    let mut sends = Sends::new();
    let parts = [
        Bytes::new(),
        Bytes::from(vec![b'a']),
        Bytes::from(vec![b'b', b'c']),
    ];
    let places = [parts[1].as_ptr(), parts[2].as_ptr()];
    let chain: Message = parts.into_iter().collect();
    let done = sends.submit(|request| request.buffer = chain);
    assert!(done.is_none());
    let tsdu = sends.next().unwrap();
    assert_eq!(tsdu.message.len(), 3);
    let mut left = tsdu.message;
    for (place, length) in places.into_iter().zip([1, 2]) {
        use bytes::Buf as _;
        assert_eq!(left.chunk().as_ptr(), place);
        left.advance(length);
    }
    sends.outbound.tsdu_sent();
    let Some(SendEvent::Completed(done)) = sends.outbound.poll_event() else {
        panic!("the send completed");
    };
    let bytes = done.buffer.into_bytes();
    assert_eq!(bytes, "abc");
    assert!(sends.outbound.poll_event().is_none());
}

//= TDI-SEND-26 test
//= TDI-SEND-01 test
#[test]
fn end_completes_each_request_once() {
    for (status, started) in [(Status::LOCAL_DISCONNECT, 0), (Status::LINK_FAILED, 2)] {
        let mut sends = Sends::new();
        assert_eq!(sends.send("12345678", B), taken(8));
        for flags in [NONE, E, N] {
            assert_eq!(sends.send("ab", flags), None);
        }
        assert_eq!(sends.send("12345678", P), taken(8));
        assert_eq!(sends.send("x", E | P), None);
        for _ in 0..started {
            sends.next().unwrap();
        }
        sends.outbound.close(status);
        let mut done = sends.done();
        done.sort_by_key(|&(id, ..)| id);
        let ends = [2, 3, 4, 6].map(|id| (id, status, 0));
        assert_eq!(done, ends);
        assert_eq!(
            (sends.outbound.buffered(), sends.outbound.poll_timeout()),
            (0, None)
        );
        sends.outbound.tsdu_sent();
        sends.outbound.close(Status::CANCELLED);
        assert_eq!(
            sends.send("late", NONE),
            Some((Status::INVALID_CONNECTION, 0))
        );
        assert!(sends.next().is_none() && sends.events().is_empty());
    }
}

//= TDI-SEND-27 test
#[test]
fn unstarted_send_is_withdrawn_at_its_deadline() {
    let mut sends = Sends::new();
    let soon = sends.now + Duration::from_secs(1);
    assert_eq!(sends.send("1234", P), taken(4));
    let done = sends.submit(|request| {
        request.buffer = "5".into();
        request.deadline = Some(soon);
    });
    assert!(done.is_none());
    assert_eq!(sends.send("other", NONE), None);
    assert_eq!(sends.outbound.poll_timeout(), Some(soon));
    sends
        .outbound
        .handle_timeout(soon - Duration::from_nanos(1));
    assert_eq!(sends.done(), []);
    sends.outbound.handle_timeout(soon);
    assert_eq!(sends.done(), [(2, Status::IO_TIMEOUT, 0)]);
    assert_eq!(sends.outbound.buffered(), 0);
    // The default time-out is one minute.
    let minute = sends.now + Duration::from_secs(60);
    assert_eq!(sends.outbound.poll_timeout(), Some(minute));
    assert_eq!(sends.drain(), ["other"]);
    assert_eq!(sends.outbound.poll_timeout(), None);
}

#[test]
fn started_or_completed_tsdu_aborts_the_connection_at_its_deadline() {
    // The first has started to leave, and the second has completed with success.
    for (flags, begins) in [(NONE, true), (B, false), (B, true)] {
        let mut sends = Sends::new();
        let soon = sends.now + Duration::from_secs(1);
        let done = sends.submit(|request| {
            request.buffer = "late".into();
            request.flags = flags;
            request.deadline = Some(soon);
        });
        assert_eq!(done.is_some(), flags == B);
        assert_eq!(sends.send("other", NONE), None);
        if begins {
            sends.next().unwrap();
        }
        sends.outbound.handle_timeout(soon);
        let mut events = sends.events().into_iter();
        assert!(matches!(
            events.next(),
            Some(SendEvent::Abort(Status::IO_TIMEOUT))
        ));
        let mut ends = Vec::new();
        for event in events {
            let SendEvent::Completed(done) = event else {
                panic!("{event:?}");
            };
            ends.push((done.id.0, done.status, done.information));
        }
        let late = (1, Status::IO_TIMEOUT, 0);
        let other = (2, Status::CONNECTION_ABORTED, 0);
        let expected = if flags == B {
            vec![other]
        } else {
            vec![late, other]
        };
        assert_eq!(ends, expected, "{flags:?} {begins}");
        assert_eq!(
            sends.send("more", NONE),
            Some((Status::INVALID_CONNECTION, 0))
        );
    }
}

#[test]
fn sends_without_a_timeout_never_expire() {
    // The longest duration means no deadline.
    for send_timeout in [None, Some(Duration::MAX)] {
        let mut sends = Sends::with(SendSettings {
            send_timeout,
            ..settings()
        });
        sends.send("a", NONE);
        assert_eq!(sends.outbound.poll_timeout(), None);
        let late = sends.now + Duration::from_secs(1 << 30);
        sends.outbound.handle_timeout(late);
        assert_eq!(sends.drain(), ["a"]);
    }
}

//= TDI-SEND-34 test
#[test]
fn send_can_be_cancelled_until_it_starts() {
    let mut sends = Sends::new();
    for data in ["a", "b", "c"] {
        sends.send(data, NONE);
    }
    sends.next().unwrap();
    assert!(!sends.outbound.cancel(RequestId(1)));
    assert!(sends.outbound.cancel(RequestId(2)));
    assert!(!sends.outbound.cancel(RequestId(2)));
    assert_eq!(sends.done(), [(2, Status::CANCELLED, 0)]);
    sends.outbound.tsdu_sent();
    assert_eq!(sends.drain(), ["c"]);
    assert_eq!(sends.done(), [(1, SUCCESS, 1), (3, SUCCESS, 1)]);
}

//= TDI-SEND-34 test
#[test]
fn cancelling_a_part_cancels_its_tsdu() {
    let mut sends = Sends::new();
    assert_eq!(sends.send("12345678", B), taken(8));
    assert_eq!(sends.send("12345678", B), taken(8));
    assert_eq!(sends.send("a", E | P), None);
    assert_eq!(sends.send("b", E | P), None);
    assert!(sends.outbound.cancel(RequestId(3)));
    let ends = [(3, Status::CANCELLED, 0), (4, Status::REQUEST_ABORTED, 0)];
    assert_eq!(sends.done(), ends);
    // Sends up to the end belong to the same TSDU, and later ones do not.
    let aborted = Some((Status::REQUEST_ABORTED, 0));
    assert_eq!(sends.send("c", E | P), aborted);
    assert_eq!(sends.send("d", E), aborted);
    assert_eq!(sends.send("new", E), None);
    assert_eq!(sends.drain(), ["new", "12345678", "12345678"]);
}

//= TDI-SEND-29 test
//= TDI-SEND-30 test
#[test]
fn empty_send_only_ends_a_tsdu() {
    for flags in [NONE, E, B, P, P | B] {
        let mut sends = Sends::new();
        assert_eq!(sends.send("", flags), INVALID);
        assert!(sends.next().is_none());
    }
    let mut sends = Sends::new();
    assert_eq!(sends.send("ab", P), taken(2));
    assert_eq!(sends.send("", P), taken(0));
    assert!(sends.next().is_none());
    assert_eq!(sends.send("", NONE), None);
    assert_eq!(sends.drain(), ["ab"]);
    assert_eq!(sends.done(), [(3, SUCCESS, 0)]);
    assert_eq!(sends.send("cd", P), taken(2));
    assert_eq!(sends.send("", B), taken(0));
    assert_eq!(sends.drain(), ["cd"]);
}

//= TDI-SEND-32 test
#[test]
fn write_is_a_send_without_flags() {
    let mut sends = Sends::new();
    let request = SendRequest::write(RequestId(1), "abc");
    assert_eq!(
        (request.flags, request.deadline, request.invalidate),
        (NONE, None, None)
    );
    assert!(matches!(
        sends.outbound.send(sends.now, request),
        Submission::Pending
    ));
    assert_eq!(sends.drain(), ["abc"]);
    assert_eq!(sends.done(), [(1, SUCCESS, 3)]);
}

#[test]
fn token_requires_the_end_of_a_tsdu() {
    let mut sends = Sends::new();
    let part = sends.submit(|request| {
        request.buffer = "a".into();
        request.flags = P;
        request.invalidate = Some(Token(7));
    });
    assert_eq!(part.unwrap().status, Status::INVALID_PARAMETER);
    sends.send("a", P);
    sends.submit(|request| {
        request.buffer = "b".into();
        request.invalidate = Some(Token(7));
    });
    sends.send("c", NONE);
    assert_eq!(sends.next().unwrap().invalidate, Some(Token(7)));
    assert_eq!(sends.next().unwrap().invalidate, None);
}

#[test]
fn open_tsdu_can_be_discarded() {
    let mut sends = Sends::new();
    assert!(!sends.outbound.discard_partial(NONE));
    assert_eq!(sends.send("12345678", P), taken(8));
    assert_eq!(sends.send("12345678", E | P), taken(8));
    assert!(sends.outbound.discard_partial(NONE));
    assert!(!sends.outbound.discard_partial(NONE));
    assert_eq!(sends.outbound.available(), 8);
    assert_eq!(sends.send("new", NONE), None);
    assert_eq!(sends.send("", E), None);
    assert_eq!(sends.drain(), ["12345678", "new"]);
    // A TSDU with a cancelled part can be discarded too, with its waiting requests.
    sends.events();
    assert_eq!(sends.send("12345678", B), taken(8));
    assert_eq!(sends.send("12345678", B), taken(8));
    assert_eq!(sends.send("a", P), None);
    assert!(sends.outbound.discard_partial(NONE));
    assert_eq!(sends.done(), [(sends.last, Status::CANCELLED, 0)]);
    assert_eq!(sends.send("a", P), None);
    assert!(sends.outbound.cancel(RequestId(sends.last)));
    assert!(sends.outbound.discard_partial(NONE));
    assert_eq!(sends.send("b", NONE), None);
}

//= TDI-DISC-03 test
#[test]
fn release_sends_earlier_tsdus_and_refuses_later_ones() {
    let mut sends = Sends::new();
    sends.send("a", NONE);
    sends.send("b", P);
    assert_eq!(sends.outbound.release(), Err(Status::INVALID_PARAMETER));
    sends.send("c", B);
    assert_eq!(sends.outbound.release(), Ok(()));
    assert_eq!(sends.outbound.release(), Err(Status::INVALID_CONNECTION));
    assert_eq!(sends.send("d", NONE), Some((Status::INVALID_CONNECTION, 0)));
    assert_eq!(sends.next().unwrap().message.into_bytes(), "a");
    sends.outbound.tsdu_sent();
    assert_eq!(sends.done(), [(1, SUCCESS, 1)]);
    assert_eq!(sends.drain(), ["bc"]);
    assert!(matches!(sends.events()[..], [SendEvent::Drained]));
    let mut idle = Sends::new();
    assert_eq!(idle.outbound.release(), Ok(()));
    assert!(matches!(idle.events()[..], [SendEvent::Drained]));
}

#[test]
fn buffer_sizes_that_could_deadlock_are_refused() {
    for (high_water, low_water, expedited, holds) in [
        (0, 0, Expedited::LocalPriority, true),
        (16, 15, Expedited::LocalPriority, true),
        (15, 4, Expedited::LocalPriority, false),
        (16, 16, Expedited::LocalPriority, false),
        (8, 4, Expedited::Ignore, true),
        (7, 4, Expedited::Ignore, false),
    ] {
        let made = Outbound::new(SendSettings {
            high_water,
            low_water,
            expedited,
            ..settings()
        });
        assert_eq!(
            made.err(),
            (!holds).then_some(Status::INVALID_PARAMETER),
            "{high_water}"
        );
    }
    assert!(Outbound::new(SendSettings::new(1 << 20)).is_ok());
}

/// An operation of the model.
#[derive(Clone, Debug)]
enum Op {
    Send { length: usize, flags: SendFlags },
    HandOver,
    Sent,
    Discard(bool),
}

fn op() -> impl Strategy<Value = Op> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(e, p, b)| {
        let mut flags = NONE;
        flags.set(E, e);
        flags.set(P, p);
        flags.set(B, b);
        flags
    });
    prop_oneof![
        6 => (0..=10_usize, flags).prop_map(|(length, flags)| Op::Send { length, flags }),
        3 => Just(Op::HandOver),
        3 => Just(Op::Sent),
        1 => any::<bool>().prop_map(Op::Discard),
    ]
}

/// Two FIFO queues of strings, and the strings that are being assembled.
#[derive(Default)]
struct Model {
    queues: [VecDeque<Vec<u8>>; 2],
    open: [Option<Vec<u8>>; 2],
}

proptest! {
    /// Accepted sends leave as the intended TSDUs in the promised order, each request has one
    /// completion, and each refusal is followed by an event.
    //= TDI-SEND-04 test
    //= TDI-SEND-05 test
    //= TDI-SEND-07 test
    //= TDI-SEND-09 test
    //= TDI-SEND-15 test
    //= TDI-SEND-17 test
    //= TDI-SEND-26 test
    //= TDI-SEND-28 test
    #[test]
    fn random_sends_match_two_fifo_queues(
        ops in proptest::collection::vec(op(), 1..200),
        high_water in 16..40_usize,
        low_water in 0..16_usize,
        atomic: bool,
    ) {
        let mut sends = Sends::with(SendSettings {
            high_water,
            low_water,
            non_blocking: if atomic { NonBlocking::Atomic } else { NonBlocking::Partial },
            ..settings()
        });
        let mut model = Model::default();
        let (mut byte, mut started) = (0_u8, 0);
        let mut pending = std::collections::BTreeMap::new();
        let mut refused = false;
        // At the end the complete TSDUs leave, then the open ones are completed and leave too.
        let leave = std::iter::repeat_n([Op::HandOver, Op::Sent], 200).flatten();
        let last = [NONE, E].map(|flags| Op::Send { length: 0, flags });
        let end = leave.clone().chain(last).chain(leave);
        for op in ops.into_iter().chain(end) {
            match op {
                Op::Send { length, flags } => {
                    let data: Vec<u8> = (0..length).map(|at| byte.wrapping_add(at as u8)).collect();
                    let class = usize::from(flags.contains(E));
                    let room = sends.outbound.available();
                    let done = sends.submit(|request| {
                        request.buffer = data.clone().into();
                        request.flags = flags;
                    });
                    let open = model.open[class].as_ref().map_or(0, Vec::len);
                    let fits = open + length <= 8 && (length > 0 || model.open[class].is_some());
                    let taken = match done {
                        None => {
                            prop_assert!(!flags.contains(B));
                            pending.insert(sends.last, length);
                            length
                        }
                        Some(SendCompletion { status, information, buffer, .. }) => {
                            prop_assert_eq!(buffer.into_bytes(), &data[..]);
                            let expected = match room {
                                _ if !fits => (Status::INVALID_PARAMETER, 0),
                                _ if length <= room => (SUCCESS, length),
                                room if room > 0 && !atomic => (SUCCESS, room),
                                _ => (Status::DEVICE_NOT_READY, 0),
                            };
                            prop_assert_eq!((status, information), expected);
                            refused |= status == Status::DEVICE_NOT_READY;
                            if status.is_error() {
                                continue;
                            }
                            information
                        }
                    };
                    prop_assert!(fits);
                    byte = byte.wrapping_add(taken as u8);
                    let mut whole = model.open[class].take().unwrap_or_default();
                    whole.extend_from_slice(&data[..taken]);
                    match taken == length && !flags.contains(P) {
                        true => model.queues[class].push_back(whole),
                        false => model.open[class] = Some(whole),
                    }
                }
                Op::HandOver => {
                    let expected = match model.queues[1].pop_front() {
                        Some(tsdu) => Some(tsdu),
                        None => model.queues[0].pop_front(),
                    };
                    let tsdu = sends.next().map(|tsdu| tsdu.message.into_bytes().to_vec());
                    started += usize::from(tsdu.is_some());
                    prop_assert_eq!(tsdu, expected);
                }
                Op::Sent if started > 0 => {
                    started -= 1;
                    sends.outbound.tsdu_sent();
                }
                Op::Sent => {}
                Op::Discard(expedited) => {
                    let there = model.open[usize::from(expedited)].take().is_some();
                    let flags = if expedited { E } else { NONE };
                    prop_assert_eq!(sends.outbound.discard_partial(flags), there);
                }
            }
            for event in sends.events() {
                match event {
                    SendEvent::Completed(done) => {
                        let length = pending.remove(&done.id.0);
                        prop_assert!(length.is_some(), "{} is completed twice", done.id.0);
                        match done.status {
                            SUCCESS => prop_assert_eq!(Some(done.information), length),
                            status => prop_assert_eq!(status, Status::CANCELLED),
                        }
                    }
                    SendEvent::SendPossible { available } => {
                        prop_assert!(refused, "no send was refused");
                        prop_assert!(available > 0);
                        prop_assert_eq!(available, sends.outbound.available());
                        refused = false;
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
            prop_assert!(sends.outbound.buffered() <= high_water);
        }
        prop_assert!(pending.is_empty(), "{:?} are not completed", pending);
        prop_assert!(!refused, "no event followed a refusal");
        prop_assert_eq!(sends.outbound.buffered(), 0);
        prop_assert_eq!(sends.outbound.poll_timeout(), None);
    }
}
