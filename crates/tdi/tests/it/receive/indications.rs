//! Indications, and the answers of handlers.

use super::*;

//= TDI-SEND-10 test
//= TDI-RECV-10 test
//= TDI-RECV-13 test
#[test]
fn indication_describes_its_tsdu() {
    let mut inbound = inbound(settings());
    arrive(&mut inbound, "abcde", 9);
    let usual = IndicationFlags::NORMAL | IndicationFlags::AT_DISPATCH_LEVEL;
    let seen = indication(&mut inbound);
    assert_eq!(
        (seen.flags, &seen.data[..]),
        (usual | UNFINISHED, &b"abcde"[..])
    );
    assert_eq!(
        (seen.available, seen.tsdu_length, seen.tsdu_offset),
        (5, 14, 0)
    );
    // There is one indication at a time.
    arrive(&mut inbound, "fghijklmn", 0);
    arrive(&mut inbound, "next", 0);
    assert_eq!(next(&mut inbound), "-");
    inbound.answer(Answer::Taken(5)).unwrap();
    let seen = indication(&mut inbound);
    assert_eq!(
        (seen.flags, &seen.data[..]),
        (usual | LOOKAHEAD, &b"fghijklm"[..])
    );
    assert_eq!(
        (seen.available, seen.tsdu_length, seen.tsdu_offset),
        (9, 14, 5)
    );
    inbound.answer(Answer::Taken(8)).unwrap();
    let seen = indication(&mut inbound);
    assert_eq!((seen.flags, &seen.data[..]), (usual | ENTIRE, &b"n"[..]));
    assert_eq!(
        (seen.available, seen.tsdu_length, seen.tsdu_offset),
        (1, 14, 13)
    );
    inbound.answer(Answer::Taken(1)).unwrap();
    let seen = indication(&mut inbound);
    assert_eq!((seen.flags, &seen.data[..]), (usual | ENTIRE, &b"next"[..]));
    inbound.answer(Answer::Taken(4)).unwrap();
    assert_eq!((next(&mut inbound), inbound.held()), ("-".to_owned(), 0));
}

//= TDI-RECV-11 test
//= TDI-RECV-12 test
//= TDI-RECV-14 test
#[test]
fn each_answer_determines_the_next_event() {
    #[derive(Clone, Copy, Debug)]
    enum Kind {
        Taken,
        Receive,
        Not,
    }
    use Kind::*;
    // Columns: the data that has arrived (a whole TSDU, an incomplete one, one longer than an
    // indication, a whole one before another); the bytes taken and the answer; the next event after
    // more of an incomplete TSDU has arrived; and the data that a receive of 20 bytes then gets.
    let whole = ("abcd", 0);
    let begun = ("abcd", 4);
    let long = ("abcdefghij", 0);
    for (here, kind, count, now, then) in [
        // All was taken, so the next event is about later data.
        (whole, Taken, 4, "-", "-"),
        (begun, Taken, 4, "-", "EFGH/4"),
        (long, Taken, 8, "ij/2", "ij/2"),
        // Some bytes were taken, and the rest is indicated.
        (whole, Taken, 1, "bcd/3", "bcd/3"),
        (begun, Taken, 1, "-", "bcdE/7"),
        (long, Taken, 1, "bcdefghi/9", "bcdefghi/9"),
        // Nothing was taken. The data is indicated again if more can arrive.
        (whole, Taken, 0, "-", "-"),
        (begun, Taken, 0, "-", "abcd/8"),
        (long, Taken, 0, "-", "-"),
        // The rest fills the request of the answer.
        (whole, Receive, 4, "-", "-"),
        (begun, Receive, 4, "-", "9 SUCCESS EFGH"),
        (long, Receive, 8, "9 SUCCESS ij", "-"),
        (whole, Receive, 1, "9 SUCCESS bcd", "-"),
        (begun, Receive, 1, "-", "9 SUCCESS bcdEFGH"),
        (long, Receive, 1, "9 SUCCESS bcdefghij", "-"),
        (whole, Receive, 0, "9 SUCCESS abcd", "-"),
        (begun, Receive, 0, "-", "9 SUCCESS abcdEFGH"),
        (long, Receive, 0, "9 SUCCESS abcdefghij", "-"),
        // If all data was taken, indications continue. Otherwise they stop.
        (whole, Not, 4, "-", "-"),
        (begun, Not, 4, "-", "EFGH/4"),
        (long, Not, 8, "-", "-"),
        (whole, Not, 1, "-", "-"),
        (begun, Not, 1, "-", "-"),
        (long, Not, 1, "-", "-"),
        (whole, Not, 0, "-", "-"),
        (begun, Not, 0, "-", "-"),
        (long, Not, 0, "-", "-"),
    ] {
        let case = format!("{here:?} {kind:?} {count}");
        let mut inbound = inbound(settings());
        let (data, remaining) = here;
        arrive(&mut inbound, data, remaining);
        indication(&mut inbound);
        let answer = match kind {
            Taken => Answer::Taken(count),
            Receive => Answer::TakenThenReceive(count, request(9, 20, NORMAL)),
            Not => Answer::NotAccepted(count),
        };
        inbound.answer(answer).unwrap();
        // A part of 3 bytes is too short to be indicated alone.
        assert_eq!(next(&mut inbound), now, "{case}");
        let mut rest = data[count..].to_owned();
        if remaining > 0 {
            arrive(&mut inbound, "EFGH", 0);
            rest += "EFGH";
            assert_eq!(next(&mut inbound), then, "{case}");
        } else if !now.contains('/') {
            assert_eq!(next(&mut inbound), "-", "{case}");
        }
        // A receive gets the data that was neither taken nor received.
        let settled = matches!(kind, Receive) && !(count == data.len() && remaining == 0);
        if settled || rest.is_empty() {
            assert_eq!(next(&mut inbound), "-", "{case}");
            continue;
        }
        if then.contains('/') {
            // A handler is processing the data, and the receive waits for its answer.
            inbound.receive(request(1, 20, NORMAL));
            assert_eq!(next(&mut inbound), "-", "{case}");
            inbound.answer(Answer::Taken(0)).unwrap();
        } else {
            inbound.receive(request(1, 20, NORMAL));
        }
        assert_eq!(next(&mut inbound), format!("1 SUCCESS {rest}"), "{case}");
        // Then indications continue.
        arrive(&mut inbound, "more", 0);
        assert_eq!(next(&mut inbound), "more/4", "{case}");
    }
}

#[test]
fn not_accepting_with_a_further_tsdu_stops_indications() {
    let mut inbound = inbound(settings());
    arrive(&mut inbound, "abcd", 0);
    arrive(&mut inbound, "efgh", 0);
    assert_eq!(next(&mut inbound), "abcd/4");
    inbound.answer(Answer::NotAccepted(4)).unwrap();
    assert_eq!(next(&mut inbound), "-");
    inbound.resume();
    assert_eq!(next(&mut inbound), "efgh/4");
}

#[test]
fn invalid_answers_are_errors_without_loss() {
    let mut inbound = inbound(settings());
    let state = Err(Status::INVALID_DEVICE_STATE);
    assert_eq!(inbound.answer(Answer::Taken(0)), state);
    assert_eq!(inbound.answer_chained(Ok(())), state);
    let supplied = Answer::TakenThenReceive(0, request(1, 4, NORMAL));
    assert_eq!(inbound.answer(supplied), state);
    assert_eq!(next(&mut inbound), "1 INVALID_DEVICE_STATE ");
    arrive(&mut inbound, "abcd", 0);
    assert_eq!(next(&mut inbound), "abcd/4");
    assert_eq!(inbound.answer_chained(Ok(())), state);
    assert_eq!(
        inbound.answer(Answer::Taken(5)),
        Err(Status::INVALID_PARAMETER)
    );
    assert_eq!((next(&mut inbound), inbound.held()), ("-".to_owned(), 0));
}
