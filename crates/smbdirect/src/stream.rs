//! [`Connection::into_stream_fd`]: a connection as a stream socket, for programs that speak SMB over TCP.

use std::{
    io::{self, IoSlice, Read},
    os::{fd::OwnedFd, unix::net::UnixStream as BlockingStream},
    pin::pin,
};

use bytes::Buf;
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
    engine::{ConnectionError, Message, SendError},
    frames::{Frames, MAX_FRAME_LENGTH},
    rdma::runtime::MSG_NOSIGNAL,
};

/// Maximum number of parts of a message in one write.
const MAX_SLICES_PER_WRITE: usize = 64;

/// Least free space in the buffer for each read from the socket, in bytes.
const MIN_READ_LENGTH: usize = 64 * 1024;

/// Maximum number of reads from the socket when the runtime ends. The limit is needed because a program could write without
/// end.
const MAX_LAST_READS: usize = 64;

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
    /// - **Closing**: when the program shuts down its writing side or closes the descriptor, the frames that it
    ///   wrote are sent, and the connection closes as by [`close`](Self::close), whether the program has read
    ///   everything or not. When the peer closes the connection, the program reads the frames that arrived and
    ///   then the end of the stream. SMB Direct has no half-close: after either end has closed, the peer cannot
    ///   answer.
    /// - **Errors**: if the connection fails, the program reads the frames that arrived and then the end of
    ///   the stream, and its writes fail with `EPIPE`. Empty frames of type 0 or 0x85 (NetBIOS keepalive)
    ///   are dropped. A frame with another type, with a message longer than
    ///   [`max_fragmented_send_size`](crate::Negotiated::max_fragmented_send_size), or that is cut off closes the
    ///   connection after the frames before it, with a line in the log. A message that is too long for a frame,
    ///   16 MiB or more, aborts the connection. It can
    ///   only arrive if `max_fragmented_receive_size` allows it.
    /// - **The end of the runtime**: the whole frames that the program has written are sent, and the connection
    ///   closes. The program reads the end of the stream.
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
        let mut program = Program {
            frames: Frames::new(self.negotiated().max_fragmented_send_size as usize),
            connection: self.clone(),
            socket: frames_out,
            has_closed: false,
        };
        tokio::spawn(async move {
            let mut sending = pin!(program.send());
            let mut receiving = pin!(write_messages(&self, frames_in));
            tokio::select! {
                biased;
                () = &mut receiving => {}
                () = &mut sending => receiving.await,
            }
        });
        Ok(())
    }
}

/// Writes the messages that arrive, as frames, until the connection is over. Discards messages after the program
/// has closed its descriptor. Otherwise the untaken messages would keep the frames of the program from being
/// sent.
async fn write_messages(connection: &Connection, socket: OwnedWriteHalf) {
    let mut socket = Some(socket);
    loop {
        let message = match connection.recv().await {
            Ok(message) => message,
            Err(ConnectionError::Closed | ConnectionError::ClosedHere) => return,
            Err(error) => {
                warn!(peer = %connection.peer_addr(), %error, "a stream ends");
                if let Some(open) = &mut socket {
                    write_cut_frame(connection, open).await;
                }
                return;
            }
        };
        let Some(open) = &mut socket else { continue };
        if message.len() > MAX_FRAME_LENGTH {
            let bytes = message.len();
            warn!(peer = %connection.peer_addr(), bytes, "a message is too long for a frame");
            return connection.abort();
        }
        if let Err(error) = write_frame(open, message).await {
            debug!(peer = %connection.peer_addr(), %error, "the program has closed its stream");
            socket = None;
        }
    }
}

/// Writes the begin of a frame whose message has not arrived whole, so that the program reads an end of the stream within
/// a frame, as it would with TCP.
async fn write_cut_frame(connection: &Connection, socket: &mut OwnedWriteHalf) {
    let mut begin = Message::default();
    let mut length = 0;
    while let Ok(segment) = connection.recv_segment().await {
        begin.push(segment.payload);
        length = begin.len() + segment.remaining as usize;
    }
    if (1..=MAX_FRAME_LENGTH).contains(&length)
        && let Err(error) = write_part(socket, length as u32, begin).await
    {
        debug!(peer = %connection.peer_addr(), %error, "the program has closed its stream");
    }
}

/// Writes a message of at most [`MAX_FRAME_LENGTH`] as a frame.
async fn write_frame(socket: &mut OwnedWriteHalf, message: Message) -> io::Result<()> {
    write_part(socket, message.len() as u32, message).await
}

/// Writes the header of a frame with a message of `length` bytes, and `message`, the message or its begin.
async fn write_part(socket: &mut OwnedWriteHalf, length: u32, message: Message) -> io::Result<()> {
    let header = length.to_be_bytes();
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

/// The direction from the program to the connection. Dropping this value sends the whole frames that were written, and closes the connection.
struct Program {
    connection: Connection,
    socket: OwnedReadHalf,
    /// The bytes that were read from the socket and not sent.
    frames: Frames,
    /// Whether the connection was closed because the stream has ended.
    has_closed: bool,
}

impl Program {
    /// Sends the frames that the program writes, then closes the connection.
    async fn send(&mut self) {
        loop {
            // No frame is held while this future waits, so that dropping it loses none.
            let is_whole = match self.frames.is_whole() {
                Ok(is_whole) => is_whole,
                Err(error) => return self.close(Some(&error)),
            };
            if is_whole {
                // An error means that the connection is over, which `write_messages` also notices.
                if self.connection.ready().await.is_err() || self.submit().is_err() {
                    return;
                }
                continue;
            }
            self.make_room();
            match self.socket.read_buf(&mut self.frames.buffer).await {
                Ok(0) => return self.close(None),
                Ok(_) => {}
                Err(error) => return self.close(Some(&error)),
            }
        }
    }

    /// Closes the connection after the frames that were sent, because the stream ends.
    fn close(&mut self, error: Option<&io::Error>) {
        self.has_closed = true;
        let peer = self.connection.peer_addr();
        match error {
            // `ConnectionReset` is not logged: the system reports it at the end of the stream if the program
            // closed the descriptor before it had read everything.
            Some(error) if error.kind() != io::ErrorKind::ConnectionReset => {
                warn!(%peer, %error, "a stream is closed");
            }
            _ if !self.frames.buffer.is_empty() => {
                warn!(%peer, error = "it ends within a frame", "a stream is closed");
            }
            _ => {}
        }
        self.connection.start_close();
    }

    /// Submits the message of the next frame, which has been read.
    fn submit(&mut self) -> Result<(), SendError> {
        let Ok(Some(message)) = self.frames.take() else {
            return Ok(());
        };
        self.connection.send(message).map(drop)
    }

    fn make_room(&mut self) {
        let missing = self.frames.missing();
        self.frames.buffer.reserve(missing.max(MIN_READ_LENGTH));
    }

    /// Submits the whole frames that the program has written, without waiting.
    fn submit_written(&mut self) -> io::Result<()> {
        let mut part = vec![0; MIN_READ_LENGTH];
        for _ in 0..MAX_LAST_READS {
            while self.frames.is_whole()? {
                self.submit().map_err(io::Error::other)?;
            }
            // The runtime may have ended, so it is not asked whether the socket is ready.
            let socket: &UnixStream = self.socket.as_ref();
            let count = (&*SockRef::from(socket)).read(&mut part)?;
            if count == 0 {
                break;
            }
            self.frames.buffer.extend_from_slice(&part[..count]);
        }
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.connection.error().is_none() && !self.has_closed {
            // The runtime ends. Data that cannot be read now is not sent.
            let _ = self.submit_written();
            self.connection.start_close();
        }
    }
}
