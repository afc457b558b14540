//! Random work in both directions over random cuts of the stream.

use super::*;

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
