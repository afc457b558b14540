use super::*;

fn asleep() -> Bench {
    let mut bench = Bench::settled(credits(10, 10), 10, 10);
    bench.wait(IDLE - INSTANT);
    assert_eq!(bench.work(), []);
    bench.wait(INSTANT);
    bench
}

//= SMBD-3.1.6.2-02 test
//= SMBD-3.1.5.1-09 test
//= SMBD-3.1.5.1-10 test
#[test]
fn any_message_answers_a_keepalive() {
    for answer in [grant(1), segment(0, 1, 0), flagged(1)] {
        let mut bench = asleep();
        assert_eq!(bench.sent(), [flagged(0)]);
        assert_eq!(bench.due(), Some(ANSWER));
        bench.wait(ANSWER - INSTANT);
        bench.hear(answer);
        assert_eq!(bench.story()[0], "answered");
        assert_eq!(bench.due(), Some(IDLE));
    }
}

//= SMBD-3.1.6.2-01 test
#[test]
fn an_unanswered_keepalive_ends_the_connection() {
    let mut bench = asleep();
    assert_eq!(bench.sent(), [flagged(0)]);
    bench.wait(ANSWER - INSTANT);
    bench.still_up();
    bench.wait(INSTANT);
    bench.ended(ConnectionError::TimedOut(Expired::IdleConnection));
}

//= SMBD-3.1.6.2-02 test
//= SMBD-3.1.5.1-09 test
#[test]
fn a_queued_message_carries_the_flag() {
    let mut bench = Bench::passive(credits(10, 10), 10);
    bench.hear(grant(1));
    bench.room.receives = 0;
    bench.send(1, 2000);
    assert_eq!(bench.sent(), []);
    bench.wait(IDLE);
    assert_eq!(bench.sent(), []);
    bench.room.receives = 10;
    let flags: Vec<_> = bench.sent().iter().map(|sent| sent.flags.bits()).collect();
    assert_eq!(flags, [1], "one credit, one segment");
    bench.hear(grant(5));
    let flags: Vec<_> = bench.sent().iter().map(|sent| sent.flags.bits()).collect();
    assert_eq!(flags, [0]);
}

//= SMBD-3.1.6.2-03 test
#[test]
fn a_keepalive_that_cannot_be_sent_ends_the_connection_too() {
    let mut bench = Bench::passive(credits(10, 10), 10);
    bench.wait(IDLE);
    assert_eq!(bench.work(), []);
    assert_eq!(bench.due(), Some(ANSWER));
    bench.wait(ANSWER);
    bench.ended(ConnectionError::TimedOut(Expired::IdleConnection));
}

//= SMBD-3.1.5.8-09 test
//= SMBD-3.1.5.8-09b test
#[test]
fn a_keepalive_is_answered_without_its_flag_and_with_credits() {
    for settings in both_wordings() {
        let mut bench = Bench::settled(settings, 10, 10);
        bench.hear(flagged(0));
        assert_eq!(bench.sent(), [grant(1)]);
        assert_eq!(bench.due(), Some(IDLE));
        assert_eq!(bench.sent(), []);
        assert_eq!(bench.engine.statistics().keepalives_received, 1);
        assert_eq!(bench.engine.statistics().keepalives_sent, 0);
    }
}

//= SMBD-3.1.5.8-09b test
#[test]
fn a_queued_message_answers_a_keepalive() {
    for settings in both_wordings() {
        let mut bench = Bench::settled(settings, 10, 10);
        bench.send(1, 5);
        bench.hear(flagged(0));
        assert_eq!(bench.sent(), [segment(1, 5, 0)]);
    }
}

#[test]
fn the_owner_can_send_a_keepalive_at_any_time() {
    let mut bench = Bench::settled(credits(10, 10), 10, 10);
    bench.wait(SECOND);
    bench.engine.prompt_keepalive(bench.now);
    bench.engine.prompt_keepalive(bench.now);
    assert_eq!(bench.due(), Some(ANSWER));
    assert_eq!(bench.sent(), [flagged(0)]);
    bench.hear(grant(0));
    assert_eq!(bench.story(), ["answered"]);
    assert_eq!(bench.due(), Some(IDLE));
}

/// Earlier segments do not have the flag, and several calls set it in one message only.
#[test]
fn prompt_answer_sets_the_flag_on_the_last_segment_once() {
    let mut bench = Bench::settled(credits(10, 10), 10, 10);
    bench.send(1, 3000);
    bench.engine.prompt_answer();
    bench.engine.prompt_answer();
    assert!(bench.engine.awaits_answer());
    assert_eq!(bench.due(), Some(IDLE));
    let asks = |header: &DataTransfer| header.flags == Flags::RESPONSE_REQUESTED;
    let sent: Vec<_> = bench.sent().iter().map(asks).collect();
    assert_eq!(sent, [false, false, true]);
    assert_eq!(bench.due(), Some(ANSWER));
    assert!(bench.engine.awaits_answer());
    bench.hear(grant(5));
    assert!(!bench.engine.awaits_answer());
    // With an empty queue the next message has the flag.
    bench.engine.prompt_answer();
    assert_eq!(bench.sent(), []);
    bench.send(2, 10);
    assert_eq!(bench.sent().iter().map(asks).collect::<Vec<_>>(), [true]);
    bench.wait(ANSWER);
    bench.ended(ConnectionError::TimedOut(Expired::IdleConnection));
}

#[test]
fn an_abort_drops_queued_messages() {
    let mut bench = Bench::settled(credits(10, 10), 10, 2);
    bench.send(1, 30_000);
    assert_eq!(bench.sent().len(), 1, "there are no more credits");
    bench.engine.abort();
    bench.ended(ConnectionError::Aborted);
    bench.engine.abort();
    bench.engine.close();
    bench.disconnect(Disconnect::Local);
    assert_eq!(bench.story(), [""; 0]);
}

#[test]
fn a_message_received_before_the_keepalive_is_sent_answers_it() {
    let mut bench = Bench::passive(credits(10, 10), 10);
    bench.engine.prompt_keepalive(bench.now);
    assert_eq!(bench.work(), [], "there is no credit to ask with");
    bench.hear(grant(5));
    assert_eq!(bench.story(), ["answered"]);
}

#[test]
fn no_keepalive_is_sent_after_the_end() {
    let mut bench = Bench::settled(credits(10, 10), 10, 10);
    bench.disconnect(Disconnect::Remote);
    bench.ended(ConnectionError::Closed);
    bench.engine.prompt_keepalive(bench.now);
    bench.engine.prompt();
    assert_eq!(bench.due(), None);
    assert_eq!(bench.work(), []);
}
