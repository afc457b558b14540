//! How connections end: at once, in good order, by the peer, by time; and what may come after.

use std::{sync::Arc, time::Duration};

use bytes::BytesMut;
use smbdirect::{
    rdma::provider::Provider,
    tdi::{
        Cause, DisconnectFlags, EndpointState, ReceiveFlags, SendFlags, SendOptions, Status,
        TransportSettings,
    },
};

use crate::ends::{
    Ends, How, Witness, not_yet, over_providers, pattern, receive, starving_settings, within,
};

const PLAIN: SendFlags = SendFlags::empty();
const ABORT: DisconnectFlags = DisconnectFlags::ABORT;
const RELEASE: DisconnectFlags = DisconnectFlags::RELEASE;

over_providers! {
    an_abort_ends_what_is_pending;
    a_release_lets_everything_arrive;
    a_release_waits_for_open_tsdus_to_be_decided_on;
    a_release_that_takes_too_long_is_an_abort;
    an_abort_cuts_short_what_is_pending;
    the_peer_is_told_and_can_take_what_is_left;
    sends_that_take_too_long;
    sends_that_are_cancelled;
    dropping_the_last_handle_cancels_everything;
    a_disconnect_from_a_handler;
}

fn no_flags() -> ReceiveFlags {
    ReceiveFlags::empty()
}

//= TDI-DISC-08 test
//= TDI-SEND-26 test
async fn an_abort_ends_what_is_pending(provider: Arc<dyn Provider>) {
    let ends = Ends::with(provider, starving_settings()).await;
    let (near, far) = (Witness::new(How::Take), Witness::new(How::Take));
    ends.local.set_client(Some(near.clone()));
    let sendings: Vec<_> = (0..40)
        .map(|number| ends.here.send(pattern(100_000, number), PLAIN))
        .collect();
    let receiving = ends.here.receive(BytesMut::zeroed(10), no_flags());
    within(ends.here.disconnect(ABORT, None)).await.unwrap();
    assert_eq!(ends.here.state(), EndpointState::Associated);
    for sending in sendings {
        let done = within(sending).await;
        assert_eq!(
            (done.status, done.information),
            (Status::LOCAL_DISCONNECT, 0)
        );
        assert_eq!(done.buffer.len(), 100_000);
    }
    assert_eq!(within(receiving).await.status, Status::CANCELLED);
    assert_eq!(
        within(ends.here.disconnected()).await,
        Some(Cause::LocalDisconnect)
    );
    // The peer learns of it, from its receive at the latest.
    within(ends.there.disconnected()).await.unwrap();
    ends.remote.set_client(Some(far));
    assert_eq!(
        near.lines(),
        [""; 0],
        "nobody is told of his own disconnect"
    );
}

//= TDI-DISC-03 test
async fn a_release_lets_everything_arrive(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider).await;
    let data = pattern(1 << 20, 1);
    let sendings: Vec<_> = (0..20)
        .map(|_| ends.here.send(data.clone(), PLAIN))
        .collect();
    let buffered = ends.here.send("buffered", SendFlags::NON_BLOCKING);
    let release = ends.here.disconnect(RELEASE, None);
    assert_eq!(ends.here.state(), EndpointState::Releasing);
    let late = within(ends.here.send("late", PLAIN)).await;
    assert_eq!(late.status, Status::INVALID_CONNECTION);
    let again = within(ends.here.disconnect(RELEASE, None)).await;
    assert_eq!(again, Err(Status::INVALID_DEVICE_STATE));
    // It can still receive.
    ends.there.send("meanwhile", PLAIN).await.result().unwrap();
    assert_eq!(receive(&ends.here, 100).await, "meanwhile");
    for _ in 0..20 {
        assert_eq!(ends.arrived().await, data);
    }
    assert_eq!(ends.arrived().await, "buffered");
    within(release).await.unwrap();
    for sending in sendings {
        assert_eq!(within(sending).await.status, Status::SUCCESS);
    }
    assert_eq!(within(buffered).await.status, Status::SUCCESS);
    assert_eq!(
        within(ends.here.disconnected()).await,
        Some(Cause::LocalDisconnect)
    );
    assert_eq!(
        within(ends.there.disconnected()).await,
        Some(Cause::RemoteDisconnect)
    );
}

//= TDI-DISC-03 test
async fn a_release_waits_for_open_tsdus_to_be_decided_on(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider).await;
    for flags in [
        SendFlags::PARTIAL,
        SendFlags::PARTIAL | SendFlags::EXPEDITED,
    ] {
        ends.here.send("half", flags).await.result().unwrap();
        let release = within(ends.here.disconnect(RELEASE, None)).await;
        assert_eq!(release, Err(Status::INVALID_PARAMETER));
        assert_eq!(ends.here.state(), EndpointState::Connected);
        assert!(ends.here.discard_partial(flags));
    }
    within(ends.here.disconnect(RELEASE, None)).await.unwrap();
}

//= TDI-DISC-05 test
async fn a_release_that_takes_too_long_is_an_abort(provider: Arc<dyn Provider>) {
    let ends = Ends::with(provider, starving_settings()).await;
    let stuck: Vec<_> = (0..40)
        .map(|number| ends.here.send(pattern(10_000, number), PLAIN))
        .collect();
    let release = ends
        .here
        .disconnect(RELEASE, Some(Duration::from_millis(50)));
    assert_eq!(within(release).await, Err(Status::IO_TIMEOUT));
    assert_eq!(ends.here.state(), EndpointState::Associated);
    let mut failed = 0;
    for sending in stuck {
        let status = within(sending).await.status;
        assert!(
            [Status::SUCCESS, Status::LOCAL_DISCONNECT].contains(&status),
            "{status}"
        );
        failed += usize::from(status == Status::LOCAL_DISCONNECT);
    }
    assert!(failed > 0);
}

//= TDI-DISC-02 test
async fn an_abort_cuts_short_what_is_pending(provider: Arc<dyn Provider>) {
    let ends = Ends::with(provider, starving_settings()).await;
    for number in 0..40 {
        drop(ends.here.send(pattern(10_000, number), PLAIN));
    }
    let release = ends.here.disconnect(RELEASE, None);
    not_yet(ends.here.disconnected()).await;
    within(ends.here.disconnect(ABORT, None)).await.unwrap();
    assert_eq!(within(release).await, Err(Status::CONNECTION_ABORTED));
    within(ends.there.disconnected()).await.unwrap();
    // A listen, a connect that waits to be accepted, and an acceptance.
    let listen = ends.there.listen_and_query(None);
    within(ends.there.disconnect(ABORT, None)).await.unwrap();
    assert_eq!(within(listen).await, Err(Status::CANCELLED));
    let offer = ends.there.listen_and_query(None);
    let connect = ends.here.connect(ends.remote.local_address(), None);
    within(offer).await.unwrap();
    within(ends.here.disconnect(ABORT, None)).await.unwrap();
    assert_eq!(within(connect).await, Err(Status::CANCELLED));
    let accept = ends.there.accept();
    within(ends.there.disconnect(ABORT, None)).await.unwrap();
    assert_eq!(within(accept).await, Err(Status::CANCELLED));
    ends.connect().await;
}

//= TDI-RECV-03 test
//= TDI-DISC-09 test
async fn the_peer_is_told_and_can_take_what_is_left(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider).await;
    let witness = Witness::new(How::Refuse);
    ends.remote.set_client(Some(witness.clone()));
    for words in ["one", "two", "three"] {
        ends.here.send(words, PLAIN).await.result().unwrap();
    }
    within(ends.here.disconnect(RELEASE, None)).await.unwrap();
    let told = witness.told(2).await;
    assert_eq!(told, ["receive 3.", "disconnect: the peer disconnected"]);
    assert_eq!(ends.there.state(), EndpointState::Associated);
    let late = within(ends.there.send("late", PLAIN)).await;
    assert_eq!(late.status, Status::INVALID_CONNECTION);
    for words in ["one", "two"] {
        assert_eq!(ends.arrived().await, words);
    }
    // It was the last event, whatever is done.
    ends.there.resume().unwrap();
    ends.remote.set_client(Some(witness.clone()));
    assert_eq!(ends.arrived().await, "three");
    let none = within(ends.there.receive(BytesMut::zeroed(9), no_flags())).await;
    assert_eq!(
        (none.status, none.information),
        (Status::INVALID_CONNECTION, 0)
    );
    assert_eq!(witness.lines().len(), 2);
    // A receive that waits learns why.
    ends.connect().await;
    let receiving = ends.there.receive(BytesMut::zeroed(9), no_flags());
    within(ends.here.disconnect(RELEASE, None)).await.unwrap();
    assert_eq!(within(receiving).await.status, Status::REMOTE_DISCONNECT);
}

//= TDI-SEND-27 test
async fn sends_that_take_too_long(provider: Arc<dyn Provider>) {
    let ends = Ends::with(provider, starving_settings()).await;
    let witness = Witness::new(How::Take);
    ends.local.set_client(Some(witness.clone()));
    let begun: Vec<_> = (0..40)
        .map(|number| ends.here.send(pattern(10_000, number), PLAIN))
        .collect();
    let soon = SendOptions {
        deadline: Some(std::time::Instant::now() + Duration::from_millis(50)),
        ..SendOptions::default()
    };
    // It has not begun to leave: it is withdrawn, and nothing else happens.
    let late = within(ends.here.send_with("late", PLAIN, soon)).await;
    assert_eq!((late.status, late.information), (Status::IO_TIMEOUT, 0));
    assert_eq!(late.buffer.into_bytes(), "late");
    assert_eq!(ends.here.state(), EndpointState::Connected);
    for number in 0..40 {
        assert_eq!(ends.arrived().await, pattern(10_000, number));
    }
    for sending in begun {
        assert_eq!(within(sending).await.status, Status::SUCCESS);
    }
    // One that is on its way cannot be taken back: the connection ends.
    let stuck = ends.here.send_with(pattern(1_000_000, 1), PLAIN, soon);
    let behind = ends.here.send("behind", PLAIN);
    assert_eq!(within(stuck).await.status, Status::IO_TIMEOUT);
    assert_eq!(within(behind).await.status, Status::CONNECTION_ABORTED);
    let told = witness.told(1).await;
    assert_eq!(told, ["disconnect: a TSDU was not sent in time"]);
    assert_eq!(
        within(ends.here.disconnected()).await,
        Some(Cause::SendTimeout)
    );
    assert_eq!(ends.transport.statistics().session_timeouts, 1);
}

//= TDI-SEND-34 test
async fn sends_that_are_cancelled(provider: Arc<dyn Provider>) {
    let ends = Ends::with(provider, starving_settings()).await;
    let stuck = ends.here.send(pattern(100_000, 1), PLAIN);
    let (first, second, third) = (
        ends.here.send("first", PLAIN),
        ends.here.send("second", PLAIN),
        ends.here.send("third", PLAIN),
    );
    assert!(second.cancel());
    assert!(!second.cancel(), "it is over");
    let done = within(second).await;
    assert_eq!((done.status, done.information), (Status::CANCELLED, 0));
    // What is on its way goes on.
    not_yet(ends.here.disconnected()).await;
    assert!(!stuck.cancel());
    assert_eq!(ends.arrived().await.len(), 100_000);
    assert_eq!(within(stuck).await.status, Status::SUCCESS);
    assert_eq!(ends.arrived().await, "first");
    assert_eq!(ends.arrived().await, "third");
    for sending in [first, third] {
        assert_eq!(within(sending).await.status, Status::SUCCESS);
    }
    // Receives too.
    let (first, second) = (
        ends.there.receive(BytesMut::zeroed(5), no_flags()),
        ends.there.receive(BytesMut::zeroed(5), no_flags()),
    );
    assert!(first.cancel());
    assert_eq!(within(first).await.status, Status::CANCELLED);
    drop(ends.here.send("hello", PLAIN));
    assert_eq!(&within(second).await.into_data().unwrap()[..], b"hello");
}

//= TDI-CLOSE-01 test
async fn dropping_the_last_handle_cancels_everything(provider: Arc<dyn Provider>) {
    let ends = Ends::with(provider, starving_settings()).await;
    let witness = Witness::new(How::Take);
    ends.local.set_client(Some(witness.clone()));
    let sendings: Vec<_> = (0..40)
        .map(|number| ends.here.send(pattern(10_000, number), PLAIN))
        .collect();
    let receiving = ends.here.receive(BytesMut::zeroed(9), no_flags());
    let Ends {
        transport,
        here,
        there,
        local,
        remote,
    } = ends;
    let other = here.clone();
    drop(here);
    assert_eq!(other.state(), EndpointState::Connected);
    drop(other);
    // It has happened when the drop returns.
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut receiving = std::pin::pin!(receiving);
    let std::task::Poll::Ready(done) = receiving.as_mut().poll(&mut context) else {
        panic!("it is pending");
    };
    assert_eq!(done.status, Status::CANCELLED);
    for sending in sendings {
        let status = within(sending).await.status;
        assert!(
            [Status::CANCELLED, Status::SUCCESS].contains(&status),
            "{status}"
        );
    }
    assert_eq!(transport.statistics().open_connections, 1);
    within(there.disconnected()).await.unwrap();
    // Pending connects and listens.
    let connecting = transport.open_endpoint(());
    connecting.associate(&local).unwrap();
    let offer = there.listen_and_query(None);
    let connect = connecting.connect(remote.local_address(), None);
    within(offer).await.unwrap();
    drop(connecting);
    assert_eq!(within(connect).await, Err(Status::CANCELLED));
    drop(there);
    let listening = transport.open_endpoint(());
    listening.associate(&remote).unwrap();
    let listen = listening.listen(None);
    drop(listening);
    assert_eq!(within(listen).await, Err(Status::CANCELLED));
    assert_eq!(transport.statistics().open_connections, 0);
    assert_eq!(witness.lines(), [""; 0]);
}

/// Ends the connection with the first bytes.
struct Hasty(DisconnectFlags);

impl smbdirect::tdi::Client for Hasty {
    fn receive(
        &self,
        endpoint: &smbdirect::tdi::Endpoint,
        indication: smbdirect::tdi::Indication,
    ) -> smbdirect::tdi::Answer {
        drop(endpoint.disconnect(self.0, None));
        smbdirect::tdi::Answer::Taken(indication.data.len())
    }
}

//= TDI-DISC-08 test
async fn a_disconnect_from_a_handler(provider: Arc<dyn Provider>) {
    let ends = Ends::apart(provider, TransportSettings::default()).await;
    for flags in [ABORT, RELEASE] {
        ends.connect().await;
        ends.remote.set_client(Some(Arc::new(Hasty(flags))));
        drop(ends.here.send("go", PLAIN));
        assert!(within(ends.here.disconnected()).await.is_some());
        within(async {
            while ends.there.state() != EndpointState::Associated {
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(
            within(ends.there.disconnected()).await,
            Some(Cause::LocalDisconnect)
        );
    }
}
