//! Receiving messages.

use std::{
    ffi::c_int,
    sync::{Arc, Mutex},
};

use bytes::Buf;
use libc::iovec;
use smbdirect::{Connection, ConnectionError, Message};

use crate::{
    connection::smbdirect_connection,
    locks::lock,
    pointers,
    status::{Failure, SMBDIRECT_ERROR_BUFFER_TOO_SMALL, call, call_status, smbdirect_error},
};

/// A message that was received.
pub struct smbdirect_message {
    message: Mutex<Message>,
}

impl smbdirect_connection {
    /// Returns the next message, or `None` after a graceful close.
    fn receive(&self, timeout_ms: i32) -> Result<Option<Message>, Failure> {
        let connection = self.connection()?;
        if let Some(kept) = lock(&self.kept).pop_front() {
            return Ok(Some(kept));
        }
        let received = match timeout_ms {
            0 => self.poll_receive(connection),
            _ => self.wait_receive(connection, timeout_ms),
        };
        match received? {
            Ok(message) => Ok(Some(message)),
            Err(ConnectionError::Closed | ConnectionError::ClosedHere) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Receives, and waits. The future of an earlier call that did not wait goes on here: it is the one that the next
    /// message goes to.
    fn wait_receive(
        &self,
        connection: &Connection,
        timeout_ms: i32,
    ) -> Result<Result<Message, ConnectionError>, Failure> {
        let earlier = lock(&self.receiving).take();
        let Some(earlier) = earlier else {
            return self.wait(timeout_ms, connection.recv());
        };
        let received = self.wait(timeout_ms, earlier);
        // No future makes the descriptor readable now, so that the program has to repeat the call for one.
        self.events.signal();
        received
    }

    /// Receives without waiting. The future is kept for the next call, because a dropped future would not make the
    /// descriptor readable when a message arrives.
    fn poll_receive(
        &self,
        connection: &Connection,
    ) -> Result<Result<Message, ConnectionError>, Failure> {
        let mut kept = lock(&self.receiving);
        let receiving = kept.get_or_insert_with(|| {
            let connection = connection.clone();
            Box::pin(async move { connection.recv().await })
        });
        let received = self.wait(0, receiving.as_mut());
        if received.is_ok() {
            *kept = None;
        }
        received
    }
}

/// Receives the next message into `iovcnt` pieces of memory, and waits for it for up to `timeout_ms`
/// milliseconds. Stores the token of the registration that the peer ended with this message in
/// `invalidated`, or 0, unless the pointer is NULL.
///
/// Messages that arrived before the end of the connection are returned before its error.
///
/// Returns the length of the message, or 0 when the connection was closed gracefully and all messages
/// were received. An empty message that ended a registration has the length 0, too, and a token. Otherwise returns
/// SMBDIRECT_ERROR_INVALID, _WOULD_BLOCK, _TIMED_OUT, why the connection is over, or
/// SMBDIRECT_ERROR_BUFFER_TOO_SMALL: the message is kept for the next call, and the text of the error names its length.
/// smbdirect_recv_message() takes messages of any length. An end in the middle of a message is an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_recv(
    connection: *mut smbdirect_connection,
    iov: *const iovec,
    iovcnt: c_int,
    timeout_ms: i32,
    invalidated: *mut u32,
    error: *mut smbdirect_error,
) -> i64 {
    // SAFETY: all pointers follow the rules for arguments.
    unsafe {
        call(error, || {
            let handle = pointers::handle(connection, "connection")?;
            let count =
                usize::try_from(iovcnt).map_err(|_| Failure::invalid("iovcnt is negative"))?;
            let pieces = pointers::array(iov, count, "iov")?;
            let room = pieces.iter().try_fold(0usize, |sum, piece| {
                let missing = piece.iov_base.is_null() && piece.iov_len > 0;
                (!missing).then(|| sum.saturating_add(piece.iov_len))
            });
            let room = room.ok_or_else(|| Failure::invalid("iov_base is NULL"))?;
            if let Some(length) = lock(&handle.kept).front().map(Message::len)
                && length > room
            {
                return Err(too_small(length, room));
            }
            let Some(mut message) = handle.receive(timeout_ms)? else {
                return Ok(0);
            };
            let length = message.len();
            if length > room {
                lock(&handle.kept).push_back(message);
                return Err(too_small(length, room));
            }
            if let Some(out) = invalidated.as_mut() {
                *out = message.invalidated_token().map_or(0, |token| token.0);
            }
            for piece in pieces {
                let part = piece.iov_len.min(message.remaining());
                copy_part(&mut message, piece.iov_base.cast(), part);
            }
            Ok(i64::try_from(length).unwrap_or(i64::MAX))
        })
    }
}

fn too_small(length: usize, room: usize) -> Failure {
    let text = format!("a message of {length} bytes, there is room for {room}");
    Failure::new(SMBDIRECT_ERROR_BUFFER_TOO_SMALL, text)
}

/// Moves `length` bytes of a message to the caller's memory.
///
/// # Safety
/// `to` is valid for writes of `length` bytes.
unsafe fn copy_part(message: &mut Message, mut to: *mut u8, mut length: usize) {
    while length > 0 {
        let chunk = message.chunk();
        let part = chunk.len().min(length);
        // SAFETY: the chunk and the memory at `to` have at least `part` more bytes, and they do not overlap: the chunk
        // is memory of the library.
        unsafe {
            to.copy_from_nonoverlapping(chunk.as_ptr(), part);
            to = to.add(part);
        }
        message.advance(part);
        length -= part;
    }
}

/// Receives the next message, of any length, without a copy.
///
/// Stores the message, which the caller frees with smbdirect_message_free(), and returns 1. Stores NULL and
/// returns 0 when the connection was closed gracefully. Otherwise returns the errors of
/// smbdirect_recv(). The memory of messages that are not freed is missing for further ones.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_recv_message(
    connection: *mut smbdirect_connection,
    timeout_ms: i32,
    message: *mut *mut smbdirect_message,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: all pointers follow the rules for arguments.
    let value = unsafe {
        call(error, || {
            let out = pointers::out(message, "message")?;
            *out = std::ptr::null_mut();
            let handle = pointers::handle(connection, "connection")?;
            let Some(message) = handle.receive(timeout_ms)? else {
                return Ok(0);
            };
            let message = Mutex::new(message);
            *out = pointers::give(Arc::new(smbdirect_message { message }));
            Ok(1)
        })
    };
    value as i32
}

/// Returns the length of a message in bytes, and 0 for NULL and for a message that was freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_message_length(message: *const smbdirect_message) -> usize {
    pointers::handle(message, "message").map_or(0, |message| lock(&message.message).len())
}

/// Stores the token of the registration that the peer ended with the message. Returns 1 if there is one, and
/// 0 otherwise.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_message_invalidated(
    message: *const smbdirect_message,
    token: *mut u32,
) -> i32 {
    let message = pointers::handle(message, "message").ok();
    let invalidated = message.and_then(|message| lock(&message.message).invalidated_token());
    // SAFETY: `token` follows the rules for results.
    match (invalidated, unsafe { token.as_mut() }) {
        (Some(invalidated), Some(out)) => {
            *out = invalidated.0;
            1
        }
        (invalidated, _) => invalidated.is_some().into(),
    }
}

/// Returns the bytes of a message in one piece, which are valid until the message is freed. Copies them
/// together at the first call if they arrived in several pieces. Returns NULL for NULL and for a message that was
/// freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_message_data(
    message: *mut smbdirect_message,
) -> *const std::ffi::c_void {
    let Ok(handle) = pointers::handle(message, "message") else {
        return std::ptr::null();
    };
    let mut message = lock(&handle.message);
    if message.chunk().len() < message.len() {
        let token = message.invalidated_token();
        let bytes = std::mem::take(&mut *message).into_bytes();
        *message = Message::received(bytes, token);
    }
    message.chunk().as_ptr().cast()
}

/// Frees a message. NULL, and a message that was freed before, are ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_message_free(message: *mut smbdirect_message) {
    // SAFETY: there is no error to store.
    unsafe {
        call_status(std::ptr::null_mut(), || {
            pointers::take(message, "message").map(drop)
        });
    }
}
