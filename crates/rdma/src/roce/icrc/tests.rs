//! Tests of the ICRC against a packet of Linux rxe, a bitwise CRC, and every Identification.

use bytes::Bytes;
use proptest::prelude::*;

use super::{polynomial::POLYNOMIAL, *};
use crate::roce::{
    Psn,
    packet::{Extended, Opcode, Packet, UDP_PORT},
};

/// An SMB Direct Negotiate Request from Linux rxe: IPv4, UDP, BTH, payload, ICRC.
const WORKED: &str = "45000040ad234000401178eb0a4d00030a4d0002 fa6212b7002c0000
    0400ffff00000011800130f0 000100010000ff00540500005405000056a70200 717ec0f2";

fn hex(text: &str) -> Bytes {
    let digits: Vec<u8> = text
        .chars()
        .filter_map(|digit| digit.to_digit(16))
        .map(|digit| digit as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

fn v4(identification: u16) -> DatagramHeader {
    DatagramHeader {
        ip: IpHeader::V4 {
            source: Ipv4Addr::new(10, 77, 0, 3),
            destination: Ipv4Addr::new(10, 77, 0, 2),
            identification,
            flags: IpHeader::DONT_FRAGMENT,
        },
        source_port: 0xfa62,
        destination_port: UDP_PORT,
    }
}

fn v6() -> DatagramHeader {
    let [source, destination] =
        ["[fe80::1]:49152", "[fe80::2]:4791"].map(|address| address.parse::<SocketAddr>().unwrap());
    DatagramHeader::between(source, destination).unwrap()
}

//= ROCE-A17.3.3-01 test
//= ROCE-A17.3.3-02 test
//= ROCE-A17.3.3-05 test
#[test]
fn the_worked_packet_is_decoded_checked_and_encoded() {
    let datagram = hex(WORKED).slice(IPV4_LENGTH + UDP_LENGTH..);
    let packet = Packet::decode(&datagram).unwrap();
    let psn = Psn::new(0x0130f0);
    let mut bth = Bth::new(Opcode::SendOnly, 0x11, psn);
    bth.ack_request = true;
    assert_eq!(packet.bth, bth);
    assert_eq!(packet.extended, Extended::Plain);
    assert_eq!(packet.payload, datagram[12..32]);
    assert!(verify(&v4(0xad23), &datagram));
    assert_eq!(solve(&v4(0), &datagram), Some(0xad23));
    let mut again = BytesMut::new();
    packet.encode(&mut again);
    assert_eq!(again.len(), packet.encoded_length());
    append(&v4(0xad23), &mut again, 0);
    assert_eq!(again, datagram);
}

/// Computes the ICRC bit by bit from headers as they are on the wire.
fn bitwise(masked: &[u8]) -> [u8; 4] {
    let mut register = u32::MAX;
    for byte in [&[0xff; 8], masked].concat() {
        register ^= u32::from(byte);
        for _ in 0..8 {
            register = register >> 1 ^ if register & 1 != 0 { POLYNOMIAL } else { 0 };
        }
    }
    (!register).to_le_bytes()
}

//= ROCE-A17.3.3-03 test
//= ROCE-A17.3.3-04 test
#[test]
fn the_icrc_of_ipv6_equals_a_bitwise_crc_of_the_masked_headers() {
    let packet = hex("0400ffff400000118001 30f0 01020304");
    let mut covered = hex("6fffffff 001c 11 ff
        fe800000000000000000000000000001 fe800000000000000000000000000002
        c000 12b7 001c ffff")
    .to_vec();
    covered.extend_from_slice(&packet);
    covered[48 + 4] = 0xff;
    assert_eq!(icrc(&v6(), &[&packet]), bitwise(&covered));
}

//= ROCE-A17.3.3-04 test
#[test]
fn congestion_marks_do_not_change_the_icrc() {
    let plain = hex("0400ffff000000118001 30f0");
    let marked = hex("0400ffffc00000118001 30f0");
    assert_eq!(icrc(&v4(1), &[&plain]), icrc(&v4(1), &[&marked]));
}

#[test]
fn headers_are_built_from_socket_addresses() {
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    let plain = DatagramHeader::between(address("10.77.0.3:64098"), address("10.77.0.2:4791"));
    assert_eq!(plain, Some(v4(0)));
    let mapped = address("[::ffff:10.77.0.3]:64098");
    assert_eq!(
        DatagramHeader::between(mapped, address("10.77.0.2:4791")),
        plain
    );
    assert_eq!(
        DatagramHeader::between(address("[::1]:1"), address("10.77.0.2:4791")),
        None
    );
    assert_eq!(v6().with_identification(7), v6());
    assert_eq!(v4(0).with_identification(7), v4(7));
}

#[test]
fn short_payloads_have_no_icrc() {
    for length in 0..16 {
        assert!(!verify(&v4(0), &vec![0; length]));
        assert_eq!(solve(&v4(0), &vec![0; length]), None);
        assert_eq!(FlowIcrc::new(&v4(0)).solve(0, &vec![0; length]), None);
    }
}

//= ROCE-A17.3.3-06 test
#[test]
fn every_identification_is_found() {
    for length in [12, 16, 28, 1036, 4124] {
        let mut datagram = BytesMut::zeroed(length);
        append(&v4(0), &mut datagram, 0);
        for guess in [0, 0x1234, 0xffff] {
            for identification in (0..=u16::MAX).step_by(if length > 1000 { 501 } else { 7 }) {
                datagram.truncate(length);
                append(&v4(identification), &mut datagram, 0);
                assert_eq!(solve(&v4(guess), &datagram), Some(identification));
            }
        }
    }
}

proptest! {
    /// Lengths become known at their second packet, and share places.
    //= ROCE-A17.3.3-04 test
    //= ROCE-A17.3.3-06 test
    #[test]
    fn a_flow_computes_the_same_icrcs(
        lengths in proptest::collection::vec(3..20_usize, 1..20),
        identification: u16,
        guess: u16,
        congestion in proptest::sample::select(&[0, 0, 0x40, 0xc0][..]),
        fill: u8,
    ) {
        for header in [v4(0), v6()] {
            let mut flow = FlowIcrc::new(&header);
            for length in lengths.iter().flat_map(|length| [length * 4; 3]) {
                let mut packet = vec![fill; length];
                packet[MASKED_BTH_BYTE] = congestion;
                let expected = icrc(&header.with_identification(identification), &[&packet]);
                prop_assert_eq!(flow.icrc(identification, &packet), expected);
                packet.extend_from_slice(&expected);
                let found = if flow.has_identification() { identification } else { 0 };
                prop_assert_eq!(flow.solve(guess, &packet), Some(found));
                packet[length - 1] ^= 1;
                prop_assert_ne!(flow.solve(guess, &packet), Some(found));
            }
        }
    }

    //= ROCE-A17.3.3-06 test
    #[test]
    fn damage_is_found_or_changes_the_identification(
        mut datagram in proptest::collection::vec(any::<u8>(), 16..300),
        identification: u16,
        at: proptest::sample::Index,
        flip in 1..=255_u8,
    ) {
        let end = datagram.len() - ICRC_LENGTH;
        for header in [v4(identification), v6()] {
            let found = icrc(&header, &[&datagram[..end]]);
            datagram[end..].copy_from_slice(&found);
            prop_assert!(verify(&header, &datagram));
            let at = at.index(datagram.len());
            datagram[at] ^= flip;
            if at == MASKED_BTH_BYTE {
                prop_assert!(verify(&header, &datagram));
            } else {
                // A CRC of 32 bits detects every change within 8 adjacent bits, so the ICRC is wrong with the
                // true Identification.
                prop_assert!(!verify(&header, &datagram));
                if let IpHeader::V4 { .. } = header.ip {
                    prop_assert_ne!(solve(&header, &datagram), Some(identification));
                } else {
                    prop_assert_eq!(solve(&header, &datagram), None);
                }
            }
            datagram[at] ^= flip;
        }
    }

    /// The parts may be cut anywhere after the BTH.
    #[test]
    fn the_parts_of_a_packet_are_one_packet(
        packet in proptest::collection::vec(any::<u8>(), 12..200),
        cut: proptest::sample::Index,
    ) {
        let (first, second) = packet.split_at(Bth::LENGTH + cut.index(packet.len() - 11));
        prop_assert_eq!(icrc(&v6(), &[first, &[], second]), icrc(&v6(), &[&packet]));
    }
}
