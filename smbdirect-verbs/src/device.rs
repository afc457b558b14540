//! What devices there are, what they can do, and whether it is enough for SMB Direct.

use std::{
    ffi::{CStr, c_int},
    fmt, io,
    mem::MaybeUninit,
    ptr::NonNull,
    sync::Arc,
};

use smbdirect::rdma::work::{Limits, ProviderErrorKind};
use tracing::Span;

use crate::{
    cm::CmId,
    config::{INFINIBAND_PORT, IWARP_PORT, VerbsConfig},
    error::{Unavailable, log_ffi_error},
    ffi::{self, Functions, ibv_context, ibv_device, ibv_device_attr, ibv_port_attr},
};

/// An RDMA device of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Device {
    /// As the kernel calls it: `mlx5_0`, `rxe0`.
    pub name: String,
    /// What it speaks on the wire.
    pub transport: Transport,
    /// Its ports, from number 1.
    pub ports: Vec<Port>,
    /// Work requests that a queue of it can hold.
    pub max_queue: u32,
    /// Pieces of memory that a Send can gather.
    pub max_send_elements: u32,
    /// Completions that a completion queue of it can hold.
    pub max_completions: u32,
    /// RDMA Reads of a peer's that it serves at once on a connection.
    pub max_inbound_reads: u32,
    /// RDMA Reads it can have outstanding on a connection.
    pub max_outbound_reads: u32,
    /// Whether a Send can invalidate a token of the peer's.
    pub send_with_invalidate: bool,
    /// Whether it has memory windows of type 2, which a peer can invalidate.
    pub memory_windows: bool,
    /// Why SMB Direct cannot use it; none if it can.
    pub unusable: Option<String>,
}

/// What a device speaks on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// InfiniBand.
    InfiniBand,
    /// RDMA over Converged Ethernet.
    Roce,
    /// iWARP, over TCP.
    Iwarp,
    /// Something that SMB Direct does not run over.
    Other,
}

impl Transport {
    /// The port of SMB Direct over it (1.9); none where there is none.
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
    /// From 1.
    pub number: u8,
    /// Whether traffic can go over it.
    pub active: bool,
    /// The state, in the words of libibverbs: `active`, `down`, `init`.
    pub state: &'static str,
    /// `Ethernet`, `InfiniBand`, or `unspecified`.
    pub link_layer: &'static str,
    /// Bytes in a packet, at most.
    pub mtu: u32,
    /// Bytes in a message, at most.
    pub max_message: u32,
}

/// All devices.
pub(crate) fn devices(functions: &Arc<Functions>) -> Result<Vec<Device>, Unavailable> {
    let mut count = 0;
    // SAFETY: the place is one for a number.
    let list = unsafe { (functions.ibv_get_device_list)(&mut count) };
    let Some(list) = NonNull::new(list) else {
        return Err(Unavailable::NoKernel(io::Error::last_os_error()));
    };
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: the list has so many devices.
    let raw = unsafe { std::slice::from_raw_parts(list.as_ptr(), count) };
    let devices = raw
        .iter()
        .map(|&device| describe(functions, device))
        .collect();
    // SAFETY: the list is freed once, and no device of it is used afterwards.
    unsafe { (functions.ibv_free_device_list)(list.as_ptr()) };
    Ok(devices)
}

fn describe(functions: &Functions, device: *mut ibv_device) -> Device {
    // SAFETY: the device is one of the list, whose name is a C string.
    let name = unsafe { CStr::from_ptr((functions.ibv_get_device_name)(device)) };
    let mut described = Device {
        name: name.to_string_lossy().into_owned(),
        transport: Transport::Other,
        ports: Vec::new(),
        max_queue: 0,
        max_send_elements: 0,
        max_completions: 0,
        max_inbound_reads: 0,
        max_outbound_reads: 0,
        send_with_invalidate: false,
        memory_windows: false,
        unusable: None,
    };
    // SAFETY: as above.
    let context = unsafe { (functions.ibv_open_device)(device) };
    let Some(context) = NonNull::new(context) else {
        let error = io::Error::last_os_error();
        described.unusable = Some(format!("it cannot be opened: {error}"));
        return described;
    };
    match Capabilities::of_context(functions, context.as_ptr(), None) {
        Ok(abilities) => abilities.fill(functions, context.as_ptr(), &mut described),
        Err(error) => described.unusable = Some(format!("it does not say what it can: {error}")),
    }
    // SAFETY: it was opened here, and nothing was made on it.
    let error = unsafe { (functions.ibv_close_device)(context.as_ptr()) };
    log_ffi_error(&Span::none(), "ibv_close_device", error);
    described
}

/// The vendor that Linux' software RoCE gives itself.
const RXE: u32 = 0xff_ffff;

/// What a device, and the port that a connection goes over, can do.
#[derive(Clone, Copy)]
pub(crate) struct Capabilities {
    device: ibv_device_attr,
    transport: c_int,
    /// Bytes in a message.
    max_message: u32,
}

impl Capabilities {
    /// Of the device that an identifier is bound to.
    pub(crate) fn of_id(id: &CmId) -> io::Result<Self> {
        Self::of_context(id.functions(), id.context(), Some(id.port()))
    }

    fn of_context(
        functions: &Functions,
        context: *mut ibv_context,
        port: Option<u8>,
    ) -> io::Result<Self> {
        let mut device = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: the context is one of an open device, and the place is one for its attributes.
        let error = unsafe { (functions.ibv_query_device)(context, device.as_mut_ptr()) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error.abs()));
        }
        let port = query_port(functions, context, port.unwrap_or(1).max(1));
        Ok(Self {
            // SAFETY: numbers may be zero, and the library has filled them in.
            device: unsafe { device.assume_init() },
            // SAFETY: an open device has a description.
            transport: unsafe { (*(*context).device).transport_type },
            max_message: port.map_or(0, |port| port.max_msg_sz),
        })
    }

    fn fill(&self, functions: &Functions, context: *mut ibv_context, device: &mut Device) {
        let ports = (1..=self.device.phys_port_cnt).filter_map(|number| {
            let port = query_port(functions, context, number)?;
            Some(Port {
                number,
                active: port.state == ffi::IBV_PORT_ACTIVE,
                state: STATES
                    .get(port.state as usize)
                    .copied()
                    .unwrap_or("unknown"),
                link_layer: match port.link_layer {
                    ffi::IBV_LINK_LAYER_INFINIBAND => "InfiniBand",
                    ffi::IBV_LINK_LAYER_ETHERNET => "Ethernet",
                    _ => "unspecified",
                },
                mtu: 128_u32.checked_shl(port.active_mtu as u32).unwrap_or(0),
                max_message: port.max_msg_sz,
            })
        });
        device.ports = ports.collect();
        let on_ethernet = device
            .ports
            .iter()
            .any(|port| port.link_layer == "Ethernet");
        device.transport = match self.transport {
            ffi::IBV_TRANSPORT_IWARP => Transport::Iwarp,
            ffi::IBV_TRANSPORT_IB if on_ethernet => Transport::Roce,
            ffi::IBV_TRANSPORT_IB => Transport::InfiniBand,
            _ => Transport::Other,
        };
        device.max_queue = self.max_queue();
        device.max_send_elements = positive(self.device.max_sge);
        device.max_completions = self.max_completions();
        device.max_inbound_reads = positive(self.device.max_qp_rd_atom);
        device.max_outbound_reads = positive(self.device.max_qp_init_rd_atom);
        device.send_with_invalidate = self.sends_with_invalidate();
        device.memory_windows = self.has_windows();
        device.unusable = why_not(device);
    }

    /// Whether a window is bound once more when a message before it is sent again, which fails and
    /// the queue pair with it: rxe does so, and tells that everything was flushed.
    pub(crate) fn binds_again(&self) -> bool {
        self.device.vendor_id == RXE
    }

    /// What a connection over it can do at best.
    pub(crate) fn limits(&self, config: &VerbsConfig) -> Limits {
        Limits {
            max_send_queue: config.send_queue.min(self.max_queue()) as usize,
            max_receive_queue: config.receive_queue.min(self.max_queue()) as usize,
            max_outbound_reads: self
                .depth(config.ord, self.device.max_qp_init_rd_atom)
                .into(),
            max_inbound_reads: self.depth(config.ird, self.device.max_qp_rd_atom).into(),
            max_transfer: match self.max_message {
                // A device that does not say takes what every device does.
                0 => LEAST_MAX_MESSAGE,
                message => message.min(LARGEST_TRANSFER),
            },
            send_with_invalidate: self.sends_with_invalidate(),
        }
    }

    fn depth(&self, wanted: u8, most: c_int) -> u8 {
        wanted.min(u8::try_from(positive(most)).unwrap_or(u8::MAX))
    }

    pub(crate) fn max_queue(&self) -> u32 {
        positive(self.device.max_qp_wr)
    }

    pub(crate) fn max_completions(&self) -> u32 {
        positive(self.device.max_cqe)
    }

    /// How many pieces our Sends are gathered from: a header and a payload.
    pub(crate) fn send_elements(&self) -> u32 {
        positive(self.device.max_sge).clamp(1, 2)
    }

    fn sends_with_invalidate(&self) -> bool {
        // Software iWARP and all adapters that have the extensions can.
        self.device.device_cap_flags & ffi::IBV_DEVICE_MEM_MGT_EXTENSIONS != 0
    }

    pub(crate) fn has_windows(&self) -> bool {
        const TYPE_2: u32 = ffi::IBV_DEVICE_MEM_WINDOW_TYPE_2A | ffi::IBV_DEVICE_MEM_WINDOW_TYPE_2B;
        self.device.device_cap_flags & TYPE_2 != 0 && self.device.max_mw > 0
    }
}

/// Every device carries messages of 1 MiB, most of them of 2 GiB.
const LEAST_MAX_MESSAGE: u32 = 1 << 20;
/// More in one Read or Write only holds up what is behind it.
const LARGEST_TRANSFER: u32 = 1 << 30;

const STATES: [&str; 6] = ["nop", "down", "init", "armed", "active", "active-defer"];

/// The words above, by the number in C.
fn query_port(
    functions: &Functions,
    context: *mut ibv_context,
    number: u8,
) -> Option<ibv_port_attr> {
    let mut port = MaybeUninit::<ibv_port_attr>::zeroed();
    // SAFETY: the context is one of an open device; the place is one for what the function knows,
    // which is less than the structure has.
    let error = unsafe { (functions.ibv_query_port)(context, number, port.as_mut_ptr()) };
    // SAFETY: numbers may be zero, and the library has filled in the others.
    (error == 0).then(|| unsafe { port.assume_init() })
}

/// Why SMB Direct cannot run over a device.
fn why_not(device: &Device) -> Option<String> {
    if device.transport == Transport::Other {
        return Some("it is neither InfiniBand, RoCE nor iWARP".into());
    }
    if device.max_queue < LEAST_QUEUE || device.max_completions < 2 * LEAST_QUEUE {
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

/// What a connection needs to get anywhere.
const LEAST_QUEUE: u32 = 128;

fn positive(number: c_int) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// A device's abilities where they cannot be asked for.
pub(crate) fn unknown(error: &io::Error) -> smbdirect::rdma::work::ProviderError {
    let what = format!("the device does not say what it can: {error}");
    smbdirect::rdma::work::ProviderError::new(ProviderErrorKind::Local, what)
}
