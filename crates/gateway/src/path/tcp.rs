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
    #[error("it hung up in the middle of a message")]
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

impl Fault {
    /// Returns the reason for the end of a session with this fault of the peer on `side`.
    pub(crate) fn stop(&self, side: Side) -> Stop {
        Stop::Failed(side, self.to_string())
    }
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
#[derive(Debug)]
pub(crate) struct Source {
    half: Arc<OwnedReadHalf>,
    /// Bytes that were read from the socket and not yet taken.
    buffer: BytesMut,
    /// When the last of them were read. One reading of the clock serves all messages that arrive together.
    arrived: Instant,
    /// Number of bytes of the current message that were not yet taken, including those in `buffer`.
    remaining: usize,
    stall_limit: Duration,
}

impl Source {
    /// Creates the receiving side. A message that has begun must arrive within `stall_limit`.
    pub(crate) fn new(half: OwnedReadHalf, stall_limit: Duration) -> Self {
        Self {
            half: Arc::new(half),
            buffer: BytesMut::new(),
            arrived: Instant::now(),
            remaining: 0,
            stall_limit,
        }
    }

    /// Waits until the first `head` bytes of the next message are in the buffer, or all of a shorter
    /// message, and returns the length of the message. Returns `None` if the peer has closed the
    /// connection between messages. Cancel-safe: dropping the future loses no bytes.
    pub(crate) async fn message(&mut self, head: usize) -> Result<Option<usize>, Fault> {
        debug_assert_eq!(self.remaining, 0, "the message before was taken whole");
        let length = loop {
            match next_length(&mut self.buffer)? {
                Some(length) => break length,
                None if self.read_more().await? => {}
                None => return Ok(None),
            }
        };
        self.remaining = length;
        self.buffered(head.min(length)).await?;
        Ok(Some(length))
    }

    /// Returns the first `head` bytes of the next message, or all of a shorter one, without taking them. `None` if the
    /// peer has closed the connection.
    pub(crate) async fn peek(&mut self, head: usize) -> Result<Option<Bytes>, Fault> {
        loop {
            if let Some(header) = self.buffer.first_chunk::<HEADER_LENGTH>() {
                let length = frame::message_length(*header)? as usize;
                if length == 0 {
                    self.buffer.advance(HEADER_LENGTH);
                    continue;
                }
                let end = HEADER_LENGTH + head.min(length);
                if let Some(head) = self.buffer.get(HEADER_LENGTH..end) {
                    return Ok(Some(Bytes::copy_from_slice(head)));
                }
            }
            if !self.read_more().await? {
                return Ok(None);
            }
        }
    }

    /// Takes the header of the PROXY protocol, which precedes the first message. `None` if the peer has closed the
    /// connection before, as checks of a proxy do.
    pub(crate) async fn take_proxy_header(&mut self) -> Result<Option<Bytes>, Fault> {
        loop {
            if let Some(length) = proxy_header::length(&self.buffer)? {
                self.buffered(length).await?;
                return Ok(Some(self.buffer.split_to(length).freeze()));
            }
            if !self.read_more().await? {
                return Ok(None);
            }
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
    pub(crate) async fn take(&mut self, length: usize) -> Result<Bytes, Fault> {
        self.buffered(length).await?;
        self.remaining -= length;
        Ok(self.buffer.split_to(length).freeze())
    }

    /// Takes at most `most` bytes of the message: the bytes in the buffer, or, if it is empty, a chunk
    /// read from the socket.
    pub(crate) async fn piece(&mut self, most: usize, buffers: &Buffers) -> Result<Bytes, Fault> {
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
    pub(crate) async fn fill(&mut self, into: &mut BytesMut, length: usize) -> Result<(), Fault> {
        let there = self.buffer.len().min(length);
        into.extend_from_slice(&self.buffer.split_to(there));
        self.remaining -= length;
        let mut missing = length - there;
        while missing > 0 {
            let limit = self.stall_limit;
            let mut room = (&mut *into).limit(missing);
            let reading = timeout(limit, read(&self.half, &mut room)).await;
            match reading.map_err(|_| Fault::Unfinished(limit))?? {
                0 => return Err(Fault::CutOff),
                read => missing -= read,
            }
        }
        Ok(())
    }

    /// Discards the next `length` bytes of the message.
    pub(crate) async fn skip(&mut self, length: usize) -> Result<(), Fault> {
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
        while matches!(self.read_more().await, Ok(true)) {
            self.buffer.clear();
        }
    }

    /// Returns what tells when the peer closes its sending side, while messages are received.
    pub(crate) fn hang_up(&self) -> HangUp {
        HangUp(self.half.clone())
    }

    /// Reads until the buffer holds at least `length` bytes.
    async fn buffered(&mut self, length: usize) -> Result<(), Fault> {
        while self.buffer.len() < length {
            if !self.read_more().await? {
                return Err(Fault::CutOff);
            }
        }
        Ok(())
    }

    /// Reads the bytes that have arrived. Returns false if the peer has closed the connection between
    /// messages.
    async fn read_more(&mut self) -> Result<bool, Fault> {
        self.buffer.reserve(MAX_READ_AHEAD_BYTES);
        let begun = !self.buffer.is_empty() || self.remaining > 0;
        let mut room = (&mut self.buffer).limit(MAX_READ_AHEAD_BYTES);
        let reading = read(&self.half, &mut room);
        let read = if begun {
            let limit = self.stall_limit;
            timeout(limit, reading)
                .await
                .map_err(|_| Fault::Unfinished(limit))?
        } else {
            reading.await
        };
        match read? {
            0 if begun => Err(Fault::CutOff),
            0 => Ok(false),
            _ => {
                self.arrived = Instant::now();
                Ok(true)
            }
        }
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

/// Reads the bytes that have arrived, and waits for the first ones. Returns their number; 0 at the end of the stream.
async fn read(half: &OwnedReadHalf, into: &mut impl BufMut) -> io::Result<usize> {
    loop {
        half.readable().await?;
        match half.try_read_buf(into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            read => return read,
        }
    }
}

/// Removes the header of the next message from the front of `buffer`, and the frames before it that are
/// dropped. Returns the length of the message, or `None` if the header is incomplete.
fn next_length(buffer: &mut BytesMut) -> Result<Option<usize>, Fault> {
    while let Some(header) = buffer.first_chunk::<HEADER_LENGTH>() {
        let length = frame::message_length(*header)?;
        buffer.advance(HEADER_LENGTH);
        if length > 0 {
            return Ok(Some(length as usize));
        }
    }
    Ok(None)
}

/// The sending half of a TCP connection, which sends messages whole or in pieces.
#[derive(Debug)]
pub(crate) struct Sink {
    half: OwnedWriteHalf,
    stall_limit: Duration,
}

impl Sink {
    /// Creates the sending side. The peer must accept data within `stall_limit`.
    pub(crate) const fn new(half: OwnedWriteHalf, stall_limit: Duration) -> Self {
        Self { half, stall_limit }
    }

    /// Sends a message. Completes when the system has accepted all of it.
    ///
    /// # Errors
    /// The message is too long, or the peer is gone or accepts no data. A part of the message may have
    /// been sent.
    pub(crate) async fn put(&mut self, message: Message) -> Result<(), Fault> {
        let header = header(message.len())?;
        self.write(Buf::chain(&header[..], message)).await
    }

    /// Sends a piece of a message. The first piece must begin with the message's [`header`].
    ///
    /// # Errors
    /// The peer is gone or accepts no data.
    pub(crate) async fn write(&mut self, mut piece: impl Buf) -> Result<(), Fault> {
        let limit = self.stall_limit;
        while piece.has_remaining() {
            let written = timeout(limit, self.half.write_buf(&mut piece)).await;
            if written.map_err(|_| Fault::NotTaking(limit))?? == 0 {
                return Err(io::Error::from(io::ErrorKind::WriteZero).into());
            }
        }
        Ok(())
    }

    /// Shuts down the sending side. The peer can still send.
    pub(crate) async fn finish(&mut self) {
        // If the peer is gone, it needs no notice.
        let _ = self.half.shutdown().await;
    }
}

/// Returns the four bytes that precede a message of `length` bytes.
///
/// # Errors
/// The message is longer than [`MAX_MESSAGE_LENGTH`].
pub(crate) fn header(length: usize) -> Result<[u8; HEADER_LENGTH], Fault> {
    frame::header(length).ok_or(Fault::TooLong {
        length,
        most: MAX_MESSAGE_LENGTH,
    })
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
        let source = Source::new(half, Duration::from_secs(60));
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
    async fn all(bytes: &[u8], step: usize) -> (Vec<Vec<u8>>, Result<(), Fault>) {
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
                match source.message(3).await {
                    Ok(Some(length)) => assert_eq!(source.remaining(), length),
                    Ok(None) => break Ok(()),
                    Err(fault) => break Err(fault),
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
                    break Err(fault);
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
            stream.extend(header(message.len()).unwrap());
            stream.extend(message);
            // Neither of these is forwarded.
            stream.extend([0x85, 0, 0, 0]);
            stream.extend([0; 4]);
        }
        for step in [1000, 65_536, stream.len()] {
            let (messages, last) = all(&stream, step).await;
            assert!(messages == [&b"a"[..], &[0x85; 300], &long], "by {step}");
            last.unwrap();
        }
        for step in [1, 2, 3, 4, 5, 7, 303, 304, 305] {
            let (messages, last) = all(&stream[..325], step).await;
            assert_eq!(messages, [&b"a"[..], &[0x85; 300]], "by {step}");
            last.unwrap();
        }
    }

    #[tokio::test]
    async fn bytes_that_are_passed_over_are_not_taken() {
        let (mut source, mut peer) = pair().await;
        let data: Vec<u8> = (0..200_000u32).map(|at| (at % 251) as u8).collect();
        peer.write_all(&header(data.len()).unwrap()).await.unwrap();
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
            assert!(matches!(last, Err(Fault::CutOff)), "{bytes:?}: {last:?}");
        }
    }

    #[tokio::test]
    async fn another_protocol_ends_the_connection() {
        for frame in [&b"GET / HTTP/1.1"[..], &[0, 0, 0, 0, 1, 0, 0, 0]] {
            let error = all(frame, 1).await.1.unwrap_err();
            assert!(matches!(error, Fault::Frame(_)), "{error}");
        }
    }
}
