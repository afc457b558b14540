//! Reads, placement, batches and completions.

use super::*;

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
        assert_eq!(
            staging.len(),
            4096,
            "the trailer, and the header that follows"
        );
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

/// After a long tagged segment, the next one is expected to be long too: a read takes its header and little more,
/// so that the rest is placed directly. After a long message, reads take all bytes that have arrived.
#[test]
fn reads_take_little_before_a_long_payload() {
    let mut stream = Stream::new(&config(false));
    let place = register(&mut stream, &vec![0; 65_000], Access::REMOTE_WRITE);
    let write = |length| {
        fpdu(&[
            &tagged(Opcode::RdmaWrite, place).encode(),
            &pattern(length, 5),
        ])
    };
    let staging = |stream: &mut Stream| stream.receive_slices()[1].len();
    stream.handle_bytes(&write(60_000));
    assert_eq!(staging(&mut stream), 4096);
    let next = write(50_000);
    stream.handle_bytes(&[write(20), next[..4000].to_vec()].concat());
    let direct = stream.receive_slices()[0].len();
    assert_eq!(direct, next.len() - 4000 - 4, "all but the CRC");
    stream.handle_bytes(&next[4000..]);
    assert_eq!(staging(&mut stream), 4096);
    stream.post(receive(1, 10_000));
    let header = untagged(Opcode::Send, 1).encode();
    stream.handle_bytes(&fpdu(&[&header, &pattern(10_000, 3)]));
    assert!(staging(&mut stream) > 100_000);
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
    assert!((512 * 1024..580 * 1024).contains(&waiting), "{waiting}");
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
