//! Tests of the order in which a client learns of a connection: completions by routines, events, and the end.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use smbdirect::rdma::provider::Provider;
use smbdirect_tdi::{
    Address, Answer, Cause, Client, ConnectAnswer, DisconnectFlags, Endpoint, EndpointState,
    Indication, Offer, Operation, ReceiveFlags, ReceiveTarget, SendFlags, Status,
};
use tokio::sync::Notify;

use super::ends::{Ends, not_yet, over_providers, starving_settings, turns, within};

const PLAIN: SendFlags = SendFlags::empty();
const ABORT: DisconnectFlags = DisconnectFlags::ABORT;

over_providers! {
    routines_and_events_come_in_one_order;
    an_abort_completes_after_what_it_cancels;
    the_end_waits_for_what_a_routine_waits_for;
    held_data_is_received_by_targets_after_the_end;
    a_closed_endpoint_cancels_and_tells_nothing;
}

/// What a client has seen, in order.
#[derive(Clone, Debug, Default)]
struct Seen {
    lines: Arc<Mutex<Vec<String>>>,
    changed: Arc<Notify>,
}

impl Seen {
    fn add(&self, line: impl Into<String>) {
        self.lines.lock().unwrap().push(line.into());
        self.changed.notify_waiters();
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// Waits until this line is there, and returns all lines.
    async fn until(&self, line: &str) -> Vec<String> {
        within(async {
            loop {
                let changed = self.changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                let lines = self.lines();
                if lines.iter().any(|seen| seen == line) {
                    return lines;
                }
                changed.await;
            }
        })
        .await
    }

    /// Submits a receive of 5 bytes.
    fn receive(&self, endpoint: &Endpoint, name: &'static str) -> Result<(), Status> {
        let target = Target {
            seen: self.clone(),
            name,
            data: Vec::new(),
        };
        let submitted = endpoint.receive_into(Box::new(target), ReceiveFlags::empty());
        submitted.map(drop)
    }

    fn disconnect(&self, endpoint: &Endpoint, flags: DisconnectFlags) {
        let seen = self.clone();
        let operation = Operation::Disconnect {
            flags,
            timeout: None,
        };
        endpoint.request_then(operation, move |result| {
            seen.add(format!("disconnected {result:?}"));
        });
    }
}

#[derive(Debug)]
struct Target {
    seen: Seen,
    name: &'static str,
    data: Vec<u8>,
}

impl ReceiveTarget for Target {
    fn capacity(&self) -> usize {
        5
    }

    fn put(&mut self, bytes: &[u8]) {
        self.data.extend_from_slice(bytes);
    }

    fn completed(self: Box<Self>, status: Status, information: usize) {
        assert_eq!(self.data.len(), information);
        let text = String::from_utf8_lossy(&self.data).into_owned();
        self.seen.add(format!("{} {status} {text}", self.name));
    }
}

impl Client for Seen {
    fn connect(&self, _: &Address, _: &Offer) -> ConnectAnswer {
        ConnectAnswer::Refuse
    }

    fn receive(&self, _: &Endpoint, indication: Indication) -> Answer {
        let text = String::from_utf8_lossy(&indication.data).into_owned();
        self.add(format!("indicated {text}"));
        Answer::Taken(indication.data.len())
    }

    fn disconnect(&self, _: &Endpoint, _: DisconnectFlags, cause: &Cause) {
        self.add(format!("disconnect {cause}"));
    }
}

//= TDI-RECV-06 test
//= TDI-RECV-10 test
//= TDI-DISC-09 test
async fn routines_and_events_come_in_one_order(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider).await;
    let seen = Seen::default();
    ends.remote.set_client(Some(Arc::new(seen.clone())));
    seen.receive(&ends.there, "first").unwrap();
    seen.receive(&ends.there, "second").unwrap();
    for text in ["one", "two", "three"] {
        drop(ends.here.send(text, PLAIN));
    }
    within(ends.here.disconnect(DisconnectFlags::RELEASE, None))
        .await
        .unwrap();
    let lines = seen.until("disconnect the peer disconnected").await;
    let expected = [
        "first STATUS_SUCCESS one",
        "second STATUS_SUCCESS two",
        "indicated three",
        "disconnect the peer disconnected",
    ];
    assert_eq!(lines, expected);
}

//= TDI-DISC-08 test
async fn an_abort_completes_after_what_it_cancels(provider: Arc<dyn Provider>) {
    let ends = Ends::with(provider, starving_settings()).await;
    let seen = Seen::default();
    ends.local.set_client(Some(Arc::new(seen.clone())));
    seen.receive(&ends.here, "first").unwrap();
    seen.receive(&ends.here, "second").unwrap();
    // More than the peer takes, so that the last ones wait.
    for _ in 0..64 {
        let sent = seen.clone();
        let routine = |completion: smbdirect_tdi::SendCompletion| async move {
            if completion.status == Status::LOCAL_DISCONNECT {
                sent.add("send");
            }
        };
        ends.here.send_then(vec![1; 1000], PLAIN, routine).unwrap();
    }
    seen.disconnect(&ends.here, ABORT);
    let lines = seen.until("disconnected Ok(())").await;
    assert_eq!(lines.last().unwrap(), "disconnected Ok(())");
    let receives: Vec<_> = lines.iter().filter(|line| *line != "send").collect();
    let expected = [
        "first STATUS_CANCELLED ",
        "second STATUS_CANCELLED ",
        "disconnected Ok(())",
    ];
    assert_eq!(receives, expected);
    assert!(lines.iter().any(|line| line == "send"), "{lines:?}");
    turns(20).await;
    assert_eq!(seen.lines(), lines, "nothing comes after the end");
}

/// The memory of a send is the client's when its completion is reported, and everything else comes after that.
//= TDI-SEND-24 test
async fn the_end_waits_for_what_a_routine_waits_for(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider).await;
    let seen = Seen::default();
    ends.local.set_client(Some(Arc::new(seen.clone())));
    let released = Arc::new(Notify::new());
    let (waits, sent) = (released.clone(), seen.clone());
    let data = Bytes::from_static(b"data");
    ends.here
        .send_then(data, PLAIN, move |completion| async move {
            assert_eq!(completion.result(), Ok(4));
            sent.add("completes");
            waits.notified().await;
            sent.add("completed");
        })
        .unwrap();
    seen.until("completes").await;
    within(ends.there.disconnect(ABORT, None)).await.unwrap();
    not_yet(seen.until("completed")).await;
    assert_eq!(seen.lines(), ["completes"]);
    released.notify_one();
    let lines = within(async {
        while seen.lines().len() < 3 {
            turns(1).await;
        }
        seen.lines()
    })
    .await;
    assert_eq!(lines[..2], ["completes", "completed"]);
    assert!(lines[2].starts_with("disconnect "), "{lines:?}");
}

//= TDI-RECV-03 test
async fn held_data_is_received_by_targets_after_the_end(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider).await;
    let seen = Seen::default();
    drop(ends.here.send("held", PLAIN));
    within(ends.here.disconnect(DisconnectFlags::RELEASE, None))
        .await
        .unwrap();
    within(ends.there.disconnected()).await.unwrap();
    seen.receive(&ends.there, "last").unwrap();
    seen.until("last STATUS_SUCCESS held").await;
    // The next one finds that nothing is left, before or after the task of the connection has found it.
    let _ = seen.receive(&ends.there, "late");
    seen.until("late STATUS_INVALID_CONNECTION ").await;
    let refused = within(async {
        loop {
            if let Err(status) = seen.receive(&ends.there, "too late") {
                return status;
            }
            turns(1).await;
        }
    });
    assert_eq!(refused.await, Status::INVALID_CONNECTION);
    assert_eq!(
        seen.lines().last().unwrap(),
        "too late STATUS_INVALID_CONNECTION "
    );
}

//= TDI-CLOSE-01 test
async fn a_closed_endpoint_cancels_and_tells_nothing(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider).await;
    let seen = Seen::default();
    ends.remote.set_client(Some(Arc::new(seen.clone())));
    seen.receive(&ends.there, "first").unwrap();
    ends.there.close();
    assert_eq!(ends.there.state(), EndpointState::Idle);
    assert!(within(ends.here.disconnected()).await.is_some());
    seen.until("first STATUS_CANCELLED ").await;
    let refused = ends.there.listen(None).await;
    assert_eq!(refused, Err(Status::ADDRESS_NOT_ASSOCIATED));
    turns(20).await;
    assert_eq!(seen.lines(), ["first STATUS_CANCELLED "]);
}
