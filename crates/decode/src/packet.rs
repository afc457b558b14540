//! Packets: a piece of a TCP stream, or a packet of RoCE.

use std::{
    borrow::Cow,
    net::{IpAddr, Ipv6Addr, SocketAddr},
};

use etherparse::{
    LaxIpSlice, LaxIpv4Slice, LaxIpv6Slice, LenSource, TcpOptionElement, TcpSlice, TransportSlice,
    UdpSlice,
};
use smbdirect::rdma::roce::icrc::{DatagramHeader, IpHeader};

use super::{
    capture::Packet,
    frames::ethernet_frame,
    peel::{Core, peel},
};

/// A piece of a TCP stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment<'a> {
    pub(crate) head: Head,
    pub(crate) payload: &'a [u8],
    /// Payload bytes on the wire that are not in the file.
    pub(crate) missing: u32,
}

/// The header of a packet of TCP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) sequence: u32,
    /// The acknowledgement number: the position up to which the sender has received the other direction.
    pub(crate) acknowledged: Option<u32>,
    /// The field for the receive window.
    pub(crate) window: u16,
    /// The bits by which later windows of its sender are shifted, if it is a SYN.
    pub(crate) window_scale: u8,
    /// The timestamp of its sender, and the one of the peer that it echoes (RFC 7323).
    pub(crate) timestamps: Option<[u32; 2]>,
    pub(crate) syn: bool,
    pub(crate) fin: bool,
    pub(crate) rst: bool,
    /// The Identification of its IPv4 header, if that is not 0. A copy that the network made has it too.
    pub(crate) identification: Option<u16>,
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
    /// Whether an adapter has joined it with others, or has not cut it yet.
    pub(crate) is_joined: bool,
    /// Whether it is RoCEv1, directly on Ethernet.
    pub(crate) is_v1: bool,
    /// Whether a switch has marked it for congestion: the ECN field of its IP header is CE.
    pub(crate) is_marked: bool,
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
    /// The packet is not understood; this is the name of its protocol.
    Unread(String),
    Other,
}

/// Finds the piece of a TCP stream, or the packet of RoCE on one of `udp_ports`, in a packet.
pub(crate) fn content<'a>(packet: &Packet<'a>, udp_ports: &[u16]) -> Content<'a> {
    match peel(packet.link, packet.data, udp_ports) {
        Core::Transport(ip, TransportSlice::Tcp(tcp)) => {
            Content::Tcp(segment(&ip, &tcp, packet.missing))
        }
        Core::Transport(ip, TransportSlice::Udp(udp)) => {
            Content::Roce(datagram(&ip, &udp, udp_ports, packet.missing))
        }
        Core::RoceV1(bytes) => roce_v1(bytes).map_or(Content::Other, Content::Roce),
        Core::Fragment => Content::Fragment,
        Core::Unread(unread) => Content::Unread(unread),
        Core::Transport(..) | Core::Other => Content::Other,
    }
}

/// Returns the Ethernet frame of a packet of TCP: the packet itself, or its IP packet if it is of another link type.
pub(crate) fn as_ethernet<'a>(packet: &Packet<'a>) -> Cow<'a, [u8]> {
    const ETHERNET: u32 = 1;
    if packet.link == ETHERNET {
        return packet.data.into();
    }
    let Core::Transport(ip, TransportSlice::Tcp(tcp)) = peel(packet.link, packet.data, &[]) else {
        return packet.data.into();
    };
    let head = segment(&ip, &tcp, 0).head;
    let (header, extensions) = match &ip {
        LaxIpSlice::Ipv4(ip) => {
            let auth = ip.extensions().auth.map(|auth| auth.slice().to_vec());
            (ip.header().slice(), auth.unwrap_or_default())
        }
        LaxIpSlice::Ipv6(ip) => (ip.header().slice(), ip.extensions().slice().to_vec()),
    };
    let packet = [header, &extensions, tcp.slice()].concat();
    ethernet_frame(head.from, head.to, &packet).into()
}

fn segment<'a>(ip: &LaxIpSlice<'a>, tcp: &TcpSlice<'a>, missing: u32) -> Segment<'a> {
    let (mut window_scale, mut timestamps) = (0, None);
    for option in tcp.options_iterator().map_while(Result::ok) {
        match option {
            TcpOptionElement::WindowScale(scale) => window_scale = scale,
            TcpOptionElement::Timestamp(sent, echoed) => timestamps = Some([sent, echoed]),
            _ => {}
        }
    }
    let head = Head {
        from: SocketAddr::new(ip.source_addr(), tcp.source_port()),
        to: SocketAddr::new(ip.destination_addr(), tcp.destination_port()),
        sequence: tcp.sequence_number(),
        acknowledged: tcp.ack().then(|| tcp.acknowledgment_number()),
        window: tcp.window_size(),
        window_scale,
        timestamps,
        syn: tcp.syn(),
        fin: tcp.fin(),
        rst: tcp.rst(),
        identification: match ip {
            LaxIpSlice::Ipv4(ip) => Some(ip.header().identification()).filter(|&id| id != 0),
            LaxIpSlice::Ipv6(_) => None,
        },
    };
    Segment {
        head,
        payload: tcp.payload(),
        missing: missing_bytes(ip, missing),
    }
}

/// Returns how many bytes of an IP packet are not in the file. Of the whole packet `missing` bytes are not in the
/// file, some of which may be padding after the IP packet.
fn missing_bytes(ip: &LaxIpSlice<'_>, missing: u32) -> u32 {
    let (claimed, headers) = match ip {
        LaxIpSlice::Ipv4(ip) => {
            let more = ip.extensions().auth.map_or(0, |auth| auth.slice().len());
            (ip.header().total_len(), ip.header().slice().len() + more)
        }
        LaxIpSlice::Ipv6(ip) => (ip.header().payload_length(), ip.extensions().slice().len()),
    };
    let payload = ip.payload();
    match (payload.incomplete, payload.len_source) {
        (true, _) => u32::from(claimed).saturating_sub((headers + payload.payload.len()) as u32),
        // The length is not given, because the network card cuts the packet later.
        (false, LenSource::Slice) => missing,
        (false, _) => 0,
    }
}

fn datagram<'a>(
    ip: &LaxIpSlice<'a>,
    udp: &UdpSlice<'a>,
    udp_ports: &[u16],
    missing: u32,
) -> Datagram<'a> {
    let bytes = udp.payload();
    Datagram {
        from: ip.source_addr(),
        to: ip.destination_addr(),
        header: header(ip, udp),
        bytes,
        length: bytes.len() + missing_bytes(ip, missing) as usize,
        is_joined: false,
        is_v1: false,
        is_marked: ecn(ip) == CONGESTION_EXPERIENCED,
        is_to_another_port: !udp_ports.contains(&udp.destination_port()),
    }
}

/// The ECN field in the octet TOS of IPv4, or in the traffic class of IPv6.
const ECN_MASK: u8 = 0b11;
/// CE in the ECN field: the packet met congestion.
const CONGESTION_EXPERIENCED: u8 = 0b11;

/// Returns the ECN field of an IP header.
fn ecn(ip: &LaxIpSlice<'_>) -> u8 {
    let class = match ip {
        LaxIpSlice::Ipv4(ip) => ip.header().slice()[1],
        LaxIpSlice::Ipv6(ip) => ip.header().traffic_class(),
    };
    class & ECN_MASK
}

/// Returns the fields of the IP and UDP headers that the ICRC covers; `None` if there are IP options or extension
/// headers.
fn header(ip: &LaxIpSlice<'_>, udp: &UdpSlice<'_>) -> Option<DatagramHeader> {
    let ip = match ip {
        LaxIpSlice::Ipv4(ip) => ipv4(ip),
        LaxIpSlice::Ipv6(ip) => ipv6(ip),
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

/// Reads a packet of RoCEv1 after its Global Route Header, which is like an IPv6 header.
fn roce_v1(bytes: &[u8]) -> Option<Datagram<'_>> {
    let (header, rest) = bytes.split_first_chunk::<GRH_LENGTH>()?;
    if header[6] != NEXT_HEADER_BTH {
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
        is_joined: false,
        is_v1: true,
        is_marked: false,
        is_to_another_port: false,
    })
}
