//! The completions of requests that handlers have returned, when the address has lost its client meanwhile.

use std::sync::{Arc, Mutex};

use smbdirect::rdma::provider::Provider;
use smbdirect_tdi::{
    Address, Client, ConnectAnswer, Endpoint, EndpointState, Offer, SendFlags, Status,
};
use tokio::sync::mpsc;

use super::ends::{Ends, How, Recorder, over_providers, within};

over_providers! {
    returned_receive_completes_at_its_client;
    returned_accept_completes_at_its_client;
    cancelled_accept_completes_once;
}

//= TDI-RECV-14 test
//= TDI-CLOSE-02 test
async fn returned_receive_completes_at_its_client(provider: Arc<dyn Provider>) {
    for closes in [false, true] {
        let Ends {
            here,
            there: _there,
            remote,
            local: _local,
            ..
        } = Ends::new(provider.clone()).await;
        let recorder = Recorder::new(How::ThenReceive(5, 100));
        remote.set_client(Some(recorder.clone()));
        drop(here.send("first", SendFlags::empty()));
        recorder.wait_for_lines(1).await;
        if closes {
            drop(remote);
        } else {
            remote.set_client(None);
        }
        drop(here.send("second", SendFlags::empty()));
        let lines = recorder.wait_for_lines(2).await;
        assert_eq!(lines, ["receive 5.", "completed 77 STATUS_SUCCESS 6"]);
        assert_eq!(recorder.data(), "firstsecond");
    }
}

/// A client that accepts a peer and in the same handler removes itself or closes the address.
struct Leaver {
    endpoint: Endpoint,
    address: Mutex<Option<Address>>,
    closes: bool,
    accepted: mpsc::UnboundedSender<Result<(), Status>>,
}

impl Client for Leaver {
    fn connect(&self, address: &Address, _: &Offer) -> ConnectAnswer {
        let own = self.address.lock().unwrap().take();
        if self.closes {
            drop(own);
        } else {
            address.set_client(None);
        }
        ConnectAnswer::Accept(self.endpoint.clone())
    }

    fn accept_completed(&self, _: &Endpoint, result: Result<(), Status>) {
        self.accepted.send(result).unwrap();
    }
}

//= TDI-CONN-06 test
//= TDI-CLOSE-02 test
async fn returned_accept_completes_at_its_client(provider: Arc<dyn Provider>) {
    for closes in [false, true] {
        let ends = Ends::apart(provider.clone(), Default::default()).await;
        let (accepted, mut is_accepted) = mpsc::unbounded_channel();
        let Ends {
            here,
            there,
            remote,
            local: _local,
            ..
        } = ends;
        let peer = remote.local_addr();
        let leaver = Arc::new(Leaver {
            endpoint: there,
            address: Mutex::new(Some(remote.clone())),
            closes,
            accepted,
        });
        remote.set_client(Some(leaver.clone()));
        // The handle that is left is the client's.
        drop(remote);
        within(here.connect(peer, None)).await.unwrap();
        assert_eq!(within(is_accepted.recv()).await, Some(Ok(())));
    }
}

/// A client that accepts each peer, and cancels the acceptance at once.
struct Canceller {
    endpoint: Endpoint,
    accepted: mpsc::UnboundedSender<Result<(), Status>>,
}

impl Client for Canceller {
    fn connect(&self, _: &Address, _: &Offer) -> ConnectAnswer {
        let endpoint = self.endpoint.clone();
        tokio::spawn(async move {
            while !endpoint.cancel() {
                tokio::task::yield_now().await;
            }
        });
        ConnectAnswer::Accept(self.endpoint.clone())
    }

    fn accept_completed(&self, _: &Endpoint, result: Result<(), Status>) {
        self.accepted.send(result).unwrap();
    }
}

//= TDI-DISC-07 test
async fn cancelled_accept_completes_once(provider: Arc<dyn Provider>) {
    let ends = Ends::apart(provider.clone(), Default::default()).await;
    let (accepted, mut is_accepted) = mpsc::unbounded_channel();
    let Ends {
        here,
        there,
        remote,
        local: _local,
        ..
    } = ends;
    remote.set_client(Some(Arc::new(Canceller {
        endpoint: there.clone(),
        accepted,
    })));
    for _ in 0..10 {
        let refused = within(here.connect(remote.local_addr(), None)).await;
        assert!(refused.is_err());
        let cancelled = within(is_accepted.recv()).await;
        assert_eq!(cancelled, Some(Err(Status::CANCELLED)));
        assert_eq!(there.state(), EndpointState::Associated);
    }
    assert!(is_accepted.try_recv().is_err());
}
