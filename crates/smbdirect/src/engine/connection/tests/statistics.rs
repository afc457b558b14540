use super::*;

#[test]
fn everything_is_counted_once() {
    let mut bench = Bench::settled(credits(10, 10), 10, 10);
    let mut expected = Statistics {
        credits_received: 10,
        credits_granted: 10,
        empty_sent: 1,
        receives_outstanding: 10,
        ..Statistics::default()
    };
    assert_eq!(bench.engine.statistics(), expected);

    bench.send(1, 1500);
    assert_eq!(bench.sent().len(), 2);
    expected.segments_sent += 2;
    expected.bytes_sent += 1500;
    expected.messages_sent += 1;
    expected.work_outstanding += 2;
    assert_eq!(bench.engine.statistics(), expected);
    bench.complete_sends();
    expected.work_outstanding -= 2;

    for (heard, header) in [
        segment(3, 5, 7),
        segment(0, 0, 7),
        segment(0, 7, 0),
        grant(2),
        flagged(1),
    ]
    .into_iter()
    .enumerate()
    {
        bench.hear(header);
        expected.receives_outstanding -= 1;
        expected.credits_received += u64::from(header.credits_granted);
        expected.bytes_received += u64::from(header.data_length);
        match heard {
            0 => expected.segments_received = 1,
            1 => expected.empty_received = 1,
            2 => (expected.segments_received, expected.messages_received) = (2, 1),
            3 => expected.empty_received = 2,
            _ => (expected.empty_received, expected.keepalives_received) = (3, 1),
        }
        assert_eq!(bench.engine.statistics(), expected, "{header:?}");
    }
    assert_eq!(bench.grants(), [5]);
    bench.complete_sends();
    expected.receives_outstanding += 5;
    expected.credits_granted += 5;
    expected.empty_sent += 1;
    assert_eq!(bench.engine.statistics(), expected);

    bench.engine.prompt_keepalive(bench.now);
    assert_eq!(bench.grants(), [0]);
    bench.complete_sends();
    expected.keepalives_sent += 1;
    expected.empty_sent += 1;
    assert_eq!(bench.engine.statistics(), expected);
}

#[test]
fn an_acceptor_counts_the_credits_of_its_response() {
    let mut bench = Bench::passive(credits(10, 8), 20);
    assert_eq!(bench.engine.statistics().credits_granted, 8);
    bench.hear(segment(5, 1, 0));
    assert_eq!(bench.engine.statistics().credits_received, 5);
}

#[test]
fn reads_and_writes_are_counted_by_their_operations() {
    let mut bench = Bench::settled(credits(10, 10), 10, 10);
    bench.engine.limits.max_transfer = 600;
    bench.read(1, 1000);
    bench.write(2, 1000);
    assert_eq!(bench.work().len(), 4);
    assert_eq!(bench.engine.statistics().work_outstanding, 4);
    for _ in 0..2 {
        bench.complete_read();
        bench.complete_write();
    }
    let statistics = bench.engine.statistics();
    let operations = (statistics.reads, statistics.writes);
    let bytes = (statistics.bytes_read, statistics.bytes_written);
    assert_eq!((operations, bytes), ((2, 2), (1000, 1000)));
    assert_eq!(statistics.work_outstanding, 0);
}

#[test]
fn a_wait_for_a_credit_is_one_stall_and_its_time() {
    let mut bench = Bench::passive(credits(10, 10), 10);
    let stalls = |bench: &Bench| {
        let statistics = bench.engine.statistics();
        (statistics.credit_stalls, statistics.credit_stall_time)
    };
    bench.engine.prompt();
    assert_eq!(bench.sent().len(), 0);
    assert_eq!(stalls(&bench), (0, Duration::ZERO), "no message waits");
    bench.send(1, 10);
    assert_eq!(bench.sent().len(), 0);
    assert_eq!(stalls(&bench), (1, Duration::ZERO));
    assert_eq!(bench.engine.credit_stall(), Some(bench.now));
    bench.now += SECOND;
    bench.hear(segment(0, 1, 0));
    assert_eq!(bench.sent().len(), 0);
    assert_eq!(stalls(&bench), (1, Duration::ZERO), "the same stall");
    bench.now += SECOND;
    bench.hear(grant(5));
    assert_eq!(stalls(&bench), (1, 2 * SECOND));
    assert_eq!(bench.engine.credit_stall(), None);
    let waits = bench.engine.statistics().credit_waits;
    assert_eq!((waits.count, waits.last), (1, Some(2 * SECOND)));
    assert_eq!(bench.sent().len(), 1);
    assert_eq!(stalls(&bench), (1, 2 * SECOND));
}

#[test]
fn a_wait_for_a_grant_to_go_with_the_last_credit_is_a_stall() {
    let mut bench = Bench::settled(credits(10, 10), 10, 2);
    bench.room.receives = 0;
    bench.send(1, 10);
    assert_eq!(bench.sent().len(), 0);
    bench.now += SECOND;
    bench.room.receives = 300;
    assert_eq!(bench.sent().len(), 1);
    let statistics = bench.engine.statistics();
    assert_eq!(statistics.credit_stalls, 1);
    assert_eq!(statistics.credit_stall_time, SECOND);
}

#[test]
fn a_stall_that_ends_the_connection_is_counted_to_its_end() {
    for lost in [false, true] {
        let mut bench = Bench::passive(credits(10, 10), 10);
        bench.send(1, 5);
        bench.work();
        bench.now += CREDIT_GRANT;
        if lost {
            bench.complete(Completion::Disconnected(Disconnect::Remote));
        } else {
            bench.engine.handle_timeout(bench.now);
        }
        assert!(bench.engine.error().is_some());
        let statistics = bench.engine.statistics();
        assert_eq!(statistics.credit_stalls, 1);
        assert_eq!(statistics.credit_stall_time, CREDIT_GRANT, "{lost}");
        assert_eq!(bench.engine.credit_stall(), None);
    }
}

#[test]
fn a_full_send_queue_is_one_stall_until_work_is_posted() {
    let mut bench = Bench::settled(credits(10, 10), 10, 10);
    let stalls = |bench: &Bench| bench.engine.statistics().send_queue_stalls;
    bench.room.sends = 0;
    bench.engine.prompt();
    assert_eq!(bench.sent().len(), 0);
    assert_eq!(stalls(&bench), 0, "no message, read or write waits");
    bench.room.sends = 100;
    bench.sent();
    bench.room.sends = 0;
    bench.send(1, 10);
    bench.write(2, 10);
    for _ in 0..2 {
        assert_eq!(bench.sent().len(), 0);
        bench.hear(segment(0, 1, 0));
        assert_eq!(stalls(&bench), 1);
    }
    bench.room = Room {
        sends: 1,
        receives: 0,
    };
    assert!(bench.engine.poll_work(bench.now, bench.room).is_some());
    bench.room.sends = 0;
    assert!(bench.engine.poll_work(bench.now, bench.room).is_none());
    assert_eq!(stalls(&bench), 2, "the write waits");
}

#[test]
fn each_kind_of_work_that_waits_for_the_send_queue_is_a_stall() {
    let kinds: [fn(&mut Bench); 4] = [
        |_| {},
        |bench| bench.send(1, 10),
        |bench| bench.read(1, 10),
        |bench| bench.write(1, 10),
    ];
    for (kind, start) in kinds.into_iter().enumerate() {
        let mut bench = Bench::settled(credits(10, 10), 10, 10);
        let stalls = |bench: &Bench| bench.engine.statistics().send_queue_stalls;
        let expected = u64::from(kind > 0);
        bench.room.sends = 0;
        start(&mut bench);
        assert_eq!(bench.work(), []);
        assert_eq!(stalls(&bench), expected);
        // Work that is in flight does not wait.
        bench.room.sends = 100;
        bench.work();
        bench.room.sends = 0;
        bench.hear(segment(0, 1, 0));
        bench.work();
        assert_eq!(stalls(&bench), expected);
    }
}

#[test]
fn a_message_without_a_credit_does_not_wait_for_the_send_queue() {
    let mut bench = Bench::passive(credits(10, 10), 10);
    bench.send(1, 10);
    bench.room.sends = 0;
    bench.work();
    assert_eq!(bench.engine.statistics().send_queue_stalls, 0);
}

#[test]
fn posted_work_begins_another_stall_of_the_send_queue() {
    let kinds: [fn(&mut Bench); 3] = [
        |bench| bench.send(1, 5000),
        |bench| bench.read(1, 500),
        |bench| bench.write(1, 500),
    ];
    for start in kinds {
        let mut bench = Bench::settled(credits(10, 10), 10, 10);
        bench.engine.limits.max_transfer = 100;
        bench.engine.limits.max_outbound_reads = 10;
        start(&mut bench);
        for posted in 0..4 {
            bench.room.sends = 0;
            assert_eq!(bench.work(), []);
            assert_eq!(bench.engine.statistics().send_queue_stalls, posted + 1);
            bench.room.sends = 1;
            let work = bench.engine.poll_work(bench.now, bench.room);
            bench.post(work.expect("one request is posted"));
        }
    }
}

#[test]
fn the_round_trip_of_a_keepalive_is_measured() {
    let mut bench = Bench::settled(credits(10, 10), 10, 10);
    bench.engine.prompt_keepalive(bench.now);
    bench.hear(grant(0));
    assert_eq!(
        bench.engine.statistics().keepalive_round_trips.count,
        0,
        "not sent"
    );
    bench.work();
    bench.engine.prompt_keepalive(bench.now);
    bench.work();
    bench.now += SECOND;
    bench.hear(grant(0));
    let trips = bench.engine.statistics().keepalive_round_trips;
    assert_eq!((trips.count, trips.sum), (1, SECOND));
    assert_eq!(trips.last, Some(SECOND));
}

#[test]
fn the_invalidations_that_are_sent_are_counted() {
    let mut bench = Bench::settled(credits(10, 10), 10, 10);
    let send = |bench: &mut Bench, token| {
        let message = vec![0; 10];
        bench.engine.send(MessageId(1), message, token).unwrap();
        bench.work();
    };
    send(&mut bench, None);
    send(&mut bench, Some(Token(7)));
    assert_eq!(bench.engine.statistics().invalidations_sent, 1);
}
