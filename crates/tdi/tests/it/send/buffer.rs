//! The send buffer: non-blocking sends, refusals, and room for waiting sends.

use super::*;

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
