//! The types, constants and functions of libibverbs and librdmacm that this package uses. The two
//! libraries are loaded at run time.
//!
//! A structure that a library allocates is declared up to the last field in use. A structure that
//! this package allocates is declared completely. `tests/layout.rs` compares every offset, size and
//! constant with the C headers. Functions that a header defines inline call through the table in
//! [`ibv_context`], where a wrong offset would call a wrong function; the test excludes that.
#![allow(non_camel_case_types, missing_docs, clippy::use_self)]

pub mod layout;

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    io, mem,
    ptr::NonNull,
};

use libloading::Library;

/// The names of the libraries, as the runtime packages install them.
pub const LIBRARIES: [&str; 2] = ["libibverbs.so.1", "librdmacm.so.1"];

/// A pointer to an object of one of the libraries.
pub(crate) struct Object<T>(NonNull<T>);

// SAFETY: the libraries are thread-safe, and their objects belong to no thread.
unsafe impl<T> Send for Object<T> {}
// SAFETY: as for `Send`. The fields that this package reads do not change while an object is shared.
unsafe impl<T> Sync for Object<T> {}

impl<T> Object<T> {
    /// Returns the object that a function has created.
    ///
    /// # Errors
    /// The pointer is null, and the function has set `errno`.
    pub(crate) fn new(raw: *mut T) -> io::Result<Self> {
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self(raw))
    }

    pub(crate) const fn raw(&self) -> *mut T {
        self.0.as_ptr()
    }
}

/// Room for any socket address, with its alignment.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct sockaddr_storage {
    pub bytes: [u8; 128],
}

/// Declares objects of a library that have no fields in use.
macro_rules! opaque {
    ($($name:ident),+) => {$(
        #[repr(C)]
        pub struct $name {
            _private: [u8; 0],
        }
    )+};
}

opaque!(ibv_pd, ibv_srq, ibv_sa_path_rec);

#[repr(C)]
pub struct ibv_device {
    pub _ops: [*mut c_void; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
    /// The name of its node in /dev/infiniband.
    pub dev_name: [c_char; 64],
}

/// The functions that the driver of a device provides. The C headers call them from inline
/// functions.
#[repr(C)]
pub struct ibv_context_ops {
    pub _compat_query: [*mut c_void; 7],
    pub alloc_mw: Option<unsafe extern "C" fn(*mut ibv_pd, c_int) -> *mut ibv_mw>,
    pub _bind_mw: *mut c_void,
    pub dealloc_mw: Option<unsafe extern "C" fn(*mut ibv_mw) -> c_int>,
    pub _compat_create_cq: *mut c_void,
    pub poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    pub _compat_cq_to_srq: [*mut c_void; 7],
    pub _post_srq_recv: *mut c_void,
    pub _compat_qp: [*mut c_void; 4],
    pub post_send:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    pub post_recv:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
    pub _compat_rest: [*mut c_void; 5],
}

#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
}

#[repr(C)]
pub struct ibv_async_event {
    /// A union: a pointer to the object that the event is about, or the number of a port.
    pub element: *mut c_void,
    pub event_type: c_uint,
}

#[repr(C)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: c_int,
}

#[repr(C)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
}

#[repr(C)]
pub struct ibv_qp {
    pub context: *mut ibv_context,
}

#[repr(C)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
pub struct ibv_mw {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_device_attr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_int,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub _unused: [c_int; 10],
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_port_attr {
    pub state: c_int,
    pub max_mtu: c_int,
    pub active_mtu: c_int,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub _counters: [u32; 2],
    pub _lids: [u16; 3],
    pub _small: [u8; 7],
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct ibv_wc {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// A union: the immediate data or the invalidated token.
    pub invalidated_rkey: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ibv_sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

#[repr(C)]
pub struct ibv_recv_wr {
    pub wr_id: u64,
    pub next: *mut ibv_recv_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
}

#[repr(C)]
pub struct ibv_send_wr {
    pub wr_id: u64,
    pub next: *mut ibv_send_wr,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
    pub opcode: c_int,
    pub send_flags: c_uint,
    /// A union: the immediate data or the token to invalidate.
    pub invalidate_rkey: u32,
    /// `wr.rdma`, the first member of a union whose largest member has 32 bytes.
    pub rdma: ibv_send_wr_rdma,
    pub _wr: [u64; 2],
    pub _qp_type: u64,
    /// The larger member of the union with `tso`.
    pub bind_mw: ibv_send_wr_bind_mw,
}

impl Default for ibv_send_wr {
    fn default() -> Self {
        // SAFETY: it consists of numbers and pointers, for which zeros are valid.
        unsafe { mem::zeroed() }
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_send_wr_rdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_send_wr_bind_mw {
    pub mw: *mut ibv_mw,
    pub rkey: u32,
    pub bind_info: ibv_mw_bind_info,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_mw_bind_info {
    pub mr: *mut ibv_mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_qp_cap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
pub struct ibv_qp_init_attr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub cap: ibv_qp_cap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
}

#[repr(C)]
pub struct rdma_event_channel {
    pub fd: c_int,
}

#[repr(C)]
pub struct rdma_addr {
    pub src_storage: sockaddr_storage,
    pub dst_storage: sockaddr_storage,
    pub _ibaddr: [u8; 36],
}

#[repr(C)]
pub struct rdma_route {
    pub addr: rdma_addr,
    pub path_rec: *mut ibv_sa_path_rec,
    pub num_paths: c_int,
}

#[repr(C)]
pub struct rdma_cm_id {
    pub verbs: *mut ibv_context,
    pub channel: *mut rdma_event_channel,
    pub context: *mut c_void,
    pub qp: *mut ibv_qp,
    pub route: rdma_route,
    pub ps: c_int,
    pub port_num: u8,
}

#[repr(C)]
pub struct rdma_conn_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

#[repr(C)]
pub struct rdma_cm_event {
    pub id: *mut rdma_cm_id,
    pub listen_id: *mut rdma_cm_id,
    pub event: c_uint,
    pub status: c_int,
    /// The first member of the union `param`.
    pub conn: rdma_conn_param,
}

pub const IBV_TRANSPORT_IWARP: c_int = 1;
pub const IBV_TRANSPORT_IB: c_int = 0;
pub const IBV_PORT_ACTIVE: c_int = 4;
pub const IBV_LINK_LAYER_INFINIBAND: u8 = 1;
pub const IBV_LINK_LAYER_ETHERNET: u8 = 2;
pub const IBV_DEVICE_MEM_MGT_EXTENSIONS: c_uint = 1 << 21;
pub const IBV_DEVICE_MEM_WINDOW_TYPE_2A: c_uint = 1 << 23;
pub const IBV_DEVICE_MEM_WINDOW_TYPE_2B: c_uint = 1 << 24;

pub const IBV_ACCESS_LOCAL_WRITE: c_int = 1;
pub const IBV_ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub const IBV_ACCESS_REMOTE_READ: c_int = 1 << 2;
pub const IBV_ACCESS_MW_BIND: c_int = 1 << 4;
pub const IBV_MW_TYPE_2: c_int = 2;
pub const IBV_QPT_RC: c_int = 2;

pub const IBV_WR_RDMA_WRITE: c_int = 0;
pub const IBV_WR_SEND: c_int = 2;
pub const IBV_WR_RDMA_READ: c_int = 4;
pub const IBV_WR_BIND_MW: c_int = 8;
pub const IBV_WR_SEND_WITH_INV: c_int = 9;
pub const IBV_SEND_SIGNALED: c_uint = 1 << 1;

pub const IBV_WC_SUCCESS: c_uint = 0;
pub const IBV_WC_LOC_LEN_ERR: c_uint = 1;
pub const IBV_WC_WR_FLUSH_ERR: c_uint = 5;
pub const IBV_WC_BAD_RESP_ERR: c_uint = 7;
pub const IBV_WC_REM_INV_REQ_ERR: c_uint = 9;
pub const IBV_WC_REM_ACCESS_ERR: c_uint = 10;
pub const IBV_WC_REM_OP_ERR: c_uint = 11;
pub const IBV_WC_RETRY_EXC_ERR: c_uint = 12;
pub const IBV_WC_RNR_RETRY_EXC_ERR: c_uint = 13;
pub const IBV_WC_REM_INV_RD_REQ_ERR: c_uint = 15;
pub const IBV_WC_REM_ABORT_ERR: c_uint = 16;
pub const IBV_WC_FATAL_ERR: c_uint = 19;
pub const IBV_WC_RESP_TIMEOUT_ERR: c_uint = 20;
pub const IBV_WC_RECV: c_uint = 1 << 7;
pub const IBV_WC_WITH_IMM: c_uint = 1 << 1;
pub const IBV_WC_IP_CSUM_OK: c_uint = 1 << 2;
pub const IBV_WC_WITH_INV: c_uint = 1 << 3;

pub const IBV_EVENT_CQ_ERR: c_uint = 0;
pub const IBV_EVENT_QP_FATAL: c_uint = 1;
pub const IBV_EVENT_QP_REQ_ERR: c_uint = 2;
pub const IBV_EVENT_QP_ACCESS_ERR: c_uint = 3;
pub const IBV_EVENT_DEVICE_FATAL: c_uint = 8;

pub const RDMA_PS_TCP: c_int = 0x0106;
pub const RDMA_OPTION_ID: c_int = 0;
pub const RDMA_OPTION_ID_TOS: c_int = 0;
pub const RDMA_CM_EVENT_ADDR_RESOLVED: c_uint = 0;
pub const RDMA_CM_EVENT_ADDR_ERROR: c_uint = 1;
pub const RDMA_CM_EVENT_ROUTE_RESOLVED: c_uint = 2;
pub const RDMA_CM_EVENT_ROUTE_ERROR: c_uint = 3;
pub const RDMA_CM_EVENT_CONNECT_REQUEST: c_uint = 4;
pub const RDMA_CM_EVENT_CONNECT_ERROR: c_uint = 6;
pub const RDMA_CM_EVENT_UNREACHABLE: c_uint = 7;
pub const RDMA_CM_EVENT_REJECTED: c_uint = 8;
pub const RDMA_CM_EVENT_ESTABLISHED: c_uint = 9;
pub const RDMA_CM_EVENT_DISCONNECTED: c_uint = 10;
pub const RDMA_CM_EVENT_DEVICE_REMOVAL: c_uint = 11;

/// Declares the table of functions, and the code that looks them up by their C names.
macro_rules! functions {
    ($($library:ident { $(fn $name:ident($($argument:ty),*) $(-> $result:ty)?;)+ })+) => {
        /// The functions of both libraries.
        #[allow(clippy::type_complexity)]
        pub(crate) struct Functions {
            $($(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)+)+
            /// The libraries that contain the functions. They stay loaded as long as the table exists.
            _libraries: [Library; 2],
        }

        impl Functions {
            /// Looks up all functions.
            ///
            /// # Safety
            /// `libraries` are libibverbs and librdmacm, in this order.
            unsafe fn look_up(libraries: [Library; 2]) -> Result<Self, libloading::Error> {
                let [$($library),+] = &libraries;
                $($(
                    // SAFETY: the signature is that of the C headers.
                    let $name = unsafe {
                        *$library.get::<unsafe extern "C" fn($($argument),*) $(-> $result)?>(
                            concat!(stringify!($name), "\0"),
                        )?
                    };
                )+)+
                Ok(Self { $($($name,)+)+ _libraries: libraries })
            }

            /// Returns a table whose functions abort the process if they are called. A test replaces the
            /// functions that it needs.
            #[cfg(test)]
            pub(crate) fn none() -> Self {
                $($(
                    unsafe extern "C" fn $name($(_: $argument),*) $(-> $result)? {
                        panic!(concat!(stringify!($name), " is not expected to be called"))
                    }
                )+)+
                let this = || Library::from(libloading::os::unix::Library::this());
                Self { $($($name,)+)+ _libraries: [this(), this()] }
            }
        }
    };
}

functions! {
    libibverbs {
        fn ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        fn ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        fn ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
        fn ibv_free_device_list(*mut *mut ibv_device);
        fn ibv_get_device_name(*mut ibv_device) -> *const c_char;
        fn ibv_open_device(*mut ibv_device) -> *mut ibv_context;
        fn ibv_close_device(*mut ibv_context) -> c_int;
        fn ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
        fn ibv_dealloc_pd(*mut ibv_pd) -> c_int;
        fn ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        fn ibv_dereg_mr(*mut ibv_mr) -> c_int;
        fn ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
        fn ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
        fn ibv_create_cq(
            *mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int
        ) -> *mut ibv_cq;
        fn ibv_destroy_cq(*mut ibv_cq) -> c_int;
        fn ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        fn ibv_ack_cq_events(*mut ibv_cq, c_uint);
        fn ibv_wc_status_str(c_uint) -> *const c_char;
        fn ibv_get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
        fn ibv_ack_async_event(*mut ibv_async_event);
        fn ibv_event_type_str(c_uint) -> *const c_char;
    }
    librdmacm {
        fn rdma_create_event_channel() -> *mut rdma_event_channel;
        fn rdma_destroy_event_channel(*mut rdma_event_channel);
        fn rdma_create_id(
            *mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_int
        ) -> c_int;
        fn rdma_destroy_id(*mut rdma_cm_id) -> c_int;
        fn rdma_bind_addr(*mut rdma_cm_id, *mut c_void) -> c_int;
        fn rdma_resolve_addr(*mut rdma_cm_id, *mut c_void, *mut c_void, c_int) -> c_int;
        fn rdma_resolve_route(*mut rdma_cm_id, c_int) -> c_int;
        fn rdma_set_option(*mut rdma_cm_id, c_int, c_int, *mut c_void, usize) -> c_int;
        fn rdma_create_qp(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
        fn rdma_destroy_qp(*mut rdma_cm_id);
        fn rdma_connect(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        fn rdma_listen(*mut rdma_cm_id, c_int) -> c_int;
        fn rdma_accept(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        fn rdma_reject(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        fn rdma_disconnect(*mut rdma_cm_id) -> c_int;
        fn rdma_migrate_id(*mut rdma_cm_id, *mut rdma_event_channel) -> c_int;
        fn rdma_get_cm_event(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        fn rdma_ack_cm_event(*mut rdma_cm_event) -> c_int;
    }
}

impl Functions {
    /// Loads both libraries and looks up their functions.
    ///
    /// # Errors
    /// A library or a function is missing. The error names it in one line.
    pub(crate) fn load() -> Result<Self, String> {
        let [ibverbs, rdmacm] = LIBRARIES.map(|name| {
            // SAFETY: the constructors of rdma-core's libraries only set up their own state.
            let library = unsafe { Library::new(name) };
            library.map_err(|error| format!("{name} cannot be loaded: {error}"))
        });
        let libraries = [ibverbs?, rdmacm?];
        // SAFETY: the two libraries were opened by name, and the names contain their ABI version.
        let functions = unsafe { Self::look_up(libraries) };
        functions.map_err(|error| format!("rdma-core is too old: {error}"))
    }
}
