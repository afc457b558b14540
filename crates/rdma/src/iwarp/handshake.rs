//! The startup of MPA (RFC 5044, RFC 6581) without I/O, for programs that have a transport of their own.
//!
//! The initiator sends a Request, and the responder answers it with a Reply. Each takes bytes of the peer in pieces of
//! any length. [`Established`] is the outcome, and makes the [`Stream`] that carries RDMA after it.
//!
//! ```
//! use bytes::Bytes;
//! use smbdirect_rdma::{
//!     iwarp::handshake::{HandshakeConfig, Initiator, Responder},
//!     work::{WorkId, WorkRequest},
//! };
//!
//! let config = HandshakeConfig::default();
//! let mut initiator = Initiator::new(&config, &Bytes::from_static(b"hello"));
//! let mut responder = Responder::new(&config);
//!
//! // Instead of a function call, a transport carries these bytes.
//! let request = responder.handle_bytes(&initiator.request())?.expect("it is complete");
//! assert_eq!(request.private_data(), "hello");
//! let (reply, at_responder) = request.accept(&Bytes::new(), None);
//! let at_initiator = initiator.handle_bytes(&reply)?.expect("it is complete");
//!
//! // Now work requests go in and completions come out.
//! let receive = || WorkRequest::Receive { id: WorkId(1), length: 1024, count: 1 };
//! let (client, server) = (at_initiator.into_stream(receive()), at_responder.into_stream(receive()));
//! assert_eq!(client.limits(), server.limits());
//! # Ok::<(), smbdirect_rdma::iwarp::handshake::HandshakeError>(())
//! ```

use std::io;

use bytes::Bytes;
use thiserror::Error;

use super::{
    config::StreamConfig,
    mpa::{self, Fpdu, FrameKind, StartupError, StartupFrame},
    rdmap::Terminate,
    startup::{Agreement, MpaCrc, MpaPreferences, ReplyFault, rejection, split_signature},
    stream::Stream,
};
use crate::work::{ProviderError, ProviderErrorKind, WorkRequest};

/// The settings of this end for the startup.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HandshakeConfig {
    /// Selects the connections whose FPDUs carry a CRC. The default is [`MpaCrc::Auto`].
    pub crc: MpaCrc,
    /// IRD: the most RDMA Reads that the peer may have outstanding, rounded up to a power of two; at most 128. The
    /// default is 32.
    pub ird: u16,
    /// ORD: the most RDMA Reads that this end has outstanding; at most 128, and never more than the peer serves. The
    /// default is 32.
    pub ord: u16,
}

impl Default for HandshakeConfig {
    fn default() -> Self {
        Self {
            crc: MpaCrc::Auto,
            ird: 32,
            ord: 32,
        }
    }
}

impl HandshakeConfig {
    const fn preferences(&self) -> MpaPreferences {
        MpaPreferences {
            crc: self.crc,
            ird: self.ird,
            ord: self.ord,
        }
    }
}

/// The error of a startup.
#[derive(Clone, Debug, Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct HandshakeError {
    /// The reason.
    // It is not the source, because the text of this error is that of the reason.
    pub error: ProviderError,
    /// The bytes to send before the transport is closed. They tell the peer the reason, and are often empty.
    pub last_bytes: Bytes,
}

/// The outcome of a startup.
#[derive(Clone, Debug)]
pub struct Established {
    /// The parameters of the stream, which [`into_stream`](Self::into_stream) uses.
    ///
    /// Towards another implementation than this library, [`max_fpdu`](StreamConfig::max_fpdu) suits TCP over IPv4 on
    /// Ethernet with time stamps: 1448 bytes of data in a segment. An adapter may require that no FPDU is longer than a
    /// segment, so lower it for a transport with shorter segments, such as IPv6, a tunnel or a path with a smaller MTU.
    pub config: StreamConfig,
    /// The private data of the peer's upper layer; empty at a responder, whose [`Request`] has it.
    pub private_data: Bytes,
    /// Bytes that arrived after the startup frame.
    rest: Vec<u8>,
}

/// The end that begins: it sends a Request of revision 2, and reads the Reply.
#[derive(Debug)]
pub struct Initiator {
    preferences: MpaPreferences,
    request: StartupFrame,
    received: Vec<u8>,
}

/// The end that waits for a Request.
#[derive(Debug)]
pub struct Responder {
    preferences: MpaPreferences,
    received: Vec<u8>,
}

/// A Request that waits for its answer.
#[derive(Debug)]
pub struct Request {
    preferences: MpaPreferences,
    frame: StartupFrame,
    private_data: Bytes,
    rest: Vec<u8>,
}

impl Initiator {
    /// Creates the startup of a connection. The peer's upper layer gets `private_data`.
    ///
    /// # Panics
    /// Panics if `private_data` is longer than 500 bytes. Some peers accept only 200.
    pub fn new(config: &HandshakeConfig, private_data: &Bytes) -> Self {
        assert_fits(private_data);
        let preferences = config.preferences();
        Self {
            preferences,
            request: preferences.request(2, private_data),
            received: Vec::new(),
        }
    }

    /// Returns the bytes to send first.
    pub fn request(&self) -> Bytes {
        encode(&self.request)
    }

    /// Takes bytes of the peer. Returns `None` if the Reply is not complete yet.
    ///
    /// # Errors
    /// Returns an error if the peer refuses the connection, if it offers what this end does not support, or if the
    /// bytes are no Reply.
    pub fn handle_bytes(&mut self, bytes: &[u8]) -> Result<Option<Established>, HandshakeError> {
        self.received.extend_from_slice(bytes);
        let reply = match StartupFrame::decode(FrameKind::Reply, &self.received) {
            Ok(reply) => reply,
            Err(StartupError::Incomplete { .. }) => return Ok(None),
            Err(error) => return Err(malformed(error).into()),
        };
        match self.preferences.agree(&self.request, &reply) {
            Ok(agreement) => {
                let rest = self.received.split_off(reply.encoded_length());
                Ok(Some(Established::new(true, agreement, rest)))
            }
            Err(fault) => Err(HandshakeError {
                last_bytes: terminate(&fault, self.request.crc || reply.crc),
                error: fault.to_error(),
            }),
        }
    }
}

impl Responder {
    /// Creates the startup of a connection.
    pub const fn new(config: &HandshakeConfig) -> Self {
        Self {
            preferences: config.preferences(),
            received: Vec::new(),
        }
    }

    /// Takes bytes of the peer. Returns `None` if the Request is not complete yet.
    ///
    /// # Errors
    /// Returns an error if the peer asks for what this end does not support, or if the bytes are no Request.
    pub fn handle_bytes(&mut self, bytes: &[u8]) -> Result<Option<Request>, HandshakeError> {
        self.received.extend_from_slice(bytes);
        let frame = match StartupFrame::decode(FrameKind::Request, &self.received) {
            Ok(frame) => frame,
            Err(StartupError::Incomplete { .. }) => return Ok(None),
            Err(error) => {
                //= MPA-13
                let is_answered = error == StartupError::EnhancedMissing;
                return Err(HandshakeError {
                    error: malformed(error),
                    last_bytes: if is_answered {
                        encode(&rejection(None))
                    } else {
                        Bytes::new()
                    },
                });
            }
        };
        //= MPA-16
        if is_refused(&frame) {
            let what = "the peer asks for MPA markers, or its Request is a refusal";
            return Err(HandshakeError {
                error: ProviderError::new(ProviderErrorKind::Protocol, what),
                last_bytes: encode(&rejection(Some(&frame))),
            });
        }
        let (private_data, _) = split_signature(&frame);
        Ok(Some(Request {
            preferences: self.preferences,
            private_data,
            rest: self.received.split_off(frame.encoded_length()),
            frame,
        }))
    }
}

impl Request {
    /// Returns the private data of the peer's upper layer.
    pub const fn private_data(&self) -> &Bytes {
        &self.private_data
    }

    /// Returns whether the startup itself negotiates the read depths. If it does not (revision 1), the private data of
    /// SMB Direct contains them, and those of the answer must contain them, too.
    pub const fn knows_read_depths(&self) -> bool {
        self.frame.enhanced.is_some()
    }

    /// Accepts the connection, and returns the bytes to send.
    ///
    /// `peer_serves_reads` is the number of RDMA Reads that the peer serves concurrently, if its private data has it.
    ///
    /// # Panics
    /// Panics if `private_data` is longer than 500 bytes. Some peers accept only 200.
    pub fn accept(
        self,
        private_data: &Bytes,
        peer_serves_reads: Option<u32>,
    ) -> (Bytes, Established) {
        assert_fits(private_data);
        let (reply, mut agreement) =
            self.preferences
                .answer(&self.frame, private_data, peer_serves_reads);
        agreement.private_data = Bytes::new();
        (
            encode(&reply),
            Established::new(false, agreement, self.rest),
        )
    }

    /// Refuses the connection, and returns the bytes to send. Close the transport only after the peer has closed it:
    /// otherwise the peer may not read them.
    pub fn reject(self) -> Bytes {
        encode(&rejection(Some(&self.frame)))
    }
}

impl Established {
    fn new(initiator: bool, agreement: Agreement, rest: Vec<u8>) -> Self {
        //= MPA-27
        //= MPA-35
        let (max_segment, one_fpdu_a_write) = if agreement.peer_is_smbdirect {
            (u32::MAX, false)
        } else {
            (ETHERNET_MSS, agreement.crc)
        };
        Self {
            config: StreamConfig {
                initiator,
                crc: agreement.crc,
                max_fpdu: mpa::max_fpdu(max_segment),
                one_fpdu_a_write,
                max_backlog: MAX_BACKLOG,
                max_outbound_reads: agreement.ord,
                max_inbound_reads: agreement.ird,
                ready_to_receive: agreement.ready_to_receive,
            },
            private_data: agreement.private_data,
            rest,
        }
    }

    /// Returns the stream that begins after the startup.
    ///
    /// `receive` is the receive for the first message of the peer, as [`Stream::post`] takes it. A message may have
    /// arrived together with the startup frame, and a message without a receive ends the stream.
    ///
    /// # Panics
    /// Panics if `receive` is a Read, as `post` does, and no Read may be posted.
    pub fn into_stream(self, receive: WorkRequest) -> Stream {
        let mut stream = Stream::new(&self.config);
        stream.post(receive);
        stream.handle_bytes(&self.rest);
        stream
    }
}

impl From<ProviderError> for HandshakeError {
    fn from(error: ProviderError) -> Self {
        Self {
            error,
            last_bytes: Bytes::new(),
        }
    }
}

impl From<HandshakeError> for ProviderError {
    fn from(error: HandshakeError) -> Self {
        error.error
    }
}

impl From<HandshakeError> for io::Error {
    fn from(error: HandshakeError) -> Self {
        error.error.into()
    }
}

/// The data of a TCP segment over IPv4 on Ethernet, in bytes: 1500 without 20 for each header and 12 for the time stamps
/// that most systems send. FPDUs towards another implementation are no longer, because it may require one FPDU a
/// segment.
const ETHERNET_MSS: u32 = 1448;

/// The most bytes that wait for the transport.
const MAX_BACKLOG: usize = 1024 * 1024;

/// Converts an error of decoding a startup frame.
pub(super) fn malformed(error: StartupError) -> ProviderError {
    let kind = match error {
        StartupError::Key => ProviderErrorKind::OtherProtocol,
        _ => ProviderErrorKind::Protocol,
    };
    ProviderError::new(kind, error.to_string())
}

/// Returns whether a Request cannot be granted.
pub(super) const fn is_refused(request: &StartupFrame) -> bool {
    request.markers || request.rejected
}

/// Returns the Terminate that tells the responder why its Reply leads to no connection; empty if there is none.
pub(super) fn terminate(fault: &ReplyFault, crc: bool) -> Bytes {
    let mut fpdu = Vec::new();
    if let Some(code) = fault.terminate_code() {
        Fpdu::encode(&[&Terminate::new(code, None).ulpdu()], crc, &mut fpdu);
    }
    fpdu.into()
}

fn encode(frame: &StartupFrame) -> Bytes {
    let mut bytes = Vec::with_capacity(frame.encoded_length());
    frame.encode(&mut bytes);
    bytes.into()
}

/// Panics if private data, with what this library adds to it, does not fit into a startup frame.
fn assert_fits(private_data: &Bytes) {
    assert!(private_data.len() <= 500, "the private data is too long");
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use super::*;
    use crate::work::{Completion, Inline, WorkId};

    fn request_of(initiator: &Initiator) -> Request {
        let mut responder = Responder::new(&HandshakeConfig::default());
        let request = responder.handle_bytes(&initiator.request());
        request.unwrap().expect("it is complete")
    }

    fn receive() -> WorkRequest {
        WorkRequest::Receive {
            id: WorkId(1),
            length: 100,
            count: 1,
        }
    }

    fn initiator(private_data: &'static str) -> Initiator {
        Initiator::new(&HandshakeConfig::default(), &private_data.into())
    }

    #[test]
    fn frames_may_arrive_byte_by_byte() {
        let mut initiator = initiator("question");
        let mut responder = Responder::new(&HandshakeConfig::default());
        let bytes = initiator.request();
        let (last, first) = bytes.split_last().unwrap();
        for byte in first {
            assert!(responder.handle_bytes(&[*byte]).unwrap().is_none());
        }
        let request = responder.handle_bytes(&[*last]).unwrap().unwrap();
        assert_eq!(request.private_data(), "question");
        assert!(request.knows_read_depths());
        let (reply, at_responder) = request.accept(&"answer".into(), None);
        let (last, first) = reply.split_last().unwrap();
        for byte in first {
            assert!(initiator.handle_bytes(&[*byte]).unwrap().is_none());
        }
        let at_initiator = initiator.handle_bytes(&[*last]).unwrap().unwrap();
        assert_eq!(at_initiator.private_data, "answer");
        assert!(at_initiator.config.initiator && !at_responder.config.initiator);
        assert!(at_initiator.config.crc && at_responder.config.crc);
        assert_eq!(
            at_initiator.into_stream(receive()).limits(),
            at_responder.into_stream(receive()).limits()
        );
    }

    /// The transport may return bytes of the stream together with the end of a startup frame.
    #[test]
    fn bytes_after_a_frame_belong_to_the_stream() {
        let mut initiator = initiator("");
        let (reply, at_responder) = request_of(&initiator).accept(&Bytes::new(), None);
        let mut bytes = reply.to_vec();
        Fpdu::encode(&[b"no RDMAP message"], at_responder.config.crc, &mut bytes);
        let established = initiator.handle_bytes(&bytes).unwrap().unwrap();
        assert!(established.into_stream(receive()).is_broken());
    }

    #[test]
    fn a_message_that_arrives_with_a_frame_finds_its_receive() {
        let mut initiator = initiator("");
        let (reply, _) = request_of(&initiator).accept(&Bytes::new(), None);
        let at_initiator = initiator.handle_bytes(&reply).unwrap().unwrap();
        let mut stream = at_initiator.into_stream(receive());
        stream.post(WorkRequest::Send {
            id: WorkId(2),
            header: Inline::new(),
            payload: "a message".into(),
            invalidate: None,
        });
        let mut bytes = initiator.request().to_vec();
        while stream.prepare() > 0 {
            let mut slices = [IoSlice::new(&[]); 8];
            let count = stream.transmit_slices(&mut slices);
            let before = bytes.len();
            for slice in &slices[..count] {
                bytes.extend_from_slice(slice);
            }
            stream.transmitted(bytes.len() - before);
        }

        let mut responder = Responder::new(&HandshakeConfig::default());
        let request = responder.handle_bytes(&bytes).unwrap().unwrap();
        let (_, at_responder) = request.accept(&Bytes::new(), None);
        let mut stream = at_responder.into_stream(receive());
        let mut completions = std::iter::from_fn(|| stream.poll_completion());
        assert!(completions.any(|completion| matches!(completion, Completion::Received { .. })));
        assert!(!stream.is_broken());
    }

    #[test]
    fn the_text_of_an_error_contains_its_cause_and_the_chain_does_not_repeat_it() {
        use std::error::Error as _;
        let mut responder = Responder::new(&HandshakeConfig::default());
        let error = responder.handle_bytes(b"GET / HTTP/1.1").unwrap_err();
        assert_eq!(error.to_string(), error.error.to_string());
        assert!(error.source().is_none());
        let kind = io::Error::from(error).kind();
        assert_eq!(kind, io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_refusal_is_an_error_with_its_kind() {
        let mut initiator = initiator("");
        let reply = request_of(&initiator).reject();
        let error = initiator.handle_bytes(&reply).unwrap_err();
        assert_eq!(error.error.kind, ProviderErrorKind::Rejected);
        assert!(error.last_bytes.is_empty());
    }

    //= EST-11 test
    #[test]
    fn a_responder_that_asks_too_much_is_told() {
        let mut initiator = initiator("");
        let mut reply = StartupFrame::new(FrameKind::Reply, 2);
        reply.enhanced = Some(mpa::Enhanced {
            ord: 100,
            ..mpa::Enhanced::default()
        });
        let error = initiator.handle_bytes(&encode(&reply)).unwrap_err();
        assert_eq!(error.error.kind, ProviderErrorKind::Protocol);
        let fpdu = Fpdu::decode(&error.last_bytes, false).unwrap().unwrap();
        assert_eq!(
            fpdu.ulpdu,
            Terminate::new(
                ReplyFault::InsufficientIrd { ord: 100, ird: 32 }
                    .terminate_code()
                    .unwrap(),
                None
            )
            .ulpdu()
        );
    }

    //= MPA-16 test
    #[test]
    fn a_request_that_cannot_be_granted_is_answered() {
        let mut frame = StartupFrame::new(FrameKind::Request, 2);
        frame.markers = true;
        let mut responder = Responder::new(&HandshakeConfig::default());
        let error = responder.handle_bytes(&encode(&frame)).unwrap_err();
        let reply = StartupFrame::decode(FrameKind::Reply, &error.last_bytes).unwrap();
        assert!(reply.rejected && !reply.markers);
        let mut responder = Responder::new(&HandshakeConfig::default());
        let error = responder.handle_bytes(b"GET / HTTP/1.1").unwrap_err();
        assert_eq!(error.error.kind, ProviderErrorKind::OtherProtocol);
        assert!(error.last_bytes.is_empty());
    }
}
