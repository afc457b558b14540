//! The behaviour of `connect` for the ports of SMB.

use std::{
    ffi::{c_int, c_void},
    io,
    net::TcpListener,
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
};

use libc::{sockaddr, socklen_t};

use crate::{
    address::Address,
    broker,
    next::{check, next},
};

/// Longest time in milliseconds until a connection within this machine is established.
const QUEUE_TIMEOUT_MS: c_int = 5000;

/// Returns the server of a call that is for the broker.
///
/// # Safety
/// The arguments are those of `connect`.
pub(crate) unsafe fn wanted(
    descriptor: RawFd,
    address: *const sockaddr,
    length: socklen_t,
) -> Option<Address> {
    let settings = broker::settings()?;
    // SAFETY: the arguments are those of `connect`.
    let server = unsafe { Address::read(address, length) }?;
    // The kernel refuses an address of another family than that of the socket.
    let wanted = settings.ports.contains(&server.port())
        && option(descriptor, libc::SO_TYPE) == Some(libc::SOCK_STREAM)
        && option(descriptor, libc::SO_DOMAIN) == Some(server.family());
    let protocol = option(descriptor, libc::SO_PROTOCOL);
    (wanted && [Some(libc::IPPROTO_TCP), Some(libc::IPPROTO_MPTCP)].contains(&protocol))
        .then_some(server)
}

/// Connects the program's socket to the broker, which connects to the server.
///
/// # Errors
/// The errors of `connect`: `EINPROGRESS` on a non-blocking socket, `EINTR`, and the reason why the broker could
/// not connect.
pub(crate) fn connect(descriptor: RawFd, server: &Address) -> io::Result<()> {
    let end = End::new(local_addr(descriptor, server)?)?;
    // SAFETY: reading and setting flags of a descriptor have no preconditions.
    let flags = check(unsafe { libc::fcntl(descriptor, libc::F_GETFL) })?;
    let waits = flags & libc::O_NONBLOCK == 0;
    if waits {
        // SAFETY: as above.
        check(unsafe { libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK) })?;
    }
    let started = connect_to(descriptor, &end.address);
    if waits {
        // SAFETY: as above.
        check(unsafe { libc::fcntl(descriptor, libc::F_SETFL, flags) })?;
    }
    match started.map_err(|error| (error.raw_os_error(), error)) {
        Err((Some(libc::EINPROGRESS), _)) => {}
        // An earlier call has begun, and this one waits for its end.
        Err((Some(libc::EALREADY), _)) if waits => return connect_to(descriptor, &end.address),
        Err((_, error)) => return Err(error),
        Ok(()) => return Ok(()),
    }
    let asked = Address::of(descriptor, libc::getsockname)
        .and_then(|program| broker::connect(server, &program, &end.sockets()));
    let answer = match asked {
        Ok(_) if !waits => return Err(io::Error::from_raw_os_error(libc::EINPROGRESS)),
        Ok(broker) => answer(descriptor, &broker),
        Err(_) => Ok(libc::ECONNREFUSED),
    };
    match answer? {
        0 => connect_to(descriptor, &end.address),
        error => {
            disconnect(descriptor);
            Err(io::Error::from_raw_os_error(error))
        }
    }
}

/// Waits for the answer of the broker as a blocking `connect` waits, and returns its error number.
fn answer(descriptor: RawFd, broker: &UnixStream) -> io::Result<c_int> {
    // The socket's time limit of sending also limits connecting.
    if let Some(limit) = option::<libc::timeval>(descriptor, libc::SO_SNDTIMEO) {
        set_option(broker.as_raw_fd(), libc::SO_RCVTIMEO, &limit)?;
    }
    broker::answer(broker).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::from_raw_os_error(libc::EINPROGRESS),
        _ => error,
    })
}

/// Ends an attempt, so that the program may connect again, and takes the error that this leaves.
fn disconnect(descriptor: RawFd) {
    let unspecified = Address([0; _]);
    // Without an attempt there is nothing to end.
    let _ = connect_to(descriptor, &unspecified);
    option::<c_int>(descriptor, libc::SO_ERROR);
}

/// Connects with the function of the C library.
fn connect_to(descriptor: RawFd, address: &Address) -> io::Result<()> {
    // SAFETY: the address has the length that is given.
    let status = unsafe { (next().connect)(descriptor, address.as_ptr(), address.length()) };
    check(status).map(drop)
}

/// Returns the address that the program's socket would have towards the server, and will have towards the broker.
///
/// # Errors
/// There is no way to the server, or no way to the broker: the socket is bound to a device, or is one of Multipath TCP.
fn local_addr(descriptor: RawFd, server: &Address) -> io::Result<Address> {
    if option::<c_int>(descriptor, libc::SO_BINDTOIFINDEX).is_some_and(|index| index != 0) {
        return Err(io::Error::from_raw_os_error(libc::ENETUNREACH));
    }
    if option(descriptor, libc::SO_PROTOCOL) == Some(libc::IPPROTO_MPTCP) {
        return Err(io::Error::from_raw_os_error(libc::EPROTONOSUPPORT));
    }
    let bound = Address::of(descriptor, libc::getsockname)?;
    if !bound.is_unspecified() {
        return Ok(bound);
    }
    // A connected datagram socket has the address, and nothing was sent.
    let route = socket(server.family(), libc::SOCK_DGRAM)?;
    connect_to(route.as_raw_fd(), server)?;
    Address::of(route.as_raw_fd(), libc::getsockname)
}

/// The broker's end of a connection.
struct End {
    /// Keeps the program's socket in the state SYN-SENT: its queue is full, so the system drops every SYN.
    listener: TcpListener,
    /// Connects to the program's socket. It has the same address as the listener.
    socket: OwnedFd,
    address: Address,
}

impl End {
    /// Makes the sockets at a host of this machine.
    fn new(host: Address) -> io::Result<Self> {
        let listener = socket(host.family(), libc::SOCK_STREAM)?;
        let other = socket(host.family(), libc::SOCK_STREAM)?;
        // Only this user can have a second socket at the address of a listener.
        set_option(listener.as_raw_fd(), libc::SO_REUSEPORT, &1)?;
        set_option(other.as_raw_fd(), libc::SO_REUSEPORT, &1)?;
        bind(&listener, &host.with_port(0))?;
        let address = Address::of(listener.as_raw_fd(), libc::getsockname)?;
        bind(&other, &address)?;
        // SAFETY: the call has no preconditions.
        check(unsafe { libc::listen(listener.as_raw_fd(), 0) })?;
        fill_queue(&listener, &address)?;
        Ok(Self {
            listener: listener.into(),
            socket: other,
            address,
        })
    }

    fn sockets(&self) -> [RawFd; 2] {
        [self.listener.as_raw_fd(), self.socket.as_raw_fd()]
    }
}

/// Fills the queue of a listener whose backlog is 0: one connection that is never accepted.
fn fill_queue(listener: &OwnedFd, address: &Address) -> io::Result<()> {
    let filling = socket(address.family(), libc::SOCK_STREAM | libc::SOCK_NONBLOCK)?;
    // It is in progress, or another process was faster, whose connection fills the queue as well.
    let _ = connect_to(filling.as_raw_fd(), address);
    let mut queued = libc::pollfd {
        fd: listener.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    loop {
        // SAFETY: there is one entry.
        match check(unsafe { libc::poll(&raw mut queued, 1, QUEUE_TIMEOUT_MS) }) {
            Ok(1) => return Ok(()),
            Ok(_) => return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

fn socket(family: c_int, kind: c_int) -> io::Result<OwnedFd> {
    // SAFETY: a new descriptor has no other owner.
    unsafe {
        let descriptor = check(libc::socket(family, kind | libc::SOCK_CLOEXEC, 0))?;
        Ok(OwnedFd::from_raw_fd(descriptor))
    }
}

fn bind(socket: &OwnedFd, address: &Address) -> io::Result<()> {
    // SAFETY: the address has the length that is given.
    let status = unsafe { libc::bind(socket.as_raw_fd(), address.as_ptr(), address.length()) };
    check(status).map(drop)
}

/// A type of the C library that is the value of an option of sockets.
///
/// # Safety
/// Every sequence of bits, as long as the type, has to be a value of it.
unsafe trait Plain: Copy {}

// SAFETY: any bits are a number.
unsafe impl Plain for c_int {}
// SAFETY: it consists of numbers.
unsafe impl Plain for libc::timeval {}

/// Returns an option of a socket.
fn option<T: Plain>(descriptor: RawFd, name: c_int) -> Option<T> {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    let mut length = size_of::<T>() as socklen_t;
    // SAFETY: the value has the length that is given, and any bits are a value.
    unsafe {
        let to = value.as_mut_ptr().cast();
        let status = libc::getsockopt(descriptor, libc::SOL_SOCKET, name, to, &raw mut length);
        (status == 0).then(|| value.assume_init())
    }
}

fn set_option<T>(descriptor: RawFd, name: c_int, value: &T) -> io::Result<()> {
    let from = std::ptr::from_ref(value).cast::<c_void>();
    let length = size_of::<T>() as socklen_t;
    // SAFETY: the value has the length that is given, and the kernel checks what it means.
    check(unsafe { libc::setsockopt(descriptor, libc::SOL_SOCKET, name, from, length) }).map(drop)
}
