//! The options about several servers, and about which clients are served.

use std::{str::FromStr, time::Duration};

use clap::{Args, ValueEnum};
use smbdirect_gateway as gateway;
use smbdirect_gateway::{Check, Network};
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
    balance: Balance,

    /// Time between two checks of a server, if there are several; 0 checks none
    ///
    /// A check connects and negotiates SMB, for at most this time
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds_or_zero, hide_short_help = true)]
    check_interval: Duration,

    /// Checks in a row that must succeed before a server takes clients again
    #[arg(long, value_name = "N", default_value = "2", value_parser = times, hide_short_help = true)]
    check_rise: u32,

    /// Checks in a row that must fail before a server takes no clients
    #[arg(long, value_name = "N", default_value = "3", value_parser = times, hide_short_help = true)]
    check_fall: u32,

    /// Time in which a server that takes clients again gets its full part of new ones
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds_or_zero, hide_short_help = true)]
    slow_start: Duration,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum ClientAddress {
    /// Its own address
    #[default]
    Own,
    /// The address of the client, which needs CAP_NET_ADMIN and a route back; Linux, servers on TCP
    Transparent,
    /// Its own address, with a header of the PROXY protocol, version 2, that names the client
    Proxy,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Balance {
    /// The server with the fewest sessions
    #[default]
    LeastConnections,
    /// One after the other
    RoundRobin,
}

impl From<ClientAddress> for gateway::ClientAddress {
    fn from(address: ClientAddress) -> Self {
        match address {
            ClientAddress::Own => Self::Own,
            ClientAddress::Transparent => Self::Transparent,
            ClientAddress::Proxy => Self::Proxy,
        }
    }
}

impl ServerOptions {
    pub(super) const fn balance(&self) -> gateway::Balance {
        match self.balance {
            Balance::LeastConnections => gateway::Balance::LeastConnections,
            Balance::RoundRobin => gateway::Balance::RoundRobin,
        }
    }

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
