//! The conformance suite of the library over the RDMA devices of this machine.
//!
//! `SMBDIRECT_VERBS` is an address of a network interface that has an RDMA device; without it, or
//! without such a device, each test skips with the reason. `SMBDIRECT_REQUIRE_VERBS=1` makes that
//! an error. Over iWARP the suite runs three times: an adapter at both ends, and an adapter at one end
//! and the software iWARP of the library at the other.

#[path = "../../smbdirect/tests/provider/mod.rs"]
#[macro_use]
mod provider;

use std::{env, net::SocketAddr, sync::Arc};

use provider::fabric::{Fabric, Manners};
use smbdirect::rdma::{
    iwarp::{Iwarp, IwarpConfig},
    provider::Provider,
};
use smbdirect_verbs::{Verbs, VerbsConfig};

/// Which end is an adapter.
#[derive(Clone, Copy, PartialEq)]
enum Adapter {
    Both,
    Active,
    Passive,
}

fn fabric(adapter: Adapter) -> Option<Fabric> {
    let skip = |why: String| {
        assert!(env::var_os("SMBDIRECT_REQUIRE_VERBS").is_none(), "{why}");
        println!("skipped: {why}");
        None
    };
    let Ok(address) = env::var("SMBDIRECT_VERBS") else {
        return skip("SMBDIRECT_VERBS does not say which address has an RDMA device".into());
    };
    let listen = SocketAddr::new(address.parse().expect("it is an IP address"), 0);
    let verbs = match Verbs::new(VerbsConfig::default()) {
        Ok(verbs) => Arc::new(verbs),
        Err(why) => return skip(why.to_string()),
    };
    let over_iwarp = verbs.is_iwarp();
    if !over_iwarp && adapter != Adapter::Both {
        println!("skipped: only iWARP is there in software too");
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
            // The library of Linux' software iWARP does not pass it on.
            invalidation_is_told: !over_iwarp || adapter == Adapter::Active,
            // Our software iWARP waits for the first message, where the peer does not say by other
            // means that it may begin.
            passive_may_begin: adapter != Adapter::Active,
            // Linux' software iWARP takes a Read of no bytes amiss, and what it answers to a Read
            // of up to 24 is wrong where they lie in two pages.
            least_read: if over_iwarp { 64 } else { 0 },
            // Its kernel part lets a peer read and invalidate all that is registered on a connection.
            rights_are_checked: !over_iwarp || adapter == Adapter::Active,
        },
    })
}

conformance!(adapters, optional fabric(Adapter::Both));
conformance!(adapter_to_software, optional fabric(Adapter::Active));
conformance!(software_to_adapter, optional fabric(Adapter::Passive));
