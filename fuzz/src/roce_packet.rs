//! RoCEv2 packets and their ICRC.

use std::net::{Ipv4Addr, Ipv6Addr};

use bytes::{Bytes, BytesMut};
use smbdirect::rdma::roce::{
    icrc::{self, DatagramHeader, IpHeader},
    packet::{ICRC_LENGTH, Packet},
};

use crate::input::Input;

/// Decodes a datagram, encodes it again, and computes its ICRC.
pub fn roce_packet(data: &[u8]) {
    let mut input = Input::new(data);
    let header = header(&mut input);
    let datagram = Bytes::copy_from_slice(input.rest());
    let solved = icrc::solve(&header, &datagram);
    match header.ip {
        IpHeader::V4 { .. } => {
            // The solution is one, and it does not depend on the guess.
            let other = header.with_identification(0x5a5a);
            assert_eq!(icrc::solve(&other, &datagram), solved);
            if let Some(identification) = solved {
                let header = header.with_identification(identification);
                assert!(icrc::verify(&header, &datagram));
            }
        }
        IpHeader::V6 { .. } => assert_eq!(solved.is_some(), icrc::verify(&header, &datagram)),
    }
    let Ok(packet) = Packet::decode(&datagram) else {
        return;
    };
    let mut again = BytesMut::new();
    packet.encode(&mut again);
    assert_eq!(again.len(), packet.encoded_length());
    assert_eq!(again.len() + ICRC_LENGTH, datagram.len());
    icrc::append(&header, &mut again, 0);
    assert!(icrc::verify(&header, &again));
    // Reserved bits and the content of the pad are all that may differ.
    let again = again.freeze();
    assert_eq!(Packet::decode(&again), Ok(packet));
}

fn header(input: &mut Input<'_>) -> DatagramHeader {
    let ip = if input.is_odd() {
        IpHeader::V6 {
            source: Ipv6Addr::from_bits(input.any::<u16>().into()),
            destination: Ipv6Addr::LOCALHOST,
        }
    } else {
        IpHeader::V4 {
            source: Ipv4Addr::from_bits(input.any()),
            destination: Ipv4Addr::from_bits(input.any()),
            identification: input.any(),
            flags: input.any(),
        }
    };
    DatagramHeader {
        ip,
        source_port: input.any(),
        destination_port: 4791,
    }
}
