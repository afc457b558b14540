//! What `connect` does for the ports of SMB.

use std::{
    ffi::c_int,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    ptr,
    time::Duration,
};

use libc::{sockaddr, sockaddr_storage, socklen_t};

use crate::{
    broker::{self, Target},
    epoll,
    sockets::{self, Socket},
};

/// Returns the address and the target of a call that is for the broker. `family` is that of the socket, if the
/// socket stands for another one.
///
/// # Safety
/// `address` is valid for reads of `length` bytes.
unsafe fn wanted(
    descriptor: c_int,
    address: *const sockaddr,
    length: socklen_t,
    family: Option<c_int>,
) -> Option<(sockaddr_storage, Target)> {
    let settings = broker::settings()?;
    if address.is_null() || length as usize > size_of::<sockaddr_storage>() {
        return None;
    }
    // SAFETY: the caller's address has `length` bytes, which fit, and the rest is zero.
    let storage = unsafe {
        let mut storage: sockaddr_storage = std::mem::zeroed();
        let to = (&raw mut storage).cast::<u8>();
        to.copy_from_nonoverlapping(address.cast(), length as usize);
        storage
    };
    let needed = match i32::from(storage.ss_family) {
        libc::AF_INET => size_of::<libc::sockaddr_in>(),
        libc::AF_INET6 => size_of::<libc::sockaddr_in6>(),
        _ => return None,
    };
    let target = Target::new(&storage)?;
    let stream = sockets::option(descriptor, libc::SO_TYPE) == Some(libc::SOCK_STREAM);
    let family = family.or_else(|| sockets::option(descriptor, libc::SO_DOMAIN));
    let inet = family == Some(i32::from(storage.ss_family));
    (length as usize >= needed && stream && inet && target.is_of(settings))
        .then_some((storage, target))
}

/// Connects by SMB Direct if the call is for the broker. Returns `None` otherwise.
///
/// `family` is that of the program's socket if a failed attempt has put another socket in its place.
///
/// # Safety
/// The arguments are those of `connect`.
pub(crate) unsafe fn connect(
    descriptor: c_int,
    address: *const sockaddr,
    length: socklen_t,
    family: Option<c_int>,
) -> Option<c_int> {
    // SAFETY: the arguments are those of `connect`.
    let (storage, target) = unsafe { wanted(descriptor, address, length, family) }?;
    let connected = establish(descriptor, storage, length, &target);
    Some(match connected {
        Ok(()) => 0,
        Err(error) => {
            let number = error.raw_os_error().unwrap_or(libc::ECONNREFUSED);
            // SAFETY: the location of the error number of this thread is always valid.
            unsafe { *libc::__errno_location() = number };
            -1
        }
    })
}

fn establish(
    descriptor: c_int,
    peer: sockaddr_storage,
    peer_length: socklen_t,
    target: &Target,
) -> io::Result<()> {
    let settings = broker::settings().ok_or(io::ErrorKind::NotFound)?;
    // This is checked before the broker connects: the program could not use the connection.
    sockets::index(descriptor)?;
    // SAFETY: reading the flags of a descriptor has no preconditions.
    let (status_flags, descriptor_flags) = unsafe {
        (
            libc::fcntl(descriptor, libc::F_GETFL),
            libc::fcntl(descriptor, libc::F_GETFD),
        )
    };
    if status_flags < 0 || descriptor_flags < 0 {
        return Err(io::Error::last_os_error());
    }
    let waits = status_flags & libc::O_NONBLOCK == 0;
    let (program, theirs) = UnixStream::pair()?;
    let filling = fill(&program)?;
    let broker = broker::ask(settings, target, filling, &OwnedFd::from(theirs))?;
    // What `connect` returns if the connection is not established yet.
    let mut unfinished = libc::EINPROGRESS;
    let mut answer = None;
    if waits {
        // The time limit of sending is that of connecting, too.
        broker.set_read_timeout(timeout(descriptor, libc::SO_SNDTIMEO))?;
        match broker::answer(&broker) {
            Ok(0) => {}
            Ok(number) => return Err(io::Error::from_raw_os_error(number)),
            Err(error) => {
                if error.kind() == io::ErrorKind::Interrupted {
                    unfinished = libc::EINTR;
                }
                answer = Some(broker);
            }
        }
    } else {
        answer = Some(broker);
    }
    program.set_nonblocking(!waits)?;
    program.set_read_timeout(timeout(descriptor, libc::SO_RCVTIMEO))?;
    program.set_write_timeout(timeout(descriptor, libc::SO_SNDTIMEO))?;
    let close_on_exec = match descriptor_flags & libc::FD_CLOEXEC {
        0 => 0,
        _ => libc::O_CLOEXEC,
    };
    let is_finished = answer.is_none();
    let description = Socket::new(&program, answer, peer, peer_length)?;
    let registrations = epoll::registrations(descriptor);
    sockets::replace(descriptor, &program, close_on_exec, description)?;
    for registration in registrations {
        registration.renew(descriptor);
    }
    match is_finished {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(unfinished)),
    }
}

/// Returns a time limit of a socket, or `None` if it has none.
fn timeout(descriptor: c_int, name: c_int) -> Option<Duration> {
    let limit: libc::timeval = sockets::option(descriptor, name)?;
    let seconds = Duration::from_secs(limit.tv_sec.try_into().ok()?);
    let limit = seconds + Duration::from_micros(limit.tv_usec.try_into().ok()?);
    (!limit.is_zero()).then_some(limit)
}

/// Fills the send buffer of a socket, so that it is not writable. Returns the number of bytes.
fn fill(socket: &UnixStream) -> io::Result<u32> {
    let zeros = [0u8; 16 * 1024];
    let mut filled = 0;
    loop {
        // SAFETY: the memory has the length that is given.
        let sent = unsafe {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            libc::send(
                socket.as_raw_fd(),
                zeros.as_ptr().cast(),
                zeros.len(),
                flags,
            )
        };
        match u32::try_from(sent) {
            Ok(sent) => filled += sent,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::WouldBlock {
                    return Ok(filled);
                }
                return Err(error);
            }
        }
    }
}

/// Copies an address to a caller, as `getpeername` does.
///
/// # Safety
/// `length` is valid, and `to` is valid for writes of `*length` bytes.
pub(crate) unsafe fn copy_address(
    from: &sockaddr_storage,
    from_length: socklen_t,
    to: *mut sockaddr,
    length: *mut socklen_t,
) {
    // SAFETY: the caller's memory has `*length` bytes, and the storage has `from_length`.
    unsafe {
        let count = (*length).min(from_length) as usize;
        to.cast::<u8>()
            .copy_from_nonoverlapping(ptr::from_ref(from).cast(), count);
        *length = from_length;
    }
}
