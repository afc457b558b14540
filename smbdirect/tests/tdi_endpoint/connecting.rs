//! Addresses, associations, and how connections come about.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use smbdirect::{
    Connection,
    rdma::provider::Provider,
    tdi::{
        Address, ConnectAnswer, DisconnectFlags, Endpoint, EndpointState, SendFlags, Share, Status,
        TransportSettings,
    },
};
use tokio::net::TcpListener;

use crate::ends::{
    Ends, How, Witness, any_port, iwarp, over_providers, pattern, receive, settings, transport,
    within,
};

over_providers! {
    a_listen_accepts_by_itself;
    an_offer_can_be_accepted_or_rejected;
    an_offer_that_nobody_decides_on_is_given_up;
    listens_are_served_in_order_and_by_their_filters;
    the_connect_handler_is_asked_where_no_listen_fits;
    the_connect_handler_can_fail;
    requests_at_the_wrong_time_say_why;
    addresses_are_shared_or_not;
    closing_an_address_leaves_its_connections;
    nobody_is_there;
    everything_can_be_used_again;
}

const ABORT: DisconnectFlags = DisconnectFlags::ABORT;
const RELEASE: DisconnectFlags = DisconnectFlags::RELEASE;

//= TDI-CONN-01 test
async fn a_listen_accepts_by_itself(provider: Arc<dyn Provider>) {
    let ends = Ends::apart(provider, TransportSettings::default()).await;
    let listen = ends.there.listen(None);
    assert_eq!(ends.there.state(), EndpointState::Listening);
    let connect = ends.here.connect(ends.remote.local_address(), None);
    assert_eq!(ends.here.state(), EndpointState::Connecting);
    within(connect).await.unwrap();
    within(listen).await.unwrap();
    for endpoint in [&ends.here, &ends.there] {
        assert_eq!(endpoint.state(), EndpointState::Connected);
        assert!(endpoint.remote_address().unwrap().ip().is_loopback());
    }
    let done = within(ends.here.send("hello", SendFlags::empty())).await;
    assert_eq!((done.status, done.information), (Status::SUCCESS, 5));
    assert_eq!(ends.arrived().await, "hello");
    // Accepted by itself: nothing is left to accept.
    assert_eq!(
        within(ends.there.accept()).await,
        Err(Status::CONNECTION_ACTIVE)
    );
}

//= TDI-CONN-02 test
//= TDI-DISC-07 test
async fn an_offer_can_be_accepted_or_rejected(provider: Arc<dyn Provider>) {
    let ends = Ends::apart(provider, TransportSettings::default()).await;
    for reject_by in [ABORT, RELEASE, DisconnectFlags::empty()] {
        let offer = ends.there.listen_and_query(None);
        let connect = ends.here.connect(ends.remote.local_address(), None);
        within(offer).await.unwrap();
        assert_eq!(ends.there.state(), EndpointState::Offered);
        assert!(ends.there.remote_address().unwrap().ip().is_loopback());
        within(ends.there.disconnect(reject_by, None))
            .await
            .unwrap();
        assert_eq!(ends.there.state(), EndpointState::Associated);
        assert_eq!(within(connect).await, Err(Status::REMOTE_NOT_LISTENING));
        assert_eq!(ends.here.state(), EndpointState::Associated);
    }
    assert_eq!(ends.transport.statistics().cancelled_connections, 3);
    let offer = ends.there.listen_and_query(None);
    let connect = ends.here.connect(ends.remote.local_address(), None);
    within(offer).await.unwrap();
    let accept = ends.there.accept();
    assert_eq!(ends.there.state(), EndpointState::Accepting);
    within(accept).await.unwrap();
    within(connect).await.unwrap();
    ends.there.write(b"welcome").await.result().unwrap();
    assert_eq!(receive(&ends.here, 100).await, "welcome");
}

//= TDI-CONN-03 test
async fn an_offer_that_nobody_decides_on_is_given_up(provider: Arc<dyn Provider>) {
    let settings = TransportSettings {
        offer_timeout: Duration::from_millis(50),
        ..TransportSettings::default()
    };
    let ends = Ends::apart(provider, settings).await;
    let witness = Witness::new(How::Take);
    ends.remote.set_client(Some(witness.clone()));
    let offer = ends.there.listen_and_query(None);
    let connect = ends.here.connect(ends.remote.local_address(), None);
    within(offer).await.unwrap();
    let told = witness.told(1).await;
    assert_eq!(told, ["disconnect: the offer was not decided on in time"]);
    assert_eq!(within(connect).await, Err(Status::REMOTE_NOT_LISTENING));
    assert_eq!(
        within(ends.there.accept()).await,
        Err(Status::INVALID_CONNECTION)
    );
    // It can listen again.
    ends.connect().await;
}

/// Another endpoint at the address of `there`.
fn neighbour(ends: &Ends) -> Endpoint {
    let endpoint = ends.transport.open_endpoint(());
    endpoint.associate(&ends.remote).unwrap();
    endpoint
}

/// Another endpoint that connects.
fn another(ends: &Ends) -> Endpoint {
    let endpoint = ends.transport.open_endpoint(());
    endpoint.associate(&ends.local).unwrap();
    endpoint
}

//= TDI-CONN-04 test
//= TDI-CONN-05 test
async fn listens_are_served_in_order_and_by_their_filters(provider: Arc<dyn Provider>) {
    let ends = Ends::apart(provider, TransportSettings::default()).await;
    let address = ends.remote.local_address();
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
    // The only listen left is not for this peer.
    let third = another(&ends);
    let connect = third.connect(address, None);
    assert_eq!(within(connect).await, Err(Status::REMOTE_NOT_LISTENING));
    assert_eq!(ends.transport.statistics().no_listen_failures, 2);
    within(strangers.disconnect(ABORT, None)).await.unwrap();
    assert_eq!(within(for_strangers).await, Err(Status::CANCELLED));
}

//= TDI-CONN-06 test
async fn the_connect_handler_is_asked_where_no_listen_fits(provider: Arc<dyn Provider>) {
    let ends = Ends::apart(provider, TransportSettings::default()).await;
    let address = ends.remote.local_address();
    let witness = Witness::new(How::Take);
    ends.remote.set_client(Some(witness.clone()));
    let spare = neighbour(&ends);
    *witness.accepting.lock().unwrap() = Some(ConnectAnswer::Accept(spare.clone()));
    // A pending listen comes first,
    ends.connect().await;
    assert_eq!(witness.lines(), [""; 0]);
    // and one for others does not count.
    let strangers = neighbour(&ends);
    let for_strangers = strangers.listen(Some("192.0.2.1".parse().unwrap()));
    let second = another(&ends);
    within(second.connect(address, None)).await.unwrap();
    assert_eq!(witness.told(2).await, ["connect", "accepted Ok(())"]);
    assert_eq!(spare.state(), EndpointState::Connected);
    within(second.send("hello", SendFlags::empty()))
        .await
        .result()
        .unwrap();
    witness.has_taken(5).await;
    drop(for_strangers);
}

//= TDI-ADDR-02 test
//= TDI-EVENT-01 test
async fn the_connect_handler_can_fail(provider: Arc<dyn Provider>) {
    let ends = Ends::apart(provider, TransportSettings::default()).await;
    let address = ends.remote.local_address();
    let refused = || async {
        let connect = within(ends.here.connect(address, None)).await;
        assert_eq!(connect, Err(Status::REMOTE_NOT_LISTENING));
    };
    // There is no handler at all.
    refused().await;
    let witness = Witness::new(How::Take);
    ends.remote.set_client(Some(witness.clone()));
    refused().await;
    *witness.accepting.lock().unwrap() = Some(ConnectAnswer::NoResources);
    refused().await;
    // Endpoints that are not idle, or not here.
    *witness.accepting.lock().unwrap() = Some(ConnectAnswer::Accept(another(&ends)));
    refused().await;
    witness.answer(How::Panic);
    refused().await;
    assert_eq!(witness.lines(), ["connect"; 4]);
    // The listener has survived it.
    witness.answer(How::Take);
    ends.connect().await;
    let statistics = ends.transport.statistics();
    assert_eq!(statistics.local_resource_failures, 1);
    assert_eq!(statistics.connections_after_no_retry, 2);
}

//= TDI-SEND-01 test
//= TDI-RECV-03 test
//= TDI-CONN-07 test
//= TDI-CONN-09 test
//= TDI-DISC-01 test
//= TDI-DISC-06 test
async fn requests_at_the_wrong_time_say_why(provider: Arc<dyn Provider>) {
    let other = transport(&provider, TransportSettings::default());
    let ends = Ends::apart(provider, TransportSettings::default()).await;
    let address = ends.remote.local_address();
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
    // An address to connect from takes no listens.
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
        assert_eq!(endpoint.remote_address(), Err(Status::INVALID_CONNECTION));
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
        "it was left alone"
    );
}

//= TDI-ADDR-01 test
async fn addresses_are_shared_or_not(provider: Arc<dyn Provider>) {
    let first = transport(&provider, TransportSettings::default());
    let open = |share| first.open_address::<()>(any_port(), share);
    let again = |address: &Address, share| first.open_address::<()>(address.local_address(), share);
    let exclusive = open(Share::Exclusive).await.unwrap();
    for share in [Share::Exclusive, Share::Shared] {
        let refused = again(&exclusive, share).await;
        assert_eq!(refused.unwrap_err(), Status::SHARING_VIOLATION);
    }
    let shared = open(Share::Shared).await.unwrap();
    let refused = again(&shared, Share::Exclusive).await;
    assert_eq!(refused.unwrap_err(), Status::SHARING_VIOLATION);
    let both = again(&shared, Share::Shared).await.unwrap();
    assert_eq!(both.local_address(), shared.local_address());
    // The first who wants an offer gets it.
    let (there, here) = (first.open_endpoint(()), first.open_endpoint(()));
    there.associate(&both).unwrap();
    here.associate(&first.open_any_address()).unwrap();
    // The address that nobody holds any more is closed: no connects.
    let connect = within(here.connect(shared.local_address(), None)).await;
    assert_eq!(connect, Err(Status::ADDRESS_CLOSED));
    here.disassociate().unwrap();
    let local = first.open_any_address();
    here.associate(&local).unwrap();
    let witness = Witness::new(How::Take);
    shared.set_client(Some(witness.clone()));
    let listen = there.listen(None);
    within(here.connect(shared.local_address(), None))
        .await
        .unwrap();
    within(listen).await.unwrap();
    assert_eq!(
        witness.told(1).await,
        ["connect"],
        "it was asked first, and refused"
    );
    // Another transport cannot have it at all,
    let second = transport(&provider, TransportSettings::default());
    let refused = second.open_address::<()>(shared.local_address(), Share::Shared);
    assert_eq!(refused.await.unwrap_err(), Status::ADDRESS_ALREADY_EXISTS);
    // until both have closed it. A peer on its way may hold it for a moment.
    let address = shared.local_address();
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
async fn closing_an_address_leaves_its_connections(provider: Arc<dyn Provider>) {
    let ends = Ends::new(provider).await;
    let witness = Witness::new(How::Take);
    ends.remote.set_client(Some(witness.clone()));
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
    let address = remote.local_address();
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
    assert_eq!(witness.lines(), [""; 0], "its handlers are gone");
    let peer = transport.open_endpoint(());
    peer.associate(&local).unwrap();
    let connect = within(peer.connect(address, None)).await;
    assert_eq!(connect, Err(Status::REMOTE_NOT_LISTENING));
}

//= TDI-CONN-00 test
async fn nobody_is_there(provider: Arc<dyn Provider>) {
    let ends = Ends::apart(provider, TransportSettings::default()).await;
    // An address that is open, and one that was.
    let open = ends.remote.local_address();
    let connect = within(ends.here.connect(open, None)).await;
    assert_eq!(connect, Err(Status::REMOTE_NOT_LISTENING));
    let closed = ends
        .transport
        .open_address::<()>(any_port(), Share::Exclusive);
    let closed = closed.await.unwrap().local_address();
    let connect = within(ends.here.connect(closed, None)).await;
    assert_eq!(connect, Err(Status::REMOTE_NOT_LISTENING));
    let statistics = ends.transport.statistics();
    assert_eq!(statistics.no_listen_failures, 3);
    assert_eq!(statistics.connections_after_no_retry, 0);
}

//= TDI-CONN-10 test
async fn everything_can_be_used_again(provider: Arc<dyn Provider>) {
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
    // The ends change places.
    ends.here.disassociate().unwrap();
    ends.there.disassociate().unwrap();
    ends.here.associate(&ends.remote).unwrap();
    ends.there.associate(&ends.local).unwrap();
    let listen = ends.here.listen(None);
    within(ends.there.connect(ends.remote.local_address(), None))
        .await
        .unwrap();
    within(listen).await.unwrap();
    ends.there.write(b"turned").await.result().unwrap();
    assert_eq!(receive(&ends.here, 10).await, "turned");
}

/// A peer that connects and says nothing costs the listen nothing; one that accepts and says
/// nothing is given up by the connect.
//= TDI-CONN-00 test
//= TDI-CONN-08 test
#[tokio::test]
async fn peers_that_do_not_make_it() {
    let provider = iwarp();
    let silent = TcpListener::bind(any_port()).await.unwrap();
    let silent = silent
        .local_addr()
        .map(|address| (silent, address))
        .unwrap();
    let mut short = settings(smbdirect::Settings {
        passive_negotiation_timeout: Duration::from_millis(100),
        ..Default::default()
    });
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
    // It speaks iWARP, and no SMB Direct: the listen goes on after it.
    let listen = ends.there.listen(None);
    let request = smbdirect::rdma::provider::ConnectRequest {
        address: ends.remote.local_address(),
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
    let peer = Connection::connect(&*provider, ends.remote.local_address(), config);
    let peer = within(peer).await.unwrap();
    within(listen).await.unwrap();
    drop(peer.send("at last").unwrap());
    assert_eq!(ends.arrived().await, "at last");
    drop(mute);
}
