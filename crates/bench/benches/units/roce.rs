//! The RoCE queue pair: one half by itself, with the ICRC of every packet.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use bytes::{BufMut, Bytes, BytesMut};
use smbdirect::rdma::{
    roce::{
        Psn, QueuePair, QueuePairSettings,
        icrc::{DatagramHeader, FlowIcrc},
        packet::{Aeth, Bth, Extended, Opcode, Packet, Syndrome},
    },
    work::{Access, Completion, Inline, RemoteAddress, WorkId, WorkRequest},
};

use super::{Case, Done, Unit, content, iwarp::Kind};

/// Bytes of messages that are posted together.
const BATCH: usize = 256 << 10;
/// Largest number of messages that are posted together.
const MOST: usize = 192;
/// The header of a Data Transfer, which SMB Direct sends in front of each payload.
const HEADER: usize = 24;
/// Largest number of datagrams in one call of the kernel.
const DATAGRAMS: usize = 64;

/// Messages of one kind and size, and the path MTU.
#[derive(Clone, Copy, Debug)]
struct Shape {
    kind: Kind,
    length: usize,
    path_mtu: usize,
}

impl Shape {
    fn per_batch(self) -> usize {
        (BATCH / self.length).clamp(1, MOST)
    }

    fn packets(self) -> usize {
        self.per_batch() * self.length.div_ceil(self.path_mtu)
    }

    fn done(self) -> Done {
        Done {
            items: self.packets() as u64,
            bytes: (self.per_batch() * self.length) as u64,
        }
    }
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (word, kind, length, path_mtu) in [
        ("send-64", Kind::Send, 64, 1024),
        ("send-1024", Kind::Send, 1024, 1024),
        ("send-8192-by-1024", Kind::Send, 8192, 1024),
        ("send-8192-by-4096", Kind::Send, 8192, 4096),
        ("write-65536-by-1024", Kind::Write, 64 << 10, 1024),
        ("write-65536-by-4096", Kind::Write, 64 << 10, 4096),
        ("write-1048576-by-4096", Kind::Write, 1 << 20, 4096),
    ] {
        let shape = Shape {
            kind,
            length,
            path_mtu,
        };
        let name = format!("roce/transmit/{word}");
        cases.push(Case::new(name, "packet", move || Transmit::new(shape)));
        let name = format!("roce/receive/{word}");
        cases.push(Case::new(name, "packet", move || Receive::new(shape)));
    }
    for path_mtu in [1024, 4096] {
        let name = format!("roce/both/read-65536-by-{path_mtu}");
        cases.push(Case::new(name, "packet", move || Reads::new(path_mtu)));
    }
    cases
}

fn queue_pair(path_mtu: usize) -> QueuePair {
    QueuePair::new(&QueuePairSettings {
        local_qpn: 0x11,
        remote_qpn: 0x11,
        send_psn: Psn::new(0),
        expected_psn: Psn::new(0),
        path_mtu,
        responder_resources: 16,
        initiator_depth: 16,
        retry_count: 7,
        rnr_retry_count: 7,
        ack_timeout: Duration::from_millis(500),
        target_ack_delay: Duration::ZERO,
        max_in_flight: 1 << 20,
    })
}

fn datagram_header() -> DatagramHeader {
    let [source, destination] = [1, 2].map(|host| Ipv4Addr::new(10, 0, 0, host));
    let source = SocketAddr::new(source.into(), 50_000);
    let destination = SocketAddr::new(destination.into(), 4791);
    DatagramHeader::between(source, destination).expect("both are IPv4")
}

/// An end that posts messages, and receives an acknowledgement for each run of datagrams.
struct Poster {
    queue_pair: QueuePair,
    shape: Shape,
    flow: FlowIcrc,
    inline: Inline,
    payload: Bytes,
    to: RemoteAddress,
    posted: u64,
    now: Instant,
    out: BytesMut,
}

impl Poster {
    fn new(shape: Shape, to: RemoteAddress) -> Self {
        let inline = match shape.kind {
            Kind::Send => HEADER,
            Kind::Write => 0,
        };
        Self {
            queue_pair: queue_pair(shape.path_mtu),
            shape,
            flow: FlowIcrc::new(&datagram_header()),
            inline: Inline::build(|out| out.put_bytes(0x11, inline)),
            payload: content(shape.length - inline),
            to,
            posted: 0,
            now: Instant::now(),
            out: BytesMut::new(),
        }
    }

    /// Sends a batch, and passes each run of datagrams with their length to `sent`.
    fn send_batch(&mut self, mut sent: impl FnMut(&[u8], usize)) {
        for _ in 0..self.shape.per_batch() {
            self.posted += 1;
            let (id, payload) = (WorkId(self.posted), self.payload.clone());
            self.queue_pair.post(match self.shape.kind {
                Kind::Send => WorkRequest::Send {
                    id,
                    header: self.inline,
                    payload,
                    invalidate: None,
                },
                Kind::Write => WorkRequest::Write {
                    id,
                    data: payload,
                    to: self.to,
                },
            });
        }
        let acknowledged = Extended::Aeth(Aeth {
            syndrome: Syndrome::Ack { credit: 0x1f },
            message_sequence_number: 0,
        });
        loop {
            self.out.clear();
            let (now, flow) = (self.now, &mut self.flow);
            let run = self
                .queue_pair
                .poll_datagrams(now, flow, DATAGRAMS, &mut self.out);
            let Some(length) = run else { break };
            sent(&self.out, length);
            let last = self.out.chunks(length).next_back().expect("a run has some");
            let (bth, ..) = Packet::split(last).expect("it was just encoded");
            let bth = Bth::new(Opcode::Acknowledge, 0x11, bth.psn);
            self.queue_pair.handle(now, &bth, &acknowledged, &[]);
        }
        let mut last = None;
        while let Some(completion) = self.queue_pair.poll_completion() {
            let (Completion::Sent { id } | Completion::Written { id }) = completion else {
                panic!("{completion:?}");
            };
            last = Some(id.0);
        }
        assert_eq!(last, Some(self.posted), "all is acknowledged");
    }
}

/// The sending half. Its output is discarded.
struct Transmit {
    poster: Poster,
}

impl Transmit {
    fn new(shape: Shape) -> Self {
        let nowhere = RemoteAddress {
            token: 7.into(),
            offset: 0,
        };
        Self {
            poster: Poster::new(shape, nowhere),
        }
    }
}

impl Unit for Transmit {
    fn feed(&mut self) {}

    fn run(&mut self) -> Done {
        self.poster.send_batch(|_, _| {});
        self.poster.shape.done()
    }
}

/// The receiving half: the datagrams of a batch, and the acknowledgement after each run.
struct Receive {
    poster: Poster,
    queue_pair: QueuePair,
    runs: Vec<(Vec<u8>, usize)>,
    out: BytesMut,
}

impl Receive {
    fn new(shape: Shape) -> Self {
        let mut queue_pair = queue_pair(shape.path_mtu);
        let memory = BytesMut::zeroed(shape.length);
        let registered = queue_pair.memory().register(memory, Access::REMOTE_WRITE);
        let to = registered.expect("the first of them").address;
        Self {
            poster: Poster::new(shape, to),
            queue_pair,
            runs: Vec::new(),
            out: BytesMut::new(),
        }
    }
}

impl Unit for Receive {
    fn feed(&mut self) {
        let shape = self.poster.shape;
        self.queue_pair.post(WorkRequest::Receive {
            id: WorkId(1),
            length: shape.length as u32,
            count: match shape.kind {
                Kind::Send => shape.per_batch() as u32,
                Kind::Write => 0,
            },
        });
        self.runs.clear();
        let runs = &mut self.runs;
        self.poster
            .send_batch(|run, length| runs.push((run.to_vec(), length)));
    }

    fn run(&mut self) -> Done {
        let (now, flow) = (self.poster.now, &mut self.poster.flow);
        for (run, length) in &self.runs {
            for (datagram, identification) in run.chunks(*length).zip(0..) {
                assert_eq!(flow.solve(identification, datagram), Some(identification));
                let (bth, extended, payload) = Packet::split(datagram).expect("it is a packet");
                self.queue_pair.handle(now, &bth, &extended, payload);
            }
            self.out.clear();
            // The acknowledgement, if the run asked for one.
            self.queue_pair
                .poll_datagrams(now, flow, DATAGRAMS, &mut self.out);
        }
        while let Some(completion) = self.queue_pair.poll_completion() {
            let is_message = matches!(completion, Completion::Received { .. });
            assert!(is_message, "{completion:?}");
        }
        self.poster.shape.done()
    }
}

/// Reads. Both ends are measured.
struct Reads {
    reader: QueuePair,
    source: QueuePair,
    from: RemoteAddress,
    buffers: Vec<BytesMut>,
    path_mtu: usize,
    flow: FlowIcrc,
    now: Instant,
    out: BytesMut,
}

/// Bytes of a Read.
const READ: usize = 64 << 10;
/// Reads that are posted together.
const READS: usize = 16;

impl Reads {
    fn new(path_mtu: usize) -> Self {
        let mut source = queue_pair(path_mtu);
        let memory = BytesMut::from(&content(READ)[..]);
        let registered = source.memory().register(memory, Access::REMOTE_READ);
        Self {
            reader: queue_pair(path_mtu),
            source,
            from: registered.expect("the first of them").address,
            buffers: vec![BytesMut::zeroed(READ); READS],
            path_mtu,
            flow: FlowIcrc::new(&datagram_header()),
            now: Instant::now(),
            out: BytesMut::new(),
        }
    }
}

/// Moves what one end has to send to the other. Returns whether there was anything.
fn carry(
    from: &mut QueuePair,
    to: &mut QueuePair,
    flow: &mut FlowIcrc,
    now: Instant,
    out: &mut BytesMut,
) -> bool {
    let mut any = false;
    loop {
        out.clear();
        let Some(length) = from.poll_datagrams(now, flow, DATAGRAMS, out) else {
            return any;
        };
        any = true;
        for (datagram, identification) in out.chunks(length).zip(0..) {
            assert_eq!(flow.solve(identification, datagram), Some(identification));
            let (bth, extended, payload) = Packet::split(datagram).expect("it is a packet");
            to.handle(now, &bth, &extended, payload);
        }
    }
}

impl Unit for Reads {
    fn feed(&mut self) {}

    fn run(&mut self) -> Done {
        for into in self.buffers.drain(..) {
            self.reader.post(WorkRequest::Read {
                id: WorkId(1),
                from: self.from,
                into,
            });
        }
        let (reader, source) = (&mut self.reader, &mut self.source);
        let (flow, out) = (&mut self.flow, &mut self.out);
        while carry(reader, source, flow, self.now, out)
            | carry(source, reader, flow, self.now, out)
        {}
        let mut bytes = 0;
        while let Some(completion) = self.reader.poll_completion() {
            let Completion::Read { buffer, .. } = completion else {
                panic!("{completion:?}");
            };
            bytes += buffer.len();
            self.buffers.push(buffer);
        }
        assert_eq!(bytes, READS * READ, "all is read");
        Done {
            items: (bytes / self.path_mtu) as u64,
            bytes: bytes as u64,
        }
    }
}
