//! The options about several servers, and about which clients are served.

use std::{
    net::{IpAddr, Ipv6Addr},
    str::FromStr,
    time::Duration,
};

use clap::Args;
use smbdirect_gateway::{Balance, Check, ClientAddress, Network};
use smbdirect_transport::AddressError;

use crate::options::{Address, at_least_one, seconds_or_zero};

/// Options about the clients.
#[derive(Clone, Debug, Args)]
pub(super) struct ClientOptions {
    /// Permit only clients of this network, as in 10.0.0.0/8 [default: all]
    ///
    /// It can be given several times, and takes addresses as well. Others are turned away before anything is
    /// read from them
    #[arg(long, value_name = "NETWORK")]
    pub(super) allow: Vec<Network>,

    /// Turn away clients of this network, also if --allow has it
    #[arg(long, value_name = "NETWORK", hide_short_help = true)]
    pub(super) deny: Vec<Network>,

    /// Maximum number of concurrent connections of one address
    #[arg(long, value_name = "N", value_parser = at_least_one, hide_short_help = true)]
    pub(super) max_connections_per_client: Option<u64>,

    /// Proxies whose connections begin with a header of the PROXY protocol, version 2
    ///
    /// The client is the one that the header names. It can be given several times
    #[arg(long, value_name = "NETWORK", hide_short_help = true)]
    pub(super) trusted_proxies: Vec<Network>,

    /// The address from which the gateway connects to the server
    #[arg(
        long,
        value_enum,
        value_name = "WHICH",
        default_value_t,
        hide_short_help = true
    )]
    pub(super) client_address: ClientAddress,
}

/// Options about several servers.
#[derive(Clone, Debug, Args)]
pub(super) struct ServerOptions {
    /// How a server is chosen for a new client, if there are several
    ///
    /// All connections of one client go to the same server
    #[arg(
        long,
        value_enum,
        value_name = "HOW",
        default_value_t,
        hide_short_help = true
    )]
    pub(super) balance: Balance,

    /// Time from one check of a server to the next, if there are several; 0 checks none
    ///
    /// A check connects and negotiates SMB, for at most this time
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds_or_zero, hide_short_help = true)]
    check_interval: Duration,

    /// Checks in a row that must succeed before a server takes clients again
    #[arg(long, value_name = "N", default_value = "2", value_parser = times, hide_short_help = true)]
    check_rise: u32,

    /// Checks in a row that must fail before a server gets no new clients
    #[arg(long, value_name = "N", default_value = "3", value_parser = times, hide_short_help = true)]
    check_fall: u32,

    /// Time in which a server that takes clients again gets its full part of new ones
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds_or_zero, hide_short_help = true)]
    slow_start: Duration,
}

impl ServerOptions {
    /// Returns how to check this number of servers. A single one is not checked, because no other could take its clients.
    pub(super) fn check(&self, servers: usize) -> Option<Check> {
        (servers > 1 && !self.check_interval.is_zero()).then_some(Check {
            interval: self.check_interval,
            rise: self.check_rise,
            fall: self.check_fall,
            slow_start: self.slow_start,
        })
    }
}

/// Addresses with commas between them: at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Addresses(Vec<Address>);

impl Addresses {
    pub(super) fn first(&self) -> &Address {
        &self.0[0]
    }

    pub(super) fn all(&self) -> &[Address] {
        &self.0
    }

    /// Returns the addresses to listen on, without those that a listener on another one of them covers: a listener without a
    /// host or on `[::]` is one for every address of the machine.
    pub(super) fn uncovered(&self) -> Vec<&Address> {
        let all = self.0.iter().enumerate();
        let is_covered = |(at, address): &(usize, &Address)| {
            let covers = |(other, wide): (usize, &Address)| {
                // Of two that cover each other, the first one stays.
                other != *at && covers(wide, address) && (!covers(address, wide) || other < *at)
            };
            self.0.iter().enumerate().any(covers)
        };
        let own = all.filter(|one| !is_covered(one));
        own.map(|(_, address)| address).collect()
    }
}

/// Returns whether a listener on one address takes the clients of another, so that there can be no listener for that.
fn covers(wide: &Address, address: &Address) -> bool {
    // Each listener has a port of its own.
    if wide.port != address.port || wide.port == Some(0) {
        return false;
    }
    let ip = |address: &Address| match address.host.as_str() {
        "" => Some(IpAddr::from(Ipv6Addr::UNSPECIFIED)),
        host => host.parse().ok(),
    };
    match (ip(wide), ip(address)) {
        (Some(IpAddr::V6(wide)), Some(_)) if wide.is_unspecified() => true,
        (Some(IpAddr::V4(wide)), Some(IpAddr::V4(_))) if wide.is_unspecified() => true,
        (wide, ip) => wide.is_some() && wide == ip,
    }
}

impl FromStr for Addresses {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        text.split(',')
            .map(str::parse)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

/// A time limit, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit(pub(super) Option<Duration>);

/// Parses a time in seconds, or `never`.
pub(super) fn seconds_or_never(text: &str) -> Result<Limit, String> {
    if text == "never" {
        return Ok(Limit(None));
    }
    seconds_or_zero(text).map(Some).map(Limit)
}

/// Parses a number of times.
fn times(text: &str) -> Result<u32, String> {
    let number = at_least_one(text)?;
    u32::try_from(number).map_err(|_| format!("the maximum is {}", u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_another_one_covers_needs_no_listener() {
        for (all, own) in [
            ("0.0.0.0:445,[::]:445", "[::]:445"),
            ("[::]:445,0.0.0.0:445", "[::]:445"),
            (":445,10.0.0.1:445,[fd00::1]:445", ":445"),
            (":445,[::]:445,:445", ":445"),
            ("0.0.0.0:445,10.0.0.1:445", "0.0.0.0:445"),
            ("0.0.0.0:445,[fd00::1]:445", "0.0.0.0:445,[fd00::1]:445"),
            (":445,10.0.0.1:446", ":445,10.0.0.1:446"),
            ("10.0.0.1:445,10.0.0.2:445", "10.0.0.1:445,10.0.0.2:445"),
            (":0,127.0.0.1:0", ":0,127.0.0.1:0"),
            ("nas,10.0.0.1", "nas,10.0.0.1"),
        ] {
            let addresses: Addresses = all.parse().unwrap();
            let uncovered: Vec<_> = addresses
                .uncovered()
                .iter()
                .map(ToString::to_string)
                .collect();
            assert_eq!(uncovered.join(","), own, "{all}");
        }
    }
}
