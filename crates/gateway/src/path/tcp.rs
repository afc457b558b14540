//! A connection to a peer of SMB over TCP. Frames without a message are dropped.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use smbdirect::Message;
use smbdirect_smb::frame::{self, FrameError, HEADER_LENGTH, MAX_MESSAGE_LENGTH};
use smbdirect_transport::text;
use socket2::{SockRef, TcpKeepalive};
use thiserror::Error;
use tokio::{
    io::{AsyncWriteExt, Interest},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::{sleep, timeout},
};

use crate::{
    admission::proxy_header::{self, HeaderFault},
    path::buffers::{Buffers, CHUNK},
    stop::{Side, Stop},
};

/// Maximum number of bytes to read before the destination of a message is known.
const MAX_READ_AHEAD_BYTES: usize = 64 << 10;
/// Number of unanswered TCP keepalive probes after which the system ends the connection. Windows sends 10,
/// and versions before Windows 10 refuse to change that.
#[cfg(any(target_os = "linux", target_os = "macos", target_os = "freebsd"))]
const PROBES: u32 = 5;
/// Interval of TCP keepalive probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between checks whether a peer whose data is not being read has closed its connection.
const HANG_UP_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Longest idle time before the first keepalive probe, as limited by Linux.
const MAX_IDLE: Duration = Duration::from_secs(32_767);

/// The reason why no more messages can be received from a TCP peer or sent to it.
#[derive(Debug, Error)]
pub(crate) enum Fault {
    /// The system reports an error.
    #[error("{}", text::plain(.0))]
    Io(#[from] io::Error),
    /// The stream ended within a message.
    #[error("it closed the connection in the middle of a message")]
    CutOff,
    /// The rest of a message did not arrive within the stall limit.
    #[error("it has sent nothing for {} in the middle of a message", text::time(*.0))]
    Unfinished(Duration),
    /// The peer accepted no data within the stall limit.
    #[error("it accepted no data for {}", text::time(*.0))]
    NotTaking(Duration),
    /// A message is longer than the other side accepts.
    #[error("a message of {length} bytes is too long: the other side takes at most {most}")]
    TooLong {
        /// Length of the message in bytes.
        length: usize,
        /// Maximum number of bytes that the other side accepts.
        most: u32,
    },
    /// The peer does not send frames of SMB over TCP.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The header of a proxy is malformed.
    #[error(transparent)]
    ProxyHeader(#[from] HeaderFault),
}

/// Prepares a connection: TCP_NODELAY, and TCP keepalive that detects a lost peer as fast as the
/// keepalive of SMB Direct.
///
/// The system sends no keepalive while data is unacknowledged, and retransmits it for a quarter of an hour. On Linux
/// the connection therefore ends when the peer acknowledges nothing for as long as a keepalive takes. The time also
/// counts while a peer that is alive accepts no data.
pub(crate) fn prepare(stream: &TcpStream, keepalive_interval: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let idle = keepalive_interval.clamp(PROBE_INTERVAL, MAX_IDLE);
    let keepalive = TcpKeepalive::new().with_time(idle);
    #[cfg(any(target_os = "linux", target_os = "macos", target_os = "freebsd"))]
    let keepalive = keepalive.with_interval(PROBE_INTERVAL).with_retries(PROBES);
    let socket = SockRef::from(stream);
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(idle + PROBES * PROBE_INTERVAL))?;
    socket.set_tcp_keepalive(&keepalive)
}

/// The receiving half of a TCP connection, which returns messages whole or in pieces.
///
/// # Errors
/// Each method fails when the peer closes the connection, which is [`Stop::Closed`] between messages only, or is at fault.
#[derive(Debug)]
pub(crate) struct Source {
    reader: Reader,
    /// Bytes that were read from the socket and not yet taken.
    buffer: BytesMut,
    /// When the last of them were read. One reading of the clock serves all messages that arrive together.
    arrived: Instant,
    /// Number of bytes of the current message that were not yet taken, including those in `buffer`.
    remaining: usize,
}

impl Source {
    /// Creates the receiving half of the peer on `side`. A message that has begun must arrive within `stall_limit`.
    pub(crate) fn new(side: Side, half: OwnedReadHalf, stall_limit: Duration) -> Self {
        let half = Arc::new(half);
        Self {
            reader: Reader {
                side,
                half,
                stall_limit,
            },
            buffer: BytesMut::new(),
            arrived: Instant::now(),
            remaining: 0,
        }
    }

    /// Waits until the first `head` bytes of the next message are in the buffer, or all of a shorter message.
    /// Cancel-safe: dropping the future loses no bytes.
    pub(crate) async fn message(&mut self, head: usize) -> Result<(), Stop> {
        debug_assert_eq!(self.remaining, 0, "the message before was taken whole");
        let length = self.next_length().await?;
        self.buffer.advance(HEADER_LENGTH);
        self.remaining = length;
        self.buffered(head.min(length)).await
    }

    /// Returns the first `head` bytes of the next message, or all of a shorter one, without taking them.
    pub(crate) async fn peek(&mut self, head: usize) -> Result<Bytes, Stop> {
        let end = HEADER_LENGTH + self.next_length().await?.min(head);
        self.buffered(end).await?;
        Ok(Bytes::copy_from_slice(&self.buffer[HEADER_LENGTH..end]))
    }

    /// Waits until the header of the next message is at the front of the buffer, and returns the length of the message.
    /// Frames without a message are dropped.
    async fn next_length(&mut self) -> Result<usize, Stop> {
        loop {
            if let Some(header) = self.buffer.first_chunk::<HEADER_LENGTH>() {
                let length = frame::message_length(*header);
                match length.map_err(|fault| self.reader.stop(fault))? {
                    0 => self.buffer.advance(HEADER_LENGTH),
                    length => return Ok(length as usize),
                }
            } else {
                self.read_more().await?;
            }
        }
    }

    /// Takes the header of the PROXY protocol, which precedes the first message. A proxy that only checks this end closes
    /// the connection before.
    pub(crate) async fn take_proxy_header(&mut self) -> Result<Bytes, Stop> {
        loop {
            let length = proxy_header::length(&self.buffer);
            if let Some(length) = length.map_err(|fault| self.reader.stop(fault))? {
                self.buffered(length).await?;
                return Ok(self.buffer.split_to(length).freeze());
            }
            self.read_more().await?;
        }
    }

    /// Returns when the bytes in the buffer arrived.
    pub(crate) const fn arrived(&self) -> Instant {
        self.arrived
    }

    /// Returns the bytes of the current message that are in the buffer.
    pub(crate) fn head(&self) -> &[u8] {
        &self.buffer[..self.buffer.len().min(self.remaining)]
    }

    /// Returns the number of bytes of the current message that were not yet taken.
    pub(crate) const fn remaining(&self) -> usize {
        self.remaining
    }

    /// Takes the next `length` bytes of the message in one piece. The caller may ask for a few KiB at most, because
    /// all of them are buffered first.
    pub(crate) async fn take(&mut self, length: usize) -> Result<Bytes, Stop> {
        self.buffered(length).await?;
        self.remaining -= length;
        Ok(self.buffer.split_to(length).freeze())
    }

    /// Takes at most `most` bytes of the message: the bytes in the buffer, or, if it is empty, a chunk
    /// read from the socket.
    pub(crate) async fn piece(&mut self, most: usize, buffers: &Buffers) -> Result<Bytes, Stop> {
        let most = most.min(self.remaining);
        let there = self.buffer.len().min(most);
        if there > 0 {
            self.remaining -= there;
            return Ok(self.buffer.split_to(there).freeze());
        }
        let mut chunk = buffers.chunk();
        self.fill(&mut chunk, most.min(CHUNK)).await?;
        Ok(chunk.freeze())
    }

    /// Appends the next `length` bytes of the message to `into`.
    pub(crate) async fn fill(&mut self, into: &mut BytesMut, length: usize) -> Result<(), Stop> {
        let there = self.buffer.len().min(length);
        into.extend_from_slice(&self.buffer.split_to(there));
        self.remaining -= length;
        let mut missing = length - there;
        while missing > 0 {
            let room = (&mut *into).limit(missing);
            missing -= self.reader.read(room, true).await?;
        }
        Ok(())
    }

    /// Discards the next `length` bytes of the message.
    pub(crate) async fn skip(&mut self, length: usize) -> Result<(), Stop> {
        let mut left = length;
        while left > 0 {
            self.buffered(1).await?;
            let there = self.buffer.len().min(left);
            self.buffer.advance(there);
            self.remaining -= there;
            left -= there;
        }
        Ok(())
    }

    /// Discards everything until the peer closes its sending side: the system would answer what is not taken by a reset,
    /// and the peer would lose what it was sent last.
    pub(crate) async fn discard(&mut self) {
        self.remaining = 0;
        self.buffer.clear();
        while self.read_more().await.is_ok() {
            self.buffer.clear();
        }
    }

    /// Returns what tells when the peer closes its sending side, while messages are received.
    pub(crate) fn hang_up(&self) -> HangUp {
        HangUp(self.reader.half.clone())
    }

    /// Reads until the buffer holds at least `length` bytes.
    async fn buffered(&mut self, length: usize) -> Result<(), Stop> {
        while self.buffer.len() < length {
            self.read_more().await?;
        }
        Ok(())
    }

    /// Reads the bytes that have arrived.
    async fn read_more(&mut self) -> Result<(), Stop> {
        self.buffer.reserve(MAX_READ_AHEAD_BYTES);
        let is_within = !self.buffer.is_empty() || self.remaining > 0;
        let room = (&mut self.buffer).limit(MAX_READ_AHEAD_BYTES);
        self.reader.read(room, is_within).await?;
        self.arrived = Instant::now();
        Ok(())
    }
}

/// Reads from the socket of the peer on one side.
#[derive(Debug)]
struct Reader {
    side: Side,
    half: Arc<OwnedReadHalf>,
    stall_limit: Duration,
}

impl Reader {
    /// Reads the bytes that have arrived, and waits for the first ones: within a message for the stall limit at most.
    async fn read(&self, mut into: impl BufMut, is_within_message: bool) -> Result<usize, Stop> {
        let reading = async {
            loop {
                self.half.readable().await?;
                match self.half.try_read_buf(&mut into) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    read => return read,
                }
            }
        };
        let limit = self.stall_limit;
        let read = if is_within_message {
            let late = |_| self.stop(Fault::Unfinished(limit));
            timeout(limit, reading).await.map_err(late)?
        } else {
            reading.await
        };
        match read.map_err(|error| self.stop(error))? {
            0 if is_within_message => Err(self.stop(Fault::CutOff)),
            0 => Err(Stop::Closed(self.side)),
            read => Ok(read),
        }
    }

    /// Returns the reason for the end of a session with this fault of the peer.
    fn stop(&self, fault: impl Into<Fault>) -> Stop {
        Stop::Failed(self.side, fault.into().to_string())
    }
}

/// Tells when a peer closes its sending side.
pub(crate) struct HangUp(Arc<OwnedReadHalf>);

impl HangUp {
    /// Waits until the peer closes its sending side, even if unread bytes remain.
    pub(crate) async fn wait(&self) {
        // Unread bytes keep the socket readable, so the end of the stream has to be polled for.
        while matches!(self.0.ready(Interest::READABLE).await, Ok(ready) if !ready.is_read_closed())
        {
            sleep(HANG_UP_CHECK_INTERVAL).await;
        }
    }
}

/// The sending half of a TCP connection, which sends messages whole or in pieces.
///
/// # Errors
/// A method that sends fails if the message is too long, or the peer is gone or accepts no data. A part of the message may
/// have been sent.
#[derive(Debug)]
pub(crate) struct Sink {
    side: Side,
    half: OwnedWriteHalf,
    stall_limit: Duration,
}

impl Sink {
    /// Creates the sending half of the peer on `side`, which must accept data within `stall_limit`.
    pub(crate) const fn new(side: Side, half: OwnedWriteHalf, stall_limit: Duration) -> Self {
        Self {
            side,
            half,
            stall_limit,
        }
    }

    /// Sends a message. Completes when the system has accepted all of it.
    pub(crate) async fn put(&mut self, message: Message) -> Result<(), Stop> {
        let header = self.header(message.len())?;
        self.write(header.chain(message)).await
    }

    /// Returns the four bytes that precede a message of `length` bytes.
    pub(crate) fn header(&self, length: usize) -> Result<Bytes, Stop> {
        let most = MAX_MESSAGE_LENGTH;
        let header = frame::header(length);
        let header = header.ok_or_else(|| self.stop(Fault::TooLong { length, most }))?;
        Ok(Bytes::copy_from_slice(&header))
    }

    /// Sends a piece of a message. The first piece must begin with the message's [`header`](Self::header).
    pub(crate) async fn write(&mut self, mut piece: impl Buf) -> Result<(), Stop> {
        let limit = self.stall_limit;
        while piece.has_remaining() {
            let written = timeout(limit, self.half.write_buf(&mut piece)).await;
            match written {
                Ok(Ok(0)) => return Err(self.stop(io::Error::from(io::ErrorKind::WriteZero))),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(self.stop(error)),
                Err(_) => return Err(self.stop(Fault::NotTaking(limit))),
            }
        }
        Ok(())
    }

    fn stop(&self, fault: impl Into<Fault>) -> Stop {
        Stop::Failed(self.side, fault.into().to_string())
    }

    /// Shuts down the sending side. The peer can still send.
    pub(crate) async fn finish(&mut self) {
        // If the peer is gone, it needs no notice.
        let _ = self.half.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Creates a source that reads what the test writes.
    async fn pair() -> (Source, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connecting = TcpStream::connect(listener.local_addr().unwrap());
        let (accepted, connected) = tokio::join!(listener.accept(), connecting);
        let (half, _) = accepted.unwrap().0.into_split();
        let source = Source::new(Side::Client, half, Duration::from_secs(60));
        (source, connected.unwrap())
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_peer_that_acknowledges_nothing_is_lost_after_a_keepalive() {
        let (_source, stream) = pair().await;
        let limit = |keepalive| {
            prepare(&stream, Duration::from_secs(keepalive)).unwrap();
            SockRef::from(&stream).tcp_user_timeout().unwrap().unwrap()
        };
        assert_eq!(limit(120).as_secs(), 125);
        assert_eq!(limit(5).as_secs(), 10);
        assert_eq!(limit(u64::MAX / 2), MAX_IDLE + PROBES * PROBE_INTERVAL);
    }

    /// Returns the messages that come out of `bytes`, written in pieces of `step`, and the end.
    async fn all(bytes: &[u8], step: usize) -> (Vec<Vec<u8>>, Stop) {
        let (mut source, mut peer) = pair().await;
        let buffers = Buffers::default();
        let writing = async {
            peer.set_nodelay(true).unwrap();
            for piece in bytes.chunks(step) {
                if peer.write_all(piece).await.is_err() {
                    return;
                }
                tokio::task::yield_now().await;
            }
            peer.shutdown().await.unwrap();
        };
        let reading = async {
            let mut messages = Vec::new();
            let last = loop {
                if let Err(end) = source.message(3).await {
                    break end;
                }
                // Alternate between the ways to take bytes.
                let mut message = Vec::new();
                let mut fault = None;
                let first = source.remaining().min(5);
                message.extend_from_slice(&source.take(first).await.unwrap());
                let mut filled = BytesMut::new();
                let half = source.remaining() / 2;
                match source.fill(&mut filled, half).await {
                    Ok(()) => message.extend_from_slice(&filled),
                    Err(error) => fault = Some(error),
                }
                while fault.is_none() && source.remaining() > 0 {
                    match source.piece(usize::MAX, &buffers).await {
                        Ok(piece) => message.extend_from_slice(&piece),
                        Err(error) => fault = Some(error),
                    }
                }
                if let Some(fault) = fault {
                    break fault;
                }
                messages.push(message);
            };
            drop(source);
            (messages, last)
        };
        tokio::join!(writing, reading).1
    }

    #[tokio::test]
    async fn messages_come_out_whole_however_they_are_cut() {
        let mut stream = Vec::new();
        let long: Vec<u8> = (0..700_000u32).map(|at| (at % 251) as u8).collect();
        for message in [&b"a"[..], &[0x85; 300], &long] {
            stream.extend(frame::header(message.len()).unwrap());
            stream.extend(message);
            // Neither of these is forwarded.
            stream.extend([0x85, 0, 0, 0]);
            stream.extend([0; 4]);
        }
        for step in [1000, 65_536, stream.len()] {
            let (messages, last) = all(&stream, step).await;
            assert!(messages == [&b"a"[..], &[0x85; 300], &long], "by {step}");
            assert!(matches!(last, Stop::Closed(Side::Client)), "{last}");
        }
        for step in [1, 2, 3, 4, 5, 7, 303, 304, 305] {
            let (messages, last) = all(&stream[..325], step).await;
            assert_eq!(messages, [&b"a"[..], &[0x85; 300]], "by {step}");
            assert!(matches!(last, Stop::Closed(Side::Client)), "{last}");
        }
    }

    #[tokio::test]
    async fn bytes_that_are_passed_over_are_not_taken() {
        let (mut source, mut peer) = pair().await;
        let data: Vec<u8> = (0..200_000u32).map(|at| (at % 251) as u8).collect();
        peer.write_all(&frame::header(data.len()).unwrap())
            .await
            .unwrap();
        let (read, written) = tokio::join!(
            async {
                source.message(10).await.unwrap();
                assert_eq!(source.head()[..10], data[..10]);
                source.skip(150_001).await.unwrap();
                source.take(3).await.unwrap()
            },
            peer.write_all(&data)
        );
        written.unwrap();
        assert_eq!(read, data[150_001..150_004]);
    }

    #[tokio::test]
    async fn what_ends_in_the_middle_is_cut_off() {
        for bytes in [&[0][..], &[0, 0, 0], &[0, 0, 0, 100], &[0, 0, 0, 100, 1]] {
            let (messages, last) = all(bytes, bytes.len()).await;
            assert!(messages.is_empty());
            let cut_off = "client: it closed the connection in the middle of a message";
            assert_eq!(last.to_string(), cut_off, "{bytes:?}");
        }
    }

    #[tokio::test]
    async fn another_protocol_ends_the_connection() {
        for frame in [&b"GET / HTTP/1.1"[..], &[0, 0, 0, 0, 1, 0, 0, 0]] {
            let fault = all(frame, 1).await.1.to_string();
            assert!(fault.ends_with("that is not SMB over TCP"), "{fault}");
        }
    }
}
