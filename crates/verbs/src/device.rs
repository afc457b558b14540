//! The RDMA devices of this machine, their capabilities, and whether SMB Direct can use them.

use std::{
    ffi::{CStr, c_int},
    fmt, io,
    mem::MaybeUninit,
    sync::Arc,
};

use smbdirect::rdma::work::{Limits, ProviderError};
use tracing::Span;

use crate::{
    cm::CmId,
    config::{INFINIBAND_PORT, IWARP_PORT, VerbsConfig},
    error::{Unavailable, local_error, log_ffi_error},
    ffi::{self, Functions, Object, ibv_context, ibv_device, ibv_device_attr, ibv_port_attr},
};

/// An RDMA device of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Device {
    /// The name that the kernel gives it, such as `mlx5_0` or `rxe0`.
    pub name: String,
    /// The protocol that it speaks on the wire.
    pub transport: Transport,
    /// The ports of the device, beginning with number 1.
    pub ports: Vec<Port>,
    /// Work requests that a send queue or receive queue can hold.
    pub max_queue: u32,
    /// Scatter/gather elements of a Send.
    pub max_send_elements: u32,
    /// Completions that a completion queue can hold.
    pub max_completions: u32,
    /// RDMA Reads by the peer that it serves concurrently on a connection.
    pub max_inbound_reads: u32,
    /// RDMA Reads that it can have outstanding on a connection.
    pub max_outbound_reads: u32,
    /// Whether a Send can invalidate a token of the peer.
    pub send_with_invalidate: bool,
    /// Whether it has memory windows of type 2, whose tokens a peer can invalidate.
    pub memory_windows: bool,
    /// The reason why SMB Direct cannot use it, or `None` if it can.
    pub unusable: Option<String>,
    /// Whether the device binds a window a second time when it retransmits an earlier message. rxe does so: the second
    /// binding fails, the queue pair fails with it, and all completions say that the work was flushed.
    pub(crate) rebinds_on_retransmit: bool,
}

/// The protocol that a device speaks on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// InfiniBand.
    InfiniBand,
    /// RDMA over Converged Ethernet.
    Roce,
    /// iWARP, over TCP.
    Iwarp,
    /// A protocol that SMB Direct does not support.
    #[default]
    Other,
}

impl Transport {
    /// Returns the well-known port of SMB Direct over this protocol (1.9), or `None` if SMB Direct
    /// does not support it.
    pub const fn smb_direct_port(self) -> Option<u16> {
        match self {
            Self::InfiniBand | Self::Roce => Some(INFINIBAND_PORT),
            Self::Iwarp => Some(IWARP_PORT),
            Self::Other => None,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InfiniBand => "InfiniBand",
            Self::Roce => "RoCE",
            Self::Iwarp => "iWARP",
            Self::Other => "other",
        })
    }
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Port {
    /// The number of the port; the first is 1.
    pub number: u8,
    /// Whether the port can carry traffic.
    pub active: bool,
    /// The state in the terms of libibverbs, such as `active`, `down` or `init`.
    pub state: &'static str,
    /// The link layer: `Ethernet`, `InfiniBand` or `unspecified`.
    pub link_layer: &'static str,
    /// The MTU in bytes.
    pub mtu: u32,
    /// The largest message, Read or Write in bytes.
    pub max_message: u32,
}

/// Returns all devices of this machine.
pub(crate) fn devices(functions: &Arc<Functions>) -> Result<Vec<Device>, Unavailable> {
    let mut count = 0;
    // SAFETY: the pointer is to a number, which the function sets.
    let list = unsafe { (functions.ibv_get_device_list)(&mut count) };
    let list = Object::new(list).map_err(Unavailable::NoKernel)?;
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the list has `count` elements.
    let raw = unsafe { std::slice::from_raw_parts(list.raw(), count) };
    let devices = raw
        .iter()
        .map(|&device| describe(functions, device))
        .collect();
    // SAFETY: the list is freed once, and no device in it is used afterwards.
    unsafe { (functions.ibv_free_device_list)(list.raw()) };
    Ok(devices)
}

/// Describes one device of the list, or returns the reason why it cannot be opened.
fn describe(functions: &Functions, device: *mut ibv_device) -> Device {
    // SAFETY: the device is in the list, which is not freed yet; its name is a C string.
    let name = unsafe { CStr::from_ptr((functions.ibv_get_device_name)(device)) };
    // SAFETY: the device is in the list, which is not freed yet.
    let context = Object::new(unsafe { (functions.ibv_open_device)(device) });
    let described = match &context {
        Ok(context) => Device::of_context(functions, context.raw())
            .map_err(|error| format!("its capabilities cannot be read: {error}")),
        Err(error) => Err(format!("it cannot be opened: {error}")),
    };
    if let Ok(context) = context {
        // SAFETY: the device was opened above and is closed once, and no object was created on it.
        let error = unsafe { (functions.ibv_close_device)(context.raw()) };
        log_ffi_error(&Span::none(), "ibv_close_device", error);
    }
    let mut described = described.unwrap_or_else(|reason| Device {
        unusable: Some(reason),
        ..Device::default()
    });
    described.name = name.to_string_lossy().into_owned();
    described
}

/// The vendor identifier of rxe, the software RoCE of Linux.
const RXE_VENDOR_ID: u32 = 0xff_ffff;

impl Device {
    /// Returns the device that an identifier is bound to, with the port that it is bound to only.
    ///
    /// # Errors
    /// The capabilities cannot be queried.
    pub(crate) fn of_id(id: &CmId) -> io::Result<Self> {
        let mut device = Self::of_context(id.functions(), id.context())?;
        device.ports.retain(|port| port.number == id.port().max(1));
        Ok(device)
    }

    /// Describes an open device, without its name.
    fn of_context(functions: &Functions, context: *mut ibv_context) -> io::Result<Self> {
        let mut device = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the context belongs to an open device, and the pointer is to memory for its
        // attributes.
        let error = unsafe { (functions.ibv_query_device)(context, device.as_mut_ptr()) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error.abs()));
        }
        // SAFETY: zero is valid for all fields, and the library has set them.
        let device = unsafe { device.assume_init() };
        let ports = (1..=device.phys_port_cnt)
            .filter_map(|number| Port::of_context(functions, context, number));
        let ports: Vec<_> = ports.collect();
        let on_ethernet = ports.iter().any(|port| port.link_layer == "Ethernet");
        const TYPE_2: u32 = ffi::IBV_DEVICE_MEM_WINDOW_TYPE_2A | ffi::IBV_DEVICE_MEM_WINDOW_TYPE_2B;
        let has = |flag| device.device_cap_flags & flag != 0;
        let mut described = Self {
            name: String::new(),
            // SAFETY: the context of an open device points to its description.
            transport: match unsafe { (*(*context).device).transport_type } {
                ffi::IBV_TRANSPORT_IWARP => Transport::Iwarp,
                ffi::IBV_TRANSPORT_IB if on_ethernet => Transport::Roce,
                ffi::IBV_TRANSPORT_IB => Transport::InfiniBand,
                _ => Transport::Other,
            },
            ports,
            max_queue: positive(device.max_qp_wr),
            max_send_elements: positive(device.max_sge),
            max_completions: positive(device.max_cqe),
            max_inbound_reads: positive(device.max_qp_rd_atom),
            max_outbound_reads: positive(device.max_qp_init_rd_atom),
            // All devices with these extensions support it, and so does software iWARP.
            send_with_invalidate: has(ffi::IBV_DEVICE_MEM_MGT_EXTENSIONS),
            memory_windows: has(TYPE_2) && device.max_mw > 0,
            unusable: None,
            rebinds_on_retransmit: device.vendor_id == RXE_VENDOR_ID,
        };
        described.unusable = reason_unusable(&described);
        Ok(described)
    }

    /// Returns the limits of a connection, before the peer lowers them.
    pub(crate) fn limits(&self, config: &VerbsConfig) -> Limits {
        let max_message = self.ports.iter().map(|port| port.max_message).max();
        Limits {
            max_send_queue: config.send_queue.min(self.max_queue) as usize,
            max_receive_queue: config.receive_queue.min(self.max_queue) as usize,
            max_outbound_reads: self.max_outbound_reads.min(config.ord.into()),
            max_inbound_reads: self.max_inbound_reads.min(config.ird.into()),
            max_transfer: match max_message {
                // The limit is unknown.
                None | Some(0) => DEFAULT_MAX_MESSAGE_BYTES,
                Some(message) => message.min(MAX_TRANSFER_BYTES),
            },
            send_with_invalidate: self.send_with_invalidate,
            packet_bytes: None,
        }
    }

    /// Returns the scatter/gather elements that a Send uses: two, for header and payload, if the
    /// device supports it.
    pub(crate) fn send_elements(&self) -> u32 {
        self.max_send_elements.clamp(1, 2)
    }
}

/// Message limit in bytes if a device does not report one. Every device carries messages of 1 MiB,
/// and most carry 2 GiB.
const DEFAULT_MAX_MESSAGE_BYTES: u32 = 1 << 20;
/// Largest Read or Write in bytes. A larger one would only delay the work that is posted after it.
const MAX_TRANSFER_BYTES: u32 = 1 << 30;

/// The states of a port, indexed by their numbers in C.
const PORT_STATES: [&str; 6] = ["nop", "down", "init", "armed", "active", "active-defer"];

impl Port {
    /// Describes a port, or returns `None` if it cannot be queried.
    fn of_context(functions: &Functions, context: *mut ibv_context, number: u8) -> Option<Self> {
        let mut port = MaybeUninit::<ibv_port_attr>::zeroed();
        // SAFETY: the context belongs to an open device. The function sets the fields of its version, for which the
        // structure has room.
        let error = unsafe { (functions.ibv_query_port)(context, number, port.as_mut_ptr()) };
        // SAFETY: zero is valid for all fields, and the library has set the fields of its version.
        let port = (error == 0).then(|| unsafe { port.assume_init() })?;
        let state = PORT_STATES.get(port.state as usize);
        Some(Self {
            number,
            active: port.state == ffi::IBV_PORT_ACTIVE,
            state: state.copied().unwrap_or("unknown"),
            link_layer: match port.link_layer {
                ffi::IBV_LINK_LAYER_INFINIBAND => "InfiniBand",
                ffi::IBV_LINK_LAYER_ETHERNET => "Ethernet",
                _ => "unspecified",
            },
            mtu: 128_u32.checked_shl(port.active_mtu as u32).unwrap_or(0),
            max_message: port.max_msg_sz,
        })
    }
}

/// Returns the reason why SMB Direct cannot use a device, if there is one.
fn reason_unusable(device: &Device) -> Option<String> {
    if device.transport == Transport::Other {
        return Some("it is neither InfiniBand, RoCE nor iWARP".into());
    }
    if device.max_queue < MIN_QUEUE_DEPTH || device.max_completions < 2 * MIN_QUEUE_DEPTH {
        return Some(format!(
            "its queues hold only {} requests",
            device.max_queue
        ));
    }
    if !device.ports.iter().any(|port| port.active) {
        let states: Vec<_> = device.ports.iter().map(|port| port.state).collect();
        return Some(match states.as_slice() {
            [] => "it has no ports".into(),
            states => format!(
                "no port is active: {}; check cable and link",
                states.join(", ")
            ),
        });
    }
    None
}

/// Smallest queue, in work requests, that a connection can make progress with.
const MIN_QUEUE_DEPTH: u32 = 128;

/// Returns a number of C, or 0 if it is negative.
fn positive(number: c_int) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// Returns the error of a device whose capabilities cannot be queried.
pub(crate) fn capabilities_unknown(error: &io::Error) -> ProviderError {
    local_error(&format!(
        "the device's capabilities cannot be read: {error}"
    ))
    .with_os_error(error.raw_os_error())
}
