//! The responder: the effect of each request packet, and its answer.

use super::*;

const INVALID_REQUEST: Syndrome = Syndrome::Nak(NakCode::InvalidRequest);
const ACCESS_ERROR: Syndrome = Syndrome::Nak(NakCode::RemoteAccessError);
const SEQUENCE_ERROR: Syndrome = Syndrome::Nak(NakCode::PsnSequenceError);

/// An end with receives and a region of `4 * MTU` bytes with every right.
fn responder() -> (End, RemoteAddress) {
    let mut end = End::new();
    end.post_receives(5, 4 * MTU as u32);
    let buffer = BytesMut::from(&pattern(4 * MTU)[..]);
    let region = end.queue_pair.memory().register(buffer, Access::all());
    (end, region.unwrap().address)
}

/// Checks that the last packet broke the queue pair, and that the NAK for the packet `index` has the reason.
fn expect_nak(end: &mut End, index: u32, syndrome: Syndrome) {
    let acks = end.acks();
    assert_eq!(acks.len(), 1, "{acks:?}");
    assert_eq!((acks[0].0, acks[0].1), (index, syndrome));
    assert_eq!(end.broken(), ProviderErrorKind::Protocol);
}

//= ROCE-9.7.4-01 test
//= ROCE-9.7.5-06 test
#[test]
fn packets_that_do_not_continue_their_message_are_refused() {
    use Opcode::*;
    let openings: [(&[Opcode], &[Opcode]); 3] = [
        (
            &[],
            &[
                SendMiddle,
                SendLast,
                SendLastInvalidate,
                WriteMiddle,
                WriteLast,
            ],
        ),
        (
            &[SendFirst],
            &[
                SendFirst,
                SendOnly,
                SendOnlyInvalidate,
                WriteFirst,
                WriteOnly,
                WriteMiddle,
                WriteLast,
                ReadRequest,
            ],
        ),
        (
            &[WriteFirst, WriteMiddle],
            &[
                WriteFirst,
                WriteOnly,
                SendFirst,
                SendOnly,
                SendMiddle,
                SendLast,
                SendLastInvalidate,
                ReadRequest,
            ],
        ),
    ];
    for (opening, refused) in openings {
        for &opcode in refused {
            let (mut end, region) = responder();
            let packets = opening.iter().chain([&opcode]).zip(0..);
            for (&opcode, at) in packets {
                let length = if opcode.ends_message() { 5 } else { MTU };
                end.handle(&match opcode {
                    WriteFirst => rdma(opcode, at, region, 4 * MTU as u32, MTU),
                    WriteOnly => rdma(opcode, at, region, 5, 5),
                    ReadRequest => rdma(opcode, at, region, 5, 0),
                    SendOnlyInvalidate | SendLastInvalidate => {
                        let r_key = region.token.0;
                        packet(opcode, at, Extended::Ieth(Ieth { r_key }), b"12345")
                    }
                    _ => plain(opcode, at, length),
                });
            }
            expect_nak(&mut end, opening.len() as u32, INVALID_REQUEST);
        }
    }
}

//= ROCE-9.7.4-02 test
#[test]
fn payloads_have_the_length_that_their_place_requires() {
    use Opcode::*;
    for (opcode, least, most) in [
        (SendFirst, MTU, MTU),
        (SendMiddle, MTU, MTU),
        (SendLast, 1, MTU),
        (SendLastInvalidate, 1, MTU),
        (SendOnly, 0, MTU),
        (WriteFirst, MTU, MTU),
        (WriteMiddle, MTU, MTU),
        (WriteLast, 1, MTU),
        (WriteOnly, 0, MTU),
        (ReadRequest, 0, 0),
    ] {
        for length in [0, 1, 4, MTU - 1, MTU, MTU + 1] {
            let (mut end, region) = responder();
            let mut index = 0;
            if matches!(opcode, SendMiddle | SendLast | SendLastInvalidate) {
                end.handle(&plain(SendFirst, 0, MTU));
                index = 1;
            }
            if matches!(opcode, WriteMiddle | WriteLast) {
                let total = MTU + length.max(1) + usize::from(opcode == WriteMiddle);
                end.handle(&rdma(WriteFirst, 0, region, total as u32, MTU));
                index = 1;
            }
            end.handle(&match opcode {
                WriteFirst => rdma(opcode, index, region, 2 * MTU as u32, length),
                WriteOnly => rdma(opcode, index, region, length as u32, length),
                ReadRequest => rdma(opcode, index, region, 5, length),
                SendLastInvalidate => {
                    let r_key = region.token.0;
                    packet(
                        opcode,
                        index,
                        Extended::Ieth(Ieth { r_key }),
                        &pattern(length),
                    )
                }
                _ => plain(opcode, index, length),
            });
            let is_valid = (least..=most).contains(&length);
            assert_eq!(!end.queue_pair.has_ended(), is_valid, "{opcode:?} {length}");
            if !is_valid {
                expect_nak(&mut end, index, INVALID_REQUEST);
            }
        }
    }
}

//= ROCE-9.7.4-05 test
#[test]
fn a_send_longer_than_its_receive_is_refused_at_the_first_byte_too_many() {
    for (packets, refused) in [
        (vec![MTU, MTU, MTU, MTU], false),
        (vec![MTU, MTU, MTU, MTU, 1], true),
    ] {
        let (mut end, _) = responder();
        let last = packets.len() - 1;
        for (at, &length) in packets.iter().enumerate() {
            let opcode = match at {
                0 => Opcode::SendFirst,
                at if at == last => Opcode::SendLast,
                _ => Opcode::SendMiddle,
            };
            end.handle(&plain(opcode, at as u32, length));
        }
        if refused {
            expect_nak(&mut end, last as u32, INVALID_REQUEST);
        } else {
            assert_eq!(end.summary(), ["received 1024"]);
        }
    }
}

//= ROCE-9.7.4-06 test
#[test]
fn a_write_has_exactly_the_announced_bytes() {
    use Opcode::*;
    for (opcode, announced, length) in
        [(WriteOnly, 5, 4), (WriteOnly, 5, 6), (WriteFirst, MTU, MTU)]
    {
        let (mut end, region) = responder();
        end.handle(&rdma(opcode, 0, region, announced as u32, length));
        expect_nak(&mut end, 0, INVALID_REQUEST);
    }
    for (opcode, left, length) in [
        (WriteMiddle, MTU, MTU),
        (WriteLast, 9, 8),
        (WriteLast, 9, 10),
    ] {
        let (mut end, region) = responder();
        end.handle(&rdma(WriteFirst, 0, region, (MTU + left) as u32, MTU));
        end.handle(&plain(opcode, 1, length));
        expect_nak(&mut end, 1, INVALID_REQUEST);
    }
}

/// Only other implementations send Writes of several packets.
#[test]
fn the_packets_of_a_write_are_placed_one_after_the_other() {
    use Opcode::*;
    let (mut end, region) = responder();
    let data: Vec<u8> = (0..3 * MTU - 5).map(|at| (at / 3) as u8).collect();
    let length = data.len() as u32;
    for (index, payload) in data.chunks(MTU).enumerate() {
        let mut packet = match index {
            0 => rdma(WriteFirst, 0, region, length, 0),
            1 => plain(WriteMiddle, 1, 0),
            _ => plain(WriteLast, 2, 0),
        };
        packet.payload = Bytes::copy_from_slice(payload);
        end.handle(&packet);
    }
    assert_eq!(end.acks(), [(2, ACK, 1)]);
    let buffer = end.queue_pair.memory().deregister(region.token).unwrap();
    assert_eq!(buffer[..data.len()], data);
    assert_eq!(buffer[data.len()..], pattern(4 * MTU)[data.len()..]);
}

//= ROCE-9.7.4-07 test
#[test]
fn accesses_outside_the_rights_are_refused_and_move_no_byte() {
    let rights = |access| {
        let mut end = End::new();
        let memory = end.queue_pair.memory();
        let region = memory.register(BytesMut::zeroed(MTU), access).unwrap();
        (end, region.address)
    };
    let past = |at: RemoteAddress, offset: u64, token: u32| RemoteAddress {
        token: Token(at.token.0 ^ token),
        offset: at.offset + offset,
    };
    for (opcode, access) in [
        (Opcode::WriteOnly, Access::REMOTE_READ),
        (Opcode::ReadRequest, Access::REMOTE_WRITE),
        (Opcode::WriteOnly, Access::all()),
        (Opcode::ReadRequest, Access::all()),
    ] {
        for (offset, token) in [(0, 0), (0, 1), (MTU as u64 - 3, 0)] {
            let (mut end, at) = rights(access);
            if access == Access::all() && (offset, token) == (0, 0) {
                continue;
            }
            let length = if opcode == Opcode::WriteOnly { 4 } else { 0 };
            end.handle(&rdma(opcode, 0, past(at, offset, token), 4, length));
            assert!(end.queue_pair.has_ended(), "before a response is due");
            expect_nak(&mut end, 0, ACCESS_ERROR);
            let buffer = end.queue_pair.memory().deregister(at.token).unwrap();
            assert_eq!(buffer, vec![0; MTU]);
        }
    }
    // The whole range is checked before the first byte is written.
    let (mut end, at) = rights(Access::all());
    end.handle(&rdma(Opcode::WriteFirst, 0, at, MTU as u32 + 1, MTU));
    expect_nak(&mut end, 0, ACCESS_ERROR);
    let buffer = end.queue_pair.memory().deregister(at.token).unwrap();
    assert_eq!(buffer, vec![0; MTU]);
}

/// A right that ends while packets of the operation are still to come also ends the operation.
//= ROCE-9.7.4-07 test
#[test]
fn rights_are_checked_for_each_packet() {
    let (mut end, region) = responder();
    end.handle(&rdma(Opcode::WriteFirst, 0, region, 2 * MTU as u32, MTU));
    end.queue_pair.memory().deregister(region.token).unwrap();
    end.handle(&plain(Opcode::WriteLast, 1, MTU));
    expect_nak(&mut end, 1, ACCESS_ERROR);
    let (mut end, region) = responder();
    end.handle(&rdma(Opcode::ReadRequest, 0, region, 3 * MTU as u32, 0));
    let first = end.queue_pair.poll_packet(end.now).unwrap();
    assert_eq!(first.bth.opcode, Opcode::ReadResponseFirst);
    end.queue_pair.memory().deregister(region.token).unwrap();
    expect_nak(&mut end, 1, ACCESS_ERROR);
}

//= ROCE-9.7.4-08 test
#[test]
fn operations_of_no_bytes_need_no_rights() {
    let mut end = End::new();
    end.handle(&rdma(Opcode::WriteOnly, 0, REMOTE, 0, 0));
    end.handle(&rdma(Opcode::ReadRequest, 1, REMOTE, 0, 0));
    assert_eq!(end.opcodes(), [(Opcode::ReadResponseOnly, 1)]);
    assert!(!end.queue_pair.has_ended());
}

//= ROCE-9.7.4-09 test
//= ROCE-9.7.7-01 test
#[test]
fn unsupported_and_overlong_requests_are_refused() {
    use crate::roce::packet::{AtomicEth, ImmDt};
    use Opcode::*;
    let immediate = ImmDt { data: [0; 4] };
    let atomic = AtomicEth {
        virtual_address: 0,
        r_key: 0,
        swap_or_add: 0,
        compare: 0,
    };
    let reth = Reth {
        virtual_address: 0,
        r_key: 0,
        length: 0,
    };
    let overlong = (1 << 31) + 1;
    for request in [
        packet(SendOnlyImmediate, 0, Extended::Immediate(immediate), &[]),
        packet(SendLastImmediate, 0, Extended::Immediate(immediate), &[]),
        packet(WriteLastImmediate, 0, Extended::Immediate(immediate), &[]),
        packet(
            WriteOnlyImmediate,
            0,
            Extended::RethImmediate(reth, immediate),
            &[],
        ),
        packet(CompareSwap, 0, Extended::Atomic(atomic), &[]),
        packet(FetchAdd, 0, Extended::Atomic(atomic), &[]),
        rdma(WriteFirst, 0, REMOTE, overlong, MTU),
        rdma(ReadRequest, 0, REMOTE, overlong, 0),
    ] {
        let (mut end, _) = responder();
        end.handle(&request);
        expect_nak(&mut end, 0, INVALID_REQUEST);
    }
    // The longest permitted message is refused only because the region is shorter.
    for (opcode, payload) in [(WriteFirst, MTU), (ReadRequest, 0)] {
        let (mut end, region) = responder();
        end.handle(&rdma(opcode, 0, region, overlong - 1, payload));
        expect_nak(&mut end, 0, ACCESS_ERROR);
    }
}

//= ROCE-9.7.4-10 test
//= ROCE-9.7.5-16 test
#[test]
fn reads_beyond_the_responder_resources_are_refused() {
    let (mut end, region) = responder();
    for at in 0..3 {
        end.handle(&rdma(Opcode::ReadRequest, at, region, 1, 0));
    }
    assert!(!end.queue_pair.has_ended());
    end.handle(&rdma(Opcode::ReadRequest, 3, region, 1, 0));
    // The NAK covers none of the Reads, because no response was sent.
    expect_nak(&mut end, 0, INVALID_REQUEST);
}

//= ROCE-9.7.2-02 test
//= ROCE-9.7.4-04 test
#[test]
fn responses_carry_the_psns_of_their_request() {
    use Opcode::*;
    for (length, opcodes) in [
        (0, vec![ReadResponseOnly]),
        (1, vec![ReadResponseOnly]),
        (MTU, vec![ReadResponseOnly]),
        (MTU + 1, vec![ReadResponseFirst, ReadResponseLast]),
        (
            3 * MTU,
            vec![ReadResponseFirst, ReadResponseMiddle, ReadResponseLast],
        ),
    ] {
        let (mut end, region) = responder();
        let packets = opcodes.len() as u32;
        end.handle(&rdma(ReadRequest, 0, region, length as u32, 0));
        end.handle(&plain(SendOnly, packets, 3));
        let sent = end.packets();
        let (ack, responses) = sent.split_last().unwrap();
        let data = responses.iter().map(|packet| &packet.payload[..]);
        assert_eq!(
            data.collect::<Vec<_>>().concat(),
            pattern(4 * MTU)[..length]
        );
        for (response, (opcode, at)) in responses.iter().zip(opcodes.into_iter().zip(0..)) {
            assert_eq!((response.bth.opcode, index(response.bth.psn)), (opcode, at));
        }
        assert_eq!((ack.bth.opcode, index(ack.bth.psn)), (Acknowledge, packets));
    }
}

//= ROCE-9.7.5-12 test
//= ROCE-9.7.5-14 test
//= ROCE-9.7.7-02 test
#[test]
fn acknowledgements_are_coalesced_and_count_messages() {
    let (mut end, region) = responder();
    end.handle(&plain(Opcode::SendFirst, 0, MTU));
    assert_eq!(end.acks(), [], "no acknowledgement was asked for");
    end.handle(&plain(Opcode::SendLast, 1, 1));
    end.handle(&rdma(Opcode::WriteOnly, 2, region, 1, 1));
    end.handle(&plain(Opcode::SendOnly, 3, 1));
    assert_eq!(end.acks(), [(3, ACK, 3)]);
    let mut silent = plain(Opcode::SendOnly, 4, 1);
    silent.bth.ack_request = false;
    end.handle(&silent);
    assert_eq!(end.acks(), []);
    assert_eq!(end.summary(), ["received 257", "received 1", "received 1"]);
}

//= ROCE-9.7.5-09 test
#[test]
fn a_gap_is_reported_once_until_it_is_filled() {
    let (mut end, _) = responder();
    for at in [1, 2, 3] {
        end.handle(&plain(Opcode::SendOnly, at, 1));
    }
    assert_eq!(end.acks(), [(0, SEQUENCE_ERROR, 0)]);
    end.handle(&plain(Opcode::SendOnly, 4, 1));
    assert_eq!(end.acks(), []);
    end.handle(&plain(Opcode::SendOnly, 0, 1));
    assert_eq!(end.acks(), [(0, ACK, 1)]);
    end.handle(&plain(Opcode::SendOnly, 2, 1));
    assert_eq!(end.acks(), [(1, SEQUENCE_ERROR, 1)]);
    assert_eq!(end.summary(), ["received 1"]);
}

#[test]
fn a_gap_that_is_filled_before_its_report_is_not_reported() {
    let (mut end, _) = responder();
    end.handle(&plain(Opcode::SendOnly, 1, 1));
    end.handle(&plain(Opcode::SendFirst, 0, MTU));
    assert_eq!(end.acks(), []);
}

#[test]
fn an_acknowledgement_that_waits_covers_the_next_packets_too() {
    let (mut end, _) = responder();
    end.handle(&plain(Opcode::SendOnly, 0, 1));
    end.handle(&plain(Opcode::SendFirst, 1, MTU));
    assert_eq!(end.acks(), [(1, ACK, 1)]);
}

//= ROCE-9.7.5-10 test
#[test]
fn duplicates_leave_the_latest_acknowledgement() {
    use Opcode::*;
    for duplicates in [&[2][..], &[0, 2], &[2, 0], &[0, 2, 0]] {
        let (mut end, region) = responder();
        let send = |at| {
            let mut send = plain(SendOnly, at, 1);
            send.bth.ack_request = false;
            send
        };
        end.handle(&send(0));
        end.handle(&rdma(ReadRequest, 1, region, 1, 0));
        end.handle(&send(2));
        for &at in duplicates {
            end.handle(&send(at));
        }
        let expected = [(ReadResponseOnly, 1), (Acknowledge, 2)];
        assert_eq!(end.opcodes(), expected, "{duplicates:?}");
    }
}

#[test]
fn no_response_is_due_after_the_end() {
    let (mut end, region) = responder();
    end.handle(&rdma(Opcode::ReadRequest, 0, region, 1, 0));
    assert!(!end.queue_pair.is_drained());
    end.queue_pair.end(Disconnect::Local);
    assert!(end.queue_pair.is_drained());
    assert_eq!(end.opcodes(), []);
}

//= ROCE-9.7.5-10 test
#[test]
fn duplicates_are_acknowledged_and_not_executed() {
    let (mut end, region) = responder();
    end.handle(&plain(Opcode::SendOnly, 0, 1));
    end.handle(&rdma(Opcode::WriteOnly, 1, region, 4, 4));
    assert_eq!(end.acks(), [(1, ACK, 2)]);
    end.queue_pair.memory().deregister(region.token).unwrap();
    end.handle(&plain(Opcode::SendOnly, 0, 1));
    assert_eq!(end.acks(), [(1, ACK, 2)]);
    end.handle(&rdma(Opcode::WriteOnly, 1, region, 4, 4));
    assert_eq!(end.acks(), [(1, ACK, 2)]);
    assert_eq!(end.summary(), ["received 1"]);
}

//= ROCE-9.7.5-11 test
#[test]
fn duplicate_reads_are_executed_again_from_their_psn_on() {
    use Opcode::*;
    let (mut end, region) = responder();
    end.handle(&rdma(ReadRequest, 0, region, 3 * MTU as u32, 0));
    end.handle(&rdma(ReadRequest, 3, region, 1, 0));
    let first = end.queue_pair.poll_packet(end.now).unwrap();
    assert_eq!(first.bth.opcode, ReadResponseFirst);
    // The requester has the first packet, and asks for the rest and for the other Read again.
    let rest = RemoteAddress {
        offset: region.offset + MTU as u64,
        ..region
    };
    end.handle(&rdma(ReadRequest, 1, rest, 2 * MTU as u32, 0));
    end.handle(&rdma(ReadRequest, 3, region, 1, 0));
    let expected = [
        (ReadResponseFirst, 1),
        (ReadResponseLast, 2),
        (ReadResponseOnly, 3),
    ];
    assert_eq!(end.opcodes(), expected);
    // A request with an old PSN that repeats no Read is dropped, and does not end the connection.
    end.handle(&rdma(ReadRequest, 3, region, 2 * MTU as u32, 0));
    end.handle(&rdma(ReadRequest, 3, REMOTE, 1, 0));
    assert_eq!(end.opcodes(), []);
    assert!(!end.queue_pair.has_ended());
}

//= ROCE-9.7.5-13 test
#[test]
fn a_send_waits_for_a_receive() {
    let mut end = End::new();
    end.handle(&plain(Opcode::SendFirst, 0, MTU));
    // The other packets of the Send are dropped without an answer.
    end.handle(&plain(Opcode::SendLast, 1, 1));
    let [(0, Syndrome::RnrNak { timer: 16 }, 0)] = end.acks()[..] else {
        panic!("an RNR NAK is due");
    };
    end.post_receives(1, 2 * MTU as u32);
    end.handle(&plain(Opcode::SendFirst, 0, MTU));
    end.handle(&plain(Opcode::SendLast, 1, 1));
    assert_eq!(end.acks(), [(1, ACK, 1)]);
    assert_eq!(end.summary(), ["received 257"]);
}

//= ROCE-SW-02 test
#[test]
fn a_peer_that_keeps_sending_without_receives_is_refused() {
    let mut end = End::new();
    for _ in 0..8 {
        end.handle(&plain(Opcode::SendOnly, 0, 1));
        assert_eq!(end.acks().len(), 1);
        assert!(!end.queue_pair.has_ended());
    }
    end.handle(&plain(Opcode::SendOnly, 0, 1));
    let failed = Syndrome::Nak(NakCode::RemoteOperationalError);
    expect_nak(&mut end, 0, failed);
}

//= ROCE-9.7.5-15 test
//= ROCE-9.7.5-06 test
#[test]
fn the_last_nak_is_repeated_and_nothing_is_executed_after_it() {
    let (mut end, region) = responder();
    end.handle(&plain(Opcode::SendMiddle, 0, MTU));
    expect_nak(&mut end, 0, INVALID_REQUEST);
    for request in [
        plain(Opcode::SendOnly, 0, 1),
        rdma(Opcode::WriteOnly, 0, region, 1, 1),
        rdma(Opcode::ReadRequest, 0, region, 1, 0),
    ] {
        end.handle(&request);
        assert_eq!(end.acks(), [(0, INVALID_REQUEST, 0)]);
    }
    end.handle_ack(0, ACK);
    assert_eq!(end.acks(), []);
    assert_eq!(end.summary(), Vec::<String>::new());
    let buffer = end.queue_pair.memory().deregister(region.token).unwrap();
    assert_eq!(buffer, pattern(4 * MTU));
}

//= ROCE-9.6.1-01 test
#[test]
fn packets_of_another_partition_are_dropped() {
    let (mut end, _) = responder();
    for (p_key, taken) in [(0xfffe, false), (0, false), (0x7fff, true), (0xffff, true)] {
        let mut request = plain(Opcode::SendOnly, 0, 1);
        request.bth.p_key = p_key;
        end.handle(&request);
        assert_eq!(!end.acks().is_empty(), taken, "0x{p_key:04x}");
    }
}

//= ROCE-9.4.1-01 test
#[test]
fn a_send_with_invalidate_ends_the_registration() {
    for (opcode, allowed) in [
        (Opcode::SendOnlyInvalidate, true),
        (Opcode::SendLastInvalidate, true),
        (Opcode::SendOnlyInvalidate, false),
    ] {
        let mut end = End::new();
        end.post_receives(2, 1000);
        let mut access = Access::all();
        access.set(Access::REMOTE_INVALIDATE, allowed);
        let memory = end.queue_pair.memory();
        let region = memory.register(BytesMut::zeroed(10), access).unwrap();
        let token = region.address.token;
        let mut at = 0;
        if opcode == Opcode::SendLastInvalidate {
            end.handle(&plain(Opcode::SendFirst, 0, MTU));
            at = 1;
        }
        let extended = Extended::Ieth(Ieth { r_key: token.0 });
        end.handle(&packet(opcode, at, extended, b"12345"));
        if !allowed {
            expect_nak(&mut end, at, ACCESS_ERROR);
            continue;
        }
        let [Completion::Received { invalidated, .. }] = &end.completions()[..] else {
            panic!("the message arrives");
        };
        assert_eq!(*invalidated, Some(token));
        end.handle(&rdma(Opcode::WriteOnly, at + 1, region.address, 1, 1));
        expect_nak(&mut end, at + 1, ACCESS_ERROR);
    }
}

/// Packets that no reliable connection sends, or that answer nothing, are ignored.
#[test]
fn stray_packets_are_ignored() {
    use crate::roce::packet::{AtomicAckEth, Deth};
    let (mut end, _) = responder();
    let deth = Deth {
        q_key: 1,
        source_qp: 1,
    };
    let aeth = Aeth {
        syndrome: ACK,
        message_sequence_number: 0,
    };
    let atomic = Extended::AethAtomicAck(aeth, AtomicAckEth { original: 0 });
    for stray in [
        packet(Opcode::UdSendOnly, 0, Extended::Deth(deth), &[]),
        packet(Opcode::AtomicAcknowledge, 0, atomic, &[]),
        plain(Opcode::CongestionNotification, 0, 16),
        packet(Opcode::Acknowledge, 0, Extended::Aeth(aeth), &[]),
        packet(Opcode::ReadResponseOnly, 0, Extended::Aeth(aeth), &[]),
        plain(Opcode::ReadResponseMiddle, 0, MTU),
    ] {
        end.handle(&stray);
        assert_eq!(end.opcodes(), []);
        assert!(!end.queue_pair.has_ended());
    }
}
