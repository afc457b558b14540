//! Tests of the CM with messages that Linux has sent, and with a table of the state machine.

mod network;

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use proptest::prelude::*;

use super::*;

/// Returns the 256 bytes that begin with the bytes of `hex`.
fn mad(hex: &str) -> [u8; 256] {
    let hex: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let mut bytes = [0; 256];
    for (byte, digits) in bytes.iter_mut().zip(hex.chunks(2)) {
        *byte = u8::from_str_radix(str::from_utf8(digits).unwrap(), 16).unwrap();
    }
    bytes
}

/// REQ, REP, RTU, DREQ and DREP of a connection between two Linux kernels over rxe.
const LINUX: [&str; 5] = [
    "010702030000000000000002b6de3f5c0010000000000000
     5c3fdeb60000000000000000010601bd000000fffe77000300000000000000000000112000000001000000a0
     dcf980a6ffff30f0ffffffff00000000000000000000ffff0a4d000300000000000000000000ffff0a4d0002
     9fa4500000400088
     0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000
     0040d6780000000000000000000000000a4d00030000000000000000000000000a4d0002",
    "010702030000000000000002b6de3f5c0013000000000000
     181aa19e5c3fdeb60000000000001100000000000130f00001087800000000fffe770002",
    "010702030000000000000002b6de3f5c00140000000000005c3fdeb6181aa19e",
    "010702030000000000000002b6de3f5c00150000000000005c3fdeb6181aa19e000011",
    "010702030000000000000002b6de3f5c0016000000000000181aa19e5c3fdeb6",
];

//= ROCE-12.6-01 test
#[test]
fn messages_of_linux_are_read_and_written() {
    let read = LINUX.map(|hex| Mad::decode(&mad(hex)).unwrap());
    for (hex, message) in LINUX.iter().zip(&read) {
        assert_eq!(message.encode(), mad(hex), "{}", message.message.name());
        assert_eq!(message.transaction_id, 0x2_b6de_3f5c);
    }
    let names = read.each_ref().map(|mad| mad.message.name());
    assert_eq!(names, ["REQ", "REP", "RTU", "DREQ", "DREP"]);
    let [
        Mad {
            message: Message::ConnectRequest(request),
            ..
        },
        reply,
        ..,
    ] = read
    else {
        panic!("a REQ")
    };
    assert_eq!(request.service_id, ServiceId::of_port(445));
    assert_eq!(request.service_id.port(), Some(445));
    assert_eq!(request.queue_pair, 0x11);
    assert_eq!(
        (request.responder_resources, request.initiator_depth),
        (32, 1)
    );
    assert_eq!(request.starting_psn, 0xdc_f980);
    assert_eq!(request.path_mtu, Some(PathMtu::Mtu1024));
    assert_eq!((request.retry_count, request.rnr_retry_count), (6, 0));
    assert_eq!(request.max_cm_retries, 15);
    let path = request.primary_path;
    assert_eq!(path.remote_gid.to_canonical(), IpAddr::from([10, 77, 0, 2]));
    assert_eq!(path.local_ack_timeout.exponent(), 17);
    assert_eq!(path.flow_label, 0x9_fa45);
    assert_eq!(request.alternate_path, None);
    let header = RdmaCmHeader {
        source_port: 0xd678,
        source: IpAddr::from([10, 77, 0, 3]),
        destination: IpAddr::from([10, 77, 0, 2]),
    };
    assert_eq!(
        RdmaCmHeader::decode(request.private_data.as_bytes()),
        Some(header)
    );
    assert_eq!(&header.encode()[..], &request.private_data.as_bytes()[..36]);
    let Message::ConnectReply(reply) = reply.message else {
        panic!("a REP")
    };
    assert_eq!((reply.queue_pair, reply.starting_psn), (0x11, 0x01_30f0));
    assert_eq!((reply.responder_resources, reply.initiator_depth), (1, 8));
}

//= ROCE-12.6-01 test
#[test]
fn other_datagrams_are_errors() {
    let good = mad(LINUX[0]);
    for (at, value, error) in [
        (0, 2, MadError::BaseVersion(2)),
        (1, 3, MadError::Class(3)),
        (2, 1, MadError::ClassVersion(1)),
        (3, 0x81, MadError::Method(0x81)),
        (17, 0x19, MadError::Attribute(0x19)),
        (16, 1, MadError::Attribute(0x110)),
    ] {
        let mut bad = good;
        bad[at] = value;
        assert_eq!(Mad::decode(&bad), Err(error));
    }
    for length in [0, 24, 255, 257] {
        let bytes = [&good[..], &[0]].concat();
        assert_eq!(Mad::decode(&bytes[..length]), Err(MadError::Length(length)));
    }
}

//= ROCE-A11-02 test
#[test]
fn private_data_without_the_header_of_the_rdma_cm_has_none() {
    for (version, ip) in [(0x00, 0x50), (0x01, 0x40), (0x10, 0x60), (0x00, 0x04)] {
        let mut bytes = [7; 36];
        (bytes[0], bytes[1]) = (version, ip);
        assert_eq!(RdmaCmHeader::decode(&bytes), None);
    }
    let header = RdmaCmHeader {
        source_port: 7,
        source: "fd00::1".parse().unwrap(),
        destination: "fd00::2".parse().unwrap(),
    };
    assert_eq!(RdmaCmHeader::decode(&header.encode()), Some(header));
    assert_eq!(RdmaCmHeader::decode(&header.encode()[..35]), None);
    assert_eq!(
        PrivateData::<4>::new(b"12345"),
        Err(TooLong {
            length: 5,
            limit: 4
        })
    );
}

//= ROCE-A11-01 test
#[test]
fn service_ids_of_other_port_spaces_have_no_port() {
    assert_eq!(ServiceId::of_port(5445).0, 0x0106_1545);
    for other in [0, 445, 0x0111_01bd, 0x0001_0000_0106_01bd, 0x0107_01bd] {
        assert_eq!(ServiceId(other).port(), None);
    }
}

#[test]
fn timeouts_and_path_mtus_convert() {
    assert_eq!(
        CmTimeout::from_exponent(0).duration(),
        Duration::from_nanos(4096)
    );
    assert_eq!(
        CmTimeout::from_exponent(20).duration(),
        Duration::from_nanos(4_294_967_296)
    );
    assert_eq!(CmTimeout::at_least(Duration::ZERO).exponent(), 0);
    assert_eq!(CmTimeout::at_least(Duration::from_secs(1)).exponent(), 18);
    assert_eq!(CmTimeout::at_least(Duration::MAX), CmTimeout::MAX);
    for (interface, ipv6, bytes) in [
        (1500, false, 1024),
        (1500, true, 1024),
        (1083, false, 512),
        (1084, false, 1024),
        (1103, true, 512),
        (9000, false, 4096),
        (65536, true, 4096),
        (68, false, 256),
    ] {
        assert_eq!(
            PathMtu::of_interface(interface, ipv6).bytes(),
            bytes,
            "{interface}"
        );
    }
    for mtu in PathMtu::ALL {
        assert_eq!(PathMtu::from_code(mtu.code()), Some(mtu));
    }
    assert_eq!((PathMtu::from_code(0), PathMtu::from_code(6)), (None, None));
}

proptest! {
    //= ROCE-12.6-01 test
    #[test]
    fn no_datagram_panics_and_values_survive(
        attribute in 0x10_u8..0x17,
        mut bytes in proptest::collection::vec(any::<u8>(), 256),
    ) {
        let _ = Mad::decode(&bytes);
        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[16..18].copy_from_slice(&[0, attribute]);
        let mad = Mad::decode(&bytes).unwrap();
        prop_assert_eq!(Mad::decode(&mad.encode()).unwrap(), mad);
    }
}

const ACTIVE: u32 = 0xa;
const PASSIVE: u32 = 0xb;

fn request() -> ConnectRequest {
    let Message::ConnectRequest(request) = Mad::decode(&mad(LINUX[0])).unwrap().message else {
        panic!("a REQ")
    };
    ConnectRequest {
        local_communication_id: ACTIVE,
        ..*request
    }
}

fn reply() -> ConnectReply {
    let Message::ConnectReply(reply) = Mad::decode(&mad(LINUX[1])).unwrap().message else {
        panic!("a REP")
    };
    ConnectReply {
        local_communication_id: PASSIVE,
        remote_communication_id: ACTIVE,
        ..*reply
    }
}

fn active(now: Instant) -> (Communication, Output) {
    Communication::connect(now, CmTiming::default(), 1, request())
}

fn passive() -> Communication {
    Communication::requested(CmTiming::default(), 1, &request(), PASSIVE, 0x11)
}

/// Returns every message that the peer of `to` can send to it.
fn messages_from(from: u32, to: u32) -> Vec<Message> {
    let (local_communication_id, remote_communication_id) = (from, to);
    vec![
        Message::ConnectRequest(Box::new(request())),
        Message::ConnectReply(Box::new(ConnectReply {
            local_communication_id,
            remote_communication_id,
            ..reply()
        })),
        Message::ReadyToUse(Box::new(ReadyToUse {
            local_communication_id,
            remote_communication_id,
            private_data: PrivateData::default(),
        })),
        Message::DisconnectRequest(Box::new(DisconnectRequest {
            local_communication_id,
            remote_communication_id,
            remote_queue_pair: 0x11,
            private_data: PrivateData::default(),
        })),
        Message::DisconnectReply(Box::new(DisconnectReply {
            local_communication_id,
            remote_communication_id,
            private_data: PrivateData::default(),
        })),
        Message::Reject(Box::new(Reject {
            local_communication_id,
            remote_communication_id,
            rejected: MessageKind::Request,
            information_length: 0,
            reason: RejectReason::CONSUMER,
            information: PrivateData::default(),
            private_data: PrivateData::default(),
        })),
        Message::MessageReceiptAcknowledgment(Box::new(MessageReceiptAcknowledgment {
            local_communication_id,
            remote_communication_id,
            acknowledged: MessageKind::Request,
            service_timeout: CmTimeout::from_exponent(20),
            private_data: PrivateData::default(),
        })),
    ]
}

/// Creates a communication in the state that `name` names.
fn in_state(name: &str, now: Instant) -> Communication {
    let none = PrivateData::default;
    let accepted = || {
        let (mut communication, _) = active(now);
        let _ = communication.handle_message(now, Message::ConnectReply(Box::new(reply())));
        communication
    };
    let established = || {
        let mut communication = accepted();
        let _ = communication.confirm();
        communication
    };
    match name {
        "request sent" => active(now).0,
        "reply received" => accepted(),
        "established, active" => established(),
        "disconnect sent" => {
            let mut communication = established();
            let _ = communication.disconnect(now, none());
            communication
        }
        "disconnected" => {
            let mut communication = established();
            let _ = communication.disconnect(now, none());
            let drep = messages_from(PASSIVE, ACTIVE).swap_remove(4);
            let _ = communication.handle_message(now, drep);
            communication
        }
        "request received" => passive(),
        "reply sent" => {
            let mut communication = passive();
            let _ = communication.accept(now, reply());
            communication
        }
        "established, passive" => {
            let mut communication = in_state("reply sent", now);
            let _ = communication.handle_data();
            communication
        }
        "rejected by this end" => {
            let mut communication = passive();
            let none = PrivateData::default();
            let _ = communication.reject(now, RejectReason::CONSUMER, &[], none);
            communication
        }
        other => panic!("{other}"),
    }
}

/// Returns the short form of an output: the message that is sent, and the event.
fn short(output: &Output) -> String {
    let message = output.message.as_ref().map(|mad| mad.message.name());
    let event = output.event.as_ref().map(|event| match event {
        CommunicationEvent::Accepted(_) => "accepted",
        CommunicationEvent::Established => "established",
        CommunicationEvent::Failed(Failure::Rejected(_)) => "rejected",
        CommunicationEvent::Failed(Failure::TimedOut) => "timed out",
        CommunicationEvent::Disconnected(_) => "disconnected",
        CommunicationEvent::DisconnectFinished => "finished",
    });
    match (message, event) {
        (None, None) => "-".into(),
        (Some(one), None) | (None, Some(one)) => one.into(),
        (Some(message), Some(event)) => format!("{message}+{event}"),
    }
}

//= ROCE-12.9-02 test
//= ROCE-12.9-03 test
//= ROCE-12.9-04 test
//= ROCE-12.9-05 test
//= ROCE-12.9-07 test
//= ROCE-12.9-08 test
#[test]
fn every_message_in_every_state() {
    // REQ, REP, RTU, DREQ, DREP, REJ, MRA, data
    let table = [
        ("request sent", "- accepted - - - rejected - -"),
        ("reply received", "- - - - - - - -"),
        ("established, active", "- RTU - DREP+disconnected - - - -"),
        (
            "disconnect sent",
            "- - - DREP+finished finished finished - -",
        ),
        ("disconnected", "- - - DREP - - - -"),
        ("request received", "MRA - - - - - - -"),
        (
            "reply sent",
            "REP - established DREP+disconnected - rejected - established",
        ),
        ("established, passive", "- - - DREP+disconnected - - - -"),
        ("rejected by this end", "REJ - - - - - - -"),
    ];
    let now = Instant::now();
    for (state, row) in table {
        let outcome = |index: usize| {
            let mut communication = in_state(state, now);
            let id = communication.local_id();
            let (from, to) = if id == ACTIVE {
                (PASSIVE, ACTIVE)
            } else {
                (ACTIVE, PASSIVE)
            };
            let message = messages_from(from, to).into_iter().nth(index);
            let output = match message {
                // Only an active end has this communication ID.
                Some(Message::ConnectRequest(_)) if id == ACTIVE => Output::default(),
                Some(message) => communication.handle_message(now, message),
                None => communication.handle_data(),
            };
            if let Some(mad) = &output.message {
                assert_eq!(mad.transaction_id, 1);
                assert_eq!(mad.message.local_communication_id(), id);
                assert_eq!(mad.message.remote_communication_id(), Some(from));
            }
            short(&output)
        };
        let outcomes: Vec<_> = (0..8).map(outcome).collect();
        assert_eq!(outcomes.join(" "), row, "{state}");
        // Messages with other communication IDs change nothing.
        for (from, to) in [(ACTIVE, 0), (PASSIVE, 0), (99, PASSIVE), (99, ACTIVE)] {
            let mut communication = in_state(state, now);
            if state == "request sent" && to == ACTIVE {
                continue;
            }
            for message in messages_from(from, to).into_iter().skip(1) {
                let output = communication.handle_message(now, message);
                assert_eq!(short(&output), "-", "{state} from {from} to {to}");
            }
        }
        let mut communication = in_state(state, now);
        let (from, to) = match communication.local_id() {
            ACTIVE => (PASSIVE, ACTIVE),
            _ => (ACTIVE, PASSIVE),
        };
        let dreq = Message::DisconnectRequest(Box::new(DisconnectRequest {
            local_communication_id: from,
            remote_communication_id: to,
            remote_queue_pair: 0x12,
            private_data: PrivateData::default(),
        }));
        assert_eq!(
            short(&communication.handle_message(now, dreq)),
            "-",
            "another queue pair"
        );
    }
}

//= ROCE-12.9-01 test
#[test]
fn unanswered_messages_are_repeated_and_then_given_up() {
    let table = [
        ("request sent", "REQ", "REJ+timed out", true),
        ("reply sent", "REP", "REJ+timed out", false),
        ("disconnect sent", "DREQ", "finished", false),
    ];
    for (state, message, end, grows) in table {
        let mut now = Instant::now();
        let mut communication = in_state(state, now);
        for repetition in 0..15 {
            let deadline = communication.poll_timeout().unwrap();
            let doublings = if grows { repetition / 3 } else { 0 };
            assert_eq!(
                deadline - now,
                CmTiming::default().response_timeout.duration() * (1 << doublings),
                "{state} {repetition}"
            );
            let early = communication.handle_timeout(deadline - Duration::from_nanos(1));
            assert_eq!(short(&early), "-");
            now = deadline;
            assert_eq!(short(&communication.handle_timeout(now)), message);
        }
        now = communication.poll_timeout().unwrap();
        assert_eq!(short(&communication.handle_timeout(now)), end, "{state}");
        assert!(communication.has_ended() && !communication.is_closed());
        now = communication.poll_timeout().unwrap();
        assert_eq!(short(&communication.handle_timeout(now)), "-");
        assert!(communication.is_closed());
        assert_eq!(communication.poll_timeout(), None);
    }
    // Nothing is repeated while the consumer decides, or on an established connection.
    for state in [
        "request received",
        "established, active",
        "established, passive",
    ] {
        assert_eq!(
            in_state(state, Instant::now()).poll_timeout(),
            None,
            "{state}"
        );
    }
}

//= ROCE-12.9-06 test
#[test]
fn an_mra_extends_the_wait_within_limits() {
    let now = Instant::now();
    for (exponent, wait) in [(0, 0.268), (20, 4.29), (31, 60.0)] {
        let (mut communication, _) = active(now);
        let receipt =
            Message::MessageReceiptAcknowledgment(Box::new(MessageReceiptAcknowledgment {
                local_communication_id: PASSIVE,
                remote_communication_id: ACTIVE,
                acknowledged: MessageKind::Request,
                service_timeout: CmTimeout::from_exponent(exponent),
                private_data: PrivateData::default(),
            }));
        let _ = communication.handle_message(now, receipt);
        let waits = communication.poll_timeout().unwrap() - now;
        assert!((waits.as_secs_f64() - wait).abs() < 0.01, "{waits:?}");
    }
}

#[test]
fn disconnecting_ends_every_state_once() {
    let table = [
        ("request sent", "REJ"),
        ("reply received", "REJ"),
        ("established, active", "DREQ"),
        ("disconnect sent", "-"),
        ("disconnected", "-"),
        ("request received", "REJ"),
        ("reply sent", "DREQ"),
        ("rejected by this end", "-"),
    ];
    for (state, message) in table {
        let now = Instant::now();
        let mut communication = in_state(state, now);
        let output = communication.disconnect(now, PrivateData::default());
        assert_eq!(short(&output), message, "{state}");
        assert_eq!(
            short(&communication.disconnect(now, PrivateData::default())),
            "-"
        );
    }
}
