//! The routes, the rules and the addresses of the kernel, by the protocol rtnetlink (rtnetlink(7)).

use std::{
    io::{self, Read},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ipnet::IpNet;
use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_MULTIPART, NLM_F_REQUEST, NetlinkBuffer, NetlinkMessage, NetlinkPayload,
    Parseable,
};
use netlink_packet_route::{
    AddressFamily, IpProtocol, RouteNetlinkMessage as Message,
    address::{AddressAttribute, AddressMessage, AddressScope},
    route::{RouteAddress, RouteAttribute, RouteMessage, RouteType},
    rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage},
};
use socket2::{Domain, Socket, Type};

/// Longest datagram of the kernel.
const MAX_DATAGRAM_BYTES: usize = 64 << 10;
/// Longest time for an answer. The kernel answers a request within the call that sends it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// A socket to the kernel.
pub(super) struct Netlink(Socket);

impl Netlink {
    pub(super) fn new() -> io::Result<Self> {
        let family = u8::from(AddressFamily::Netlink);
        // Without a protocol it is NETLINK_ROUTE.
        let socket = Socket::new(Domain::from(i32::from(family)), Type::RAW, None)?;
        socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Self(socket))
    }

    /// Returns the route of a packet to an address. This machine sends the packet, unless the attributes have an
    /// interface that it arrives at.
    ///
    /// # Errors
    /// There is none, or the kernel cannot be asked.
    pub(super) fn route(&self, to: IpAddr, packet: &[RouteAttribute]) -> io::Result<RouteMessage> {
        let mut request = RouteMessage::default();
        request.header.address_family = family(to.is_ipv4());
        let bits = if to.is_ipv4() { 32 } else { 128 };
        request.header.destination_prefix_length = bits;
        request.header.source_prefix_length = bits;
        request.attributes = vec![RouteAttribute::Destination(to.into())];
        request.attributes.extend_from_slice(packet);
        let mut route = Err(io::ErrorKind::InvalidData.into());
        self.ask(Message::GetRoute(request), 0, |message| {
            if let Message::NewRoute(answer) = message {
                route = Ok(answer);
            }
        })?;
        route
    }

    /// Returns the rules that lead to a table.
    pub(super) fn rules(&self, is_ipv4: bool) -> io::Result<Vec<RuleMessage>> {
        let mut request = RuleMessage::default();
        request.header.family = family(is_ipv4);
        let mut rules = Vec::new();
        self.ask(Message::GetRule(request), NLM_F_DUMP, |message| {
            if let Message::NewRule(rule) = message
                && leads_to_table(&rule)
            {
                rules.push(rule);
            }
        })?;
        Ok(rules)
    }

    /// Returns whether a table has a route to this machine for packets to an address.
    pub(super) fn has_local_route(&self, table: u32, to: IpAddr) -> io::Result<bool> {
        let mut request = RouteMessage::default();
        request.header.address_family = family(to.is_ipv4());
        let mut has = false;
        self.ask(Message::GetRoute(request), NLM_F_DUMP, |message| {
            let Message::NewRoute(route) = message else {
                return;
            };
            let bits = route.header.destination_prefix_length;
            let is_for = |attribute: &RouteAttribute| match attribute {
                RouteAttribute::Table(number) => *number == table,
                RouteAttribute::Destination(RouteAddress::Inet(ip)) => is_in(to, *ip, bits),
                RouteAttribute::Destination(RouteAddress::Inet6(ip)) => is_in(to, *ip, bits),
                _ => true,
            };
            has |= is_local(&route) && route.attributes.iter().all(is_for);
        })?;
        Ok(has)
    }

    /// Returns the networks of this machine with other machines.
    pub(super) fn networks(&self, is_ipv4: bool) -> io::Result<Vec<IpNet>> {
        let mut request = AddressMessage::default();
        request.header.family = family(is_ipv4);
        let mut networks = Vec::new();
        self.ask(Message::GetAddress(request), NLM_F_DUMP, |message| {
            if let Message::NewAddress(AddressMessage {
                header, attributes, ..
            }) = message
                && u8::from(header.scope) < u8::from(AddressScope::Link)
            {
                networks.extend(attributes.iter().filter_map(|attribute| match attribute {
                    // On a point-to-point interface it is the other machine.
                    AddressAttribute::Address(ip) => IpNet::new(*ip, header.prefix_len).ok(),
                    _ => None,
                }));
            }
        })?;
        Ok(networks)
    }

    /// Sends a request, and calls `each` for each message of the answer. A message that cannot be decoded is passed over.
    fn ask(&self, request: Message, flags: u16, mut each: impl FnMut(Message)) -> io::Result<()> {
        let mut request = NetlinkMessage::from(request);
        // Sequence number and port stay 0: a socket has one request at a time.
        request.header.flags = NLM_F_REQUEST | flags;
        request.finalize();
        let mut datagram = vec![0; request.buffer_len()];
        request.serialize(&mut datagram);
        self.0.send(&datagram)?;
        datagram.resize(MAX_DATAGRAM_BYTES, 0);
        loop {
            let length = (&self.0).read(&mut datagram)?;
            let mut rest = &datagram[..length];
            while !rest.is_empty() {
                let message = NetlinkBuffer::new_checked(&rest).map_err(io::Error::other)?;
                match NetlinkMessage::parse(&message).map(|message| message.payload) {
                    Ok(NetlinkPayload::Error(error)) => return Err(error.to_io()),
                    Ok(NetlinkPayload::Done(_)) => return Ok(()),
                    Ok(NetlinkPayload::InnerMessage(message)) => each(message),
                    _ => (),
                }
                if message.flags() & NLM_F_MULTIPART == 0 {
                    return Ok(());
                }
                let length = message.length().next_multiple_of(4) as usize;
                rest = rest.get(length..).unwrap_or_default();
            }
        }
    }
}

const fn family(is_ipv4: bool) -> AddressFamily {
    if is_ipv4 {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    }
}

fn is_in(ip: IpAddr, network: impl Into<IpAddr>, bits: u8) -> bool {
    IpNet::new(network.into(), bits).is_ok_and(|network| network.contains(&ip))
}

/// Returns whether the packets of the route are for this machine.
pub(super) fn is_local(route: &RouteMessage) -> bool {
    route.header.kind == RouteType::Local
}

/// Returns the index of the interface that the packets of the route leave by.
pub(super) fn interface(route: &RouteMessage) -> Option<u32> {
    route
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Oif(index) => Some(*index),
            _ => None,
        })
}

/// Returns the name of an interface.
pub(super) fn interface_name(index: u32) -> io::Result<String> {
    let name = nix::net::if_::if_indextoname(index)?;
    Ok(name.to_string_lossy().into_owned())
}

fn leads_to_table(rule: &RuleMessage) -> bool {
    rule.header.action == RuleAction::ToTable && !rule.header.flags.contains(RuleFlags::Invert)
}

/// Returns the table that a rule leads to.
pub(super) fn table(rule: &RuleMessage) -> Option<u32> {
    rule.attributes
        .iter()
        .find_map(|attribute| match attribute {
            RuleAttribute::Table(table) => Some(*table),
            _ => None,
        })
}

/// Returns the mark of the packets of a rule.
pub(super) fn mark(rule: &RuleMessage) -> Option<u32> {
    rule.attributes
        .iter()
        .find_map(|attribute| match attribute {
            RuleAttribute::FwMark(mark) => Some(*mark),
            _ => None,
        })
}

/// Returns whether a rule of this interface is for the answers of `server` to `client`.
pub(super) fn is_rule_for(
    rule: &RuleMessage,
    interface: &str,
    server: SocketAddr,
    client: IpAddr,
) -> bool {
    let mut has_interface = false;
    let is_for = rule.attributes.iter().all(|attribute| match attribute {
        RuleAttribute::Iifname(name) => {
            has_interface = name == interface;
            has_interface
        }
        RuleAttribute::Source(ip) => is_in(server.ip(), *ip, rule.header.src_len),
        RuleAttribute::Destination(ip) => is_in(client, *ip, rule.header.dst_len),
        RuleAttribute::FwMark(mark) => *mark == 0,
        RuleAttribute::IpProtocol(protocol) => *protocol == IpProtocol::Tcp,
        RuleAttribute::SourcePortRange(ports) => (ports.start..=ports.end).contains(&server.port()),
        _ => true,
    });
    is_for && has_interface
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::DefaultNla;
    use netlink_packet_route::rule::RulePortRange;

    use super::*;

    fn rule(attributes: &[RuleAttribute]) -> RuleMessage {
        let mut rule = RuleMessage::default();
        rule.header.action = RuleAction::ToTable;
        rule.header.src_len = 24;
        rule.header.dst_len = 24;
        rule.attributes = attributes.to_vec();
        rule
    }

    #[test]
    fn a_rule_is_for_the_answers_of_a_server() {
        use RuleAttribute::{Destination, FwMark, Iifname, Source, SourcePortRange};
        let server = "10.0.1.11:445".parse().unwrap();
        let client = "10.77.0.9".parse().unwrap();
        let interface = Iifname("eth1".to_owned());
        let source = Source("10.0.1.0".parse().unwrap());
        let to_clients = Destination("10.77.0.0".parse().unwrap());
        let to_others = Destination("10.78.0.0".parse().unwrap());
        let ports = |start, end| SourcePortRange(RulePortRange { start, end });
        let protocol = RuleAttribute::IpProtocol;
        for (attributes, is_for) in [
            (vec![interface.clone()], true),
            (vec![Iifname("eth2".to_owned())], false),
            (vec![], false),
            (vec![interface.clone(), source.clone(), to_clients], true),
            (vec![interface.clone(), source, to_others], false),
            (vec![interface.clone(), ports(445, 445)], true),
            (vec![interface.clone(), ports(1, 444)], false),
            (vec![interface.clone(), protocol(IpProtocol::Tcp)], true),
            (vec![interface.clone(), protocol(IpProtocol::Udp)], false),
            (vec![interface, FwMark(1)], false),
        ] {
            let rule = rule(&attributes);
            assert_eq!(
                is_rule_for(&rule, "eth1", server, client),
                is_for,
                "{rule:?}"
            );
        }
        let mut other = rule(&[RuleAttribute::Table(1000)]);
        assert!(leads_to_table(&other));
        assert_eq!(table(&other), Some(1000));
        other.header.flags = RuleFlags::Invert;
        assert!(!leads_to_table(&other), "for all but these");
        let mut unreachable = rule(&[]);
        unreachable.header.action = RuleAction::Unreachable;
        assert!(!leads_to_table(&unreachable));
    }

    #[test]
    fn malformed_messages_are_passed_over() {
        let (netlink, kernel) = Socket::pair(Domain::UNIX, Type::DGRAM, None).unwrap();
        let bytes = |attribute| {
            let mut message = NetlinkMessage::from(Message::NewRule(rule(&[attribute])));
            message.header.flags = NLM_F_MULTIPART;
            message.finalize();
            let mut bytes = vec![0; message.buffer_len()];
            message.serialize(&mut bytes);
            bytes
        };
        let good = bytes(RuleAttribute::Table(7));
        // FRA_TABLE has four bytes.
        let bad = bytes(RuleAttribute::Other(DefaultNla::new(15, vec![0])));
        kernel.send(&[&bad[..], &good].concat()).unwrap();
        kernel.send(&good[..good.len() - 4]).unwrap();
        let mut tables = Vec::new();
        let request = Message::GetRule(RuleMessage::default());
        let answer = Netlink(netlink).ask(request, NLM_F_DUMP, |message| {
            if let Message::NewRule(rule) = message {
                tables.extend(table(&rule));
            }
        });
        assert!(answer.is_err(), "the second datagram is cut");
        assert_eq!(tables, [7]);
    }
}
