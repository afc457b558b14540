//! Asks the kernel whether the answers of a server to its clients come to this machine, which connections from the address
//! of a client (IP_TRANSPARENT) need. No packet is sent.

mod netlink;

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use ipnet::IpNet;
use netlink::{Netlink, interface, interface_name, is_local, is_rule_for, mark, table};
use netlink_packet_route::{IpProtocol, route::RouteAttribute};

/// The rules and routes that are missing so that the answers of a server come to this machine.
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
pub fn missing_routes(server: SocketAddr, networks: &[IpNet]) -> io::Result<Option<MissingRoutes>> {
    let netlink = Netlink::new()?;
    let ip = server.ip();
    let to_server = netlink.route(ip, &[])?;
    // The interface that its answers come from.
    let from = interface(&to_server).filter(|_| !is_local(&to_server));
    let rules = netlink.rules(ip.is_ipv4())?;
    // A packet may have a mark of a rule, by the packet filter.
    let marks = rules.iter().filter_map(mark);
    let marks: Vec<_> = [0].into_iter().chain(marks).collect();
    let mut answer = vec![
        RouteAttribute::Source(ip.into()),
        RouteAttribute::IpProto(IpProtocol::Tcp.into()),
        RouteAttribute::Sport(server.port()),
    ];
    answer.extend(from.map(RouteAttribute::Iif));
    let comes = |&client: &IpAddr| {
        marks.iter().any(|&mark| {
            let answer = [&answer[..], &[RouteAttribute::Mark(mark)]].concat();
            netlink
                .route(client, &answer)
                .is_ok_and(|route| is_local(&route))
        })
    };
    let clients = clients(&netlink, ip, networks)?;
    if clients.is_empty() || clients.iter().any(comes) {
        return Ok(None);
    }
    let interface = match from {
        Some(index) => interface_name(index)?,
        None => "lo".to_owned(),
    };
    // A rule for a part of the clients is enough.
    let rule_for = |&client: &IpAddr| {
        let rule = rules
            .iter()
            .find(|rule| is_rule_for(rule, &interface, server, client));
        rule.and_then(table).map(|table| (table, client))
    };
    let rule = clients.iter().find_map(rule_for);
    let (table, client) = rule.unwrap_or((TABLE, clients[0]));
    let has_route = netlink.has_local_route(table, client)?;
    let commands = commands(
        server,
        from.map(|_| &*interface),
        rule.map(|_| table),
        has_route,
    );
    Ok(Some(MissingRoutes { server, commands }))
}

/// The routing table of the commands, unless a rule names another one.
const TABLE: u32 = 100;

/// Returns the commands that are missing. `interface` leads to the server, unless it is on this machine. `rule` is the
/// table of the rule that is there.
fn commands(
    server: SocketAddr,
    interface: Option<&str>,
    rule: Option<u32>,
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
        let table = rule.unwrap_or(TABLE);
        commands.push(format!(
            "ip{option} route add local {all} dev lo table {table}"
        ));
    }
    commands
}

/// Returns addresses that clients of a server with the address `server` may have: of other machines in these networks
/// and in those of this machine, and of one that is in none of them.
fn clients(netlink: &Netlink, server: IpAddr, networks: &[IpNet]) -> io::Result<Vec<IpAddr>> {
    let elsewhere: IpAddr = match server {
        // Addresses of documentation, which no machine has.
        IpAddr::V4(_) => Ipv4Addr::new(192, 0, 2, 1).into(),
        IpAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    };
    let own = netlink.networks(server.is_ipv4())?;
    let of_family = |network: &&IpNet| network.addr().is_ipv4() == server.is_ipv4();
    let all = networks.iter().filter(of_family).chain(&own);
    let is_elsewhere = |&ip: &IpAddr| {
        let route = netlink.route(ip, &[]);
        ip != server && !route.is_ok_and(|route| is_local(&route))
    };
    let in_network = |network: &IpNet| hosts(*network).find(is_elsewhere);
    Ok(all.filter_map(in_network).chain([elsewhere]).collect())
}

/// Returns some addresses of machines in a network.
fn hosts(network: IpNet) -> impl Iterator<Item = IpAddr> {
    const SOME: usize = 10;
    // The first address of a network of IPv6 is any of its routers. A network of one or two addresses has none for that.
    let has_routers = network.max_prefix_len() - network.prefix_len() > 1;
    let hosts = network.hosts();
    hosts
        .filter(move |&ip| !has_routers || ip != network.network())
        .take(SOME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_knows_what_is_local() {
        let netlink = Netlink::new().unwrap();
        let route = netlink.route(Ipv4Addr::LOCALHOST.into(), &[]);
        assert!(is_local(&route.unwrap()));
        // Without a route it is an error.
        let route = netlink.route(Ipv4Addr::new(192, 0, 2, 1).into(), &[]);
        assert!(!route.is_ok_and(|route| is_local(&route)));
        // Each system has a rule for the local table.
        let rules = netlink.rules(true).unwrap();
        assert!(
            rules.iter().any(|rule| table(rule) == Some(255)),
            "{rules:?}"
        );
        assert_eq!(interface_name(1).unwrap(), "lo");
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
        let route = "ip -6 route add local ::/0 dev lo table 7";
        assert_eq!(commands(there, Some("eth1"), Some(7), false), [route]);
        assert!(commands(there, Some("eth1"), Some(7), true).is_empty());
    }

    #[test]
    fn machines_of_a_network() {
        let of = |ip: &str, length| {
            let network = IpNet::new(ip.parse().unwrap(), length).unwrap();
            let hosts = hosts(network).map(|host| host.to_string());
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
