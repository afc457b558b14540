//! Each field of a REQ and of a REP, and queue pairs that are connected already.

use super::{hostile::foreign_request, *};
use crate::roce::cm::{CmTimeout, ConnectReply, ConnectRequest, Message};

/// Returns the messages of an endpoint that wait to be sent: their names, and the reason of a REJ.
fn messages(endpoint: &mut Endpoint) -> Vec<(&'static str, u16)> {
    let mads = std::mem::take(&mut endpoint.mads);
    let messages = mads.into_iter().map(|(_, mad)| match &mad.message {
        Message::Reject(reject) => ("REJ", reject.reason.0),
        message => (message.name(), 0),
    });
    messages.collect()
}

//= ROCE-12.6-03 test
//= ROCE-12.9-10 test
#[test]
fn each_field_of_a_request_is_judged() {
    type Change = fn(&mut ConnectRequest);
    let cases: &[(Change, u16)] = &[
        (|request| request.queue_pair = 0, 5),
        (|request| request.queue_pair = 1, 5),
        (|request| request.queue_pair = 0xff_ffff, 5),
        (|request| request.queue_pair = 0x100_0011, 5),
        (|request| request.starting_psn = 0x100_0000, 5),
        (|request| request.partition_key = 0, 5),
        (|request| request.partition_key = 0x8001, 5),
        (|request| request.transport_service_type = 1, 9),
        (|request| request.transport_service_type = 3, 9),
        (|request| request.extended_transport_type = 1, 9),
        (|request| request.path_mtu = PathMtu::from_code(0), 26),
        (|request| request.path_mtu = PathMtu::from_code(6), 26),
        (|request| request.path_mtu = PathMtu::from_code(15), 26),
        // These values are accepted.
        (|request| request.queue_pair = 2, 0),
        (|request| request.queue_pair = 0xff_fffe, 0),
        (|request| request.starting_psn = 0, 0),
        (|request| request.starting_psn = 0xff_ffff, 0),
        (|request| request.partition_key = 0x7fff, 0),
        (|request| request.local_communication_id = 0, 0),
        (|request| request.local_communication_id = u32::MAX, 0),
        (|request| request.responder_resources = 0, 0),
        (|request| request.responder_resources = 255, 0),
        (|request| request.initiator_depth = 0, 0),
        (|request| request.initiator_depth = 255, 0),
        (|request| request.path_mtu = PathMtu::from_code(1), 0),
        (|request| request.path_mtu = PathMtu::from_code(5), 0),
        (|request| request.retry_count = 0, 0),
        (|request| request.rnr_retry_count = 0, 0),
        (|request| request.max_cm_retries = 0, 0),
        (|request| request.queue_key = u32::MAX, 0),
        (
            |request| request.remote_response_timeout = CmTimeout::MAX,
            0,
        ),
        (|request| request.local_response_timeout = CmTimeout::MAX, 0),
        (
            |request| request.primary_path.local_ack_timeout = CmTimeout::MAX,
            0,
        ),
        (|request| request.end_to_end_flow_control = true, 0),
        (|request| request.shared_receive_queue = true, 0),
        (|request| request.rdc_exists = true, 0),
        (
            |request| request.alternate_path = Some(request.primary_path),
            0,
        ),
    ];
    for (index, (change, reason)) in cases.iter().enumerate() {
        let mut network = Network::new(0);
        let mut request = foreign_request(7);
        change(&mut request);
        // `fault` also detects values that have more bits than the field on the wire.
        assert_eq!(
            request.fault().map_or(0, |reason| reason.0),
            *reason,
            "{index}"
        );
        if request.queue_pair >> 24 != 0 || request.starting_psn >> 24 != 0 {
            continue;
        }
        network.forge_request(0xc000, request);
        if *reason == 0 {
            let id = network.requested();
            network.accept(id);
            assert_eq!(messages(&mut network.ends[1]), [("REP", 0)], "{index}");
            assert!(network.ends[1].limits(id).is_some());
        } else {
            assert_eq!(
                messages(&mut network.ends[1]),
                [("REJ", *reason)],
                "{index}"
            );
            assert!(network.ends[1].connections.is_empty());
        }
    }
}

/// Answers the request of the first endpoint with a changed REP. Returns the messages that the first endpoint
/// then sends.
fn answered(change: fn(&mut ConnectReply)) -> (Network, ConnectionId, Vec<(&'static str, u16)>) {
    let mut network = Network::new(0);
    let id = network.connect();
    let passive = network.requested();
    network.accept(passive);
    let (path, mut mad) = network.ends[1].mads.pop_front().expect("a REP");
    let Message::ConnectReply(reply) = &mut mad.message else {
        panic!("a REP");
    };
    change(reply);
    let back = Path {
        local: path.remote,
        remote: path.local,
    };
    let now = network.now;
    network.ends[0].handle_mad(now, back, mad);
    let sent = messages(&mut network.ends[0]);
    (network, id, sent)
}

//= ROCE-12.6-03 test
#[test]
fn each_field_of_a_reply_is_judged() {
    let refused: [fn(&mut ConnectReply); 5] = [
        |reply| reply.queue_pair = 0,
        |reply| reply.queue_pair = 1,
        |reply| reply.queue_pair = 0xff_ffff,
        |reply| reply.queue_pair = 0x100_0011,
        |reply| reply.starting_psn = 0x100_0000,
    ];
    for (index, change) in refused.into_iter().enumerate() {
        let (mut network, id, sent) = answered(change);
        assert_eq!(sent, [("REJ", 5)], "{index}");
        let event = network.ends[0].poll_event();
        let Some(EndpointEvent::Failed {
            id: failed, error, ..
        }) = event
        else {
            panic!("{index}: {event:?}");
        };
        assert_eq!((failed, error.kind), (id, ProviderErrorKind::Protocol));
        assert!(network.ends[0].limits(id).is_none());
    }
    let taken: [fn(&mut ConnectReply); 9] = [
        |reply| reply.queue_pair = 2,
        |reply| reply.starting_psn = 0xff_ffff,
        |reply| reply.responder_resources = 0,
        |reply| (reply.responder_resources, reply.initiator_depth) = (255, 255),
        |reply| reply.initiator_depth = 0,
        |reply| reply.target_ack_delay = CmTimeout::MAX,
        |reply| reply.failover_accepted = 3,
        |reply| reply.rnr_retry_count = 0,
        |reply| reply.queue_key = u32::MAX,
    ];
    for (index, change) in taken.into_iter().enumerate() {
        let (network, id, sent) = answered(change);
        assert_eq!(sent, [("RTU", 0)], "{index}");
        let limits = network.ends[0].limits(id).unwrap();
        assert!(limits.max_outbound_reads <= 32 && limits.max_inbound_reads <= 32);
    }
}

/// The peer announces that it takes 4.3 s to acknowledge a packet, or hours.
//= ROCE-9.7.6-03 test
#[test]
fn the_delay_that_a_reply_announces_is_waited_for_within_a_limit() {
    for (exponent, least, most) in [(0, 4, 5), (20, 38, 45), (31, 140, 170)] {
        let (mut network, id, _) = match exponent {
            0 => answered(|reply| reply.target_ack_delay = CmTimeout::from_exponent(0)),
            20 => answered(|reply| reply.target_ack_delay = CmTimeout::from_exponent(20)),
            _ => answered(|reply| reply.target_ack_delay = CmTimeout::MAX),
        };
        let start = network.now;
        network.post(0, id, send(1, "lost"));
        let mut out = BytesMut::new();
        let mut timeouts = 0;
        while !network.ends[0].has_completion(id) {
            out.clear();
            while network.ends[0]
                .poll_transmit(network.now, 1, &mut out)
                .is_some()
            {
                out.clear();
            }
            network.now = network.ends[0].poll_timeout().expect("a timer runs");
            let now = network.now;
            network.ends[0].handle_timeout(now);
            timeouts += 1;
            assert!(timeouts < 1000);
        }
        let silent = (network.now - start).as_secs();
        assert!((least..=most).contains(&silent), "{exponent}: {silent} s");
    }
}

/// A peer that has started again reuses its queue pair.
//= ROCE-12.9-11 test
#[test]
fn a_request_from_a_connected_queue_pair_ends_the_old_connection() {
    let mut network = Network::new(0);
    network.forge_request(0xc000, foreign_request(1));
    let old = network.requested();
    // A request that waits for an answer does not count as a connection.
    network.forge_request(0xc000, foreign_request(2));
    assert_eq!(messages(&mut network.ends[1]), [("REJ", 10)]);
    network.accept(old);
    assert_eq!(messages(&mut network.ends[1]), [("REP", 0)]);
    network.forge_request(0xc000, foreign_request(2));
    assert_eq!(messages(&mut network.ends[1]), [("REJ", 10), ("DREQ", 0)]);
    let mut ending = Vec::new();
    while let Some(completion) = network.ends[1].poll_completion(old) {
        ending.push(completion);
    }
    assert!(
        matches!(super::ending(&ending), Disconnect::Broken(error) if error.kind == ProviderErrorKind::Reset)
    );
    // The peer tries once more, and is connected.
    network.forge_request(0xc000, foreign_request(3));
    let new = network.requested();
    network.accept(new);
    assert_eq!(messages(&mut network.ends[1]), [("REP", 0)]);
    // A queue pair with another number is not the connected one.
    let other = ConnectRequest {
        queue_pair: 0x12,
        ..foreign_request(4)
    };
    network.forge_request(0xc000, other);
    network.requested();
    assert_eq!(messages(&mut network.ends[1]), []);
    assert!(network.ends[1].limits(new).is_some());
    // A request that is rejected does not end the connection.
    let invalid = ConnectRequest {
        path_mtu: None,
        ..foreign_request(5)
    };
    network.forge_request(0xc000, invalid);
    assert_eq!(messages(&mut network.ends[1]), [("REJ", 26)]);
}

/// A peer answers two requests with the same queue pair.
//= ROCE-12.9-11 test
#[test]
fn a_reply_from_a_connected_queue_pair_ends_the_old_connection() {
    let (mut network, old, sent) = answered(|reply| reply.queue_pair = 0x77);
    assert_eq!(sent, [("RTU", 0)]);
    let new = network.connect();
    let passive = network.requested();
    network.accept(passive);
    let (path, mut mad) = network.ends[1].mads.pop_back().expect("a REP");
    let Message::ConnectReply(reply) = &mut mad.message else {
        panic!("a REP");
    };
    reply.queue_pair = 0x77;
    let back = Path {
        local: path.remote,
        remote: path.local,
    };
    let now = network.now;
    network.ends[0].handle_mad(now, back, mad);
    assert_eq!(messages(&mut network.ends[0]), [("REJ", 10), ("DREQ", 0)]);
    assert!(network.ends[0].limits(new).is_none());
    assert!(
        network.ends[0].has_completion(old),
        "the old connection has ended"
    );
}
