use super::*;

//= SMBD-3.1.5.8-06 test
//= SMBD-3.1.5.8-10 test
#[test]
fn a_received_message_uses_one_credit_and_grants_others() {
    let mut bench = Bench::settled(credits(10, 10), 10, 5);
    let before = bench.engine.credits();
    bench.hear(segment(7, 1, 0));
    let after = bench.engine.credits();
    assert_eq!(after.granted, before.granted - 1);
    assert_eq!(after.send_credits, before.send_credits + 7);
}

//= SMBD-3.1.5.8-11 test
#[test]
fn more_than_65535_credits_end_the_connection() {
    let mut bench = Bench::settled(credits(10, 10), 10, 6);
    bench.hear(grant(u16::MAX - 5));
    assert_eq!(bench.engine.credits().send_credits, u16::MAX);
    bench.hear(grant(1));
    let (held, granted) = (u16::MAX, 1);
    bench.ended(Violation::TooManyCredits { held, granted });
}

//= SMBD-3.1.5.1-04 test
#[test]
fn a_message_without_a_credit_ends_the_connection() {
    let mut bench = Bench::settled(credits(10, 2), 2, 2);
    bench.room.receives = 0;
    bench.hear(segment(0, 1, 0));
    bench.hear(segment(0, 1, 0));
    bench.room.receives = 10;
    bench.room.sends = 0;
    bench.work();
    let held = bench.engine.credits();
    assert_eq!((held.receive_credits, held.granted), (2, 0));
    bench.hear(segment(0, 1, 0));
    bench.ended(Violation::WithoutCredit);
}

//= SMBD-3.1.5.8-07 test
//= SMBD-3.1.5.9-01 test
//= SMBD-3.1.5.9-09 test
#[test]
fn an_idle_end_grants_when_three_quarters_of_the_credits_are_used() {
    let mut bench = Bench::settled(credits(10, 80), 80, 10);
    // All segments belong to one incomplete message.
    for used in 1..60 {
        bench.hear(DataTransfer {
            credits_requested: 80,
            ..segment(0, 1, 1000 - used)
        });
        assert_eq!(bench.sent(), [], "after {used}");
    }
    bench.hear(DataTransfer {
        credits_requested: 80,
        ..segment(0, 1, 940)
    });
    assert_eq!(bench.sent(), [grant(60)]);
}

//= SMBD-3.1.5.8-07 test
//= SMBD-3.1.5.8-07b test
#[test]
fn the_two_wordings_differ_in_the_answer_to_a_payload() {
    // A peer that requests fewer credits than it holds cannot be granted any.
    let sated = |message| DataTransfer {
        credits_requested: 5,
        ..message
    };
    for (revision, answers) in [
        (Revision::Current, [None, None, None]),
        (Revision::V2014, [Some(1), Some(0), None]),
    ] {
        let mut bench = Bench::settled(policy(|policy| policy.revision = revision), 10, 10);
        let mut answer = |message| {
            bench.hear(message);
            let sent = bench.sent();
            assert!(sent.iter().all(|answer| answer.data_length == 0));
            assert!(sent.len() <= 1, "{sent:?}");
            sent.first().map(|answer| answer.credits_granted)
        };
        let payload = [segment(1, 1, 0), sated(segment(0, 1, 0))].map(&mut answer);
        let empty = answer(sated(grant(1)));
        assert_eq!([payload[0], payload[1], empty], answers, "{revision:?}");
        assert_eq!(answer(sated(flagged(1))), Some(0), "{revision:?}");
    }
}

//= SMBD-3.1.5.8-08 test
//= SMBD-3.1.5.9-02 test
//= SMBD-3.1.5.9-06 test
#[test]
fn the_peers_target_can_rise_and_fall() {
    let mut bench = Bench::settled(credits(10, 20), 10, 10);
    let asking = |credits_requested| DataTransfer {
        credits_requested,
        ..segment(1, 1, 0)
    };
    bench.hear(asking(15));
    assert_eq!(bench.grants(), [6]);
    bench.hear(asking(u16::MAX));
    assert_eq!(bench.grants(), [6], "up to our own limit");
    assert_eq!(bench.receives.len(), 20);
    bench.hear(asking(4));
    assert_eq!(bench.work(), []);
    assert_eq!(bench.engine.credits().receive_credits, 19);
    for _ in 0..15 {
        assert_eq!(bench.work(), []);
        bench.hear(asking(4));
    }
    assert_eq!(bench.engine.credits().granted, 4);
}

#[test]
fn an_empty_message_is_not_answered_for_one_credit() {
    let mut bench = Bench::settled(credits(2, 2), 2, 5);
    bench.hear(DataTransfer {
        credits_requested: 2,
        ..grant(1)
    });
    assert_eq!(bench.sent(), []);
    let held = bench.engine.credits();
    assert_eq!((held.granted, held.receive_credits), (1, 2));
}

#[test]
fn a_short_receive_queue_reserves_a_receive_for_the_last_credit() {
    let mut bench = Bench::new(credits(10, 10), Connection::active);
    bench.engine.handle_connected(Limits {
        max_receive_queue: 5,
        ..limits()
    });
    bench.work();
    bench.hear_bytes(encoded(|out| response(10, 2).encode(out)));
    bench.work();
    bench.send(1, 5);
    assert_eq!(bench.grants(), [3]);
    bench.send(2, 5);
    assert_eq!(bench.grants(), [1]);
    assert_eq!(bench.receives.len(), 4);
}

#[test]
fn a_single_credit_is_returned_as_two() {
    let mut bench = Bench::settled(credits(1, 1), 1, 2);
    bench.hear(DataTransfer {
        credits_requested: 1,
        ..grant(1)
    });
    assert_eq!(bench.grants(), [2]);
    bench.hear(DataTransfer {
        credits_requested: 1,
        ..grant(1)
    });
    assert_eq!(bench.grants(), Vec::<u16>::new());
    assert_eq!(bench.engine.credits().granted, 1);
}
