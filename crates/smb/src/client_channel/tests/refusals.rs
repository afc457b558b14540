//! Requests that are refused, each with its reason.

use super::*;

#[test]
fn signed_requests_with_a_channel_are_refused() {
    let read = flagged(read(7, 0, 10, V1, &descriptors()), SIGNED);
    let write = flagged(
        write_by_rdma(7, 0, 10, V1_INVALIDATE, &descriptors()),
        SIGNED,
    );
    let signed = |command, channel| Refusal::Signed { command, channel };
    assert_eq!(refused(&read), signed(Command::READ, Channel::RdmaV1));
    assert_eq!(
        refused(&write),
        signed(Command::WRITE, Channel::RdmaV1Invalidate)
    );
    let echo = other(header(ECHO, 6), &[4, 0, 0, 0]);
    let refusal = refused(&compound(&[echo, read]));
    assert_eq!(refusal, signed(Command::READ, Channel::RdmaV1));
}

#[test]
fn unknown_channels_are_refused() {
    for number in [3, 4, 0x0100_0000, u32::MAX] {
        let channel = Channel::Other(number);
        let read = read(7, 0, 10, number, &descriptors());
        let write = write_by_rdma(7, 0, 10, number, &descriptors());
        for (command, bytes) in [(Command::READ, read), (Command::WRITE, write)] {
            let refusal = Refusal::Channel { command, channel };
            assert_eq!(refused(&bytes), refusal);
            // The channel information of a transform is not an array of descriptors.
            let length_at = match command {
                Command::READ => 110,
                _ => 106,
            };
            let transform = with(other(bytes.clone(), &[1; 40]), length_at, &[40, 0]);
            assert_eq!(refused(&transform), refusal);
            assert_eq!(refused(&compound(&[header(ECHO, 1), bytes])), refusal);
        }
    }
}

#[test]
fn more_bytes_than_the_descriptors_hold_are_refused() {
    let many = descriptor(0, 1, u32::MAX);
    for (length, descriptors) in [
        (4247, descriptors()),
        (1, Vec::new()),
        (u32::MAX, vec![descriptor(0, 1, u32::MAX - 1)]),
    ] {
        let read = read(7, 0, length, V1, &descriptors);
        let write = write_by_rdma(7, 0, length, V1_INVALIDATE, &descriptors);
        for bytes in [read, write] {
            assert!(matches!(
                refused(&bytes),
                Refusal::BeyondDescriptors { length: l, .. } if l == length
            ));
        }
    }
    // The sum of the lengths exceeds 32 bits.
    let read = read(7, 0, u32::MAX, V1, &[many, many]);
    translated(&mut ClientChannel::new(), &read);
}

#[test]
fn write_with_data_and_a_channel_is_refused() {
    let mut write = write(7, 0, b"data");
    put(&mut write, 96, &V1.to_le_bytes());
    assert_eq!(refused(&write), Refusal::DataAndChannel { length: 4 });
}

#[test]
fn write_longer_than_a_message_over_tcp_is_refused() {
    let described = [descriptor(0, 1, u32::MAX)];
    let longest = 0x00ff_ffff - 112;
    let write = |length| write_by_rdma(7, 0, length, V1, &described);
    let parts = translated(&mut ClientChannel::new(), &write(longest));
    assert_eq!(sent(&parts).len(), 0x00ff_ffff);
    for length in [longest + 1, u32::MAX] {
        let refusal = Refusal::TooLong {
            length: u64::from(length) + 112,
            most: 0x00ff_ffff,
        };
        assert_eq!(refused(&write(length)), refusal);
    }
}

#[test]
fn compound_longer_than_a_message_over_tcp_is_refused() {
    let described = [descriptor(0, 1, u32::MAX)];
    let write = |id, length| write_by_rdma(id, 0, length, V1, &described);
    // 64 bytes for ECHO, 112 for WRITE, one of padding.
    let longest = 0x00ff_ffff - 112 - 64;
    let echo = header(ECHO, 1);
    for (length, fits) in [(longest - 7, true), (longest, false)] {
        let bytes = compound(&[write(7, length), echo.clone()]);
        match ClientChannel::new().request(message(&bytes)) {
            Ok(Request::Translated(parts)) => assert!(fits && sent(&parts).len() <= 0x00ff_ffff),
            result => assert!(matches!(result, Err(Refusal::TooLong { .. }) if !fits)),
        }
    }
    let bytes = compound(&[write(7, longest / 2), write(8, longest / 2)]);
    assert!(matches!(refused(&bytes), Refusal::TooLong { .. }));
}

#[test]
fn every_truncation_of_a_request_with_a_channel_is_refused() {
    let read = read(7, 0, 100, V1_INVALIDATE, &descriptors());
    let write = write_by_rdma(7, 0, 100, V1_INVALIDATE, &descriptors());
    for bytes in [&read, &write] {
        for length in 64..bytes.len() {
            let refusal = refused(&bytes[..length]);
            assert!(matches!(refusal, Refusal::Malformed { .. }), "{length}");
            let mut client = ClientChannel::new();
            let parts = client.request(in_parts_of(5, &bytes[..length]));
            assert_eq!(parts.unwrap_err(), refusal);
        }
    }
}

#[test]
fn descriptors_outside_of_the_buffer_are_refused() {
    let malformed = |field, offset, length| Malformed::OutOfBounds {
        field,
        offset,
        length,
    };
    for offset in [0_u16, 1, 64, 111, 113, 0xffff] {
        let bytes = offset.to_le_bytes();
        let read = with(read(7, 0, 10, V1, &descriptors()), 108, &bytes);
        let write = with(write_by_rdma(7, 0, 10, V1, &descriptors()), 104, &bytes);
        let fault = |field| malformed(field, offset.into(), 48);
        assert_eq!(
            refused(&read),
            Refusal::Malformed {
                command: Command::READ,
                fault: fault("ReadChannelInfo")
            }
        );
        assert_eq!(
            refused(&write),
            Refusal::Malformed {
                command: Command::WRITE,
                fault: fault("WriteChannelInfo")
            }
        );
    }
    let read = with(
        read(7, 0, 10, V1, &descriptors()),
        110,
        &47_u16.to_le_bytes(),
    );
    assert_eq!(
        refused(&read),
        Refusal::Malformed {
            command: Command::READ,
            fault: Malformed::Descriptors { length: 47 }
        }
    );
}

#[test]
fn descriptors_after_a_gap_are_found() {
    let mut read = read(7, 0, 10, V1, &[]);
    read.extend_from_slice(&[0xff; 8]);
    for descriptor in descriptors() {
        descriptor.encode(&mut read);
    }
    put(&mut read, 108, &120_u16.to_le_bytes());
    put(&mut read, 110, &48_u16.to_le_bytes());
    let mut client = ClientChannel::new();
    translated(&mut client, &read);
    let Ok(Answer::Place(placement)) = answer_of(&mut client, &read_answer(7, b"abc", 0)) else {
        panic!("the data is placed");
    };
    assert_eq!(placement.to, descriptors());
}

#[test]
fn request_with_the_most_descriptors_is_translated() {
    let many: Vec<_> = (0..4095).map(|n| descriptor(n, n as u32, 2)).collect();
    let mut client = ClientChannel::new();
    translated(&mut client, &read(7, 0, 8190, V1_INVALIDATE, &many));
    let bytes = read_answer(7, &[5; 8190], 0);
    let Ok(Answer::Place(placement)) = answer_of(&mut client, &bytes) else {
        panic!("the data is placed");
    };
    assert_eq!(placement.to, many);
    assert_eq!(placement.invalidate, Some(Token(0)));
    let write = write_by_rdma(7, 0, 8190, V1, &many);
    let parts = translated(&mut client, &write);
    assert_eq!(
        parts[1],
        Part::Remote {
            from: many,
            length: 8190
        }
    );
}

#[test]
fn message_id_of_an_outstanding_request_is_refused() {
    let mut client = ClientChannel::new();
    translated(&mut client, &read(7, 0, 10, V1, &descriptors()));
    let repeated = |command| Refusal::Repeated {
        command,
        message_id: 7,
    };
    for (command, bytes) in [
        (Command::READ, read(7, 0, 10, V1, &descriptors())),
        (Command::READ, read(7, 0, 10, 0, &[])),
        (Command::WRITE, write_by_rdma(7, 0, 10, V1, &descriptors())),
        (Command::WRITE, write(7, 0, b"x")),
        (Command(13), header(ECHO, 7)),
        (Command(13), compound(&[header(CREATE, 1), header(ECHO, 7)])),
    ] {
        let refusal = client.request(message(&bytes)).unwrap_err();
        assert_eq!(refusal, repeated(command));
        assert_eq!(client.pending(), 1);
    }
    passes(&mut client, &other(header(CANCEL, 7), &[4, 0, 0, 0]));
    passes(
        &mut client,
        &compound(&[header(CANCEL, 7), header(CANCEL, 7)]),
    );
    answer_of(&mut client, &error(READ, 7, CANCELLED)).unwrap();
    passes(&mut client, &header(ECHO, 7));
}

#[test]
fn message_id_twice_in_a_compound_is_refused() {
    let rdma = read(7, 0, 10, V1, &descriptors());
    let inline = read(7, 0, 10, 0, &[]);
    for elements in [
        [rdma.clone(), inline.clone()],
        [inline, rdma.clone()],
        [rdma.clone(), rdma.clone()],
        [header(ECHO, 7), rdma.clone()],
    ] {
        assert!(matches!(
            refused(&compound(&elements)),
            Refusal::Repeated { message_id: 7, .. }
        ));
    }
    let cancel = header(CANCEL, 7);
    let bytes = compound(&[cancel.clone(), rdma, cancel]);
    translated(&mut ClientChannel::new(), &bytes);
}

#[test]
fn oplock_break_matches_no_request() {
    let mut client = ClientChannel::new();
    translated(&mut client, &read(u64::MAX, 0, 10, V1, &descriptors()));
    let bytes = other(answer(18, u64::MAX, SUCCESS), &[24; 24]);
    assert_eq!(answer_of(&mut client, &bytes), Ok(pass(None)));
    assert_eq!(client.pending(), 1);
}

#[test]
fn headers_of_other_protocols_are_refused() {
    let bytes = with(header(READ, 7), 4, &[63, 0]);
    let refusal = refused(&bytes);
    assert!(matches!(refusal, Refusal::Header { .. }), "{refusal}");
}

#[test]
fn every_refusal_has_a_cure() {
    for refusal in [
        refused(&flagged(read(1, 0, 3, V1, &descriptors()), SIGNED)),
        refused(&read(1, 0, 3, 3, &descriptors())),
        refused(&read(1, 0, 3, V1, &[])),
        refused(&with(header(READ, 1), 4, &[0, 0])),
        refused(&read(1, 0, 3, V1, &[])[..100]),
    ] {
        assert!(!refusal.to_string().is_empty());
        assert!(!refusal.cure().is_empty());
    }
}
