//! The negotiated limits and the counters of a connection.

use std::ffi::c_char;

use crate::{
    connection::smbdirect_connection,
    pointers,
    status::{Failure, call_status, smbdirect_error},
};

/// Length of the longest address as a text, in bytes, with the 0 at its end.
pub const SMBDIRECT_ADDRESS_LENGTH: usize = 64;

/// The result of smbdirect_query(). Later versions of the library add fields at the end.
#[repr(C)]
pub struct smbdirect_connection_info {
    /// sizeof(struct smbdirect_connection_info), set by the caller. It becomes the size that the library knows, after
    /// which nothing is stored.
    pub size: usize,
    /// Address of this end, such as "10.0.0.1:40000".
    pub local_address: [c_char; SMBDIRECT_ADDRESS_LENGTH],
    /// Address of the peer.
    pub remote_address: [c_char; SMBDIRECT_ADDRESS_LENGTH],
    /// Largest single message that this end sends, in bytes with its header.
    pub max_send_size: u32,
    /// Largest single message that this end receives, in bytes with its header.
    pub max_receive_size: u32,
    /// Largest message that smbdirect_send() takes, in bytes.
    pub max_fragmented_send_size: u32,
    /// Largest message that can arrive, in bytes.
    pub max_fragmented_receive_size: u32,
    /// Largest single RDMA Read or Write, in bytes. Longer ones are done in parts.
    pub max_read_write_size: u32,
    /// Number of messages that the peer allows now.
    pub send_credits: u32,
    /// Number of messages that the peer may send now.
    pub receive_credits: u32,
    /// Messages of the program that were sent completely.
    pub messages_sent: u64,
    /// Messages that arrived completely.
    pub messages_received: u64,
    /// Bytes of messages that were sent.
    pub bytes_sent: u64,
    /// Bytes of messages that arrived.
    pub bytes_received: u64,
    /// RDMA Reads that are complete.
    pub reads: u64,
    /// RDMA Writes that are complete.
    pub writes: u64,
    /// Bytes that RDMA Reads brought.
    pub bytes_read: u64,
    /// Bytes that this end has sent by RDMA Write.
    pub bytes_written: u64,
    /// Buffers that are registered now.
    pub regions: u64,
}

/// Copies as much of a text as there is room for, with a 0 byte at the end.
pub(crate) fn copy_text(text: &str, memory: &mut [c_char]) {
    let length = text.len().min(memory.len() - 1);
    for (to, from) in memory.iter_mut().zip(text[..length].bytes()) {
        *to = from as c_char;
    }
    memory[length] = 0;
}

/// Stores what was negotiated and what was counted. Set `info->size` before.
///
/// Returns 0, SMBDIRECT_ERROR_INVALID, or _WOULD_BLOCK if the connection is not established yet. Works on a
/// connection that is over, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smbdirect_query(
    connection: *const smbdirect_connection,
    info: *mut smbdirect_connection_info,
    error: *mut smbdirect_error,
) -> i32 {
    // SAFETY: all pointers follow the rules for arguments.
    unsafe {
        call_status(error, || {
            let handle = pointers::handle(connection, "connection")?;
            let out = pointers::out(info, "info")?;
            let known = size_of::<smbdirect_connection_info>();
            if out.size < known {
                let message = format!("info->size is {}, of no version", out.size);
                return Err(Failure::invalid(message));
            }
            let connection = handle.connection()?;
            let negotiated = connection.negotiated();
            let (credits, counted) = handle
                .runtime
                .enter(|| (connection.credits(), connection.stats()));
            out.size = known;
            copy_text(&connection.local_addr().to_string(), &mut out.local_address);
            copy_text(&connection.peer_addr().to_string(), &mut out.remote_address);
            out.max_send_size = negotiated.max_send_size;
            out.max_receive_size = negotiated.max_receive_size;
            out.max_fragmented_send_size = negotiated.max_fragmented_send_size;
            out.max_fragmented_receive_size = negotiated.max_fragmented_receive_size;
            out.max_read_write_size = negotiated.max_read_write_size;
            out.send_credits = credits.send_credits.into();
            out.receive_credits = credits.granted.into();
            out.messages_sent = counted.messages_sent;
            out.messages_received = counted.messages_received;
            out.bytes_sent = counted.bytes_sent;
            out.bytes_received = counted.bytes_received;
            out.reads = counted.reads;
            out.writes = counted.writes;
            out.bytes_read = counted.bytes_read;
            out.bytes_written = counted.bytes_written;
            out.regions = counted.regions;
            Ok(())
        })
    }
}
