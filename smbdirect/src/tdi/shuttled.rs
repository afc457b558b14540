//! The latch of "send possible" under a scheduler that tries the orders of its threads: this
//! compiles `sends` with locks of shuttle's in the place of the standard library's.

/// The lock that `sends` is made with here.
mod sync {
    pub(super) use shuttle::sync::{Mutex, MutexGuard};
    pub(super) use std::sync::PoisonError;
}

#[allow(
    dead_code,
    clippy::duplicate_mod,
    reason = "the same source with other locks, of which the tests need not use all"
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
use super::{Outbound, RequestId, SendAvailability, SendFlags, SendRequest, SendSettings, Status};

/// TSDUs of 4 bytes, a buffer of 8.
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

/// Sends `count` TSDUs without blocking, and waits after each refusal. Gives the refusals.
fn client(sends: &Sends, now: Instant, count: usize) -> usize {
    let (mut sent, mut refusals) = (0, 0);
    while sent < count {
        match sends.try_send(now, request(SendFlags::NON_BLOCKING)) {
            Ok(4) => sent += 1,
            Ok(part) => panic!("{part} bytes of a TSDU were taken, and there was room for all"),
            Err(status) => {
                assert_eq!(status, Status::DEVICE_NOT_READY);
                refusals += 1;
                // A wake-up that is lost is a deadlock, which shuttle reports.
                block_on(poll_fn(|context| sends.poll_possible(context))).unwrap();
            }
        }
    }
    refusals
}

/// The task: hands over and sends until `count` TSDUs are gone. Gives how often it was to tell the
/// client that sends are possible.
fn task(sends: &Sends, count: usize) -> usize {
    let (mut sent, mut told) = (0, 0);
    block_on(poll_fn(|context| {
        sends.watch(context.waker());
        while let Some(news) = sends.poll_news() {
            assert!(matches!(news, SendNews::SendPossible(1..)), "{news:?}");
            told += 1;
        }
        if let Some(_tsdu) = sends.poll_tsdu(SendAvailability::default()) {
            sends.tsdu_sent();
            sent += 1;
            context.waker().wake_by_ref();
        }
        match sent < count {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    }));
    while let Some(SendNews::SendPossible(_)) = sends.poll_news() {
        told += 1;
    }
    told
}

/// Two clients and the task, in thousands of orders.
//= TDI-SEND-17 test
//= TDI-SEND-18 test
#[test]
fn no_wake_up_is_lost() {
    static MOST: AtomicUsize = AtomicUsize::new(0);
    let threads = || {
        let now = Instant::now();
        let sends = Arc::new(sends());
        let clients: Vec<_> = (0..2)
            .map(|_| {
                let sends = sends.clone();
                thread::spawn(move || client(&sends, now, 4))
            })
            .collect();
        let told = thread::spawn(move || task(&sends, 8));
        let refusals: usize = clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .sum();
        let told = told.join().unwrap();
        // Refusals that come together share an event; without one there is none.
        assert!(
            told <= refusals && (told > 0) == (refusals > 0),
            "{told} of {refusals}"
        );
        MOST.fetch_max(refusals, Ordering::Relaxed);
    };
    shuttle::check_random(threads, 2000);
    shuttle::check_pct(threads, 2000, 3);
    assert!(MOST.load(Ordering::Relaxed) > 2, "nobody was refused");
}

/// Whoever waits for room learns of the end.
//= TDI-SEND-26 test
#[test]
fn the_end_wakes_whoever_waits() {
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
                let possible = block_on(poll_fn(|context| sends.poll_possible(context)));
                (refused, possible)
            })
        };
        let sender = {
            let sends = sends.clone();
            thread::spawn(move || {
                let place = sends.submit(now, request(SendFlags::empty()));
                block_on(poll_fn(|context| sends.poll(place, context))).status
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
