//! This end of an iWARP connection below RDMA: MPA, DDP and RDMAP by hand, over a blocking TCP
//! socket.

use std::{
    io::{ErrorKind, Read, Write},
    thread::sleep,
    time::{Duration, Instant},
};

use bytes::Bytes;
use smbdirect::{
    rdma::iwarp::{
        ddp::{Header, Untagged},
        mpa::{Fpdu, FrameKind, StartupFrame},
        rdmap::{Opcode, ReadRequest, Terminate},
    },
    wire::{NegotiateRequest, NegotiateResponse, Status},
};

use crate::{
    outcome::{Verdict, fail, require},
    peer::Tcp,
};

/// Pause between the MPA Reply and the first FPDU. Linux siw overlooks an FPDU that arrives within
/// microseconds of its Reply until more data arrives.
const SETTLE_TIME: Duration = Duration::from_millis(30);

/// An iWARP connection by hand.
pub(crate) struct Raw {
    tcp: Tcp,
    received: Vec<u8>,
    prompt: Duration,
    has_crc: bool,
    next_send: u32,
    next_read: u32,
    is_over: bool,
}

impl Raw {
    pub(crate) fn new(tcp: Tcp, prompt: Duration) -> Verdict<Self> {
        let set = tcp
            .stream
            .set_write_timeout(Some(prompt))
            .and_then(|()| tcp.stream.set_nodelay(true));
        match set {
            Ok(()) => Ok(Self {
                tcp,
                received: Vec::new(),
                prompt,
                has_crc: false,
                next_send: 1,
                next_read: 1,
                is_over: false,
            }),
            Err(error) => fail("a TCP connection", error.to_string()),
        }
    }

    /// Sends these bytes. On a connection that has ended, nothing happens.
    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        if self.is_over {
            return;
        }
        self.observe(true, bytes);
        // If the peer has closed the connection, the next read reports it.
        self.is_over |= self.tcp.stream.write_all(bytes).is_err();
    }

    fn observe(&self, sent: bool, bytes: &[u8]) {
        let stream = &self.tcp.stream;
        if let (Some(watch), Ok(local), Ok(remote)) =
            (&self.tcp.watch, stream.local_addr(), stream.peer_addr())
        {
            watch(sent, local, remote, bytes);
        }
    }

    /// Reads more bytes. Returns `None` at the end of the stream, and false after `limit`.
    fn read(&mut self, limit: Duration) -> Option<bool> {
        let mut bytes = [0; 16_384];
        let limit = limit.max(Duration::from_millis(1));
        self.tcp.stream.set_read_timeout(Some(limit)).ok()?;
        match self.tcp.stream.read(&mut bytes) {
            Ok(0) => None,
            Ok(count) => {
                self.observe(false, &bytes[..count]);
                self.received.extend_from_slice(&bytes[..count]);
                Some(true)
            }
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {
                Some(false)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Some(true),
            // A reset is an end, too.
            Err(_) => None,
        }
    }

    /// Sends an MPA Request and takes the Reply.
    pub(crate) fn greet(&mut self, request: &StartupFrame) -> Verdict<StartupFrame> {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        self.send_bytes(&bytes);
        let until = Instant::now() + self.prompt;
        loop {
            if let Ok(reply) = StartupFrame::decode(FrameKind::Reply, &self.received) {
                self.received.drain(..reply.encoded_length());
                require(!reply.rejected, "an MPA Reply that accepts", || {
                    "an MPA Reply with R=1".into()
                })?;
                self.has_crc = reply.crc || request.crc;
                sleep(SETTLE_TIME);
                return Ok(reply);
            }
            let seen = match self.read(until.saturating_duration_since(Instant::now())) {
                Some(true) => continue,
                Some(false) => "nothing",
                None => "the connection ended",
            };
            return fail("an MPA Reply", seen);
        }
    }

    /// Makes an RDMA connection of MPA revision 1.
    pub(crate) fn start(&mut self) -> Verdict {
        self.greet(&StartupFrame::new(FrameKind::Request, 1))
            .map(drop)
    }

    /// Negotiates SMB Direct.
    pub(crate) fn negotiate(&mut self, request: &NegotiateRequest) -> Verdict<NegotiateResponse> {
        let fpdu = self.negotiate_request(request);
        self.send_bytes(&fpdu);
        let expected = "a Negotiate Response that accepts";
        let Some(bytes) = self.hear_send()? else {
            return fail(expected, "the connection ended");
        };
        match NegotiateResponse::decode(&bytes) {
            Ok(response) if response.status == Status::SUCCESS => Ok(response),
            Ok(response) => fail(expected, format!("{response:?}")),
            Err(error) => fail(expected, error.to_string()),
        }
    }

    /// Returns the FPDU of a Negotiate Request.
    pub(crate) fn negotiate_request(&mut self, request: &NegotiateRequest) -> Vec<u8> {
        let mut message = Vec::new();
        request.encode(&mut message);
        self.send(Opcode::Send, 0, &message)
    }

    /// Returns the FPDU of the next Send.
    pub(crate) fn send(&mut self, opcode: Opcode, invalidate: u32, message: &[u8]) -> Vec<u8> {
        let header = self.next_header(opcode, invalidate);
        self.fpdu(&[&header.encode(), message])
    }

    /// Returns the header of the next Send, for a case that changes it.
    pub(crate) fn next_header(&mut self, opcode: Opcode, invalidate: u32) -> Untagged {
        let header = Untagged {
            last: true,
            rdmap_control: opcode.control(),
            rsvd_ulp: invalidate,
            queue_number: 0,
            message_sequence_number: self.next_send,
            message_offset: 0,
        };
        self.next_send += 1;
        header
    }

    /// Returns the FPDU of the next RDMA Read Request.
    pub(crate) fn read_request(&mut self, stag: u32, offset: u64, size: u32) -> Vec<u8> {
        let header = Untagged {
            last: true,
            rdmap_control: Opcode::RdmaReadRequest.control(),
            rsvd_ulp: 0,
            queue_number: 1,
            message_sequence_number: self.next_read,
            message_offset: 0,
        };
        self.next_read += 1;
        let request = ReadRequest {
            sink_stag: 1,
            sink_tagged_offset: 0,
            read_message_size: size,
            source_stag: stag,
            source_tagged_offset: offset,
        };
        self.fpdu(&[&header.encode(), &request.encode()])
    }

    /// Returns an FPDU with these bytes.
    pub(crate) fn fpdu(&self, parts: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        Fpdu::encode(parts, self.has_crc, &mut bytes);
        bytes
    }

    /// Returns whether both ends compute CRCs.
    pub(crate) const fn has_crc(&self) -> bool {
        self.has_crc
    }

    /// Returns the next message that the peer sent, or `None` at the end of the connection.
    fn hear_send(&mut self) -> Verdict<Option<Bytes>> {
        let until = Instant::now() + self.prompt;
        loop {
            let Ok(decoded) = Fpdu::decode(&self.received, self.has_crc) else {
                return fail("FPDUs with a correct CRC", "a wrong CRC");
            };
            if let Some(fpdu) = decoded {
                let (header, payload) = match Header::decode(fpdu.ulpdu) {
                    Ok(parts) => parts,
                    Err(error) => return fail("a DDP segment", error.to_string()),
                };
                let is_send = Opcode::of(&header).is_ok_and(|opcode| opcode.queue_number() == 0);
                let untagged = matches!(header, Header::Untagged(_));
                let (payload, length) = (Bytes::copy_from_slice(payload), fpdu.length);
                self.received.drain(..length);
                if untagged && is_send {
                    return Ok(Some(payload));
                }
                continue;
            }
            match self.read(until.saturating_duration_since(Instant::now())) {
                Some(true) => {}
                Some(false) => return fail("a message", "nothing"),
                None => return Ok(None),
            }
        }
    }

    /// Waits for the end of the connection, whatever the peer sends before it.
    pub(crate) fn expect_end(&mut self) -> Verdict {
        self.hear_end().map(drop)
    }

    /// Waits for the end of the connection, and returns the Terminate that the peer sent before it.
    pub(crate) fn hear_end(&mut self) -> Verdict<Option<Terminate>> {
        let until = Instant::now() + self.prompt;
        let mut terminate = None;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let read = self.read(left);
            terminate = self.take_terminate().or(terminate);
            match read {
                None => return Ok(terminate),
                Some(true) if !left.is_zero() => {}
                _ => {
                    return fail(
                        "the connection ends",
                        format!("it was open after {:?}", self.prompt),
                    );
                }
            }
        }
    }

    /// Takes the FPDUs that have arrived, and returns the Terminate among them.
    fn take_terminate(&mut self) -> Option<Terminate> {
        let mut found = None;
        loop {
            match Fpdu::decode(&self.received, self.has_crc) {
                Ok(None) => return found,
                Ok(Some(Fpdu { ulpdu, length })) => {
                    if let Ok((header, payload)) = Header::decode(ulpdu)
                        && matches!(Opcode::of(&header), Ok(Opcode::Terminate))
                    {
                        found = Some(Terminate::decode(payload));
                    }
                    self.received.drain(..length);
                }
                // What cannot be read is no Terminate.
                Err(_) => self.received.clear(),
            }
        }
    }

    /// Waits for an MPA Reply that refuses, or for the end of the connection.
    pub(crate) fn expect_refusal(&mut self) -> Verdict {
        let until = Instant::now() + self.prompt;
        while self.read(until.saturating_duration_since(Instant::now())) == Some(true) {
            if let Ok(reply) = StartupFrame::decode(FrameKind::Reply, &self.received) {
                let seen = || "an MPA Reply that accepts".into();
                return require(reply.rejected, "a refusal", seen);
            }
        }
        self.expect_end()
    }
}
