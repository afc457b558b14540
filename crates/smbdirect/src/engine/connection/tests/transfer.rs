use super::*;

fn bench() -> Bench {
    Bench::settled(credits(10, 10), 10, 100)
}

#[test]
fn a_message_is_sent_after_earlier_writes() {
    let mut bench = bench();
    bench.engine.limits.max_transfer = 100;
    bench.send(1, 5);
    bench.write(2, 250);
    bench.send(3, 5);
    let kinds: Vec<_> = bench
        .work()
        .iter()
        .map(|did| match did {
            Did::Send(..) => "send",
            Did::Write(..) => "write",
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(kinds, ["send", "write", "write", "write", "send"]);
}

#[test]
fn waiting_writes_delay_neither_keepalives_nor_grants() {
    let mut bench = bench();
    bench.write(1, 20 << 20);
    bench.send(2, 5);
    assert!(bench.sent().is_empty());
    bench.hear(flagged(0));
    let sent = bench.sent();
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0].data_length, sent[0].credits_granted), (0, 1));
    for _ in 0..8 {
        bench.hear(segment(0, 5, 0));
    }
    assert_eq!(bench.grants(), [8]);
    // The last of the twenty writes is posted when there is room for it.
    for _ in 0..12 {
        assert!(bench.sent().is_empty());
        bench.complete_write();
    }
    assert_eq!(bench.sent()[0].data_length, 5);
}

#[test]
fn a_close_ends_without_progress() {
    let mut bench = bench();
    bench.read(1, 10);
    bench.read(2, 10);
    bench.engine.close();
    assert_eq!(bench.work().len(), 2);
    let alive = |bench: &mut Bench| {
        bench.wait(IDLE - SECOND);
        bench.hear(flagged(1));
        assert_eq!(bench.sent().len(), 1);
        bench.complete_sends();
    };
    alive(&mut bench);
    bench.complete_read();
    bench.work();
    alive(&mut bench);
    assert_eq!(bench.engine.error(), None);
    bench.wait(SECOND);
    let expired = ConnectionError::TimedOut(Expired::Close);
    assert_eq!(bench.engine.error(), Some(&expired));
}

#[test]
fn a_close_with_all_work_posted_ends_without_progress() {
    for sends in [false, true] {
        let mut bench = bench();
        bench.read(1, 10);
        if sends {
            bench.send(2, 5);
        }
        bench.work();
        assert!(bench.engine.is_idle());
        bench.engine.close();
        bench.work();
        if sends {
            bench.now += SECOND;
            bench.complete_sends();
            bench.work();
        }
        bench.wait(IDLE - SECOND);
        bench.hear(flagged(1));
        assert_eq!(bench.sent().len(), 1);
        assert_eq!(bench.engine.error(), None);
        bench.wait(SECOND);
        let expired = ConnectionError::TimedOut(Expired::Close);
        assert_eq!(bench.engine.error(), Some(&expired));
    }
}

#[test]
fn a_write_does_not_wait_for_a_message_without_credits() {
    let mut bench = Bench::passive(credits(10, 10), 10);
    bench.send(1, 5);
    bench.write(2, 100);
    assert_eq!(bench.work(), [Did::Write(remote(0), 100)]);
}

//= SMBD-3.1.4.6-05 test
#[test]
fn reads_stay_within_ord_and_do_not_delay_other_work() {
    let mut bench = bench();
    for id in 1..=3 {
        bench.read(id, 10);
    }
    bench.send(4, 5);
    bench.write(5, 5);
    let done = bench.work();
    let reads = |done: &[Did]| {
        let is_read = |did: &&Did| matches!(did, Did::Read(..));
        done.iter().filter(is_read).count()
    };
    assert_eq!((done.len(), reads(&done)), (4, 2));
    bench.complete_read();
    assert_eq!(reads(&bench.work()), 1);
    bench.complete_read();
    bench.complete_read();
    assert_eq!(bench.story(), ["done 1", "done 2", "done 3"]);
}

#[test]
fn reads_are_refused_without_a_read_depth() {
    let mut bench = bench();
    bench.engine.limits.max_outbound_reads = 0;
    let mut read = |length| {
        let into = BytesMut::zeroed(length);
        let refused = bench.engine.read(TransferId(1), &descriptors(10), 0, into);
        refused.map_err(|(fault, buffer)| (fault, buffer.len()))
    };
    assert_eq!(read(10), Err((TransferFault::Unsupported, 10)));
    assert_eq!(read(0), Ok(()));
}

//= SMBD-3.1.4.5-04 test
//= SMBD-3.1.4.6-04 test
#[test]
fn pieces_stay_within_both_limits() {
    for (max_transfer, pieces) in [(1 << 19, 4), (1 << 20, 2), (8 << 20, 2)] {
        let mut bench = bench();
        bench.engine.limits.max_transfer = max_transfer;
        bench.write(1, 2 << 20);
        assert_eq!(bench.work().len(), pieces);
    }
}

#[test]
fn a_closing_connection_refuses_transfers() {
    let mut bench = bench();
    bench.send(1, 1);
    bench.engine.close();
    let closed = || TransferFault::from(ConnectionError::ClosedHere);
    let data = Bytes::from_static(&[1]);
    let refused = bench.engine.write(TransferId(2), &descriptors(10), 0, data);
    assert_eq!(refused, Err(closed()));
    let into = BytesMut::zeroed(1);
    let refused = bench.engine.read(TransferId(3), &descriptors(10), 0, into);
    assert_eq!(refused.map_err(|(fault, _)| fault), Err(closed()));
}

#[test]
fn work_requests_have_distinct_identifiers() {
    let mut bench = bench();
    for id in 1..=2 {
        bench.send(id, 1);
        bench.read(id + 10, 1);
        bench.write(id + 20, 1);
    }
    bench.work();
    let receives = bench.receives.iter().map(|(id, _)| *id);
    let reads = bench.reads.iter().map(|(id, _)| *id);
    let others = bench.sends.iter().chain(&bench.writes).copied();
    let all: Vec<_> = receives.chain(reads).chain(others).collect();
    let names: std::collections::BTreeSet<_> = all.iter().collect();
    assert_eq!((all.len(), names.len()), (10 + 6, 1 + 6));
}

#[test]
fn an_impossible_transfer_changes_nothing() {
    let mut bench = bench();
    let data = Bytes::from(vec![0; 11]);
    let refused = bench.engine.write(TransferId(1), &descriptors(10), 0, data);
    let (needed, described) = (11, 10);
    let expected = TransferFault::BeyondDescriptors { needed, described };
    assert_eq!(refused, Err(expected));
    assert_eq!(bench.work(), []);
    assert_eq!(bench.engine.statistics().bytes_written, 0);
}
