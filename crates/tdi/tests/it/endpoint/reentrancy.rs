//! Handlers and destructors of the client that call back into the transport, or that block.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
    mpsc,
};

use bytes::{Bytes, BytesMut};
use smbdirect_tdi::{
    Address, Answer, Cause, Client, ConnectAnswer, DisconnectFlags, Endpoint, EndpointState,
    Indication, Offer, ReceiveFlags, SendFlags, Status,
};
use tokio::{runtime::Builder, sync::Notify};

use super::ends::{Ends, in_time, is_set, loopback, not_yet, turns, within};

const PLAIN: SendFlags = SendFlags::empty();

/// A buffer of the client whose destructor calls the endpoint.
struct Restless {
    data: Vec<u8>,
    endpoint: Endpoint,
    given_back: Arc<AtomicBool>,
}

impl AsRef<[u8]> for Restless {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Restless {
    fn drop(&mut self) {
        let _ = self.endpoint.try_send("the next one", PLAIN);
        let _ = self.endpoint.state();
        self.given_back.store(true, Ordering::Relaxed);
    }
}

fn restless(endpoint: &Endpoint, length: usize) -> (Bytes, Arc<AtomicBool>) {
    let given_back = Arc::new(AtomicBool::new(false));
    let owner = Restless {
        data: vec![7; length],
        endpoint: endpoint.clone(),
        given_back: given_back.clone(),
    };
    (Bytes::from_owner(owner), given_back)
}

//= TDI-SEND-24 test
#[test]
fn buffer_destructor_may_call_the_endpoint() {
    in_time(async {
        let ends = Ends::new(loopback()).await;
        // The buffer is dropped after its future was dropped, after the send buffer took it, and
        // after it was discarded.
        let (buffer, back) = restless(&ends.here, 1000);
        drop(ends.here.send(buffer, PLAIN));
        is_set(&back).await;
        let (buffer, back) = restless(&ends.here, 1000);
        ends.here.try_send(buffer, PLAIN).unwrap();
        is_set(&back).await;
        let (buffer, back) = restless(&ends.here, 1000);
        ends.here.try_send(buffer, SendFlags::PARTIAL).unwrap();
        assert!(ends.here.discard_partial(PLAIN));
        is_set(&back).await;
        // The send was refused.
        let (buffer, back) = restless(&ends.here, 1000);
        let flags = SendFlags::AND_DISCONNECT;
        assert_eq!(
            ends.here.try_send(buffer, flags),
            Err(Status::NOT_SUPPORTED)
        );
        is_set(&back).await;
        // The connection ends.
        let (first, first_back) = restless(&ends.here, 1000);
        let (second, second_back) = restless(&ends.here, 1000);
        ends.here.try_send(first, SendFlags::PARTIAL).unwrap();
        drop(ends.here.send(second, PLAIN));
        within(ends.here.disconnect(DisconnectFlags::ABORT, None))
            .await
            .unwrap();
        is_set(&first_back).await;
        is_set(&second_back).await;
    });
}

/// A client that resumes in its handler and never accepts data.
struct Stubborn;

impl Client for Stubborn {
    fn receive(&self, endpoint: &Endpoint, _: Indication) -> Answer {
        endpoint.resume().unwrap();
        Answer::NotAccepted(0)
    }
}

#[test]
fn handler_that_always_resumes_does_not_starve_other_tasks() {
    in_time(async {
        let ends = Ends::new(loopback()).await;
        ends.remote.set_client(Some(Arc::new(Stubborn)));
        drop(ends.here.send("never accepted", PLAIN));
        within(ends.here.disconnect(DisconnectFlags::RELEASE, None))
            .await
            .unwrap();
        turns(200).await;
        // The client can still be removed.
        ends.remote.set_client(None);
        assert_eq!(
            within(ends.there.disconnected()).await,
            Some(Cause::RemoteDisconnect)
        );
    });
}

/// A client that owns the last handles, and drops them at its first event.
#[derive(Default)]
struct Leaver {
    handles: Mutex<Option<(Vec<Endpoint>, Vec<Address>)>>,
    has_left: AtomicBool,
}

impl Leaver {
    fn leave(&self) {
        let handles = self.handles.lock().unwrap().take();
        if let Some((endpoints, addresses)) = handles {
            for address in &addresses {
                address.set_client(None);
            }
            drop((endpoints, addresses));
            self.has_left.store(true, Ordering::Relaxed);
        }
    }
}

impl Client for Leaver {
    fn connect(&self, _: &Address, _: &Offer) -> ConnectAnswer {
        self.leave();
        ConnectAnswer::Refuse
    }

    fn receive(&self, _: &Endpoint, indication: Indication) -> Answer {
        self.leave();
        Answer::Taken(indication.data.len())
    }

    fn disconnect(&self, _: &Endpoint, _: DisconnectFlags, _: &Cause) {
        self.leave();
    }
}

//= TDI-CLOSE-01 test
//= TDI-CLOSE-02 test
#[test]
fn handler_may_drop_the_last_handles() {
    in_time(async {
        for event in ["receive", "disconnect", "connect"] {
            let ends = Ends::new(loopback()).await;
            let Ends {
                transport,
                here,
                there,
                local,
                remote,
            } = ends;
            let address = remote.local_addr();
            let leaver = Arc::new(Leaver::default());
            remote.set_client(Some(leaver.clone()));
            let other = transport.open_endpoint(());
            other.associate(&local).unwrap();
            let receiving = match event {
                "receive" => None,
                _ => Some(there.receive(BytesMut::zeroed(9), ReceiveFlags::empty())),
            };
            *leaver.handles.lock().unwrap() = Some((vec![there], vec![remote]));
            match event {
                "receive" => drop(here.send("leave", PLAIN)),
                "disconnect" => drop(here.disconnect(DisconnectFlags::ABORT, None)),
                _ => {
                    let refused = within(other.connect(address, None)).await;
                    assert_eq!(refused, Err(Status::REMOTE_NOT_LISTENING));
                }
            }
            is_set(&leaver.has_left).await;
            within(here.disconnected()).await.unwrap();
            if let Some(receiving) = receiving {
                assert!(within(receiving).await.status.is_error());
            }
            drop((here, other));
            assert_eq!(transport.statistics().open_connections, 0);
            // The client is dropped with the handles.
            within(async {
                while Arc::strong_count(&leaver) > 1 {
                    tokio::task::yield_now().await;
                }
            })
            .await;
        }
    });
}

/// A client whose first handler blocks until the test releases it.
struct Slow {
    is_at_work: Notify,
    go_on: Mutex<mpsc::Receiver<()>>,
    told: Mutex<Vec<Bytes>>,
}

impl Client for Slow {
    fn receive(&self, _: &Endpoint, indication: Indication) -> Answer {
        self.told.lock().unwrap().push(indication.data.clone());
        self.is_at_work.notify_one();
        // After the test has dropped the sender, this returns immediately.
        let _ = self.go_on.lock().unwrap().recv();
        Answer::Taken(indication.data.len())
    }

    fn disconnect(&self, _: &Endpoint, _: DisconnectFlags, _: &Cause) {
        self.told.lock().unwrap().push("disconnect".into());
    }
}

/// The task of the old connection ends after the endpoint has a new connection.
//= TDI-CONN-10 test
//= TDI-EVENT-01 test
#[test]
fn late_end_of_an_old_connection_keeps_the_new_one() {
    let runtime = Builder::new_multi_thread()
        .worker_threads(3)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let ends = Ends::new(loopback()).await;
        let (go_on, is_to_go_on) = mpsc::channel();
        let slow = Arc::new(Slow {
            is_at_work: Notify::new(),
            go_on: Mutex::new(is_to_go_on),
            told: Mutex::default(),
        });
        ends.remote.set_client(Some(slow.clone()));
        drop(ends.here.send("old", PLAIN));
        within(slow.is_at_work.notified()).await;
        // The abort completes when the handler has returned.
        let mut abort = ends.there.disconnect(DisconnectFlags::ABORT, None);
        within(ends.here.disconnected()).await.unwrap();
        ends.connect().await;
        not_yet(&mut abort).await;
        drop(ends.here.send("new", PLAIN));
        not_yet(slow.is_at_work.notified()).await;
        let before = ends.transport.statistics();
        drop(go_on);
        within(abort).await.unwrap();
        within(slow.is_at_work.notified()).await;
        not_yet(ends.there.disconnected()).await;
        assert_eq!(ends.there.state(), EndpointState::Connected);
        assert_eq!(*slow.told.lock().unwrap(), ["old", "new"]);
        let after = ends.transport.statistics();
        assert_eq!(after.local_disconnects, before.local_disconnects);
        assert_eq!(after.remote_disconnects, before.remote_disconnects);
    });
}
