//! Violations of the peer, and the Terminate of each.

use super::*;

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
