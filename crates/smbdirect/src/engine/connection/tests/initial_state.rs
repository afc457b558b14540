use super::*;

/// Returns a connecting side that has received `response`.
fn answered(response: &NegotiateResponse) -> Bench {
    let mut bench = Bench::proposing(credits(10, 10));
    bench.hear_bytes(encoded(|out| response.encode(out)));
    bench.work();
    bench
}

fn both() -> [Bench; 2] {
    [
        answered(&response(10, 10)),
        Bench::passive(credits(10, 10), 10),
    ]
}

//= SMBD-3.1.4.1-07 test
//= SMBD-3.1.7.2-04 test
#[test]
fn the_first_receive_has_512_bytes() {
    for role in [Connection::active, Connection::passive] {
        // `Bench` checks the length when the receive is posted.
        Bench::new(credits(10, 10), role);
    }
}

/// A wrong initial state would send a message or change the content of the first one.
//= SMBD-3.1.4.1-03 test
//= SMBD-3.1.4.1-05 test
//= SMBD-3.1.5.5-01 test
//= SMBD-3.1.7.2-05 test
//= SMBD-3.1.7.2-06 test
#[test]
fn a_new_connection_sends_nothing_and_its_first_message_is_plain() {
    let [mut active, mut passive] = both();
    for bench in [&mut active, &mut passive] {
        assert_eq!(bench.work(), []);
        assert_eq!(bench.engine.credits().send_credit_target, 10);
        let negotiated = bench.engine.negotiated().unwrap();
        assert_eq!(negotiated.max_fragmented_receive_size, 1 << 20);
        assert_eq!(negotiated.keepalive_interval, IDLE);
        bench.events();
    }
    passive.hear(grant(10));
    assert_eq!(passive.sent(), []);
    for bench in [&mut active, &mut passive] {
        bench.send(1, 5);
        let [message] = bench.sent()[..] else {
            panic!("one message");
        };
        assert_eq!(message.flags, Flags::empty());
        assert_eq!((message.data_length, message.remaining_data_length), (5, 0));
    }
    // The first received message has no part of an older one and no token.
    passive.hear(segment(0, 3, 0));
    let [
        Event::Segment {
            payload,
            remaining: 0,
            invalidated: None,
        },
    ] = &passive.events()[..]
    else {
        panic!("one message");
    };
    assert_eq!(payload[..], [0; 3]);
}

//= SMBD-3.1.5.7-03 test
//= SMBD-3.1.5.7-07 test
#[test]
fn the_limits_of_a_response_apply_exactly() {
    let receives = |max_receive_size| NegotiateResponse {
        max_receive_size,
        ..response(10, 10)
    };
    let sends = |preferred_send_size| NegotiateResponse {
        preferred_send_size,
        ..response(10, 10)
    };
    let too_much = Violation::ResponsePreferredSendSize {
        preferred_send_size: 8193,
        max_receive_size: 8192,
    };
    for (response, violation) in [
        (receives(127), Some(Violation::ResponseMaxReceiveSize(127))),
        (receives(128), None),
        (receives(129), None),
        (sends(8191), None),
        (sends(8192), None),
        (sends(8193), Some(too_much)),
    ] {
        let bench = answered(&response);
        assert_eq!(bench.engine.negotiated().is_some(), violation.is_none());
        let error = violation.map(ConnectionError::from);
        assert_eq!(bench.engine.error(), error.as_ref());
    }
}

//= SMBD-3.1.5.7-10 test
//= SMBD-3.1.5.7-14 test
#[test]
fn the_initiator_begins_with_the_granted_credits() {
    let bench = answered(&NegotiateResponse {
        max_fragmented_size: 140_000,
        ..response(8, 7)
    });
    let credits = bench.engine.credits();
    let given = (credits.send_credits, credits.receive_credit_target);
    assert_eq!(given, (7, 8));
    let negotiated = bench.engine.negotiated().unwrap();
    assert_eq!(negotiated.max_fragmented_send_size, 140_000);
}

//= SMBD-3.1.5.6-12 test
//= SMBD-3.1.5.7-16 test
#[test]
fn both_roles_start_the_idle_timer() {
    let [mut active, passive] = both();
    // The initiator's first grant is sent alone after its delay.
    active.wait(active.due().unwrap());
    active.work();
    assert_eq!(active.due(), Some(IDLE - FIRST_GRANT_DELAY));
    assert_eq!(passive.due(), Some(IDLE));
}

//= SMBD-3.1.5.9-07 test
#[test]
fn every_receive_has_the_negotiated_length() {
    for mut bench in both() {
        let lengths = |bench: &Bench| -> Vec<u32> {
            let receives = bench.receives.iter();
            receives.map(|(_, length)| *length).collect()
        };
        assert_eq!(lengths(&bench), [1024; 10]);
        // The receives that replace used ones have the same length.
        bench.send(1, 1);
        bench.work();
        for _ in 0..5 {
            bench.hear(grant(1));
        }
        bench.work();
        assert_eq!(lengths(&bench), [1024; 10]);
    }
}

/// The timer was set when the keepalive fell due, and the provider had no room for it then.
//= SMBD-3.1.5.1-10 test
#[test]
fn a_delayed_keepalive_leaves_the_peer_the_whole_response_time() {
    let mut bench = answered(&response(10, 10));
    bench.engine.prompt_keepalive(bench.now);
    bench.now += SECOND * 3;
    let [question] = bench.sent()[..] else {
        panic!("one message");
    };
    assert_eq!(question.flags, Flags::RESPONSE_REQUESTED);
    assert_eq!(bench.due(), Some(ANSWER));
}
