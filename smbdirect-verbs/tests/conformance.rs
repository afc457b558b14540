//! The conformance suite of `smbdirect`, run over the RDMA devices of this machine.
//!
//! Set `SMBDIRECT_VERBS` to the address of a network interface that has an RDMA device. Without it,
//! or without such a device, each test prints the reason and skips; `SMBDIRECT_REQUIRE_VERBS=1`
//! turns that into a failure. Over iWARP the suite runs three times: with an adapter at both ends,
//! and with an adapter at either end and software iWARP of `smbdirect` at the other.

use std::{env, net::SocketAddr, sync::Arc};

use smbdirect::rdma::{
    iwarp::{Iwarp, IwarpConfig},
    provider::Provider,
};
use smbdirect_test::{
    conformance,
    provider::fabric::{Fabric, Manners},
};
use smbdirect_verbs::{Verbs, VerbsConfig};

/// The ends that use an adapter. The other end uses software iWARP.
#[derive(Clone, Copy, PartialEq)]
enum Adapter {
    Both,
    Active,
    Passive,
}

/// Returns the two ends, or prints why the test is skipped.
fn fabric(adapter: Adapter) -> Option<Fabric> {
    let skip = |why: String| {
        assert!(env::var_os("SMBDIRECT_REQUIRE_VERBS").is_none(), "{why}");
        println!("skipped: {why}");
        None
    };
    let Ok(address) = env::var("SMBDIRECT_VERBS") else {
        return skip("SMBDIRECT_VERBS is not set to the address of an RDMA device".into());
    };
    let listen = SocketAddr::new(
        address.parse().expect("SMBDIRECT_VERBS is an IP address"),
        0,
    );
    let verbs = match Verbs::new(VerbsConfig::default()) {
        Ok(verbs) => Arc::new(verbs),
        Err(why) => return skip(why.to_string()),
    };
    let over_iwarp = !verbs.negotiates_read_depths();
    if !over_iwarp && adapter != Adapter::Both {
        println!("skipped: there is no software provider for InfiniBand and RoCE");
        return None;
    }
    let software: Arc<dyn Provider> = Arc::new(Iwarp::new(IwarpConfig::default()));
    let (active, passive): (Arc<dyn Provider>, Arc<dyn Provider>) = match adapter {
        Adapter::Both => (verbs.clone(), verbs),
        Adapter::Active => (verbs, software),
        Adapter::Passive => (software, verbs),
    };
    Some(Fabric {
        active,
        passive,
        listen,
        manners: Manners {
            over_tcp: over_iwarp,
            private_data: if over_iwarp { 200 } else { 56 },
            exact_private_data: over_iwarp,
            ends_are_told: false,
            // The user-space library of Linux' software iWARP does not report it.
            invalidation_is_told: !over_iwarp || adapter == Adapter::Active,
            // Software iWARP of `smbdirect` waits for the first message of the active end, unless
            // the peer negotiates another way to begin.
            passive_may_begin: adapter != Adapter::Active,
            // Linux' software iWARP fails on a Read of zero bytes, and returns wrong data for a
            // Read of up to 24 bytes that cross a page boundary.
            least_read: if over_iwarp { 64 } else { 0 },
            // The kernel part of Linux' software iWARP lets a peer read and invalidate everything
            // that is registered on a connection.
            rights_are_checked: !over_iwarp || adapter == Adapter::Active,
        },
    })
}

conformance!(adapters, optional fabric(Adapter::Both));
conformance!(adapter_to_software, optional fabric(Adapter::Active));
conformance!(software_to_adapter, optional fabric(Adapter::Passive));
