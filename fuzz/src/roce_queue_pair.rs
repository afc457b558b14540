//! A RoCE queue pair with local work and memory, against an arbitrary peer.
//!
//! The target asserts that only bytes change that the peer was allowed to write, that messages take
//! posted receives and fit them, that work completes once and in order, that every packet to send
//! is well-formed, and that the end of the connection is reported once, as the last.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use smbdirect::rdma::{
    roce::{
        Psn, QueuePair, QueuePairSettings,
        packet::{Aeth, Bth, Extended, Ieth, Opcode, Packet, Reth, Syndrome},
    },
    work::{Access, Completion, Disconnect, Inline, RemoteAddress, Token, WorkId, WorkRequest},
};

use crate::input::Input;

/// Maximum number of outstanding work requests, of registered buffers, and of packets that are polled at a
/// time. More would only be slower.
const MAX_WAITING: usize = 24;
/// The path MTU in bytes.
const MTU: usize = 256;
/// The PSN of the first packet of each end.
const FIRST_PSN: u32 = 0xff_fff0;

/// Runs the operations that `data` encodes.
pub fn roce_queue_pair(data: &[u8]) {
    let mut input = Input::new(data);
    let mut machine = Machine::new(&mut input);
    while !input.is_empty() {
        machine.step(&mut input);
    }
    machine.finish();
}

struct Machine {
    queue_pair: QueuePair,
    now: Instant,
    /// The PSN of the next packet of the peer, as it counts.
    peer_psn: Psn,
    /// The PSN of the last packet of this end.
    own_psn: Psn,
    next_id: u64,
    /// Outstanding work of each kind, in order.
    receives: VecDeque<(WorkId, u32)>,
    sends: VecDeque<WorkId>,
    reads: VecDeque<(WorkId, usize)>,
    writes: VecDeque<WorkId>,
    regions: Vec<Region>,
    disconnected: bool,
}

/// A registered buffer.
struct Region {
    at: RemoteAddress,
    access: Access,
    /// The original content, and whether the peer was allowed to change each byte.
    content: Vec<(u8, bool)>,
}

impl Machine {
    fn new(input: &mut Input<'_>) -> Self {
        let settings = QueuePairSettings {
            local_qpn: 0x11,
            remote_qpn: 0x22,
            send_psn: Psn::new(FIRST_PSN),
            expected_psn: Psn::new(FIRST_PSN),
            path_mtu: MTU,
            responder_resources: input.up_to(3) as u32,
            initiator_depth: input.up_to(3) as u32,
            retry_count: input.up_to(7) as u8,
            rnr_retry_count: input.up_to(7) as u8,
            ack_timeout: Duration::from_millis(500),
            target_ack_delay: Duration::ZERO,
            max_in_flight: MTU * input.up_to(40),
        };
        Self {
            queue_pair: QueuePair::new(&settings),
            now: Instant::now(),
            peer_psn: Psn::new(FIRST_PSN),
            own_psn: Psn::new(FIRST_PSN),
            next_id: 0,
            receives: VecDeque::new(),
            sends: VecDeque::new(),
            reads: VecDeque::new(),
            writes: VecDeque::new(),
            regions: Vec::new(),
            disconnected: false,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.up_to(11) {
            0 => self.post_receive(input),
            1 => self.post(input),
            2 => self.register(input),
            3 => self.deregister(input),
            4..=6 => self.request(input),
            7 => self.acknowledge(input),
            8 => self.respond(input),
            9 => self.arbitrary(input),
            10 => self.wait(input),
            _ => self.end(input),
        }
        if input.is_odd() {
            self.poll_packets();
        }
        self.poll_completions();
    }

    fn next_id(&mut self) -> WorkId {
        self.next_id += 1;
        WorkId(self.next_id)
    }

    fn post_receive(&mut self, input: &mut Input<'_>) {
        let count = 1 + input.up_to(3) as u32;
        if self.receives.len() >= MAX_WAITING || self.disconnected {
            return;
        }
        let (id, length) = (self.next_id(), input.length(3 * MTU) as u32);
        for _ in 0..count {
            self.receives.push_back((id, length));
        }
        self.queue_pair
            .post(WorkRequest::Receive { id, length, count });
    }

    fn post(&mut self, input: &mut Input<'_>) {
        let waiting = self.sends.len() + self.reads.len() + self.writes.len();
        let may_read = self.queue_pair.limits().max_outbound_reads > 0;
        let kind = input.up_to(2);
        if waiting >= MAX_WAITING || self.disconnected || (kind == 2 && !may_read) {
            return;
        }
        let (id, length) = (self.next_id(), input.length(5 * MTU));
        let at = self.remote(input);
        self.queue_pair.post(match kind {
            0 => {
                self.sends.push_back(id);
                WorkRequest::Send {
                    id,
                    header: Inline::build(|out| bytes::BufMut::put_bytes(out, 1, length % 33)),
                    payload: vec![2; length].into(),
                    invalidate: input.is_odd().then_some(Token(3)),
                }
            }
            1 => {
                self.writes.push_back(id);
                let data = vec![4; length].into();
                WorkRequest::Write { id, data, to: at }
            }
            _ => {
                self.reads.push_back((id, length));
                let (from, into) = (at, BytesMut::zeroed(length));
                WorkRequest::Read { id, from, into }
            }
        });
    }

    fn register(&mut self, input: &mut Input<'_>) {
        if self.regions.len() >= MAX_WAITING {
            return;
        }
        let access = Access::from_bits_truncate(input.byte());
        let content: Vec<u8> = (0..input.length(4 * MTU)).map(|at| at as u8).collect();
        let buffer = BytesMut::from(&content[..]);
        let registration = self.queue_pair.memory().register(buffer, access);
        self.regions.push(Region {
            at: registration
                .expect("the buffer is shorter than the largest region")
                .address,
            access,
            content: content.into_iter().map(|byte| (byte, false)).collect(),
        });
    }

    fn deregister(&mut self, input: &mut Input<'_>) {
        if self.regions.is_empty() {
            return;
        }
        let at = input.up_to(255) % self.regions.len();
        let region = self.regions.swap_remove(at);
        self.give_back(&region);
    }

    /// Takes a buffer back, and checks that no byte changed that the peer was not allowed to write.
    fn give_back(&mut self, region: &Region) {
        let memory = self.queue_pair.memory();
        let buffer = memory.deregister(region.at.token).expect("nothing is lent");
        assert_eq!(buffer.len(), region.content.len());
        for (now, (before, may_change)) in buffer.iter().zip(&region.content) {
            assert!(now == before || *may_change);
        }
    }

    /// Returns an address in a region, or near it.
    fn remote(&mut self, input: &mut Input<'_>) -> RemoteAddress {
        let near = u64::from(input.byte());
        match self.regions.get(input.up_to(3)) {
            Some(region) => RemoteAddress {
                offset: region.at.offset.wrapping_add(near).wrapping_sub(8),
                ..region.at
            },
            None => RemoteAddress {
                token: Token(input.any()),
                offset: near,
            },
        }
    }

    /// Returns a PSN: mostly `expected`, sometimes one before or after it.
    fn psn(expected: Psn, input: &mut Input<'_>) -> Psn {
        match input.byte() {
            byte @ 240..=247 => expected.add(u32::from(byte) - 239),
            byte @ 248..=254 => expected.add(u32::from(byte).wrapping_sub(255)),
            255 => Psn::new(input.any()),
            _ => expected,
        }
    }

    fn handle(&mut self, packet: &Packet) {
        self.allow(packet);
        self.queue_pair.handle_packet(self.now, packet);
    }

    /// Notes which bytes a Write may change.
    fn allow(&mut self, packet: &Packet) {
        let (Some(reth), Opcode::WriteFirst | Opcode::WriteOnly) =
            (packet.extended.reth(), packet.bth.opcode)
        else {
            return;
        };
        let named = |region: &&mut Region| region.at.token.0 == reth.r_key;
        let Some(region) = self.regions.iter_mut().find(named) else {
            return;
        };
        let start = reth.virtual_address.wrapping_sub(region.at.offset);
        let end = start.saturating_add(reth.length.into());
        if region.access.contains(Access::REMOTE_WRITE) && end <= region.content.len() as u64 {
            for byte in &mut region.content[start as usize..end as usize] {
                byte.1 = true;
            }
        }
    }

    /// Passes a request, which mostly continues those before it.
    fn request(&mut self, input: &mut Input<'_>) {
        let opcode = input.pick(&[
            Opcode::SendFirst,
            Opcode::SendMiddle,
            Opcode::SendLast,
            Opcode::SendOnly,
            Opcode::SendOnlyInvalidate,
            Opcode::SendLastInvalidate,
            Opcode::WriteFirst,
            Opcode::WriteMiddle,
            Opcode::WriteLast,
            Opcode::WriteOnly,
            Opcode::ReadRequest,
        ]);
        let psn = Self::psn(self.peer_psn, input);
        let is_read = opcode == Opcode::ReadRequest;
        let payload = match (is_read, opcode.ends_message()) {
            (true, _) => 0,
            (false, false) => MTU - usize::from(input.byte() == 255),
            (false, true) => input.length(MTU + 1),
        };
        let at = self.remote(input);
        let extended = match opcode {
            Opcode::SendOnlyInvalidate | Opcode::SendLastInvalidate => {
                Extended::Ieth(Ieth { r_key: at.token.0 })
            }
            Opcode::WriteFirst | Opcode::WriteOnly | Opcode::ReadRequest => Extended::Reth(Reth {
                virtual_address: at.offset,
                r_key: at.token.0,
                length: match opcode {
                    Opcode::WriteOnly => payload as u32,
                    _ => input.length(5 * MTU) as u32,
                },
            }),
            _ => Extended::Plain,
        };
        let mut bth = Bth::new(opcode, 0x11, psn);
        bth.ack_request = input.is_odd();
        if psn == self.peer_psn {
            let length = extended
                .reth()
                .filter(|_| is_read)
                .map_or(0, |reth| reth.length);
            self.peer_psn = psn.add(length.div_ceil(MTU as u32).max(1));
        }
        let payload = vec![0xee; payload].into();
        self.handle(&Packet {
            bth,
            extended,
            payload,
        });
    }

    fn acknowledge(&mut self, input: &mut Input<'_>) {
        let Ok(syndrome) = Syndrome::decode(input.byte()) else {
            return;
        };
        let extended = Extended::Aeth(Aeth {
            syndrome,
            message_sequence_number: 0,
        });
        let psn = Self::psn(self.own_psn, input);
        let packet = Packet {
            bth: Bth::new(Opcode::Acknowledge, 0x11, psn),
            extended,
            payload: Bytes::new(),
        };
        self.handle(&packet);
    }

    fn respond(&mut self, input: &mut Input<'_>) {
        let opcode = input.pick(&[
            Opcode::ReadResponseFirst,
            Opcode::ReadResponseMiddle,
            Opcode::ReadResponseLast,
            Opcode::ReadResponseOnly,
        ]);
        let extended = match opcode {
            Opcode::ReadResponseMiddle => Extended::Plain,
            _ => Extended::Aeth(Aeth {
                syndrome: Syndrome::Ack { credit: 0x1f },
                message_sequence_number: 0,
            }),
        };
        let length = if opcode.ends_message() {
            input.length(MTU)
        } else {
            MTU
        };
        let packet = Packet {
            bth: Bth::new(opcode, 0x11, Self::psn(self.own_psn, input)),
            extended,
            payload: vec![0xdd; length].into(),
        };
        self.handle(&packet);
    }

    /// Passes the next bytes of the input as a packet.
    fn arbitrary(&mut self, input: &mut Input<'_>) {
        let length = input.length(64);
        let datagram = Bytes::copy_from_slice(input.bytes(length));
        if let Ok(packet) = Packet::decode(&datagram) {
            self.handle(&packet);
        }
    }

    fn wait(&mut self, input: &mut Input<'_>) {
        self.now += input.milliseconds();
        if let (true, Some(timeout)) = (input.is_odd(), self.queue_pair.poll_timeout()) {
            self.now = self.now.max(timeout);
        }
        self.queue_pair.handle_timeout(self.now);
    }

    fn end(&mut self, input: &mut Input<'_>) {
        match input.up_to(7) {
            0 => self.queue_pair.end(Disconnect::Remote),
            1 => self.queue_pair.close(),
            _ => {}
        }
    }

    /// Takes packets, and checks that a peer can decode them.
    fn poll_packets(&mut self) {
        for _ in 0..MAX_WAITING {
            let had_packet = self.queue_pair.has_packet();
            let Some(packet) = self.queue_pair.poll_packet(self.now) else {
                assert!(!self.queue_pair.has_packet());
                return;
            };
            assert!(had_packet);
            assert_eq!(packet.bth.destination_qp, 0x22);
            assert!(packet.payload.len() <= MTU);
            if !packet.bth.opcode.is_response() {
                self.own_psn = packet.bth.psn;
            }
            let mut datagram = BytesMut::new();
            packet.encode(&mut datagram);
            datagram.extend_from_slice(&[0; 4]);
            assert_eq!(Packet::decode(&datagram.freeze()), Ok(packet));
        }
    }

    fn poll_completions(&mut self) {
        while let Some(completion) = self.queue_pair.poll_completion() {
            assert!(!self.disconnected, "{completion:?} after the end");
            match completion {
                Completion::Head(head) => panic!("{head:?}"),
                Completion::Received { id, message, .. } => {
                    let (expected, limit) = self
                        .receives
                        .pop_front()
                        .expect("completed work was posted");
                    assert_eq!(id, expected);
                    assert!(message.len() <= limit as usize);
                }
                Completion::Sent { id } => {
                    while self.sends.pop_front().expect("completed work was posted") != id {}
                }
                Completion::Written { id } => assert_eq!(self.writes.pop_front(), Some(id)),
                Completion::Read { id, buffer } => {
                    assert_eq!(self.reads.pop_front(), Some((id, buffer.len())));
                    assert!(buffer.iter().all(|byte| *byte == 0xdd));
                }
                Completion::Flushed { id, buffer } => self.flushed(id, buffer.as_ref()),
                Completion::Disconnected(_) => self.disconnected = true,
            }
        }
        assert!(!self.queue_pair.has_completion());
        if self.disconnected {
            let left = self.sends.len() + self.writes.len() + self.reads.len();
            assert_eq!(left + self.receives.len(), 0);
        }
    }

    fn flushed(&mut self, id: WorkId, buffer: Option<&BytesMut>) {
        if let Some(buffer) = buffer {
            assert_eq!(self.reads.pop_front(), Some((id, buffer.len())));
        } else if self.receives.front().is_some_and(|receive| receive.0 == id) {
            self.receives.pop_front();
        } else {
            let queue = [&mut self.sends, &mut self.writes]
                .into_iter()
                .find(|queue| queue.front() == Some(&id));
            queue
                .expect("it was posted, and is the oldest of its kind")
                .pop_front();
        }
    }

    /// Ends the connection, after which everything has completed and all buffers are returned.
    fn finish(&mut self) {
        self.poll_packets();
        self.queue_pair.end(Disconnect::Local);
        self.poll_completions();
        assert!(self.disconnected);
        assert_eq!(self.queue_pair.poll_timeout(), None);
        for region in std::mem::take(&mut self.regions) {
            self.give_back(&region);
        }
    }
}
