//! The settings of the RoCEv2 provider.

use std::{sync::Arc, time::Duration};

use super::tap::DatagramTap;
use crate::{
    roce::{cm::PathMtu, endpoint::EndpointSettings, packet::UDP_PORT},
    software::network::NetworkSettings,
};

/// The settings of [`Roce`](super::Roce). Begin with the defaults, and change fields:
///
/// ```
/// use smbdirect_rdma::roce::{Roce, RoceConfig};
///
/// let mut config = RoceConfig::default();
/// config.ird = 64;
/// let provider = Roce::new(config);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RoceConfig {
    /// IRD: the most RDMA Reads that a peer may have outstanding; at most 128. The default is 32.
    pub ird: u8,
    /// ORD: the most RDMA Reads that this end has outstanding; at most 128, and never more than the
    /// peer serves. The default is 32.
    pub ord: u8,
    /// The UDP port to receive on. RoCE adapters and Linux rxe send to 4791 only. An end that
    /// connects uses a free port instead if this one is taken. The default is 4791.
    pub udp_port: u16,
    /// The UDP port on which peers receive connection requests. Only listeners of this library can
    /// have another port than 4791. The default is 4791.
    pub peer_udp_port: u16,
    /// The largest path MTU. The default, `None`, uses the largest one that fits the interface.
    pub path_mtu: Option<PathMtu>,
    /// The longest time until a connection is established. The CM gives up after 33.5 s, so a longer time has no
    /// effect. The default is 10 s.
    pub connect_timeout: Duration,
    /// The longest time that a peer may take to confirm that it was accepted. The default is 5 s.
    pub accept_timeout: Duration,
    /// The longest time, after a graceful disconnect, until posted work is finished and the peer has
    /// answered. The default is 5 s.
    pub close_timeout: Duration,
    /// The most connection requests of one socket that are open: not answered, or not confirmed by
    /// the peer. Further requests are ignored, and their senders repeat them. The default is 64.
    pub max_half_open: usize,
    /// The most bytes of one connection that are sent and not acknowledged. Between two ends with the same IP
    /// address, the limit is an eighth of the receive buffer of this end's socket if that is more, up to 1 MiB. The
    /// default is 256 KiB.
    pub max_in_flight: usize,
    /// How long a connection polls for more datagrams before it sleeps, once at least 16 KiB have moved since its
    /// last sleep. With zero it sleeps immediately. The default is 100 µs.
    pub poll_window: Duration,
    /// The DSCP and the interface of the packets.
    pub network: NetworkSettings,
    /// The DSCP of congestion notification packets, from 0 to 63, which takes effect on Linux only. The default is 48,
    /// as usual for adapters.
    pub cnp_dscp: u8,
    /// An observer of all datagrams. The default is none.
    #[doc(hidden)]
    pub tap: Option<Arc<dyn DatagramTap>>,
}

/// The most bytes in flight between two ends of one machine, if `max_in_flight` is not larger.
const MAX_WITHIN_HOST: usize = 1 << 20;
/// The default DSCP of congestion notification packets: CS6, as of adapters.
const DEFAULT_CNP_DSCP: u8 = 48;
/// The most RDMA Reads at a time.
const MAX_READS: u8 = 128;

impl Default for RoceConfig {
    fn default() -> Self {
        let settings = EndpointSettings::default();
        Self {
            ird: settings.responder_resources,
            ord: settings.initiator_depth,
            udp_port: UDP_PORT,
            peer_udp_port: UDP_PORT,
            path_mtu: None,
            connect_timeout: Duration::from_secs(10),
            accept_timeout: Duration::from_secs(5),
            close_timeout: settings.close_timeout,
            max_half_open: settings.max_half_open,
            max_in_flight: settings.max_in_flight,
            poll_window: Duration::from_micros(100),
            network: NetworkSettings::default(),
            cnp_dscp: DEFAULT_CNP_DSCP,
            tap: None,
        }
    }
}

impl RoceConfig {
    /// Returns the settings of an endpoint whose socket has a receive buffer of this size in bytes, as the system
    /// counts it.
    pub(super) fn endpoint(&self, receive_buffer: usize) -> EndpointSettings {
        let within_host = (receive_buffer / 8).min(MAX_WITHIN_HOST);
        EndpointSettings {
            max_in_flight_within_host: self.max_in_flight.max(within_host),
            responder_resources: self.ird.min(MAX_READS),
            initiator_depth: self.ord.min(MAX_READS),
            max_in_flight: self.max_in_flight,
            close_timeout: self.close_timeout,
            max_half_open: self.max_half_open.max(1),
            ..EndpointSettings::default()
        }
    }

    /// Returns the largest path MTU on an interface with this MTU.
    pub(super) fn path_mtu(&self, interface_mtu: usize, ipv6: bool) -> PathMtu {
        let fits = PathMtu::of_interface(interface_mtu, ipv6);
        self.path_mtu.map_or(fits, |most| most.min(fits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_in_flight_within_a_machine_depend_on_the_receive_buffer() {
        let config = RoceConfig::default();
        let within =
            |config: &RoceConfig, buffer| config.endpoint(buffer).max_in_flight_within_host;
        // Without privileges, the receive buffer of a socket has 416 KiB, and with them 8 MiB.
        for (buffer, expected) in [
            (0, 1 << 18),
            (425_984, 1 << 18),
            (4 << 20, 1 << 19),
            (8 << 20, 1 << 20),
            (1 << 30, 1 << 20),
        ] {
            assert_eq!(within(&config, buffer), expected, "{buffer}");
            assert_eq!(config.endpoint(buffer).max_in_flight, 1 << 18);
        }
        let more = RoceConfig {
            max_in_flight: 4 << 20,
            ..config
        };
        assert_eq!(within(&more, 8 << 20), 4 << 20);
    }
}
