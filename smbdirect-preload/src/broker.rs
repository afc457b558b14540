//! The request to the broker, and its answer.
//!
//! A request is 32 bytes with a descriptor: the family (4 or 6) in 4 bytes, the number of filling bytes in 4,
//! the port in 2, two zero bytes, the scope in 4, and the address in 16. An answer is an error number of 4
//! bytes, 0 for an established connection. All numbers are in the byte order of the machine.

use std::{
    env,
    ffi::OsString,
    io::{self, Read},
    mem,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{ffi::OsStrExt, net::UnixStream},
    },
    ptr,
    sync::OnceLock,
};

use libc::{AF_INET, AF_INET6, sockaddr_storage};

use crate::next::next;

/// Length of a request in bytes.
const REQUEST_LENGTH: usize = 32;

/// What `smbdirect run` has set in the environment.
pub(crate) struct Settings {
    /// Path of the broker's socket.
    broker: OsString,
    /// Ports whose connections go to the broker.
    ports: Vec<u16>,
}

/// Returns the settings, or `None` in a program that `smbdirect run` has not started.
pub(crate) fn settings() -> Option<&'static Settings> {
    static SETTINGS: OnceLock<Option<Settings>> = OnceLock::new();
    let settings = SETTINGS.get_or_init(|| {
        let broker = env::var_os("SMBDIRECT_RUN_BROKER")?;
        let ports = env::var("SMBDIRECT_RUN_PORTS").ok()?;
        let ports = ports
            .split(',')
            .filter_map(|port| port.parse().ok())
            .collect();
        Some(Settings { broker, ports })
    });
    settings.as_ref()
}

/// An address of a server.
pub(crate) struct Target {
    family: u32,
    port: u16,
    scope: u32,
    address: [u8; 16],
}

impl Target {
    /// Reads an address of the C library. Returns `None` for families other than IPv4 and IPv6.
    pub(crate) fn new(address: &sockaddr_storage) -> Option<Self> {
        match i32::from(address.ss_family) {
            AF_INET => {
                // SAFETY: the storage is as large as any address, and the family says IPv4.
                let v4 = unsafe { ptr::from_ref(address).cast::<libc::sockaddr_in>().read() };
                let mut bytes = [0; 16];
                bytes[..4].copy_from_slice(&v4.sin_addr.s_addr.to_ne_bytes());
                Some(Self {
                    family: 4,
                    port: u16::from_be(v4.sin_port),
                    scope: 0,
                    address: bytes,
                })
            }
            AF_INET6 => {
                // SAFETY: the storage is as large as any address, and the family says IPv6.
                let v6 = unsafe { ptr::from_ref(address).cast::<libc::sockaddr_in6>().read() };
                Some(Self {
                    family: 6,
                    port: u16::from_be(v6.sin6_port),
                    scope: v6.sin6_scope_id,
                    address: v6.sin6_addr.s6_addr,
                })
            }
            _ => None,
        }
    }

    /// Returns whether connections to this port go to the broker.
    pub(crate) fn is_of(&self, settings: &Settings) -> bool {
        settings.ports.contains(&self.port)
    }

    fn encode(&self, filling: u32) -> [u8; REQUEST_LENGTH] {
        let mut request = [0; REQUEST_LENGTH];
        request[..4].copy_from_slice(&self.family.to_ne_bytes());
        request[4..8].copy_from_slice(&filling.to_ne_bytes());
        request[8..10].copy_from_slice(&self.port.to_ne_bytes());
        request[12..16].copy_from_slice(&self.scope.to_ne_bytes());
        request[16..].copy_from_slice(&self.address);
        request
    }
}

/// Hands the broker its end of a connection, and returns the socket on which it answers.
pub(crate) fn ask(
    settings: &Settings,
    target: &Target,
    filling: u32,
    end: &OwnedFd,
) -> io::Result<UnixStream> {
    let broker = connect_to_broker(settings)?;
    let mut request = target.encode(filling);
    let mut part = libc::iovec {
        iov_base: request.as_mut_ptr().cast(),
        iov_len: request.len(),
    };
    let mut control = [0u64; 8];
    // SAFETY: all fields of the message are valid when they are zero.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    let length = size_of::<i32>() as u32;
    // SAFETY: the control buffer has 64 bytes at a multiple of 8, which is enough for one descriptor, and
    // the message with all that it points to lives until the call returns.
    let sent = unsafe {
        message.msg_controllen = libc::CMSG_SPACE(length) as _;
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(length) as _;
        libc::CMSG_DATA(header)
            .cast::<i32>()
            .write_unaligned(end.as_raw_fd());
        libc::sendmsg(broker.as_raw_fd(), &message, libc::MSG_NOSIGNAL)
    };
    match usize::try_from(sent) {
        Ok(REQUEST_LENGTH) => Ok(broker),
        // A new stream socket has room for a request.
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Connects to the broker with the function of the C library, as that of this library would find its way
/// here again.
fn connect_to_broker(settings: &Settings) -> io::Result<UnixStream> {
    use std::os::fd::FromRawFd;

    let path = settings.broker.as_bytes();
    // SAFETY: all fields of the address are valid when they are zero.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    if path.len() >= address.sun_path.len() {
        return Err(io::ErrorKind::InvalidFilename.into());
    }
    address.sun_family = libc::AF_UNIX as _;
    for (to, from) in address.sun_path.iter_mut().zip(path) {
        *to = *from as _;
    }
    // SAFETY: a new descriptor has no other owner.
    let socket = unsafe {
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        let descriptor = libc::socket(libc::AF_UNIX, kind, 0);
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        UnixStream::from_raw_fd(descriptor)
    };
    let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the address lives until the call returns.
    let status = unsafe {
        let address = ptr::from_ref(&address).cast();
        (next().connect)(socket.as_raw_fd(), address, length)
    };
    match status {
        0 => Ok(socket),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Waits for the answer of the broker. Returns its error number, or that of a broker that is gone.
///
/// # Errors
/// A signal interrupted the wait, or the time limit of the socket passed. The broker goes on.
pub(crate) fn answer(mut broker: &UnixStream) -> io::Result<i32> {
    let mut number = [0; 4];
    match broker.read(&mut number) {
        // The answer is one write of four bytes, which arrive together.
        Ok(4) => Ok(i32::from_ne_bytes(number)),
        Err(error)
            if [io::ErrorKind::Interrupted, io::ErrorKind::WouldBlock].contains(&error.kind()) =>
        {
            Err(error)
        }
        _ => Ok(libc::ECONNREFUSED),
    }
}
