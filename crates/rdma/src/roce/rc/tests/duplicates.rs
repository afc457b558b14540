//! Duplicates in every state of the responder, and every pair of requests with a lost packet and a
//! duplicate.

use super::*;

/// A request of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    /// A Send of this many packets.
    Send(u32),
    /// A Send with Invalidate of one packet.
    SendInvalidate,
    /// A Write of this many packets, as one message.
    Write(u32),
    /// A Read of this many packets; 0 is a Read of no bytes.
    Read(u32),
}

use Request::*;

const REQUESTS: [Request; 8] = [
    Send(1),
    Send(3),
    SendInvalidate,
    Write(1),
    Write(3),
    Read(0),
    Read(1),
    Read(3),
];

/// A responder with receives, a region to read and write, and one to invalidate.
struct Setup {
    end: End,
    region: RemoteAddress,
    invalidated: [Token; 2],
}

impl Setup {
    fn new() -> Self {
        let mut end = End::new();
        end.post_receives(8, 4 * MTU as u32);
        let memory = end.queue_pair.memory();
        let mut register = |length: usize| {
            let buffer = BytesMut::from(&pattern(length)[..]);
            memory.register(buffer, Access::all()).unwrap().address
        };
        let region = register(4 * MTU);
        let invalidated = [register(1).token, register(1).token];
        Self {
            end,
            region,
            invalidated,
        }
    }

    /// Returns the packets of a request whose first PSN is `at`, and the PSN after it. `which` distinguishes the
    /// two requests of a pair.
    fn packets(&self, request: Request, at: u32, which: usize) -> (Vec<Packet>, u32) {
        use Opcode as Op;
        let last = MTU - 3;
        let of = |count: u32, opcodes: [Opcode; 4]| {
            let [first, middle, end, only] = opcodes;
            let packets = (0..count).map(move |index| match (index, index + 1 == count) {
                (0, true) => (only, at, last),
                (0, false) => (first, at, MTU),
                (_, false) => (middle, at + index, MTU),
                (_, true) => (end, at + index, last),
            });
            packets.collect::<Vec<_>>()
        };
        match request {
            Send(count) => {
                let sends = [Op::SendFirst, Op::SendMiddle, Op::SendLast, Op::SendOnly];
                let packets = of(count, sends).into_iter();
                let packets = packets.map(|(opcode, at, length)| plain(opcode, at, length));
                (packets.collect(), at + count)
            }
            SendInvalidate => {
                let r_key = self.invalidated[which].0;
                let extended = Extended::Ieth(Ieth { r_key });
                (
                    vec![packet(Op::SendOnlyInvalidate, at, extended, b"x")],
                    at + 1,
                )
            }
            Write(count) => {
                let writes = [
                    Op::WriteFirst,
                    Op::WriteMiddle,
                    Op::WriteLast,
                    Op::WriteOnly,
                ];
                let total = (count as usize - 1) * MTU + last;
                let packets = of(count, writes).into_iter();
                let packets = packets.map(|(opcode, at, length)| match opcode {
                    Op::WriteFirst | Op::WriteOnly => {
                        rdma(opcode, at, self.region, total as u32, length)
                    }
                    _ => plain(opcode, at, length),
                });
                (packets.collect(), at + count)
            }
            Read(count) => {
                let length = count.saturating_sub(1) as usize * MTU + usize::from(count > 0) * last;
                let request = rdma(Op::ReadRequest, at, self.region, length as u32, 0);
                (vec![request], at + count.max(1))
            }
        }
    }
}

/// The Reads of a peer, and what the peer knows about them from the packets of the responder.
#[derive(Default)]
struct Wire {
    /// For each Read, the numbers of its response packets, and whether each of them was sent.
    reads: Vec<(std::ops::Range<u32>, Vec<bool>)>,
}

impl Wire {
    fn asked(&mut self, request: Request, at: u32, end: u32) {
        if matches!(request, Read(_)) {
            self.reads.push((at..end, vec![false; (end - at) as usize]));
        }
    }

    /// Checks that no acknowledgement ends in a Read, or covers one whose response was not sent.
    fn check(&mut self, sent: &[Packet]) {
        for packet in sent {
            let at = index(packet.bth.psn);
            let aeth = packet.extended.aeth();
            let is_response = packet.bth.opcode != Opcode::Acknowledge;
            // A NAK covers everything before its PSN.
            let is_nak = aeth.is_some_and(|aeth| aeth.syndrome != ACK);
            for (range, parts) in &mut self.reads {
                if is_response && range.contains(&at) {
                    parts[(at - range.start) as usize] = true;
                }
                if !is_response {
                    assert!(is_nak || !range.contains(&at), "an ACK {at} in {range:?}");
                    let is_covered = at >= range.end;
                    let is_sent = parts.iter().all(|part| *part);
                    assert!(!is_covered || is_sent, "{at} covers {range:?}");
                }
            }
        }
    }
}

/// Each packet of each pair of requests is repeated after its answers are lost. A duplicate Send or Write is
/// acknowledged before the next Read, and a duplicate Read is answered.
//= ROCE-9.7.5-10 test
//= ROCE-9.7.5-11 test
#[test]
fn a_duplicate_is_acknowledged_before_the_next_read() {
    for first in REQUESTS {
        for second in REQUESTS {
            for queued in 0..3 {
                let setup = Setup::new();
                let (a, middle) = setup.packets(first, 0, 0);
                let (b, end) = setup.packets(second, middle, 1);
                let mut wire = Wire::default();
                wire.asked(first, 0, middle);
                wire.asked(second, middle, end);
                let packets: Vec<_> = a.iter().chain(&b).cloned().collect();
                for duplicate in &packets {
                    let mut setup = Setup::new();
                    // The packets are made again, because tokens are random.
                    let (a, _) = setup.packets(first, 0, 0);
                    let (b, _) = setup.packets(second, middle, 1);
                    let mut wire = Wire {
                        reads: wire.reads.clone(),
                    };
                    for packet in a.iter().chain(&b) {
                        setup.end.handle(packet);
                    }
                    let what = format!("{first:?}, {second:?}, queued {queued}, {duplicate:?}");
                    // All, none or one of the responses are sent before the duplicate arrives.
                    let before = match queued {
                        0 => setup.end.packets(),
                        1 => Vec::new(),
                        _ => setup
                            .end
                            .queue_pair
                            .poll_packet(setup.end.now)
                            .into_iter()
                            .collect(),
                    };
                    wire.check(&before);
                    let received = setup.end.summary();
                    let at = index(duplicate.bth.psn);
                    let again = a
                        .iter()
                        .chain(&b)
                        .find(|packet| packet.bth.psn == duplicate.bth.psn);
                    setup.end.handle(again.unwrap());
                    let sent = setup.end.packets();
                    wire.check(&sent);
                    assert!(!sent.is_empty(), "{what}: no answer");
                    assert_eq!(
                        setup.end.summary(),
                        Vec::<String>::new(),
                        "{what}: executed again"
                    );
                    assert!(!received.contains(&"broken Protocol".to_owned()), "{what}");
                    if duplicate.bth.opcode == Opcode::ReadRequest {
                        let (range, _) = wire
                            .reads
                            .iter()
                            .find(|(range, _)| range.start == at)
                            .unwrap();
                        let answered: Vec<_> =
                            sent.iter().map(|packet| index(packet.bth.psn)).collect();
                        assert!(
                            range.clone().all(|at| answered.contains(&at)),
                            "{what}: {answered:?}"
                        );
                    } else if queued == 0 {
                        let ack = index(sent[0].bth.psn);
                        let next_read = wire
                            .reads
                            .iter()
                            .map(|(range, _)| range.start)
                            .find(|start| *start > at);
                        assert_eq!(sent.len(), 1, "{what}");
                        assert_eq!(ack + 1, next_read.unwrap_or(end), "{what}");
                    }
                    // The responder still works: a later Send arrives and is acknowledged.
                    setup.end.handle(&plain(Opcode::SendOnly, end, 1));
                    let sent = setup.end.packets();
                    wire.check(&sent);
                    assert_eq!(index(sent.last().unwrap().bth.psn), end, "{what}");
                    assert_eq!(setup.end.summary(), ["received 1"], "{what}");
                }
            }
        }
    }
}

/// Two queue pairs do each pair of requests over a network that loses one packet and delivers another one
/// again, immediately or after all others. Everything arrives once.
//= ROCE-9.7.5-10 test
//= ROCE-9.7.5-11 test
#[test]
fn every_pair_of_requests_survives_a_loss_and_a_duplicate() {
    let mut runs = 0;
    for first in REQUESTS {
        for second in REQUESTS {
            for lost in 0..14 {
                for repeated in 0..14 {
                    for is_late in [false, true] {
                        run([first, second], lost, repeated, is_late);
                        runs += 1;
                    }
                }
            }
        }
    }
    assert_eq!(runs, 64 * 14 * 14 * 2);
}

/// Moves the work of `requests` with the packet `lost` not delivered and the packet `repeated` delivered
/// twice. Packets are counted in both directions together.
fn run(requests: [Request; 2], lost: usize, repeated: usize, is_late: bool) {
    let what = format!("{requests:?}, lost {lost}, repeated {repeated}, late {is_late}");
    let Setup {
        end,
        region,
        invalidated,
    } = Setup::new();
    let mut ends = [End::new(), end];
    let mut wire = Wire::default();
    let mut expected = Vec::new();
    let mut next = 0;
    for (request, which) in requests.into_iter().zip(0..) {
        let end = &mut ends[0];
        let packets = match request {
            Send(count) => {
                end.post_send(which, count as usize * MTU, None);
                expected.push(format!("sent {which}"));
                count
            }
            SendInvalidate => {
                end.post_send(which, 1, Some(invalidated[which as usize]));
                expected.push(format!("sent {which}"));
                1
            }
            Write(count) => {
                end.queue_pair.post(WorkRequest::Write {
                    id: WorkId(which),
                    data: pattern(count as usize * MTU).into(),
                    to: region,
                });
                expected.push(format!("written {which}"));
                count
            }
            Read(count) => {
                let length = count as usize * MTU;
                end.queue_pair.post(WorkRequest::Read {
                    id: WorkId(which),
                    from: region,
                    into: BytesMut::zeroed(length),
                });
                expected.push(format!("read {which} {length}"));
                count.max(1)
            }
        };
        wire.asked(request, next, next + packets);
        next += packets;
    }
    let mut late = Vec::new();
    let mut count = 0;
    let mut completions = Vec::new();
    for _ in 0..100 {
        let sent = [ends[0].packets(), ends[1].packets()];
        wire.check(&sent[1]);
        let is_quiet = sent.iter().all(Vec::is_empty);
        for (from, packets) in sent.into_iter().enumerate() {
            for packet in packets {
                if count != lost {
                    ends[1 - from].handle(&packet);
                }
                match count == repeated {
                    true if is_late => late.push((1 - from, packet)),
                    true => ends[1 - from].handle(&packet),
                    false => {}
                }
                count += 1;
            }
        }
        completions.extend(ends[0].completions());
        if is_quiet && !ends[0].queue_pair.is_drained() && late.is_empty() {
            let timer = ends[0].queue_pair.poll_timeout();
            assert!(timer.is_some(), "{what}: no timer, {completions:?}");
            ends[0].wait();
        } else if is_quiet && late.is_empty() {
            break;
        } else if is_quiet {
            for (to, packet) in std::mem::take(&mut late) {
                ends[to].handle(&packet);
            }
        }
    }
    let done: Vec<_> = completions
        .iter()
        .map(|completion| match completion {
            Completion::Sent { id } => format!("sent {}", id.0),
            Completion::Written { id } => format!("written {}", id.0),
            Completion::Read { id, buffer } => {
                assert_eq!(buffer[..], pattern(4 * MTU)[..buffer.len()], "{what}");
                format!("read {} {}", id.0, buffer.len())
            }
            other => panic!("{what}: {other:?}"),
        })
        .collect();
    // The completion of a Send also completes the Sends before it.
    assert_eq!(done.last(), expected.last(), "{what}");
    expected.retain(|work| !work.starts_with("sent") || done.contains(work));
    assert_eq!(done, expected, "{what}");
    let arrived = ends[1].summary();
    let sends = requests
        .iter()
        .filter(|request| matches!(request, Send(_) | SendInvalidate));
    assert_eq!(arrived.len(), sends.count(), "{what}: {arrived:?}");
    assert!(
        !ends[0].queue_pair.has_ended() && !ends[1].queue_pair.has_ended(),
        "{what}"
    );
}

/// A copy of the first Read arrives while the response to the second waits or has begun.
//= ROCE-9.7.5-11 test
#[test]
fn a_duplicate_read_keeps_the_responses_to_later_ones() {
    use Opcode::*;
    for sent_before in 0..5 {
        let Setup {
            mut end, region, ..
        } = Setup::new();
        end.handle(&rdma(ReadRequest, 0, region, 2 * MTU as u32, 0));
        end.handle(&rdma(ReadRequest, 2, region, 3 * MTU as u32, 0));
        for _ in 0..sent_before {
            assert!(end.queue_pair.poll_packet(end.now).is_some());
        }
        end.handle(&rdma(ReadRequest, 0, region, 2 * MTU as u32, 0));
        let expected = [
            (ReadResponseFirst, 0),
            (ReadResponseLast, 1),
            (ReadResponseFirst, 2),
            (ReadResponseMiddle, 3),
            (ReadResponseLast, 4),
        ];
        // A response that was sent in full is sent again only if the requester asks for it again.
        let count = if sent_before == 5 { 2 } else { 5 };
        assert_eq!(end.opcodes(), expected[..count], "{sent_before}");
    }
}

/// A duplicate of a part of a Read does not cut the response that is being sent, nor does a request for another
/// range.
//= ROCE-SW-04 test
#[test]
fn a_duplicate_of_a_part_does_not_shorten_a_response() {
    use Opcode::*;
    let Setup {
        mut end, region, ..
    } = Setup::new();
    let at = |packets: u64| RemoteAddress {
        offset: region.offset + packets * MTU as u64,
        ..region
    };
    end.handle(&rdma(ReadRequest, 0, region, 4 * MTU as u32, 0));
    end.handle(&rdma(ReadRequest, 3, at(3), MTU as u32, 0));
    end.handle(&rdma(ReadRequest, 1, at(1), MTU as u32, 0));
    // The address does not belong to the PSN.
    end.handle(&rdma(ReadRequest, 0, at(1), MTU as u32, 0));
    let whole = [
        (ReadResponseFirst, 0),
        (ReadResponseMiddle, 1),
        (ReadResponseMiddle, 2),
        (ReadResponseLast, 3),
    ];
    assert_eq!(end.opcodes(), whole);
    end.handle(&rdma(ReadRequest, 1, at(2), MTU as u32, 0));
    assert_eq!(end.opcodes(), []);
    end.handle(&rdma(ReadRequest, 2, at(2), 2 * MTU as u32, 0));
    assert_eq!(
        end.opcodes(),
        [(ReadResponseFirst, 2), (ReadResponseLast, 3)]
    );
}

/// A duplicate of a part whose response was sent is answered from its PSN on to the end of the Read.
//= ROCE-SW-04 test
#[test]
fn a_duplicate_of_a_part_that_was_sent_restarts_the_response_there() {
    use Opcode::*;
    let Setup {
        mut end, region, ..
    } = Setup::new();
    end.handle(&rdma(ReadRequest, 0, region, 4 * MTU as u32, 0));
    for opcode in [ReadResponseFirst, ReadResponseMiddle, ReadResponseMiddle] {
        let packet = end.queue_pair.poll_packet(end.now).unwrap();
        assert_eq!(packet.bth.opcode, opcode);
    }
    let second = RemoteAddress {
        offset: region.offset + MTU as u64,
        ..region
    };
    end.handle(&rdma(ReadRequest, 1, second, MTU as u32, 0));
    let rest = [
        (ReadResponseFirst, 1),
        (ReadResponseMiddle, 2),
        (ReadResponseLast, 3),
    ];
    assert_eq!(end.opcodes(), rest);
}

/// The network delivers a request again while the socket is full, and the owner ends the registration.
//= ROCE-SW-04 test
#[test]
fn a_late_copy_of_an_answered_read_does_no_harm() {
    let Setup {
        mut end, region, ..
    } = Setup::new();
    let read = rdma(Opcode::ReadRequest, 0, region, 2 * MTU as u32, 0);
    end.handle(&read);
    assert_eq!(end.packets().len(), 2);
    end.handle(&read);
    end.queue_pair.memory().deregister(region.token).unwrap();
    assert_eq!(end.opcodes(), []);
    assert!(!end.queue_pair.has_ended());
    // A copy that waits does not take the place of a new Read.
    let Setup {
        mut end, region, ..
    } = Setup::new();
    for at in 0..3 {
        end.handle(&rdma(Opcode::ReadRequest, at, region, 1, 0));
    }
    assert_eq!(end.packets().len(), 3);
    for at in 0..3 {
        end.handle(&rdma(Opcode::ReadRequest, at, region, 1, 0));
    }
    end.handle(&rdma(Opcode::ReadRequest, 3, region, 1, 0));
    assert!(!end.queue_pair.has_ended());
    let answered: Vec<_> = end.opcodes().into_iter().map(|(_, at)| at).collect();
    assert_eq!(answered, [1, 2, 3]);
}

/// Requests that this end never executes are not acknowledged as duplicates either.
//= ROCE-9.7.5-10 test
#[test]
fn duplicates_of_what_was_never_executed_have_no_effect() {
    use crate::roce::packet::{AtomicEth, ImmDt};
    let Setup {
        mut end, region, ..
    } = Setup::new();
    end.handle(&plain(Opcode::SendOnly, 0, 1));
    assert_eq!(end.acks().len(), 1);
    let immediate = ImmDt { data: [0; 4] };
    let atomic = AtomicEth {
        virtual_address: region.offset,
        r_key: region.token.0,
        swap_or_add: 1,
        compare: 0,
    };
    for stray in [
        packet(Opcode::CompareSwap, 0, Extended::Atomic(atomic), &[]),
        packet(Opcode::FetchAdd, 0, Extended::Atomic(atomic), &[]),
        packet(
            Opcode::SendOnlyImmediate,
            0,
            Extended::Immediate(immediate),
            b"x",
        ),
        packet(
            Opcode::WriteLastImmediate,
            0,
            Extended::Immediate(immediate),
            b"x",
        ),
        rdma(Opcode::ReadRequest, 0, region, 1, 0),
    ] {
        end.handle(&stray);
        assert_eq!(end.opcodes(), [], "{:?}", stray.bth.opcode);
        assert!(!end.queue_pair.has_ended());
    }
}

/// The PSN of the responder passes through all its values and begins again, with a duplicate and a Read now and
/// then. A Read that is half of all PSNs behind is not taken for a later one.
//= ROCE-9.7.2-01 test
#[test]
fn the_psn_of_the_responder_wraps() {
    let Setup {
        mut end, region, ..
    } = Setup::new();
    let total = (1 << 24) + 3;
    let mut at = 0_u32;
    end.handle(&rdma(Opcode::ReadRequest, at, region, 1, 0));
    assert_eq!(end.packets().len(), 1);
    at += 1;
    let mut write = rdma(Opcode::WriteOnly, 0, region, 0, 0);
    write.bth.ack_request = false;
    while at < total {
        write.bth.psn = Psn::new(FIRST_PSN).add(at);
        end.handle(&write);
        at += 1;
        if at % 0x1_0000 == 7 {
            end.handle(&write);
            let acks = end.packets();
            assert_eq!(acks.len(), 1);
            assert_eq!(acks[0].bth.psn, write.bth.psn, "at 0x{at:x}");
        }
    }
    end.handle(&rdma(Opcode::ReadRequest, at, region, 1, 0));
    let [response] = &end.packets()[..] else {
        panic!("one response");
    };
    assert_eq!(response.bth.psn, Psn::new(FIRST_PSN).add(at));
    assert!(!end.queue_pair.has_ended());
}

/// A Read whose response was never sent, because the socket was full, does not hold back acknowledgements for
/// ever.
#[test]
fn a_read_that_is_half_of_all_psns_behind_is_forgotten_with_its_response() {
    let Setup {
        mut end, region, ..
    } = Setup::new();
    end.handle(&rdma(Opcode::ReadRequest, 0, region, 1, 0));
    let mut write = rdma(Opcode::WriteOnly, 0, region, 0, 0);
    for at in 1..=1 << 23 {
        write.bth.psn = Psn::new(FIRST_PSN).add(at);
        end.handle(&write);
    }
    assert_eq!(end.packets().len(), 1);
    assert!(end.queue_pair.is_drained());
}
