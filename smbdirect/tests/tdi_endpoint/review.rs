//! What goes wrong where nobody looks: wakers that are lost, values of the client's that act as
//! they are dropped, ends that meet beginnings.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use futures_core::Stream;
use futures_sink::Sink;
use smbdirect::{
    rdma::{
        provider::{BoxFuture, ConnectRequest, Connected, Incoming, Listener, Provider},
        work::{Limits, ProviderError, ProviderErrorKind},
    },
    tdi::{
        Address, Answer, Cause, Client, ConnectAnswer, DisconnectFlags, Endpoint, EndpointState,
        Event, Inbound, Indication, Offer, ReceiveEvent, ReceiveFlags, ReceiveSettings, SendFlags,
        Share, Status, TransportSettings,
    },
};

use tokio::{runtime::Builder, sync::Notify};

use crate::ends::{
    Ends, How, Witness, credits, iwarp, loopback, not_yet, pattern, settings, starving_settings,
    within,
};

const PLAIN: SendFlags = SendFlags::empty();

/// Runs a test that may hang with a lock held, so that it fails and does not hang.
fn in_time(test: impl Future<Output = ()> + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test);
        done.send(()).unwrap();
    });
    let over = is_done.recv_timeout(Duration::from_secs(30));
    over.expect("it neither hangs nor fails");
}

async fn turns(count: usize) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_stream_that_is_refused_takes_no_waker_away() {
    let ends = Ends::new(loopback()).await;
    let mut tsdus = ends.there.tsdus().unwrap();
    let waiting =
        tokio::spawn(
            async move { poll_fn(|context| Pin::new(&mut tsdus).poll_next(context)).await },
        );
    turns(20).await;
    let second = ends.there.tsdus().unwrap_err();
    assert_eq!(second, Status::INVALID_DEVICE_STATE);
    turns(20).await;
    drop(ends.here.send("for the first", PLAIN));
    let tsdu = within(waiting).await.unwrap().unwrap();
    assert_eq!(tsdu.into_bytes(), "for the first");
}

#[tokio::test]
async fn a_stream_gets_the_end_of_what_was_refused() {
    let mut small = settings(credits(8));
    small.receive.receive_buffer = 1000;
    small.receive.lendable = 0;
    let ends = Ends::with(loopback(), small).await;
    // Nobody has a handler: the beginning of it is held, and is more than is to be held.
    let data = pattern(500_000, 1);
    drop(ends.here.send(data.clone(), PLAIN));
    turns(200).await;
    let mut tsdus = ends.there.tsdus().unwrap();
    let tsdu = within(poll_fn(|context| Pin::new(&mut tsdus).poll_next(context)));
    assert_eq!(tsdu.await.unwrap().into_bytes(), data);
}

/// Fails where nobody is to be told of it.
struct Undecided;

impl Client for Undecided {
    fn takes_chained(&self) -> bool {
        panic!("it does not know")
    }
}

//= TDI-EVENT-01 test
#[tokio::test]
async fn a_client_that_fails_to_say_what_it_takes_costs_its_connection() {
    let ends = Ends::new(loopback()).await;
    ends.remote.set_client(Some(Arc::new(Undecided)));
    let receiving = ends
        .there
        .receive(BytesMut::zeroed(9), ReceiveFlags::empty());
    assert_eq!(
        within(ends.there.disconnected()).await,
        Some(Cause::HandlerPanicked)
    );
    assert_eq!(within(receiving).await.status, Status::CONNECTION_ABORTED);
    assert_eq!(ends.there.state(), EndpointState::Associated);
}

/// A buffer of the client's that sends another as it is given back.
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

async fn given_back(flag: &AtomicBool) {
    within(async {
        while !flag.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

//= TDI-SEND-24 test
#[test]
fn a_buffer_may_act_as_it_is_given_back() {
    in_time(async {
        let ends = Ends::new(loopback()).await;
        // Nobody waits for it; it was taken over into the send buffer; it was thrown away.
        let (buffer, back) = restless(&ends.here, 1000);
        drop(ends.here.send(buffer, PLAIN));
        given_back(&back).await;
        let (buffer, back) = restless(&ends.here, 1000);
        ends.here.try_send(buffer, PLAIN).unwrap();
        given_back(&back).await;
        let (buffer, back) = restless(&ends.here, 1000);
        ends.here.try_send(buffer, SendFlags::PARTIAL).unwrap();
        assert!(ends.here.discard_partial(PLAIN));
        given_back(&back).await;
        // It was refused.
        let (buffer, back) = restless(&ends.here, 1000);
        let flags = SendFlags::AND_DISCONNECT;
        assert_eq!(
            ends.here.try_send(buffer, flags),
            Err(Status::NOT_SUPPORTED)
        );
        given_back(&back).await;
        // Its connection ends.
        let (first, first_back) = restless(&ends.here, 1000);
        let (second, second_back) = restless(&ends.here, 1000);
        ends.here.try_send(first, SendFlags::PARTIAL).unwrap();
        drop(ends.here.send(second, PLAIN));
        within(ends.here.disconnect(DisconnectFlags::ABORT, None))
            .await
            .unwrap();
        given_back(&first_back).await;
        given_back(&second_back).await;
    });
}

//= TDI-CHN-06 test
#[tokio::test]
async fn what_was_not_accepted_in_a_chain_is_shown_to_who_takes_none() {
    let ends = Ends::new(loopback()).await;
    let first = Witness::chained(false);
    first.answer(How::Refuse);
    ends.remote.set_client(Some(first.clone()));
    drop(ends.here.send("one", PLAIN));
    drop(ends.here.send("two", PLAIN));
    assert_eq!(first.told(1).await, ["chained 3"]);
    let second = Witness::new(How::Take);
    ends.remote.set_client(Some(second.clone()));
    second.has_taken(6).await;
    assert_eq!(second.lines(), ["receive 3.", "receive 3."]);
}

#[tokio::test]
async fn events_do_not_join_tsdus_of_two_connections() {
    let mut small = settings(credits(8));
    small.receive.lendable = 0;
    small.receive.maximum_lookahead = 1000;
    let ends = Ends::with(loopback(), small).await;
    let mut events = ends.remote.events(1);
    // With one waiting the end of the next has no room, so its beginning is all there is.
    drop(ends.here.send("waits", PLAIN));
    drop(ends.here.send(pattern(3000, 1), PLAIN));
    turns(200).await;
    within(ends.there.disconnect(DisconnectFlags::ABORT, None))
        .await
        .unwrap();
    within(ends.here.disconnected()).await;
    ends.connect().await;
    let receiving = ends
        .there
        .receive(BytesMut::zeroed(2000), ReceiveFlags::empty());
    let data = pattern(5000, 2);
    drop(ends.here.send(data.clone(), PLAIN));
    let beginning = within(receiving).await;
    assert_eq!(beginning.status, Status::BUFFER_OVERFLOW);
    let mut got = Vec::new();
    while got.len() < 2 {
        let next = poll_fn(|context| Pin::new(&mut events).poll_next(context));
        if let Event::Tsdu { tsdu, .. } = within(next).await.unwrap() {
            got.push(tsdu.into_bytes());
        }
    }
    assert_eq!(got[0], "waits");
    assert_eq!(got[1], data.slice(2000..));
}

//= TDI-DISC-08 test
#[tokio::test]
async fn nobody_is_told_of_room_on_a_connection_that_was_aborted() {
    let mut small = starving_settings();
    small.send.max_tsdu = 200_000;
    small.send.high_water = 400_000;
    small.send.low_water = 100_000;
    let ends = Ends::with(loopback(), small).await;
    let witness = Witness::new(How::Take);
    ends.local.set_client(Some(witness.clone()));
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
    assert_eq!(witness.lines(), [""; 0]);
}

#[tokio::test]
async fn a_sink_can_be_closed_again() {
    let ends = Ends::new(loopback()).await;
    let mut sink = ends.here.sink(PLAIN, 1000).unwrap();
    let half = ends.here.send("half", SendFlags::PARTIAL).await;
    half.result().unwrap();
    let close = poll_fn(|context| Sink::<Bytes>::poll_close(Pin::new(&mut sink), context));
    assert_eq!(within(close).await, Err(Status::INVALID_PARAMETER));
    drop(ends.here.send("and half", PLAIN));
    for _ in 0..2 {
        let close = poll_fn(|context| Sink::<Bytes>::poll_close(Pin::new(&mut sink), context));
        assert_eq!(within(close).await, Ok(()));
    }
    assert_eq!(ends.arrived().await, "halfand half");
}

/// A provider whose listeners fail when they are told to.
#[derive(Debug)]
struct Failing {
    below: Arc<dyn Provider>,
    failure: Arc<Notify>,
}

#[derive(Debug)]
struct FailingListener {
    below: Box<dyn Listener>,
    failure: Arc<Notify>,
}

impl Provider for Failing {
    fn name(&self) -> &'static str {
        self.below.name()
    }

    fn default_port(&self) -> u16 {
        self.below.default_port()
    }

    fn limits(&self) -> Limits {
        self.below.limits()
    }

    fn connect(&self, request: ConnectRequest) -> BoxFuture<'_, Result<Connected, ProviderError>> {
        self.below.connect(request)
    }

    fn listen(
        &self,
        address: std::net::SocketAddr,
    ) -> BoxFuture<'_, Result<Box<dyn Listener>, ProviderError>> {
        Box::pin(async move {
            let below = self.below.listen(address).await?;
            let failure = self.failure.clone();
            Ok(Box::new(FailingListener { below, failure }) as Box<dyn Listener>)
        })
    }
}

impl Listener for FailingListener {
    fn local_address(&self) -> std::net::SocketAddr {
        self.below.local_address()
    }

    fn accept(&mut self) -> BoxFuture<'_, Result<Incoming, ProviderError>> {
        Box::pin(async move {
            tokio::select! {
                incoming = self.below.accept() => incoming,
                () = self.failure.notified() => {
                    Err(ProviderError::new(ProviderErrorKind::Local, "as it was told"))
                }
            }
        })
    }
}

#[tokio::test]
async fn listens_end_with_their_listener() {
    let failure = Arc::new(Notify::new());
    let provider = Failing {
        below: loopback(),
        failure: failure.clone(),
    };
    let ends = Ends::apart(Arc::new(provider), TransportSettings::default()).await;
    let witness = Witness::new(How::Take);
    ends.remote.set_client(Some(witness.clone()));
    ends.connect().await;
    let spare = ends.transport.open_endpoint(());
    spare.associate(&ends.remote).unwrap();
    let listen = spare.listen(None);
    failure.notify_one();
    assert_eq!(within(listen).await, Err(Status::INSUFFICIENT_RESOURCES));
    assert_eq!(
        witness.told(1).await,
        ["error STATUS_INSUFFICIENT_RESOURCES"]
    );
    assert_eq!(spare.state(), EndpointState::Associated);
    // Nor can another ever be served.
    let late = within(spare.listen(None)).await;
    assert_eq!(late, Err(Status::INVALID_ADDRESS));
    // What there was goes on, and the address can be opened anew.
    drop(ends.here.send("goes on", PLAIN));
    witness.has_taken(7).await;
    let address = ends.remote.local_address();
    let again = ends.transport.open_address::<()>(address, Share::Exclusive);
    within(again).await.unwrap();
}

#[tokio::test]
async fn offers_that_were_decided_on_leave_nothing_behind() {
    let patient = TransportSettings {
        offer_timeout: Duration::from_secs(3600),
        ..TransportSettings::default()
    };
    let ends = Ends::apart(loopback(), patient).await;
    let metrics = tokio::runtime::Handle::current().metrics();
    let before = metrics.num_alive_tasks();
    for _ in 0..20 {
        let listen = ends.there.listen_and_query(None);
        let connect = ends.here.connect(ends.remote.local_address(), None);
        within(listen).await.unwrap();
        within(ends.there.disconnect(DisconnectFlags::ABORT, None))
            .await
            .unwrap();
        let connect = within(connect).await;
        assert_eq!(connect, Err(Status::REMOTE_NOT_LISTENING));
    }
    turns(50).await;
    assert!(metrics.num_alive_tasks() <= before + 1);
}

//= TDI-QUERY-02 test
#[tokio::test]
async fn an_offer_that_the_handler_refuses_counts_as_turned_away() {
    let ends = Ends::apart(loopback(), TransportSettings::default()).await;
    let address = ends.remote.local_address();
    // Nobody is there,
    let connect = within(ends.here.connect(address, None)).await;
    assert_eq!(connect, Err(Status::REMOTE_NOT_LISTENING));
    let before = ends.transport.statistics();
    // and somebody is, and says no.
    ends.remote.set_client(Some(Witness::new(How::Take)));
    let connect = within(ends.here.connect(address, None)).await;
    assert_eq!(connect, Err(Status::REMOTE_NOT_LISTENING));
    let after = ends.transport.statistics();
    assert_eq!(
        after.cancelled_connections,
        before.cancelled_connections + 1
    );
    // The one is the connect's own.
    assert_eq!(after.no_listen_failures, before.no_listen_failures + 1);
}

#[test]
fn a_tsdu_in_tiny_segments_costs_what_it_has() {
    let mut inbound = Inbound::new(ReceiveSettings {
        lendable: 1 << 20,
        ..ReceiveSettings::default()
    })
    .unwrap();
    let data = pattern(100_000, 1);
    for at in 0..data.len() {
        inbound.handle_segment(data.slice(at..=at), data.len() - at - 1, None);
    }
    let Some(ReceiveEvent::Chained(mut tsdu)) = inbound.poll_event() else {
        panic!("it is lent");
    };
    let (mut pieces, mut got) = (0, Vec::new());
    while tsdu.has_remaining() {
        let piece = tsdu.chunk();
        got.extend_from_slice(piece);
        let length = piece.len();
        tsdu.advance(length);
        pieces += 1;
    }
    assert_eq!(got, data);
    assert!(pieces < 1000, "{pieces} pieces");
}

/// A client that goes on asking, and never takes.
struct Stubborn;

impl Client for Stubborn {
    fn receive(&self, endpoint: &Endpoint, _: Indication) -> Answer {
        endpoint.resume().unwrap();
        Answer::NotAccepted(0)
    }
}

#[test]
fn a_handler_that_goes_on_asking_lets_others_live() {
    in_time(async {
        let ends = Ends::new(loopback()).await;
        ends.remote.set_client(Some(Arc::new(Stubborn)));
        drop(ends.here.send("nobody takes this", PLAIN));
        within(ends.here.disconnect(DisconnectFlags::RELEASE, None))
            .await
            .unwrap();
        turns(200).await;
        // It still can be told to stop.
        ends.remote.set_client(None);
        assert_eq!(
            within(ends.there.disconnected()).await,
            Some(Cause::RemoteDisconnect)
        );
    });
}

/// Asks, as it is woken, how the connection has ended.
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

/// Whoever sees that it is over is told how, or has to wait a moment; never that it was nothing.
#[tokio::test]
async fn an_end_that_is_seen_is_known() {
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

/// A client that has the last handles, and drops them at the first event.
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
fn a_handler_may_drop_the_last_handles() {
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
            let address = remote.local_address();
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
            given_back(&leaver.has_left).await;
            within(here.disconnected()).await.unwrap();
            if let Some(receiving) = receiving {
                assert!(within(receiving).await.status.is_error());
            }
            drop((here, other));
            assert_eq!(transport.statistics().open_connections, 0);
            // The client has gone with the handles.
            within(async {
                while Arc::strong_count(&leaver) > 1 {
                    tokio::task::yield_now().await;
                }
            })
            .await;
        }
    });
}

/// One of the many who use two endpoints at once.
async fn meddle(ends: Arc<Ends>, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut requests = Vec::new();
    for _ in 0..400 {
        let is_here = random.bool();
        let (endpoint, address) = match is_here {
            true => (&ends.here, &ends.local),
            false => (&ends.there, &ends.remote),
        };
        match random.u8(..20) {
            0..=2 if is_here => requests.push(tokio::spawn({
                let connect = endpoint.connect(ends.remote.local_address(), None);
                async move { within(connect).await.is_ok() }
            })),
            0..=2 => {
                let listen = match random.bool() {
                    true => endpoint.listen(None),
                    false => endpoint.listen_and_query(None),
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
                let witness: Arc<dyn Client> = match random.bool() {
                    true => Witness::new(How::TakeSome(100)),
                    false => Witness::chained(false),
                };
                address.set_client(random.bool().then_some(witness));
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
    // What is pending ends with the connections, or with what is not there any more.
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
fn many_threads_do_what_they_like() {
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
            // Each connection that was made has ended once. What was not made can have failed with
            // the link, too.
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

/// A client whose first handler takes as long as the test wants.
struct Slow {
    is_at_work: Notify,
    go_on: Mutex<mpsc::Receiver<()>>,
    told: Mutex<Vec<Bytes>>,
}

impl Client for Slow {
    fn receive(&self, _: &Endpoint, indication: Indication) -> Answer {
        self.told.lock().unwrap().push(indication.data.clone());
        self.is_at_work.notify_one();
        // There is nothing more to wait for after the first.
        let _ = self.go_on.lock().unwrap().recv();
        Answer::Taken(indication.data.len())
    }

    fn disconnect(&self, _: &Endpoint, _: DisconnectFlags, _: &Cause) {
        self.told.lock().unwrap().push("disconnect".into());
    }
}

/// The task of the old connection comes to its end when the endpoint has another.
//= TDI-CONN-10 test
//= TDI-EVENT-01 test
#[test]
fn an_old_connection_that_ends_late_leaves_the_new_one_alone() {
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
        within(ends.there.disconnect(DisconnectFlags::ABORT, None))
            .await
            .unwrap();
        within(ends.here.disconnected()).await.unwrap();
        ends.connect().await;
        drop(ends.here.send("new", PLAIN));
        not_yet(slow.is_at_work.notified()).await;
        let before = ends.transport.statistics();
        drop(go_on);
        within(slow.is_at_work.notified()).await;
        not_yet(ends.there.disconnected()).await;
        assert_eq!(ends.there.state(), EndpointState::Connected);
        assert_eq!(*slow.told.lock().unwrap(), ["old", "new"]);
        let after = ends.transport.statistics();
        assert_eq!(after.local_disconnects, before.local_disconnects);
        assert_eq!(after.remote_disconnects, before.remote_disconnects);
    });
}
