//! The headers around TCP and RoCE in a packet: link layers, tags and tunnels, which are peeled one by one.
//!
//! `etherparse` reads VLAN tags, MACsec, IP with its extensions, TCP and UDP. The other headers are
//! read here.

use etherparse::{EtherType, LaxIpSlice, LaxNetSlice, LaxSlicedPacket, TransportSlice};

/// The content of a packet after all headers that can be peeled.
#[derive(Debug)]
pub(super) enum Core<'a> {
    /// TCP, or UDP to or from a port of RoCE.
    Transport(LaxIpSlice<'a>, TransportSlice<'a>),
    /// RoCEv1, from its Global Route Header on.
    RoceV1(&'a [u8]),
    /// A fragment of an IP packet.
    Fragment,
    /// The packet is not understood; this is the name of its protocol.
    Unread(String),
    /// The header carries neither TCP nor RoCE, or it is cut or damaged.
    Other,
}

/// The name of packets over UDP that are not understood, which every capture may have.
pub const OTHER_UDP: &str = "UDP port";
/// Maximum number of headers that are peeled, without the transport layer.
const MAX_HEADERS: usize = 32;

/// The next header.
#[derive(Clone, Copy)]
enum Layer {
    Ethernet,
    /// The meaning of an Ethertype. The name is the name of the field in the header before.
    Type(u16, &'static str),
    Ip,
    ServiceHeader,
}

/// A header has been peeled, or was the last.
enum Peeled<'a> {
    Layer(Layer, &'a [u8]),
    Core(Core<'a>),
}

use Peeled::Layer as Next;

/// Peels a packet of a link type of the registry of tcpdump.org; `udp_ports` are the ports of RoCE.
pub(super) fn peel<'a>(link: u32, data: &'a [u8], udp_ports: &[u16]) -> Core<'a> {
    let mut next = match link {
        1 => after(Layer::Ethernet, data, 0),
        // Linux cooked, and its second version; HDLC of Cisco.
        113 => typed("Ethertype", data, 14),
        276 => short(data, 0).and_then(|number| after(Layer::Type(number, "Ethertype"), data, 20)),
        104 => typed("Ethertype", data, 2),
        // Loopback. The address family is in the byte order of some machine, so the IP header decides.
        0 | 108 => after(Layer::Ip, data, 4),
        // Raw IP.
        12 | 14 | 101 | 228 | 229 => after(Layer::Ip, data, 0),
        219 => mpls(data),
        // PPP, and over Ethernet.
        9 | 50 => ppp(data),
        51 => data.get(6..).and_then(ppp),
        other => return Core::Unread(format!("link type {other}")),
    };
    for _ in 0..=MAX_HEADERS {
        next = match next {
            Some(Next(layer, data)) => peel_one(layer, data, udp_ports),
            Some(Peeled::Core(core)) => return core,
            None => return Core::Other,
        };
    }
    Core::Unread(format!("more than {MAX_HEADERS} headers"))
}

/// Peels one header; `None` if it is cut or damaged.
fn peel_one<'a>(layer: Layer, data: &'a [u8], udp_ports: &[u16]) -> Option<Peeled<'a>> {
    match layer {
        Layer::Ethernet => typed("Ethertype", data, 12),
        Layer::Type(number, name) => ether_type(number, name, data, udp_ports),
        Layer::Ip => sliced(LaxSlicedPacket::from_ip(data).ok()?, udp_ports),
        Layer::ServiceHeader => {
            let length = usize::from(data.get(1)? & 0x3f) * 4;
            numbered(*data.get(3)?, "NSH protocol", data, length.max(8))
        }
    }
}

/// Returns the kind of header after a header of `length` bytes.
fn after(layer: Layer, data: &[u8], length: usize) -> Option<Peeled<'_>> {
    Some(Next(layer, data.get(length..)?))
}

/// Returns the kind of header that the Ethertype at `at` announces.
fn typed<'a>(name: &'static str, data: &'a [u8], at: usize) -> Option<Peeled<'a>> {
    after(Layer::Type(short(data, at)?, name), data, at + 2)
}

fn unread<'a>(kind: String) -> Option<Peeled<'a>> {
    Some(Peeled::Core(Core::Unread(kind)))
}

fn protocol<'a>(name: &str, number: u16) -> Option<Peeled<'a>> {
    unread(format!("{name} 0x{number:04x}"))
}

fn short(data: &[u8], at: usize) -> Option<u16> {
    let bytes = data.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*bytes))
}

/// Returns the kind of header after a header of VXLAN-GPE or NSH, which use the same protocol numbers.
fn numbered<'a>(
    number: u8,
    name: &'static str,
    data: &'a [u8],
    length: usize,
) -> Option<Peeled<'a>> {
    let next = match number {
        1 | 2 => Layer::Ip,
        3 => Layer::Ethernet,
        4 => Layer::ServiceHeader,
        5 => return mpls(data.get(length..)?),
        _ => return protocol(name, number.into()),
    };
    after(next, data, length)
}

fn ether_type<'a>(
    number: u16,
    name: &'static str,
    data: &'a [u8],
    udp_ports: &[u16],
) -> Option<Peeled<'a>> {
    match number {
        // A length of IEEE 802.3.
        ..0x0600 if name == "Ethertype" => logical_link(data),
        // VLANs of two more numbers, VN-Tag and HSR, Cisco metadata and E-Tag.
        0x9200 | 0x9300 => typed(name, data, 2),
        0x8926 | 0x892f => typed(name, data, 4),
        0x8909 | 0x893f => typed(name, data, 6),
        // The Ethertypes of bridged Ethernet and of a provider backbone.
        0x6558 => after(Layer::Ethernet, data, 0),
        0x88e7 => after(Layer::Ethernet, data, 4),
        // PPP, and over Ethernet.
        0x880b => ppp(data),
        0x8864 => ppp(data.get(6..)?),
        0x8847 | 0x8848 => mpls(data),
        0x894f => after(Layer::ServiceHeader, data, 0),
        0x8915 => Some(Peeled::Core(Core::RoceV1(data))),
        _ => {
            let packet = LaxSlicedPacket::from_ether_type(EtherType(number), data);
            match (&packet.net, &packet.stop_err, packet.link_exts.is_empty()) {
                (None, None, true) => protocol(name, number),
                _ => sliced(packet, udp_ports),
            }
        }
    }
}

/// Peels a header of IEEE 802.2 and its extension for Ethertypes.
fn logical_link(data: &[u8]) -> Option<Peeled<'_>> {
    match data.first_chunk()? {
        &[0xaa, 0xaa, 3, 0, 0, 0 | 0xf8] => typed("SNAP protocol", data, 6),
        [0x06, 0x06, 3, ..] => after(Layer::Ip, data, 3),
        [service, ..] => protocol("LLC service", (*service).into()),
    }
}

/// Continues after the last header that `etherparse` has read.
fn sliced<'a>(packet: LaxSlicedPacket<'a>, udp_ports: &[u16]) -> Option<Peeled<'a>> {
    let inner = packet.ether_payload();
    let ip = match packet.net {
        Some(LaxNetSlice::Ipv4(ip)) => LaxIpSlice::Ipv4(ip),
        Some(LaxNetSlice::Ipv6(ip)) => LaxIpSlice::Ipv6(ip),
        Some(LaxNetSlice::Arp(_)) => return None,
        None if packet.stop_err.is_some() => return None,
        None => {
            let Some(inner) = inner else {
                return unread("encrypted MACsec".into());
            };
            let next = Layer::Type(inner.ether_type.0, "Ethertype");
            return after(next, inner.payload, 0);
        }
    };
    let payload = ip.payload();
    let (data, number) = (payload.payload, payload.ip_number);
    if payload.fragmented {
        return Some(Peeled::Core(Core::Fragment));
    }
    match packet.transport {
        Some(TransportSlice::Udp(udp)) if !udp_ports.contains(&udp.destination_port()) => {
            match udp.destination_port() {
                // The ports include the Generic Protocol Extension, and the port that Linux uses.
                4789 | 4790 | 8472 => vxlan(udp.payload()),
                6081 => geneve(udp.payload()),
                6635 => mpls(udp.payload()),
                _ if udp_ports.contains(&udp.source_port()) => {
                    let transport = TransportSlice::Udp(udp);
                    Some(Peeled::Core(Core::Transport(ip, transport)))
                }
                port => unread(format!("{OTHER_UDP} {port}")),
            }
        }
        Some(transport @ (TransportSlice::Tcp(_) | TransportSlice::Udp(_))) => {
            Some(Peeled::Core(Core::Transport(ip, transport)))
        }
        Some(_) => None,
        None => match number.0 {
            // IPv4 and IPv6, GRE, EtherIP, MPLS.
            4 | 41 => after(Layer::Ip, data, 0),
            47 => gre(data),
            97 => after(Layer::Ethernet, data, 2),
            137 => mpls(data),
            // TCP or UDP without a whole header.
            6 | 17 => None,
            other => unread(format!("IP protocol {other}")),
        },
    }
}

fn vxlan(data: &[u8]) -> Option<Peeled<'_>> {
    const GENERIC: u8 = 0x04;
    match data.first()? & GENERIC {
        0 => after(Layer::Ethernet, data, 8),
        _ => numbered(*data.get(3)?, "VXLAN protocol", data, 8),
    }
}

fn geneve(data: &[u8]) -> Option<Peeled<'_>> {
    let options = usize::from(data.first()? & 0x3f) * 4;
    let next = Layer::Type(short(data, 2)?, "GENEVE protocol");
    after(next, data, 8 + options)
}

/// Peels all labels. No number identifies the next header: it is IP, or Ethernet with or without a control word.
fn mpls(data: &[u8]) -> Option<Peeled<'_>> {
    let labels = data.chunks_exact(4).position(|label| label[2] & 1 != 0)?;
    let inner = &data[(labels + 1) * 4..];
    match inner.first()? >> 4 {
        4 | 6 => after(Layer::Ip, inner, 0),
        // An Ethertype of IP, a VLAN, MPLS or RoCEv1 after the addresses.
        0 if matches!(
            short(inner, 16),
            Some(0x0800 | 0x86dd | 0x8100 | 0x88a8 | 0x8847 | 0x8915)
        ) =>
        {
            after(Layer::Ethernet, inner, 4)
        }
        _ => after(Layer::Ethernet, inner, 0),
    }
}

fn ppp(data: &[u8]) -> Option<Peeled<'_>> {
    let data = data.strip_prefix(&[0xff, 3]).unwrap_or(data);
    let first = *data.first()?;
    // The number is one byte if that is odd.
    let (number, length) = match first & 1 {
        0 => (short(data, 0)?, 2),
        _ => (first.into(), 1),
    };
    match number {
        0x0021 | 0x0057 => after(Layer::Ip, data, length),
        0x0281 | 0x0283 => mpls(&data[length..]),
        _ => protocol("PPP protocol", number),
    }
}

fn gre(data: &[u8]) -> Option<Peeled<'_>> {
    const ROUTING: u16 = 0x4000;
    const SEQUENCE: u16 = 0x1000;
    /// The flags of fields of 4 bytes: checksum, key, sequence number, acknowledgment number.
    const FIELDS: u16 = 0x8000 | 0x2000 | SEQUENCE | 0x0080;
    let (flags, number) = (short(data, 0)?, short(data, 2)?);
    if flags & ROUTING != 0 {
        return protocol("GRE with routes of protocol", number);
    }
    let inner = data.get(4 + 4 * (flags & FIELDS).count_ones() as usize..)?;
    match number {
        // Type I has no header of its own.
        0x88be if flags & SEQUENCE == 0 => after(Layer::Ethernet, inner, 0),
        0x88be | 0x22eb => erspan(inner),
        _ => after(Layer::Type(number, "GRE protocol"), inner, 0),
    }
}

/// Peels the header of ERSPAN, type II or III.
fn erspan(data: &[u8]) -> Option<Peeled<'_>> {
    const FRAME_OF_IP: u8 = 2;
    match data.first()? >> 4 {
        1 => after(Layer::Ethernet, data, 8),
        2 => {
            let (kind, more) = (data.get(10)? >> 2 & 0x1f, data.get(11)? & 1);
            let next = match kind {
                FRAME_OF_IP => Layer::Ip,
                _ => Layer::Ethernet,
            };
            after(next, data, 12 + 8 * usize::from(more))
        }
        version => protocol("ERSPAN version", version.into()),
    }
}
