use super::*;

#[test]
fn the_first_message_carries_the_whole_grant() {
    let mut bench = Bench::active(credits(10, 10), 10, 10);
    assert_eq!(bench.due(), Some(FIRST_GRANT_DELAY));
    bench.send(1, 5);
    bench.send(2, 5);
    assert_eq!(bench.grants(), [10, 0]);
    assert_eq!(bench.due(), Some(IDLE));
}

#[test]
fn the_grant_is_sent_alone_after_its_delay() {
    let mut bench = Bench::active(credits(10, 10), 10, 10);
    bench.wait(FIRST_GRANT_DELAY - INSTANT);
    assert_eq!(bench.sent(), []);
    bench.wait(INSTANT);
    assert_eq!(bench.sent(), [grant(10)]);
    assert_eq!(bench.sent(), []);
}

#[test]
fn a_keepalive_carries_the_grant() {
    let mut bench = Bench::active(credits(10, 10), 10, 10);
    bench.engine.prompt_keepalive(bench.now);
    assert_eq!(bench.sent(), [flagged(10)]);
}
