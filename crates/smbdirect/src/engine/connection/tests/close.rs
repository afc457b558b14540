use super::*;
use crate::rdma::work::Teardown;

/// A provider flushes the Sends that were posted when its connection ends. It is unknown whether the peer has
/// received them.
#[test]
fn flushed_sends_are_not_reported_as_sent() {
    let mut bench = Bench::settled(credits(10, 10), 10, 10);
    bench.send(1, 5);
    bench.send(2, 2500);
    bench.work();
    let id = bench.sends[0];
    bench.complete(Completion::Sent { id });
    bench.sends.pop_front();
    assert_eq!(bench.story(), ["sent 1"]);
    let broken = ProviderError::new(ProviderErrorKind::Reset, "gone");
    bench.disconnect(Disconnect::Broken(broken.clone()));
    let end = format!("closed: {}", ConnectionError::from(broken));
    assert_eq!(bench.story(), [end]);
}

#[test]
fn queued_messages_are_dropped_when_the_connection_ends() {
    let mut bench = Bench::settled(credits(10, 10), 10, 1);
    let message = Bytes::from(vec![0; 5000]);
    let sent = bench.engine.send(MessageId(1), message.clone(), None);
    sent.unwrap();
    bench.work();
    assert!(!message.is_unique(), "the rest of it waits");
    bench.disconnect(Disconnect::Remote);
    assert_eq!(bench.engine.queued_messages(), 0);
    assert!(message.is_unique(), "the engine has dropped it");
}

#[test]
fn a_connection_that_ran_out_of_time_is_no_graceful_end_for_the_peer() {
    let mut bench = Bench::active(credits(10, 10), 10, 10);
    bench.send(1, 2500);
    bench.work();
    bench.wait(IDLE);
    bench.work();
    bench.wait(ANSWER);
    bench.ended(ConnectionError::TimedOut(Expired::IdleConnection));
    assert_eq!(bench.engine.teardown(), Teardown::Terminate);
}

#[test]
fn a_connection_that_ends_in_good_order_is_disconnected_gracefully() {
    let end = |end: fn(&mut Bench)| {
        let mut bench = Bench::active(credits(10, 10), 10, 10);
        assert_eq!(bench.engine.teardown(), Teardown::Abort, "it has not ended");
        bench.work();
        end(&mut bench);
        assert!(bench.engine.error().is_some());
        bench.engine.teardown()
    };
    assert_eq!(end(|bench| bench.engine.close()), Teardown::Graceful);
    assert_eq!(
        end(|bench| bench.disconnect(Disconnect::Remote)),
        Teardown::Graceful
    );
    let broken = |bench: &mut Bench| {
        let error = ProviderError::new(ProviderErrorKind::Reset, "gone");
        bench.disconnect(Disconnect::Broken(error));
    };
    assert_eq!(end(broken), Teardown::Abort);
    assert_eq!(
        end(|bench| bench.hear(segment(0, 1, u32::MAX))),
        Teardown::Abort
    );
}

fn closed() -> ConnectionError {
    ConnectionError::ClosedHere
}

#[test]
fn close_waits_for_earlier_work() {
    let mut bench = Bench::active(credits(10, 10), 10, 10);
    bench.send(1, 2500);
    bench.read(2, 100);
    bench.write(3, 100);
    bench.engine.close();
    let refused = bench.engine.send(MessageId(4), "late", None);
    assert_eq!(refused, Err(closed().into()));
    assert!(!bench.engine.is_ready());
    bench.work();
    bench.complete_sends();
    bench.complete_read();
    bench.still_up();
    bench.hear(segment(0, 1, 0));
    bench.complete_write();
    let end = format!("closed: {}", closed());
    let story = bench.story();
    assert_eq!(
        story,
        ["sent 1", "done 2", "segment 1+0", "done 3", end.as_str()]
    );
}

#[test]
fn a_closing_connection_is_not_ready() {
    for read in [false, true] {
        let mut bench = Bench::active(credits(10, 10), 10, 10);
        assert!(bench.engine.is_ready());
        if read {
            bench.read(1, 10);
        }
        bench.engine.close();
        assert!(!bench.engine.is_ready());
        assert_eq!(bench.is_up(), read, "it waits for the read");
    }
}

#[cfg(feature = "tokio")]
#[test]
fn the_driver_is_told_of_a_close() {
    let mut bench = Bench::active(credits(10, 10), 10, 10);
    assert!(!bench.engine.is_closing());
    bench.read(1, 10);
    bench.engine.close();
    assert!(bench.engine.is_closing());
}

#[test]
fn close_of_an_idle_connection_is_immediate() {
    let mut bench = Bench::active(credits(10, 10), 10, 10);
    bench.engine.close();
    bench.ended(closed());
    bench.engine.close();
    assert!(bench.events().is_empty());
}

#[test]
fn close_stops_waiting_for_credits_at_the_timer() {
    let mut bench = Bench::passive(credits(10, 10), 10);
    bench.send(1, 5);
    bench.engine.close();
    bench.work();
    bench.wait(CREDIT_GRANT);
    bench.ended(ConnectionError::TimedOut(Expired::SendCreditGrant));
}

#[test]
fn a_connection_lost_during_close_is_not_closed_in_good_order() {
    let mut bench = Bench::active(credits(10, 10), 10, 10);
    bench.send(1, 5);
    bench.work();
    bench.engine.close();
    let error = ProviderError::new(ProviderErrorKind::Reset, "gone");
    bench.disconnect(Disconnect::Broken(error.clone()));
    bench.ended(error);
}

//= SMBD-3.1.7.1-01 test
#[test]
fn each_disconnect_maps_to_an_error() {
    let broken = ProviderError::new(ProviderErrorKind::Reset, "gone");
    for (how, error) in [
        (Disconnect::Local, closed()),
        (Disconnect::Remote, ConnectionError::Closed),
        (Disconnect::Broken(broken.clone()), broken.into()),
    ] {
        let mut bench = Bench::settled(credits(10, 10), 10, 10);
        bench.disconnect(how);
        bench.ended(error.clone());
        let refused = bench.engine.send(MessageId(1), "x", None);
        assert_eq!(refused, Err(error.into()));
    }
}

#[test]
fn only_the_first_reason_is_reported() {
    let mut bench = Bench::settled(credits(10, 10), 10, 10);
    bench.hear_bytes(vec![]);
    bench.disconnect(Disconnect::Local);
    bench.ended(Violation::DataTransferTooShort { length: 0 });
}

#[test]
fn only_transfers_are_reported_after_the_end() {
    let mut bench = Bench::settled(credits(10, 10), 10, 10);
    bench.send(1, 5);
    bench.read(2, 100);
    bench.work();
    bench.hear_bytes(vec![]);
    bench.complete_sends();
    bench.complete_read();
    let story = bench.story();
    assert_eq!(story.len(), 2);
    assert!(story[0].starts_with("closed"));
    assert_eq!(story[1], "done 2");
}

#[test]
fn every_buffer_is_returned_after_the_reason() {
    let mut bench = Bench::settled(credits(10, 10), 10, 10);
    bench.engine.limits.max_transfer = 100;
    // One read is completed in part, one is posted in part, and one waits; one write is posted, and one waits for
    // room in the send queue.
    bench.read(1, 250);
    bench.read(2, 50);
    bench.write(3, 150);
    bench.work();
    bench.complete_read();
    bench.work();
    bench.read(4, 70);
    bench.room.sends = 0;
    bench.write(5, 70);
    bench.work();
    bench.flush();
    assert!(bench.events().is_empty(), "the reason is not known yet");
    bench.complete(Completion::Disconnected(Disconnect::Remote));
    let mut lengths = Vec::new();
    for (at, event) in bench.events().into_iter().enumerate() {
        match event {
            Event::Closed(_) => assert_eq!(at, 0),
            Event::TransferDone {
                id,
                buffer,
                completed: false,
            } => lengths.push((id.0, buffer.map(|buffer| buffer.len()))),
            other => panic!("{other:?}"),
        }
    }
    lengths.sort_unstable();
    assert_eq!(
        lengths,
        [
            (1, Some(250)),
            (2, Some(50)),
            (3, None),
            (4, Some(70)),
            (5, None)
        ]
    );
    let left = bench.engine.statistics();
    assert_eq!((left.receives_outstanding, left.work_outstanding), (0, 0));
}

#[test]
fn a_posted_read_keeps_its_buffer_until_it_returns() {
    let mut bench = Bench::settled(credits(10, 10), 10, 10);
    bench.read(1, 100);
    bench.read(2, 100);
    bench.read(3, 100);
    bench.work();
    bench.hear_bytes(vec![]);
    assert_eq!(bench.story().len(), 1, "the first two are still posted");
    bench.complete_read();
    assert_eq!(bench.story(), ["done 1"]);
    bench.disconnect(Disconnect::Local);
    assert_eq!(bench.story(), ["abandoned 2", "abandoned 3"]);
}

#[test]
fn outstanding_work_is_counted_until_it_returns() {
    let mut bench = Bench::settled(credits(10, 10), 10, 10);
    bench.send(1, 1500);
    bench.read(2, 100);
    bench.write(3, 100);
    bench.work();
    let busy = bench.engine.statistics();
    assert_eq!((busy.receives_outstanding, busy.work_outstanding), (10, 4));
    bench.complete_sends();
    bench.complete_read();
    bench.complete_write();
    let idle = bench.engine.statistics();
    assert_eq!((idle.receives_outstanding, idle.work_outstanding), (10, 0));
    assert_eq!((idle.messages_sent, idle.segments_sent), (1, 2));
    assert_eq!((idle.reads, idle.bytes_read), (1, 100));
    assert_eq!((idle.writes, idle.bytes_written), (1, 100));
}
