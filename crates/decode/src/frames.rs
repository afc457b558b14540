//! Builds packets for captures: Ethernet, IP, and TCP or UDP around bytes, with all checksums.

use std::net::{IpAddr, SocketAddr};

use etherparse::{
    IpFragOffset, IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, PacketBuilder, TcpOptionElement,
};

use crate::per_end::{PerEnd, Side};

/// The sequence numbers of a TCP connection, and the frames of its segments.
#[derive(Debug)]
pub(crate) struct TcpFlow {
    ends: PerEnd<SocketAddr>,
    next: PerEnd<u32>,
}

/// The kind of a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segment<'a> {
    /// The first segment of an end: SYN, with ACK if it answers the other end.
    Syn {
        /// Whether it answers the SYN of the other end.
        answers: bool,
    },
    /// An acknowledgement without data.
    Ack,
    /// Bytes of the stream, at most [`TcpFlow::MAX_SEGMENT`].
    Data(&'a [u8]),
    /// The last segment of an end.
    Fin,
    /// The segment that resets the connection.
    Reset,
}

impl TcpFlow {
    /// Longest payload in bytes that fits an IP packet with its headers, in both versions of IP.
    pub(crate) const MAX_SEGMENT: usize = 65_495;
    /// Bytes of the headers of a segment without options, at most: Ethernet, IPv6 and TCP.
    pub(crate) const MAX_HEADERS: usize = 14 + 40 + 20;
    /// The shift of the windows that both ends offer. It is the largest one: the program that writes a capture does
    /// not know the windows of the ends, and no sender exceeds this one.
    const WINDOW_SCALE: u8 = 14;

    /// Creates a connection from the addresses of its ends and their first sequence numbers.
    pub(crate) const fn new(ends: PerEnd<SocketAddr>, first: PerEnd<u32>) -> Self {
        Self { ends, next: first }
    }

    /// Returns the segments of the handshake of a connection that an end opens.
    pub(crate) const fn handshake(first: Side) -> [(Side, Segment<'static>); 3] {
        let other = match first {
            Side::A => Side::B,
            Side::B => Side::A,
        };
        [
            (first, Segment::Syn { answers: false }),
            (other, Segment::Syn { answers: true }),
            (first, Segment::Ack),
        ]
    }

    /// Returns the frame of the next segment from an end, which acknowledges all bytes of the other end.
    pub(crate) fn frame(&mut self, from: Side, segment: Segment<'_>) -> Vec<u8> {
        let (sender, receiver) = (self.ends[from], self.ends[!from]);
        let link = PacketBuilder::ethernet2(mac(sender), mac(receiver));
        let packet = match (sender.ip().to_canonical(), receiver.ip().to_canonical()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => link.ipv4(from.octets(), to.octets(), 64),
            (from, to) => link.ipv6(octets(from), octets(to), 64),
        };
        let (sequence, acknowledged) = (self.next[from], self.next[!from]);
        let mut packet = packet.tcp(sender.port(), receiver.port(), sequence, u16::MAX);
        if segment != (Segment::Syn { answers: false }) {
            packet = packet.ack(acknowledged);
        }
        let mut payload: &[u8] = &[];
        let mut takes = 1;
        match segment {
            Segment::Syn { .. } => {
                let scale = [TcpOptionElement::WindowScale(Self::WINDOW_SCALE)];
                packet = packet
                    .syn()
                    .options(&scale)
                    .expect("one option fits a header");
            }
            Segment::Ack => takes = 0,
            Segment::Data(bytes) => {
                packet = packet.psh();
                payload = bytes;
                takes = bytes.len() as u32;
            }
            Segment::Fin => packet = packet.fin(),
            Segment::Reset => {
                packet = packet.rst();
                takes = 0;
            }
        }
        self.skip(from, takes);
        let mut bytes = Vec::with_capacity(packet.size(payload.len()));
        packet
            .write(&mut bytes, payload)
            .expect("a segment fits its packet, and memory takes it");
        bytes
    }

    /// Leaves out bytes of an end, so that the capture has a gap.
    pub(crate) fn skip(&mut self, from: Side, bytes: u32) {
        self.next[from] = self.next[from].wrapping_add(bytes);
    }
}

/// Returns the frame of a UDP datagram that may not be fragmented.
pub(crate) fn udp_frame(
    from: SocketAddr,
    to: SocketAddr,
    identification: u16,
    datagram: &[u8],
) -> Vec<u8> {
    let link = PacketBuilder::ethernet2(mac(from), mac(to));
    let packet = match (from.ip().to_canonical(), to.ip().to_canonical()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let header = Ipv4Header {
                identification,
                dont_fragment: true,
                fragment_offset: IpFragOffset::ZERO,
                time_to_live: 64,
                protocol: IpNumber::UDP,
                source: from.octets(),
                destination: to.octets(),
                ..Ipv4Header::default()
            };
            link.ip(IpHeaders::Ipv4(header, Ipv4Extensions::default()))
        }
        (from, to) => link.ipv6(octets(from), octets(to), 64),
    };
    let packet = packet.udp(from.port(), to.port());
    let mut bytes = Vec::with_capacity(packet.size(datagram.len()));
    packet
        .write(&mut bytes, datagram)
        .expect("a datagram fits its packet, and memory takes it");
    bytes
}

/// Returns the frame of an IP packet.
pub(crate) fn ethernet_frame(from: SocketAddr, to: SocketAddr, packet: &[u8]) -> Vec<u8> {
    let kind: [u8; 2] = match packet.first() {
        Some(0x60..=0x6f) => [0x86, 0xdd],
        _ => [0x08, 0x00],
    };
    [&mac(to)[..], &mac(from), &kind, packet].concat()
}

/// Returns a locally administered address, which is different at the two ends of a connection.
fn mac(address: SocketAddr) -> [u8; 6] {
    let [high, low] = address.port().to_be_bytes();
    let ip = address.ip().to_canonical();
    let last = octets(ip)[15];
    [0x02, 0, 0, last, high, low]
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}
