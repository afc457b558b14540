//! The script's end of a connection, which has no engine: it sends any message it is told to send,
//! valid or not, and checks every received message against the specification.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::Bytes;
use smbdirect::{
    Settings,
    wire::{DataTransfer, Flags, NegotiateRequest, NegotiateResponse, Status},
};

use crate::backend::{self, Initiator, PROMPT_TIMEOUT, Peer, SILENCE_TIMEOUT, Server};

/// The next action of the other end.
#[derive(Debug)]
pub(crate) enum Next {
    /// The other end sent a message.
    Message(Bytes),
    /// The other end ended the RDMA connection, and all its earlier messages have been taken.
    End,
    /// The other end did nothing within the limit.
    Silence,
}

/// A received Data Transfer that passed all checks.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) header: DataTransfer,
    pub(crate) payload: Bytes,
}

pub(crate) struct Script {
    peer: Peer,
    connected: Instant,
    /// Largest message that may be sent, in bytes.
    pub(crate) max_send_size: u32,
    /// Largest message that may be received, in bytes.
    max_receive_size: u32,
    /// CreditsRequested of each Data Transfer.
    credits_requested: u16,
    /// Number of Data Transfers that may be sent.
    pub(crate) send_credits: u32,
    /// Number of Data Transfers that may be received.
    pub(crate) granted: u32,
    /// Number of credits that the other end shall hold, for messages without an explicit grant.
    pub(crate) target: u32,
    arrived: VecDeque<Transfer>,
    /// Bytes that are missing from the current message.
    remaining: u32,
    /// A keepalive is unanswered; its answer may be an empty message without a grant.
    asked: bool,
    /// Number of empty messages received.
    pub(crate) empty_messages: usize,
}

/// Returns the default proposal of the suite's client.
pub(crate) fn proposal() -> NegotiateRequest {
    NegotiateRequest {
        min_version: 0x0100,
        max_version: 0x0100,
        credits_requested: 255,
        preferred_send_size: 1364,
        max_receive_size: 8192,
        max_fragmented_size: 131_072,
    }
}

/// Returns the default answer of the mirror's acceptor.
pub(crate) fn acceptance() -> NegotiateResponse {
    NegotiateResponse {
        min_version: 0x0100,
        max_version: 0x0100,
        negotiated_version: 0x0100,
        credits_requested: 255,
        credits_granted: 255,
        status: Status::SUCCESS,
        max_read_write_size: 1 << 20,
        preferred_send_size: 1364,
        max_receive_size: 1364,
        max_fragmented_size: 131_072,
    }
}

pub(crate) fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&mut bytes);
    bytes
}

/// Returns bytes that differ from place to place.
pub(crate) fn content(length: usize) -> Vec<u8> {
    let byte = |at: usize| (at.wrapping_mul(31) ^ (at >> 8)) as u8;
    (0..length).map(byte).collect()
}

/// Encodes a Data Transfer, legal or not; `body` is everything after the 20 bytes of the header.
fn raw(header: &DataTransfer, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(DataTransfer::HEADER_LENGTH + body.len());
    bytes.extend(header.credits_requested.to_le_bytes());
    bytes.extend(header.credits_granted.to_le_bytes());
    bytes.extend(header.flags.bits().to_le_bytes());
    bytes.extend([0, 0]);
    bytes.extend(header.remaining_data_length.to_le_bytes());
    bytes.extend(header.data_offset.to_le_bytes());
    bytes.extend(header.data_length.to_le_bytes());
    bytes.extend(body);
    bytes
}

impl Script {
    /// Creates a script before the first message.
    fn new(peer: Peer) -> Self {
        Self {
            connected: peer.connected(),
            peer,
            max_send_size: 0,
            max_receive_size: 0,
            credits_requested: 0,
            send_credits: 0,
            granted: 0,
            target: 0,
            arrived: VecDeque::new(),
            remaining: 0,
            asked: false,
            empty_messages: 0,
        }
    }

    // Negotiating as the initiator

    pub(crate) fn connect(server: &Server) -> Self {
        Self::new(server.connect())
    }

    /// Connects and negotiates.
    pub(crate) fn negotiate(server: &Server, request: &NegotiateRequest) -> Self {
        let mut script = Self::connect(server);
        script.say(&encoded(|out| request.encode(out)));
        script.expect_response(request);
        script
    }

    /// Takes a Negotiate Response that accepts, and checks each of its fields.
    pub(crate) fn expect_response(&mut self, request: &NegotiateRequest) -> NegotiateResponse {
        let bytes = self.expect_message();
        assert_eq!(bytes.len(), NegotiateResponse::LENGTH);
        assert_eq!(bytes[6..8], [0, 0], "Reserved");
        let response = NegotiateResponse::decode(&bytes).unwrap();
        let versions = (
            response.min_version,
            response.max_version,
            response.negotiated_version,
        );
        assert_eq!(versions, (0x0100, 0x0100, 0x0100));
        assert_eq!(response.status, Status::SUCCESS);
        assert!((1..=request.credits_requested).contains(&response.credits_granted));
        assert!(response.credits_requested > 0);
        assert!(response.max_read_write_size >= 1 << 20);
        assert!((128..=request.max_receive_size).contains(&response.preferred_send_size));
        let most = request.preferred_send_size.max(128);
        assert!((128..=most).contains(&response.max_receive_size));
        assert!(response.max_fragmented_size >= 131_072);
        self.max_send_size = response.max_receive_size;
        self.max_receive_size = request.max_receive_size.min(response.preferred_send_size);
        self.credits_requested = request.credits_requested;
        self.send_credits = response.credits_granted.into();
        self.target = response.credits_requested.into();
        response
    }

    // Negotiating as the acceptor

    pub(crate) fn accept(initiator: &mut Initiator) -> Self {
        Self::new(initiator.accept())
    }

    /// Takes a Negotiate Request, and checks each of its fields against the initiator's settings.
    pub(crate) fn expect_request(&mut self, settings: &Settings) -> NegotiateRequest {
        let bytes = self.expect_message();
        assert_eq!(bytes.len(), NegotiateRequest::LENGTH);
        assert_eq!(bytes[4..6], [0, 0], "Reserved");
        let request = NegotiateRequest::decode(&bytes).unwrap();
        let expected = NegotiateRequest {
            min_version: 0x0100,
            max_version: 0x0100,
            credits_requested: settings.send_credit_target,
            preferred_send_size: settings.max_send_size,
            max_receive_size: settings.max_receive_size,
            max_fragmented_size: settings.max_fragmented_receive_size,
        };
        assert_eq!(request, expected);
        request
    }

    /// Answers with `response`, whose bytes on the wire are `bytes`.
    pub(crate) fn respond_with(
        &mut self,
        request: &NegotiateRequest,
        response: &NegotiateResponse,
        bytes: &[u8],
    ) {
        self.max_send_size = request
            .max_receive_size
            .min(response.preferred_send_size)
            .max(128);
        self.max_receive_size = response.max_receive_size;
        self.credits_requested = response.credits_requested;
        self.granted = response.credits_granted.into();
        self.target = u32::from(request.credits_requested).min(self.granted);
        self.peer
            .post_receives(response.credits_granted, response.max_receive_size);
        self.say(bytes);
    }

    /// Takes a request and answers it with `response`.
    pub(crate) fn respond(&mut self, settings: &Settings, response: &NegotiateResponse) {
        let request = self.expect_request(settings);
        let bytes = encoded(|out| response.encode(out));
        self.respond_with(&request, response, &bytes);
    }

    // Sending

    /// Sends these bytes, valid or not.
    pub(crate) fn say(&mut self, message: &[u8]) {
        self.peer.send(message);
    }

    /// Returns an empty Data Transfer with this grant.
    pub(crate) fn empty(&self, credits_granted: u16) -> DataTransfer {
        DataTransfer::empty(self.credits_requested, credits_granted, Flags::empty())
    }

    /// Returns the header of a segment, which grants as many credits as the other end lacks.
    pub(crate) fn segment(&self, data_length: usize, remaining: usize) -> DataTransfer {
        DataTransfer {
            remaining_data_length: remaining as u32,
            data_offset: 24,
            data_length: data_length as u32,
            ..self.empty(self.lacking())
        }
    }

    /// Sends a Data Transfer whose header is followed by `body`: padding, then payload.
    pub(crate) fn transfer(&mut self, header: &DataTransfer, body: &[u8]) {
        self.transfer_bytes(header.credits_granted, raw(header, body));
    }

    /// Sends a Data Transfer whose bytes `change` has altered.
    pub(crate) fn transfer_altered(
        &mut self,
        header: &DataTransfer,
        payload: &[u8],
        change: impl FnOnce(&mut Vec<u8>),
    ) {
        let mut bytes = raw(header, &padded(payload));
        change(&mut bytes);
        self.transfer_bytes(header.credits_granted, bytes);
    }

    fn transfer_bytes(&mut self, granted: u16, bytes: Vec<u8>) {
        self.await_credit();
        self.send_credits -= 1;
        self.peer.post_receives(granted, self.max_receive_size);
        self.granted += u32::from(granted);
        self.say(&bytes);
    }

    /// Waits until a message may be sent, and drops received messages that only grant credits.
    fn await_credit(&mut self) {
        while self.send_credits == 0 {
            assert!(self.take(PROMPT_TIMEOUT), "no credits come");
            self.arrived.pop_back_if(|got| got.header.data_length == 0);
        }
    }

    /// Sends one segment.
    pub(crate) fn send_segment(&mut self, payload: &[u8], remaining: usize) {
        // The wait may receive credits, which changes the grant of the segment.
        self.await_credit();
        let header = self.segment(payload.len(), remaining);
        self.transfer(&header, &padded(payload));
    }

    /// Sends a message in segments of `size` bytes.
    pub(crate) fn send(&mut self, message: &[u8], size: usize) {
        let mut remaining = message.len();
        for payload in message.chunks(size) {
            remaining -= payload.len();
            self.send_segment(payload, remaining);
        }
    }

    /// Sends an empty message without a credit for it.
    pub(crate) fn send_without_credit(&mut self) {
        self.say(&raw(&self.empty(0), &[]));
    }

    /// Grants credits for which no receives are posted.
    pub(crate) fn overgrant(&mut self, credits_granted: u16) {
        self.say(&raw(&self.empty(credits_granted), &[]));
    }

    /// Sends a keepalive without a grant.
    pub(crate) fn ask(&mut self) {
        let header = DataTransfer {
            flags: Flags::RESPONSE_REQUESTED,
            ..self.empty(0)
        };
        self.asked = true;
        self.transfer(&header, &[]);
    }

    /// Returns the number of credits that the other end lacks.
    fn lacking(&self) -> u16 {
        self.target.saturating_sub(self.granted) as u16
    }

    // Receiving

    /// Returns the next Data Transfer.
    pub(crate) fn next(&mut self) -> Transfer {
        self.next_within(PROMPT_TIMEOUT)
    }

    pub(crate) fn next_within(&mut self, limit: Duration) -> Transfer {
        if self.arrived.is_empty() {
            assert!(self.take(limit), "nothing comes");
        }
        self.arrived.pop_front().expect("one was taken")
    }

    /// Receives a complete message and grants credits as needed.
    pub(crate) fn receive(&mut self) -> Vec<u8> {
        let mut message = Vec::new();
        loop {
            let Transfer { header, payload } = self.next();
            message.extend_from_slice(&payload);
            if header.data_length > 0 && header.remaining_data_length == 0 {
                return message;
            }
            if self.granted <= self.target / 4 && self.send_credits > 0 {
                let header = self.empty(self.lacking());
                self.transfer(&header, &[]);
            }
        }
    }

    /// Sends a message in segments of `size` bytes and asserts that it is echoed.
    pub(crate) fn echo(&mut self, message: &[u8], size: usize) {
        self.send(message, size);
        assert!(self.receive() == message, "it comes back unchanged");
    }

    /// Asserts that the connection works: a short message is echoed.
    pub(crate) fn works(&mut self) {
        self.echo(&content(500), self.max_payload());
    }

    /// Returns the largest payload of a segment in bytes.
    pub(crate) const fn max_payload(&self) -> usize {
        self.max_send_size as usize - DataTransfer::PAYLOAD_OFFSET as usize
    }

    /// Asserts that no message arrives for `duration`.
    pub(crate) fn expect_silence(&mut self, duration: Duration) {
        assert!(self.arrived.is_empty(), "{:?}", self.arrived);
        let next = self.peer.next(duration);
        assert!(matches!(next, Next::Silence), "{next:?}");
    }

    /// Asserts that no message arrives for a while.
    pub(crate) fn expect_nothing(&mut self) {
        self.expect_silence(SILENCE_TIMEOUT);
    }

    pub(crate) fn expect_message(&mut self) -> Bytes {
        match self.peer.next(PROMPT_TIMEOUT) {
            Next::Message(message) => message,
            other => panic!("{other:?} instead of a message"),
        }
    }

    /// Asserts that the RDMA connection ends without a further message.
    pub(crate) fn expect_terminated(&mut self) {
        self.expect_terminated_after(self.now(), Duration::ZERO);
    }

    /// Asserts that the RDMA connection ends without a further message, and that it does so `after`
    /// the time `since`, not earlier.
    pub(crate) fn expect_terminated_after(&mut self, since: Instant, after: Duration) {
        assert!(self.arrived.is_empty(), "{:?}", self.arrived);
        let next = self.peer.next(after + PROMPT_TIMEOUT);
        assert!(matches!(next, Next::End), "{next:?} instead of the end");
        backend::assert_took(self.now() - since, after);
    }

    /// Asserts that the RDMA connection ends, possibly after further messages.
    pub(crate) fn expect_end(&mut self) {
        loop {
            match self.peer.next(PROMPT_TIMEOUT) {
                Next::Message(message) => drop(self.check(&message)),
                Next::End => return,
                Next::Silence => panic!("it does not end"),
            }
        }
    }

    /// Ends the RDMA connection at this end.
    pub(crate) fn disconnect(mut self) {
        self.peer.disconnect();
    }

    /// Returns when the RDMA connection was requested.
    pub(crate) fn connected(&self) -> Instant {
        self.connected
    }

    pub(crate) fn now(&self) -> Instant {
        self.peer.now()
    }

    /// Takes a Data Transfer, and returns whether one arrived.
    fn take(&mut self, limit: Duration) -> bool {
        match self.peer.next(limit) {
            Next::Message(message) => {
                let transfer = self.check(&message);
                self.arrived.push_back(transfer);
                true
            }
            Next::Silence => false,
            Next::End => panic!("the connection has ended"),
        }
    }

    /// Checks the rules for every Data Transfer.
    //= SMBD-3.1.5.1-04 test
    //= SMBD-3.1.5.1-06 test
    //= SMBD-3.1.5.1-08 test
    //= SMBD-3.1.5.4-03 test
    //= SMBD-3.1.5.4-05 test
    //= SMBD-3.1.5.4-07 test
    //= SMBD-3.1.5.4-08 test
    //= SMBD-2.2-02 test
    //= SMBD-2.2.3-01 test
    //= SMBD-2.2.3-02 test
    //= SMBD-2.2.3-03 test
    //= SMBD-2.2.3-04 test
    fn check(&mut self, bytes: &Bytes) -> Transfer {
        let header = DataTransfer::decode(bytes).unwrap();
        assert!(self.granted > 0, "it came without a credit: {header:?}");
        self.granted -= 1;
        if self.granted == 0 {
            assert!(header.credits_granted > 0, "the last credit: {header:?}");
        }
        self.send_credits += u32::from(header.credits_granted);
        // The rules for the last credit allow two more than the target.
        assert!(self.send_credits <= u32::from(self.credits_requested) + 2);
        assert!(header.credits_requested > 0, "{header:?}");
        assert!(header.flags.bits() <= 1, "{header:?}");
        assert_eq!(bytes[6..8], [0, 0], "Reserved");
        assert!(bytes.len() <= self.max_receive_size as usize, "{header:?}");
        if header.data_length == 0 {
            self.empty_messages += 1;
            assert_eq!(self.remaining, 0, "between segments: {header:?}");
            assert_eq!((header.data_offset, header.remaining_data_length), (0, 0));
            assert_eq!(bytes.len(), DataTransfer::HEADER_LENGTH, "no padding");
            let asks = header.flags.contains(Flags::RESPONSE_REQUESTED);
            let answers = std::mem::take(&mut self.asked);
            assert!(
                header.credits_granted > 0 || asks || answers,
                "it says nothing: {header:?}"
            );
        } else {
            self.asked = false;
            assert_eq!(header.data_offset, DataTransfer::PAYLOAD_OFFSET);
            assert_eq!(bytes[20..24], [0; 4], "padding");
            assert_eq!(
                bytes.len(),
                header.payload().end,
                "no bytes after the payload"
            );
            let left = header.data_length + header.remaining_data_length;
            assert!(
                self.remaining == 0 || left == self.remaining,
                "{left} where {} were left",
                self.remaining
            );
            self.remaining = header.remaining_data_length;
        }
        Transfer {
            payload: bytes.slice(header.payload()),
            header,
        }
    }
}

/// Returns the bytes after the header of a segment: 4 bytes of padding and the payload.
pub(crate) fn padded(payload: &[u8]) -> Vec<u8> {
    [&[0; 4], payload].concat()
}
