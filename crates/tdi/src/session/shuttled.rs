//! Tests of the latch of "send possible" under shuttle, a scheduler that tries many thread
//! interleavings. This file compiles `sends` with the locks of shuttle instead of the locks of the
//! standard library.

/// The lock type of `sends` in these tests.
mod sync {
    pub(super) use shuttle::sync::{Mutex, MutexGuard};
    pub(super) use std::sync::PoisonError;
}

#[allow(
    dead_code,
    clippy::duplicate_mod,
    reason = "the same source with other locks, of which the tests use a part"
)]
#[path = "sends.rs"]
mod sends;

use std::{
    future::poll_fn,
    sync::atomic::{AtomicUsize, Ordering},
    task::Poll,
    time::Instant,
};

use bytes::Bytes;
use shuttle::{future::block_on, sync::Arc, thread};

use self::sends::{SendNews, Sends};
use crate::protocol::{
    Outbound, RequestId, SendAvailability, SendFlags, SendRequest, SendSettings, Status,
};

/// Returns sends with TSDUs of at most 4 bytes and a send buffer of 8 bytes.
fn sends() -> Sends {
    let settings = SendSettings {
        max_tsdu: 4,
        high_water: 8,
        low_water: 2,
        ..SendSettings::new(4)
    };
    Sends::new(Outbound::new(settings).unwrap())
}

fn request(flags: SendFlags) -> SendRequest {
    SendRequest::new(RequestId(0), Bytes::from_static(b"abcd"), flags)
}

/// Sends `count` TSDUs without blocking, and waits after each refusal. Returns the number of
/// refusals.
fn client(sends: &Sends, now: Instant, count: usize) -> usize {
    let (mut sent, mut refusals) = (0, 0);
    while sent < count {
        match sends.try_send(now, request(SendFlags::NON_BLOCKING)) {
            Ok(4) => sent += 1,
            Ok(part) => panic!("{part} bytes of a TSDU were taken, though there was room for all"),
            Err(status) => {
                assert_eq!(status, Status::DEVICE_NOT_READY);
                refusals += 1;
                // A lost wake-up is a deadlock, which shuttle reports.
                block_on(sends.possible()).unwrap();
            }
        }
    }
    refusals
}

/// Acts as the connection's task: sends until `count` TSDUs are sent. Returns the number of "send
/// possible" events.
fn task(sends: &Sends, count: usize) -> usize {
    let (mut sent, mut events) = (0, 0);
    block_on(poll_fn(|context| {
        sends.watch(context.waker());
        while let Some(news) = sends.poll_news() {
            assert!(matches!(news, SendNews::SendPossible(1..)), "{news:?}");
            events += 1;
        }
        if let Some(_tsdu) = sends.poll_tsdu(SendAvailability::default()) {
            sends.tsdu_sent();
            sent += 1;
            context.waker().wake_by_ref();
        }
        if sent < count {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }));
    while let Some(SendNews::SendPossible(_)) = sends.poll_news() {
        events += 1;
    }
    events
}

/// Runs two clients and the task in thousands of interleavings.
//= TDI-SEND-17 test
//= TDI-SEND-18 test
#[test]
fn each_refused_send_is_followed_by_a_wake_up() {
    static MOST_REFUSALS: AtomicUsize = AtomicUsize::new(0);
    let threads = || {
        let now = Instant::now();
        let sends = Arc::new(sends());
        let clients: Vec<_> = (0..2)
            .map(|_| {
                let sends = sends.clone();
                thread::spawn(move || client(&sends, now, 4))
            })
            .collect();
        let events = thread::spawn(move || task(&sends, 8));
        let refusals: usize = clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .sum();
        let events = events.join().unwrap();
        // Several refusals can share one event, and without a refusal there is none.
        assert!(
            events <= refusals && (events > 0) == (refusals > 0),
            "{events} events for {refusals} refusals"
        );
        MOST_REFUSALS.fetch_max(refusals, Ordering::Relaxed);
    };
    shuttle::check_random(threads, 2000);
    shuttle::check_pct(threads, 2000, 3);
    assert!(
        MOST_REFUSALS.load(Ordering::Relaxed) > 2,
        "no send was refused"
    );
}

/// A future that waits for room, and one that waits for its send, resolve when the sends end.
//= TDI-SEND-26 test
#[test]
fn ending_the_sends_wakes_all_waiters() {
    let threads = || {
        let now = Instant::now();
        let sends = Arc::new(sends());
        for _ in 0..2 {
            sends
                .try_send(now, request(SendFlags::NON_BLOCKING))
                .unwrap();
        }
        let client = {
            let sends = sends.clone();
            thread::spawn(move || {
                let refused = sends.try_send(now, request(SendFlags::NON_BLOCKING));
                let possible = block_on(sends.possible());
                (refused, possible)
            })
        };
        let sender = {
            let sends = sends.clone();
            thread::spawn(move || {
                let (_, completion) = sends.submit(now, request(SendFlags::empty()));
                block_on(completion).unwrap().status
            })
        };
        sends.end(Status::LINK_FAILED);
        let (refused, possible) = client.join().unwrap();
        assert_eq!(possible, Err(Status::LINK_FAILED));
        assert!(matches!(
            refused,
            Err(Status::DEVICE_NOT_READY | Status::INVALID_CONNECTION)
        ));
        let status = sender.join().unwrap();
        assert!([Status::LINK_FAILED, Status::INVALID_CONNECTION].contains(&status));
    };
    shuttle::check_random(threads, 2000);
}
