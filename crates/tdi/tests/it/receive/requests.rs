//! Receives that the client submits.

use std::sync::Mutex;

use smbdirect_tdi::{ReceiveBuffer, ReceiveTarget};

use super::*;

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

#[derive(Debug)]
struct Place(Arc<Mutex<Vec<String>>>);

impl ReceiveTarget for Place {
    fn capacity(&self) -> usize {
        5
    }

    fn put(&mut self, bytes: &[u8]) {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        self.0.lock().unwrap().push(text);
    }

    fn completed(self: Box<Self>, status: Status, information: usize) {
        let text = format!("{status} {information}");
        self.0.lock().unwrap().push(text);
    }
}

/// Each byte is copied once, when it arrives.
//= TDI-RECV-02 test
#[test]
fn target_gets_data_as_it_arrives() {
    let mut inbound = inbound(settings());
    let placed = Arc::default();
    inbound.receive(ReceiveRequest {
        buffer: ReceiveBuffer::Target(Box::new(Place(Arc::clone(&placed)))),
        ..request(1, 0, NORMAL)
    });
    arrive(&mut inbound, "ab", 6);
    assert_eq!(*placed.lock().unwrap(), ["ab"]);
    arrive(&mut inbound, "cdefgh", 0);
    assert_eq!(*placed.lock().unwrap(), ["ab", "cde"]);
    let Some(ReceiveEvent::Completed(completion)) = inbound.poll_event() else {
        panic!("the target is full");
    };
    assert_eq!(completion.status, Status::BUFFER_OVERFLOW);
    assert_eq!((completion.information, completion.buffer.len()), (5, 0));
    let target = completion.target.expect("it is returned");
    target.completed(completion.status, completion.information);
    let seen = ["ab", "cde", "STATUS_BUFFER_OVERFLOW 5"];
    assert_eq!(*placed.lock().unwrap(), seen);
    assert_eq!(Arc::strong_count(&placed), 1);
    assert_eq!(next(&mut inbound), "fgh/3");
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
