//! Errors: why RDMA is unavailable, faults of this machine, and failed releases of C resources.

use std::{ffi::c_int, io};

use smbdirect::rdma::work::{ProviderError, ProviderErrorKind};
use thiserror::Error;
use tracing::{Span, warn};

/// Why this machine has no usable RDMA, and how to change that.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// The libraries of rdma-core are missing or too old.
    #[error(
        "{0}; install rdma-core's libraries (Debian and Ubuntu: librdmacm1 and ibverbs-providers; \
         Fedora: librdmacm and libibverbs)"
    )]
    NoLibrary(String),
    /// The kernel has no RDMA support.
    #[error(
        "the kernel has no RDMA ({0}); load the modules of the adapter, ib_uverbs and rdma_ucm"
    )]
    NoKernel(io::Error),
    /// There is no RDMA device.
    #[error(
        "there is no RDMA device in /sys/class/infiniband; load the adapter's module, or make a \
         software one: rdma link add rxe0 type rxe netdev DEVICE"
    )]
    NoDevice,
    /// There are RDMA devices, and SMB Direct can use none of them.
    #[error("no RDMA device can be used: {0}")]
    NoUsableDevice(String),
    /// The connection manager of the kernel cannot be opened.
    #[error(
        "the RDMA connection manager cannot be used ({0}); load rdma_ucm and check the rights of \
         /dev/infiniband/rdma_cm"
    )]
    NoConnectionManager(io::Error),
}

/// Returns the error of a fault on this machine, as opposed to the network or the peer.
pub(crate) fn local_error(what: &str) -> ProviderError {
    ProviderError::new(ProviderErrorKind::Local, what)
}

/// Converts an error of the operating system while connecting, listening or accepting.
pub(crate) fn os_error(doing: &str, error: &io::Error) -> ProviderError {
    use io::ErrorKind as Io;
    let kind = match error.kind() {
        Io::ConnectionRefused => ProviderErrorKind::Refused,
        Io::TimedOut => ProviderErrorKind::TimedOut,
        Io::ConnectionReset | Io::ConnectionAborted | Io::BrokenPipe | Io::NotConnected => {
            ProviderErrorKind::Reset
        }
        Io::AddrInUse => ProviderErrorKind::InUse,
        Io::AddrNotAvailable | Io::HostUnreachable | Io::NetworkUnreachable | Io::NetworkDown => {
            ProviderErrorKind::Address
        }
        _ if error.raw_os_error() == Some(NO_DEVICE) => {
            let what = format!("{doing}: no RDMA device has this address, or a way to it");
            return ProviderError::new(ProviderErrorKind::Address, what)
                .with_os_error(Some(NO_DEVICE));
        }
        _ => ProviderErrorKind::Local,
    };
    let what = match error.kind() {
        // The text of the other providers, without the error number.
        Io::ConnectionRefused => format!("{doing}: connection refused"),
        _ => format!("{doing}: {error}"),
    };
    ProviderError::new(kind, what)
}

/// `ENODEV`, the error number for an address that no RDMA device serves.
const NO_DEVICE: i32 = 19;

/// Logs, in `span`, that `function` failed to release a resource, which leaks until the process
/// ends. Does nothing if `error` is 0.
pub(crate) fn log_ffi_error(span: &Span, function: &str, error: c_int) {
    if error != 0 {
        let error = io::Error::from_raw_os_error(error.abs());
        span.in_scope(|| warn!(%error, "{function} failed"));
    }
}

/// Returns the cure to append to an error of a registration: a hint if the limit of locked memory
/// is reached, else nothing.
pub(crate) fn memory_limit_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::OutOfMemory => "; `ulimit -l` says how much may be locked",
        _ => "",
    }
}
