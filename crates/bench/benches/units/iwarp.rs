//! The iWARP stream: one half by itself, or a Read with both.

use std::io::IoSlice;

use bytes::{BufMut, Bytes, BytesMut};
use smbdirect::rdma::{
    iwarp::{Stream, StreamConfig, ddp, mpa},
    work::{Access, Completion, Inline, RemoteAddress, Room, WorkId, WorkRequest},
};

use super::{Case, Done, Unit, content};

/// Bytes of messages that are posted together: those of the largest write.
const BATCH: usize = 256 << 10;
/// Largest number of messages that are posted together.
const MOST: usize = 192;
/// The header of a Data Transfer, which SMB Direct sends in front of each payload.
const HEADER: usize = 24;
/// Slices of one write of a queue pair.
const SLICES: usize = 64;

/// The operation of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    Write,
}

/// Messages of one kind and size, and how they are framed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) kind: Kind,
    /// Bytes of a message.
    pub(crate) length: usize,
    pub(crate) max_fpdu: usize,
    pub(crate) crc: bool,
}

impl Shape {
    /// Messages between two ends of ours on this machine.
    pub(crate) const fn new(kind: Kind, length: usize, crc: bool) -> Self {
        Self {
            kind,
            length,
            max_fpdu: mpa::max_fpdu(u32::MAX),
            crc,
        }
    }

    const fn per_batch(self) -> usize {
        let count = BATCH / self.length;
        match count {
            0 => 1,
            MOST.. => MOST,
            count => count,
        }
    }

    /// FPDUs of one message, and their bytes with headers and CRCs.
    fn on_the_wire(self) -> (usize, usize) {
        let header = match self.kind {
            Kind::Send => ddp::Untagged::LENGTH,
            Kind::Write => ddp::Tagged::LENGTH,
        };
        let capacity = self.max_fpdu - mpa::Fpdu::HEADER_LENGTH - header - mpa::Fpdu::CRC_LENGTH;
        let mut bytes = 0;
        let mut rest = self.length;
        while rest > 0 {
            let payload = rest.min(capacity);
            bytes += mpa::fpdu_length((header + payload) as u16);
            rest -= payload;
        }
        (self.length.div_ceil(capacity), bytes)
    }
}

pub(crate) fn cases() -> Vec<Case> {
    let mut shapes = Vec::new();
    for (word, kind, length) in [
        ("send-64", Kind::Send, 64),
        ("send-1364", Kind::Send, 1364),
        ("send-8192", Kind::Send, 8192),
        ("write-65536", Kind::Write, 64 << 10),
        ("write-1048576", Kind::Write, 1 << 20),
    ] {
        for (suffix, crc) in [("crc", true), ("bare", false)] {
            shapes.push((format!("{word}-{suffix}"), Shape::new(kind, length, crc)));
        }
    }
    // Towards an adapter on an Ethernet.
    for (word, kind, length) in [
        ("send-8192-by-1448-crc", Kind::Send, 8192),
        ("write-65536-by-1448-crc", Kind::Write, 64 << 10),
    ] {
        let max_fpdu = mpa::max_fpdu(1448);
        let shape = Shape {
            max_fpdu,
            ..Shape::new(kind, length, true)
        };
        shapes.push((word.to_owned(), shape));
    }
    let mut cases = Vec::new();
    for (word, shape) in shapes {
        let name = format!("iwarp/transmit/{word}");
        cases.push(Case::new(name, "FPDU", move || Transmit::new(shape)));
        let name = format!("iwarp/receive/{word}");
        cases.push(Case::new(name, "FPDU", move || Receive::new(shape)));
    }
    for length in [64 << 10, 1 << 20] {
        let name = format!("iwarp/both/read-{length}-crc");
        cases.push(Case::new(name, "read", move || Reads::new(length)));
    }
    cases
}

fn stream(initiator: bool, max_fpdu: usize, crc: bool) -> Stream {
    Stream::new(&StreamConfig {
        initiator,
        crc,
        max_fpdu,
        one_fpdu_a_write: false,
        max_backlog: 1024 * 1024,
        max_outbound_reads: 32,
        max_inbound_reads: 32,
        ready_to_receive: None,
    })
}

/// An end that posts messages, with their content.
#[derive(Debug)]
struct Poster {
    stream: Stream,
    shape: Shape,
    header: Inline,
    payload: Bytes,
    to: RemoteAddress,
    /// Number of messages posted so far, which is the id of the next.
    posted: u64,
}

impl Poster {
    /// Posts messages; Writes go to `to`.
    fn new(shape: Shape, to: RemoteAddress) -> Self {
        let header = match shape.kind {
            Kind::Send => HEADER,
            Kind::Write => 0,
        };
        Self {
            stream: stream(true, shape.max_fpdu, shape.crc),
            shape,
            header: Inline::build(|out| out.put_bytes(0x11, header)),
            payload: content(shape.length - header),
            to,
            posted: 0,
        }
    }

    fn post(&mut self) {
        self.posted += 1;
        let (id, payload) = (WorkId(self.posted), self.payload.clone());
        self.stream.post(match self.shape.kind {
            Kind::Send => WorkRequest::Send {
                id,
                header: self.header,
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
}

/// The sending half. Its output is discarded.
#[derive(Debug)]
pub(crate) struct Transmit {
    poster: Poster,
}

impl Transmit {
    pub(crate) fn new(shape: Shape) -> Self {
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
        let shape = self.poster.shape;
        for _ in 0..shape.per_batch() {
            self.poster.post();
        }
        let stream = &mut self.poster.stream;
        while stream.prepare() > 0 {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = stream.transmit_slices(&mut slices);
            let taken = slices[..count].iter().map(|slice| slice.len()).sum();
            stream.transmitted(taken);
        }
        let mut last = None;
        while let Some(completion) = stream.poll_completion() {
            let (Completion::Sent { id } | Completion::Written { id }) = completion else {
                panic!("{completion:?}");
            };
            last = Some(id.0);
        }
        assert_eq!(last, Some(self.poster.posted), "all is sent");
        Done {
            items: (shape.per_batch() * shape.on_the_wire().0) as u64,
            bytes: (shape.per_batch() * shape.length) as u64,
        }
    }
}

/// The receiving half: consecutive reads from the socket, each as long as the stream has room
/// for.
#[derive(Debug)]
pub(crate) struct Receive {
    poster: Poster,
    stream: Stream,
    /// Bytes that were sent and not read.
    wire: BytesMut,
    /// Length of the next read in bytes.
    ready: usize,
    /// Bytes read in total.
    received: u64,
}

impl Receive {
    pub(crate) fn new(shape: Shape) -> Self {
        let mut stream = stream(false, shape.max_fpdu, shape.crc);
        let memory = BytesMut::zeroed(shape.length);
        let registered = stream.memory().register(memory, Access::REMOTE_WRITE);
        let to = registered.expect("the first of them").address;
        Self {
            poster: Poster::new(shape, to),
            stream,
            wire: BytesMut::new(),
            ready: 0,
            received: 0,
        }
    }

    /// Items up to the byte `at` of the stream.
    fn items(&self, at: u64) -> u64 {
        let (fpdus, bytes) = self.poster.shape.on_the_wire();
        let (messages, rest) = (at / bytes as u64, at % bytes as u64);
        messages * fpdus as u64 + rest * fpdus as u64 / bytes as u64
    }
}

impl Unit for Receive {
    fn feed(&mut self) {
        let Room { receives, .. } = self.stream.room();
        self.stream.post(WorkRequest::Receive {
            id: WorkId(1),
            length: self.poster.shape.length as u32,
            count: receives as u32,
        });
        let mut read = 0;
        for slice in self.stream.receive_slices() {
            while self.wire.len() < slice.len() {
                self.poster.post();
                while self.poster.stream.prepare() > 0 {
                    let mut slices = [IoSlice::new(&[]); SLICES];
                    let count = self.poster.stream.transmit_slices(&mut slices);
                    let before = self.wire.len();
                    for slice in &slices[..count] {
                        self.wire.extend_from_slice(slice);
                    }
                    let taken = self.wire.len() - before;
                    self.poster.stream.transmitted(taken);
                }
                while self.poster.stream.poll_completion().is_some() {}
            }
            slice.copy_from_slice(&self.wire.split_to(slice.len()));
            read += slice.len();
        }
        self.ready = read;
    }

    fn run(&mut self) -> Done {
        self.stream.received(self.ready);
        while let Some(completion) = self.stream.poll_completion() {
            assert!(
                matches!(completion, Completion::Received { .. }),
                "{completion:?}"
            );
        }
        let before = self.received;
        self.received += self.ready as u64;
        let items = self.items(self.received) - self.items(before);
        let (fpdus, _) = self.poster.shape.on_the_wire();
        Done {
            items,
            bytes: items * self.poster.shape.length as u64 / fpdus as u64,
        }
    }
}

/// Reads. Both ends are measured, and the copy of the bytes from one to the other.
#[derive(Debug)]
pub(crate) struct Reads {
    reader: Stream,
    source: Stream,
    from: RemoteAddress,
    /// Buffers that wait for the next batch.
    buffers: Vec<BytesMut>,
    length: usize,
}

impl Reads {
    pub(crate) fn new(length: usize) -> Self {
        let max_fpdu = mpa::max_fpdu(u32::MAX);
        let mut source = stream(false, max_fpdu, true);
        let memory = BytesMut::from(&content(length)[..]);
        let registered = source.memory().register(memory, Access::REMOTE_READ);
        let from = registered.expect("the first of them").address;
        Self {
            reader: stream(true, max_fpdu, true),
            source,
            from,
            buffers: vec![BytesMut::zeroed(length); 16],
            length,
        }
    }
}

/// Moves the output of `from` to `to`.
fn carry(from: &mut Stream, to: &mut Stream) {
    while from.prepare() > 0 {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let count = from.transmit_slices(&mut slices);
        let mut slices = &mut slices[..count];
        let mut taken = 0;
        for mut into in to.receive_slices() {
            while let (Some(first), false) = (slices.first(), into.is_empty()) {
                let count = first.len().min(into.len());
                into[..count].copy_from_slice(&first[..count]);
                into = &mut into[count..];
                taken += count;
                IoSlice::advance_slices(&mut slices, count);
            }
        }
        to.received(taken);
        from.transmitted(taken);
    }
}

impl Unit for Reads {
    fn feed(&mut self) {}

    fn run(&mut self) -> Done {
        let mut done = Done::default();
        for into in self.buffers.drain(..) {
            self.reader.post(WorkRequest::Read {
                id: WorkId(1),
                from: self.from,
                into,
            });
        }
        carry(&mut self.reader, &mut self.source);
        carry(&mut self.source, &mut self.reader);
        while let Some(completion) = self.reader.poll_completion() {
            let Completion::Read { buffer, .. } = completion else {
                panic!("{completion:?}");
            };
            done.items += 1;
            done.bytes += buffer.len() as u64;
            self.buffers.push(buffer);
        }
        assert_eq!(done.bytes, 16 * self.length as u64, "all is read");
        done
    }
}
