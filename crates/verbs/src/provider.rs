//! The provider: the usable devices of this machine, and the entry to connecting and listening.

use std::{
    fmt,
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use smbdirect::rdma::{
    provider::{
        BoxFuture, ConnectRequest, Connected, Provider, ProviderAttributes, ProviderListener,
    },
    work::{Limits, ProviderError},
};

use crate::{
    cm::EventChannel,
    config::{INFINIBAND_PORT, VerbsConfig},
    connect::connect,
    device::{self, Device, Transport},
    error::Unavailable,
    ffi::Functions,
    listen::VerbsListener,
};

/// The provider of RDMA adapters, through libibverbs and librdmacm.
#[derive(Clone)]
pub struct Verbs {
    functions: Arc<Functions>,
    config: Arc<VerbsConfig>,
    devices: Arc<[Device]>,
}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verbs")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Verbs {
    /// Returns a provider with these settings. Each connection uses the device on the route to the
    /// peer.
    ///
    /// # Errors
    /// RDMA is not available on this machine. The error names the package to install or the module to load.
    pub fn new(config: VerbsConfig) -> Result<Self, Unavailable> {
        let functions = load()?;
        let devices = device::devices(&functions)?;
        if devices.is_empty() {
            return Err(Unavailable::NoDevice);
        }
        let reason =
            |device: &Device| Some(format!("{}: {}", device.name, device.unusable.as_ref()?));
        let reasons: Vec<_> = devices.iter().filter_map(reason).collect();
        if reasons.len() == devices.len() {
            return Err(Unavailable::NoUsableDevice(reasons.join("; ")));
        }
        EventChannel::new(functions.clone()).map_err(Unavailable::NoConnectionManager)?;
        Ok(Self {
            functions,
            config: Arc::new(config),
            devices: devices.into(),
        })
    }

    /// Returns the devices of this machine, including unusable ones.
    ///
    /// # Errors
    /// There is no device, or RDMA is not available. The error names the package to install or the module to
    /// load.
    pub fn devices() -> Result<Vec<Device>, Unavailable> {
        match device::devices(&load()?)? {
            devices if devices.is_empty() => Err(Unavailable::NoDevice),
            devices => Ok(devices),
        }
    }

    /// Returns the well-known ports of SMB Direct for the usable devices: 445 for InfiniBand and
    /// RoCE, 5445 for iWARP.
    pub fn ports(&self) -> Vec<u16> {
        let mut ports: Vec<_> = self
            .usable()
            .filter_map(|device| device.transport.smb_direct_port())
            .collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    fn usable(&self) -> impl Iterator<Item = &Device> {
        let usable = |device: &&Device| device.unusable.is_none();
        self.devices.iter().filter(usable)
    }
}

/// Loads the libraries once. They are never unloaded, because librdmacm does not release its global
/// state when it is.
fn load() -> Result<Arc<Functions>, Unavailable> {
    static LOADED: OnceLock<Arc<Functions>> = OnceLock::new();
    if let Some(functions) = LOADED.get() {
        return Ok(functions.clone());
    }
    let functions = Functions::load().map_err(Unavailable::NoLibrary)?;
    Ok(LOADED.get_or_init(|| Arc::new(functions)).clone())
}

impl Verbs {
    /// Returns the highest limits of all usable devices.
    fn limits(&self) -> Limits {
        let limits = self.usable().map(|device| device.limits(&self.config));
        let highest = limits.reduce(|a, b| Limits {
            max_send_queue: a.max_send_queue.max(b.max_send_queue),
            max_receive_queue: a.max_receive_queue.max(b.max_receive_queue),
            max_outbound_reads: a.max_outbound_reads.max(b.max_outbound_reads),
            max_inbound_reads: a.max_inbound_reads.max(b.max_inbound_reads),
            max_transfer: a.max_transfer.max(b.max_transfer),
            send_with_invalidate: a.send_with_invalidate || b.send_with_invalidate,
            packet_bytes: None,
        });
        highest.expect("a provider has a usable device")
    }
}

impl Provider for Verbs {
    fn attributes(&self) -> ProviderAttributes {
        ProviderAttributes {
            name: "verbs",
            default_port: self.ports().first().copied().unwrap_or(INFINIBAND_PORT),
            limits: self.limits(),
            negotiates_read_depths: self
                .usable()
                .all(|device| device.transport != Transport::Iwarp),
        }
    }

    fn connect(&self, request: ConnectRequest) -> BoxFuture<'_, Result<Connected, ProviderError>> {
        Box::pin(connect(
            self.functions.clone(),
            self.config.clone(),
            request,
        ))
    }

    fn listen(
        &self,
        address: SocketAddr,
    ) -> BoxFuture<'_, Result<Box<dyn ProviderListener>, ProviderError>> {
        let (functions, config) = (self.functions.clone(), self.config.clone());
        let listener = VerbsListener::new(functions, config, &self.ports(), address);
        Box::pin(async move { Ok(Box::new(listener?) as Box<dyn ProviderListener>) })
    }
}
