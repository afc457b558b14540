//! Tests of how connections end: by an abort, a release, the peer or a deadline; and of what is
//! allowed afterwards.

use std::{
    pin::{Pin, pin},
    sync::{Arc, Mutex},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use bytes::BytesMut;
use smbdirect::rdma::provider::Provider;
use smbdirect_tdi::{
    Answer, Cause, Client, DisconnectFlags, Endpoint, EndpointState, Indication, ReceiveFlags,
    SendFlags, SendOptions, Status, TransportSettings,
};

use super::ends::{
    Ends, How, Recorder, iwarp, loopback, not_yet, over_providers, pattern, receive, small_buffer,
    starving_settings, turns, within,
};

const PLAIN: SendFlags = SendFlags::empty();
const ABORT: DisconnectFlags = DisconnectFlags::ABORT;
const RELEASE: DisconnectFlags = DisconnectFlags::RELEASE;

over_providers! {
    abort_completes_pending_requests;
    release_sends_everything_first;
    release_is_refused_while_a_tsdu_is_open;
    both_ends_can_release_at_the_same_time;
    release_becomes_an_abort_at_its_timeout;
    abort_cancels_release_listen_connect_and_accept;
    peer_learns_of_the_end_and_can_receive_held_data;
    sends_end_at_their_deadline;
    sends_and_receives_can_be_cancelled;
    dropping_the_last_handle_cancels_pending_requests;
    handler_can_disconnect;
}

/// Of the TSDUs that have not left, the connection has taken one and the session holds the rest. None of them
/// completes with SUCCESS.
//= TDI-SEND-26 test
#[tokio::test]
async fn sends_that_did_not_leave_fail_when_the_peer_aborts() {
    let mut settings = starving_settings();
    // A send completes when it was sent.
    settings.send.high_water = 0;
    settings.send.low_water = 0;
    let ends = Ends::with(iwarp(), settings).await;
    let sendings: Vec<_> = (0..4)
        .map(|number| ends.here.send(pattern(100_000, number), PLAIN))
        .collect();
    let here = ends.here.connection().unwrap();
    within(async {
        while here.stats().segments_sent == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(here.stats().messages_sent, 0, "four credits are not enough");
    within(ends.there.disconnect(ABORT, None)).await.unwrap();
    let cause = within(ends.here.disconnected()).await.unwrap();
    for sending in sendings {
        let done = within(sending).await;
        assert_eq!((done.status, done.information), (cause.status(), 0));
        assert!(!done.status.is_success(), "{cause}");
    }
}

fn no_flags() -> ReceiveFlags {
    ReceiveFlags::empty()
}

//= TDI-DISC-08 test
//= TDI-SEND-26 test
async fn abort_completes_pending_requests(provider: Arc<dyn Provider>) {
    let ends = Ends::with(provider, starving_settings()).await;
    let (near, far) = (Recorder::new(How::Take), Recorder::new(How::Take));
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
    // The peer learns of the end.
    within(ends.there.disconnected()).await.unwrap();
    ends.remote.set_client(Some(far));
    assert_eq!(
        near.lines(),
        [""; 0],
        "the end that disconnects gets no disconnect event"
    );
}

//= TDI-DISC-03 test
async fn release_sends_everything_first(provider: Arc<dyn Provider>) {
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
    // The endpoint can still receive.
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
async fn release_is_refused_while_a_tsdu_is_open(provider: Arc<dyn Provider>) {
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

/// Neither end can know that the other one releases the connection, too.
//= TDI-DISC-03 test
async fn both_ends_can_release_at_the_same_time(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider.clone()).await;
    for rounds in 0..30 {
        let first = ends.here.disconnect(RELEASE, None);
        for _ in 0..rounds {
            tokio::task::yield_now().await;
        }
        let second = within(ends.there.disconnect(RELEASE, None)).await;
        assert_eq!(within(first).await, Ok(()));
        // The connection may have ended before.
        let is_over = second == Err(Status::INVALID_CONNECTION);
        assert!(second.is_ok() || is_over, "{rounds}: {second:?}");
        ends.connect().await;
    }
    // What has not left when the peer releases the connection is lost.
    let ends = Ends::with(provider, starving_settings()).await;
    for number in 0..40 {
        drop(ends.here.send(pattern(10_000, number), PLAIN));
    }
    let releases = [&ends.here, &ends.there].map(|end| end.disconnect(RELEASE, None));
    let [here, there] = releases;
    assert_eq!(within(there).await, Ok(()));
    assert_eq!(within(here).await, Err(Status::REMOTE_DISCONNECT));
}

//= TDI-DISC-05 test
async fn release_becomes_an_abort_at_its_timeout(provider: Arc<dyn Provider>) {
    for is_idle in [false, true] {
        let ends = Ends::with(provider.clone(), starving_settings()).await;
        let stuck: Vec<_> = (0..40)
            .map(|number| ends.here.send(pattern(10_000, number), PLAIN))
            .collect();
        if is_idle {
            // Nothing else happens on the connection when it is released.
            not_yet(ends.here.disconnected()).await;
        }
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
}

//= TDI-DISC-02 test
async fn abort_cancels_release_listen_connect_and_accept(provider: Arc<dyn Provider>) {
    let ends = Ends::with(provider, starving_settings()).await;
    for number in 0..40 {
        drop(ends.here.send(pattern(10_000, number), PLAIN));
    }
    let release = ends.here.disconnect(RELEASE, None);
    not_yet(ends.here.disconnected()).await;
    within(ends.here.disconnect(ABORT, None)).await.unwrap();
    assert_eq!(within(release).await, Err(Status::CONNECTION_ABORTED));
    within(ends.there.disconnected()).await.unwrap();
    // An abort also cancels a listen, a connect that waits for acceptance, and an acceptance.
    let listen = ends.there.listen_and_query(None);
    within(ends.there.disconnect(ABORT, None)).await.unwrap();
    assert_eq!(within(listen).await, Err(Status::CANCELLED));
    let offer = ends.there.listen_and_query(None);
    let connect = ends.here.connect(ends.remote.local_addr(), None);
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
async fn peer_learns_of_the_end_and_can_receive_held_data(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider).await;
    let recorder = Recorder::new(How::Refuse);
    ends.remote.set_client(Some(recorder.clone()));
    for words in ["one", "two", "three"] {
        ends.here.send(words, PLAIN).await.result().unwrap();
    }
    within(ends.here.disconnect(RELEASE, None)).await.unwrap();
    let told = recorder.wait_for_lines(2).await;
    assert_eq!(told, ["receive 3.", "disconnect: the peer disconnected"]);
    assert_eq!(ends.there.state(), EndpointState::Associated);
    let late = within(ends.there.send("late", PLAIN)).await;
    assert_eq!(late.status, Status::INVALID_CONNECTION);
    for words in ["one", "two"] {
        assert_eq!(ends.arrived().await, words);
    }
    // The disconnect was the last event, and resuming brings no other.
    ends.there.resume().unwrap();
    ends.remote.set_client(Some(recorder.clone()));
    assert_eq!(ends.arrived().await, "three");
    let none = within(ends.there.receive(BytesMut::zeroed(9), no_flags())).await;
    assert_eq!(
        (none.status, none.information),
        (Status::INVALID_CONNECTION, 0)
    );
    assert_eq!(recorder.lines().len(), 2);
    // A pending receive completes with the cause.
    ends.connect().await;
    let receiving = ends.there.receive(BytesMut::zeroed(9), no_flags());
    within(ends.here.disconnect(RELEASE, None)).await.unwrap();
    assert_eq!(within(receiving).await.status, Status::REMOTE_DISCONNECT);
}

//= TDI-SEND-27 test
async fn sends_end_at_their_deadline(provider: Arc<dyn Provider>) {
    let ends = Ends::with(provider, starving_settings()).await;
    let recorder = Recorder::new(How::Take);
    ends.local.set_client(Some(recorder.clone()));
    let begun: Vec<_> = (0..40)
        .map(|number| ends.here.send(pattern(10_000, number), PLAIN))
        .collect();
    let soon = SendOptions {
        deadline: Some(std::time::Instant::now() + Duration::from_millis(50)),
        ..SendOptions::default()
    };
    // This send has not started to leave, so only it is withdrawn.
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
    // A send that has started to leave cannot be withdrawn, so the connection ends.
    let stuck = ends.here.send_with(pattern(1_000_000, 1), PLAIN, soon);
    let behind = ends.here.send("behind", PLAIN);
    assert_eq!(within(stuck).await.status, Status::IO_TIMEOUT);
    assert_eq!(within(behind).await.status, Status::CONNECTION_ABORTED);
    let told = recorder.wait_for_lines(1).await;
    assert_eq!(told, ["disconnect: a TSDU was not sent in time"]);
    assert_eq!(
        within(ends.here.disconnected()).await,
        Some(Cause::SendTimeout)
    );
    assert_eq!(ends.transport.statistics().session_timeouts, 1);
}

//= TDI-SEND-34 test
async fn sends_and_receives_can_be_cancelled(provider: Arc<dyn Provider>) {
    let ends = Ends::with(provider, starving_settings()).await;
    let stuck = ends.here.send(pattern(100_000, 1), PLAIN);
    let (first, second, third) = (
        ends.here.send("first", PLAIN),
        ends.here.send("second", PLAIN),
        ends.here.send("third", PLAIN),
    );
    assert!(second.cancel());
    assert!(!second.cancel(), "it has completed");
    let done = within(second).await;
    assert_eq!((done.status, done.information), (Status::CANCELLED, 0));
    // A send that has started to leave is not cancelled.
    not_yet(ends.here.disconnected()).await;
    assert!(!stuck.cancel());
    assert_eq!(ends.arrived().await.len(), 100_000);
    assert_eq!(within(stuck).await.status, Status::SUCCESS);
    assert_eq!(ends.arrived().await, "first");
    assert_eq!(ends.arrived().await, "third");
    for sending in [first, third] {
        assert_eq!(within(sending).await.status, Status::SUCCESS);
    }
    // Receives can be cancelled too.
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
async fn dropping_the_last_handle_cancels_pending_requests(provider: Arc<dyn Provider>) {
    let ends = Ends::with(provider, starving_settings()).await;
    let recorder = Recorder::new(How::Take);
    ends.local.set_client(Some(recorder.clone()));
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
    // The receive has completed when the drop returns.
    let mut context = Context::from_waker(Waker::noop());
    let mut receiving = pin!(receiving);
    let Poll::Ready(done) = receiving.as_mut().poll(&mut context) else {
        panic!("the receive is still pending");
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
    // Dropping also cancels pending connects and listens.
    let connecting = transport.open_endpoint(());
    connecting.associate(&local).unwrap();
    let offer = there.listen_and_query(None);
    let connect = connecting.connect(remote.local_addr(), None);
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
    assert_eq!(recorder.lines(), [""; 0]);
}

/// A client that disconnects in its receive handler.
struct Hasty(DisconnectFlags);

impl Client for Hasty {
    fn receive(&self, endpoint: &Endpoint, indication: Indication) -> Answer {
        drop(endpoint.disconnect(self.0, None));
        Answer::Taken(indication.data.len())
    }
}

//= TDI-DISC-08 test
async fn handler_can_disconnect(provider: Arc<dyn Provider>) {
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

//= TDI-DISC-08 test
#[tokio::test]
async fn no_send_possible_event_after_an_abort() {
    let ends = Ends::with(loopback(), small_buffer()).await;
    let recorder = Recorder::new(How::Take);
    ends.local.set_client(Some(recorder.clone()));
    let partial = SendFlags::PARTIAL;
    let expedited = SendFlags::EXPEDITED | SendFlags::PARTIAL;
    for (length, flags) in [(50_000, PLAIN), (200_000, partial), (150_000, expedited)] {
        assert_eq!(ends.here.try_send(pattern(length, 1), flags), Ok(length));
    }
    assert_eq!(
        ends.here.try_send("full", expedited),
        Err(Status::DEVICE_NOT_READY)
    );
    assert!(ends.here.discard_partial(PLAIN));
    within(ends.here.disconnect(DisconnectFlags::ABORT, None))
        .await
        .unwrap();
    turns(50).await;
    assert_eq!(recorder.lines(), [""; 0]);
}

/// A waker that polls for the cause of the end while it is woken.
struct Curious {
    endpoint: Endpoint,
    heard: Mutex<Vec<Poll<Option<Cause>>>>,
}

impl Wake for Curious {
    fn wake(self: Arc<Self>) {
        let ended = pin!(self.endpoint.disconnected());
        let heard = ended.poll(&mut Context::from_waker(Waker::noop()));
        self.heard.lock().unwrap().push(heard);
    }
}

/// A task that sees the end of the connection gets its cause, possibly after waiting, but never
/// `None`.
#[tokio::test]
async fn cause_is_known_once_the_end_is_visible() {
    let ends = Ends::new(loopback()).await;
    let curious = Arc::new(Curious {
        endpoint: ends.here.clone(),
        heard: Mutex::default(),
    });
    let waker = Waker::from(curious.clone());
    let mut receiving = ends
        .here
        .receive(BytesMut::zeroed(9), ReceiveFlags::empty());
    let first = Pin::new(&mut receiving).poll(&mut Context::from_waker(&waker));
    assert!(first.is_pending());
    within(ends.here.disconnect(DisconnectFlags::ABORT, None))
        .await
        .unwrap();
    let heard = std::mem::take(&mut *curious.heard.lock().unwrap());
    assert_eq!(heard.len(), 1);
    assert!(!matches!(heard[0], Poll::Ready(None)), "{heard:?}");
    assert_eq!(
        within(ends.here.disconnected()).await,
        Some(Cause::LocalDisconnect)
    );
}

//= TDI-QUERY-02 test
#[tokio::test]
async fn figures_of_each_connection_are_counted_once() {
    let ends = Ends::new(loopback()).await;
    let (here, there) = (ends.local.open_endpoint(()), ends.remote.open_endpoint(()));
    let listen = there.listen(None);
    within(here.connect(ends.remote.local_addr(), None))
        .await
        .unwrap();
    within(listen).await.unwrap();
    let sent = || ends.transport.statistics().data_frames_sent;
    for endpoint in [&ends.here, &here] {
        endpoint.send("x", PLAIN).await.result().unwrap();
    }
    assert_eq!(sent(), 2);
    within(ends.here.disconnect(ABORT, None)).await.unwrap();
    within(ends.there.disconnected()).await.unwrap();
    assert_eq!(sent(), 2, "a connection has ended");
    here.send("x", PLAIN).await.result().unwrap();
    assert_eq!(sent(), 3, "the other one continues");
}
