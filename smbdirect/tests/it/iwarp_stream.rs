//! Two iWARP streams connected without a socket, and one stream against a hand-made peer.

use std::io::IoSlice;

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use smbdirect::rdma::{
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

#[derive(Clone, Debug)]
enum Op {
    Send { header: usize, payload: usize },
    Invalidate,
    Write { start: usize, length: usize },
    Read { start: usize, length: usize },
}

fn op() -> impl Strategy<Value = Op> {
    let size = || {
        prop_oneof![
            Just(0_usize),
            1..64_usize,
            64..5000_usize,
            5000..90_000_usize
        ]
    };
    prop_oneof![
        (0..=32_usize, size()).prop_map(|(header, payload)| Op::Send { header, payload }),
        Just(Op::Invalidate),
        (size(), size()).prop_map(|(start, length)| Op::Write { start, length }),
        (size(), size()).prop_map(|(start, length)| Op::Read { start, length }),
    ]
}

const REGION: usize = 200_000;

/// One end, and the completions that it expects.
struct End {
    stream: Stream,
    region: RemoteAddress,
    written: Vec<u8>,
    source: RemoteAddress,
    data: Vec<u8>,
    spare: Vec<Token>,
    messages: Vec<(Vec<u8>, Option<Token>)>,
    posted: Vec<u64>,
}

impl End {
    fn new(config: &StreamConfig, seed: u8) -> Self {
        let mut stream = Stream::new(config);
        let all = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let data = pattern(REGION, seed);
        let once = Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
        for id in 0..40 {
            stream.post(receive(id, 100_000));
        }
        Self {
            region: register(&mut stream, &[0; REGION], all),
            written: vec![0; REGION],
            source: register(&mut stream, &data, Access::REMOTE_READ),
            data,
            spare: (0..20)
                .map(|_| register(&mut stream, &[0], once).token)
                .collect(),
            stream,
            messages: Vec::new(),
            posted: Vec::new(),
        }
    }

    /// Posts `ops` and records their expected effects at the `peer`.
    fn post(&mut self, ops: &[Op], peer: &mut Self) {
        let at = |base: RemoteAddress, start: usize| RemoteAddress {
            offset: base.offset + start as u64,
            ..base
        };
        for (id, op) in (1000..).zip(ops) {
            self.posted.push(id);
            match *op {
                Op::Send { header, payload } => {
                    let message = pattern(header + payload, id as u8);
                    self.stream.post(WorkRequest::Send {
                        id: WorkId(id),
                        header: Inline::build(|out| {
                            bytes::BufMut::put_slice(out, &message[..header]);
                        }),
                        payload: Bytes::copy_from_slice(&message[header..]),
                        invalidate: None,
                    });
                    peer.messages.push((message, None));
                }
                Op::Invalidate => {
                    let invalidate = peer.spare.pop();
                    self.stream.post(WorkRequest::Send {
                        id: WorkId(id),
                        header: Inline::new(),
                        payload: Bytes::from_static(b"done"),
                        invalidate,
                    });
                    peer.messages.push((b"done".to_vec(), invalidate));
                }
                Op::Write { start, length } => {
                    let data = pattern(length, id as u8);
                    peer.written[start..start + length].copy_from_slice(&data);
                    self.stream.post(write(id, data, at(peer.region, start)));
                }
                Op::Read { start, length } => {
                    self.stream.post(read(id, at(peer.source, start), length));
                }
            }
        }
    }

    fn check(&mut self, ops: &[Op], peer_data: &[u8]) {
        let (mut finished, mut sent) = (Vec::new(), 999);
        let mut messages = std::mem::take(&mut self.messages).into_iter();
        for completion in completions(&mut self.stream) {
            match completion {
                Completion::Received {
                    message,
                    invalidated,
                    ..
                } => {
                    let (expected, token) = messages
                        .next()
                        .expect("a message was received that was not sent");
                    assert!(message == expected, "a message differs");
                    assert_eq!(invalidated, token);
                }
                // Consecutive Sends are completed by the last of them.
                Completion::Sent { id } => {
                    let is_send = |id: &u64| {
                        matches!(ops[*id as usize - 1000], Op::Send { .. } | Op::Invalidate)
                    };
                    let sends = (sent + 1..=id.0).filter(is_send);
                    finished.extend(sends);
                    assert_eq!(finished.last(), Some(&id.0));
                    sent = id.0;
                }
                Completion::Written { id } => finished.push(id.0),
                Completion::Read { id, buffer } => {
                    let Op::Read { start, length } = ops[id.0 as usize - 1000] else {
                        panic!("{id:?} was no Read");
                    };
                    assert!(buffer == peer_data[start..start + length], "a read differs");
                    finished.push(id.0);
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(messages.next().is_none(), "messages are missing");
        finished.sort_unstable();
        assert_eq!(finished, self.posted);
        let region = self.stream.memory().deregister(self.region.token).unwrap();
        assert!(region == self.written[..], "written data differs");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    //= MPA-24 test
    //= DDP-04 test
    //= DDP-05 test
    //= DDP-09 test
    //= DDP-10 test
    //= DDP-11 test
    //= DDP-12 test
    //= DDP-17 test
    //= RDMAP-06 test
    //= RDMAP-11 test
    //= RDMAP-12 test
    //= RDMAP-15 test
    //= RDMAP-16 test
    //= RDMAP-25 test
    #[test]
    fn everything_arrives_complete_and_in_order_for_any_segmentation(
        ours in proptest::collection::vec(op(), 0..20),
        theirs in proptest::collection::vec(op(), 0..20),
        max_fpdu in prop_oneof![Just(136_usize), Just(1448), Just(8960), Just(65480), Just(65536)],
        crc: bool,
        rtr in prop_oneof![Just(Rtr::Write), Just(Rtr::Read)],
        depth in 1..5_u32,
        seed: u64,
    ) {
        let both = StreamConfig {
            crc, max_fpdu, max_outbound_reads: depth, max_inbound_reads: depth, ..config(false)
        };
        let mut other = End::new(&both, 2);
        let initiator = StreamConfig {
            initiator: true, ready_to_receive: Some(rtr), ..both
        };
        let mut one = End::new(&initiator, 1);
        one.post(&ours, &mut other);
        other.post(&theirs, &mut one);
        let mut random = seed | 1;
        let mut cut = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let most = [3, 100, 3000, 200_000, 200_000][(random % 5) as usize];
            1 + (random >> 8) as usize % most
        };
        loop {
            let there = take(&mut one.stream, cut());
            other.stream.handle_bytes(&there);
            let back = take(&mut other.stream, cut());
            one.stream.handle_bytes(&back);
            if there.is_empty() && back.is_empty() {
                break;
            }
        }
        prop_assert!(one.stream.is_drained() && other.stream.is_drained());
        one.check(&ours, &other.data);
        other.check(&theirs, &one.data);
    }

    //= SEC-08 test
    #[test]
    fn arbitrary_bytes_do_not_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..400), crc: bool, reading: bool,
    ) {
        let mut stream = Stream::new(&StreamConfig { crc, ..config(false) });
        stream.post(receive(1, 100));
        stream.handle_bytes(&rtr());
        if reading {
            stream.post(read(2, NOWHERE, 100));
            take_all(&mut stream);
        }
        stream.handle_bytes(&bytes);
        take_all(&mut stream);
        stream.handle_end();
        let last = completions(&mut stream).pop();
        prop_assert!(matches!(last, Some(Completion::Disconnected(_))));
    }

    //= SEC-08 test
    #[test]
    fn a_mutated_stream_neither_panics_nor_writes_elsewhere(
        flips in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..8),
    ) {
        let mut stream = Stream::new(&StreamConfig { crc: false, ..config(false) });
        let once = Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
        let region = register(&mut stream, &[0; 64], once);
        let secret = register(&mut stream, &[7; 64], Access::REMOTE_READ);
        for id in 0..4 {
            stream.post(receive(id, 64));
        }
        let mut bytes = fpdu(&[&untagged(Opcode::Send, 1).encode(), b"hello"]);
        bytes.extend(fpdu(&[&tagged(Opcode::RdmaWrite, region).encode(), &[1; 64]]));
        bytes.extend(read_request(1, secret, 64));
        let invalidate = Untagged {
            rsvd_ulp: region.token.0, ..untagged(Opcode::SendInvalidate, 2)
        };
        bytes.extend(fpdu(&[&invalidate.encode(), b"done"]));
        for (at, with) in flips {
            let at = usize::from(at) % bytes.len();
            bytes[at] = with;
        }
        stream.handle_bytes(&bytes);
        take_all(&mut stream);
        stream.handle_end();
        let last = completions(&mut stream).pop();
        prop_assert!(matches!(last, Some(Completion::Disconnected(_))));
        prop_assert_eq!(stream.memory().deregister(secret.token).unwrap(), &[7; 64][..]);
    }
}

//= MPA-22 test
//= MPA-25 test
//= DDP-01 test
//= DDP-03 test
//= DDP-04 test
//= DDP-05 test
//= DDP-06 test
//= DDP-07 test
//= DDP-08 test
//= DDP-12 test
//= DDP-14 test
//= DDP-15 test
//= DDP-17 test
//= RDMAP-01 test
//= RDMAP-02 test
//= RDMAP-03 test
//= RDMAP-07 test
//= RDMAP-09 test
//= RDMAP-13 test
//= RDMAP-18 test
//= RDMAP-19 test
//= RDMAP-21 test
#[test]
fn every_violation_has_its_terminate() {
    fn changed(change: impl FnOnce(&mut Untagged)) -> Vec<u8> {
        let mut header = untagged(Opcode::Send, 1);
        change(&mut header);
        fpdu(&[&header.encode(), b"hello"])
    }
    fn patched(at: usize, mut ulpdu: Vec<u8>, with: u8) -> Vec<u8> {
        ulpdu[at] = with;
        fpdu(&[&ulpdu])
    }
    let good = [&untagged(Opcode::Send, 1).encode()[..], b"hello"].concat();
    let write_to = |at| fpdu(&[&tagged(Opcode::RdmaWrite, at).encode(), &[0; 8]]);
    let invalidate = |token: Token| {
        let header = Untagged {
            rsvd_ulp: token.0,
            ..untagged(Opcode::SendInvalidate, 1)
        };
        fpdu(&[&header.encode()])
    };
    let moved = |at: RemoteAddress, offset| RemoteAddress { offset, ..at };
    let mut bad_crc = fpdu(&[&good]);
    *bad_crc.last_mut().unwrap() ^= 1;

    let mut owner = Stream::new(&config(false));
    let writable = register(&mut owner, &[0; 8], Access::REMOTE_WRITE);
    let readable = register(&mut owner, &[0; 8], Access::REMOTE_READ);
    let to = tagged(Opcode::RdmaWrite, writable).encode().to_vec();
    let asked = read_request(1, readable, 8)[2..48].to_vec();
    let long_read = [&asked[..], &[0]].concat();
    let too_long = fpdu(&[&untagged(Opcode::Send, 1).encode(), &[0; 101]]);
    let answer = tagged(Opcode::RdmaReadResponse, NOWHERE).encode();
    let top = u64::MAX - 3;

    // The violation, the bytes, the code, and the number of copied header bytes.
    for (what, bytes, code, shown) in [
        ("CRC", bad_crc, (2, 0, 2), 0),
        ("no ULPDU", fpdu(&[]), (2, 0, 3), 0),
        ("short tagged", fpdu(&[&to[..13]]), (2, 0, 3), 0),
        ("short untagged", fpdu(&[&good[..17]]), (2, 0, 3), 0),
        ("long read request", fpdu(&[&long_read]), (2, 0, 3), 0),
        ("tagged DV", patched(0, to.clone(), 0xc2), (1, 1, 4), 0),
        ("untagged DV", patched(0, good.clone(), 0x40), (1, 2, 6), 0),
        ("RV", patched(1, good.clone(), 0x83), (0, 2, 5), 0),
        ("opcode", patched(1, good.clone(), 0x48), (0, 2, 6), 0),
        ("T bit", patched(1, good.clone(), 0x40), (0, 2, 6), 0),
        (
            "QN 1",
            changed(|header| header.queue_number = 1),
            (1, 2, 1),
            18,
        ),
        (
            "QN 3",
            changed(|header| header.queue_number = 3),
            (1, 2, 1),
            18,
        ),
        (
            "MSN 0",
            changed(|header| header.message_sequence_number = 0),
            (1, 2, 3),
            18,
        ),
        (
            "MSN 2",
            changed(|header| header.message_sequence_number = 2),
            (1, 2, 3),
            18,
        ),
        (
            "MO",
            changed(|header| header.message_offset = 1),
            (1, 2, 4),
            18,
        ),
        ("too long", too_long, (1, 2, 5), 18),
        ("read MSN", read_request(2, readable, 8), (1, 2, 3), 46),
        ("read MO", patched(17, asked.clone(), 1), (1, 2, 4), 46),
        ("read L", patched(0, asked, 0x01), (0, 2, 0xff), 0),
        ("write STag", write_to(NOWHERE), (1, 1, 0), 14),
        ("write rights", write_to(readable), (1, 1, 0), 14),
        (
            "write bounds",
            write_to(moved(writable, writable.offset + 1)),
            (1, 1, 1),
            14,
        ),
        ("write wrap", write_to(moved(writable, top)), (1, 1, 3), 14),
        ("read STag", read_request(1, NOWHERE, 8), (0, 1, 0), 46),
        ("read rights", read_request(1, writable, 8), (0, 1, 2), 46),
        ("read bounds", read_request(1, readable, 9), (0, 1, 1), 46),
        (
            "read wrap",
            read_request(1, moved(readable, top), 8),
            (0, 1, 4),
            46,
        ),
        ("no such read", fpdu(&[&answer]), (0, 2, 6), 0),
        ("invalidate STag", invalidate(NOWHERE.token), (0, 1, 9), 18),
        (
            "invalidate rights",
            invalidate(writable.token),
            (0, 1, 9),
            18,
        ),
    ] {
        let mut stream = Stream::new(&config(false));
        std::mem::swap(stream.memory(), owner.memory());
        stream.handle_bytes(&rtr());
        stream.post(receive(1, 100));
        stream.post(receive(2, 100));
        let terminate = terminated(&mut stream, &bytes);
        let code = TerminateCode::new(code.0, code.1, code.2);
        assert_eq!(terminate.code(), code, "{what}");
        let expected = match shown {
            0 => Vec::new(),
            _ => [&bytes[..2], &bytes[2..2 + shown]].concat(),
        };
        assert_eq!(terminate.copied, expected, "{what}");
        let seen = words(&completions(&mut stream));
        assert_eq!(seen, ["flushed 1", "flushed 2", "Protocol"], "{what}");
        // Bytes after the fault have no effect, and there is no second Terminate.
        stream.handle_bytes(&fpdu(&[&good]));
        assert!(take_all(&mut stream).is_empty() && completions(&mut stream).is_empty());
        std::mem::swap(stream.memory(), owner.memory());
    }
    let mut stream = Stream::new(&config(false));
    stream.handle_bytes(&rtr());
    let terminate = terminated(&mut stream, &fpdu(&[&good]));
    assert_eq!(terminate.code(), TerminateCode::new(1, 2, 2), "no receive");
}

//= RDMAP-08 test
//= DDP-13 test
//= RDMAP-10 test
#[test]
fn a_read_response_must_match_its_request() {
    let asking = || {
        let mut stream = Stream::new(&config(true));
        stream.post(read(1, NOWHERE, 16));
        let asked = take_all(&mut stream);
        let (_, payload) = Header::decode(&asked[2..48]).unwrap();
        let request = ReadRequest::decode(payload).unwrap();
        let sink = RemoteAddress {
            token: Token(request.sink_stag),
            offset: request.sink_tagged_offset,
        };
        (stream, sink)
    };
    let response = |stag_flip, sink: RemoteAddress, offset, last, data: &[u8]| {
        let header = Tagged {
            last,
            stag: sink.token.0 ^ stag_flip,
            tagged_offset: sink.offset.wrapping_add(offset),
            ..tagged(Opcode::RdmaReadResponse, sink)
        };
        fpdu(&[&header.encode(), data])
    };
    for (what, code, flip, offset, length) in [
        ("STag", 0, 1, 0, 16),
        ("offset", 1, 0, 1, 15),
        ("too long", 1, 0, 0, 17),
        ("too short", 1, 0, 0, 15),
        ("empty", 1, 0, 0, 0),
    ] {
        let (mut stream, sink) = asking();
        let bytes = response(flip, sink, offset, true, &vec![1; length]);
        let code = TerminateCode::new(1, 1, code);
        assert_eq!(terminated(&mut stream, &bytes).code(), code, "{what}");
        assert_eq!(words(&completions(&mut stream)), ["flushed 1", "Protocol"]);
    }
    let (mut stream, sink) = asking();
    for bytes in [
        response(0, sink, 0, false, &[1; 8]),
        response(0, NOWHERE, 5, false, &[]),
        response(0, sink, 8, false, &[2; 8]),
    ] {
        stream.handle_bytes(&bytes);
        assert!(!stream.has_completion());
    }
    // The last segment of a message may be empty, and then its address is not checked.
    stream.handle_bytes(&response(0, NOWHERE, 99, true, &[]));
    let [Completion::Read { buffer, .. }] = &completions(&mut stream)[..] else {
        panic!("no read");
    };
    assert_eq!(buffer[..], [[1; 8], [2; 8]].concat());
}

//= RDMAP-04 test
//= EST-09 test
//= SEC-06 test
#[test]
fn reads_beyond_the_granted_depth_are_a_violation() {
    let mut stream = Stream::new(&config(false));
    let source = register(&mut stream, b"12345678", Access::REMOTE_READ);
    let requests = |numbers: std::ops::RangeInclusive<u32>| -> Vec<u8> {
        numbers
            .flat_map(|number| read_request(number, source, 8))
            .collect()
    };
    stream.handle_bytes(&requests(1..=4));
    assert_eq!(
        opcodes(&take_all(&mut stream)),
        [Opcode::RdmaReadResponse; 4]
    );
    let terminate = terminated(&mut stream, &requests(5..=9));
    assert_eq!(terminate.code(), TerminateCode::new(0, 2, 7));
    assert_eq!(terminate.copied.len(), 2 + 46);
}

//= RDMAP-05 test
#[test]
fn reads_beyond_the_depth_of_the_peer_wait_in_order() {
    let mut one = Stream::new(&config(true));
    let mut other = Stream::new(&config(false));
    let source = register(&mut other, &pattern(100, 3), Access::REMOTE_READ);
    other.post(receive(1, 100));
    for id in 0..10 {
        one.post(read(id, source, 10 * id as usize));
    }
    one.post(send(10, &b"behind them"[..]));
    let first = take_all(&mut one);
    assert_eq!(opcodes(&first), [Opcode::RdmaReadRequest; 4]);
    assert!(!one.is_drained());
    other.handle_bytes(&first);
    exchange(&mut one, &mut other);
    assert!(one.is_drained());
    let all = completions(&mut one);
    let reads: Vec<_> = (0..10).map(|id| format!("read {id}")).collect();
    let (seen, sent): (Vec<_>, Vec<_>) = words(&all)
        .into_iter()
        .partition(|word| word.starts_with("read"));
    assert_eq!((seen, sent), (reads, vec!["sent 10".to_owned()]));
    for completion in &all {
        if let Completion::Read { id, buffer } = completion {
            assert_eq!(buffer[..], pattern(100, 3)[..10 * id.0 as usize]);
        }
    }
    assert_eq!(words(&completions(&mut other)), ["received 1"]);
}

//= MPA-07 test
//= EST-05 test
#[test]
fn a_responder_sends_nothing_before_the_first_fpdu() {
    let mut one = Stream::new(&config(true));
    let mut other = Stream::new(&config(false));
    one.post(receive(1, 10));
    other.post(receive(2, 10));
    other.post(send(3, &b"early"[..]));
    assert!(take_all(&mut other).is_empty());
    one.post(send(4, &b"first"[..]));
    let first = take_all(&mut one);
    other.handle_bytes(&first[..first.len() - 1]);
    assert!(take_all(&mut other).is_empty());
    other.handle_bytes(&first[first.len() - 1..]);
    exchange(&mut one, &mut other);
    assert_eq!(words(&completions(&mut one)), ["sent 4", "received 1"]);
    assert_eq!(words(&completions(&mut other)), ["sent 3", "received 2"]);

    // Not even a Terminate is sent before it.
    let mut other = Stream::new(&config(false));
    other.handle_bytes(&fpdu(&[b"nonsense of some length"]));
    assert!(take_all(&mut other).is_empty());
    assert_eq!(words(&completions(&mut other)), ["Protocol"]);
}

/// A valid first FPDU and a broken one arrive in one read, so the responder may send a Terminate.
//= MPA-07 test
//= MPA-22 test
#[test]
fn a_responder_may_send_a_terminate_after_the_first_fpdu() {
    let mut stream = Stream::new(&config(false));
    let mut broken = rtr();
    *broken.last_mut().unwrap() ^= 1;
    let terminate = terminated(&mut stream, &[rtr(), broken].concat());
    let TerminateCode {
        layer,
        error_type,
        error_code,
    } = terminate.code();
    assert_eq!((layer, error_type, error_code), (2, 0, 2));
    assert_eq!(words(&completions(&mut stream)), ["Protocol"]);
}

//= EST-03 test
//= EST-06 test
//= EST-07 test
#[test]
fn ready_to_receive_has_no_visible_effect() {
    for (kind, expected) in [
        (
            Rtr::Write,
            &[Opcode::RdmaWrite, Opcode::RdmaReadRequest][..],
        ),
        // A Read uses the only slot.
        (Rtr::Read, &[Opcode::RdmaReadRequest]),
    ] {
        let mut one = Stream::new(&StreamConfig {
            ready_to_receive: Some(kind),
            max_outbound_reads: 1,
            ..config(true)
        });
        let mut other = Stream::new(&config(false));
        let source = register(&mut other, b"data", Access::REMOTE_READ);
        one.post(read(5, source, 4));
        let first = take_all(&mut one);
        assert_eq!(opcodes(&first), expected);
        other.handle_bytes(&first);
        exchange(&mut one, &mut other);
        assert_eq!(words(&completions(&mut one)), ["read 5"]);
        assert!(completions(&mut other).is_empty());
    }
}

/// A startup probe wakes a responder that overlooked the first FPDU, and is sent only to such a
/// one.
//= MPA-36 test
//= DDP-13 test
#[test]
fn a_startup_probe_is_sent_only_to_a_silent_responder() {
    for ready_to_receive in [None, Some(Rtr::Write), Some(Rtr::Read)] {
        let mut one = Stream::new(&StreamConfig {
            ready_to_receive,
            ..config(true)
        });
        let mut other = Stream::new(&config(false));
        one.post(receive(1, 10));
        other.post(receive(2, 10));
        one.startup_probe();
        let mut said = take_all(&mut one);
        assert_eq!(
            opcodes(&said).len(),
            usize::from(ready_to_receive.is_some())
        );
        assert_eq!(one.is_unanswered(), ready_to_receive.is_some());

        one.post(send(3, &b"hello"[..]));
        assert!(!one.is_unanswered(), "more bytes follow anyway");
        said.extend(take_all(&mut one));
        assert!(one.is_unanswered());
        one.startup_probe();
        assert!(!one.is_unanswered());
        let startup_probe = take_all(&mut one);
        assert_eq!(opcodes(&startup_probe), [Opcode::RdmaWrite]);
        assert_eq!(startup_probe.len(), 20, "an empty one");
        assert!(one.is_unanswered());

        // The responder reports no completion for it.
        other.handle_bytes(&[said, startup_probe].concat());
        assert_eq!(words(&completions(&mut other)), ["received 2"]);
        assert!(
            !other.is_unanswered(),
            "only an initiator sends startup probes"
        );
        other.post(send(4, &b"good day"[..]));
        exchange(&mut one, &mut other);
        assert_eq!(words(&completions(&mut one)), ["sent 3", "received 1"]);
        assert!(!one.is_unanswered());
        one.startup_probe();
        assert!(take_all(&mut one).is_empty());
    }
    let mut closing = Stream::new(&config(true));
    closing.post(send(1, &b"bye"[..]));
    take_all(&mut closing);
    closing.close();
    closing.startup_probe();
    assert!(take_all(&mut closing).is_empty());
    closing.end(Disconnect::Local);
    assert!(!closing.is_unanswered());
}

//= RDMAP-20 test
//= RDMAP-21 test
#[test]
fn after_a_terminate_of_the_peer_everything_is_flushed_and_nothing_is_sent() {
    let mut stream = Stream::new(&config(true));
    stream.post(receive(1, 10));
    stream.post(read(2, NOWHERE, 10));
    stream.post(write(3, &[0; 5000][..], NOWHERE));
    stream.post(send(4, &b"never"[..]));
    take(&mut stream, 60);
    let terminate = Terminate::new(TerminateCode::new(1, 1, 0), None);
    stream.handle_bytes(&fpdu(&[&terminate.ulpdu()]));
    stream.post(send(5, &b"late"[..]));
    let all = completions(&mut stream);
    let expected = "flushed 3, flushed 4, flushed 2, flushed 1, flushed 5, Terminated";
    assert_eq!(words(&all).join(", "), expected);
    let Some(Completion::Disconnected(Disconnect::Broken(error))) = all.last() else {
        panic!("not broken");
    };
    assert!(error.what.contains("1/1/0 (tagged buffer: invalid STag)"));
    let buffer_is_back = |completion: &Completion| match completion {
        Completion::Flushed { id, buffer } => buffer.is_some() == (id.0 == 2),
        _ => true,
    };
    assert!(all.iter().all(buffer_is_back));
    assert!(take_all(&mut stream).is_empty());
    stream.post(send(6, &b"later"[..]));
    assert!(completions(&mut stream).is_empty());
}

//= MPA-34 test
//= DDP-09 test
#[test]
fn a_fin_is_graceful_at_a_boundary_and_an_error_elsewhere() {
    let whole = fpdu(&[&untagged(Opcode::Send, 1).encode(), b"hello"]);
    let open_send = Untagged {
        last: false,
        ..untagged(Opcode::Send, 1)
    };
    let open_write = Tagged {
        last: false,
        ..tagged(Opcode::RdmaWrite, NOWHERE)
    };
    for (bytes, expected) in [
        (&[][..], ["flushed 1", "remote"]),
        (&whole, ["received 1", "remote"]),
        (&whole[..1], ["flushed 1", "Reset"]),
        (&whole[..whole.len() - 1], ["flushed 1", "Reset"]),
        (
            &fpdu(&[&open_send.encode(), b"hel"]),
            ["flushed 1", "Reset"],
        ),
        (&fpdu(&[&open_write.encode()]), ["flushed 1", "Reset"]),
    ] {
        let mut stream = Stream::new(&config(false));
        stream.post(receive(1, 10));
        stream.handle_bytes(bytes);
        stream.handle_end();
        assert_eq!(words(&completions(&mut stream)), expected);
        assert!(take_all(&mut stream).is_empty());
    }
}

//= RDMAP-22 test
#[test]
fn closing_finishes_posted_work_and_takes_no_more() {
    let mut one = Stream::new(&config(true));
    let mut other = Stream::new(&config(false));
    let source = register(&mut other, b"123456789", Access::REMOTE_READ);
    other.post(receive(1, 10));
    one.post(receive(2, 10));
    one.post(read(3, source, 9));
    one.post(send(4, &b"last"[..]));
    one.close();
    one.post(send(5, &b"too late"[..]));
    assert!(!one.is_drained());
    exchange(&mut one, &mut other);
    assert!(one.is_drained());
    one.finish();
    other.handle_end();
    assert_eq!(words(&completions(&mut other)), ["received 1", "remote"]);
    one.handle_end();
    let seen = words(&completions(&mut one));
    assert_eq!(
        seen,
        ["read 3", "sent 4", "flushed 2", "flushed 5", "local"]
    );
}

//= RDMAP-23 test
#[test]
fn a_stream_is_not_drained_while_a_read_is_in_flight() {
    let mut one = Stream::new(&config(true));
    let mut other = Stream::new(&config(false));
    let source = register(&mut other, b"123456789", Access::REMOTE_READ);
    one.post(read(1, source, 9));
    let question = take_all(&mut one);
    assert!(!one.is_drained(), "expected");
    other.handle_bytes(&question);
    assert!(!other.is_drained(), "owed");
    let answer = take_all(&mut other);
    assert!(other.is_drained());
    one.handle_bytes(&answer);
    assert!(one.is_drained());
}

/// Reserves address space without touching its pages.
//= RDMAP-24 test
#[cfg(target_pointer_width = "64")]
#[test]
#[should_panic(expected = "less than 4 GiB")]
fn a_message_has_less_than_4_gib() {
    let mut stream = Stream::new(&config(true));
    stream.post(write(1, BytesMut::zeroed(u32::MAX as usize), NOWHERE));
    stream.post(write(2, BytesMut::zeroed(1 << 32), NOWHERE));
}

//= SEC-05 test
//= RDMAP-07 test
#[test]
fn the_right_to_read_is_checked_for_each_segment() {
    let mut stream = Stream::new(&config(false));
    let access = Access::REMOTE_READ | Access::REMOTE_INVALIDATE;
    let source = register(&mut stream, &vec![0; 4 << 20], access);
    let request = read_request(1, source, 4 << 20);
    stream.handle_bytes(&request);
    let mut said = take(&mut stream, 10_000);
    assert!(!said.is_empty());
    stream.memory().invalidate(source.token).unwrap();
    said.extend(take_all(&mut stream));
    assert!(
        said.len() < 1_200_000,
        "only the FPDUs made before the deregistration"
    );
    let mut seen = opcodes(&said);
    assert_eq!(seen.pop(), Some(Opcode::Terminate));
    assert!(
        seen.iter()
            .all(|opcode| *opcode == Opcode::RdmaReadResponse)
    );
    let fpdu = &said[said.len() - 76..];
    let (_, payload) = Header::decode(&fpdu[2..72]).unwrap();
    let terminate = Terminate::decode(payload);
    assert_eq!(terminate.code(), TerminateCode::new(0, 1, 0));
    assert_eq!(terminate.copied, request[..48]);
    // No slice of the buffer is left, so it is returned.
    assert!(stream.memory().deregister(source.token).is_ok());
}

//= DDP-16 test
//= SEC-05 test
//= PERF-03 test
#[test]
fn a_long_write_is_placed_directly_until_its_memory_is_deregistered() {
    for deregistered in [false, true] {
        let mut stream = Stream::new(&config(false));
        let place = register(&mut stream, &vec![0; 65_000], Access::REMOTE_WRITE);
        let data = pattern(60_000, 5);
        let bytes = fpdu(&[&tagged(Opcode::RdmaWrite, place).encode(), &data]);
        stream.handle_bytes(&bytes[..1000]);
        let [direct, staging] = stream.receive_slices();
        assert_eq!(direct.len(), 60_016 - 1000, "the rest of the payload");
        assert!(staging.len() > 100_000);
        if deregistered {
            stream.memory().deregister(place.token).unwrap();
            assert!(stream.receive_slices().iter().all(|slice| slice.is_empty()));
            assert_eq!(words(&completions(&mut stream)), ["Protocol"]);
            continue;
        }
        stream.handle_bytes(&bytes[1000..31_000]);
        assert_eq!(stream.receive_slices()[0].len(), 60_016 - 31_000);
        stream.handle_bytes(&bytes[31_000..bytes.len() - 2]);
        assert!(stream.receive_slices()[0].is_empty());
        stream.handle_bytes(&bytes[bytes.len() - 2..]);
        stream.handle_end();
        assert_eq!(words(&completions(&mut stream)), ["remote"]);
        let buffer = stream.memory().deregister(place.token).unwrap();
        assert_eq!(buffer[..60_000], data);
    }
}

//= MPA-22 test
//= RDMAP-16 test
#[test]
fn a_flipped_bit_in_a_directly_placed_response_fails_the_read() {
    let mut one = Stream::new(&config(true));
    let mut other = Stream::new(&StreamConfig {
        max_fpdu: 65_480,
        ..config(false)
    });
    let source = register(&mut other, &vec![0; 60_000], Access::REMOTE_READ);
    one.post(read(1, source, 60_000));
    other.handle_bytes(&take_all(&mut one));
    let mut response = take_all(&mut other);
    response[40_000] ^= 0x10;
    one.handle_bytes(&response[..5000]);
    assert!(!one.receive_slices()[0].is_empty());
    let terminate = terminated(&mut one, &response[5000..]);
    assert_eq!(terminate.code(), TerminateCode::new(2, 0, 2));
    assert_eq!(words(&completions(&mut one)), ["flushed 1", "Protocol"]);
}

//= PERF-02 test
//= MPA-28 test
#[test]
fn the_backlog_is_bounded_and_writes_are_batches() {
    let mut slices = [IoSlice::new(&[]); 8];
    let mut stream = Stream::new(&config(true));
    for id in 0..1000 {
        stream.post(send(id, pattern(1364, 1)));
    }
    let waiting = stream.prepare();
    assert!((512 * 1024..516 * 1024).contains(&waiting), "{waiting}");
    let count = stream.transmit_slices(&mut slices);
    assert_eq!(count, 1, "small messages are one slice");

    let mut slices = [IoSlice::new(&[]); 50];
    let mut stream = Stream::new(&StreamConfig {
        max_fpdu: 65_480,
        ..config(true)
    });
    stream.post(write(1, vec![0; 64 << 20], NOWHERE));
    let waiting = stream.prepare();
    assert!(waiting < 580 * 1024);
    let count = stream.transmit_slices(&mut slices);
    assert_eq!(
        count,
        2 * waiting.div_ceil(65_480) + 1,
        "a large FPDU adds two slices"
    );

    let mut stream = Stream::new(&StreamConfig {
        one_fpdu_a_write: true,
        ..config(true)
    });
    stream.post(write(1, vec![0; 5000], NOWHERE));
    stream.post(send(2, &b"small"[..]));
    let lengths: Vec<_> = std::iter::from_fn(|| {
        let bytes = take(&mut stream, 1000);
        (!bytes.is_empty()).then_some(bytes.len())
    })
    .collect();
    assert_eq!(lengths, [1000, 448, 1000, 448, 1000, 448, 736, 32]);
}

//= RDMAP-06 test
#[test]
fn read_responses_and_work_alternate() {
    let mut stream = Stream::new(&config(false));
    let source = register(&mut stream, &[0; 8], Access::REMOTE_READ);
    for id in 0..4 {
        stream.post(send(id, &b"mine"[..]));
    }
    for number in 1..=4 {
        stream.handle_bytes(&read_request(number, source, 8));
    }
    let seen = opcodes(&take_all(&mut stream));
    assert_eq!(seen, [Opcode::RdmaReadResponse, Opcode::Send].repeat(4));
}

//= MPA-23 test
#[test]
fn padding_is_zeros() {
    let mut stream = Stream::new(&StreamConfig {
        max_fpdu: 65_536,
        ..config(true)
    });
    // Short payloads are copied, and long ones are not.
    for (id, length) in (0..).zip([1, 2, 3, 4, 5001, 5002, 5003, 5004]) {
        stream.post(send(id, vec![0xff; length]));
    }
    let all = take_all(&mut stream);
    let (mut bytes, mut padding) = (&all[..], Vec::new());
    while !bytes.is_empty() {
        let fpdu = Fpdu::decode(bytes, true).unwrap().unwrap();
        padding.extend_from_slice(&bytes[2 + fpdu.ulpdu.len()..fpdu.length - Fpdu::CRC_LENGTH]);
        bytes = &bytes[fpdu.length..];
    }
    assert_eq!(padding, [0; 12]);
}

#[test]
fn the_last_finished_send_completes_all_earlier_ones() {
    let mut stream = Stream::new(&config(true));
    for id in [1, 2, 4, 5, 6] {
        stream.post(send(id, vec![1; 5000]));
        if id == 2 {
            stream.post(write(3, vec![3; 5000], NOWHERE));
        }
    }
    let all = take(&mut stream, 29_000).len();
    assert_eq!(all, 29_000, "a part of the last one waits");
    let told = words(&completions(&mut stream));
    assert_eq!(told, ["sent 2", "written 3", "sent 5"]);
    assert_eq!(stream.room().sends, 8192 - 1);
    take_all(&mut stream);
    assert_eq!(words(&completions(&mut stream)), ["sent 6"]);
}

//= RDMAP-15 test
#[test]
fn work_completes_when_the_socket_has_its_last_byte() {
    let mut stream = Stream::new(&config(true));
    stream.post(send(1, vec![1; 5000]));
    stream.post(write(2, vec![2; 5000], NOWHERE));
    stream.post(send(3, vec![3; 5000]));
    let mut done = Vec::new();
    let mut taken = 0;
    loop {
        let bytes = take(&mut stream, 1);
        if bytes.is_empty() {
            break;
        }
        taken += bytes.len();
        done.extend(
            words(&completions(&mut stream))
                .into_iter()
                .map(|what| (taken, what)),
        );
    }
    let ends = done.iter().map(|(at, _)| *at).collect::<Vec<_>>();
    let whats = done.iter().map(|(_, what)| &what[..]).collect::<Vec<_>>();
    assert_eq!(whats, ["sent 1", "written 2", "sent 3"]);
    assert!(
        ends[0] > 5000 && ends[1] > 10_000 && ends[2] == taken,
        "{ends:?}"
    );
}

//= RDMAP-12 test
//= RDMAP-14 test
#[test]
fn solicited_sends_are_received_like_sends() {
    let mut stream = Stream::new(&config(false));
    assert_eq!(stream.limits().max_transfer, u32::MAX);
    let once = Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
    let region = register(&mut stream, &[0; 8], once);
    stream.post(receive(1, 8));
    stream.post(receive(2, 8));
    let solicited = untagged(Opcode::SendSolicited, 1);
    let both = Untagged {
        rsvd_ulp: region.token.0,
        ..untagged(Opcode::SendSolicitedInvalidate, 2)
    };
    let mut bytes = fpdu(&[&solicited.encode(), b"one"]);
    bytes.extend(fpdu(&[&both.encode(), b"two"]));
    // When the completion is returned, the token is invalid.
    bytes.extend(fpdu(&[
        &tagged(Opcode::RdmaWrite, region).encode(),
        &[1; 8],
    ]));
    stream.handle_bytes(&bytes);
    let all = completions(&mut stream);
    assert_eq!(words(&all), ["received 1", "received 2", "Protocol"]);
    let token_of = |completion: &Completion| match completion {
        Completion::Received { invalidated, .. } => *invalidated,
        _ => None,
    };
    assert_eq!(token_of(&all[0]), None);
    assert_eq!(token_of(&all[1]), Some(region.token));
    let buffer = stream.memory().deregister(region.token).unwrap();
    assert_eq!(buffer, &[0; 8][..]);
}
