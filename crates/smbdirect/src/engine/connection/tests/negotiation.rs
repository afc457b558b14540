use super::*;

//= SMBD-3.1.4.1-01 test
//= SMBD-3.1.4.1-02 test
//= SMBD-3.1.4.1-03 test
//= SMBD-3.1.4.1-04 test
//= SMBD-3.1.4.1-05 test
//= SMBD-3.1.7.2-01 test
//= SMBD-3.1.7.2-05 test
//= SMBD-3.1.7.2-06 test
#[test]
fn both_roles_begin_without_credits_and_limits() {
    for role in [Connection::active, Connection::passive] {
        let mut bench = Bench::new(credits(20, 30), role);
        let before = Credits {
            send_credit_target: 20,
            receive_credit_max: 30,
            ..Credits::default()
        };
        assert_eq!(bench.engine.credits(), before);
        assert!(!bench.engine.is_ready() && bench.engine.negotiated().is_none());
        assert!(bench.engine.queued_messages() == 0 && bench.events().is_empty());
        let refused = bench.engine.send(MessageId(1), "x", None);
        assert!(matches!(refused, Err(SendError::Connection(_))));
    }
}

//= SMBD-3.1.4.1-06 test
//= SMBD-3.1.4.1-07 test
//= SMBD-3.1.4.1-09 test
//= SMBD-3.1.5.2-04 test
#[test]
fn the_initiator_sends_its_request_when_connected() {
    let mut bench = Bench::new(Settings::windows(), Connection::active);
    assert_eq!(bench.work(), []);
    assert_eq!(bench.due(), Some(IDLE));
    bench.engine.handle_connected(limits());
    let proposal = NegotiateRequest {
        preferred_send_size: 1364,
        max_receive_size: 8192,
        max_fragmented_size: 1 << 20,
        ..request(255)
    };
    let request = encoded(|out| proposal.encode(out));
    assert_eq!(bench.work(), [Did::Send(request, None)]);
    assert_eq!(bench.work(), []);
}

//= SMBD-3.1.5.7-16 test
//= SMBD-3.1.5.9-07 test
//= SMBD-3.1.4.1-10 test
#[test]
fn the_initiator_posts_receives_before_it_is_established() {
    let mut bench = Bench::proposing(credits(10, 6));
    bench.hear_bytes(encoded(|out| response(10, 4).encode(out)));
    assert!(!bench.is_up() && bench.events().is_empty());
    assert_eq!(bench.work(), [Did::Receives(6, 1024)]);
    assert_eq!(bench.story(), ["negotiated"]);
    let held = bench.engine.credits();
    assert_eq!(
        (held.send_credits, held.receive_credits, held.granted),
        (4, 6, 0)
    );
    assert!(bench.engine.is_ready());
}

//= SMBD-3.1.7.1-01 test
#[test]
fn a_connection_closed_right_after_its_acceptance_reports_negotiated_first() {
    let mut bench = Bench::proposing(credits(10, 6));
    bench.hear_bytes(encoded(|out| response(10, 4).encode(out)));
    bench.complete(Completion::Disconnected(Disconnect::Remote));
    let closed = ConnectionError::Closed;
    let story = ["negotiated".into(), format!("closed: {closed}")];
    assert_eq!(bench.story(), story);
    assert_eq!(bench.engine.error(), Some(&closed));
    assert_eq!(bench.work(), []);

    // An acceptor has not answered yet, and can no longer do so, so it reports no negotiation.
    let mut bench = Bench::listening(credits(10, 6));
    bench.hear_bytes(encoded(|out| request(3).encode(out)));
    bench.complete(Completion::Disconnected(Disconnect::Remote));
    assert_eq!(bench.story(), [format!("closed: {closed}")]);
}

//= SMBD-3.1.5.6-11 test
//= SMBD-3.1.5.6-12 test
//= SMBD-3.1.5.6-13 test
//= SMBD-3.1.5.3-06 test
//= SMBD-3.1.5.9-08 test
#[test]
fn the_acceptor_posts_receives_then_sends_only_its_response() {
    let mut bench = Bench::listening(credits(10, 255));
    bench.hear_bytes(encoded(|out| request(3).encode(out)));
    bench.engine.prompt();
    let done = bench.work();
    let answer = NegotiateResponse {
        max_read_write_size: 8 << 20,
        max_fragmented_size: 1 << 20,
        ..response(10, 3)
    };
    let answer = encoded(|out| answer.encode(out));
    assert_eq!(done, [Did::Receives(3, 1024), Did::Send(answer, None)]);
    assert_eq!(bench.story(), ["negotiated"]);
    assert_eq!(bench.due(), Some(IDLE));
    assert_eq!(bench.engine.credits().granted, 3);
    assert!(!bench.engine.is_ready(), "the peer has to grant first");
}

#[test]
fn a_response_waits_for_room() {
    let mut bench = Bench::listening(credits(10, 255));
    bench.room.sends = 0;
    bench.hear_bytes(encoded(|out| request(2).encode(out)));
    assert_eq!(bench.work(), [Did::Receives(2, 1024)]);
    bench.room.sends = 1;
    assert_eq!(bench.work().len(), 1);
    bench.still_up();
}

//= SMBD-3.1.5.9-05 test
#[test]
fn the_acceptor_grants_the_receives_it_could_post() {
    let mut bench = Bench::listening(credits(10, 255));
    bench.hear_bytes(encoded(|out| request(10).encode(out)));
    for room in [1, 1] {
        bench.room.receives = room;
        let work = bench.engine.poll_work(bench.now, bench.room).unwrap();
        assert_eq!(bench.post(work), Did::Receives(1, 1024));
    }
    bench.room.receives = 0;
    let Did::Send(bytes, None) = bench.work().pop().unwrap() else {
        panic!("the response is due");
    };
    assert_eq!(
        NegotiateResponse::decode(&bytes).unwrap().credits_granted,
        2
    );
}

//= SMBD-3.1.5.6-10 test
//= SMBD-3.1.5.3-03 test
//= SMBD-3.1.5.3-02 test
#[test]
fn a_refusal_is_sent_before_the_connection_ends() {
    let no_room: fn(&mut Bench) -> NegotiateRequest = |bench| {
        bench.room.receives = 0;
        request(10)
    };
    let too_new: fn(&mut Bench) -> NegotiateRequest = |_| NegotiateRequest {
        min_version: 0x0101,
        max_version: 0xffff,
        ..request(10)
    };
    for (situation, status) in [
        (no_room, Status::INSUFFICIENT_RESOURCES),
        (too_new, Status::NOT_SUPPORTED),
    ] {
        let mut bench = Bench::listening(credits(10, 10));
        let request = situation(&mut bench);
        bench.hear_bytes(encoded(|out| request.encode(out)));
        let refusal = encoded(|out| NegotiateResponse::refusal(status).encode(out));
        assert_eq!(bench.work(), [Did::Send(refusal, None)]);
        assert!(bench.events().is_empty() && bench.work().is_empty());
        bench.complete_sends();
        bench.ended(ConnectionError::RefusedPeer(status));
    }
}

#[test]
fn a_refusal_that_is_never_sent_ends_with_the_negotiation_timer() {
    let mut bench = Bench::listening(credits(10, 10));
    let request = NegotiateRequest {
        min_version: 0x0101,
        max_version: 0xffff,
        ..request(10)
    };
    bench.hear_bytes(encoded(|out| request.encode(out)));
    assert_eq!(bench.work().len(), 1);
    bench.wait(ANSWER);
    bench.ended(ConnectionError::TimedOut(Expired::Negotiation));
}

//= SMBD-3.1.5.7-15 test
#[test]
fn an_initiator_that_cannot_post_a_receive_ends_the_connection() {
    let mut bench = Bench::proposing(credits(10, 10));
    bench.hear_bytes(encoded(|out| response(10, 10).encode(out)));
    bench.room.receives = 0;
    assert_eq!(bench.work(), []);
    let error = bench.engine.error().cloned().unwrap();
    assert!(matches!(
        &error,
        ConnectionError::Provider(error) if error.kind == ProviderErrorKind::Local
    ));
    bench.ended(error);
}

//= SMBD-3.1.5.7-09 test
//= SMBD-3.1.4.1-08 test
#[test]
fn the_status_of_a_refusal_is_reported() {
    let mut bench = Bench::proposing(credits(10, 10));
    let status = Status(0xC000_0022);
    bench.hear_bytes(encoded(|out| {
        NegotiateResponse::refusal(status).encode(out);
    }));
    bench.ended(ConnectionError::Refused(status));
    let mut bench = Bench::new(credits(10, 10), Connection::active);
    let error = ProviderError::new(ProviderErrorKind::Refused, "connection refused");
    bench.disconnect(Disconnect::Broken(error.clone()));
    bench.ended(error);
}

//= SMBD-3.1.6.1-01 test
//= SMBD-3.1.7.2-02 test
#[test]
fn the_negotiation_timer_expires_exactly_on_time() {
    for (role, timeout) in [
        (
            Connection::active as fn(Config, Instant) -> Connection,
            IDLE,
        ),
        (Connection::passive, ANSWER),
    ] {
        let mut bench = Bench::new(Settings::windows(), role);
        assert_eq!(bench.due(), Some(timeout));
        bench.wait(timeout - INSTANT);
        assert!(bench.engine.error().is_none());
        bench.wait(INSTANT);
        bench.ended(ConnectionError::TimedOut(Expired::Negotiation));
    }
}

//= SMBD-3.1.6.1-01 test
#[test]
fn a_negotiation_at_the_last_moment_stops_the_timer() {
    let mut bench = Bench::listening(Settings::windows());
    bench.wait(4 * SECOND);
    bench.hear_bytes(encoded(|out| request(10).encode(out)));
    bench.work();
    bench.complete_sends();
    bench.wait(2 * SECOND);
    bench.still_up();
}

//= SMBD-2.2-06 test
//= SMBD-3.1.5.5-01 test
#[test]
fn an_early_message_ends_the_connection() {
    let early = Violation::WithoutCredit;
    let mut bench = Bench::new(credits(10, 10), Connection::active);
    bench.hear_bytes(encoded(|out| response(10, 10).encode(out)));
    bench.ended(early);

    let mut bench = Bench::listening(credits(10, 10));
    let message = encoded(|out| request(10).encode(out));
    bench.hear_bytes(message.clone());
    bench.receives.push_back((WorkId(0), 512));
    bench.engine.statistics.receives_outstanding += 1;
    bench.hear_bytes(message);
    bench.ended(early);
}

//= SMBD-2.2-06 test
//= SMBD-3.1.5.4-01 test
#[test]
fn a_second_negotiate_message_is_an_invalid_data_transfer() {
    let mut bench = Bench::passive(credits(10, 10), 10);
    bench.hear_bytes(encoded(|out| request(10).encode(out)));
    assert!(matches!(
        bench.engine.error(),
        Some(ConnectionError::Violation(
            Violation::DataBeyondMessage { .. }
        ))
    ));
}

//= SMBD-3.1.5.5-01 test
#[test]
fn data_before_the_negotiation_is_refused_like_an_unknown_version() {
    let mut bench = Bench::listening(credits(10, 10));
    bench.hear_bytes(encoded(|out| segment(10, 100, 0).encode(out)));
    bench.work();
    bench.complete_sends();
    bench.ended(ConnectionError::RefusedPeer(Status::NOT_SUPPORTED));
}

//= SMBD-3.1.5.6-01 test
//= SMBD-3.1.5.7-01 test
#[test]
fn a_truncated_negotiate_message_is_not_answered() {
    let mut bench = Bench::listening(credits(10, 10));
    bench.hear_bytes(encoded(|out| request(10).encode(out))[..19].to_vec());
    bench.ended(Violation::RequestTooShort { length: 19 });
    let mut bench = Bench::proposing(credits(10, 10));
    bench.hear_bytes(encoded(|out| response(10, 10).encode(out))[..31].to_vec());
    bench.ended(Violation::ResponseTooShort { length: 31 });
    let mut bench = Bench::listening(credits(10, 10));
    let mut padded = encoded(|out| request(10).encode(out));
    padded.resize(512, 0xff);
    bench.hear_bytes(padded);
    bench.work();
    bench.still_up();
}

#[test]
fn close_during_the_negotiation_is_immediate() {
    let closed = || ConnectionError::ClosedHere;
    let mut bench = Bench::new(credits(10, 10), Connection::active);
    bench.engine.close();
    bench.ended(closed());
    let mut bench = Bench::proposing(credits(10, 10));
    bench.engine.close();
    bench.ended(closed());
    let mut bench = Bench::listening(credits(10, 10));
    bench.hear_bytes(encoded(|out| request(10).encode(out)));
    bench.engine.close();
    bench.ended(closed());
}

#[test]
fn a_prompt_before_the_negotiation_changes_no_timer() {
    let mut bench = Bench::new(credits(10, 10), Connection::active);
    bench.engine.prompt_keepalive(bench.now);
    assert_eq!(bench.due(), Some(IDLE), "the Negotiation Timer");
}

//= SMBD-3.1.4.7-01 test
#[test]
fn the_negotiated_limits_can_be_queried() {
    let bench = Bench::active(Settings::windows(), 10, 10);
    let negotiated = bench.engine.negotiated().unwrap();
    assert_eq!(
        (negotiated.max_send_size, negotiated.max_receive_size),
        (1024, 1024)
    );
    assert_eq!(negotiated.max_fragmented_send_size, 131_072);
    assert_eq!(negotiated.max_read_write_size, 1 << 20);
    assert_eq!(negotiated.keepalive_interval, IDLE);
}

#[cfg(feature = "metrics")]
#[test]
fn the_connecting_side_is_told_from_the_accepting_side() {
    let active = Bench::new(credits(10, 10), Connection::active);
    let passive = Bench::new(credits(10, 10), Connection::passive);
    for (mut bench, is_active) in [(active, true), (passive, false)] {
        assert_eq!(bench.engine.is_active(), is_active);
        bench.engine.handle_connected(limits());
        bench.work();
        assert_eq!(bench.engine.is_active(), is_active);
    }
}
