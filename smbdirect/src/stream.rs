//! [`Connection::into_stream_fd`]: a connection as a stream socket, for programs that speak SMB over TCP.

use std::{
    io::{self, IoSlice},
    os::{fd::OwnedFd, unix::net::UnixStream as BlockingStream},
    pin::pin,
};

use bytes::{Buf, Bytes, BytesMut};
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt, Interest},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
};
use tracing::{debug, warn};

use crate::{
    connection::Connection,
    engine::{ConnectionError, Message},
    runtime::MSG_NOSIGNAL,
};

/// Length of the header of a frame: a type of 0, and the length of the message in 24 bits, big-endian
/// (\[MS-SMB2\] 2.1, Direct TCP).
const HEADER_LENGTH: usize = 4;

/// Longest message that the length of a frame can express, in bytes.
const MAX_FRAME_LENGTH: usize = 0xFF_FFFF;

/// Most parts of a message in one write.
const MAX_SLICES_PER_WRITE: usize = 64;

/// Least free space in the buffer for each read from the socket, in bytes.
const MIN_READ_LENGTH: usize = 64 * 1024;

impl Connection {
    /// Turns the connection into one end of a socket pair. Each message in either direction is a frame with
    /// the 4-byte header of SMB over TCP: a byte 0, and the length in 24 bits, big-endian.
    ///
    /// The descriptor is a blocking `AF_UNIX` stream socket with close-on-exec set. It can be polled, set
    /// to non-blocking, duplicated, and passed to other processes. A task of this tokio runtime moves the
    /// messages, so the runtime has to run as long as the descriptor is used.
    ///
    /// Clones of the connection remain usable for registrations, RDMA Reads and RDMA Writes. Messages that
    /// arrive go to the descriptor: a clone that calls [`recv`](Self::recv) takes them away from it.
    ///
    /// - **Backpressure**: while messages wait for the peer's credits, frames stay in the socket, and the
    ///   program's writes block. While the program does not read, the peer runs out of credits.
    /// - **Closing**: when the program shuts down its writing side or closes the descriptor, the frames that
    ///   it wrote are sent, and the connection closes as by [`close`](Self::close). When the peer closes
    ///   the connection, the program reads the frames that arrived and then the end of the stream. SMB
    ///   Direct has no half-close: the peer cannot answer after either.
    /// - **Errors**: if the connection fails, the program reads the frames that arrived and then the end of
    ///   the stream, and its writes fail with `EPIPE`. A frame with another type than 0, with no message in
    ///   it or with one longer than
    ///   [`max_fragmented_send_size`](crate::Negotiated::max_fragmented_send_size) aborts the connection
    ///   with a line in the log. So does a message that is too long for a frame, 16 MiB or more, which can
    ///   only arrive if `max_fragmented_receive_size` allows it.
    ///
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Fails if the socket pair cannot be created. The connection is closed in the background then.
    pub fn into_stream_fd(self) -> io::Result<OwnedFd> {
        let (program, ours) = BlockingStream::pair()?;
        self.serve_stream(ours)?;
        Ok(program.into())
    }

    /// Moves the messages of the connection over the given socket, as
    /// [`into_stream_fd`](Self::into_stream_fd) does over a socket that it creates. The peer of the socket
    /// is the program.
    ///
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Fails if the runtime cannot use the socket. The connection is closed in the background then.
    pub fn serve_stream(self, socket: BlockingStream) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        let (frames_out, frames_in) = UnixStream::from_std(socket)?.into_split();
        tokio::spawn(async move {
            let mut sending = pin!(send_frames(&self, frames_out));
            let mut receiving = pin!(write_messages(&self, frames_in));
            tokio::select! {
                biased;
                end = &mut receiving => if end == End::Program {
                    sending.await;
                },
                () = &mut sending => {
                    receiving.await;
                }
            }
        });
        Ok(())
    }
}

/// The end of the stream at which messages cannot be written any more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The connection is over.
    Connection,
    /// The program has closed its descriptor.
    Program,
}

/// Writes the messages that arrive, as frames, until one of the two ends is gone.
async fn write_messages(connection: &Connection, mut socket: OwnedWriteHalf) -> End {
    loop {
        let message = match connection.recv().await {
            Ok(message) => message,
            Err(ConnectionError::Closed(_)) => return End::Connection,
            Err(error) => {
                warn!(peer = %connection.remote_address(), %error, "a stream ends");
                return End::Connection;
            }
        };
        if message.len() > MAX_FRAME_LENGTH {
            let bytes = message.len();
            warn!(peer = %connection.remote_address(), bytes, "a message is too long for a frame");
            connection.abort();
            return End::Connection;
        }
        if let Err(error) = write_frame(&mut socket, message).await {
            debug!(peer = %connection.remote_address(), %error, "the program has closed its stream");
            return End::Program;
        }
    }
}

/// Writes a message of at most [`MAX_FRAME_LENGTH`] as a frame.
async fn write_frame(socket: &mut OwnedWriteHalf, message: Message) -> io::Result<()> {
    let header = (message.len() as u32).to_be_bytes();
    let mut frame = Buf::chain(&header[..], message);
    let socket: &UnixStream = (*socket).as_ref();
    while frame.has_remaining() {
        socket.writable().await?;
        let written = socket.try_io(Interest::WRITABLE, || {
            let mut slices = [IoSlice::new(&[]); MAX_SLICES_PER_WRITE];
            let count = frame.chunks_vectored(&mut slices);
            // The functions for writing in the standard library raise SIGPIPE if the program has closed its
            // end.
            SockRef::from(socket).send_vectored_with_flags(&slices[..count], MSG_NOSIGNAL)
        });
        match written {
            Ok(count) => frame.advance(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sends the frames that the program writes, then closes the connection.
async fn send_frames(connection: &Connection, mut socket: OwnedReadHalf) {
    let longest = connection.negotiated().max_fragmented_send_size as usize;
    let mut buffer = BytesMut::new();
    loop {
        let frame = match read_frame(&mut socket, &mut buffer, longest).await {
            Ok(Some(frame)) => frame,
            Ok(None) => return connection.start_close(),
            Err(error) => {
                warn!(peer = %connection.remote_address(), %error, "a stream is aborted");
                return connection.abort();
            }
        };
        // An error means that the connection is over, which `write_messages` notices too.
        if connection.ready().await.is_err() || connection.send(frame).is_err() {
            return;
        }
    }
}

/// Returns the message of the next frame, or `None` at the end of the stream.
async fn read_frame(
    socket: &mut OwnedReadHalf,
    buffer: &mut BytesMut,
    longest: usize,
) -> io::Result<Option<Bytes>> {
    let mut wanted = HEADER_LENGTH;
    loop {
        if let Some(header) = buffer.first_chunk::<HEADER_LENGTH>() {
            let header = u32::from_be_bytes(*header);
            let length = header as usize & MAX_FRAME_LENGTH;
            if header as usize != length || length == 0 || length > longest {
                let what = format!(
                    "a frame with the header {header:#010x}, the peer takes at most {longest} B"
                );
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            wanted = HEADER_LENGTH + length;
            if buffer.len() >= wanted {
                buffer.advance(HEADER_LENGTH);
                return Ok(Some(buffer.split_to(length).freeze()));
            }
        }
        buffer.reserve((wanted - buffer.len()).max(MIN_READ_LENGTH));
        if socket.read_buf(buffer).await? == 0 {
            if buffer.is_empty() {
                return Ok(None);
            }
            let what = "the stream ends within a frame";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
        }
    }
}
