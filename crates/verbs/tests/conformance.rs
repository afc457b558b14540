//! The conformance suite of `smbdirect`, run over the RDMA devices of this machine.
//!
//! Set `SMBDIRECT_VERBS` to the address of a network interface that has an RDMA device. Without it,
//! or without such a device, each test prints the reason and skips; `SMBDIRECT_REQUIRE_VERBS=1`
//! turns that into a failure. The suite runs three times: with an adapter at both ends, and with an
//! adapter at either end and the software of `smbdirect` at the other.
//!
//! The kernel's rxe has the UDP port of RoCE in its network namespace, so software RoCE needs another
//! one: `SMBDIRECT_ROCE_NAMESPACE` is its file, and `SMBDIRECT_ROCE` the address there. Without them
//! the adapters of RoCE run with themselves only.

#![cfg(target_os = "linux")]

use std::{
    env,
    fs::File,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use smbdirect::rdma::{
    iwarp::{Iwarp, IwarpConfig},
    provider::{
        BoxFuture, ConnectRequest, Connected, Provider, ProviderAttributes, ProviderListener,
    },
    roce::{Roce, RoceConfig},
    work::ProviderError,
};
use smbdirect_provider_suite::{Capabilities, Fabric, conformance};
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
    let over_iwarp = !verbs.attributes().negotiates_read_depths;
    let (software, software_address): (Arc<dyn Provider>, IpAddr) = match elsewhere() {
        _ if over_iwarp => (Arc::new(Iwarp::new(IwarpConfig::default())), listen.ip()),
        Some((provider, address)) => (Arc::new(provider), address),
        None if adapter == Adapter::Both => (verbs.clone(), listen.ip()),
        None => {
            println!("skipped: SMBDIRECT_ROCE and SMBDIRECT_ROCE_NAMESPACE are not set");
            return None;
        }
    };
    let (active, passive, address): (Arc<dyn Provider>, Arc<dyn Provider>, IpAddr) = match adapter {
        Adapter::Both => (verbs.clone(), verbs, listen.ip()),
        Adapter::Active => (verbs, software, software_address),
        Adapter::Passive => (software, verbs, listen.ip()),
    };
    let listen = SocketAddr::new(address, 0);
    let private_data = match (over_iwarp, adapter) {
        (true, _) => 200,
        (false, Adapter::Both) => 56,
        // Software RoCE needs eight of the bytes.
        (false, _) => 48,
    };
    let mut capabilities = Capabilities::default();
    capabilities.over_tcp = over_iwarp;
    capabilities.private_data = private_data;
    capabilities.exact_private_data = over_iwarp;
    capabilities.ends_are_told = false;
    // The user-space library of Linux' software iWARP does not report it.
    capabilities.invalidation_is_told = !over_iwarp || adapter == Adapter::Active;
    // Software iWARP of `smbdirect` waits for the first message of the active end, unless
    // the peer negotiates another way to begin.
    capabilities.passive_may_begin = !over_iwarp || adapter != Adapter::Active;
    // Linux' software iWARP fails on a Read of zero bytes, and returns wrong data for a
    // Read of up to 24 bytes that cross a page boundary.
    capabilities.least_read = if over_iwarp { 64 } else { 0 };
    // The kernel part of Linux' software iWARP lets a peer read and invalidate everything
    // that is registered on a connection.
    capabilities.rights_are_checked = !over_iwarp || adapter == Adapter::Active;
    // Software RoCE cuts a Write into packets that are checked one by one.
    capabilities.writes_are_whole = over_iwarp || adapter != Adapter::Passive;
    // Adapters count no bytes, and their queue pairs need the runtime in which they were made.
    capabilities.counts_bytes = false;
    capabilities.changes_runtime = false;
    Some(Fabric {
        active,
        passive,
        listen,
        capabilities,
    })
}

/// Software RoCE whose sockets are in another network namespace.
#[derive(Debug)]
struct Elsewhere {
    provider: Roce,
    here: File,
    there: File,
}

/// Returns the software end of RoCE and its address, if the environment names its namespace.
fn elsewhere() -> Option<(Elsewhere, IpAddr)> {
    let address = env::var("SMBDIRECT_ROCE").ok()?;
    let namespace = env::var_os("SMBDIRECT_ROCE_NAMESPACE")?;
    let open = |path| File::open(path).expect("the network namespace can be opened");
    let elsewhere = Elsewhere {
        provider: Roce::new(RoceConfig::default()),
        here: open("/proc/thread-self/ns/net".into()),
        there: open(namespace),
    };
    let address = address.parse().expect("SMBDIRECT_ROCE is an IP address");
    Some((elsewhere, address))
}

impl Elsewhere {
    /// Polls `future` with this thread in the other namespace. A socket stays in the namespace in which
    /// it was made.
    fn visit<'a, T: Send + 'a>(&'a self, mut future: BoxFuture<'a, T>) -> BoxFuture<'a, T> {
        let enter = |namespace: &File| {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("the thread may change its network namespace");
        };
        Box::pin(std::future::poll_fn(move |context: &mut Context<'_>| {
            enter(&self.there);
            let outcome: Poll<T> = Pin::new(&mut future).poll(context);
            enter(&self.here);
            outcome
        }))
    }
}

impl Provider for Elsewhere {
    fn attributes(&self) -> ProviderAttributes {
        self.provider.attributes()
    }

    fn connect(&self, request: ConnectRequest) -> BoxFuture<'_, Result<Connected, ProviderError>> {
        self.visit(self.provider.connect(request))
    }

    fn listen(
        &self,
        address: SocketAddr,
    ) -> BoxFuture<'_, Result<Box<dyn ProviderListener>, ProviderError>> {
        self.visit(self.provider.listen(address))
    }
}

conformance!(adapters, optional fabric(Adapter::Both));
conformance!(adapter_to_software, optional fabric(Adapter::Active));
conformance!(software_to_adapter, optional fabric(Adapter::Passive));
