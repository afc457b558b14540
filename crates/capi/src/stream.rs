//! The connection as a stream socket.

use std::{
    ffi::{c_char, c_int},
    os::{
        fd::{IntoRawFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use crate::{
    connection::{connect, smbdirect_connection},
    locks::lock,
    pointers,
    runtime::smbdirect_runtime,
    settings::smbdirect_settings,
    status::{Failure, call_status, smbdirect_error},
};

/// Makes a socket that carries the messages of the connection with the 4-byte length of SMB over TCP: a byte
/// 0, and the length in 24 bits, big-endian. Programs and libraries that speak SMB over TCP use it in place
/// of a TCP socket.
///
/// The socket is a blocking AF_UNIX stream socket with close-on-exec set, and belongs to the program. It can
/// be set to non-blocking, polled, duplicated and passed to other processes, while this process runs.
/// Its backpressure and closing are those of TCP, except that closing its writing side closes the connection, and that
/// some peers must not pause for long, which smbdirect_send() describes. The connection stays open until the socket is
/// closed, even if the handle is freed.
///
/// Afterwards use the handle for registrations, RDMA Reads and Writes only: a receive would take messages
/// away from the socket.
///
/// Stores the descriptor and returns 0, or SMBDIRECT_ERROR_SYSTEM or why there is no connection.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_stream(
    connection: *mut smbdirect_connection,
    fd: *mut c_int,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: all pointers follow the rules for arguments.
    unsafe {
        call_status(error, || {
            let handle = pointers::handle(connection, "connection")?;
            let out = pointers::out(fd, "fd")?;
            *out = handle.stream()?.into_raw_fd();
            Ok(())
        })
    }
}

/// Connects to a peer as smbdirect_connect() does, and turns the connection into a socket as smbdirect_stream()
/// does.
///
/// `connection` gets the handle for registrations, RDMA Reads and Writes. It may be NULL for programs that need
/// only the socket.
///
/// Stores the handle and the descriptor and returns 0. Otherwise stores nothing, and returns the errors of
/// smbdirect_connect().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_connect_stream(
    runtime: *mut smbdirect_runtime,
    address: *const c_char,
    settings: *const smbdirect_settings,
    timeout_ms: i32,
    connection: *mut *mut smbdirect_connection,
    fd: *mut c_int,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: all pointers follow the rules for arguments.
    unsafe {
        call_status(error, || {
            let out = pointers::out(fd, "fd")?;
            let handle = connect(runtime, address, settings, timeout_ms)?;
            let socket = handle.stream();
            match connection.as_mut() {
                Some(connection) if socket.is_ok() => *connection = pointers::give(handle),
                _ => handle.events.free(),
            }
            *out = socket?.into_raw_fd();
            Ok(())
        })
    }
}

impl smbdirect_connection {
    fn stream(&self) -> Result<OwnedFd, Failure> {
        let connection = self.connection()?.clone();
        // An earlier receive that did not wait would take the next message.
        self.runtime.release(lock(&self.receiving).take());
        let (program, ours) = UnixStream::pair()?;
        if let Some(streams) = &mut *lock(&self.streams) {
            streams.push(ours.try_clone()?);
        }
        self.runtime.enter(|| connection.serve_stream(ours))?;
        Ok(program.into())
    }
}
