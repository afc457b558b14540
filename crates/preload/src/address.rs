//! Addresses of the C library, IPv4 and IPv6.

use std::{ffi::c_int, io, os::fd::RawFd};

use libc::{AF_INET, AF_INET6, sockaddr, socklen_t};

use crate::next::{Name, check};

/// Length of the longest address in bytes.
pub(crate) const MAX_LENGTH: usize = size_of::<libc::sockaddr_in6>();

/// Length of an address of IPv6 without its scope, which Linux accepts.
const MIN_IPV6_LENGTH: usize = 24;

/// An address of IPv4 or IPv6 as in the C library, with zeros in the rest of the structure.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C, align(8))]
pub(crate) struct Address(pub(crate) [u8; MAX_LENGTH]);

impl Address {
    /// Reads an address of a caller. Returns `None` if it is neither IPv4 nor IPv6 or not readable.
    ///
    /// # Safety
    /// Memory that is mapped at `address` is not unmapped by another thread during the call.
    pub(crate) unsafe fn read(address: *const sockaddr, length: socklen_t) -> Option<Self> {
        let needed = size_of::<libc::sockaddr_in>();
        // The kernel refuses shorter and longer ones.
        if !(needed..=size_of::<libc::sockaddr_storage>()).contains(&(length as usize)) {
            return None;
        }
        let length = (length as usize).min(MAX_LENGTH);
        if !is_readable(address.cast(), length) {
            return None;
        }
        let mut copy = Self([0; MAX_LENGTH]);
        // SAFETY: the memory is readable.
        unsafe {
            let to = copy.0.as_mut_ptr();
            to.copy_from_nonoverlapping(address.cast(), length);
        }
        match copy.family() {
            // The bytes after an address of IPv4 have no meaning.
            AF_INET => copy.0[needed..].fill(0),
            AF_INET6 if length >= MIN_IPV6_LENGTH => {}
            _ => return None,
        }
        Some(copy)
    }

    /// Returns the name of a socket by `getsockname` or `getpeername`.
    pub(crate) fn of(descriptor: RawFd, name: Name) -> io::Result<Self> {
        let mut address = Self([0; MAX_LENGTH]);
        let mut length = MAX_LENGTH as socklen_t;
        // SAFETY: the memory has the length that is given.
        check(unsafe { name(descriptor, address.0.as_mut_ptr().cast(), &raw mut length) })?;
        Ok(address)
    }

    pub(crate) fn family(&self) -> c_int {
        u16::from_ne_bytes([self.0[0], self.0[1]]).into()
    }

    pub(crate) fn port(&self) -> u16 {
        u16::from_be_bytes([self.0[2], self.0[3]])
    }

    /// Returns the same host with another port.
    pub(crate) fn with_port(mut self, port: u16) -> Self {
        self.0[2..4].copy_from_slice(&port.to_be_bytes());
        self
    }

    /// Returns whether the address names no host.
    pub(crate) fn is_unspecified(&self) -> bool {
        let host = match self.family() {
            AF_INET => &self.0[4..8],
            _ => &self.0[8..24],
        };
        host.iter().all(|byte| *byte == 0)
    }

    pub(crate) fn length(&self) -> socklen_t {
        let length = match self.family() {
            AF_INET => size_of::<libc::sockaddr_in>(),
            _ => MAX_LENGTH,
        };
        length as socklen_t
    }

    pub(crate) fn as_ptr(&self) -> *const sockaddr {
        self.0.as_ptr().cast()
    }
}

/// Returns whether the memory of a caller is readable, as the kernel checks it before it reports `EFAULT`.
pub(crate) fn is_readable(memory: *const u8, length: usize) -> bool {
    // The kernel copies a set of 8 bytes before it looks at the first argument, which is invalid, so that the call
    // changes nothing. An address is shorter than a page: its first and last bytes decide.
    let readable = |at: *const u8| {
        // SAFETY: the kernel checks the pointer.
        let status =
            unsafe { libc::syscall(libc::SYS_rt_sigprocmask, -1, at, 0, size_of::<u64>()) };
        status != 0 && io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
    };
    !memory.is_null()
        && readable(memory)
        && readable(memory.wrapping_add(length.saturating_sub(size_of::<u64>())))
}
