//! Forged, replayed and damaged packets, floods of requests, and peers of other implementations.

use super::{super::mads::can_be_answered, *};
use crate::roce::{
    cm::{CmTimeout, ConnectRequest, DisconnectRequest, Message, PathRecord, ServiceId},
    packet::{Aeth, Reth, Syndrome, UDP_PORT},
};

/// Returns a REQ as another implementation sends it.
pub(super) fn foreign_request(id: u32) -> ConnectRequest {
    let timeout = CmTimeout::from_exponent(20);
    ConnectRequest {
        local_communication_id: id,
        service_id: ServiceId::of_port(PORT),
        ca_guid: 7,
        queue_key: 0,
        queue_pair: 0x11,
        responder_resources: 1,
        initiator_depth: 1,
        remote_response_timeout: timeout,
        transport_service_type: 0,
        end_to_end_flow_control: false,
        starting_psn: 9,
        local_response_timeout: timeout,
        retry_count: 7,
        partition_key: 0xffff,
        path_mtu: Some(PathMtu::Mtu1024),
        rdc_exists: false,
        rnr_retry_count: 7,
        max_cm_retries: 15,
        shared_receive_queue: false,
        extended_transport_type: 0,
        primary_path: PathRecord::between([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), timeout),
        alternate_path: None,
        private_data: PrivateData::default(),
    }
}

impl Network {
    /// Passes a CM message to the second endpoint, from a UDP port.
    fn forge(&mut self, source_port: u16, message: Message) {
        let mut path = self.path(0);
        path.local.set_port(source_port);
        let mad = Mad {
            transaction_id: 1,
            message,
        };
        let mut out = BytesMut::new();
        self.ends[0].encode_mad(path, &mad, &mut out);
        let path = Path {
            local: path.remote,
            remote: path.local,
        };
        self.ends[1].handle_datagram(self.now, path, &out);
    }

    pub(super) fn forge_request(&mut self, source_port: u16, request: ConnectRequest) {
        self.forge(source_port, Message::ConnectRequest(Box::new(request)));
    }

    /// Returns the next CM message of the second endpoint, and where it goes.
    fn answer(&mut self) -> Option<(SocketAddr, &'static str)> {
        let (path, mad) = self.ends[1].mads.pop_front()?;
        Some((path.remote, mad.message.name()))
    }
}

//= ROCE-UDP-04 test
#[test]
fn other_implementations_are_answered_on_the_port_of_rocev2() {
    let mut network = Network::new(0);
    network.forge_request(0xc123, foreign_request(1));
    let id = network.requested();
    network.accept(id);
    let rocev2 = SocketAddr::new(network.addresses[0].ip(), UDP_PORT);
    assert_eq!(network.answer(), Some((rocev2, "REP")));
    let limits = network.ends[1].limits(id).unwrap();
    assert_eq!(
        (limits.max_outbound_reads, limits.max_inbound_reads),
        (1, 1)
    );
}

/// If the peer permits no repetition, the first RNR NAK breaks the connection.
//= ROCE-12.7-03 test
#[test]
fn sends_without_a_receive_are_repeated_as_often_as_the_peer_asks() {
    for (rnr_retry_count, is_broken) in [(0, true), (7, false)] {
        let mut network = Network::new(0);
        let request = ConnectRequest {
            rnr_retry_count,
            ..foreign_request(1)
        };
        network.forge_request(UDP_PORT, request);
        let id = network.requested();
        network.accept(id);
        network.post(1, id, send(1, "nobody takes it"));
        let pair = network.ends[1].connections.get_mut(&id.0).unwrap();
        let pair = pair.queue_pair.as_mut().unwrap();
        let psn = pair.poll_packet(network.now).expect("a Send").bth.psn;
        let extended = Extended::Aeth(Aeth {
            syndrome: Syndrome::RnrNak { timer: 1 },
            message_sequence_number: 0,
        });
        let bth = Bth::new(Opcode::Acknowledge, id.0, psn);
        pair.handle(network.now, &bth, &extended, &[]);
        assert_eq!(pair.is_broken(), is_broken);
    }
}

//= ROCE-UDP-04 test
#[test]
fn this_library_is_answered_on_its_port() {
    let mut network = Network::new(0);
    network.addresses[0].set_port(40_000);
    let ids = network.connected();
    network.post(1, ids[1], send(1, "hello"));
    while network.ends[0].poll_completion(ids[0]).is_none() {
        assert!(network.step());
    }
}

//= ROCE-12.6-02 test
#[test]
fn only_the_queue_pair_of_the_cm_reaches_the_cm() {
    let mut network = Network::new(0);
    let mad = Mad {
        transaction_id: 1,
        message: Message::ConnectRequest(Box::new(foreign_request(1))),
    };
    let header = DatagramHeader::between(network.addresses[0], network.addresses[1]).unwrap();
    let path = network.path(1);
    let deth = |q_key, source_qp| Extended::Deth(Deth { q_key, source_qp });
    for (q_key, source, length, is_valid) in [
        (GENERAL_SERVICES_QUEUE_KEY, 2, 256, false),
        (GENERAL_SERVICES_QUEUE_KEY ^ 1, 1, 256, false),
        (GENERAL_SERVICES_QUEUE_KEY, 1, 252, false),
        (GENERAL_SERVICES_QUEUE_KEY, 1, 256, true),
    ] {
        let packet = Packet {
            bth: Bth::new(Opcode::UdSendOnly, 1, Psn::new(0)),
            extended: deth(q_key, source),
            payload: Bytes::copy_from_slice(&mad.encode()[..length]),
        };
        let mut out = BytesMut::new();
        packet.encode(&mut out);
        icrc::append(&header, &mut out, 0);
        let malformed = network.ends[1].statistics().malformed;
        let taken = network.ends[1].handle_datagram(network.now, path, &out);
        assert_eq!(taken.is_some(), is_valid);
        assert_eq!(
            network.ends[1].statistics().malformed == malformed,
            is_valid
        );
    }
    assert_eq!(network.ends[1].connections.len(), 1);
}

//= ROCE-UDP-05 test
#[test]
fn a_flood_of_requests_takes_bounded_memory() {
    let settings = EndpointSettings {
        max_half_open: 10,
        ..EndpointSettings::default()
    };
    let mut network = Network::with(0, settings);
    // The requests of one queue pair take one place.
    for id in 1..1000 {
        network.forge_request(0xc000, foreign_request(3000 + id));
    }
    assert_eq!(network.ends[1].connections.len(), 1);
    let foreign_request = |id: u32| ConnectRequest {
        queue_pair: id + 0x11,
        ..foreign_request(id)
    };
    for id in 1..1000 {
        network.forge_request(0xc000, foreign_request(id));
    }
    assert_eq!(network.ends[1].connections.len(), 10);
    assert_eq!(network.ends[1].statistics().ignored_requests, 990);
    // The peers never confirm, so their places become free after some time.
    let ids: Vec<_> = (0..10).map(|_| network.requested()).collect();
    for &id in &ids {
        network.accept(id);
    }
    network.forge_request(0xc000, foreign_request(2000));
    assert_eq!(network.ends[1].statistics().ignored_requests, 991);
    for _ in ids {
        network.event(1, |event| matches!(event, EndpointEvent::Failed { .. }));
    }
    network.forge_request(0xc000, foreign_request(2001));
    network.requested();
    // The number of messages that wait to be sent is also bounded.
    for id in 0..5000 {
        let request = ConnectRequest {
            service_id: ServiceId(id),
            ..foreign_request(id as u32)
        };
        network.forge_request(0xc000, request);
    }
    assert!(network.ends[1].mads.len() <= MAX_WAITING_MADS);
}

//= ROCE-12.9-03 test
#[test]
fn a_request_with_the_identifier_of_a_connection_is_stale() {
    let mut network = Network::new(0);
    network.forge_request(0xc000, foreign_request(1));
    let id = network.requested();
    network.accept(id);
    assert_eq!(network.answer().unwrap().1, "REP");
    network.forge_request(0xc000, foreign_request(1));
    assert_eq!(network.answer().unwrap().1, "REP");
    let other = ConnectRequest {
        queue_pair: 0x12,
        ..foreign_request(1)
    };
    network.forge_request(0xc000, other);
    assert_eq!(network.answer().unwrap().1, "REJ");
    assert!(network.ends[1].limits(id).is_some());
}

//= ROCE-12.9-10 test
#[test]
fn impossible_requests_are_rejected() {
    let mut network = Network::new(0);
    for request in [
        ConnectRequest {
            transport_service_type: 1,
            ..foreign_request(1)
        },
        ConnectRequest {
            path_mtu: None,
            ..foreign_request(1)
        },
        ConnectRequest {
            queue_pair: 1,
            ..foreign_request(1)
        },
        ConnectRequest {
            service_id: ServiceId(PORT.into()),
            ..foreign_request(1)
        },
    ] {
        network.forge_request(0xc000, request);
        assert_eq!(network.answer().unwrap().1, "REJ");
    }
    assert!(network.ends[1].connections.is_empty());
}

//= ROCE-12.9-09 test
//= ROCE-UDP-04 test
#[test]
fn a_stray_dreq_is_answered_and_others_are_not() {
    let mut network = Network::new(0);
    let dreq = |private_data| {
        Message::DisconnectRequest(Box::new(DisconnectRequest {
            local_communication_id: 3,
            remote_communication_id: 4,
            remote_queue_pair: 5,
            private_data,
        }))
    };
    let address = network.addresses[0].ip();
    // Another implementation chooses any source port, and receives on one port only.
    for (private_data, port) in [
        (PrivateData::default(), UDP_PORT),
        (Cause::Graceful.sign(), 0xc123),
    ] {
        network.forge(0xc123, dreq(private_data));
        let expected = SocketAddr::new(address, port);
        assert_eq!(network.answer(), Some((expected, "DREP")));
        assert_eq!(network.answer(), None);
    }
}

/// A Read whose memory is gone breaks the connection while its response is sent.
#[test]
fn a_connection_that_breaks_while_it_sends_ends_without_a_timeout() {
    let mut network = Network::new(0);
    let [active, passive] = network.connected();
    let registered = network.ends[1].register(passive, BytesMut::zeroed(9000), Access::REMOTE_READ);
    let address = registered.unwrap().address;
    let read = WorkRequest::Read {
        id: WorkId(1),
        from: address,
        into: BytesMut::zeroed(9000),
    };
    network.post(0, active, read);
    let (now, path) = (network.now, network.path(1));
    let mut out = BytesMut::new();
    while network.ends[0].poll_transmit(now, 1, &mut out).is_some() {
        network.ends[1].handle_datagram(now, path, &out);
        out.clear();
    }
    network.ends[1].deregister(passive, address.token).unwrap();
    let mut sent = Vec::new();
    while network.ends[1].poll_transmit(now, 1, &mut out).is_some() {
        let (bth, _, payload) = Packet::split(&out).unwrap();
        sent.push(match bth.destination_qp {
            GENERAL_SERVICES_QUEUE_PAIR => Mad::decode(payload).unwrap().message.name().to_owned(),
            _ => format!("{:?}", bth.opcode),
        });
        out.clear();
    }
    assert_eq!(sent, ["Acknowledge", "DREQ"]);
}

/// A failed answer would turn off segmentation offload for all peers of the socket.
#[test]
fn what_cannot_be_answered_is_ignored() {
    let mut network = Network::new(0);
    network.forge_request(0, foreign_request(1));
    assert_eq!(network.answer(), None, "UDP port 0");
    for local in [
        "0.0.0.0:4791",
        "255.255.255.255:4791",
        "224.0.0.1:4791",
        "[ff02::1]:4791",
    ] {
        let path = Path {
            local: local.parse().unwrap(),
            ..network.path(1)
        };
        assert!(!can_be_answered(path), "{local}");
    }
    assert!(can_be_answered(network.path(1)));
}

/// Linux has one counter of Identifications for all connections to an address, and advances it at random
/// after a silence.
//= ROCE-UDP-03 test
#[test]
fn packets_of_linux_arrive_whatever_else_it_sends() {
    let mut network = Network::new(0);
    let ids = [network.connected(), network.connected()];
    let header = DatagramHeader::between(network.addresses[0], network.addresses[1]).unwrap();
    // Delivers `count` packets of a connection, with Identifications from `from` on.
    let arrive = |network: &mut Network, index: usize, count: u16, from: u16| {
        for identification in from..from + count {
            network.post(0, ids[index][0], send(1, "x"));
            let mut out = BytesMut::new();
            let now = network.now;
            network.ends[0].poll_transmit(now, 1, &mut out).unwrap();
            let packet = &out[..out.len() - 4];
            let icrc = icrc::icrc(&header.with_identification(identification), &[packet]);
            let datagram = [packet, &icrc].concat();
            let path = network.path(1);
            let taken = network.ends[1].handle_datagram(now, path, &datagram);
            assert_eq!(taken, Some(identification));
        }
    };
    arrive(&mut network, 0, 1, 10_000);
    arrive(&mut network, 1, 40, 10_400);
    arrive(&mut network, 0, 40, 10_440);
    for from in [30_000, 50_000, 1000, 60_000] {
        network.now += Duration::from_millis(1);
        arrive(&mut network, 1, 1, from);
    }
}

//= ROCE-UDP-06 test
//= ROCE-A17.3.3-06 test
#[test]
fn forged_and_damaged_packets_have_no_effect() {
    for seed in 0..2 {
        let mut network = Network::new(seed);
        let [active, passive] = network.connected();
        network.post(0, active, send(1, "genuine"));
        let mut out = BytesMut::new();
        let now = network.now;
        network.ends[0].poll_transmit(now, 1, &mut out).unwrap();
        let path = network.path(1);
        // The packet comes from another address, or from another port of the same address.
        for (ip, port) in [("10.0.0.9", 4791), ("fd00::9", 4791)] {
            let remote = SocketAddr::new(ip.parse().unwrap(), port);
            let path = Path { remote, ..path };
            assert_eq!(network.ends[1].handle_datagram(now, path, &out), None);
        }
        let mut other = path;
        other.remote.set_port(4792);
        assert_eq!(network.ends[1].handle_datagram(now, other, &out), None);
        // Each byte is damaged once, except the byte that the ICRC does not cover.
        for at in (0..out.len()).filter(|&at| at != 4) {
            let mut damaged = out.to_vec();
            damaged[at] ^= 0x10;
            let taken = network.ends[1].handle_datagram(now, path, &damaged);
            assert_eq!(taken, None, "byte {at}");
        }
        for length in 0..out.len() {
            let taken = network.ends[1].handle_datagram(now, path, &out[..length]);
            assert_eq!(taken, None, "{length} bytes");
        }
        assert!(network.ends[1].poll_completion(passive).is_none());
        // The genuine packet arrives once, however often it is replayed.
        for _ in 0..3 {
            assert!(network.ends[1].handle_datagram(now, path, &out).is_some());
        }
        let received = network.ends[1].poll_completion(passive);
        assert!(
            matches!(received, Some(Completion::Received { .. })),
            "{received:?}"
        );
        assert!(network.ends[1].poll_completion(passive).is_none());
    }
}

/// A peer asks for as many long Reads as it may, and takes nothing. Responses are made only when the socket takes
/// them, one group at a time, and other work is sent between them.
//= ROCE-SW-06 test
#[test]
fn long_reads_of_a_hostile_peer_use_no_memory_and_delay_nobody() {
    const LENGTH: u32 = 4 << 20;
    let mut network = Network::new(0);
    let [attacker, other] = [network.connected(), network.connected()];
    let region = BytesMut::zeroed(LENGTH as usize);
    let region = network.ends[1].register(attacker[1], region, Access::REMOTE_READ);
    let from = region.unwrap().address;
    let work = WorkRequest::Read {
        id: WorkId(1),
        from,
        into: BytesMut::zeroed(4),
    };
    let now = network.now;
    let pair = |network: &mut Network, end: usize| {
        let connection = network.ends[end].connections.get_mut(&attacker[end].0);
        connection.unwrap().queue_pair.take().unwrap()
    };
    let mut requester = pair(&mut network, 0);
    requester.post(work);
    let first = requester.poll_packet(now).expect("a request").bth.psn;
    let mut responder = pair(&mut network, 1);
    for index in 0..u32::from(EndpointSettings::default().responder_resources) {
        let psn = first.add(index * (LENGTH / 1024));
        let bth = Bth::new(Opcode::ReadRequest, attacker[1].0, psn);
        let extended = Extended::Reth(Reth {
            virtual_address: from.offset,
            r_key: from.token.0,
            length: LENGTH,
        });
        responder.handle(now, &bth, &extended, &[]);
    }
    assert!(!responder.is_broken());
    let connection = network.ends[1].connections.get_mut(&attacker[1].0);
    connection.unwrap().queue_pair = Some(responder);
    network.post(1, attacker[1], send(1, "to the attacker"));
    network.post(1, other[1], send(2, "to the other one"));
    let mut out = BytesMut::new();
    let mut send_in_group = |network: &mut Network| {
        out.clear();
        let transmit = network.ends[1].poll_transmit(now, 64, &mut out)?;
        assert!(out.len() <= 65_507 && out.capacity() <= 2 * 65_536);
        let sends = out.chunks(transmit.segment_size).filter_map(|datagram| {
            let (bth, _, _) = Packet::split(datagram).unwrap();
            (bth.opcode == Opcode::SendOnly).then_some(bth.destination_qp)
        });
        Some(sends.collect::<Vec<_>>())
    };
    let mut sends = Vec::new();
    for _ in 0..4 {
        sends.extend(send_in_group(&mut network).unwrap());
    }
    sends.sort_unstable();
    let mut expected = [attacker[0].0, other[0].0];
    expected.sort_unstable();
    assert_eq!(sends, expected);
    for _ in 0..1000 {
        assert!(send_in_group(&mut network).is_some_and(|sends| sends.is_empty()));
    }
    // Nothing is left of the Reads when the connection ends.
    network.ends[1].disconnect(now, attacker[1], Teardown::Abort);
    let groups = std::iter::from_fn(|| send_in_group(&mut network));
    assert!(groups.count() <= 1);
}
