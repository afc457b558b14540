//! Many threads that submit random requests on the same two endpoints.

use std::{sync::Arc, time::Duration};

use bytes::BytesMut;
use smbdirect_tdi::{Client, DisconnectFlags, ReceiveFlags, SendFlags};
use tokio::runtime::Builder;

use super::ends::{Ends, How, Recorder, credits, iwarp, loopback, pattern, settings, within};

const PLAIN: SendFlags = SendFlags::empty();

/// Submits random requests on the two endpoints.
async fn meddle(ends: Arc<Ends>, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut requests = Vec::new();
    for _ in 0..400 {
        let is_here = random.bool();
        let (endpoint, address) = if is_here {
            (&ends.here, &ends.local)
        } else {
            (&ends.there, &ends.remote)
        };
        match random.u8(..20) {
            0..=2 if is_here => requests.push(tokio::spawn({
                let connect = endpoint.connect(ends.remote.local_addr(), None);
                async move { within(connect).await.is_ok() }
            })),
            0..=2 => {
                let listen = if random.bool() {
                    endpoint.listen(None)
                } else {
                    endpoint.listen_and_query(None)
                };
                requests.push(tokio::spawn(async move { within(listen).await.is_ok() }));
            }
            3..=4 => {
                let accept = endpoint.accept();
                requests.push(tokio::spawn(async move { within(accept).await.is_ok() }));
            }
            5 => drop(endpoint.disconnect(DisconnectFlags::ABORT, None)),
            6 => {
                let timeout = Some(Duration::from_millis(random.u64(..5)));
                let release = endpoint.disconnect(DisconnectFlags::RELEASE, timeout);
                requests.push(tokio::spawn(async move { within(release).await.is_ok() }));
            }
            7 if endpoint.disassociate().is_ok() => {
                let _ = endpoint.associate(address);
            }
            8 => drop(endpoint.associate(address)),
            9 => {
                let recorder: Arc<dyn Client> = if random.bool() {
                    Recorder::new(How::TakeSome(100))
                } else {
                    Recorder::chained(false)
                };
                address.set_client(random.bool().then_some(recorder));
            }
            10..=12 => {
                let receiving = endpoint.receive(
                    BytesMut::zeroed(random.usize(..5000)),
                    ReceiveFlags::empty(),
                );
                if random.u8(..4) == 0 {
                    receiving.cancel();
                }
                requests.push(tokio::spawn(async move {
                    within(receiving).await.status.is_error()
                }));
            }
            13 => drop(endpoint.tsdus()),
            14 => drop(endpoint.discard_partial(PLAIN)),
            15 => tokio::task::yield_now().await,
            _ => {
                let flags = SendFlags::from_bits_retain(random.u32(..16) << 5);
                let sending = endpoint.send(pattern(random.usize(1..20_000), 1), flags);
                if random.u8(..4) == 0 {
                    sending.cancel();
                }
                requests.push(tokio::spawn(async move {
                    within(sending).await.status.is_error()
                }));
            }
        }
    }
    // Pending requests complete when the connections end.
    for request in requests {
        while !request.is_finished() {
            for endpoint in [&ends.here, &ends.there] {
                drop(endpoint.disconnect(DisconnectFlags::ABORT, None));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        request.await.expect("every request completes");
    }
}

//= TDI-QUERY-02 test
//= TDI-SEND-26 test
#[test]
fn random_requests_on_many_threads_complete() {
    let runtime = Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        for round in 0..20 {
            let provider = match round % 10 {
                9 => iwarp(),
                _ => loopback(),
            };
            let ends = Arc::new(Ends::apart(provider, settings(credits(6))).await);
            let meddlers: Vec<_> = (0..4)
                .map(|number| tokio::spawn(meddle(ends.clone(), round * 4 + number)))
                .collect();
            for meddler in meddlers {
                within(meddler).await.unwrap();
            }
            // Each established connection has ended once. Link failures are also counted for
            // connections that were not established.
            let told = || {
                let told = ends.transport.statistics();
                let made = told.connections_after_no_retry;
                let ended = told.local_disconnects + told.remote_disconnects;
                (ended, made, ended + told.link_failures)
            };
            within(async {
                while told().1 > told().2 {
                    for endpoint in [&ends.here, &ends.there] {
                        drop(endpoint.disconnect(DisconnectFlags::ABORT, None));
                    }
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
            .await;
            let (ended, made, ended_or_failed) = told();
            assert!(ended <= made && made <= ended_or_failed, "{:?}", told());
        }
    });
}
