//! Two iWARP streams connected without a socket, and one stream against a hand-made peer.

mod closing;
mod random;
mod startup;
mod violations;
mod work;

use std::io::IoSlice;

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use smbdirect_rdma::{
    iwarp::{
        Rtr, Stream, StreamConfig,
        ddp::{Header, Tagged, Untagged},
        mpa::Fpdu,
        rdmap::{Opcode, ReadRequest, Terminate, TerminateCode},
    },
    work::{Access, Completion, Disconnect, Inline, RemoteAddress, Token, WorkId, WorkRequest},
};

const NOWHERE: RemoteAddress = RemoteAddress {
    token: Token(0x77),
    offset: 0,
};

fn config(initiator: bool) -> StreamConfig {
    StreamConfig {
        initiator,
        crc: true,
        max_fpdu: 1448,
        one_fpdu_a_write: false,
        max_backlog: 512 * 1024,
        max_outbound_reads: 4,
        max_inbound_reads: 4,
        ready_to_receive: None,
    }
}

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length)
        .map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed) ^ (at >> 8) as u8)
        .collect()
}

fn receive(id: u64, length: u32) -> WorkRequest {
    let (id, count) = (WorkId(id), 1);
    WorkRequest::Receive { id, length, count }
}

fn send(id: u64, payload: impl Into<Bytes>) -> WorkRequest {
    WorkRequest::Send {
        id: WorkId(id),
        header: Inline::new(),
        payload: payload.into(),
        invalidate: None,
    }
}

fn read(id: u64, from: RemoteAddress, length: usize) -> WorkRequest {
    WorkRequest::Read {
        id: WorkId(id),
        from,
        into: BytesMut::zeroed(length),
    }
}

fn write(id: u64, data: impl Into<Bytes>, to: RemoteAddress) -> WorkRequest {
    WorkRequest::Write {
        id: WorkId(id),
        data: data.into(),
        to,
    }
}

fn register(stream: &mut Stream, data: &[u8], access: Access) -> RemoteAddress {
    let registration = stream.memory().register(BytesMut::from(data), access);
    registration.unwrap().address
}

/// Takes the bytes of the next write, up to `limit`.
fn take(stream: &mut Stream, limit: usize) -> Vec<u8> {
    stream.prepare();
    let mut slices = [IoSlice::new(&[]); 16];
    let count = stream.transmit_slices(&mut slices);
    let mut bytes: Vec<u8> = slices[..count]
        .iter()
        .flat_map(|slice| slice.to_vec())
        .collect();
    bytes.truncate(limit);
    stream.transmitted(bytes.len());
    bytes
}

fn take_all(stream: &mut Stream) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let bytes = take(stream, usize::MAX);
        if bytes.is_empty() {
            return all;
        }
        all.extend(bytes);
    }
}

/// Moves bytes in both directions until there are none.
fn exchange(one: &mut Stream, other: &mut Stream) {
    loop {
        let (there, back) = (take_all(one), take_all(other));
        if there.is_empty() && back.is_empty() {
            return;
        }
        other.handle_bytes(&there);
        one.handle_bytes(&back);
    }
}

fn completions(stream: &mut Stream) -> Vec<Completion> {
    std::iter::from_fn(|| stream.poll_completion()).collect()
}

/// Returns completions as short words, without their contents.
fn words(completions: &[Completion]) -> Vec<String> {
    let word = |completion: &Completion| match completion {
        Completion::Head(_) => "head".to_owned(),
        Completion::Received { id, .. } => format!("received {}", id.0),
        Completion::Sent { id } => format!("sent {}", id.0),
        Completion::Read { id, .. } => format!("read {}", id.0),
        Completion::Written { id } => format!("written {}", id.0),
        Completion::Flushed { id, .. } => format!("flushed {}", id.0),
        Completion::Disconnected(Disconnect::Local) => "local".into(),
        Completion::Disconnected(Disconnect::Remote) => "remote".into(),
        Completion::Disconnected(Disconnect::Broken(error)) => format!("{:?}", error.kind),
    };
    completions.iter().map(word).collect()
}

/// Returns the opcodes of the FPDUs in `bytes`, which must be complete.
fn opcodes(mut bytes: &[u8]) -> Vec<Opcode> {
    let mut opcodes = Vec::new();
    while !bytes.is_empty() {
        let fpdu = Fpdu::decode(bytes, true).unwrap().unwrap();
        opcodes.push(Opcode::of(&Header::decode(fpdu.ulpdu).unwrap().0).unwrap());
        bytes = &bytes[fpdu.length..];
    }
    opcodes
}

fn fpdu(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Fpdu::encode(parts, true, &mut bytes);
    bytes
}

fn untagged(opcode: Opcode, number: u32) -> Untagged {
    Untagged {
        last: true,
        rdmap_control: opcode.control(),
        rsvd_ulp: 0,
        queue_number: opcode.queue_number(),
        message_sequence_number: number,
        message_offset: 0,
    }
}

fn tagged(opcode: Opcode, at: RemoteAddress) -> Tagged {
    Tagged {
        last: true,
        rdmap_control: opcode.control(),
        stag: at.token.0,
        tagged_offset: at.offset,
    }
}

/// Encodes the ready-to-receive frame, which permits a responder to send.
fn rtr() -> Vec<u8> {
    fpdu(&[&tagged(Opcode::RdmaWrite, NOWHERE).encode()])
}

fn read_request(number: u32, source: RemoteAddress, read_message_size: u32) -> Vec<u8> {
    let request = ReadRequest {
        sink_stag: 0xabcd,
        sink_tagged_offset: 64,
        read_message_size,
        source_stag: source.token.0,
        source_tagged_offset: source.offset,
    };
    let header = untagged(Opcode::RdmaReadRequest, number).encode();
    fpdu(&[&header, &request.encode()])
}

/// Returns the Terminate that `bytes` cause, and checks that nothing else is sent.
fn terminated(stream: &mut Stream, bytes: &[u8]) -> Terminate {
    stream.handle_bytes(bytes);
    let said = take_all(stream);
    let fpdu = Fpdu::decode(&said, true).unwrap().expect("a Terminate");
    assert_eq!(fpdu.length, said.len(), "nothing but a Terminate");
    let (header, payload) = Header::decode(fpdu.ulpdu).unwrap();
    assert_eq!(header, Header::Untagged(untagged(Opcode::Terminate, 1)));
    Terminate::decode(payload)
}
