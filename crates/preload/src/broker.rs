//! The requests to the broker, and its answers.
//!
//! A request is a number of 4 bytes and two addresses of 28 bytes, as the C library has them.
//!
//! | request | addresses | descriptors | answer |
//! |---|---|---|---|
//! | 1, connect | the server, the program's socket | the broker's listener, the broker's socket | an error number of 4 bytes, 0 for an established connection |
//! | 2, name | the broker's socket | | the address of the server, or nothing |
//!
//! All numbers are in the byte order of the machine.

use std::{
    env,
    ffi::OsString,
    io::{self, Read},
    mem,
    os::{
        fd::{AsRawFd, FromRawFd, RawFd},
        unix::{ffi::OsStrExt, net::UnixStream},
    },
    ptr,
    sync::OnceLock,
};

use crate::{
    address::{Address, MAX_LENGTH},
    next::{check, next},
};

const CONNECT: u32 = 1;
const NAME: u32 = 2;

/// Length of a request in bytes.
const REQUEST_LENGTH: usize = 4 + 2 * MAX_LENGTH;

/// The variables that `smbdirect run` has set in the environment.
pub(crate) struct Settings {
    /// Path of the broker's socket.
    broker: OsString,
    /// Ports whose connections go to the broker.
    pub(crate) ports: Vec<u16>,
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

/// Asks the broker to connect to a server, and then to the program's socket. Returns the socket on which it answers.
pub(crate) fn connect(
    server: &Address,
    program: &Address,
    sockets: &[RawFd; 2],
) -> io::Result<UnixStream> {
    ask(CONNECT, [server, program], sockets)
}

/// Waits for the answer of the broker. Returns the broker's error number, or the error number for a broker that
/// has ended.
///
/// # Errors
/// A signal interrupted the wait, or the time limit of the socket passed. The broker continues.
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

/// Returns the server of a socket that is connected to the broker, and `None` for every other one.
pub(crate) fn server_of(descriptor: RawFd) -> Option<Address> {
    settings()?;
    let peer = Address::of(descriptor, next().getpeername).ok()?;
    let own = Address::of(descriptor, libc::getsockname).ok()?;
    // The broker's end is at the same host. Other connections need no question.
    if ![libc::AF_INET, libc::AF_INET6].contains(&peer.family())
        || peer.with_port(0) != own.with_port(0)
    {
        return None;
    }
    let mut broker = ask(NAME, [&peer, &own], &[]).ok()?;
    let mut server = Address([0; _]);
    broker.read_exact(&mut server.0).ok()?;
    (server.family() == peer.family()).then_some(server)
}

/// Sends a request, and returns the socket of the answer.
fn ask(kind: u32, addresses: [&Address; 2], sockets: &[RawFd]) -> io::Result<UnixStream> {
    let broker = connect_to_broker()?;
    let mut request = [0; REQUEST_LENGTH];
    request[..4].copy_from_slice(&kind.to_ne_bytes());
    for (place, address) in request[4..].chunks_mut(MAX_LENGTH).zip(addresses) {
        place.copy_from_slice(&address.0);
    }
    let mut part = libc::iovec {
        iov_base: request.as_mut_ptr().cast(),
        iov_len: request.len(),
    };
    let mut control = [0u64; 8];
    // SAFETY: all fields of the message are valid when they are zero.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if !sockets.is_empty() {
        let length = size_of_val(sockets) as u32;
        // SAFETY: the control buffer has 64 bytes at a multiple of 8, which is enough for two descriptors.
        unsafe {
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(length) as _;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(length) as _;
            let to = libc::CMSG_DATA(header).cast::<RawFd>();
            for (index, socket) in sockets.iter().enumerate() {
                to.add(index).write_unaligned(*socket);
            }
        }
    }
    // SAFETY: the message with all that it points to lives until the call returns.
    let sent = unsafe { (next().sendmsg)(broker.as_raw_fd(), &message, libc::MSG_NOSIGNAL) };
    match usize::try_from(sent) {
        Ok(REQUEST_LENGTH) => Ok(broker),
        // A new stream socket has room for a request.
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Connects to the broker with the function of the C library, because this library's own `connect` would call
/// this function again.
fn connect_to_broker() -> io::Result<UnixStream> {
    let settings = settings().ok_or(io::ErrorKind::NotFound)?;
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
    // SAFETY: a new descriptor has no other owner, and the address lives until the call returns.
    unsafe {
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        let socket = UnixStream::from_raw_fd(check(libc::socket(libc::AF_UNIX, kind, 0))?);
        let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        let address = ptr::from_ref(&address).cast();
        check((next().connect)(socket.as_raw_fd(), address, length))?;
        Ok(socket)
    }
}
