//! Deadlines, cancellation, the release, and the end of the connection.

use super::*;

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
