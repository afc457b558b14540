//! [`FrameStream`]: a connection as a stream of bytes, for programs that speak SMB over TCP.

use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tracing::warn;

use crate::{
    connection::Connection,
    engine::ConnectionError,
    frames::{Frames, HEADER_LENGTH, MAX_FRAME_LENGTH},
};

/// A connection as a stream of the frames of SMB over TCP: each message in either direction has a header of 4 bytes, a
/// byte 0 and the length in 24 bits, big-endian. [`Connection::into_stream`] makes it.
///
/// Reading and writing are cancel-safe, and [`tokio::io::split`] separates them. A message arrives in parts, so its
/// first bytes can be read before its last ones have arrived.
///
/// - **Writing** fails with `InvalidData` for a frame of another type than 0 (or 0x85, a keepalive of NetBIOS, which is
///   dropped), and for a message longer than
///   [`max_fragmented_send_size`](crate::Negotiated::max_fragmented_send_size). A write waits while the peer has no
///   credits for the message that it completes. A frame is submitted when its last byte is written, without a flush.
///   Once the connection is over or closing, every write fails, also of a part of a frame. Whole frames that were
///   written just before can be lost, as with a TCP socket.
/// - **Closing**: `shutdown` and dropping the stream send what was submitted and start to close the connection, as
///   [`Connection::close`] does. SMB Direct has no half-close: the peer cannot answer afterwards. After `shutdown`, what
///   has arrived can still be read. Dropping the stream discards it. To know that the peer has taken everything, await
///   [`closed`](Connection::closed) of a clone of the connection.
/// - **Reading** ends with the end of the stream when either end has closed the connection between two messages, and
///   fails with the error of the connection otherwise: `UnexpectedEof` in the middle of a message. A message of 16 MiB or more does not fit a frame: it aborts the connection, and nothing
///   is read any more. It can only arrive if `max_fragmented_receive_size` allows it.
pub struct FrameStream {
    connection: Connection,
    /// What was written and not submitted.
    written: Frames,
    /// The header of the message that is read, and how much of it was read.
    header: [u8; HEADER_LENGTH],
    header_read: usize,
    /// The bytes of the message that have arrived and were not read.
    payload: Bytes,
    /// Whether more bytes of the message follow.
    is_within_message: bool,
    /// A message did not fit a frame, so the rest of it and all after it cannot be read.
    is_unreadable: bool,
}

/// Shows the connection, and not the bytes of messages.
impl fmt::Debug for FrameStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameStream")
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Turns the connection into a stream of bytes for tokio, with the frames of SMB over TCP.
    ///
    /// Clones of the connection remain usable for registrations, RDMA Reads and RDMA Writes. Messages that
    /// arrive go to the stream: a clone that calls [`recv`](Self::recv) takes them away from it.
    ///
    /// ```
    /// # use smbdirect::{Config, Connection, Listener, Loopback};
    /// use tokio::io::{AsyncReadExt, AsyncWriteExt};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// # let provider = Loopback::new();
    /// # let mut listener = Listener::bind(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let client = Connection::connect(&provider, "127.0.0.1:445", Config::default()).await?;
    /// # let server = listener.accept().await?;
    /// let mut stream = client.into_stream();
    /// stream.write_all(b"\x00\x00\x00\x05hello").await?;
    /// assert_eq!(server.recv().await?.into_bytes(), "hello");
    ///
    /// server.send("hi")?.await?;
    /// let mut frame = [0; 6];
    /// stream.read_exact(&mut frame).await?;
    /// assert_eq!(&frame, b"\x00\x00\x00\x02hi");
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_stream(self) -> FrameStream {
        FrameStream {
            written: Frames::new(self.negotiated().max_fragmented_send_size as usize),
            connection: self,
            header: [0; HEADER_LENGTH],
            header_read: HEADER_LENGTH,
            payload: Bytes::new(),
            is_within_message: false,
            is_unreadable: false,
        }
    }
}

impl FrameStream {
    /// Returns the connection, for registrations, RDMA Reads and RDMA Writes.
    ///
    /// ```no_run
    /// # async fn example(stream: smbdirect::FrameStream) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("{}", stream.connection().peer_addr());
    /// # Ok(())
    /// # }
    /// ```
    pub const fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Takes the next bytes that were written, at most up to the end of a frame, and submits the frame that they
    /// complete. The last byte of a frame is only taken when the peer has credits for it, so that no whole frame waits
    /// here. Returns the number of bytes.
    fn poll_take(&mut self, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let has_header = self.written.next_length()?.is_some();
        // Nothing is taken from a connection that cannot send it.
        let is_ready = self.connection.poll_ready(context)?.is_ready();
        let missing = self.written.missing();
        let mut count = missing.min(from.len());
        if has_header && count == missing && !is_ready {
            if count == 1 {
                return Poll::Pending;
            }
            count -= 1;
        }
        self.written.buffer.extend_from_slice(&from[..count]);
        // The header may be that of no frame, and the connection may end in this moment. The next call reports either.
        if let Ok(Some(message)) = self.written.take() {
            let _ = self.connection.send(message);
        }
        Poll::Ready(Ok(count))
    }

    /// Starts to close the connection.
    ///
    /// # Errors
    /// Fails if a frame is incomplete.
    fn close(&mut self) -> io::Result<()> {
        self.connection.start_close();
        self.written.next_length()?;
        if self.written.buffer.is_empty() {
            Ok(())
        } else {
            let what = "the stream ends within a frame";
            Err(io::Error::new(io::ErrorKind::InvalidData, what))
        }
    }

    /// Receives the next part of a message. Returns false at the end of the stream.
    fn poll_part(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.is_unreadable {
            return Poll::Ready(Err(ConnectionError::Aborted.into()));
        }
        let segment = match ready!(self.connection.poll_recv_segment(context)) {
            Ok(segment) => segment,
            Err(ConnectionError::Closed | ConnectionError::ClosedHere) => {
                return Poll::Ready(Ok(false));
            }
            Err(error) => return Poll::Ready(Err(error.into())),
        };
        if !self.is_within_message {
            let length = segment.payload.len() + segment.remaining as usize;
            if length > MAX_FRAME_LENGTH {
                let peer = self.connection.peer_addr();
                warn!(%peer, bytes = length, "a message is too long for a frame");
                self.connection.abort();
                self.is_unreadable = true;
                return Poll::Ready(Err(ConnectionError::Aborted.into()));
            }
            self.header = (length as u32).to_be_bytes();
            self.header_read = 0;
        }
        self.is_within_message = segment.remaining != 0;
        self.payload = segment.payload;
        Poll::Ready(Ok(true))
    }
}

impl AsyncRead for FrameStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if into.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        while this.header_read == HEADER_LENGTH && this.payload.is_empty() {
            if !ready!(this.poll_part(context))? {
                return Poll::Ready(Ok(()));
            }
        }
        let header = &this.header[this.header_read..];
        let count = header.len().min(into.remaining());
        into.put_slice(&header[..count]);
        this.header_read += count;
        let count = this.payload.len().min(into.remaining());
        into.put_slice(&this.payload[..count]);
        this.payload.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for FrameStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut taken = 0;
        while taken < from.len() {
            match self.poll_take(context, &from[taken..]) {
                Poll::Ready(Ok(count)) => taken += count,
                // What was taken is reported first. The next call returns the same.
                _ if taken > 0 => break,
                other => return other,
            }
        }
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.written.next_length().map(drop))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.close())
    }
}

impl Drop for FrameStream {
    fn drop(&mut self) {
        // An incomplete frame is not sent.
        self.connection.close_unread();
    }
}
