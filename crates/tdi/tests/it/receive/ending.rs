//! The end of the connection, cancellation, and whole TSDUs.

use super::*;

#[test]
fn end_completes_pending_receives() {
    let mut inbound = inbound(settings());
    inbound.receive(request(1, 8, NORMAL));
    inbound.receive(request(2, 8, NORMAL));
    arrive(&mut inbound, "abc", 5);
    inbound.close(Status::REMOTE_DISCONNECT);
    assert_eq!(next(&mut inbound), "1 REMOTE_DISCONNECT abc");
    assert_eq!(next(&mut inbound), "2 REMOTE_DISCONNECT ");
    arrive(&mut inbound, "late", 0);
    inbound.receive(request(3, 8, NORMAL));
    assert_eq!(next(&mut inbound), "3 INVALID_CONNECTION ");
    assert_eq!((next(&mut inbound), inbound.held()), ("-".to_owned(), 0));
    // The same while a handler is running.
    let mut inbound = self::inbound(settings());
    arrive(&mut inbound, "abcd", 0);
    assert_eq!(next(&mut inbound), "abcd/4");
    inbound.close(Status::LINK_FAILED);
    let supplied = Answer::TakenThenReceive(4, request(4, 8, NORMAL));
    assert_eq!(inbound.answer(supplied), Err(Status::INVALID_DEVICE_STATE));
    assert_eq!(next(&mut inbound), "4 INVALID_CONNECTION ");
}

#[test]
fn contradictory_settings_are_refused() {
    for (minimum_lookahead, maximum_lookahead, receive_buffer, lendable, holds) in [
        (1, 1, 1, 1, true),
        (0, 8, 100, 0, false),
        (9, 8, 100, 0, false),
        (8, 8, 0, 0, false),
        (8, 8, 100, 101, false),
    ] {
        let made = Inbound::new(ReceiveSettings {
            minimum_lookahead,
            maximum_lookahead,
            receive_buffer,
            lendable,
        });
        assert_eq!(made.err(), (!holds).then_some(Status::INVALID_PARAMETER));
    }
    assert!(Inbound::new(ReceiveSettings::default()).is_ok());
}

/// A client that can accept data again while its handler refuses some does not know of the refusal.
//= TDI-RECV-11 test
#[test]
fn resume_during_a_handler_overrides_its_answer() {
    let mut inbound = inbound(settings());
    arrive(&mut inbound, "abcd", 0);
    assert_eq!(next(&mut inbound), "abcd/4");
    inbound.resume();
    inbound.answer(Answer::NotAccepted(0)).unwrap();
    assert_eq!(next(&mut inbound), "abcd/4");
    // The resume counts once.
    inbound.answer(Answer::NotAccepted(0)).unwrap();
    assert_eq!(next(&mut inbound), "-");
    inbound.resume();
    inbound.set_lendable(1000);
    assert_eq!(
        next(&mut inbound),
        "abcd/4",
        "the copying handler was shown the TSDU"
    );
    inbound.receive(request(1, 0, NORMAL));
    inbound.answer(Answer::Taken(0)).unwrap();
    assert_eq!(next(&mut inbound), "1 SUCCESS ");
    assert_eq!(next(&mut inbound), "abcd/4");
    inbound.answer(Answer::Taken(4)).unwrap();
    // The same holds for the chained handler.
    arrive(&mut inbound, "efgh", 0);
    let Some(ReceiveEvent::Chained(tsdu)) = inbound.poll_event() else {
        panic!("the TSDU is lent");
    };
    inbound.resume();
    inbound.answer_chained(Err(tsdu)).unwrap();
    assert_eq!(next(&mut inbound), "chained 4");
}

//= TDI-RECV-03 test
//= TDI-RECV-12 test
#[test]
fn whole_tsdus_can_be_received_after_the_end() {
    let mut inbound = inbound(settings());
    for words in ["abcd", "efgh", "ijkl"] {
        arrive(&mut inbound, words, 0);
    }
    arrive(&mut inbound, "half", 4);
    inbound.finish(Status::REMOTE_DISCONNECT);
    assert!(!inbound.wants_segment() && !inbound.is_exhausted());
    arrive(&mut inbound, "late", 0);
    assert_eq!(next(&mut inbound), "abcd/4");
    inbound.answer(Answer::NotAccepted(4)).unwrap();
    assert_eq!(next(&mut inbound), "-");
    inbound.receive(request(1, 2, NORMAL));
    assert_eq!(next(&mut inbound), "1 BUFFER_OVERFLOW ef");
    assert_eq!(inbound.take_tsdu().unwrap().into_bytes(), "gh");
    for id in 2..=4 {
        inbound.receive(request(id, 9, NORMAL));
    }
    assert_eq!(next(&mut inbound), "2 SUCCESS ijkl");
    assert_eq!(next(&mut inbound), "3 INVALID_CONNECTION ");
    assert_eq!(next(&mut inbound), "4 INVALID_CONNECTION ");
    assert!(inbound.is_exhausted() && inbound.held() == 0);
    assert!(inbound.take_tsdu().is_none());
}

/// The last TSDU is incomplete. A receive that has part of it, or that waits for the next TSDU,
/// completes with the cause.
//= TDI-RECV-03 test
#[test]
fn incomplete_tsdu_is_discarded_at_the_end() {
    let mut inbound = inbound(settings());
    arrive(&mut inbound, "ab", 4);
    inbound.receive(request(1, 9, NORMAL));
    inbound.receive(request(2, 9, NORMAL));
    arrive(&mut inbound, "cd", 2);
    assert_eq!(next(&mut inbound), "-");
    inbound.finish(Status::LINK_FAILED);
    assert_eq!(next(&mut inbound), "1 LINK_FAILED abcd");
    assert_eq!(next(&mut inbound), "2 LINK_FAILED ");
    // A handler is processing the incomplete TSDU.
    let mut inbound = self::inbound(settings());
    arrive(&mut inbound, "abcd", 4);
    assert_eq!(next(&mut inbound), "abcd/4");
    inbound.finish(Status::LINK_FAILED);
    let answer = inbound.answer(Answer::TakenThenReceive(4, request(3, 4, NORMAL)));
    assert_eq!(answer, Err(Status::INVALID_DEVICE_STATE));
    assert_eq!(next(&mut inbound), "3 INVALID_CONNECTION ");
    // A handler is processing the TSDU before it, and a receive is pending.
    let mut inbound = self::inbound(settings());
    arrive(&mut inbound, "abcd", 0);
    arrive(&mut inbound, "ef", 4);
    assert_eq!(next(&mut inbound), "abcd/4");
    inbound.receive(request(4, 9, NORMAL));
    inbound.finish(Status::LINK_FAILED);
    inbound.answer(Answer::Taken(4)).unwrap();
    assert_eq!(next(&mut inbound), "4 LINK_FAILED ");
    assert_eq!(inbound.held(), 0);
}

/// The chained handler still has a whole TSDU when the connection ends in the middle of the next one. Its answer
/// counts: a TSDU that it does not accept can still be received.
//= TDI-CHN-06 test
//= TDI-RECV-03 test
#[test]
fn chained_tsdu_is_answered_after_the_end() {
    for incomplete in [false, true] {
        for accepted in [false, true] {
            let mut inbound = lending(500);
            arrive(&mut inbound, "abcd", 0);
            let Some(ReceiveEvent::Chained(tsdu)) = inbound.poll_event() else {
                panic!("the TSDU is lent");
            };
            if incomplete {
                arrive(&mut inbound, "ef", 4);
            }
            inbound.receive(request(1, 9, NORMAL));
            inbound.receive(request(2, 9, NORMAL));
            inbound.finish(Status::LINK_FAILED);
            assert!(!inbound.is_exhausted(), "the handler can return the TSDU");
            let (answer, first) = if accepted {
                (Ok(()), "1 LINK_FAILED ")
            } else {
                (Err(tsdu), "1 SUCCESS abcd")
            };
            assert_eq!(next(&mut inbound), "-");
            inbound.answer_chained(answer).unwrap();
            assert_eq!(next(&mut inbound), first);
            assert_eq!(next(&mut inbound), "2 LINK_FAILED ");
            assert!(inbound.is_exhausted() && inbound.held() == 0);
        }
    }
    // After `close` the answer is too late, and nothing is kept.
    let mut inbound = lending(500);
    arrive(&mut inbound, "abcd", 0);
    let Some(ReceiveEvent::Chained(tsdu)) = inbound.poll_event() else {
        panic!("the TSDU is lent");
    };
    inbound.close(Status::LINK_FAILED);
    let answer = inbound.answer_chained(Err(tsdu));
    assert_eq!(answer, Err(Status::INVALID_DEVICE_STATE));
    assert!(inbound.is_exhausted());
}

#[test]
fn cancelled_receive_keeps_its_bytes() {
    let mut inbound = inbound(settings());
    inbound.receive(request(1, 9, NORMAL));
    inbound.receive(request(2, 9, NORMAL));
    arrive(&mut inbound, "ab", 3);
    assert!(inbound.cancel(RequestId(1)));
    assert!(!inbound.cancel(RequestId(1)));
    assert_eq!(next(&mut inbound), "1 CANCELLED ab");
    arrive(&mut inbound, "cde", 0);
    assert_eq!(next(&mut inbound), "2 SUCCESS cde");
    assert!(!inbound.cancel(RequestId(2)));
}

//= TDI-RECV-08 test
#[test]
fn take_tsdu_takes_whole_tsdus() {
    let mut inbound = inbound(settings());
    assert!(inbound.set_taken_whole(true) && !inbound.set_taken_whole(true));
    arrive(&mut inbound, "ab", 3);
    assert_eq!(next(&mut inbound), "-");
    assert!(inbound.take_tsdu().is_none(), "the TSDU is incomplete");
    inbound.handle_segment(Bytes::from("cde"), 0, Some(Token(5)));
    arrive(&mut inbound, "next", 0);
    inbound.receive(request(1, 1, NORMAL));
    assert_eq!(next(&mut inbound), "1 BUFFER_OVERFLOW a");
    let tsdu = inbound.take_tsdu().unwrap();
    assert_eq!(tsdu.invalidated_token(), Some(Token(5)));
    assert_eq!(tsdu.into_bytes(), "bcde");
    assert!(inbound.set_taken_whole(false));
    assert_eq!(next(&mut inbound), "next/4");
    assert!(
        inbound.take_tsdu().is_none(),
        "a handler is processing the TSDU"
    );
    inbound.answer(Answer::Taken(4)).unwrap();
    assert_eq!(inbound.held(), 0);
}
