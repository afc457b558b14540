//! TSDUs that are lent to the client without copying.

use super::*;

fn chained(inbound: &mut Inbound) -> ChainedTsdu {
    match inbound.poll_event() {
        Some(ReceiveEvent::Chained(tsdu)) => tsdu,
        other => panic!("{other:?}"),
    }
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

/// A receive that was submitted while the chained handler ran gets the data, whatever the handler answers, and no
/// data is indicated while it waits.
//= TDI-RECV-06 test
//= TDI-RECV-08 test
#[test]
fn answer_of_the_chained_handler_fills_waiting_receives() {
    for (accepted, resumed) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut inbound = lending(500);
        arrive(&mut inbound, "abcd", 0);
        let tsdu = chained(&mut inbound);
        arrive(&mut inbound, "efgh", 0);
        inbound.receive(request(1, 4, NORMAL));
        inbound.receive(request(2, 4, NORMAL));
        if resumed {
            inbound.resume();
        }
        assert_eq!(next(&mut inbound), "-", "a handler is processing the data");
        let expected = if accepted {
            ["1 SUCCESS efgh", "-"]
        } else {
            ["1 SUCCESS abcd", "2 SUCCESS efgh"]
        };
        inbound
            .answer_chained(if accepted {
                drop(tsdu);
                Ok(())
            } else {
                Err(tsdu)
            })
            .unwrap();
        for event in expected {
            assert_eq!(next(&mut inbound), event, "{accepted} {resumed}");
        }
        assert_eq!((inbound.held(), inbound.lent()), (0, 0));
        arrive(&mut inbound, "ijkl", 0);
        let last = if accepted {
            "2 SUCCESS ijkl"
        } else {
            "chained 4"
        };
        assert_eq!(next(&mut inbound), last, "{accepted} {resumed}");
    }
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
    // A TSDU of one byte costs 129.
    for (receive_buffer, wants) in [(128, false), (129, false), (130, true)] {
        let mut exact = inbound(ReceiveSettings {
            receive_buffer,
            ..settings()
        });
        arrive(&mut exact, "a", 0);
        assert_eq!(exact.wants_segment(), wants, "{receive_buffer}");
    }
    // A pending receive wants more data.
    assert_eq!(next(&mut small), "a/1");
    small.answer(Answer::NotAccepted(0)).unwrap();
    assert!(!small.wants_segment());
    for id in 0..9 {
        small.receive(request(id, 1, NORMAL));
    }
    assert!(small.wants_segment());
    // So it does if the buffer has no room, here for the rest of a TSDU that was refused.
    let mut full = inbound(ReceiveSettings {
        receive_buffer: 1,
        ..settings()
    });
    arrive(&mut full, "first part", 6);
    indication(&mut full);
    full.answer(Answer::NotAccepted(0)).unwrap();
    assert!(!full.wants_segment());
    full.receive(request(1, 16, NORMAL));
    assert!(full.wants_segment());
    assert!(full.cancel(RequestId(1)));
    assert!(!full.wants_segment());
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
