//! Whether the answers of a server to its clients come to this machine, as a connection from the address of a client
//! needs (IP_TRANSPARENT): the kernel is asked for the route of such a packet, and none is sent.

mod netlink;

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use netlink::{Lookup, Netlink, Rule, is_local};

/// A network: an address, and the number of its leading bits that count.
pub type Prefix = (IpAddr, u8);

/// What the answers of a server lack to come to this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingRoutes {
    /// The server.
    pub server: SocketAddr,
    /// Commands that would help. Empty if the rule and the route are there, so that an earlier rule or a filter decides.
    pub commands: Vec<String>,
}

impl fmt::Display for MissingRoutes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the answers of {} to clients do not come to this machine; ",
            self.server
        )?;
        if self.commands.is_empty() {
            return f.write_str(
                "the rule and the route are there, so an earlier rule or a filter (`ip rule`, rp_filter) prevents it",
            );
        }
        write!(f, "missing: {}", self.commands.join("; "))
    }
}

/// Returns what the answers of `server` to clients lack to come to this machine; `None` if they come. Clients are assumed
/// in `networks`, in the networks of this machine, and elsewhere: it is enough that the answers to some of them come.
///
/// # Errors
/// The kernel cannot be asked.
pub fn missing_routes(
    server: SocketAddr,
    networks: &[Prefix],
) -> io::Result<Option<MissingRoutes>> {
    let netlink = Netlink::new()?;
    let ip = server.ip();
    let to_server = netlink.route(&Lookup::to(ip))?;
    // The interface that its answers come from.
    let from = if is_local(&to_server) {
        None
    } else {
        Some(to_server.interface)
    };
    let rules = netlink.rules(ip.is_ipv4())?;
    // A packet may have a mark of a rule, by the packet filter.
    let marks = rules.iter().filter_map(|rule| rule.mark);
    let marks: Vec<_> = [0].into_iter().chain(marks).collect();
    let comes = |&client: &IpAddr| {
        marks.iter().any(|&mark| {
            let answer = Lookup {
                source: Some(server),
                from,
                mark,
                ..Lookup::to(client)
            };
            netlink.route(&answer).is_ok_and(|route| is_local(&route))
        })
    };
    let clients = clients(&netlink, ip, networks)?;
    if clients.is_empty() || clients.iter().any(comes) {
        return Ok(None);
    }
    let interface = match from {
        Some(index) => netlink.interface_name(index)?,
        None => "lo".to_owned(),
    };
    // A rule for a part of the clients is enough.
    let rule_for = |&client: &IpAddr| {
        let rule = rules.iter().find(|rule| {
            rule.interface.as_deref() == Some(&*interface) && rule.has_answers_of(server, client)
        });
        rule.map(|rule| (rule, client))
    };
    let (rule, client) = match clients.iter().find_map(rule_for) {
        Some((rule, client)) => (Some(rule), client),
        None => (None, clients[0]),
    };
    let table = rule.map_or(TABLE, |rule| rule.table);
    let has_route = netlink.has_local_route(table, client)?;
    let commands = commands(server, from.map(|_| &*interface), rule, has_route);
    Ok(Some(MissingRoutes { server, commands }))
}

/// The routing table of the commands, unless a rule names another one.
const TABLE: u32 = 100;

/// Returns the commands that are missing. `interface` leads to the server, unless it is on this machine.
fn commands(
    server: SocketAddr,
    interface: Option<&str>,
    rule: Option<&Rule>,
    has_route: bool,
) -> Vec<String> {
    let (ip, port) = (server.ip(), server.port());
    let (option, all) = if ip.is_ipv4() {
        ("", "0.0.0.0/0")
    } else {
        (" -6", "::/0")
    };
    let mut commands = Vec::new();
    if rule.is_none() {
        let from = match interface {
            Some(interface) => format!("iif {interface}"),
            None => format!("from {ip} iif lo"),
        };
        commands.push(format!(
            "ip{option} rule add {from} ipproto tcp sport {port} lookup {TABLE}"
        ));
    }
    if !has_route {
        let table = rule.map_or(TABLE, |rule| rule.table);
        commands.push(format!(
            "ip{option} route add local {all} dev lo table {table}"
        ));
    }
    commands
}

/// Returns addresses that clients of a server with the address `server` may have: of other machines in these networks
/// and in those of this machine, and of one that is in none of them.
fn clients(netlink: &Netlink, server: IpAddr, networks: &[Prefix]) -> io::Result<Vec<IpAddr>> {
    let elsewhere: IpAddr = match server {
        // Addresses of documentation, which no machine has.
        IpAddr::V4(_) => Ipv4Addr::new(192, 0, 2, 1).into(),
        IpAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    };
    let own = netlink.networks(server.is_ipv4())?;
    let of_family = |(ip, _): &&Prefix| ip.is_ipv4() == server.is_ipv4();
    let all = networks.iter().filter(of_family).chain(&own);
    let is_elsewhere = |&ip: &IpAddr| {
        let route = netlink.route(&Lookup::to(ip));
        ip != server && !route.is_ok_and(|route| is_local(&route))
    };
    let in_network = |&network: &Prefix| hosts(network).find(is_elsewhere);
    Ok(all.filter_map(in_network).chain([elsewhere]).collect())
}

/// Returns some addresses of machines in a network.
fn hosts((ip, length): Prefix) -> impl Iterator<Item = IpAddr> {
    const SOME: u32 = 10;
    let bits: u32 = if ip.is_ipv4() { 32 } else { 128 };
    let host_bits = bits.saturating_sub(length.into());
    let (first, last) = match host_bits {
        0 => (0, 0),
        1 => (0, 1),
        // The first and the last address may have another meaning.
        _ => (1, SOME.min((1_u32 << host_bits.min(8)) - 2)),
    };
    (first..=last).map(move |number| match ip {
        IpAddr::V4(ip) => {
            let network = ip.to_bits().checked_shr(host_bits).unwrap_or(0);
            let network = network.checked_shl(host_bits).unwrap_or(0);
            Ipv4Addr::from_bits(network | number).into()
        }
        IpAddr::V6(ip) => {
            let network = ip.to_bits().checked_shr(host_bits).unwrap_or(0);
            let network = network.checked_shl(host_bits).unwrap_or(0);
            Ipv6Addr::from_bits(network | u128::from(number)).into()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_knows_what_is_local() {
        let netlink = Netlink::new().unwrap();
        let route = netlink.route(&Lookup::to(Ipv4Addr::LOCALHOST.into()));
        assert!(is_local(&route.unwrap()));
        // Without a route it is an error.
        let route = netlink.route(&Lookup::to(Ipv4Addr::new(192, 0, 2, 1).into()));
        assert!(!route.is_ok_and(|route| is_local(&route)));
        // Each system has a rule for the local table.
        let rules = netlink.rules(true).unwrap();
        assert!(rules.iter().any(|rule| rule.table == 255), "{rules:?}");
        assert_eq!(netlink.interface_name(1).unwrap(), "lo");
        let localhost = IpAddr::from(Ipv4Addr::LOCALHOST);
        assert!(netlink.has_local_route(255, localhost).unwrap());
        assert!(!netlink.has_local_route(231, localhost).unwrap());
    }

    #[test]
    fn commands_are_for_the_family_and_the_place_of_the_server() {
        let here = "127.0.0.1:445".parse().unwrap();
        let rule = "ip rule add from 127.0.0.1 iif lo ipproto tcp sport 445 lookup 100";
        let route = "ip route add local 0.0.0.0/0 dev lo table 100";
        assert_eq!(commands(here, None, None, false), [rule, route]);
        assert_eq!(commands(here, None, None, true), [rule]);
        let there = "[fd00:1::11]:4450".parse().unwrap();
        let rule = "ip -6 rule add iif eth1 ipproto tcp sport 4450 lookup 100";
        let route = "ip -6 route add local ::/0 dev lo table 100";
        assert_eq!(commands(there, Some("eth1"), None, false), [rule, route]);
        let other = Rule {
            table: 7,
            ..Rule::default()
        };
        let route = "ip -6 route add local ::/0 dev lo table 7";
        assert_eq!(commands(there, Some("eth1"), Some(&other), false), [route]);
        assert!(commands(there, Some("eth1"), Some(&other), true).is_empty());
    }

    #[test]
    fn machines_of_a_network() {
        let of = |ip: &str, length| {
            let hosts = hosts((ip.parse().unwrap(), length)).map(|host| host.to_string());
            hosts.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(of("10.77.0.9", 30), "10.77.0.9 10.77.0.10");
        assert_eq!(of("10.77.0.9", 31), "10.77.0.8 10.77.0.9");
        assert_eq!(of("10.77.0.9", 32), "10.77.0.9");
        assert!(of("10.77.0.9", 8).starts_with("10.0.0.1 10.0.0.2 "));
        assert!(of("0.0.0.0", 0).starts_with("0.0.0.1 "));
        assert!(of("fd00:77::5", 64).starts_with("fd00:77::1 fd00:77::2 "));
        assert_eq!(of("fd00:77::5", 128), "fd00:77::5");
    }
}
