//! Messages of the communication manager: connections that are refused, and other ports.

use bytes::{Bytes, BytesMut};
use pcap_file::DataLink;
use smbdirect::rdma::roce::{
    Psn,
    cm::{Mad, Message, MessageKind, PrivateData, Reject, RejectReason},
    icrc::{self, DatagramHeader, IpHeader},
    packet::{Bth, Deth, Extended, Opcode, Packet, UDP_PORT},
};

use smbdirect_test::{
    decoded::{events, names},
    talk::{
        roce::{ethernet, right_icrc},
        write_pcap,
    },
};

use super::super::{
    captures::{capture, packets},
    decode,
};

/// The offset of the body of a CM message in a frame of IPv4.
const BODY: usize = 14 + 20 + 8 + 12 + 8 + 24;
/// The frame of the REQ in `rxe-negotiate.pcap`.
const REQUEST: usize = 2;

/// A message of the CM from 10.77.0.2 to 10.77.0.3.
fn message(message: Message) -> Vec<u8> {
    let mad = Mad {
        transaction_id: 7,
        message,
    };
    let packet = Packet {
        bth: Bth::new(Opcode::UdSendOnly, 1, Psn::new(0)),
        extended: Extended::Deth(Deth {
            q_key: 0x8001_0000,
            source_qp: 1,
        }),
        payload: Bytes::copy_from_slice(&mad.encode()),
    };
    let header = DatagramHeader {
        ip: IpHeader::V4 {
            source: [10, 77, 0, 2].into(),
            destination: [10, 77, 0, 3].into(),
            identification: 5,
            flags: IpHeader::DONT_FRAGMENT,
        },
        source_port: 0xc000,
        destination_port: UDP_PORT,
    };
    let mut datagram = BytesMut::new();
    packet.encode(&mut datagram);
    icrc::append(&header, &mut datagram, 0);
    ethernet(&header, &datagram)
}

#[test]
fn a_refused_connection_is_shown_with_its_reason() {
    let Some(path) = capture("rxe-negotiate.pcap") else {
        return;
    };
    let request = packets(&path)[REQUEST].clone();
    let id = u32::from_be_bytes(request[BODY..BODY + 4].try_into().unwrap());
    let reject = message(Message::Reject(Box::new(Reject {
        local_communication_id: 0,
        remote_communication_id: id,
        rejected: MessageKind::Request,
        information_length: 0,
        reason: RejectReason::INVALID_SERVICE_ID,
        information: PrivateData::default(),
        private_data: PrivateData::default(),
    })));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("refused.pcap");
    // The REQ is sent again before it is answered.
    let mut again = request.clone();
    again[18] ^= 1;
    right_icrc(&mut again);
    write_pcap(&path, DataLink::ETHERNET, &[request, again, reject]);
    let done = decode(&path, &[]).succeeded();
    let says = "Reason 8, ReasonText nothing listens on the service ID";
    assert!(done.stdout.contains(says), "{}", done.stdout);
    assert!(done.stdout.contains("Again"), "{}", done.stdout);
    let done = decode(&path, &["--json"]).succeeded();
    assert_eq!(names(&done), ["CM REQ", "CM REQ", "CM REJ"]);
    let lines = events(&done, "message");
    assert_eq!(
        (&lines[0]["again"], &lines[1]["again"]),
        (&false.into(), &true.into())
    );
    assert_eq!(lines[2]["from"], "responder");
    assert_eq!(lines[2]["reason"], 8);
}

/// On another port, the messages of a connection show that it is SMB Direct, or `--port` does.
#[test]
fn other_ports_are_read() {
    let Some(path) = capture("rxe-negotiate.pcap") else {
        return;
    };
    let mut frames = packets(&path);
    frames[REQUEST][BODY + 14..BODY + 16].copy_from_slice(&9445_u16.to_be_bytes());
    right_icrc(&mut frames[REQUEST]);
    let expected = names(&decode(&path, &["--json"]).succeeded());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("port.pcap");
    write_pcap(&path, DataLink::ETHERNET, &frames);
    let done = decode(&path, &["--json"]).succeeded();
    assert_eq!(names(&done), expected);
    assert_eq!(events(&done, "stream")[0]["port"], 9445);
    // The CM alone is not enough.
    write_pcap(&path, DataLink::ETHERNET, &frames[..5]);
    decode(&path, &["--json"])
        .failed(1, "give --port")
        .one_line();
    let done = decode(&path, &["--json", "--port", "9445"]).succeeded();
    assert_eq!(names(&done), ["CM REQ", "CM REP", "CM RTU"]);
}
