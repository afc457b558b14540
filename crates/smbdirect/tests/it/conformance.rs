//! The conformance suite of `smbdirect_test::provider`, run for every provider of this crate.
//!
//! To add a provider, add a `conformance!` line: how to create it, and how its kind of RDMA differs.

use std::{
    net::{SocketAddr, UdpSocket},
    sync::Arc,
};

use smbdirect::rdma::{
    iwarp::{Iwarp, IwarpConfig},
    loopback::Loopback,
    provider::Provider,
    roce::{Roce, RoceConfig},
};
use smbdirect_test::{
    conformance,
    provider::fabric::{Fabric, Manners},
};

conformance!(loopback, fabric(Loopback::new(), Manners::default()));
conformance!(iwarp, {
    let manners = Manners {
        over_tcp: true,
        ..Manners::default()
    };
    fabric(Iwarp::new(IwarpConfig::default()), manners)
});
// Two providers: the one that connects finds its UDP port taken, and uses a free one.
conformance!(
    roce,
    roce("127.0.0.1:0")
        .map(|(config, listen)| Fabric {
            active: Arc::new(Roce::new(config.clone())),
            passive: Arc::new(Roce::new(config)),
            listen,
            manners: roce_manners(),
        })
        .expect("IPv4 is there")
);
// One provider over IPv6, whose two ends share a socket.
conformance!(roce_ipv6, optional roce("[::1]:0").map(|(config, listen)| Fabric {
    listen,
    ..fabric(Roce::new(config), roce_manners())
}));

/// Returns settings with a UDP port of their own, so that tests can run concurrently, and the
/// address to listen on. Returns `None` if the machine does not have the address family.
fn roce(listen: &str) -> Option<(RoceConfig, SocketAddr)> {
    let listen: SocketAddr = listen.parse().unwrap();
    let udp_port = UdpSocket::bind(listen).ok()?.local_addr().ok()?.port();
    let config = RoceConfig {
        udp_port,
        peer_udp_port: udp_port,
        ..RoceConfig::default()
    };
    Some((config, listen))
}

fn roce_manners() -> Manners {
    Manners {
        private_data: 48,
        writes_are_whole: false,
        ..Manners::default()
    }
}

/// The same provider at both ends.
fn fabric(provider: impl Provider + 'static, manners: Manners) -> Fabric {
    let provider = Arc::new(provider);
    Fabric {
        active: provider.clone(),
        passive: provider,
        listen: SocketAddr::from(([127, 0, 0, 1], 0)),
        manners,
    }
}
