//! The routes, the rules and the addresses of the kernel, by the protocol rtnetlink (rtnetlink(7)).

use std::{
    io::{self, Read},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use socket2::{Domain, Protocol, Socket, Type};

use super::Prefix;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const AF_NETLINK: i32 = 16;
const IPPROTO_TCP: u8 = 6;

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_DUMP: u16 = 0x300;
const RTM_GETLINK: u16 = 18;
const RTM_GETADDR: u16 = 22;
const RTM_GETROUTE: u16 = 26;
const RTM_GETRULE: u16 = 34;

const IFLA_IFNAME: u16 = 3;
const IFA_ADDRESS: u16 = 1;
/// IFA_LOCAL differs from IFA_ADDRESS on point-to-point interfaces.
const IFA_LOCAL: u16 = 2;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_IIF: u16 = 3;
const RTA_OIF: u16 = 4;
const RTA_TABLE: u16 = 15;
const RTA_MARK: u16 = 16;
const RTA_IP_PROTO: u16 = 27;
const RTA_SPORT: u16 = 28;
const FRA_DST: u16 = 1;
const FRA_SRC: u16 = 2;
const FRA_IIFNAME: u16 = 3;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;
const FRA_IP_PROTO: u16 = 22;
const FRA_SPORT_RANGE: u16 = 23;

const RTN_LOCAL: u8 = 2;
const FR_ACT_TO_TBL: u8 = 1;
const FIB_RULE_INVERT: u32 = 0x2;
/// Scope of addresses that are valid on one link or on this machine only.
const RT_SCOPE_LINK: u8 = 253;

/// Length of the header of a message, of a route, rule or link, and of an address.
const MESSAGE_HEADER: usize = 16;
const ROUTE_HEADER: usize = 12;
const LINK_HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;
/// Longest datagram of the kernel.
const MAX_DATAGRAM_BYTES: usize = 64 << 10;
/// Longest time for an answer. The kernel answers a request while it takes it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// A socket to the kernel.
pub(super) struct Netlink(Socket);

/// A question for the route of a packet.
pub(super) struct Lookup {
    pub(super) to: IpAddr,
    /// The address and the port of TCP that the packet comes from.
    pub(super) source: Option<SocketAddr>,
    /// The index of the interface that it arrives at; `None` if this machine sends it.
    pub(super) from: Option<u32>,
    pub(super) mark: u32,
}

impl Lookup {
    /// Returns the question for packets of this machine.
    pub(super) const fn to(to: IpAddr) -> Self {
        Self {
            to,
            source: None,
            from: None,
            mark: 0,
        }
    }
}

/// A route.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    kind: u8,
    /// The index of the interface that packets leave by.
    pub(super) interface: u32,
}

/// Returns whether the packets of the route are for this machine.
pub(super) const fn is_local(route: &Route) -> bool {
    route.kind == RTN_LOCAL
}

/// A rule of policy routing that leads to a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) table: u32,
    /// The interface that packets arrive at.
    pub(super) interface: Option<String>,
    pub(super) mark: Option<u32>,
    pub(super) source: Option<Prefix>,
    pub(super) destination: Option<Prefix>,
    pub(super) protocol: Option<u8>,
    /// The first and the last port that packets come from.
    pub(super) ports: Option<(u16, u16)>,
}

impl Rule {
    /// Returns whether the rule is for the answers of `server` to `client`, whatever interface they arrive at.
    pub(super) fn has_answers_of(&self, server: SocketAddr, client: IpAddr) -> bool {
        let has = |prefix: Option<Prefix>, ip| prefix.is_none_or(|prefix| is_in(ip, prefix));
        has(self.source, server.ip())
            && has(self.destination, client)
            && self.mark.is_none()
            && self.protocol.is_none_or(|protocol| protocol == IPPROTO_TCP)
            && self
                .ports
                .is_none_or(|(first, last)| (first..=last).contains(&server.port()))
    }
}

/// Returns whether the address is in the network.
fn is_in(ip: IpAddr, (network, length): Prefix) -> bool {
    let length = u32::from(length);
    match (ip, network) {
        (IpAddr::V4(ip), IpAddr::V4(network)) => {
            let different = ip.to_bits() ^ network.to_bits();
            different.leading_zeros() >= length
        }
        (IpAddr::V6(ip), IpAddr::V6(network)) => {
            let different = ip.to_bits() ^ network.to_bits();
            different.leading_zeros() >= length
        }
        _ => false,
    }
}

impl Netlink {
    pub(super) fn new() -> io::Result<Self> {
        let socket = Socket::new(
            Domain::from(AF_NETLINK),
            Type::RAW,
            // NETLINK_ROUTE
            Some(Protocol::from(0)),
        )?;
        socket.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Self(socket))
    }

    /// Returns the route of a packet.
    ///
    /// # Errors
    /// There is none, or the kernel cannot be asked.
    pub(super) fn route(&self, lookup: &Lookup) -> io::Result<Route> {
        let to = octets(lookup.to);
        let bits = (to.len() * 8) as u8;
        let source = lookup.source.map(|source| source.ip());
        let source_bits = if source.is_some() { bits } else { 0 };
        let family = family(lookup.to.is_ipv4());
        let mut request = vec![family, bits, source_bits, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        attribute(&mut request, RTA_DST, &to);
        if let Some(source) = lookup.source {
            attribute(&mut request, RTA_SRC, &octets(source.ip()));
            attribute(&mut request, RTA_IP_PROTO, &[IPPROTO_TCP]);
            attribute(&mut request, RTA_SPORT, &source.port().to_be_bytes());
        }
        if let Some(from) = lookup.from {
            attribute(&mut request, RTA_IIF, &from.to_ne_bytes());
        }
        if lookup.mark != 0 {
            attribute(&mut request, RTA_MARK, &lookup.mark.to_ne_bytes());
        }
        let answer = self.ask(RTM_GETROUTE, &request)?;
        let kind = *answer.get(7).ok_or_else(malformed)?;
        let interface = find(&answer, ROUTE_HEADER, RTA_OIF).and_then(number);
        Ok(Route {
            kind,
            interface: interface.unwrap_or(0),
        })
    }

    /// Returns the rules that lead to a table.
    pub(super) fn rules(&self, is_ipv4: bool) -> io::Result<Vec<Rule>> {
        let mut rules = Vec::new();
        self.list(RTM_GETRULE, &header(is_ipv4, ROUTE_HEADER), |rule| {
            rules.extend(rule_of(rule));
        })?;
        Ok(rules)
    }

    /// Returns whether a table has a route to this machine for packets to an address.
    pub(super) fn has_local_route(&self, table: u32, to: IpAddr) -> io::Result<bool> {
        let mut has = false;
        let request = header(to.is_ipv4(), ROUTE_HEADER);
        self.list(RTM_GETROUTE, &request, |route| {
            let of_header = route.get(4).copied().map(u32::from);
            let of_table = find(route, ROUTE_HEADER, RTA_TABLE).and_then(number);
            let length = route.get(1).copied().unwrap_or(0);
            let destination = find(route, ROUTE_HEADER, RTA_DST).and_then(address);
            has |= of_table.or(of_header) == Some(table)
                && route.get(7) == Some(&RTN_LOCAL)
                && destination.map_or(length == 0, |network| is_in(to, (network, length)));
        })?;
        Ok(has)
    }

    /// Returns the networks of this machine with other machines.
    pub(super) fn networks(&self, is_ipv4: bool) -> io::Result<Vec<Prefix>> {
        let mut networks = Vec::new();
        self.list(RTM_GETADDR, &header(is_ipv4, ADDRESS_HEADER), |one| {
            let own = find(one, ADDRESS_HEADER, IFA_LOCAL);
            let ip = own.or_else(|| find(one, ADDRESS_HEADER, IFA_ADDRESS));
            if let (Some(ip), Some(&length), Some(&scope)) =
                (ip.and_then(address), one.get(1), one.get(3))
                && scope < RT_SCOPE_LINK
            {
                networks.push((ip, length));
            }
        })?;
        Ok(networks)
    }

    /// Returns the name of an interface.
    pub(super) fn interface_name(&self, index: u32) -> io::Result<String> {
        let mut request = vec![0; LINK_HEADER];
        request[4..8].copy_from_slice(&index.to_ne_bytes());
        let answer = self.ask(RTM_GETLINK, &request)?;
        find(&answer, LINK_HEADER, IFLA_IFNAME)
            .and_then(text)
            .ok_or_else(malformed)
    }

    /// Returns the answer to a request.
    fn ask(&self, kind: u16, request: &[u8]) -> io::Result<Vec<u8>> {
        self.send(kind, NLM_F_REQUEST, request)?;
        let mut answer = Err(malformed());
        self.receive(|message| answer = Ok(message.to_vec()))?;
        answer
    }

    /// Calls `each` for each message of a list.
    fn list(&self, kind: u16, request: &[u8], mut each: impl FnMut(&[u8])) -> io::Result<()> {
        self.send(kind, NLM_F_REQUEST | NLM_F_DUMP, request)?;
        while self.receive(&mut each)? {}
        Ok(())
    }

    fn send(&self, kind: u16, flags: u16, request: &[u8]) -> io::Result<()> {
        let length = (MESSAGE_HEADER + request.len()) as u32;
        let mut message = length.to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend(flags.to_ne_bytes());
        // Sequence number and port: a socket has one request at a time.
        message.extend([0; 8]);
        message.extend(request);
        self.0.send(&message).map(drop)
    }

    /// Receives a datagram, and calls `each` for each of its messages. Returns whether a list goes on.
    fn receive(&self, mut each: impl FnMut(&[u8])) -> io::Result<bool> {
        let mut datagram = vec![0; MAX_DATAGRAM_BYTES];
        let length = (&self.0).read(&mut datagram)?;
        let mut rest = &datagram[..length];
        while let Some((header, _)) = rest.split_at_checked(MESSAGE_HEADER) {
            let length = number(&header[..4]).ok_or_else(malformed)? as usize;
            let body = rest.get(MESSAGE_HEADER..length).ok_or_else(malformed)?;
            match u16::from_ne_bytes([header[4], header[5]]) {
                NLMSG_DONE => return Ok(false),
                NLMSG_ERROR => {
                    let code = body.get(..4).and_then(number).ok_or_else(malformed)?;
                    return Err(io::Error::from_raw_os_error((code as i32).wrapping_neg()));
                }
                _ => each(body),
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(true)
    }
}

/// Returns the rule of a message, if it leads to a table.
fn rule_of(message: &[u8]) -> Option<Rule> {
    let of = |kind| find(message, ROUTE_HEADER, kind);
    let &[_, to_bits, from_bits, _, table, _, _, action, ref rest @ ..] = message else {
        return None;
    };
    let flags = rest.get(..4).and_then(number)?;
    if action != FR_ACT_TO_TBL || flags & FIB_RULE_INVERT != 0 {
        return None;
    }
    let prefix = |kind, length| of(kind).and_then(address).map(|ip| (ip, length));
    let ports = of(FRA_SPORT_RANGE).and_then(|range| {
        let port = |at: usize| Some(u16::from_ne_bytes(range.get(at..at + 2)?.try_into().ok()?));
        Some((port(0)?, port(2)?))
    });
    Some(Rule {
        table: of(FRA_TABLE)
            .and_then(number)
            .unwrap_or_else(|| table.into()),
        interface: of(FRA_IIFNAME).and_then(text),
        mark: of(FRA_FWMARK).and_then(number).filter(|&mark| mark != 0),
        source: prefix(FRA_SRC, from_bits),
        destination: prefix(FRA_DST, to_bits),
        protocol: of(FRA_IP_PROTO).and_then(|value| value.first().copied()),
        ports,
    })
}

/// Returns the header of a request for a list.
fn header(is_ipv4: bool, length: usize) -> Vec<u8> {
    let mut header = vec![0; length];
    header[0] = family(is_ipv4);
    header
}

const fn family(is_ipv4: bool) -> u8 {
    if is_ipv4 { AF_INET } else { AF_INET6 }
}

/// Appends an attribute, whose length is padded to a multiple of 4.
fn attribute(request: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = (4 + value.len()) as u16;
    request.extend(length.to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend(value);
    request.resize(request.len().next_multiple_of(4), 0);
}

/// Returns the value of an attribute after the header of a message.
fn find(message: &[u8], header: usize, kind: u16) -> Option<&[u8]> {
    let mut rest = message.get(header..)?;
    while let Some((head, _)) = rest.split_at_checked(4) {
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let value = rest.get(4..length)?;
        if u16::from_ne_bytes([head[2], head[3]]) == kind {
            return Some(value);
        }
        rest = rest.get(length.next_multiple_of(4)..)?;
    }
    None
}

fn number(value: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(value.try_into().ok()?))
}

fn address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => Some(Ipv4Addr::from_bits(u32::from_be_bytes(value.try_into().ok()?)).into()),
        16 => Some(Ipv6Addr::from_bits(u128::from_be_bytes(value.try_into().ok()?)).into()),
        _ => None,
    }
}

/// Returns a text that ends with a byte of 0.
fn text(value: &[u8]) -> Option<String> {
    let text = value.split(|&byte| byte == 0).next()?;
    Some(String::from_utf8_lossy(text).into_owned())
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn malformed() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "a malformed answer of the kernel",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(header: [u8; 8], flags: u32, attributes: &[(u16, &[u8])]) -> Option<Rule> {
        let mut message = header.to_vec();
        message.extend(flags.to_ne_bytes());
        for &(kind, value) in attributes {
            attribute(&mut message, kind, value);
        }
        rule_of(&message)
    }

    #[test]
    fn a_rule_is_for_the_answers_of_a_server() {
        let server: SocketAddr = "10.0.1.11:445".parse().unwrap();
        let client: IpAddr = "10.77.0.9".parse().unwrap();
        let ports = |first: u16, last: u16| [first.to_ne_bytes(), last.to_ne_bytes()].concat();
        let interface = (FRA_IIFNAME, &b"eth1\0"[..]);
        let source = (FRA_SRC, &[10, 0, 1, 0][..]);
        let to_clients = (FRA_DST, &[10, 77, 0, 0][..]);
        let to_others = (FRA_DST, &[10, 78, 0, 0][..]);
        for (attributes, is_for) in [
            (&[interface, source, to_clients][..], true),
            (&[interface, source, to_others], false),
            (
                &[(FRA_SPORT_RANGE, &ports(445, 445)), source, to_clients],
                true,
            ),
            (
                &[(FRA_SPORT_RANGE, &ports(1, 444)), source, to_clients],
                false,
            ),
            (&[(FRA_IP_PROTO, &[17]), source, to_clients], false),
            (&[(FRA_FWMARK, &[1, 0, 0, 0]), source, to_clients], false),
        ] {
            let rule = rule(
                [AF_INET, 24, 24, 0, 100, 0, 0, FR_ACT_TO_TBL],
                0,
                attributes,
            );
            let rule = rule.unwrap();
            assert_eq!(rule.table, 100);
            assert_eq!(rule.has_answers_of(server, client), is_for, "{rule:?}");
        }
        let table = rule(
            [AF_INET, 0, 0, 0, 0, 0, 0, FR_ACT_TO_TBL],
            0,
            &[interface, (FRA_TABLE, &1000u32.to_ne_bytes())],
        );
        let table = table.unwrap();
        assert_eq!(
            (table.table, table.interface.as_deref()),
            (1000, Some("eth1"))
        );
        let all = [AF_INET, 0, 0, 0, 100, 0, 0, FR_ACT_TO_TBL];
        assert_eq!(rule(all, FIB_RULE_INVERT, &[]), None, "for all but these");
        let unreachable = [AF_INET, 0, 0, 0, 0, 0, 0, 7];
        assert_eq!(rule(unreachable, 0, &[]), None);
    }

    #[test]
    fn malformed_messages_have_nothing() {
        assert_eq!(find(&[0; 12], 12, RTA_DST), None);
        assert_eq!(find(&[0; 16], 12, RTA_DST), None, "a length of 0");
        assert_eq!(find(&[&[0; 12][..], &[9, 0, 1, 0]].concat(), 12, 1), None);
        assert_eq!(rule_of(&[0; 7]), None);
    }
}
