//! The settings of a gateway that do not change while it runs.

use std::time::Duration;

use smbdirect::{Config, ConfigError, rdma::software::network::NetworkSettings};

/// The protocol that transports SMB messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Protocol {
    /// SMB Direct, [MS-SMBD]
    #[cfg_attr(feature = "clap", value(name = "smbdirect"))]
    SmbDirect,
    /// SMB over TCP, as on port 445
    Tcp,
}

/// The address from which the gateway connects to the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum ClientAddress {
    /// Its own address
    #[default]
    Own,
    /// The address of the client, which needs CAP_NET_ADMIN and a route back; Linux, servers on TCP
    Transparent,
    /// Its own address, with a header of the PROXY protocol, version 2, that names the client
    Proxy,
}

/// The settings of a gateway that do not change while it runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The protocol of the clients.
    pub from: Protocol,
    /// The protocol of the server.
    pub to: Protocol,
    /// The address from which the gateway connects to the server.
    pub client_address: ClientAddress,
    /// The DSCP and the interface of connections to the server by TCP.
    pub network: NetworkSettings,
    /// The settings of SMB Direct connections, as [`connection_config`] returns them.
    pub config: Config,
    /// Longest time for connecting to the server.
    pub connect_timeout: Duration,
    /// Maximum memory in bytes: half of it for the buffers of connections, a quarter for requests and a quarter for
    /// answers in flight.
    pub memory: u64,
}

impl Settings {
    /// Returns the number of sessions whose buffers fit in half of the memory.
    pub fn affordable_connections(&self) -> u64 {
        self.memory / 2 / self.memory_of_one()
    }

    /// Returns the maximum number of bytes that the two connections of a session buffer.
    pub fn memory_of_one(&self) -> u64 {
        let of = |protocol| match protocol {
            Protocol::SmbDirect => self.config.receive_memory() as u64 + PENDING_REQUESTS_BYTES,
            Protocol::Tcp => TCP_BUFFER_BYTES,
        };
        of(self.from) + of(self.to)
    }
}

/// Returns the settings of the SMB Direct connections of a gateway.
///
/// The receive buffer of a connection is little larger than its credits need, because a session takes messages
/// immediately.
///
/// # Errors
/// A setting is not legal.
pub fn connection_config(mut settings: smbdirect::Settings) -> Result<Config, ConfigError> {
    let credits = usize::from(settings.receive_credit_max) + 2;
    let receive_buffer = credits * settings.max_receive_size as usize + BUFFERED_BEYOND_CREDITS;
    settings.receive_buffer = Some(receive_buffer);
    Config::new(settings)
}

/// Bytes of messages that an SMB Direct connection buffers in addition to the receives of its credits.
const BUFFERED_BEYOND_CREDITS: usize = 1 << 20;
/// Maximum number of bytes in the table of a client's unanswered requests.
const PENDING_REQUESTS_BYTES: u64 = 2 << 20;
/// Maximum number of bytes that a TCP connection buffers, in addition to requests and answers in flight.
const TCP_BUFFER_BYTES: u64 = 512 << 10;
