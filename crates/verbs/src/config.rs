//! The settings of [`Verbs`](crate::Verbs), and the well-known ports of SMB Direct.

use std::time::Duration;

use smbdirect::rdma::NetworkSettings;

/// The port of SMB Direct over iWARP (1.9).
pub(crate) const IWARP_PORT: u16 = 5445;
/// The port of SMB Direct over InfiniBand and RoCE (1.9).
pub(crate) const INFINIBAND_PORT: u16 = 445;
/// All well-known ports of SMB Direct (1.9).
pub(crate) const SMB_DIRECT_PORTS: [u16; 2] = [IWARP_PORT, INFINIBAND_PORT];

/// Settings of the connections that [`Verbs`](crate::Verbs) makes. Begin with `VerbsConfig::default()`, and change
/// fields.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VerbsConfig {
    /// Sends, Reads and Writes that a connection can have posted. The device may lower it. The default is
    /// 512.
    pub send_queue: u32,
    /// Receives that a connection can have posted. The device may lower it. The connection can
    /// grant the peer this many credits, less two. The default is 512.
    pub receive_queue: u32,
    /// RDMA Reads by the peer that the device serves concurrently (the inbound read depth). The
    /// device may lower it. The default is 32.
    pub ird: u8,
    /// RDMA Reads that this end can have outstanding (the outbound read depth). The device and the
    /// peer may lower it. The default is 32.
    pub ord: u8,
    /// Longest time for each step of connecting: resolving the address, resolving the route, and
    /// the peer's answer. The default is 10 s.
    pub connect_timeout: Duration,
    /// Longest time that posted work may take to complete after a graceful disconnect. The default is 5 s.
    pub close_timeout: Duration,
    /// Connection requests that may wait to be accepted. The default is 128.
    pub backlog: u16,
    /// How long the driver task polls the completion queue before it sleeps. Busy-polling saves
    /// the wake-up latency and keeps a core busy. The default is zero, which turns it off.
    pub busy_poll: Duration,
    /// Whether ports 445 and 5445 both mean "the port of SMB Direct on this kind of device" (1.9).
    /// If it is set, a connection goes to the port that fits the device on the route to the peer,
    /// and a listener binds the ports of all usable devices. The default is false.
    pub port_by_device: bool,
    /// The DSCP of the packets, and the interface whose adapter is used. Packets of InfiniBand have no DSCP.
    pub network: NetworkSettings,
}

impl Default for VerbsConfig {
    fn default() -> Self {
        Self {
            send_queue: 512,
            receive_queue: 512,
            ird: 32,
            ord: 32,
            connect_timeout: Duration::from_secs(10),
            close_timeout: Duration::from_secs(5),
            backlog: 128,
            busy_poll: Duration::ZERO,
            port_by_device: false,
            network: NetworkSettings::default(),
        }
    }
}
