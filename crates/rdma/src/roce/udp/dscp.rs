//! Sends a group of datagrams with a DSCP, on Linux.

use std::{
    io::{self, IoSlice},
    net::IpAddr,
    os::fd::{AsFd, AsRawFd},
};

use nix::{
    libc::{in_addr, in_pktinfo, in6_addr, in6_pktinfo},
    sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg},
};
use quinn_udp::Transmit;

use crate::software::network::{ECT_0, traffic_class};

/// Sends one group of datagrams. Their ECN field is ECT(0) if `message` has an ECN field.
pub(super) fn send(socket: &impl AsFd, message: &Transmit<'_>, dscp: u8) -> io::Result<()> {
    let ecn = if message.ecn.is_some() { ECT_0 } else { 0 };
    let class = traffic_class(dscp) | ecn;
    let wide_class = i32::from(class);
    let is_ipv4 = message.destination.ip().to_canonical().is_ipv4();
    let class = if is_ipv4 {
        ControlMessage::Ipv4Tos(&class)
    } else {
        ControlMessage::Ipv6TClass(&wide_class)
    };
    let segment = message.segment_size.unwrap_or(usize::MAX);
    let group = u16::try_from(segment)
        .ok()
        .filter(|_| segment < message.contents.len());
    let source = message.src_ip.map(Source::new);
    let control: Vec<_> = [
        Some(class),
        group.as_ref().map(ControlMessage::UdpGsoSegments),
        source.as_ref().map(Source::control),
    ]
    .into_iter()
    .flatten()
    .collect();
    let destination = SockaddrStorage::from(message.destination);
    let parts = [IoSlice::new(message.contents)];
    let socket = socket.as_fd().as_raw_fd();
    sendmsg(
        socket,
        &parts,
        &control,
        MsgFlags::empty(),
        Some(&destination),
    )?;
    Ok(())
}

/// The source address of datagrams.
enum Source {
    V4(in_pktinfo),
    V6(in6_pktinfo),
}

impl Source {
    const fn new(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::V4(in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: in_addr {
                    s_addr: u32::from_ne_bytes(address.octets()),
                },
                ipi_addr: in_addr { s_addr: 0 },
            }),
            IpAddr::V6(address) => Self::V6(in6_pktinfo {
                ipi6_addr: in6_addr {
                    s6_addr: address.octets(),
                },
                ipi6_ifindex: 0,
            }),
        }
    }

    const fn control(&self) -> ControlMessage<'_> {
        match self {
            Self::V4(source) => ControlMessage::Ipv4PacketInfo(source),
            Self::V6(source) => ControlMessage::Ipv6PacketInfo(source),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use quinn_udp::{EcnCodepoint, RecvMeta};

    use super::*;
    use crate::roce::udp::socket::state_of;

    /// The group arrives whole or in parts, with its source, and with the ECN field that it was sent with.
    #[test]
    fn groups_arrive_with_their_ecn_field_over_both_families() {
        for (from, to, source) in [
            ("127.0.0.1:0", "127.0.0.1:0", None),
            ("0.0.0.0:0", "127.0.0.1:0", Some("127.0.0.1")),
            ("[::1]:0", "[::1]:0", None),
            ("[::]:0", "[::1]:0", Some("::1")),
            ("[::]:0", "[::]:0", Some("127.0.0.1")),
        ] {
            let (Ok(sender), Ok(receiver)) = (UdpSocket::bind(from), UdpSocket::bind(to)) else {
                assert!(to.contains("::"), "a machine without IPv6");
                continue;
            };
            let state = state_of(&receiver).unwrap();
            receiver.set_nonblocking(false).unwrap();
            for ecn in [Some(EcnCodepoint::Ect0), None] {
                let mut destination = receiver.local_addr().unwrap();
                if destination.ip().is_unspecified() {
                    let mapped = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped();
                    destination.set_ip(mapped.into());
                }
                let message = Transmit {
                    destination,
                    ecn,
                    contents: &[7; 250],
                    segment_size: Some(100),
                    src_ip: source.map(|source| source.parse().unwrap()),
                };
                send(&sender, &message, 46).unwrap();
                let mut length = 0;
                while length < 250 {
                    let mut buffer = [0; 1000];
                    let mut metas = [RecvMeta::default()];
                    let mut slices = [io::IoSliceMut::new(&mut buffer)];
                    state
                        .recv((&receiver).into(), &mut slices, &mut metas)
                        .unwrap();
                    assert_eq!(metas[0].ecn, ecn, "{from} {to}");
                    assert!(metas[0].stride <= 100);
                    length += metas[0].len;
                }
                assert_eq!(length, 250);
            }
        }
    }
}
