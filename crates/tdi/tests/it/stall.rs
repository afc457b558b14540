//! A stall of this process fails no send: what has arrived is read before a deadline is judged, and a peer that had
//! no time to answer gets some.

use std::{sync::Arc, thread, time::Duration};

use bytes::BytesMut;
use smbdirect::{Iwarp, IwarpConfig, Settings};
use smbdirect_tdi::{EndpointState, ReceiveFlags, SendFlags, SendOptions, Sending, Status};
use tokio::{
    runtime::Builder,
    time::{Instant, advance},
};

use crate::endpoint::ends::{Ends, loopback, settings, starving_settings, turns, within};

/// Every deadline of the end that is stopped.
const LIMIT: Duration = Duration::from_millis(400);
/// A stop of the thread.
const STOP: Duration = Duration::from_millis(900);

#[test]
fn a_tdi_send_outlives_a_stop() {
    let one_thread = Builder::new_current_thread().enable_all().build();
    let several = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    for runtime in [one_thread.unwrap(), several.unwrap()] {
        runtime.block_on(async {
            let mut iwarp = IwarpConfig::default();
            iwarp.connect_timeout = LIMIT;
            iwarp.accept_timeout = LIMIT;
            iwarp.close_timeout = LIMIT;
            let provider = Arc::new(Iwarp::new(iwarp));
            let mut settings = settings(Settings::default());
            settings.send.send_timeout = Some(LIMIT);
            let ends = Ends::with(provider, settings).await;
            let sending = ends.here.send(vec![7; 1 << 20], SendFlags::empty());
            let receiving = ends
                .there
                .receive(BytesMut::zeroed(1 << 20), ReceiveFlags::NORMAL);
            thread::sleep(STOP);
            assert_eq!(within(sending).await.status, Status::SUCCESS);
            assert_eq!(within(receiving).await.status, Status::SUCCESS);
        });
    }
}

/// Starts sends that the peer does not take, so that a later send does not leave.
async fn stuck() -> (Ends, Vec<Sending>) {
    let ends = Ends::with(loopback(), starving_settings()).await;
    let stuck = (0..40)
        .map(|number| ends.here.send(vec![number; 10_000], SendFlags::empty()))
        .collect();
    turns(200).await;
    (ends, stuck)
}

fn send_by(ends: &Ends, deadline: Instant) -> Sending {
    let options = SendOptions {
        deadline: Some(deadline.into_std()),
        ..SendOptions::default()
    };
    ends.here.send_with("last", SendFlags::empty(), options)
}

//= TDI-SEND-27 test
#[tokio::test(start_paused = true)]
async fn a_deadline_that_is_judged_late_is_postponed() {
    let (ends, stuck) = stuck().await;
    let start = Instant::now();
    let late = send_by(&ends, start + LIMIT);
    turns(200).await;
    advance(STOP).await;
    // The timer has fired late, so the send has a second more.
    assert_eq!(late.await.status, Status::IO_TIMEOUT);
    let after = start.elapsed();
    assert!(after > STOP + Duration::from_millis(900), "{after:?}");
    assert!(after < STOP + Duration::from_millis(1100), "{after:?}");
    // In that second it can be sent.
    let late = send_by(&ends, Instant::now() + LIMIT);
    turns(200).await;
    advance(STOP).await;
    for number in 0..40 {
        assert_eq!(ends.arrived().await, vec![number; 10_000]);
    }
    assert_eq!(ends.arrived().await, "last");
    assert_eq!(late.await.status, Status::SUCCESS);
    drop(stuck);
}

//= TDI-SEND-27 test
#[tokio::test(start_paused = true)]
async fn a_deadline_that_had_passed_is_not_postponed() {
    let (ends, _stuck) = stuck().await;
    advance(STOP).await;
    let start = Instant::now();
    for deadline in [start - STOP, start - STOP / 2] {
        assert_eq!(send_by(&ends, deadline).await.status, Status::IO_TIMEOUT);
    }
    let after = start.elapsed();
    assert!(after < Duration::from_millis(100), "{after:?}");
    assert_eq!(ends.here.state(), EndpointState::Connected);
}
