//! Tests with tables of packets for the requester and the responder, and with two queue pairs on a perfect
//! network.

mod attacks;
mod congestion;
mod duplicates;
mod pair;
mod requester;
mod responder;

use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};

use super::*;
use crate::{
    roce::{
        packet::{Aeth, Bth, Extended, Ieth, NakCode, Opcode, Packet, Reth, Syndrome},
        psn::Psn,
    },
    work::{
        Access, Completion, Disconnect, Inline, ProviderError, ProviderErrorKind, RemoteAddress,
        Token, WorkId, WorkRequest,
    },
};

const MTU: usize = 256;
/// The PSN of the first packet of each end, which is shortly before the wrap.
const FIRST_PSN: u32 = 0xff_fffe;
const ACK_TIMEOUT: Duration = Duration::from_millis(500);

fn settings() -> QueuePairSettings {
    QueuePairSettings {
        local_qpn: 0x11,
        remote_qpn: 0x22,
        send_psn: Psn::new(FIRST_PSN),
        expected_psn: Psn::new(FIRST_PSN),
        path_mtu: MTU,
        responder_resources: 3,
        initiator_depth: 2,
        retry_count: 7,
        rnr_retry_count: 7,
        ack_timeout: ACK_TIMEOUT,
        target_ack_delay: Duration::ZERO,
        max_in_flight: 64 * MTU,
    }
}

/// A queue pair whose packets and completions a test reads, and a clock that only the test advances.
struct End {
    queue_pair: QueuePair,
    now: Instant,
}

impl End {
    fn new() -> Self {
        Self::with(&settings())
    }

    fn with(settings: &QueuePairSettings) -> Self {
        Self {
            queue_pair: QueuePair::new(settings),
            now: Instant::now(),
        }
    }

    fn post_receives(&mut self, count: u32, length: u32) {
        let id = WorkId(1000);
        self.queue_pair
            .post(WorkRequest::Receive { id, length, count });
    }

    fn post_send(&mut self, id: u64, length: usize, invalidate: Option<Token>) {
        self.queue_pair.post(WorkRequest::Send {
            id: WorkId(id),
            header: Inline::build(|out| bytes::BufMut::put_bytes(out, 1, length.min(24))),
            payload: Bytes::from(pattern(length.saturating_sub(24))),
            invalidate,
        });
    }

    fn post_write(&mut self, id: u64, length: usize) {
        self.queue_pair.post(WorkRequest::Write {
            id: WorkId(id),
            data: pattern(length).into(),
            to: REMOTE,
        });
    }

    fn post_read(&mut self, id: u64, length: usize) {
        self.queue_pair.post(WorkRequest::Read {
            id: WorkId(id),
            from: REMOTE,
            into: BytesMut::zeroed(length),
        });
    }

    fn handle(&mut self, packet: &Packet) {
        self.queue_pair.handle_packet(self.now, packet);
    }

    /// Passes an acknowledgement of the packet `index`, counted from the first PSN.
    fn handle_ack(&mut self, index: u32, syndrome: Syndrome) {
        let extended = Extended::Aeth(Aeth {
            syndrome,
            message_sequence_number: 0,
        });
        self.handle(&packet(Opcode::Acknowledge, index, extended, &[]));
    }

    /// Returns all packets that are to be sent.
    fn packets(&mut self) -> Vec<Packet> {
        let mut packets = Vec::new();
        while let Some(packet) = self.queue_pair.poll_packet(self.now) {
            packets.push(packet);
        }
        assert!(!self.queue_pair.has_packet());
        packets
    }

    /// Returns the opcodes and the numbers of all packets that are to be sent.
    fn opcodes(&mut self) -> Vec<(Opcode, u32)> {
        let packets = self.packets();
        packets
            .iter()
            .map(|packet| (packet.bth.opcode, index(packet.bth.psn)))
            .collect()
    }

    /// Returns the acknowledgements that are to be sent: number, syndrome, MSN.
    fn acks(&mut self) -> Vec<(u32, Syndrome, u32)> {
        let packets = self.packets();
        packets
            .iter()
            .map(|packet| {
                assert_eq!(packet.bth.opcode, Opcode::Acknowledge);
                let aeth = packet.extended.aeth().unwrap();
                (
                    index(packet.bth.psn),
                    aeth.syndrome,
                    aeth.message_sequence_number,
                )
            })
            .collect()
    }

    fn completions(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.queue_pair.poll_completion()).collect()
    }

    /// Returns the completions as short text.
    fn summary(&mut self) -> Vec<String> {
        let completions = self.completions();
        completions
            .iter()
            .map(|completion| match completion {
                Completion::Head(head) => panic!("{head:?}"),
                Completion::Received { message, .. } => format!("received {}", message.len()),
                Completion::Sent { id } => format!("sent {}", id.0),
                Completion::Read { id, buffer } => format!("read {} {}", id.0, buffer.len()),
                Completion::Written { id } => format!("written {}", id.0),
                Completion::Flushed { id, .. } => format!("flushed {}", id.0),
                Completion::Disconnected(Disconnect::Broken(error)) => {
                    format!("broken {:?}", error.kind)
                }
                Completion::Disconnected(how) => format!("{how:?}"),
            })
            .collect()
    }

    /// Moves the time to the next timeout.
    fn wait(&mut self) {
        self.now = self.queue_pair.poll_timeout().expect("a timer runs");
        self.queue_pair.handle_timeout(self.now);
    }

    /// Returns the kind of the error that broke the queue pair.
    fn broken(&mut self) -> ProviderErrorKind {
        match self.completions().pop() {
            Some(Completion::Disconnected(Disconnect::Broken(ProviderError { kind, .. }))) => kind,
            other => panic!("{other:?}"),
        }
    }
}

/// An address in the memory of a peer that exists only in the test.
const REMOTE: RemoteAddress = RemoteAddress {
    token: Token(0x1234_5678),
    offset: 0x10_0000,
};

const ACK: Syndrome = Syndrome::Ack { credit: 0x1f };

/// Returns a packet whose PSN is `index` after the first.
fn packet(opcode: Opcode, index: u32, extended: Extended, payload: &[u8]) -> Packet {
    let mut bth = Bth::new(opcode, 0x11, Psn::new(FIRST_PSN).add(index));
    bth.ack_request = opcode.ends_message() && !opcode.is_response();
    Packet {
        bth,
        extended,
        payload: Bytes::copy_from_slice(payload),
    }
}

/// Returns a packet without extended headers, for example a packet of a Send.
fn plain(opcode: Opcode, index: u32, length: usize) -> Packet {
    packet(opcode, index, Extended::Plain, &pattern(length))
}

/// Returns a packet that begins a Write or requests a Read.
fn rdma(opcode: Opcode, index: u32, at: RemoteAddress, length: u32, payload: usize) -> Packet {
    let reth = Reth {
        virtual_address: at.offset,
        r_key: at.token.0,
        length,
    };
    packet(opcode, index, Extended::Reth(reth), &pattern(payload))
}

/// Returns the number of packets from the first PSN to `psn`.
fn index(psn: Psn) -> u32 {
    psn.distance(Psn::new(FIRST_PSN)) as u32
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i / 7) as u8 ^ i as u8).collect()
}
