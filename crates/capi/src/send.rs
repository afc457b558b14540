//! Sending messages.

use std::ffi::{c_int, c_void};

use libc::iovec;
use smbdirect::{Message, SendError, Sending, Token, TrySendError};

use crate::{
    borrowed, buffer,
    connection::{smbdirect_callback, smbdirect_connection},
    operations::Callback,
    pointers,
    status::{Failure, call_status, smbdirect_error},
};

impl smbdirect_connection {
    /// Copies a message and submits it as soon as it can start.
    fn send(
        &self,
        parts: &[&[u8]],
        length: usize,
        invalidate: Option<u32>,
        timeout_ms: i32,
    ) -> Result<(), Failure> {
        let connection = self.connection()?;
        let max = connection.negotiated().max_fragmented_send_size;
        if length > max as usize {
            // It is not copied, because the parts may overlap and be longer than memory.
            return Err(SendError::TooLong { length, max }.into());
        }
        let mut message = Message::from(buffer::copy(parts, length)?);
        let sent = self.wait(timeout_ms, async {
            loop {
                let submitted = match invalidate {
                    None => connection.try_send(message),
                    Some(token) => {
                        connection.ready().await?;
                        let sending = connection.send_and_invalidate(message, Token(token));
                        sending.map_err(TrySendError::from)
                    }
                };
                match submitted {
                    Ok(sending) => {
                        // Dropping the future does not recall the message.
                        drop::<Sending>(sending);
                        return Ok(());
                    }
                    Err(TrySendError::Send(error)) => return Err(error.into()),
                    Err(TrySendError::NotReady(returned)) => message = returned,
                    Err(other) => return Err(Failure::invalid(other)),
                }
                connection.ready().await?;
            }
        });
        if sent.is_err() && timeout_ms == 0 {
            self.announce_ready(connection);
        }
        sent?
    }
}

/// Sends a message that consists of the bytes of `iovcnt` parts, 1024 at most. The bytes are copied, so the memory may
/// be used again when the call returns. Messages are sent in the order of the calls.
///
/// Waits for up to `timeout_ms` milliseconds until the message can start: until the peer has granted a
/// credit and earlier messages have started. An empty message is sent, but no receive returns it, except
/// if it ends a registration.
///
/// A peer that receives nothing makes this call wait, and no message is lost. The rest of a message that has started
/// needs credits, too: this library grants them always, but Linux, Windows and other peers need not. If such a peer
/// pauses in the middle of a message for longer than 5 s, the connection ends with SMBDIRECT_ERROR_TIMED_OUT; the
/// option `credit_grant_timeout_ms` changes that.
///
/// A sender without credits can neither send a keepalive nor answer one. If the receiver takes nothing for longer than
/// `keepalive_interval_ms` and `keepalive_response_timeout_ms` of one of the ends together, 125 s by default, that end
/// ends the connection; the messages that were sent can still be received. To pause longer, make
/// `keepalive_interval_ms` of both ends longer than the pause.
///
/// Returns 0 when the message was submitted. Otherwise nothing was sent, and it returns
/// SMBDIRECT_ERROR_INVALID, _WOULD_BLOCK, _TIMED_OUT, _TOO_LARGE, or why the connection is over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_send(
    connection: *mut smbdirect_connection,
    iov: *const iovec,
    iovcnt: c_int,
    timeout_ms: i32,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: all pointers follow the rules for arguments.
    unsafe {
        call_status(error, || {
            let handle = pointers::handle(connection, "connection")?;
            let (parts, length) = pointers::parts(iov, iovcnt)?;
            handle.send(&parts, length, None, timeout_ms)
        })
    }
}

/// Sends a message as smbdirect_send() does, which also ends the registration of the peer with this token
/// when it arrives (Send with Invalidate).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_send_and_invalidate(
    connection: *mut smbdirect_connection,
    iov: *const iovec,
    iovcnt: c_int,
    token: u32,
    timeout_ms: i32,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: all pointers follow the rules for arguments.
    unsafe {
        call_status(error, || {
            let handle = pointers::handle(connection, "connection")?;
            let (parts, length) = pointers::parts(iov, iovcnt)?;
            handle.send(&parts, length, Some(token), timeout_ms)
        })
    }
}

/// Submits a message without a copy and without waiting. The memory of the parts must stay valid and
/// unchanged until `callback` is called, which smbdirect_service() does when the last byte was handed to
/// the wire. The transport "loopback" copies.
///
/// `invalidate` points to a token of the peer as for smbdirect_send_and_invalidate(), or is NULL. The
/// number of messages that wait is not limited: limit it by waiting for callbacks. A message that waits for the peer's
/// credits for longer than the option `credit_grant_timeout_ms` says ends the connection.
///
/// Returns 0 when the message was submitted. Otherwise the callback is not called, and it returns
/// SMBDIRECT_ERROR_INVALID, _TOO_LARGE, or why the connection is over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_send_start(
    connection: *mut smbdirect_connection,
    iov: *const iovec,
    iovcnt: c_int,
    invalidate: *const u32,
    callback: smbdirect_callback,
    user_data: *mut c_void,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: all pointers follow the rules for arguments, and the memory of the parts stays valid until
    // the callback, which follows the release of the last part.
    unsafe {
        call_status(error, || {
            let handle = pointers::handle(connection, "connection")?;
            let (parts, _) = pointers::parts(iov, iovcnt)?;
            let token = invalidate.as_ref().map(|token| Token(*token));
            let established = handle.connection()?;
            let started = handle.operations.start()?;
            let (parts, released) = borrowed::lend(&parts, handle.copies);
            let message: Message = parts.into_iter().collect();
            let sending = handle.runtime.enter(|| match token {
                None => established.send(message),
                Some(token) => established.send_and_invalidate(message, token),
            })?;
            let callback = Callback::new(callback, user_data);
            handle.run_operation(started, callback, async move {
                let result = sending.await;
                released.wait().await;
                (result.map_err(Into::into), None)
            });
            Ok(())
        })
    }
}
