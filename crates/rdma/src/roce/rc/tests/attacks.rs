//! Forged and replayed packets. The attacker knows the queue pair number, and guesses the PSN.

use super::*;

/// An end with a receive, a region with every right, and one packet of its own in flight.
fn victim() -> (End, RemoteAddress) {
    let mut end = End::new();
    end.post_receives(9, 4 * MTU as u32);
    let buffer = BytesMut::from(&pattern(MTU)[..]);
    let region = end.queue_pair.memory().register(buffer, Access::all());
    // The peer has sent five messages.
    for at in 0..5 {
        end.handle(&plain(Opcode::SendOnly, at, 1));
    }
    end.post_send(1, 1, None);
    assert_eq!(end.packets().len(), 2);
    assert_eq!(end.completions().len(), 5);
    (end, region.unwrap().address)
}

/// Checks that the victim continues as if nothing had happened.
fn expect_unharmed(mut end: End, region: RemoteAddress) {
    assert_eq!(end.summary(), Vec::<String>::new());
    end.handle(&plain(Opcode::SendOnly, 5, 1));
    end.handle_ack(0, ACK);
    assert_eq!(end.summary(), ["received 1", "sent 1"]);
    let buffer = end.queue_pair.memory().deregister(region.token).unwrap();
    assert_eq!(buffer, pattern(MTU));
}

/// Of the 2^24 PSNs, only the next expected one lets a request be executed. A request with any other PSN causes
/// at most one answer.
#[test]
fn requests_with_another_psn_than_the_next_are_not_executed() {
    let distances = [
        1, 2, 100, 0x7f_ffff, 0x80_0000, 0x80_0001, 0xff_ff00, 0xff_ffff,
    ];
    for distance in distances {
        let (mut end, region) = victim();
        let at = 5 + distance;
        let invalidate = Extended::Ieth(Ieth {
            r_key: region.token.0,
        });
        for forged in [
            plain(Opcode::SendOnly, at, 4),
            plain(Opcode::SendMiddle, at, 3),
            packet(Opcode::SendOnlyInvalidate, at, invalidate, &[]),
            rdma(Opcode::WriteOnly, at, region, 4, 4),
            rdma(Opcode::WriteFirst, at, REMOTE, u32::MAX, MTU),
            rdma(Opcode::ReadRequest, at, REMOTE, 1, 0),
            rdma(Opcode::ReadRequest, at, region, u32::MAX, 0),
        ] {
            end.handle(&forged);
            assert!(end.opcodes().len() <= 1, "{forged:?}");
        }
        expect_unharmed(end, region);
    }
}

/// Answers have an effect only if their PSN is in flight.
#[test]
fn answers_with_a_psn_that_is_not_in_flight_are_ignored() {
    for at in [1, 2, 0x7f_ffff, 0x80_0000, 0xff_fffe, 0xff_ffff] {
        let (mut end, region) = victim();
        for syndrome in (0..=0x3f).chain(0x60..=0x64) {
            end.handle_ack(at, Syndrome::decode(syndrome).unwrap());
        }
        let extended = Extended::Aeth(Aeth {
            syndrome: ACK,
            message_sequence_number: 0,
        });
        end.handle(&packet(Opcode::ReadResponseOnly, at, extended, &[1]));
        end.handle(&plain(Opcode::ReadResponseMiddle, at, MTU));
        assert_eq!(end.opcodes(), []);
        expect_unharmed(end, region);
    }
}

/// Replayed packets, in any order and as often as they come, change nothing. Only Reads are executed again, and
/// they cause no more responses than the original requests.
#[test]
fn a_replayed_exchange_changes_nothing() {
    let mut ends = [End::new(), End::new()];
    ends[1].post_receives(4, 4 * MTU as u32);
    let memory = ends[1].queue_pair.memory();
    let buffer = BytesMut::from(&pattern(8 * MTU)[..]);
    let region = memory.register(buffer, Access::all()).unwrap().address;
    let queue_pair = &mut ends[0].queue_pair;
    queue_pair.post(WorkRequest::Read {
        id: WorkId(1),
        from: region,
        into: BytesMut::zeroed(8 * MTU),
    });
    queue_pair.post(WorkRequest::Write {
        id: WorkId(2),
        data: vec![7; 3 * MTU].into(),
        to: region,
    });
    ends[0].post_send(3, 2 * MTU, None);
    let mut recorded = [Vec::new(), Vec::new()];
    loop {
        let sent = [ends[0].packets(), ends[1].packets()];
        if sent.iter().all(Vec::is_empty) {
            break;
        }
        for (from, packets) in sent.into_iter().enumerate() {
            packets
                .iter()
                .for_each(|packet| ends[1 - from].handle(packet));
            recorded[1 - from].extend(packets);
        }
    }
    assert_eq!(ends[0].completions().len(), 3);
    assert_eq!(ends[1].completions().len(), 1);
    // The owner changes the memory, so that a repeated Write would be visible.
    let memory = ends[1].queue_pair.memory();
    memory.write(region, 1).unwrap()[0] = 99;
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..20 {
        for (end, packets) in ends.iter_mut().zip(&mut recorded) {
            random.shuffle(packets);
            for packet in &*packets {
                // Responses that are requested again and again have a window.
                end.now += Duration::from_millis(10);
                end.handle(packet);
                let most = if packet.bth.opcode == Opcode::ReadRequest {
                    9
                } else {
                    1
                };
                assert!(end.packets().len() <= most);
            }
            assert_eq!(end.summary(), Vec::<String>::new());
            assert_eq!(end.queue_pair.poll_timeout(), None);
        }
    }
    let memory = ends[1].queue_pair.memory();
    let buffer = memory.deregister(region.token).unwrap();
    assert_eq!((buffer[0], buffer[1]), (99, 7));
}

/// A Read of no bytes needs no token, so it is easily forged. It must not stop the responses to genuine Reads.
//= ROCE-SW-04 test
#[test]
fn forged_duplicates_of_reads_stop_no_response() {
    use Opcode::*;
    let mut end = End::new();
    let buffer = BytesMut::from(&pattern(4 * MTU)[..]);
    let region = end.queue_pair.memory().register(buffer, Access::all());
    let region = region.unwrap().address;
    end.handle(&rdma(ReadRequest, 0, region, 3 * MTU as u32, 0));
    end.handle(&rdma(ReadRequest, 3, REMOTE, 0, 0));
    end.handle(&rdma(ReadRequest, 4, region, 1, 0));
    let outside = RemoteAddress {
        offset: region.offset + MTU as u64,
        ..region
    };
    for at in [0x80_0005, 0xff_ff00, 0xff_ffff, 0, 1, 2, 4] {
        end.handle(&rdma(ReadRequest, at, REMOTE, 0, 0));
        end.handle(&rdma(ReadRequest, at, REMOTE, 1, 0));
        end.handle(&rdma(ReadRequest, at, outside, 3 * MTU as u32, 0));
    }
    let expected = [
        (ReadResponseFirst, 0),
        (ReadResponseMiddle, 1),
        (ReadResponseLast, 2),
        (ReadResponseOnly, 3),
        (ReadResponseOnly, 4),
    ];
    assert_eq!(end.opcodes(), expected);
    // The genuine Read is answered again.
    end.handle(&rdma(ReadRequest, 3, REMOTE, 0, 0));
    assert_eq!(end.opcodes(), [(ReadResponseOnly, 3)]);
    // After as many further Reads as the peer may have outstanding, the responder has forgotten it.
    for at in 5..8 {
        end.handle(&rdma(ReadRequest, at, region, 1, 0));
        assert_eq!(end.opcodes(), [(ReadResponseOnly, at)]);
    }
    end.handle(&rdma(ReadRequest, 3, REMOTE, 0, 0));
    assert_eq!(end.opcodes(), []);
}

/// A peer that sends requests as fast as it can and takes no answer costs bounded memory.
#[test]
fn unanswered_requests_do_not_pile_up() {
    let mut end = End::new();
    let buffer = BytesMut::zeroed(100 * MTU);
    let region = end.queue_pair.memory().register(buffer, Access::all());
    let region = region.unwrap().address;
    end.handle(&rdma(Opcode::ReadRequest, 0, region, 100 * MTU as u32, 0));
    for at in (0..100).cycle().take(10_000) {
        let rest = RemoteAddress {
            offset: region.offset + u64::from(at) * MTU as u64,
            ..region
        };
        let length = (100 - at) * MTU as u32;
        end.handle(&rdma(Opcode::ReadRequest, at, rest, length, 0));
        end.handle(&plain(Opcode::SendOnly, 200 + at, 1));
    }
    // The response to the first request, which includes the others, and one NAK.
    assert_eq!(end.opcodes().len(), 101);
    assert!(!end.queue_pair.has_ended());
}
