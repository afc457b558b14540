//! The conformance suite of `smbdirect_test::provider`, run for every provider of this crate.
//!
//! To add a provider, add a `conformance!` line: how to create it, and how its kind of RDMA differs.

use std::{net::SocketAddr, sync::Arc};

use smbdirect::rdma::{
    iwarp::{Iwarp, IwarpConfig},
    loopback::Loopback,
    provider::Provider,
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
