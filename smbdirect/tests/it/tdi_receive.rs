//! Tests of `Inbound`: the matrix of handler answers, a table for each rule of TDI receives, and
//! random clients that must get each byte once.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Wake, Waker},
};

use bytes::{Buf, Bytes, BytesMut};
use proptest::prelude::*;
use smbdirect::{
    Token,
    tdi::{
        Answer, ChainedTsdu, Inbound, Indication, IndicationFlags, ReceiveCompletion, ReceiveEvent,
        ReceiveFlags, ReceiveRequest, ReceiveSettings, RequestId, Status,
    },
};

const NORMAL: ReceiveFlags = ReceiveFlags::NORMAL;
const PEEK: ReceiveFlags = ReceiveFlags::PEEK;
const ENTIRE: IndicationFlags = IndicationFlags::ENTIRE_MESSAGE;
const LOOKAHEAD: IndicationFlags = IndicationFlags::COPY_LOOKAHEAD;
const UNFINISHED: IndicationFlags = IndicationFlags::PEEK;

/// Settings with indications of 4 to 8 bytes.
fn settings() -> ReceiveSettings {
    ReceiveSettings {
        minimum_lookahead: 4,
        maximum_lookahead: 8,
        receive_buffer: 1000,
        lendable: 0,
    }
}

fn inbound(settings: ReceiveSettings) -> Inbound {
    Inbound::new(settings).unwrap()
}

fn request(id: u64, length: usize, flags: ReceiveFlags) -> ReceiveRequest {
    ReceiveRequest {
        id: RequestId(id),
        buffer: BytesMut::zeroed(length),
        flags,
    }
}

fn arrive(inbound: &mut Inbound, data: &'static str, remaining: usize) {
    inbound.handle_segment(Bytes::from(data), remaining, None);
}

fn indication(inbound: &mut Inbound) -> Indication {
    match inbound.poll_event() {
        Some(ReceiveEvent::Indicate(indication)) => indication,
        other => panic!("{other:?}"),
    }
}

/// Returns a short text of the next event.
fn next(inbound: &mut Inbound) -> String {
    match inbound.poll_event() {
        None => "-".to_owned(),
        Some(ReceiveEvent::Indicate(seen)) => {
            format!("{}/{}", String::from_utf8_lossy(&seen.data), seen.available)
        }
        Some(ReceiveEvent::Chained(tsdu)) => format!("chained {}", tsdu.len()),
        Some(ReceiveEvent::Completed(done)) => {
            let ReceiveCompletion {
                id,
                status,
                information,
                buffer,
                ..
            } = done;
            let data = String::from_utf8_lossy(&buffer[..information]).into_owned();
            let status = status.name().unwrap();
            format!("{} {status} {data}", id.0)
        }
        Some(ReceiveEvent::Invalidated(token)) => format!("token {token}"),
    }
}

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

//= TDI-RECV-01 test
#[test]
fn receive_flags_select_the_data() {
    let both = NORMAL | ReceiveFlags::EXPEDITED;
    for (flags, expected) in [
        (ReceiveFlags::empty(), "1 SUCCESS abcd"),
        (NORMAL, "1 SUCCESS abcd"),
        (both, "1 SUCCESS abcd"),
        (both | PEEK, "1 SUCCESS abcd"),
        (ReceiveFlags::EXPEDITED, "1 NOT_SUPPORTED "),
        (ReceiveFlags::EXPEDITED | PEEK, "1 NOT_SUPPORTED "),
        (ReceiveFlags::from_bits_retain(0x1), "1 INVALID_PARAMETER "),
    ] {
        let mut inbound = inbound(settings());
        arrive(&mut inbound, "abcd", 0);
        inbound.receive(request(1, 4, flags));
        assert_eq!(next(&mut inbound), expected, "{flags:?}");
    }
}

//= TDI-RECV-02 test
//= TDI-RECV-04 test
//= TDI-RECV-06 test
//= TDI-RECV-08 test
#[test]
fn receives_are_filled_in_order_before_indications() {
    let mut inbound = inbound(settings());
    for (id, length) in [(1, 10), (2, 3), (3, 2), (4, 8)] {
        inbound.receive(request(id, length, NORMAL));
    }
    arrive(&mut inbound, "ab", 2);
    assert_eq!(next(&mut inbound), "-");
    arrive(&mut inbound, "cd", 0);
    assert_eq!(next(&mut inbound), "1 SUCCESS abcd");
    arrive(&mut inbound, "efghi", 3);
    assert_eq!(next(&mut inbound), "2 BUFFER_OVERFLOW efg");
    assert_eq!(next(&mut inbound), "3 BUFFER_OVERFLOW hi");
    assert_eq!(next(&mut inbound), "-");
    arrive(&mut inbound, "jkl", 0);
    assert_eq!(next(&mut inbound), "4 SUCCESS jkl");
    // A buffer that is filled exactly by the end of the TSDU has its end.
    inbound.receive(request(5, 4, NORMAL));
    arrive(&mut inbound, "mnop", 0);
    assert_eq!(next(&mut inbound), "5 SUCCESS mnop");
    arrive(&mut inbound, "qrst", 0);
    assert_eq!(next(&mut inbound), "qrst/4");
}

#[test]
fn handler_request_precedes_receives_submitted_meanwhile() {
    let mut inbound = inbound(settings());
    arrive(&mut inbound, "abcdefgh", 0);
    assert_eq!(next(&mut inbound), "abcdefgh/8");
    inbound.receive(request(2, 3, NORMAL));
    inbound
        .answer(Answer::TakenThenReceive(2, request(1, 3, NORMAL)))
        .unwrap();
    assert_eq!(next(&mut inbound), "1 BUFFER_OVERFLOW cde");
    assert_eq!(next(&mut inbound), "2 SUCCESS fgh");
}

//= TDI-RECV-05 test
#[test]
fn peek_takes_no_data() {
    let mut inbound = inbound(settings());
    inbound.receive(request(1, 4, PEEK));
    assert_eq!(next(&mut inbound), "1 RECEIVE_PARTIAL ");
    arrive(&mut inbound, "ab", 2);
    inbound.receive(request(2, 4, PEEK));
    assert_eq!(next(&mut inbound), "2 RECEIVE_PARTIAL ab");
    arrive(&mut inbound, "cd", 0);
    for (id, length, expected) in [
        (3, 4, "3 SUCCESS abcd"),
        (4, 3, "4 RECEIVE_PARTIAL abc"),
        (5, 9, "5 SUCCESS abcd"),
    ] {
        inbound.receive(request(id, length, PEEK));
        assert_eq!(next(&mut inbound), expected);
    }
    // A peek does not resume indications.
    assert_eq!(next(&mut inbound), "abcd/4");
    inbound.answer(Answer::NotAccepted(0)).unwrap();
    inbound.receive(request(6, 4, PEEK));
    assert_eq!(next(&mut inbound), "6 SUCCESS abcd");
    assert_eq!(next(&mut inbound), "-");
    inbound.receive(request(7, 4, NORMAL));
    assert_eq!(next(&mut inbound), "7 SUCCESS abcd");
}

#[test]
fn empty_receive_resumes_indications() {
    let mut inbound = inbound(settings());
    arrive(&mut inbound, "abcd", 0);
    for answer in [Answer::NotAccepted(0), Answer::Taken(0)] {
        assert_eq!(next(&mut inbound), "abcd/4");
        inbound.answer(answer).unwrap();
        assert_eq!(next(&mut inbound), "-");
        inbound.receive(request(1, 0, NORMAL));
        assert_eq!(next(&mut inbound), "1 SUCCESS ");
    }
    assert_eq!(next(&mut inbound), "abcd/4");
}

#[test]
fn declined_data_is_indicated_again_after_a_take() {
    let mut inbound = inbound(settings());
    arrive(&mut inbound, "abcd", 4);
    assert_eq!(next(&mut inbound), "abcd/4");
    inbound.answer(Answer::Taken(0)).unwrap();
    assert_eq!(next(&mut inbound), "-");
    arrive(&mut inbound, "EFGH", 0);
    assert_eq!(next(&mut inbound), "abcd/8");
    inbound.answer(Answer::Taken(4)).unwrap();
    assert_eq!(next(&mut inbound), "EFGH/4");
}

//= TDI-RECV-15 test
#[test]
fn short_data_waits_for_the_minimum_lookahead() {
    let mut inbound = inbound(settings());
    for (data, remaining) in [("a", 6), ("", 6), ("b", 5), ("c", 4)] {
        arrive(&mut inbound, data, remaining);
        assert_eq!(next(&mut inbound), "-");
    }
    arrive(&mut inbound, "def", 1);
    // Only the minimum lookahead is gathered.
    assert_eq!(next(&mut inbound), "abcd/6");
    inbound.answer(Answer::Taken(4)).unwrap();
    assert_eq!(next(&mut inbound), "-");
    arrive(&mut inbound, "g", 0);
    assert_eq!(next(&mut inbound), "efg/3");
}

#[test]
fn token_is_reported_with_the_end_or_alone() {
    let token = Some(Token(7));
    let mut inbound = inbound(settings());
    inbound.handle_segment(Bytes::new(), 0, token);
    assert_eq!(next(&mut inbound), "token 0x00000007");
    inbound.handle_segment(Bytes::new(), 0, None);
    assert_eq!((next(&mut inbound), inbound.held()), ("-".to_owned(), 0));
    inbound.handle_segment(Bytes::from("abcdefghij"), 0, token);
    assert_eq!(indication(&mut inbound).invalidated_token, None);
    inbound.answer(Answer::Taken(8)).unwrap();
    assert_eq!(indication(&mut inbound).invalidated_token, token);
    inbound
        .answer(Answer::TakenThenReceive(0, request(1, 1, NORMAL)))
        .unwrap();
    inbound.receive(request(2, 1, NORMAL));
    for expected in [None, token] {
        let Some(ReceiveEvent::Completed(done)) = inbound.poll_event() else {
            panic!("each TSDU has one byte");
        };
        assert_eq!(done.invalidated_token, expected);
    }
}

fn chained(inbound: &mut Inbound) -> ChainedTsdu {
    match inbound.poll_event() {
        Some(ReceiveEvent::Chained(tsdu)) => tsdu,
        other => panic!("{other:?}"),
    }
}

fn lending(lendable: usize) -> Inbound {
    inbound(ReceiveSettings {
        lendable,
        ..settings()
    })
}

//= TDI-CHN-01 test
//= TDI-CHN-02 test
//= TDI-CHN-03 test
#[test]
fn whole_tsdu_is_lent_without_copying() {
    let mut inbound = lending(500);
    let bytes = Bytes::from(b"abcdef".to_vec());
    let place = bytes.as_ptr();
    arrive(&mut inbound, "xyz01234", 4);
    // The data suffices for an indication, but the chained handler waits for the whole TSDU.
    assert_eq!(next(&mut inbound), "-");
    arrive(&mut inbound, "5678", 0);
    inbound.handle_segment(bytes, 0, Some(Token(7)));
    let mut tsdu = chained(&mut inbound);
    assert_eq!(
        (tsdu.len(), tsdu.is_empty(), tsdu.invalidated_token()),
        (12, false, None)
    );
    assert_eq!(next(&mut inbound), "-");
    assert_eq!(tsdu.copy_to_bytes(12), "xyz012345678");
    drop(tsdu);
    inbound.answer_chained(Ok(())).unwrap();
    let tsdu = chained(&mut inbound);
    assert_eq!(
        (tsdu.chunk().as_ptr(), tsdu.invalidated_token()),
        (place, Some(Token(7)))
    );
    inbound.answer_chained(Ok(())).unwrap();
    assert_eq!(next(&mut inbound), "-");
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

//= TDI-CHN-04 test
//= TDI-CHN-05 test
#[test]
fn lending_stops_at_its_limit() {
    // The limit is two TSDUs of 4 bytes and their cost.
    let mut inbound = lending(2 * (4 + 128));
    for data in ["aaaa", "bbbb", "cccc", "dddd"] {
        arrive(&mut inbound, data, 0);
    }
    let mut kept = Vec::new();
    for lent in [132, 264] {
        kept.push(chained(&mut inbound));
        inbound.answer_chained(Ok(())).unwrap();
        assert_eq!(inbound.lent(), lent);
    }
    // The third TSDU is copied, even after the first was returned.
    assert_eq!(next(&mut inbound), "cccc/4");
    let count = Arc::new(Count::default());
    inbound.watch_loans(&Waker::from(count.clone()));
    let first = kept.remove(0);
    let also_first = first.clone();
    drop(first);
    assert_eq!((inbound.lent(), count.0.load(Ordering::Relaxed)), (264, 0));
    drop(also_first);
    assert_eq!((inbound.lent(), count.0.load(Ordering::Relaxed)), (132, 1));
    inbound.answer(Answer::NotAccepted(0)).unwrap();
    inbound.resume();
    assert_eq!(next(&mut inbound), "cccc/4");
    inbound.answer(Answer::Taken(4)).unwrap();
    assert_eq!(next(&mut inbound), "chained 4");
    // A TSDU longer than the lending limit is copied from its start.
    let mut inbound = lending(200);
    arrive(&mut inbound, "abcdefgh", 100);
    assert_eq!(next(&mut inbound), "abcdefgh/8");
}

//= TDI-CHN-03 test
//= TDI-CHN-06 test
#[test]
fn unaccepted_chained_tsdu_is_held_for_receives() {
    let mut inbound = lending(500);
    arrive(&mut inbound, "abcd", 0);
    arrive(&mut inbound, "next", 0);
    let mut tsdu = chained(&mut inbound);
    tsdu.advance(2);
    inbound.answer_chained(Err(tsdu)).unwrap();
    assert_eq!(
        (next(&mut inbound), inbound.lent(), inbound.held()),
        ("-".to_owned(), 0, 264)
    );
    // The TSDU can be offered to the same handler again.
    inbound.resume();
    let tsdu = chained(&mut inbound);
    inbound.answer_chained(Err(tsdu)).unwrap();
    // It includes bytes that were read. The rest goes to no other handler.
    inbound.receive(request(1, 3, NORMAL));
    assert_eq!(next(&mut inbound), "1 BUFFER_OVERFLOW abc");
    assert_eq!(next(&mut inbound), "-");
    inbound.receive(request(2, 3, NORMAL));
    assert_eq!(next(&mut inbound), "2 SUCCESS d");
    // Returning another TSDU than the indicated one is an error.
    let tsdu = chained(&mut inbound);
    inbound.answer_chained(Ok(())).unwrap();
    arrive(&mut inbound, "last", 0);
    let last = chained(&mut inbound);
    assert_eq!(
        inbound.answer_chained(Err(tsdu)),
        Err(Status::INVALID_PARAMETER)
    );
    drop(last);
    assert_eq!((next(&mut inbound), inbound.lent()), ("-".to_owned(), 0));
}

#[test]
fn partly_received_tsdu_is_not_lent() {
    let mut inbound = lending(500);
    inbound.receive(request(1, 2, NORMAL));
    arrive(&mut inbound, "abcdef", 0);
    assert_eq!(next(&mut inbound), "1 BUFFER_OVERFLOW ab");
    assert_eq!(next(&mut inbound), "cdef/4");
}

//= TDI-RECV-17 test
#[test]
fn full_receive_buffer_wants_no_segment() {
    // A few small TSDUs fill the buffer with their cost.
    let mut small = inbound(settings());
    let mut arrived = 0;
    while small.wants_segment() {
        arrive(&mut small, "a", 0);
        arrived += 1;
        assert!(arrived < 100);
    }
    assert_eq!(arrived, 8);
    // A pending receive wants more data.
    assert_eq!(next(&mut small), "a/1");
    small.answer(Answer::NotAccepted(0)).unwrap();
    assert!(!small.wants_segment());
    for id in 0..9 {
        small.receive(request(id, 1, NORMAL));
    }
    assert!(small.wants_segment());
    // A TSDU that is longer than the buffer can arrive in full unless it is refused.
    let data: &'static [u8] = &[7; 1000];
    let mut long = inbound(settings());
    long.handle_segment(Bytes::from_static(data), 1000, None);
    assert!(long.wants_segment());
    indication(&mut long);
    long.answer(Answer::NotAccepted(0)).unwrap();
    assert!(!long.wants_segment());
    // Lent TSDUs count too.
    let mut lent = lending(1000);
    lent.handle_segment(Bytes::from_static(&data[..800]), 0, None);
    let kept = chained(&mut lent);
    lent.answer_chained(Ok(())).unwrap();
    assert!(lent.wants_segment());
    arrive(&mut lent, "a", 0);
    assert!(!lent.wants_segment());
    drop(kept);
    assert!(lent.wants_segment());
    lent.close(Status::LOCAL_DISCONNECT);
    assert!(!lent.wants_segment());
}

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

/// The next operation of a random client.
#[derive(Clone, Debug)]
enum Op {
    /// Another segment of this many bytes arrives, if it is wanted.
    Arrive(usize),
    /// The client submits a receive of this many bytes.
    Receive(usize),
    /// Events are handled, and a handler gives this answer and takes this many bytes.
    Poll(u8, usize),
    Resume,
    /// The client returns the oldest loan.
    Return,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..12_usize).prop_map(Op::Arrive),
        1 => (1..12_usize).prop_map(Op::Receive),
        5 => (0..6_u8, 0..9_usize).prop_map(|(answer, count)| Op::Poll(answer, count)),
        1 => Just(Op::Resume),
        1 => Just(Op::Return),
    ]
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
    inbound.answer(Answer::Taken(4)).unwrap();
    inbound.stop_indications();
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

proptest! {
    /// Each byte is delivered once and in order, and each end of a TSDU at its place, for all ways in
    /// which a client takes data.
    //= TDI-RECV-02 test
    //= TDI-RECV-06 test
    //= TDI-RECV-08 test
    //= TDI-RECV-10 test
    //= TDI-RECV-11 test
    //= TDI-RECV-12 test
    //= TDI-RECV-13 test
    //= TDI-RECV-14 test
    //= TDI-CHN-03 test
    //= TDI-SEND-28 test
    #[test]
    fn each_byte_is_delivered_once(
        lengths in proptest::collection::vec(1..40_usize, 1..20),
        ops in proptest::collection::vec(op(), 1..300),
        lendable in prop_oneof![Just(0_usize), Just(200), Just(500)],
    ) {
        let mut inbound = lending(lendable);
        let total: usize = lengths.iter().sum();
        let sent: Vec<u8> = (0..total).map(|at| at as u8).collect();
        let ends: Vec<usize> = lengths
            .iter()
            .scan(0, |end, length| { *end += length; Some(*end) })
            .collect();
        let mut to_come: VecDeque<usize> = lengths.into();
        let (mut arrived, mut got, mut seen_ends) = (0, Vec::new(), Vec::new());
        let (mut posted, mut id) = (VecDeque::new(), 0);
        let mut loans = VecDeque::new();
        let mut refused = false;
        // At the end all data arrives and the client takes it. A chained TSDU that was not accepted
        // and was received in part is held for receives.
        let take = [Op::Return, Op::Resume, Op::Arrive(40), Op::Poll(0, 8), Op::Poll(0, 8)];
        let receive = [Op::Receive(40), Op::Arrive(40), Op::Poll(0, 8), Op::Poll(0, 8)];
        let end = std::iter::repeat_n(take, 2 * total + 300).flatten();
        let end = end.chain(std::iter::repeat_n(receive, 2 * total + 300).flatten());
        for op in ops.into_iter().chain(end) {
            match op {
                Op::Arrive(count) => {
                    let Some(left) = to_come.front_mut().filter(|_| inbound.wants_segment()) else {
                        continue;
                    };
                    let count = count.min(*left);
                    *left -= count;
                    let payload = Bytes::copy_from_slice(&sent[arrived..arrived + count]);
                    arrived += count;
                    // An empty segment occurs only inside a TSDU.
                    let remaining = *left;
                    inbound.handle_segment(payload, remaining, None);
                    if remaining == 0 {
                        to_come.pop_front();
                    }
                }
                Op::Receive(length) => {
                    id += 1;
                    posted.push_back(id);
                    inbound.receive(request(id, length, NORMAL));
                }
                Op::Resume => {
                    refused = false;
                    inbound.resume();
                }
                Op::Return => drop(loans.pop_front()),
                Op::Poll(answer, count) => match inbound.poll_event() {
                    None => {}
                    Some(ReceiveEvent::Completed(done)) => {
                        prop_assert_eq!(Some(done.id.0), posted.pop_front());
                        got.extend_from_slice(&done.buffer[..done.information]);
                        match done.status {
                            Status::SUCCESS => seen_ends.push(got.len()),
                            status => prop_assert_eq!(status, Status::BUFFER_OVERFLOW),
                        }
                        refused = false;
                    }
                    Some(ReceiveEvent::Indicate(seen)) => {
                        prop_assert!(!refused && posted.is_empty());
                        let count = count.min(seen.data.len());
                        got.extend_from_slice(&seen.data[..count]);
                        let all = count == seen.data.len();
                        if all && seen.flags.contains(ENTIRE) {
                            seen_ends.push(got.len());
                        }
                        inbound.answer(match answer {
                            0..=2 => Answer::Taken(count),
                            3 => {
                                id += 1;
                                posted.push_back(id);
                                Answer::TakenThenReceive(count, request(id, 5, NORMAL))
                            }
                            _ => {
                                // Indications continue if no other data has arrived.
                                refused = got.len() < arrived;
                                Answer::NotAccepted(count)
                            }
                        }).unwrap();
                    }
                    Some(ReceiveEvent::Chained(mut tsdu)) => {
                        prop_assert!(!refused && posted.is_empty() && lendable > 0);
                        if answer == 5 {
                            refused = true;
                            tsdu.advance(count.min(tsdu.len()));
                            inbound.answer_chained(Err(tsdu)).unwrap();
                            continue;
                        }
                        let mut copy = tsdu.clone();
                        got.extend_from_slice(&copy.copy_to_bytes(tsdu.len()));
                        seen_ends.push(got.len());
                        if answer > 1 {
                            loans.push_back(tsdu);
                        }
                        inbound.answer_chained(Ok(())).unwrap();
                    }
                    Some(other) => prop_assert!(false, "{:?}", other),
                },
            }
            prop_assert!(inbound.lent() <= lendable);
            prop_assert!(inbound.held() <= 1000 + 40 + 128);
        }
        prop_assert_eq!(got, sent);
        prop_assert_eq!(seen_ends, ends);
        prop_assert_eq!(inbound.held(), 0);
    }
}
