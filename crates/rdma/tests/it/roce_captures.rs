//! What Linux 7.2 (cifs, ksmbd, rxe) sent: every RoCEv2 packet is read with our decoder, its ICRC is
//! checked, and it is written again to the byte.

use std::{collections::BTreeMap, fs, net::Ipv4Addr, path::Path};

use bytes::{Bytes, BytesMut};
use pcap_file::pcap::PcapReader;
use smbdirect_rdma::roce::{
    icrc::{self, DatagramHeader, IpHeader},
    packet::{DecodeError, Extended, Opcode, Packet, Syndrome, UDP_PORT},
};

const ETHERNET_LENGTH: usize = 14;
const IPV4_LENGTH: usize = 20;
const UDP_LENGTH: usize = 8;

/// Returns the headers and the UDP payload of each RoCEv2 packet of a capture.
fn packets(name: &str) -> Vec<(DatagramHeader, Bytes)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../smbdirect/tests/captures")
        .join(name);
    let mut reader = PcapReader::new(fs::File::open(path).unwrap()).unwrap();
    let mut found = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let frame = packet.unwrap().data;
        let ip = &frame[ETHERNET_LENGTH..];
        let word = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
        let address = |at: usize| Ipv4Addr::from(*ip[at..].first_chunk::<4>().unwrap());
        if (ip[0], ip[9]) != (0x45, 17) || word(IPV4_LENGTH + 2) != UDP_PORT {
            continue;
        }
        let header = DatagramHeader {
            ip: IpHeader::V4 {
                source: address(12),
                destination: address(16),
                identification: word(4),
                flags: word(6),
            },
            source_port: word(IPV4_LENGTH),
            destination_port: UDP_PORT,
        };
        let end = usize::from(word(2));
        let payload = &ip[IPV4_LENGTH + UDP_LENGTH..end];
        found.push((header, Bytes::copy_from_slice(payload)));
    }
    found
}

/// Checks one packet, and returns its opcode.
fn check(header: &DatagramHeader, datagram: &Bytes) -> Opcode {
    assert!(icrc::verify(header, datagram));
    let IpHeader::V4 { identification, .. } = header.ip else {
        panic!("the captures have IPv4 only");
    };
    let unknown = header.with_identification(0);
    assert_eq!(icrc::solve(&unknown, datagram), Some(identification));
    let packet = Packet::decode(datagram).unwrap();
    let mut again = BytesMut::new();
    packet.encode(&mut again);
    icrc::append(header, &mut again, 0);
    assert_eq!(again, datagram);
    for length in 0..datagram.len() {
        let truncated = datagram.slice(..length);
        // The end of a payload is not known, so only the alignment shows that some bytes of it are
        // missing. The ICRC shows the rest.
        match Packet::decode(&truncated) {
            Ok(shorter) => assert!(shorter.payload.len() < packet.payload.len()),
            Err(error) => assert!(matches!(
                error,
                DecodeError::TooShort { .. } | DecodeError::Unaligned { .. }
            )),
        }
        assert!(!icrc::verify(header, &truncated));
    }
    if let Some(aeth) = packet.extended.aeth() {
        assert_eq!(aeth.syndrome, Syndrome::Ack { credit: 0x1f });
    }
    if let Extended::Deth(deth) = packet.extended {
        assert_eq!((deth.q_key, deth.source_qp), (0x8001_0000, 1));
        assert_eq!(packet.payload.len(), 256);
    }
    packet.bth.opcode
}

fn counts(name: &str) -> BTreeMap<u8, usize> {
    let mut counts = BTreeMap::new();
    for (header, datagram) in packets(name) {
        *counts.entry(check(&header, &datagram) as u8).or_default() += 1;
    }
    counts
}

//= ROCE-9.2.1-03 test
//= ROCE-9.2.1-04 test
//= ROCE-A17.3.3-02 test
//= ROCE-A17.3.3-06 test
#[test]
fn rxe_negotiate() {
    let expected = [(0x04, 53), (0x11, 53), (0x64, 5)];
    assert_eq!(counts("rxe-negotiate.pcap"), expected.into());
}

//= ROCE-A17.3.3-02 test
#[test]
fn rxe_small() {
    let expected = [
        (0x00, 10),
        (0x02, 10),
        (0x04, 211),
        (0x06, 6),
        (0x07, 4),
        (0x08, 6),
        (0x0a, 4),
        (0x11, 251),
        (0x17, 20),
        (0x64, 5),
    ];
    assert_eq!(counts("rxe-small.pcap"), expected.into());
}
