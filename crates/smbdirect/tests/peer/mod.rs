//! A scripted peer that speaks iWARP over TCP, without CRC, and sends what a test tells it to send.

use std::{net::SocketAddr, time::Duration};

use smbdirect::{
    rdma::iwarp::{
        ddp::{Header, Untagged},
        mpa::{Fpdu, FrameKind, StartupFrame},
        rdmap::{Opcode, ReadRequest},
    },
    wire::{DataTransfer, NegotiateRequest, NegotiateResponse},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Awaits a future, for a time that no step of a passing test takes.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(20), future)
        .await
        .expect("it takes forever")
}

/// Returns the Negotiate Request of scripted peers.
pub(crate) fn negotiate_request() -> Vec<u8> {
    let request = NegotiateRequest {
        min_version: 0x0100,
        max_version: 0x0100,
        credits_requested: 255,
        preferred_send_size: 8192,
        max_receive_size: 8192,
        max_fragmented_size: 1 << 20,
    };
    let mut message = Vec::new();
    request.encode(&mut message);
    message
}

/// A scripted peer.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    received: Vec<u8>,
    next_send: u32,
    next_read: u32,
    /// Send credits of the peer.
    pub(crate) credits: u32,
}

impl Peer {
    /// Opens a TCP connection and sends nothing.
    pub(crate) async fn silent(address: SocketAddr) -> Self {
        Self {
            stream: within(TcpStream::connect(address)).await.unwrap(),
            received: Vec::new(),
            next_send: 1,
            next_read: 1,
            credits: 0,
        }
    }

    /// Sends its MPA Request and returns the Reply, or `None` if the other end closes the connection.
    pub(crate) async fn greet(&mut self, request: &StartupFrame) -> Option<StartupFrame> {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        self.say(&bytes).await;
        loop {
            if let Ok(reply) = StartupFrame::decode(FrameKind::Reply, &self.received) {
                self.received.drain(..reply.encoded_length());
                return Some(reply);
            }
            if within(self.stream.read_buf(&mut self.received))
                .await
                .ok()?
                == 0
            {
                return None;
            }
        }
    }

    /// An RDMA connection of MPA revision 1, without CRC.
    pub(crate) async fn connected(address: SocketAddr) -> Self {
        let mut peer = Self::silent(address).await;
        let request = StartupFrame::new(FrameKind::Request, 1);
        peer.greet(&request).await.expect("a Reply");
        peer
    }

    /// An SMB Direct connection.
    pub(crate) async fn negotiated(address: SocketAddr) -> Self {
        let mut peer = Self::connected(address).await;
        peer.negotiate().await;
        peer
    }

    pub(crate) async fn negotiate(&mut self) -> NegotiateResponse {
        let fpdu = self.negotiate_request();
        self.say(&fpdu).await;
        let (_, response) = self.hear().await;
        let response = NegotiateResponse::decode(&response).unwrap();
        self.credits = response.credits_granted.into();
        response
    }

    pub(crate) fn negotiate_request(&mut self) -> Vec<u8> {
        self.send(Opcode::Send, 0, &negotiate_request())
    }

    pub(crate) async fn say(&mut self, bytes: &[u8]) {
        within(self.stream.write_all(bytes)).await.unwrap();
    }

    /// Returns a message with any opcode and content, as an FPDU.
    pub(crate) fn send(&mut self, opcode: Opcode, invalidate: u32, message: &[u8]) -> Vec<u8> {
        let header = Untagged {
            last: true,
            rdmap_control: opcode.control(),
            rsvd_ulp: invalidate,
            queue_number: 0,
            message_sequence_number: self.next_send,
            message_offset: 0,
        };
        self.next_send += 1;
        fpdu(&[&header.encode(), message])
    }

    /// Returns a Data Transfer, which spends a credit, as an FPDU.
    pub(crate) fn transfer(&mut self, header: DataTransfer, payload: &[u8]) -> Vec<u8> {
        self.credits -= 1;
        let mut message = Vec::new();
        header.encode(&mut message);
        message.extend_from_slice(payload);
        self.send(Opcode::Send, 0, &message)
    }

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
        fpdu(&[&header.encode(), &request.encode()])
    }

    /// Receives the next FPDU, and returns its header and payload.
    pub(crate) async fn hear(&mut self) -> (Header, Vec<u8>) {
        loop {
            if let Some(fpdu) = Fpdu::decode(&self.received, false).unwrap() {
                let (header, payload) = Header::decode(fpdu.ulpdu).unwrap();
                let (payload, length) = (payload.to_vec(), fpdu.length);
                self.received.drain(..length);
                return (header, payload);
            }
            let count = within(self.stream.read_buf(&mut self.received)).await;
            assert_ne!(count.unwrap(), 0, "the connection is over");
        }
    }

    /// Waits until the peer holds this many credits.
    pub(crate) async fn await_credits(&mut self, credits: u32) {
        while self.credits < credits {
            let (_, message) = self.hear().await;
            let header = DataTransfer::decode(&message).unwrap();
            self.credits += u32::from(header.credits_granted);
        }
    }

    /// Waits until the other end closes the connection, and returns the number of bytes received before.
    pub(crate) async fn end(&mut self) -> usize {
        let mut rest = std::mem::take(&mut self.received);
        // A reset is an end, too.
        let _ = within(self.stream.read_to_end(&mut rest)).await;
        rest.len()
    }
}

pub(crate) fn fpdu(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Fpdu::encode(parts, false, &mut bytes);
    bytes
}
