//! Tests of addresses, associations, connects, listens and offers.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use smbdirect::{Connection, Iwarp, IwarpConfig, rdma::provider::Provider};
use smbdirect_tdi::{
    Address, ConnectAnswer, DisconnectFlags, Endpoint, EndpointState, SendFlags, Share, Status,
    TransportSettings,
};
use tokio::{io::AsyncReadExt, net::TcpListener};

use super::ends::{
    Ends, How, Recorder, any_port, iwarp, loopback, over_providers, pattern, receive, settings,
    transport, turns, within,
};

over_providers! {
    listen_accepts_a_peer;
    offer_can_be_accepted_or_rejected;
    undecided_offer_times_out;
    listens_accept_peers_in_order_and_by_remote_address;
    connect_handler_is_called_when_no_listen_accepts;
    failing_connect_handler_refuses_the_peer;
    requests_in_a_wrong_state_return_its_status;
    address_sharing_follows_both_openers;
    closing_an_address_keeps_its_connections;
    connect_fails_without_a_listener;
    endpoints_and_addresses_can_be_reused;
    pending_attempts_can_be_cancelled;
}

const ABORT: DisconnectFlags = DisconnectFlags::ABORT;
const RELEASE: DisconnectFlags = DisconnectFlags::RELEASE;

//= TDI-CONN-01 test
async fn listen_accepts_a_peer(provider: Arc<dyn Provider>) {
    let ends = Ends::apart(provider, TransportSettings::default()).await;
    let listen = ends.there.listen(None);
    assert_eq!(ends.there.state(), EndpointState::Listening);
    let connect = ends.here.connect(ends.remote.local_addr(), None);
    assert_eq!(ends.here.state(), EndpointState::Connecting);
    within(connect).await.unwrap();
    within(listen).await.unwrap();
    for endpoint in [&ends.here, &ends.there] {
        assert_eq!(endpoint.state(), EndpointState::Connected);
        assert!(endpoint.peer_addr().unwrap().ip().is_loopback());
    }
    let done = within(ends.here.send("hello", SendFlags::empty())).await;
    assert_eq!((done.status, done.information), (Status::SUCCESS, 5));
    assert_eq!(ends.arrived().await, "hello");
    // The listen has accepted the peer, so no offer is left.
    assert_eq!(
        within(ends.there.accept()).await,
        Err(Status::CONNECTION_ACTIVE)
    );
}

//= TDI-CONN-02 test
//= TDI-DISC-07 test
async fn offer_can_be_accepted_or_rejected(provider: Arc<dyn Provider>) {
    let ends = Ends::apart(provider, TransportSettings::default()).await;
    for reject_by in [ABORT, RELEASE, DisconnectFlags::empty()] {
        let offer = ends.there.listen_and_query(None);
        let connect = ends.here.connect(ends.remote.local_addr(), None);
        within(offer).await.unwrap();
        assert_eq!(ends.there.state(), EndpointState::Offered);
        assert!(ends.there.peer_addr().unwrap().ip().is_loopback());
        within(ends.there.disconnect(reject_by, None))
            .await
            .unwrap();
        assert_eq!(ends.there.state(), EndpointState::Associated);
        assert_eq!(within(connect).await, Err(Status::REMOTE_NOT_LISTENING));
        assert_eq!(ends.here.state(), EndpointState::Associated);
    }
    assert_eq!(ends.transport.statistics().cancelled_connections, 3);
    let offer = ends.there.listen_and_query(None);
    let connect = ends.here.connect(ends.remote.local_addr(), None);
    within(offer).await.unwrap();
    let accept = ends.there.accept();
    assert_eq!(ends.there.state(), EndpointState::Accepting);
    within(accept).await.unwrap();
    within(connect).await.unwrap();
    ends.there.write(b"welcome").await.result().unwrap();
    assert_eq!(receive(&ends.here, 100).await, "welcome");
}

//= TDI-CONN-03 test
async fn undecided_offer_times_out(provider: Arc<dyn Provider>) {
    let settings = TransportSettings {
        offer_timeout: Duration::from_millis(50),
        ..TransportSettings::default()
    };
    let ends = Ends::apart(provider, settings).await;
    let recorder = Recorder::new(How::Take);
    ends.remote.set_client(Some(recorder.clone()));
    let offer = ends.there.listen_and_query(None);
    let connect = ends.here.connect(ends.remote.local_addr(), None);
    within(offer).await.unwrap();
    let told = recorder.wait_for_lines(1).await;
    assert_eq!(told, ["disconnect: the offer was not decided on in time"]);
    assert_eq!(within(connect).await, Err(Status::REMOTE_NOT_LISTENING));
    assert_eq!(
        within(ends.there.accept()).await,
        Err(Status::INVALID_CONNECTION)
    );
    assert_eq!(ends.transport.statistics().session_timeouts, 1);
    // The endpoint can listen again.
    ends.connect().await;
}

/// Opens another endpoint at the address of `there`.
fn neighbour(ends: &Ends) -> Endpoint {
    let endpoint = ends.transport.open_endpoint(());
    endpoint.associate(&ends.remote).unwrap();
    endpoint
}

/// Opens another endpoint at the address of `here`.
fn another(ends: &Ends) -> Endpoint {
    let endpoint = ends.transport.open_endpoint(());
    endpoint.associate(&ends.local).unwrap();
    endpoint
}

//= TDI-CONN-04 test
//= TDI-CONN-05 test
async fn listens_accept_peers_in_order_and_by_remote_address(provider: Arc<dyn Provider>) {
    let ends = Ends::apart(provider, TransportSettings::default()).await;
    let address = ends.remote.local_addr();
    let (strangers, first, second) = (neighbour(&ends), neighbour(&ends), neighbour(&ends));
    let for_strangers = strangers.listen(Some("192.0.2.1".parse().unwrap()));
    let listens = [
        first.listen(Some("127.0.0.1".parse().unwrap())),
        second.listen(None),
    ];
    let connecting = [another(&ends), another(&ends)];
    for (endpoint, listen) in connecting.iter().zip(listens) {
        within(endpoint.connect(address, None)).await.unwrap();
        within(listen).await.unwrap();
    }
    for (endpoint, accepted, words) in [
        (&connecting[0], &first, "one"),
        (&connecting[1], &second, "two"),
    ] {
        endpoint
            .send(words, SendFlags::empty())
            .await
            .result()
            .unwrap();
        assert_eq!(receive(accepted, 10).await, words);
    }
    assert_eq!(strangers.state(), EndpointState::Listening);
    // The only listen that is left does not accept this peer.
    let third = another(&ends);
    let connect = third.connect(address, None);
    assert_eq!(within(connect).await, Err(Status::REMOTE_NOT_LISTENING));
    assert_eq!(ends.transport.statistics().no_listen_failures, 2);
    within(strangers.disconnect(ABORT, None)).await.unwrap();
    assert_eq!(within(for_strangers).await, Err(Status::CANCELLED));
}

//= TDI-CONN-06 test
async fn connect_handler_is_called_when_no_listen_accepts(provider: Arc<dyn Provider>) {
    let ends = Ends::apart(provider, TransportSettings::default()).await;
    let address = ends.remote.local_addr();
    let recorder = Recorder::new(How::Take);
    ends.remote.set_client(Some(recorder.clone()));
    let spare = neighbour(&ends);
    *recorder.accepting.lock().unwrap() = Some(ConnectAnswer::Accept(spare.clone()));
    // A pending listen takes precedence over the handler.
    ends.connect().await;
    assert_eq!(recorder.lines(), [""; 0]);
    // A listen that does not accept this peer does not.
    let strangers = neighbour(&ends);
    let for_strangers = strangers.listen(Some("192.0.2.1".parse().unwrap()));
    let second = another(&ends);
    within(second.connect(address, None)).await.unwrap();
    assert_eq!(
        recorder.wait_for_lines(2).await,
        ["connect", "accepted Ok(())"]
    );
    assert_eq!(spare.state(), EndpointState::Connected);
    within(second.send("hello", SendFlags::empty()))
        .await
        .result()
        .unwrap();
    recorder.has_taken(5).await;
    drop(for_strangers);
}

//= TDI-ADDR-02 test
//= TDI-EVENT-01 test
async fn failing_connect_handler_refuses_the_peer(provider: Arc<dyn Provider>) {
    let ends = Ends::apart(provider, TransportSettings::default()).await;
    let address = ends.remote.local_addr();
    let refused = || async {
        let connect = within(ends.here.connect(address, None)).await;
        assert_eq!(connect, Err(Status::REMOTE_NOT_LISTENING));
    };
    // The address has no handlers.
    refused().await;
    let recorder = Recorder::new(How::Take);
    ends.remote.set_client(Some(recorder.clone()));
    refused().await;
    *recorder.accepting.lock().unwrap() = Some(ConnectAnswer::NoResources);
    refused().await;
    // The handler returns an endpoint of another address.
    *recorder.accepting.lock().unwrap() = Some(ConnectAnswer::Accept(another(&ends)));
    refused().await;
    recorder.answer(How::Panic);
    refused().await;
    // The client learns that its endpoint could not accept the peer.
    let failed: Result<(), Status> = Err(Status::INVALID_CONNECTION);
    let failed = format!("accepted {failed:?}");
    assert_eq!(
        recorder.lines(),
        ["connect", "connect", "connect", &failed, "connect"]
    );
    // The listener still accepts peers.
    recorder.answer(How::Take);
    ends.connect().await;
    let statistics = ends.transport.statistics();
    assert_eq!(statistics.local_resource_failures, 1);
    assert_eq!(statistics.connections_after_no_retry, 2);
}

/// Only what is pending is cancelled, not an offer and not a connection.
async fn pending_attempts_can_be_cancelled(provider: Arc<dyn Provider>) {
    let ends = Ends::apart(provider, TransportSettings::default()).await;
    assert!(!ends.here.cancel());
    let listen = ends.there.listen(None);
    assert!(ends.there.cancel());
    assert_eq!(within(listen).await, Err(Status::CANCELLED));
    let offer = ends.there.listen_and_query(None);
    let connect = ends.here.connect(ends.remote.local_addr(), None);
    within(offer).await.unwrap();
    assert!(!ends.there.cancel());
    assert_eq!(ends.there.state(), EndpointState::Offered);
    assert!(ends.here.cancel());
    assert_eq!(within(connect).await, Err(Status::CANCELLED));
    assert_eq!(ends.here.state(), EndpointState::Associated);
    within(ends.there.disconnect(ABORT, None)).await.unwrap();
    ends.connect().await;
    assert!(!ends.here.cancel());
    assert_eq!(ends.here.state(), EndpointState::Connected);
}

//= TDI-SEND-01 test
//= TDI-RECV-03 test
//= TDI-CONN-07 test
//= TDI-CONN-09 test
//= TDI-DISC-01 test
//= TDI-DISC-06 test
async fn requests_in_a_wrong_state_return_its_status(provider: Arc<dyn Provider>) {
    let other = transport(&provider, TransportSettings::default());
    let ends = Ends::apart(provider, TransportSettings::default()).await;
    let address = ends.remote.local_addr();
    let idle = ends.transport.open_endpoint(());
    assert_eq!(idle.state(), EndpointState::Idle);
    assert_eq!(idle.disassociate(), Err(Status::ADDRESS_NOT_ASSOCIATED));
    for request in [
        idle.connect(address, None),
        idle.listen(None),
        idle.accept(),
    ] {
        assert_eq!(within(request).await, Err(Status::ADDRESS_NOT_ASSOCIATED));
    }
    let strange = other.open_any_address();
    assert_eq!(idle.associate(&strange), Err(Status::INVALID_PARAMETER));
    assert_eq!(
        ends.here.associate(&ends.local),
        Err(Status::ADDRESS_ALREADY_ASSOCIATED)
    );
    // An address that peers cannot connect to refuses listens.
    assert_eq!(
        within(ends.here.listen(None)).await,
        Err(Status::INVALID_ADDRESS)
    );
    for endpoint in [&idle, &ends.here] {
        let done = within(endpoint.send("lost", SendFlags::empty())).await;
        assert_eq!(
            (done.status, done.information),
            (Status::INVALID_CONNECTION, 0)
        );
        assert_eq!(done.buffer.into_bytes(), "lost");
        assert_eq!(
            endpoint.try_send("x", SendFlags::empty()),
            Err(Status::INVALID_CONNECTION)
        );
        assert_eq!(
            within(endpoint.send_possible()).await,
            Err(Status::INVALID_CONNECTION)
        );
        let receiving = endpoint.receive(pattern(9, 0).into(), Default::default());
        let done = within(receiving).await;
        assert_eq!(
            (done.status, done.buffer.len()),
            (Status::INVALID_CONNECTION, 9)
        );
        for flags in [ABORT, RELEASE, DisconnectFlags::empty()] {
            let disconnect = within(endpoint.disconnect(flags, None)).await;
            assert_eq!(disconnect, Err(Status::INVALID_CONNECTION));
        }
        assert_eq!(endpoint.force_send(), Err(Status::INVALID_CONNECTION));
        assert_eq!(endpoint.resume(), Err(Status::INVALID_CONNECTION));
        assert_eq!(endpoint.max_tsdu(), Err(Status::INVALID_CONNECTION));
        assert_eq!(endpoint.query_connection(), Err(Status::INVALID_CONNECTION));
        assert_eq!(endpoint.peer_addr(), Err(Status::INVALID_CONNECTION));
        assert!(matches!(
            endpoint.connection(),
            Err(Status::INVALID_CONNECTION)
        ));
        assert!(matches!(endpoint.tsdus(), Err(Status::INVALID_CONNECTION)));
        assert!(!endpoint.discard_partial(SendFlags::empty()));
        assert_eq!(endpoint.ideal_backlog(), 0);
        assert_eq!(within(endpoint.disconnected()).await, None);
    }
    let busy = |endpoint: &Endpoint| {
        let request = [endpoint.connect(address, None), endpoint.listen(None)];
        assert_eq!(endpoint.disassociate(), Err(Status::CONNECTION_ACTIVE));
        request
    };
    let listen = ends.there.listen(None);
    for request in busy(&ends.there) {
        assert_eq!(within(request).await, Err(Status::CONNECTION_ACTIVE));
    }
    assert_eq!(
        within(ends.there.accept()).await,
        Err(Status::INVALID_DEVICE_STATE)
    );
    let release = ends.there.disconnect(RELEASE, None);
    assert_eq!(within(release).await, Err(Status::INVALID_DEVICE_STATE));
    within(ends.here.connect(address, None)).await.unwrap();
    within(listen).await.unwrap();
    for request in busy(&ends.here) {
        assert_eq!(within(request).await, Err(Status::CONNECTION_ACTIVE));
    }
    for (flags, status) in [
        (ABORT | RELEASE, Status::INVALID_PARAMETER),
        (DisconnectFlags::all(), Status::INVALID_PARAMETER),
        (
            DisconnectFlags::from_bits_retain(0x100),
            Status::INVALID_PARAMETER,
        ),
        (DisconnectFlags::WAIT, Status::NOT_SUPPORTED),
    ] {
        assert_eq!(within(ends.here.disconnect(flags, None)).await, Err(status));
    }
    assert_eq!(
        ends.here.state(),
        EndpointState::Connected,
        "the connection is unchanged"
    );
}

//= TDI-ADDR-01 test
async fn address_sharing_follows_both_openers(provider: Arc<dyn Provider>) {
    let first = transport(&provider, TransportSettings::default());
    let open = |share| first.open_address::<()>(any_port(), share);
    let again = |address: &Address, share| first.open_address::<()>(address.local_addr(), share);
    let exclusive = open(Share::Exclusive).await.unwrap();
    for share in [Share::Exclusive, Share::Shared] {
        let refused = again(&exclusive, share).await;
        assert_eq!(refused.unwrap_err(), Status::SHARING_VIOLATION);
    }
    let shared = open(Share::Shared).await.unwrap();
    let refused = again(&shared, Share::Exclusive).await;
    assert_eq!(refused.unwrap_err(), Status::SHARING_VIOLATION);
    let both = again(&shared, Share::Shared).await.unwrap();
    assert_eq!(both.local_addr(), shared.local_addr());
    // A peer is offered to the sharing addresses in order.
    let (there, here) = (first.open_endpoint(()), first.open_endpoint(()));
    there.associate(&both).unwrap();
    here.associate(&first.open_any_address()).unwrap();
    // The address without a handle is closed, so connects from it fail.
    let connect = within(here.connect(shared.local_addr(), None)).await;
    assert_eq!(connect, Err(Status::ADDRESS_CLOSED));
    here.disassociate().unwrap();
    let local = first.open_any_address();
    here.associate(&local).unwrap();
    let recorder = Recorder::new(How::Take);
    shared.set_client(Some(recorder.clone()));
    let listen = there.listen(None);
    within(here.connect(shared.local_addr(), None))
        .await
        .unwrap();
    within(listen).await.unwrap();
    assert_eq!(
        recorder.wait_for_lines(1).await,
        ["connect"],
        "the first address was asked and refused"
    );
    // Another transport cannot open the address while it is open.
    let second = transport(&provider, TransportSettings::default());
    let refused = second.open_address::<()>(shared.local_addr(), Share::Shared);
    assert_eq!(refused.await.unwrap_err(), Status::ADDRESS_ALREADY_EXISTS);
    // It can after both have closed it. A connecting peer may hold the port for a moment.
    let address = shared.local_addr();
    drop((shared, both, here, there));
    within(async {
        while let Err(status) = second.open_address::<()>(address, Share::Shared).await {
            assert_eq!(status, Status::ADDRESS_ALREADY_EXISTS);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

//= TDI-CLOSE-02 test
async fn closing_an_address_keeps_its_connections(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider).await;
    let recorder = Recorder::new(How::Take);
    ends.remote.set_client(Some(recorder.clone()));
    let waiting = neighbour(&ends);
    let listen = waiting.listen(None);
    let offered = neighbour(&ends);
    let Ends {
        transport,
        here,
        there,
        local,
        remote,
    } = ends;
    let address = remote.local_addr();
    drop(remote);
    assert_eq!(within(listen).await, Err(Status::CANCELLED));
    assert_eq!(
        within(offered.listen(None)).await,
        Err(Status::ADDRESS_CLOSED)
    );
    here.send("still here", SendFlags::empty())
        .await
        .result()
        .unwrap();
    assert_eq!(receive(&there, 100).await, "still here");
    assert_eq!(recorder.lines(), [""; 0], "no handler is called");
    let peer = transport.open_endpoint(());
    peer.associate(&local).unwrap();
    let connect = within(peer.connect(address, None)).await;
    assert_eq!(connect, Err(Status::REMOTE_NOT_LISTENING));
}

//= TDI-CONN-00 test
async fn connect_fails_without_a_listener(provider: Arc<dyn Provider>) {
    let ends = Ends::apart(provider, TransportSettings::default()).await;
    // The first address is open without a listen, and the second is closed.
    let open = ends.remote.local_addr();
    let connect = within(ends.here.connect(open, None)).await;
    assert_eq!(connect, Err(Status::REMOTE_NOT_LISTENING));
    let closed = ends
        .transport
        .open_address::<()>(any_port(), Share::Exclusive);
    let closed = closed.await.unwrap().local_addr();
    let connect = within(ends.here.connect(closed, None)).await;
    assert_eq!(connect, Err(Status::REMOTE_NOT_LISTENING));
    let statistics = ends.transport.statistics();
    assert_eq!(statistics.no_listen_failures, 3);
    assert_eq!(statistics.connections_after_no_retry, 0);
}

//= TDI-CONN-10 test
async fn endpoints_and_addresses_can_be_reused(provider: Arc<dyn Provider>) {
    let ends = Ends::apart(provider, TransportSettings::default()).await;
    for round in 0..3_u8 {
        ends.connect().await;
        ends.here.write(&[round]).await.result().unwrap();
        assert_eq!(ends.arrived().await, vec![round]);
        within(ends.here.disconnect(RELEASE, None)).await.unwrap();
        within(ends.there.disconnected()).await.unwrap();
        assert_eq!(ends.there.state(), EndpointState::Associated);
        assert_eq!(ends.here.state(), EndpointState::Associated);
    }
    // The two ends swap their roles.
    ends.here.disassociate().unwrap();
    ends.there.disassociate().unwrap();
    ends.here.associate(&ends.remote).unwrap();
    ends.there.associate(&ends.local).unwrap();
    let listen = ends.here.listen(None);
    within(ends.there.connect(ends.remote.local_addr(), None))
        .await
        .unwrap();
    within(listen).await.unwrap();
    ends.there.write(b"turned").await.result().unwrap();
    assert_eq!(receive(&ends.here, 10).await, "turned");
}

/// A peer that connects and does not negotiate does not end the listen. A connect to a peer that
/// accepts and does not negotiate times out.
//= TDI-CONN-00 test
//= TDI-CONN-08 test
#[tokio::test]
async fn listen_continues_after_a_peer_that_does_not_negotiate() {
    let provider = iwarp();
    let silent = TcpListener::bind(any_port()).await.unwrap();
    let silent = silent
        .local_addr()
        .map(|address| (silent, address))
        .unwrap();
    let mut changed = smbdirect::Settings::default();
    changed.passive_negotiation_timeout = Duration::from_millis(100);
    let mut short = settings(changed);
    short.connect_timeout = Duration::from_millis(200);
    let ends = Ends::apart(provider.clone(), short).await;
    let connect = within(ends.here.connect(silent.1, None)).await;
    assert_eq!(connect, Err(Status::IO_TIMEOUT));
    let connect = ends.here.connect(silent.1, Some(Duration::from_millis(50)));
    assert_eq!(within(connect).await, Err(Status::IO_TIMEOUT));
    let nowhere: SocketAddr = "255.255.255.255:5445".parse().unwrap();
    let connect = within(ends.here.connect(nowhere, None)).await;
    assert!(
        matches!(
            connect,
            Err(Status::BAD_NETWORK_PATH | Status::INSUFFICIENT_RESOURCES)
        ),
        "{connect:?}"
    );
    // The peer speaks iWARP and not SMB Direct. The listen continues after it.
    let listen = ends.there.listen(None);
    let request = smbdirect::rdma::provider::ConnectRequest {
        address: ends.remote.local_addr(),
        private_data: Default::default(),
        receive: smbdirect::rdma::work::WorkRequest::Receive {
            id: smbdirect::rdma::work::WorkId(0),
            length: 512,
            count: 1,
        },
    };
    let mute = within(provider.connect(request)).await.unwrap();
    within(async {
        while ends.there.state() != EndpointState::Accepting {
            tokio::task::yield_now().await;
        }
        while ends.there.state() != EndpointState::Listening {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let config = smbdirect::Config::default();
    let peer = Connection::connect(&*provider, ends.remote.local_addr(), config);
    let peer = within(peer).await.unwrap();
    within(listen).await.unwrap();
    drop(peer.send("at last").unwrap());
    assert_eq!(ends.arrived().await, "at last");
    drop(mute);
}

#[tokio::test]
async fn decided_offers_leave_no_timer_tasks() {
    let patient = TransportSettings {
        offer_timeout: Duration::from_secs(3600),
        ..TransportSettings::default()
    };
    let ends = Ends::apart(loopback(), patient).await;
    let metrics = tokio::runtime::Handle::current().metrics();
    let before = metrics.num_alive_tasks();
    for _ in 0..20 {
        let listen = ends.there.listen_and_query(None);
        let connect = ends.here.connect(ends.remote.local_addr(), None);
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
async fn offer_refused_by_the_handler_is_counted() {
    let ends = Ends::apart(loopback(), TransportSettings::default()).await;
    let address = ends.remote.local_addr();
    // No listen is pending and there is no handler.
    let connect = within(ends.here.connect(address, None)).await;
    assert_eq!(connect, Err(Status::REMOTE_NOT_LISTENING));
    let before = ends.transport.statistics();
    // The handler refuses.
    ends.remote.set_client(Some(Recorder::new(How::Take)));
    let connect = within(ends.here.connect(address, None)).await;
    assert_eq!(connect, Err(Status::REMOTE_NOT_LISTENING));
    let after = ends.transport.statistics();
    assert_eq!(
        after.cancelled_connections,
        before.cancelled_connections + 1
    );
    // The connect itself is counted once.
    assert_eq!(after.no_listen_failures, before.no_listen_failures + 1);
}

//= TDI-CLOSE-02 test
#[tokio::test]
async fn closing_an_address_cancels_the_listens_of_its_own_endpoints() {
    let ends = Ends::apart(loopback(), TransportSettings::default()).await;
    let stays = neighbour(&ends);
    let other = ends.transport.open_address(any_port(), Share::Exclusive);
    let other = other.await.unwrap();
    ends.there.disassociate().unwrap();
    ends.there.associate(&other).unwrap();
    let cancelled = stays.listen(None);
    let listen = ends.there.listen(None);
    drop(ends.remote);
    assert_eq!(within(cancelled).await, Err(Status::CANCELLED));
    within(ends.here.connect(other.local_addr(), None))
        .await
        .unwrap();
    within(listen).await.unwrap();
}

//= TDI-DISC-02 test
#[tokio::test]
async fn aborted_connect_closes_its_link() {
    let mut iwarp = IwarpConfig::default();
    iwarp.connect_timeout = Duration::from_secs(3600);
    let patient = Iwarp::new(iwarp);
    let silent = TcpListener::bind(any_port()).await.unwrap();
    let ends = Ends::apart(Arc::new(patient), TransportSettings::default()).await;
    let address = silent.local_addr().unwrap();
    let connect = ends.here.connect(address, Some(Duration::from_secs(3600)));
    let (mut peer, _) = within(silent.accept()).await.unwrap();
    within(ends.here.disconnect(ABORT, None)).await.unwrap();
    assert_eq!(within(connect).await, Err(Status::CANCELLED));
    // The peer reads what was sent, and then the end of the link or its reset.
    let _ = within(peer.read_to_end(&mut Vec::new())).await;
}
