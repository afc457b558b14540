//! The conformance suite of `smbdirect-provider-suite`, run for every provider of this crate.
//!
//! To add a provider, add a `conformance!` line: how to create it, and how its kind of RDMA differs.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::Arc,
};

use smbdirect_provider_suite::{Capabilities, Fabric, conformance};
use smbdirect_rdma::{
    iwarp::{Iwarp, IwarpConfig},
    loopback::Loopback,
    roce::{Roce, RoceConfig},
};

conformance!(loopback, Fabric::new(Loopback::new()));
conformance!(iwarp, {
    let mut fabric = Fabric::new(Iwarp::new(IwarpConfig::default()));
    fabric.capabilities.over_tcp = true;
    fabric.capabilities.limits_flushes = true;
    fabric
});
// Two providers: the one that connects finds its UDP port taken, and uses a free one.
conformance!(
    roce,
    roce("127.0.0.1:0")
        .map(|(config, listen)| Fabric {
            active: Arc::new(Roce::new(config.clone())),
            passive: Arc::new(Roce::new(config)),
            listen,
            capabilities: roce_capabilities(),
        })
        .expect("IPv4 is there")
);
// One provider over IPv6, whose two ends share a socket.
conformance!(roce_ipv6, optional roce("[::1]:0").map(|(config, listen)| Fabric {
    listen,
    capabilities: roce_capabilities(),
    ..Fabric::new(Roce::new(config))
}));

/// Returns settings with a UDP port of their own, so that tests can run concurrently, and the
/// address to listen on. Returns `None` if the machine does not have the address family.
fn roce(listen: &str) -> Option<(RoceConfig, SocketAddr)> {
    let listen: SocketAddr = listen.parse().unwrap();
    let udp_port = UdpSocket::bind(listen).ok()?.local_addr().ok()?.port();
    let mut config = RoceConfig::default();
    config.udp_port = udp_port;
    config.peer_udp_port = udp_port;
    Some((config, listen))
}

fn roce_capabilities() -> Capabilities {
    let mut capabilities = Capabilities::default();
    capabilities.private_data = 48;
    capabilities.writes_are_whole = false;
    capabilities
}
