//! The requester: how work becomes packets, and the effect of each answer.

use super::*;

const SEQUENCE_ERROR: Syndrome = Syndrome::Nak(NakCode::PsnSequenceError);

/// Returns a packet of the response to a Read, with the bytes `data`.
fn response(opcode: Opcode, index: u32, data: &[u8]) -> Packet {
    let aeth = Aeth {
        syndrome: ACK,
        message_sequence_number: 0,
    };
    let extended = match opcode {
        Opcode::ReadResponseMiddle => Extended::Plain,
        _ => Extended::Aeth(aeth),
    };
    packet(opcode, index, extended, data)
}

//= ROCE-9.4-01 test
//= ROCE-9.7.3-01 test
//= ROCE-SW-03 test
#[test]
fn messages_are_cut_into_packets() {
    use Opcode::*;
    for (length, send, invalidate, write) in [
        (0, vec![SendOnly], vec![SendOnlyInvalidate], vec![WriteOnly]),
        (1, vec![SendOnly], vec![SendOnlyInvalidate], vec![WriteOnly]),
        (
            MTU,
            vec![SendOnly],
            vec![SendOnlyInvalidate],
            vec![WriteOnly],
        ),
        (
            MTU + 1,
            vec![SendFirst, SendLast],
            vec![SendFirst, SendLastInvalidate],
            vec![WriteOnly; 2],
        ),
        (
            3 * MTU,
            vec![SendFirst, SendMiddle, SendLast],
            vec![SendFirst, SendMiddle, SendLastInvalidate],
            vec![WriteOnly; 3],
        ),
    ] {
        for (kind, opcodes) in [send, invalidate, write].into_iter().enumerate() {
            let mut end = End::new();
            match kind {
                0 => end.post_send(1, length, None),
                1 => end.post_send(1, length, Some(Token(7))),
                _ => end.post_write(1, length),
            }
            let packets = end.packets();
            assert_eq!(packets.len(), opcodes.len());
            for (at, (packet, opcode)) in packets.iter().zip(opcodes).enumerate() {
                assert_eq!(
                    (packet.bth.opcode, index(packet.bth.psn)),
                    (opcode, at as u32)
                );
                assert_eq!(packet.bth.destination_qp, 0x22);
                assert_eq!(packet.bth.ack_request, at + 1 == packets.len());
                assert_eq!(packet.extended.layout(), opcode.layout());
                if let Some(reth) = packet.extended.reth() {
                    // The packets of a Write have the same length.
                    let stride = length.div_ceil(packets.len());
                    let offset = at * stride;
                    let part = stride.min(length - offset) as u32;
                    let expected = (REMOTE.offset + offset as u64, REMOTE.token.0, part);
                    assert_eq!((reth.virtual_address, reth.r_key, reth.length), expected);
                }
                if let Some(ieth) = packet.extended.ieth() {
                    assert_eq!(ieth.r_key, 7);
                }
            }
            let bytes: Vec<_> = packets.iter().map(|packet| &packet.payload[..]).collect();
            let header = if kind == 2 { 0 } else { length.min(24) };
            let expected = [vec![1; header], pattern(length - header)].concat();
            assert_eq!(bytes.concat(), expected);
        }
    }
}

//= ROCE-9.7.3-01 test
//= ROCE-SW-01 test
#[test]
fn the_window_bounds_the_packets_in_flight() {
    let mut end = End::with(&QueuePairSettings {
        max_in_flight: 8 * MTU,
        ..settings()
    });
    end.post_write(1, 100 * MTU);
    let asked = |packets: Vec<Packet>| {
        let asked = packets.iter().filter(|packet| packet.bth.ack_request);
        asked
            .map(|packet| index(packet.bth.psn))
            .collect::<Vec<_>>()
    };
    assert_eq!(asked(end.packets()), [1, 3, 5, 7]);
    assert!(!end.queue_pair.has_packet());
    end.handle_ack(1, ACK);
    assert_eq!(asked(end.packets()), [9]);
    end.handle_ack(9, ACK);
    assert_eq!(end.packets().len(), 8);
    // A loss halves the window.
    end.handle_ack(10, SEQUENCE_ERROR);
    let again = end.opcodes();
    assert_eq!(again.len(), 4);
    assert_eq!(again[0], (Opcode::WriteOnly, 10));
}

/// Each row has the answers after a timeout, the number of packets that this end then sends, and the number of
/// needless timeouts.
//= ROCE-SW-05 test
#[test]
fn a_late_acknowledgement_reopens_the_window() {
    for (answers, expected, needless) in [
        // The peer has received everything, and only answered late.
        (vec![(63, ACK)], 64, 1),
        // The peer has received fewer packets, but more than were sent again.
        (vec![(8, ACK)], 64, 1),
        // The peer has received only the packets that were sent again.
        (vec![(7, ACK)], 16, 0),
        (vec![(3, ACK), (7, ACK)], 16, 0),
        // The peer has received packets that were sent again, but a gap follows.
        (vec![(7, SEQUENCE_ERROR)], 7, 0),
    ] {
        let mut end = End::new();
        end.post_write(1, 200 * MTU);
        assert_eq!(end.packets().len(), 64);
        end.wait();
        let again: Vec<_> = (0..8).map(|at| (Opcode::WriteOnly, at)).collect();
        assert_eq!(end.opcodes(), again);
        for &(at, syndrome) in &answers {
            end.handle_ack(at, syndrome);
        }
        assert_eq!(end.packets().len(), expected, "{answers:?}");
        let gaps = u64::from(answers == [(7, SEQUENCE_ERROR)]);
        let expected = RetransmissionStatistics {
            gaps,
            timeouts: 1,
            needless,
            pauses: 0,
            packets: 64 + gaps,
        };
        assert_eq!(end.queue_pair.retransmissions(), expected, "{answers:?}");
    }
}

/// A responder drops later Reads when one is requested again, so each is requested again after the one before it
/// has been answered.
//= ROCE-SW-05 test
#[test]
fn reads_are_requested_again_one_after_the_other_after_a_timeout() {
    let mut end = End::new();
    for id in 1..=2 {
        end.post_read(id, 2 * MTU);
    }
    let requests = [(Opcode::ReadRequest, 0), (Opcode::ReadRequest, 2)];
    assert_eq!(end.opcodes(), requests);
    end.wait();
    assert_eq!(end.opcodes(), requests[..1]);
    end.handle(&response(Opcode::ReadResponseFirst, 0, &pattern(MTU)));
    assert_eq!(end.opcodes(), []);
    end.handle(&response(Opcode::ReadResponseLast, 1, &pattern(MTU)));
    assert_eq!(end.summary(), ["read 1 512"]);
    assert_eq!(end.opcodes(), requests[1..]);
    end.handle(&response(Opcode::ReadResponseFirst, 2, &pattern(MTU)));
    end.handle(&response(Opcode::ReadResponseLast, 3, &pattern(MTU)));
    assert_eq!(end.summary(), ["read 2 512"]);
    assert_eq!(end.queue_pair.retransmissions().needless, 0);
}

/// A NAK shows that the network delivers packets, so that reads are requested again without waiting for responses.
#[test]
fn reads_are_requested_again_together_after_a_nak() {
    use Opcode::*;
    for is_after_timeout in [false, true] {
        let mut end = End::new();
        end.post_send(1, 1, None);
        end.post_read(2, 2 * MTU);
        end.post_read(3, 2 * MTU);
        let all = [(SendOnly, 0), (ReadRequest, 1), (ReadRequest, 3)];
        assert_eq!(end.opcodes(), all);
        if is_after_timeout {
            end.wait();
            assert_eq!(end.opcodes(), all[..1]);
            end.handle_ack(0, Syndrome::RnrNak { timer: 20 });
            end.wait();
        } else {
            end.handle_ack(0, SEQUENCE_ERROR);
        }
        assert_eq!(end.opcodes(), all, "{is_after_timeout}");
    }
}

#[test]
fn the_timeout_follows_the_round_trips_of_packets_that_were_sent_once() {
    let mut end = End::new();
    let mut timeout_of = |at: u32, is_sent_again: bool, round_trip: u64| {
        end.post_send(1, 1, None);
        assert_eq!(end.packets().len(), 1);
        let timeout = end.queue_pair.poll_timeout().unwrap() - end.now;
        if is_sent_again {
            end.wait();
            assert_eq!(end.packets().len(), 1);
        }
        end.now += Duration::from_millis(round_trip);
        end.handle_ack(at, ACK);
        timeout.as_millis()
    };
    assert_eq!(timeout_of(0, false, 10), 100);
    assert_eq!(timeout_of(1, true, 1), 40);
    assert_eq!(timeout_of(2, false, 18), 40);
    assert_eq!(timeout_of(3, false, 1), 44);
}

//= ROCE-9.7.5-02 test
#[test]
fn an_acknowledgement_completes_everything_up_to_its_psn() {
    let mut end = End::new();
    for id in 1..=3 {
        end.post_send(id, 1, None);
    }
    end.post_write(4, 2 * MTU);
    end.post_send(5, 1, None);
    end.handle_ack(0, ACK);
    assert_eq!(end.summary(), Vec::<String>::new(), "nothing was sent yet");
    assert_eq!(end.packets().len(), 6);
    end.handle_ack(1, ACK);
    assert_eq!(end.summary(), ["sent 2"]);
    // Old acknowledgements, and acknowledgements of packets that were never sent, are ignored.
    for at in [0, 1, 6, 0x7f_ffff, 0xff_ffff] {
        end.handle_ack(at, ACK);
        end.handle_ack(at, SEQUENCE_ERROR);
        end.handle_ack(at, Syndrome::Nak(NakCode::InvalidRequest));
    }
    assert_eq!(end.summary(), Vec::<String>::new());
    assert_eq!(end.opcodes(), []);
    end.handle_ack(3, ACK);
    assert_eq!(
        end.summary(),
        ["sent 3"],
        "the Write is not acknowledged in full"
    );
    end.handle_ack(5, ACK);
    assert_eq!(end.summary(), ["written 4", "sent 5"]);
    assert_eq!(end.queue_pair.poll_timeout(), None);
    assert!(end.queue_pair.is_drained());
}

//= ROCE-9.7.5-03 test
#[test]
fn a_sequence_error_is_answered_once_by_sending_again() {
    use Opcode::*;
    let mut end = End::new();
    end.post_write(1, 3 * MTU);
    end.post_send(2, 1, None);
    let all = end.packets();
    end.handle_ack(1, SEQUENCE_ERROR);
    let again = end.packets();
    assert_eq!(again.len(), 3);
    for (first, second) in all[1..].iter().zip(&again) {
        assert_eq!(
            (first.bth.psn, &first.payload),
            (second.bth.psn, &second.payload)
        );
    }
    // The packets that were in flight cause the same NAK again.
    end.handle_ack(1, SEQUENCE_ERROR);
    assert_eq!(end.opcodes(), []);
    end.handle_ack(2, SEQUENCE_ERROR);
    assert_eq!(end.opcodes(), [(WriteOnly, 2), (SendOnly, 3)]);
    // An acknowledgement of the first transmission ends the second.
    end.wait();
    end.handle_ack(3, ACK);
    assert_eq!(end.opcodes(), []);
    assert_eq!(end.summary(), ["written 1", "sent 2"]);
}

//= ROCE-9.7.5-04 test
#[test]
fn a_response_acknowledges_everything_before_it_and_reveals_gaps() {
    use Opcode::*;
    let mut end = End::new();
    end.post_send(1, 1, None);
    end.post_read(2, 3 * MTU);
    end.post_send(3, 1, None);
    let expected = [(SendOnly, 0), (ReadRequest, 1), (SendOnly, 4)];
    assert_eq!(end.opcodes(), expected);
    let data = pattern(3 * MTU);
    end.handle(&response(ReadResponseFirst, 1, &data[..MTU]));
    assert_eq!(end.summary(), ["sent 1"]);
    // The second packet is lost. The third packet reveals this, and so would the acknowledgement.
    end.handle(&response(ReadResponseLast, 3, &data[2 * MTU..]));
    let packets = end.packets();
    let opcodes: Vec<_> = packets.iter().map(|packet| packet.bth.opcode).collect();
    assert_eq!(opcodes, [ReadRequest, SendOnly]);
    let reth = packets[0].extended.reth().unwrap();
    assert_eq!(index(packets[0].bth.psn), 2);
    assert_eq!(reth.virtual_address, REMOTE.offset + MTU as u64);
    assert_eq!(reth.length, 2 * MTU as u32);
    end.handle_ack(4, ACK);
    assert_eq!(end.opcodes(), [], "the gap is known");
    end.handle(&response(ReadResponseFirst, 2, &data[MTU..2 * MTU]));
    end.handle(&response(ReadResponseLast, 3, &data[2 * MTU..]));
    let [Completion::Read { buffer, .. }] = &end.completions()[..] else {
        panic!("the Read completes");
    };
    assert_eq!(buffer, &data);
    end.handle_ack(4, ACK);
    assert_eq!(end.summary(), ["sent 3"]);
    // An acknowledgement that passes a missing response reveals the gap too.
    end.post_read(5, 1);
    end.post_send(6, 1, None);
    assert_eq!(end.packets().len(), 2);
    end.handle_ack(6, ACK);
    assert_eq!(end.opcodes(), [(ReadRequest, 5), (SendOnly, 6)]);
    assert_eq!(end.summary(), Vec::<String>::new());
}

//= ROCE-9.7.5-05 test
#[test]
fn any_other_nak_ends_the_connection() {
    for code in [
        NakCode::InvalidRequest,
        NakCode::RemoteAccessError,
        NakCode::RemoteOperationalError,
        NakCode::InvalidRdRequest,
        NakCode::from_code(5),
        NakCode::from_code(31),
    ] {
        let mut end = End::new();
        end.post_send(1, 1, None);
        end.post_send(2, 1, None);
        end.post_send(3, 1, None);
        assert_eq!(end.packets().len(), 3);
        end.handle_ack(1, Syndrome::Nak(code));
        let expected = ["sent 1", "flushed 2", "flushed 3", "broken Terminated"];
        assert_eq!(end.summary(), expected);
        assert_eq!(end.opcodes(), [], "a NAK is not answered");
    }
}

//= ROCE-9.7.5-07 test
#[test]
fn an_rnr_nak_is_answered_after_its_delay() {
    let mut end = End::new();
    end.post_send(1, 1, None);
    end.post_send(2, 2 * MTU, None);
    assert_eq!(end.packets().len(), 3);
    let start = end.now;
    // Code 20 is 10.24 ms.
    end.handle_ack(1, Syndrome::RnrNak { timer: 20 });
    end.handle_ack(1, Syndrome::RnrNak { timer: 20 });
    assert_eq!(end.summary(), ["sent 1"]);
    assert_eq!(end.opcodes(), []);
    end.wait();
    assert_eq!(end.now - start, Duration::from_micros(10_240));
    assert_eq!(
        end.opcodes(),
        [(Opcode::SendFirst, 1), (Opcode::SendLast, 2)]
    );
    end.handle_ack(2, ACK);
    assert_eq!(end.summary(), ["sent 2"]);
    assert_eq!(end.queue_pair.retransmissions().pauses, 1);
}

//= ROCE-9.7.5-08 test
#[test]
fn rnr_naks_are_limited_unless_the_count_is_7() {
    for (count, limit) in [(0, 0), (3, 3), (6, 6), (7, 100)] {
        let mut end = End::with(&QueuePairSettings {
            rnr_retry_count: count,
            ..settings()
        });
        end.post_send(1, 1, None);
        for _ in 0..limit {
            assert_eq!(end.packets().len(), 1);
            end.handle_ack(0, Syndrome::RnrNak { timer: 1 });
            end.wait();
        }
        assert_eq!(end.packets().len(), 1);
        end.handle_ack(0, Syndrome::RnrNak { timer: 1 });
        assert_eq!(end.queue_pair.has_ended(), count != 7);
        if count != 7 {
            assert_eq!(end.summary(), ["flushed 1", "broken Terminated"]);
        }
    }
}

//= ROCE-9.7.4-03 test
#[test]
fn reads_wait_for_the_initiator_depth_and_the_window() {
    use Opcode::*;
    let mut end = End::with(&QueuePairSettings {
        max_in_flight: 8 * MTU,
        ..settings()
    });
    for id in 1..=3 {
        end.post_read(id, 1);
    }
    assert_eq!(end.opcodes(), [(ReadRequest, 0), (ReadRequest, 1)]);
    end.handle(&response(ReadResponseOnly, 0, &[1]));
    assert_eq!(end.opcodes(), [(ReadRequest, 2)]);
    end.handle(&response(ReadResponseOnly, 1, &[1]));
    end.handle(&response(ReadResponseOnly, 2, &[1]));
    assert_eq!(end.summary(), ["read 1 1", "read 2 1", "read 3 1"]);
    // A long Read is several requests, each of at least half a window.
    end.post_read(4, 13 * MTU);
    let first = end.packets();
    assert_eq!(first.len(), 1);
    assert_eq!(first[0].extended.reth().unwrap().length, 8 * MTU as u32);
    let data = pattern(MTU);
    for at in 3..6 {
        let opcode = if at == 3 {
            ReadResponseFirst
        } else {
            ReadResponseMiddle
        };
        end.handle(&response(opcode, at, &data));
        assert_eq!(end.opcodes(), []);
    }
    end.handle(&response(ReadResponseMiddle, 6, &data));
    let second = end.packets();
    assert_eq!(second.len(), 1);
    assert_eq!(index(second[0].bth.psn), 11);
    let reth = second[0].extended.reth().unwrap();
    assert_eq!(reth.virtual_address, REMOTE.offset + 8 * MTU as u64);
    assert_eq!(reth.length, 4 * MTU as u32);
}

//= ROCE-9.7.4-04 test
#[test]
fn responses_that_do_not_fit_their_request_break_the_connection() {
    use Opcode::*;
    let nak = Extended::Aeth(Aeth {
        syndrome: SEQUENCE_ERROR,
        message_sequence_number: 0,
    });
    for bad in [
        response(ReadResponseOnly, 0, &pattern(MTU)),
        response(ReadResponseLast, 0, &pattern(MTU)),
        response(ReadResponseFirst, 0, &pattern(MTU - 1)),
        response(ReadResponseFirst, 0, &[]),
        response(ReadResponseFirst, 0, &pattern(MTU + 1)),
        packet(ReadResponseFirst, 0, nak, &pattern(MTU)),
        // This response answers the Send.
        response(ReadResponseOnly, 2, &[1]),
    ] {
        let mut end = End::new();
        end.post_read(1, MTU + 1);
        end.post_send(2, 1, None);
        assert_eq!(end.packets().len(), 2);
        if index(bad.bth.psn) == 2 {
            end.handle(&response(ReadResponseFirst, 0, &pattern(MTU)));
            end.handle(&response(ReadResponseLast, 1, &[1]));
            end.completions();
        }
        end.handle(&bad);
        assert_eq!(end.broken(), ProviderErrorKind::Protocol, "{bad:?}");
        assert_eq!(end.opcodes(), []);
    }
}

//= ROCE-9.7.6-01 test
//= ROCE-9.7.6-02 test
#[test]
fn unacknowledged_packets_are_sent_again_until_the_retries_are_used_up() {
    let mut end = End::new();
    end.post_write(1, 2 * MTU);
    end.post_read(2, 1);
    let start = end.now;
    let mut sent = 0;
    while !end.queue_pair.has_ended() {
        let opcodes = end.opcodes();
        assert_eq!(opcodes[0], (Opcode::WriteOnly, 0));
        sent += 1;
        end.wait();
    }
    let silent = end.now - start;
    assert!(
        silent >= 8 * ACK_TIMEOUT && silent <= 10 * ACK_TIMEOUT,
        "{silent:?}"
    );
    assert!((8..=20).contains(&sent), "{sent} times");
    assert_eq!(end.summary(), ["flushed 1", "flushed 2", "broken Reset"]);
    assert_eq!(end.queue_pair.poll_timeout(), None);
    assert!(!end.queue_pair.has_packet());
}

#[test]
fn a_network_that_may_lose_long_packets_is_named() {
    // Each row has the length of a Write that is acknowledged, the length of one that is not, and whether the
    // error names long packets.
    let table = [
        (Some(20), MTU, true),
        (Some(20), 3 * MTU, true),
        (Some(20), 21, true),
        (Some(20), 20, false),
        (Some(2 * MTU), 3 * MTU, false),
        (None, MTU, false),
    ];
    for (acknowledged, lost, is_named) in table {
        let mut end = End::new();
        if let Some(length) = acknowledged {
            end.post_write(1, length);
            let last = end.packets().len() as u32 - 1;
            end.handle_ack(last, ACK);
            assert_eq!(end.summary(), ["written 1"]);
        }
        end.post_write(2, lost);
        while !end.queue_pair.has_ended() {
            end.packets();
            end.wait();
        }
        let completions = std::iter::from_fn(|| end.queue_pair.poll_completion());
        let Some(Completion::Disconnected(Disconnect::Broken(error))) = completions.last() else {
            panic!("the end is not broken");
        };
        assert_eq!(error.kind, ProviderErrorKind::Reset);
        let lost = lost.min(MTU);
        let says = format!("packets of {lost} bytes, and has acknowledged none of more than 20:");
        let names = error.what.contains("none of more than");
        assert_eq!(names, is_named, "{acknowledged:?} {lost}: {}", error.what);
        assert!(!names || error.what.contains(&says), "{}", error.what);
    }
}

//= ROCE-9.7.7-03 test
#[test]
fn all_work_is_flushed_in_order() {
    let mut end = End::new();
    end.post_receives(2, 10);
    end.post_send(1, 1, None);
    end.post_read(2, 77);
    end.post_write(3, 1);
    assert_eq!(end.packets().len(), 3);
    end.post_send(4, 1, None);
    end.queue_pair.close();
    end.post_send(5, 1, None);
    end.post_read(6, 1);
    end.queue_pair.end(Disconnect::Remote);
    end.queue_pair.end(Disconnect::Local);
    end.post_send(7, 1, None);
    let expected = [
        "flushed 1",
        "flushed 2",
        "flushed 3",
        "flushed 4",
        "flushed 1000",
        "flushed 1000",
        "flushed 5",
        "flushed 6",
        "flushed 7",
        "Remote",
    ];
    assert_eq!(end.summary(), expected);
    end.post_send(8, 1, None);
    assert_eq!(end.summary(), Vec::<String>::new());
}
