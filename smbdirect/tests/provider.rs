//! The conformance suite of `provider/`, run for every provider of this crate.
//!
//! To add a provider, add a `conformance!` line: how to create it, and how its kind of RDMA differs.

#[path = "provider/mod.rs"]
#[macro_use]
mod provider;

use std::{net::SocketAddr, sync::Arc};

use provider::fabric::{Fabric, Manners};
#[cfg(feature = "tokio")]
use smbdirect::rdma::iwarp::{Iwarp, IwarpConfig};
use smbdirect::rdma::{loopback::Loopback, provider::Provider};

conformance!(loopback, fabric(Loopback::new(), Manners::default()));
#[cfg(feature = "tokio")]
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
