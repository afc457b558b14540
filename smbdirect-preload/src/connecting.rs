//! What `connect` does for the ports of SMB.

use std::{
    ffi::c_int,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    ptr,
};

use libc::{sockaddr, sockaddr_storage, socklen_t};

use crate::{
    broker::{self, Target},
    sockets::{self, Socket},
};

/// Returns the address and the target of a call that is for the broker.
///
/// # Safety
/// `address` is valid for reads of `length` bytes.
unsafe fn wanted(
    descriptor: c_int,
    address: *const sockaddr,
    length: socklen_t,
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
    let inet = sockets::option(descriptor, libc::SO_DOMAIN) == Some(i32::from(storage.ss_family));
    (length as usize >= needed && stream && inet && target.is_of(settings))
        .then_some((storage, target))
}

/// Connects by SMB Direct if the call is for the broker. Returns `None` otherwise.
///
/// # Safety
/// The arguments are those of `connect`.
pub(crate) unsafe fn connect(
    descriptor: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> Option<c_int> {
    // SAFETY: the arguments are those of `connect`.
    let (storage, target) = unsafe { wanted(descriptor, address, length) }?;
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
    let too_many_files = || io::Error::from_raw_os_error(libc::EMFILE);
    drop(sockets::socket(descriptor).ok_or_else(too_many_files)?);
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
    let filling = if waits { 0 } else { fill(&program)? };
    let broker = broker::ask(settings, target, filling, &OwnedFd::from(theirs))?;
    if waits {
        let number = broker::answer(&broker);
        if number != 0 {
            return Err(io::Error::from_raw_os_error(number));
        }
    }
    program.set_nonblocking(!waits)?;
    let mut place = sockets::socket(descriptor).ok_or_else(too_many_files)?;
    // SAFETY: the descriptor of the program stays open, with another socket behind it.
    unsafe {
        let close_on_exec = match descriptor_flags & libc::FD_CLOEXEC {
            0 => 0,
            _ => libc::O_CLOEXEC,
        };
        if libc::dup3(program.as_raw_fd(), descriptor, close_on_exec) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    *place = Some(Socket {
        peer,
        peer_length,
        answer: (!waits).then(|| broker.into()),
        error: 0,
    });
    match waits {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(libc::EINPROGRESS)),
    }
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
