//! Connecting, accepting, rejecting and disconnecting.

use super::*;
use crate::roce::cm::Message;

/// Returns the error of an attempt to connect from the first endpoint.
fn failure(network: &mut Network) -> (ProviderError, Option<PathMtu>) {
    let event = network.event(0, |event| matches!(event, EndpointEvent::Failed { .. }));
    match event {
        EndpointEvent::Failed {
            error, path_mtu, ..
        } => (error, path_mtu),
        other => panic!("{other:?}"),
    }
}

//= ROCE-12.7-01 test
#[test]
fn private_data_and_read_depths_are_exchanged() {
    for seed in 0..2 {
        let mut network = Network::new(seed);
        let settings = EndpointSettings {
            responder_resources: 4,
            initiator_depth: 9,
            ..EndpointSettings::default()
        };
        network.ends[0] = Endpoint::new(settings);
        let active = network.connect();
        let event = network.event(1, |event| matches!(event, EndpointEvent::Requested { .. }));
        let EndpointEvent::Requested {
            id,
            port,
            path,
            path_mtu,
            private_data,
        } = event
        else {
            panic!("a request")
        };
        assert_eq!((port, path_mtu), (PORT, PathMtu::Mtu1024));
        assert_eq!(path, network.path(1));
        assert_eq!(private_data, "question");
        network.accept(id);
        let connected = |data| EndpointEvent::Connected {
            id: active,
            private_data: Bytes::from_static(data),
        };
        let event = network.event(0, |event| matches!(event, EndpointEvent::Connected { .. }));
        assert_eq!(event, connected(b"answer"));
        network.event(1, |event| matches!(event, EndpointEvent::Connected { .. }));
        let [ours, theirs] =
            [(0, active), (1, id)].map(|(end, id)| network.ends[end].limits(id).unwrap());
        assert_eq!((ours.max_outbound_reads, ours.max_inbound_reads), (9, 4));
        assert_eq!(
            (theirs.max_outbound_reads, theirs.max_inbound_reads),
            (4, 9)
        );
        for (end, id) in [(0, active), (1, id)] {
            let now = network.now;
            network.ends[end].release(now, id);
        }
        network.expect_unused();
    }
}

//= ROCE-12.7-02 test
#[test]
fn each_end_sends_with_the_psn_that_the_other_expects() {
    let mut network = Network::new(0);
    let active = network.connect();
    let request = network.ends[0].mads[0].1.message.clone();
    let passive = network.requested();
    network.accept(passive);
    let reply = network.ends[1].mads[0].1.message.clone();
    let (Message::ConnectRequest(request), Message::ConnectReply(reply)) = (request, reply) else {
        panic!("a REQ and a REP")
    };
    for end in 0..2 {
        network.event(end, |event| {
            matches!(event, EndpointEvent::Connected { .. })
        });
    }
    for (end, id, expected) in [
        (0, active, reply.starting_psn),
        (1, passive, request.starting_psn),
    ] {
        network.post(end, id, send(1, "x"));
        let mut out = BytesMut::new();
        let now = network.now;
        network.ends[end].poll_transmit(now, 1, &mut out).unwrap();
        let (bth, ..) = Packet::split(&out).unwrap();
        assert_eq!(bth.psn.value(), expected);
    }
}

#[test]
fn data_arrives_before_a_graceful_end() {
    let mut network = Network::new(0);
    let [active, passive] = network.connected();
    let message: Bytes = (0..100_000).map(|i| i as u8).collect();
    network.post(0, active, send(7, message.clone()));
    let now = network.now;
    network.ends[0].disconnect(now, active, Teardown::Graceful);
    network.post(0, active, send(8, "too late"));
    let completions = network.until_ended(1, passive);
    assert_eq!(ending(&completions), Disconnect::Remote);
    match &completions[0] {
        Completion::Received {
            message: arrived, ..
        } => assert!(*arrived == message),
        other => panic!("{other:?}"),
    }
    let completions = network.until_ended(0, active);
    assert_eq!(ending(&completions), Disconnect::Local);
    let flushed = completions
        .iter()
        .filter(|one| matches!(one, Completion::Flushed { .. }));
    assert_eq!(flushed.count(), 2, "the late Send and the receive");
    for (end, id) in [(0, active), (1, passive)] {
        let now = network.now;
        network.ends[end].release(now, id);
        assert!(network.ends[end].poll_completion(id).is_none());
    }
    network.expect_unused();
}

#[test]
fn an_abort_and_a_release_are_told() {
    for is_release in [false, true] {
        for end in 0..2 {
            let mut network = Network::new(end as u64);
            let ids = network.connected();
            let now = network.now;
            if is_release {
                network.ends[end].release(now, ids[end]);
            } else {
                network.ends[end].disconnect(now, ids[end], Teardown::Abort);
            }
            let how = ending(&network.until_ended(1 - end, ids[1 - end]));
            let Disconnect::Broken(error) = how else {
                panic!("{how:?}")
            };
            assert_eq!(error.kind, ProviderErrorKind::Reset);
            if !is_release {
                let how = ending(&network.until_ended(end, ids[end]));
                assert_eq!(how, Disconnect::Local);
            }
            for (end, id) in ids.into_iter().enumerate() {
                let now = network.now;
                network.ends[end].release(now, id);
            }
            network.expect_unused();
        }
    }
}

//= ROCE-UDP-07 test
#[test]
fn a_graceful_end_takes_no_longer_than_its_timeout() {
    let mut network = Network::new(0);
    let [active, passive] = network.connected();
    network.loss = 1.0;
    let start = network.now;
    network.post(0, active, send(1, "never acknowledged"));
    network.ends[0].disconnect(start, active, Teardown::Graceful);
    let how = ending(&network.until_ended(0, active));
    assert!(
        matches!(how, Disconnect::Local | Disconnect::Broken(_)),
        "{how:?}"
    );
    let limit = EndpointSettings::default().close_timeout;
    assert!(network.now - start <= limit, "{:?}", network.now - start);
    network.ends[0].release(start, active);
    network.ends[1].release(start, passive);
    network.expect_unused();
}

//= ROCE-12.9-10 test
#[test]
fn an_unknown_service_and_a_consumer_reject() {
    let mut network = Network::new(0);
    network.connect_with(PORT + 1, PathMtu::Mtu1024, b"");
    let (error, _) = failure(&mut network);
    assert_eq!(error.kind, ProviderErrorKind::Refused);
    assert_eq!(&*error.what, "connection refused");
    network.connect();
    let id = network.requested();
    let now = network.now;
    network.ends[1].reject(now, id, Rejection::Consumer);
    let (error, path_mtu) = failure(&mut network);
    assert_eq!((error.kind, path_mtu), (ProviderErrorKind::Rejected, None));
    network.connect_with(PORT, PathMtu::Mtu4096, b"");
    let id = network.requested();
    let now = network.now;
    network.ends[1].reject(now, id, Rejection::PathMtu(PathMtu::Mtu1024));
    assert_eq!(failure(&mut network).1, Some(PathMtu::Mtu1024));
    // A request outlives its listener.
    network.connect();
    let id = network.requested();
    network.ends[1].unlisten(PORT);
    let now = network.now;
    network.ends[1].release(now, id);
    assert_eq!(failure(&mut network).0.kind, ProviderErrorKind::Rejected);
    assert_eq!(network.ends[0].statistics().malformed, 0);
    network.expect_unused();
}

#[test]
fn nobody_answers() {
    let mut network = Network::new(1);
    network.loss = 1.0;
    network.connect();
    assert_eq!(failure(&mut network).0.kind, ProviderErrorKind::TimedOut);
    let other = network.connect();
    let (now, peer) = (network.now, network.addresses[1]);
    for address in [
        "10.0.0.9".parse().unwrap(),
        "fd00::9".parse().unwrap(),
        peer.ip(),
    ] {
        network.ends[0].handle_unreachable(now, address);
        assert!(network.ends[0].poll_event().is_none());
    }
    network.ends[0].handle_unreachable(now, peer.ip());
    let (error, _) = failure(&mut network);
    assert_eq!(error.kind, ProviderErrorKind::PortUnreachable);
    assert_eq!(network.ends[0].limits(other), None);
    network.expect_unused();
}

#[test]
fn giving_up_at_every_stage_leaves_nothing() {
    for stage in 0..4 {
        let mut network = Network::new(stage);
        let active = network.connect();
        if stage > 0 {
            let id = network.requested();
            let now = network.now;
            if stage == 1 {
                network.ends[1].release(now, id);
            }
            if stage > 1 {
                network.accept(id);
            }
            if stage == 3 {
                // The REP is lost for the active end, which gives up.
                network.exchange();
                network.flight.clear();
            }
            network.ends[1].release(now, id);
        }
        let now = network.now;
        network.ends[0].release(now, active);
        network.expect_unused();
    }
}

#[test]
fn ports_are_listened_on_once_and_chosen_if_wanted() {
    let mut endpoint = Endpoint::new(EndpointSettings::default());
    assert_eq!(endpoint.listen(5), Ok(5));
    assert_eq!(
        endpoint.listen(5).unwrap_err().kind,
        ProviderErrorKind::InUse
    );
    let chosen = endpoint.listen(0).unwrap();
    assert!(chosen >= LOWEST_DYNAMIC_PORT);
    endpoint.unlisten(5);
    endpoint.unlisten(chosen);
    assert!(endpoint.is_unused());
    let parameters = ConnectParameters {
        path: Network::new(0).path(0),
        path_mtu: PathMtu::Mtu256,
        port: 1,
        private_data: vec![0; MAX_REQUEST_DATA + 1].into(),
        receive: receive(1),
    };
    let error = endpoint.connect(Instant::now(), parameters).unwrap_err();
    assert_eq!(error.kind, ProviderErrorKind::Local);
}

//= ROCE-UDP-01 test
#[test]
fn identifiers_are_random_and_not_used_twice() {
    let mut network = Network::new(0);
    let mut seen = [(); 3].map(|()| HashSet::new());
    // The bits that were 1 in at least one number, and the bits that were 0 in at least one number.
    let mut bits = [(0_u32, 0_u32); 3];
    for _ in 0..1000 {
        network.connect();
        let (_, mad) = network.ends[0].mads.pop_front().unwrap();
        let Message::ConnectRequest(request) = mad.message else {
            panic!("a REQ")
        };
        let numbers = [
            request.queue_pair,
            request.starting_psn,
            request.local_communication_id,
        ];
        for (index, number) in numbers.into_iter().enumerate() {
            bits[index].0 |= number;
            bits[index].1 |= !number;
            let is_new = seen[index].insert(number);
            assert!(is_new || index == 1, "{number} was used");
        }
        assert!((LOWEST_QUEUE_PAIR..0xff_ffff).contains(&request.queue_pair));
    }
    let low = 0x00ff_ffff;
    let all = [(low, u32::MAX), (low, u32::MAX), (u32::MAX, u32::MAX)];
    assert_eq!(bits, all, "every bit varies");
}
