//! SMB over TCP: each message behind a zero byte and three bytes of length, big-endian ([MS-SMB2]
//! 2.1), and what else of NetBIOS (RFC 1002, 4.3) comes to such a port.
//!
//! ```text
//!   0x00  length (3)  message      carried
//!   0x00  0                        an empty message: no SMB message is, so it is dropped
//!   0x85  0                        NetBIOS keepalive: a sign of life of this hop, so it is dropped
//!   0x81  ...                      NetBIOS session request: port 139's, ends the connection
//!   else                           not SMB over TCP, ends the connection
//! ```

use std::{io, time::Duration};

use bytes::{Buf, Bytes, BytesMut};
use smbdirect::Message;
use socket2::{SockRef, TcpKeepalive};
use thiserror::Error;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::timeout,
};

use crate::report;

/// The port of SMB over TCP.
pub(super) const PORT: u16 = 445;
/// The longest message that three bytes can tell the length of.
pub(super) const MAX_MESSAGE: u32 = 0x00ff_ffff;

const HEADER: usize = 4;
const MESSAGE: u8 = 0x00;
const SESSION_REQUEST: u8 = 0x81;
const KEEPALIVE: u8 = 0x85;
/// Most bytes of memory to set aside at once: a length alone costs its sender nothing.
const STEP: usize = 128 << 10;
/// Questions that go unanswered before the system takes an idle peer for gone, and the time
/// between them.
const PROBES: u32 = 5;
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Linux refuses a longer silence than this before the first question.
const MAX_IDLE: Duration = Duration::from_secs(32_767);

/// Why no more messages come from a TCP peer, or go to it.
#[derive(Debug, Error)]
pub(super) enum Fault {
    #[error("{}", report::plain(.0))]
    Io(#[from] io::Error),
    #[error("it hung up in the middle of a message")]
    CutOff,
    #[error("it stopped in the middle of a message for {}", report::time(*.0))]
    Unfinished(Duration),
    #[error("it took nothing for {}", report::time(*.0))]
    NotTaking(Duration),
    #[error("a message of {length} bytes, the other side takes at most {most}")]
    TooLong { length: usize, most: u32 },
    #[error("it asks for a NetBIOS session (0x81), which is port 139's; have it use port 445")]
    SessionRequest,
    #[error("a message begins with 0x{0:02x}; that is not SMB over TCP")]
    NotSmb(u8),
}

/// Prepares a connection: nothing is held back to be gathered, and a peer that is gone is noticed
/// in as much time as by SMB Direct's own keepalive.
pub(super) fn prepare(stream: &TcpStream, keepalive_interval: Duration) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(keepalive_interval.clamp(PROBE_INTERVAL, MAX_IDLE));
    #[cfg(any(target_os = "linux", target_os = "macos", target_os = "freebsd"))]
    let keepalive = keepalive.with_interval(PROBE_INTERVAL).with_retries(PROBES);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Messages from a TCP peer.
#[derive(Debug)]
pub(super) struct Source {
    half: OwnedReadHalf,
    /// What was read and not taken.
    buffer: BytesMut,
    stall_limit: Duration,
}

impl Source {
    pub(super) fn new(half: OwnedReadHalf, stall_limit: Duration) -> Self {
        Self {
            half,
            buffer: BytesMut::new(),
            stall_limit,
        }
    }

    /// The next message, or `None` once the peer has hung up behind one. Dropping the future
    /// loses nothing.
    ///
    /// # Errors
    /// Why there will be no other; one of more than `most` bytes is never read.
    pub(super) async fn next(&mut self, most: u32) -> Result<Option<Bytes>, Fault> {
        loop {
            let missing = match take(&mut self.buffer, most)? {
                Taken::Message(message) => return Ok(Some(message)),
                Taken::Missing(missing) => missing,
            };
            self.buffer.reserve(missing.min(STEP));
            let begun = !self.buffer.is_empty();
            let reading = self.half.read_buf(&mut self.buffer);
            let read = if begun {
                let limit = self.stall_limit;
                timeout(limit, reading)
                    .await
                    .map_err(|_| Fault::Unfinished(limit))?
            } else {
                reading.await
            };
            match read? {
                0 if begun => return Err(Fault::CutOff),
                0 => return Ok(None),
                _ => {}
            }
        }
    }
}

/// What a buffer begins with.
#[derive(Debug, PartialEq, Eq)]
enum Taken {
    Message(Bytes),
    /// So many bytes are needed before more can be said; not 0.
    Missing(usize),
}

/// Takes the first whole message out of `buffer`, and what is to be dropped before it.
fn take(buffer: &mut BytesMut, most: u32) -> Result<Taken, Fault> {
    loop {
        let Some(&[kind, length @ ..]) = buffer.first_chunk::<HEADER>() else {
            return Ok(Taken::Missing(HEADER - buffer.len()));
        };
        let [high, middle, low] = length;
        let length = u32::from_be_bytes([0, high, middle, low]);
        match (kind, length) {
            (MESSAGE | KEEPALIVE, 0) => {
                buffer.advance(HEADER);
                continue;
            }
            (MESSAGE, length) if length > most => {
                let length = length as usize;
                return Err(Fault::TooLong { length, most });
            }
            (MESSAGE, _) => {}
            (SESSION_REQUEST, _) => return Err(Fault::SessionRequest),
            (other, _) => return Err(Fault::NotSmb(other)),
        }
        let whole = HEADER + length as usize;
        if buffer.len() < whole {
            return Ok(Taken::Missing(whole - buffer.len()));
        }
        buffer.advance(HEADER);
        return Ok(Taken::Message(buffer.split_to(length as usize).freeze()));
    }
}

/// Messages to a TCP peer.
#[derive(Debug)]
pub(super) struct Sink {
    half: OwnedWriteHalf,
    stall_limit: Duration,
}

impl Sink {
    pub(super) const fn new(half: OwnedWriteHalf, stall_limit: Duration) -> Self {
        Self { half, stall_limit }
    }

    /// Sends a message; done when the system has all of it.
    ///
    /// # Errors
    /// It is too long, or the peer is gone, or takes nothing. Part of it may be sent.
    pub(super) async fn put(&mut self, message: Message) -> Result<(), Fault> {
        let header = header(message.len())?;
        let mut frame = Buf::chain(&header[..], message);
        let limit = self.stall_limit;
        while frame.has_remaining() {
            let written = timeout(limit, self.half.write_buf(&mut frame)).await;
            if written.map_err(|_| Fault::NotTaking(limit))?? == 0 {
                return Err(io::Error::from(io::ErrorKind::WriteZero).into());
            }
        }
        Ok(())
    }

    /// Says that nothing else comes; what the peer still sends can be read.
    pub(super) async fn finish(&mut self) {
        // A peer that is gone already need not be told.
        let _ = self.half.shutdown().await;
    }
}

fn header(length: usize) -> Result<[u8; HEADER], Fault> {
    match u32::try_from(length) {
        // The highest byte is zero then, and means that a message follows.
        Ok(short) if short <= MAX_MESSAGE => Ok(short.to_be_bytes()),
        _ => Err(Fault::TooLong {
            length,
            most: MAX_MESSAGE,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything that comes out of `bytes` fed in pieces of `step`.
    fn all(bytes: &[u8], step: usize, most: u32) -> (Vec<Bytes>, Result<Taken, Fault>) {
        let (mut buffer, mut messages) = (BytesMut::new(), Vec::new());
        let mut last = Ok(Taken::Missing(HEADER));
        for piece in bytes.chunks(step) {
            buffer.extend_from_slice(piece);
            loop {
                match take(&mut buffer, most) {
                    Ok(Taken::Message(message)) => messages.push(message),
                    other => {
                        last = other;
                        break;
                    }
                }
            }
            if last.is_err() {
                break;
            }
        }
        (messages, last)
    }

    #[test]
    fn messages_come_out_whole_however_they_are_cut() {
        let mut stream = Vec::new();
        let long = vec![7; 70_000];
        for message in [&b"a"[..], &[0x85; 300], &long] {
            stream.extend(header(message.len()).unwrap());
            stream.extend(message);
            // Neither of these is carried.
            stream.extend([0x85, 0, 0, 0]);
            stream.extend([0; 4]);
        }
        for step in [1, 2, 3, 4, 5, 7, 303, 304, 305, 4096, stream.len()] {
            let (messages, last) = all(&stream, step, 70_000);
            assert_eq!(messages, [&b"a"[..], &[0x85; 300], &long], "by {step}");
            assert_eq!(last.unwrap(), Taken::Missing(HEADER));
        }
    }

    #[test]
    fn what_is_missing_is_told() {
        let missing = |bytes: &[u8]| all(bytes, bytes.len(), 100).1.unwrap();
        assert_eq!(missing(&[0]), Taken::Missing(3));
        assert_eq!(missing(&[0, 0, 0]), Taken::Missing(1));
        assert_eq!(missing(&[0, 0, 0, 100]), Taken::Missing(100));
        assert_eq!(missing(&[0, 0, 0, 100, 1]), Taken::Missing(99));
    }

    #[test]
    fn a_length_is_believed_up_to_the_limit() {
        let error = |bytes: &[u8], most| all(bytes, 4, most).1.unwrap_err().to_string();
        for (frame, most) in [
            (&[0, 0, 0, 101][..], 100),
            (&[0, 0x01, 0, 0], 0xffff),
            (&[0, 0xff, 0xff, 0xff], 0xff_fffe),
        ] {
            assert!(error(frame, most).starts_with("a message of "));
        }
        assert_eq!(
            error(&[0, 0, 0, 101], 100),
            "a message of 101 bytes, the other side takes at most 100"
        );
        let fits = all(&[0, 0xff, 0xff, 0xff], 4, MAX_MESSAGE).1.unwrap();
        assert_eq!(fits, Taken::Missing(MAX_MESSAGE as usize));
        assert_eq!(header(0xff_ffff).unwrap(), [0, 0xff, 0xff, 0xff]);
        assert!(header(0x100_0000).is_err());
        assert!(header(usize::MAX).is_err());
    }

    #[test]
    fn strangers_are_named() {
        for (frame, says) in [
            (&b"GET / HTTP/1.1"[..], "begins with 0x47"),
            (&[0x81, 0, 0, 68], "NetBIOS session"),
            (&[0x85, 0, 0, 1], "begins with 0x85"),
            (&[0xff, b'S', b'M', b'B'], "begins with 0xff"),
            (&[0, 0, 0, 0, 1, 0, 0, 0], "begins with 0x01"),
        ] {
            let error = all(frame, 1, 100).1.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
