//! Packets: link layer, IP and TCP around a piece of a stream, or UDP around a packet of RoCE.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use etherparse::{
    EtherType, LaxIpv4Slice, LaxIpv6Slice, LaxNetSlice, LaxSlicedPacket, TransportSlice, UdpSlice,
};
use smbdirect::rdma::roce::icrc::{DatagramHeader, IpHeader};

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

/// A packet of RoCE, from its BTH to its ICRC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram<'a> {
    pub(crate) from: IpAddr,
    pub(crate) to: IpAddr,
    /// The headers that the ICRC covers; `None` if it cannot be checked.
    pub(crate) header: Option<DatagramHeader>,
    /// The part in the capture.
    pub(crate) bytes: &'a [u8],
    /// Bytes on the wire.
    pub(crate) length: usize,
    /// Whether it is RoCEv1, directly on Ethernet.
    pub(crate) is_v1: bool,
    /// Whether only its source is a UDP port of RoCE, so that it may be of another protocol. An end of this
    /// library that connects from another port is answered there.
    pub(crate) is_to_another_port: bool,
}

/// The kind of a packet.
#[derive(Debug)]
pub(crate) enum Content<'a> {
    Tcp(Segment<'a>),
    Roce(Datagram<'a>),
    /// A fragment of an IP packet; fragments are not reassembled.
    Fragment,
    /// An unknown link layer.
    UnknownLink(u32),
    Other,
}

/// The Ethertype of RoCEv1.
const ROCE_V1: EtherType = EtherType(0x8915);

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

/// Finds the piece of a TCP stream, or the packet of RoCE on one of `udp_ports`, in a packet.
pub(crate) fn content<'a>(packet: &Packet<'a>, udp_ports: &[u16]) -> Content<'a> {
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
    sliced.map_or(Content::Other, |sliced| found(packet, udp_ports, &sliced))
}

fn parts(ether_type: Option<EtherType>, payload: Option<&[u8]>) -> Option<LaxSlicedPacket<'_>> {
    Some(LaxSlicedPacket::from_ether_type(ether_type?, payload?))
}

fn ip(payload: Option<&[u8]>) -> Option<LaxSlicedPacket<'_>> {
    LaxSlicedPacket::from_ip(payload?).ok()
}

fn found<'a>(packet: &Packet<'a>, udp_ports: &[u16], sliced: &LaxSlicedPacket<'a>) -> Content<'a> {
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
        _ => return roce_v1(sliced).map_or(Content::Other, Content::Roce),
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
            if [udp.destination_port(), udp.source_port()]
                .iter()
                .any(|port| udp_ports.contains(port)) =>
        {
            let bytes = udp.payload();
            let claimed = usize::from(udp.length()).saturating_sub(udp.header_slice().len());
            Content::Roce(Datagram {
                from,
                to,
                header: sliced.net.as_ref().and_then(|net| header(net, udp)),
                bytes,
                length: match payload.incomplete {
                    true => claimed.max(bytes.len()),
                    false => bytes.len(),
                },
                is_v1: false,
                is_to_another_port: !udp_ports.contains(&udp.destination_port()),
            })
        }
        _ => Content::Other,
    }
}

/// Returns what the ICRC covers of the IP and UDP headers; `None` if there are IP options or
/// extension headers.
fn header(net: &LaxNetSlice<'_>, udp: &UdpSlice<'_>) -> Option<DatagramHeader> {
    let ip = match net {
        LaxNetSlice::Ipv4(ip) => ipv4(ip),
        LaxNetSlice::Ipv6(ip) => ipv6(ip),
        LaxNetSlice::Arp(_) => None,
    };
    Some(DatagramHeader {
        ip: ip?,
        source_port: udp.source_port(),
        destination_port: udp.destination_port(),
    })
}

fn ipv4(ip: &LaxIpv4Slice<'_>) -> Option<IpHeader> {
    let header = ip.header();
    let is_plain = header.options().is_empty() && ip.extensions().is_empty();
    let bytes = header.slice();
    is_plain.then(|| IpHeader::V4 {
        source: header.source_addr(),
        destination: header.destination_addr(),
        identification: header.identification(),
        flags: u16::from_be_bytes([bytes[6], bytes[7]]),
    })
}

fn ipv6(ip: &LaxIpv6Slice<'_>) -> Option<IpHeader> {
    let header = ip.header();
    let is_plain = ip.extensions().is_empty();
    is_plain.then(|| IpHeader::V6 {
        source: header.source_addr(),
        destination: header.destination_addr(),
    })
}

/// The length of a Global Route Header, in bytes.
const GRH_LENGTH: usize = 40;
/// The next header of a GRH before a BTH.
const NEXT_HEADER_BTH: u8 = 0x1b;

/// Finds a packet of RoCEv1 behind Ethernet and its Global Route Header, which is like that of
/// IPv6.
fn roce_v1<'a>(sliced: &LaxSlicedPacket<'a>) -> Option<Datagram<'a>> {
    let ethernet = sliced.ether_payload()?;
    let (header, rest) = ethernet.payload.split_first_chunk::<GRH_LENGTH>()?;
    if ethernet.ether_type != ROCE_V1 || header[6] != NEXT_HEADER_BTH {
        return None;
    }
    let address = |at: usize| {
        let octets = header[at..].first_chunk::<16>().copied();
        Ipv6Addr::from(octets.unwrap_or_default()).to_canonical()
    };
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    Some(Datagram {
        from: address(8),
        to: address(24),
        header: None,
        // A short frame is padded.
        bytes: &rest[..length.min(rest.len())],
        length,
        is_v1: true,
        is_to_another_port: false,
    })
}
