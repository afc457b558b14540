//! Packets: link layer, IP and TCP around a piece of a stream.

use std::net::{IpAddr, SocketAddr};

use etherparse::{EtherType, LaxNetSlice, LaxSlicedPacket, TransportSlice};

use super::capture::Packet;

/// A piece of a TCP stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment<'a> {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) sequence: u32,
    /// The acknowledgement number: what its sender has seen of the other direction.
    pub(crate) acknowledged: Option<u32>,
    pub(crate) syn: bool,
    pub(crate) fin: bool,
    pub(crate) rst: bool,
    pub(crate) payload: &'a [u8],
    /// Payload bytes on the wire that are not in the file.
    pub(crate) missing: u32,
}

/// The kind of a packet.
#[derive(Debug)]
pub(crate) enum Content<'a> {
    Tcp(Segment<'a>),
    /// InfiniBand in UDP.
    RoceV2,
    /// A fragment of an IP packet; fragments are not reassembled.
    Fragment,
    /// An unknown link layer.
    UnknownLink(u32),
    Other,
}

/// The port of RoCEv2.
const ROCE_V2: u16 = 4791;

mod link {
    //! Numbers in the registry of tcpdump.org.
    pub(super) const NULL: u32 = 0;
    pub(super) const ETHERNET: u32 = 1;
    /// Raw IP by the number that OpenBSD gave it, and that of its header.
    pub(super) const RAW_OPENBSD: u32 = 14;
    pub(super) const RAW_BSD: u32 = 12;
    pub(super) const RAW: u32 = 101;
    pub(super) const LOOP: u32 = 108;
    pub(super) const LINUX_SLL: u32 = 113;
    pub(super) const IPV4: u32 = 228;
    pub(super) const IPV6: u32 = 229;
    pub(super) const LINUX_SLL2: u32 = 276;
}

/// Finds the piece of a TCP stream in a packet.
pub(crate) fn content<'a>(packet: &Packet<'a>) -> Content<'a> {
    let data = packet.data;
    let ether_type = |at: usize| {
        let bytes = data.get(at..)?.first_chunk::<2>()?;
        Some(EtherType(u16::from_be_bytes(*bytes)))
    };
    let behind = |length: usize| data.get(length..);
    let sliced = match packet.link {
        link::ETHERNET => parts(ether_type(12), behind(14)),
        link::LINUX_SLL => parts(ether_type(14), behind(16)),
        link::LINUX_SLL2 => parts(ether_type(0), behind(20)),
        // The address family is in the byte order of some machine, so the IP header decides.
        link::NULL | link::LOOP => ip(behind(4)),
        link::RAW | link::RAW_BSD | link::RAW_OPENBSD | link::IPV4 | link::IPV6 => ip(Some(data)),
        other => return Content::UnknownLink(other),
    };
    sliced.map_or(Content::Other, |sliced| found(packet, &sliced))
}

fn parts(ether_type: Option<EtherType>, payload: Option<&[u8]>) -> Option<LaxSlicedPacket<'_>> {
    Some(LaxSlicedPacket::from_ether_type(ether_type?, payload?))
}

fn ip(payload: Option<&[u8]>) -> Option<LaxSlicedPacket<'_>> {
    LaxSlicedPacket::from_ip(payload?).ok()
}

fn found<'a>(packet: &Packet<'a>, sliced: &LaxSlicedPacket<'a>) -> Content<'a> {
    let (from, to, payload): (IpAddr, IpAddr, _) = match &sliced.net {
        Some(LaxNetSlice::Ipv4(ip)) => {
            let header = ip.header();
            let ends = (header.source_addr(), header.destination_addr());
            (ends.0.into(), ends.1.into(), ip.payload())
        }
        Some(LaxNetSlice::Ipv6(ip)) => {
            let header = ip.header();
            let ends = (header.source_addr(), header.destination_addr());
            (ends.0.into(), ends.1.into(), ip.payload())
        }
        _ => return Content::Other,
    };
    if payload.fragmented {
        return Content::Fragment;
    }
    match &sliced.transport {
        Some(TransportSlice::Tcp(tcp)) => Content::Tcp(Segment {
            from: SocketAddr::new(from, tcp.source_port()),
            to: SocketAddr::new(to, tcp.destination_port()),
            sequence: tcp.sequence_number(),
            acknowledged: tcp.ack().then(|| tcp.acknowledgment_number()),
            syn: tcp.syn(),
            fin: tcp.fin(),
            rst: tcp.rst(),
            payload: tcp.payload(),
            // Bytes that the file lacks of a whole packet may be padding after it.
            missing: if payload.incomplete {
                packet.missing
            } else {
                0
            },
        }),
        Some(TransportSlice::Udp(udp))
            if udp.destination_port() == ROCE_V2 || udp.source_port() == ROCE_V2 =>
        {
            Content::RoceV2
        }
        _ => Content::Other,
    }
}
