use super::*;

//= SMBD-WIN-CGT-01 test
#[test]
fn the_timer_runs_while_a_message_waits_without_a_credit() {
    let mut bench = Bench::passive(credits(10, 10), 10);
    bench.engine.prompt();
    assert_eq!(bench.work(), []);
    assert_eq!(bench.due(), Some(IDLE), "no credit, and no message");
    bench.send(1, 5);
    bench.work();
    assert_eq!(bench.due(), Some(CREDIT_GRANT));
    bench.wait(SECOND);
    bench.work();
    assert_eq!(bench.due(), Some(4 * SECOND), "it is not put off");
    bench.hear(grant(2));
    assert_eq!(bench.due(), Some(IDLE));
    bench.work();
    bench.send(2, 5);
    bench.send(3, 5);
    bench.work();
    assert_eq!(bench.engine.queued_messages(), 1);
    assert_eq!(bench.due(), Some(CREDIT_GRANT));
    bench.wait(CREDIT_GRANT - INSTANT);
    bench.still_up();
    bench.wait(INSTANT);
    bench.ended(ConnectionError::TimedOut(Expired::SendCreditGrant));
}

//= SMBD-WIN-CGT-01 test
#[test]
fn without_the_timer_only_the_keepalive_ends_the_connection() {
    let settings = Settings {
        credit_grant_timeout: None,
        ..credits(10, 10)
    };
    let mut bench = Bench::passive(settings, 10);
    bench.send(1, 5);
    bench.work();
    assert_eq!(bench.due(), Some(IDLE));
    bench.wait(IDLE);
    bench.work();
    bench.wait(ANSWER);
    bench.ended(ConnectionError::TimedOut(Expired::IdleConnection));
}

//= SMBD-WIN-CGT-01 test
#[test]
fn a_received_message_without_a_grant_does_not_stop_the_timer() {
    let mut bench = Bench::passive(credits(10, 10), 10);
    bench.send(1, 5);
    bench.work();
    bench.wait(3 * SECOND);
    bench.hear(segment(0, 1, 0));
    bench.work();
    assert_eq!(bench.due(), Some(2 * SECOND));
}
