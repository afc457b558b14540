use smbdirect::BufferDescriptorV1;

use super::*;
use crate::messages::*;

const TOKENS: [u32; 3] = [0x1111_0001, 0x2222_0002, 0x3333_0003];

/// Three descriptors for 100, 4096 and 50 bytes.
fn descriptors() -> Vec<BufferDescriptorV1> {
    vec![
        descriptor(0x1000, TOKENS[0], 100),
        descriptor(u64::MAX - 4096, TOKENS[1], 4096),
        descriptor(0, TOKENS[2], 50),
    ]
}

/// Returns a message of one part.
fn message(bytes: &[u8]) -> Message {
    Bytes::copy_from_slice(bytes).into()
}

/// Returns a message whose parts have at most `length` bytes.
fn in_parts_of(length: usize, bytes: &[u8]) -> Message {
    let parts = bytes.chunks(length).map(Bytes::copy_from_slice);
    parts.collect()
}

fn request(channel: &mut ClientChannel, bytes: &[u8]) -> Request {
    channel.request(message(bytes)).unwrap()
}

/// Returns the parts of a request, and asserts that the request is translated.
fn translated(channel: &mut ClientChannel, bytes: &[u8]) -> Vec<Part> {
    match request(channel, bytes) {
        Request::Translated(parts) => parts,
        Request::Pass(_) => panic!("the request passes"),
    }
}

/// Asserts that a request is forwarded unchanged.
fn passes(channel: &mut ClientChannel, bytes: &[u8]) {
    match request(channel, bytes) {
        Request::Pass(message) => assert_eq!(message.into_bytes(), bytes),
        Request::Translated(parts) => panic!("the request is translated: {parts:?}"),
    }
}

fn refused(bytes: &[u8]) -> Refusal {
    ClientChannel::new().request(message(bytes)).unwrap_err()
}

/// The value of every byte of the client's memory in messages that [`sent`] returns.
const REMOTE: u8 = 0xee;

fn sent(parts: &[Part]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        assert!(!part.is_empty(), "an empty part");
        match part {
            Part::Bytes(part) => bytes.extend_from_slice(part),
            Part::Remote { length, .. } => {
                bytes.resize(bytes.len() + *length as usize, REMOTE);
            }
        }
    }
    bytes
}

/// Passes only the head of an answer to the translator, as a caller that has not received all of it does.
fn answer_of(channel: &mut ClientChannel, bytes: &[u8]) -> Result<Answer, ServerFault> {
    let head = bytes.len().min(ClientChannel::ANSWER_HEAD);
    channel.answer(&bytes[..head], bytes.len())
}

fn pass(token: Option<u32>) -> Answer {
    Answer::Pass {
        invalidate: token.map(Token),
    }
}

/// Returns a READ as the server receives it: without channel, descriptors and RemainingBytes.
fn read_without_channel(read: &[u8]) -> Vec<u8> {
    let mut plain = read[..112].to_vec();
    put(&mut plain, 100, &[0; 12]);
    plain.push(0);
    plain
}

fn write_with_data(write: &[u8], length: u32) -> Vec<u8> {
    let mut plain = write[..112].to_vec();
    put(&mut plain, 66, &112_u16.to_le_bytes());
    put(&mut plain, 68, &length.to_le_bytes());
    put(&mut plain, 96, &[0; 12]);
    plain.resize(112 + length as usize, REMOTE);
    if length == 0 {
        plain.push(0);
    }
    plain
}

#[test]
fn read_goes_without_its_channel_and_nothing_else_changes() {
    for channel in [V1, V1_INVALIDATE] {
        for parts in [1, 7, 63, 64, 111, 112, 113, 128, 1000] {
            let read = read(7, u64::MAX, 4000, channel, &descriptors());
            let mut client = ClientChannel::new();
            let Ok(Request::Translated(parts)) = client.request(in_parts_of(parts, &read)) else {
                panic!("a READ with a channel is translated");
            };
            assert_eq!(sent(&parts), read_without_channel(&read));
            assert_eq!(client.pending(), 1);
        }
    }
}

#[test]
fn compressed_answers_are_not_asked_for() {
    let read = with(read(7, 0, 10, V1, &descriptors()), 67, &[0x03]);
    let parts = translated(&mut ClientChannel::new(), &read);
    assert_eq!(sent(&parts)[67], 0x01);
}

#[test]
fn data_of_a_read_is_placed_and_its_answer_has_none() {
    for (channel, token) in [(V1, None), (V1_INVALIDATE, Some(Token(TOKENS[0])))] {
        let mut client = ClientChannel::new();
        let mut data = vec![9; 4000];
        data[..3].copy_from_slice(b"abc");
        let bytes = with(read_answer(7, &data, 0), 76, &0x0000_0040_u32.to_le_bytes());
        translated(&mut client, &read(7, 5, 4000, channel, &descriptors()));
        let Ok(Answer::Place(placement)) = answer_of(&mut client, &bytes) else {
            panic!("the data is placed");
        };
        assert_eq!(bytes[placement.data.clone()], data);
        assert_eq!(placement.to, descriptors());
        assert_eq!(placement.invalidate, token);
        let mut reply = bytes[..80].to_vec();
        put(&mut reply, 68, &0_u32.to_le_bytes());
        put(&mut reply, 72, &4000_u32.to_le_bytes());
        assert_eq!(placement.reply, reply);
        assert_eq!(client.pending(), 0);
    }
}

#[test]
fn data_is_found_behind_any_data_offset() {
    for padding in [0, 1, 8, 175] {
        let mut client = ClientChannel::new();
        translated(&mut client, &read(7, 5, 3, V1, &descriptors()));
        let mut bytes = read_answer(7, &[], 0);
        bytes[66] = 80 + padding;
        put(&mut bytes, 68, &3_u32.to_le_bytes());
        bytes.resize(80 + usize::from(padding), 0xff);
        bytes.extend_from_slice(b"abc");
        let Ok(Answer::Place(placement)) = answer_of(&mut client, &bytes) else {
            panic!("the data is placed");
        };
        assert_eq!(bytes[placement.data], *b"abc");
        assert_eq!(placement.reply[66], 80, "DataOffset, as if data followed");
    }
}

#[test]
fn short_and_empty_reads_say_how_much_was_placed() {
    for length in [0, 1, 99, 100, 101] {
        let mut client = ClientChannel::new();
        translated(&mut client, &read(7, 5, 101, V1_INVALIDATE, &descriptors()));
        let bytes = read_answer(7, &vec![1; length], 0);
        let Ok(Answer::Place(placement)) = answer_of(&mut client, &bytes) else {
            panic!("the data is placed");
        };
        assert_eq!(placement.data.len(), length);
        assert_eq!(u32_at(&placement.reply, 68), 0);
        assert_eq!(u32_at(&placement.reply, 72) as usize, length);
        assert_eq!(placement.invalidate, Some(Token(TOKENS[0])));
    }
}

#[test]
fn read_of_nothing_needs_no_descriptors() {
    for channel in [V1, V1_INVALIDATE] {
        let mut client = ClientChannel::new();
        let read = read(7, 5, 0, channel, &[]);
        assert_eq!(
            sent(&translated(&mut client, &read)),
            read_without_channel(&read)
        );
        let Ok(Answer::Place(placement)) = answer_of(&mut client, &read_answer(7, &[], 0)) else {
            panic!("the answer of a READ is its own");
        };
        assert!(placement.data.is_empty() && placement.to.is_empty());
        assert_eq!(placement.invalidate, None);
        assert_eq!(u32_at(&placement.reply, 72), 0);
    }
}

#[test]
fn buffer_overflow_has_data_to_place() {
    let mut client = ClientChannel::new();
    translated(&mut client, &read(7, 5, 10, V1_INVALIDATE, &descriptors()));
    let bytes = with(
        read_answer(7, b"pipe", 0),
        8,
        &BUFFER_OVERFLOW.to_le_bytes(),
    );
    let Ok(Answer::Place(placement)) = answer_of(&mut client, &bytes) else {
        panic!("the data is placed");
    };
    assert_eq!(bytes[placement.data], *b"pipe");
    assert_eq!(u32_at(&placement.reply, 8), BUFFER_OVERFLOW);
}

#[test]
fn errors_and_warnings_pass_and_invalidate() {
    // STATUS_DEVICE_BUSY is a warning, and as an answer to a READ it has the body of an error.
    for status in [END_OF_FILE, CANCELLED, 0xffff_ffff, 0x8000_0011] {
        for (channel, token) in [(V1, None), (V1_INVALIDATE, Some(TOKENS[0]))] {
            for command in [READ, WRITE] {
                let mut client = ClientChannel::new();
                let request = match command {
                    READ => read(7, 0, 10, channel, &descriptors()),
                    _ => write_by_rdma(7, 0, 10, channel, &descriptors()),
                };
                translated(&mut client, &request);
                let bytes = error(command, 7, status);
                assert_eq!(answer_of(&mut client, &bytes), Ok(pass(token)));
                assert_eq!(client.pending(), 0);
            }
        }
    }
}

#[test]
fn interim_answer_passes_and_the_final_one_is_translated() {
    let mut client = ClientChannel::new();
    translated(&mut client, &read(7, 5, 10, V1_INVALIDATE, &descriptors()));
    translated(
        &mut client,
        &write_by_rdma(8, 5, 10, V1_INVALIDATE, &descriptors()),
    );
    for _ in 0..2 {
        assert_eq!(answer_of(&mut client, &interim(READ, 7)), Ok(pass(None)));
        assert_eq!(answer_of(&mut client, &interim(WRITE, 8)), Ok(pass(None)));
        assert_eq!(client.pending(), 2);
    }
    let bytes = flagged(write_answer(8, 10), ASYNC);
    assert_eq!(answer_of(&mut client, &bytes), Ok(pass(Some(TOKENS[0]))));
    let bytes = flagged(read_answer(7, b"abc", 0), ASYNC);
    assert!(matches!(
        answer_of(&mut client, &bytes),
        Ok(Answer::Place(_))
    ));
    assert_eq!(client.pending(), 0);
    // No token is left to invalidate.
    let bytes = error(READ, 7, END_OF_FILE);
    assert_eq!(answer_of(&mut client, &bytes), Ok(pass(None)));
}

#[test]
fn write_carries_the_data_of_its_descriptors() {
    for length in [0, 1, 7, 100, 4246] {
        for parts in [1, 64, 112, 1000] {
            let write = write_by_rdma(7, 1 << 40, length, V1_INVALIDATE, &descriptors());
            let mut client = ClientChannel::new();
            let Ok(Request::Translated(parts)) = client.request(in_parts_of(parts, &write)) else {
                panic!("a WRITE with a channel is translated");
            };
            assert_eq!(sent(&parts), write_with_data(&write, length));
            let remote = Part::Remote {
                from: descriptors(),
                length,
            };
            assert_eq!(parts.get(1), (length > 0).then_some(&remote));
            let bytes = write_answer(7, length);
            assert_eq!(answer_of(&mut client, &bytes), Ok(pass(Some(TOKENS[0]))));
            assert_eq!(client.pending(), 0);
        }
    }
}

#[test]
fn what_asks_for_no_rdma_passes_byte_for_byte() {
    let mut smb1 = header(READ, 1);
    put(&mut smb1, 0, b"\xffSMB");
    let read_of_nothing = read(1, 0, 0, 0, &[]);
    let messages = [
        Vec::new(),
        b"\xfe".to_vec(),
        b"\xfeSMB".to_vec(),
        header(READ, 1)[..63].to_vec(),
        encrypted(200),
        compressed(200),
        encrypted(52)[..4].to_vec(),
        smb1,
        b"GET / HTTP/1.0".to_vec(),
        header(NEGOTIATE, 0),
        flagged(read(2, 0, 100, 0, &[]), SIGNED),
        flagged(write(3, 0, &[1; 300]), SIGNED),
        write(4, 0, &[1; 300]),
        // Without a channel the length and offset of the channel information have no meaning.
        with(read_of_nothing, 108, &[0xff; 4]),
        other(header(CANCEL, 5), &[4, 0, 0, 0]),
        compound(&[
            other(header(CREATE, 6), &[57; 57]),
            flagged(read(7, 0, 5, 0, &[]), RELATED),
            flagged(other(header(CLOSE, 8), &[24; 24]), RELATED),
        ]),
        // A compound with padding that is not zero, also after its last element.
        compound_padded(
            &[
                flagged(read(9, 0, 5, 0, &[]), SIGNED),
                flagged(other(header(CLOSE, 10), &[24; 29]), SIGNED),
            ],
            0xaa,
        ),
    ];
    for bytes in &messages {
        for parts in [1, 3, 64, 100, 112, 1000] {
            let mut client = ClientChannel::new();
            let Ok(Request::Pass(message)) = client.request(in_parts_of(parts, bytes)) else {
                panic!("{bytes:02x?} does not pass");
            };
            assert_eq!(message.into_bytes(), bytes);
            assert_eq!(client.pending(), 0);
        }
    }
}

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
fn channels_without_a_meaning_are_refused() {
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
fn descriptors_behind_a_gap_are_found() {
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
fn there_is_room_for_so_many_requests() {
    let one = [descriptor(0, 1, 10)];
    let mut client = ClientChannel::new();
    for id in 0..MAX_PENDING as u64 {
        assert!(client.has_room());
        translated(&mut client, &write_by_rdma(id, 0, 10, V1, &one));
    }
    assert!(!client.has_room());
    answer_of(&mut client, &write_answer(77, 10)).unwrap();
    assert!(client.has_room());
}

#[test]
fn there_is_room_for_so_many_descriptors() {
    let many = vec![descriptor(0, 1, 10); 4095];
    let mut client = ClientChannel::new();
    let mut requests = 0;
    while client.has_room() {
        translated(&mut client, &read(requests, 0, 10, V1, &many));
        requests += 1;
    }
    assert_eq!(requests, (MAX_DESCRIPTORS / 4095) as u64);
    for id in 0..requests {
        assert!(!client.has_room() || id > 0);
        answer_of(&mut client, &read_answer(id, b"x", 0)).unwrap();
    }
    assert!(client.has_room());
    assert_eq!((client.pending(), client.descriptors), (0, 0));
}

#[test]
fn compound_has_no_more_requests_than_there_is_room_for() {
    let one = [descriptor(0, 1, 10)];
    let elements: Vec<_> = (0..=MAX_PENDING as u64)
        .map(|id| write_by_rdma(id, 0, 0, V1, &one))
        .collect();
    let mut client = ClientChannel::new();
    translated(&mut client, &compound(&elements[1..]));
    assert!(matches!(
        refused(&compound(&elements)),
        Refusal::TooMany { .. }
    ));
    let many = vec![descriptor(0, 1, 10); 4095];
    let elements: Vec<_> = (0..=16).map(|id| read(id, 0, 10, V1, &many)).collect();
    translated(&mut ClientChannel::new(), &compound(&elements[1..]));
    assert!(matches!(
        refused(&compound(&elements)),
        Refusal::TooMany { .. }
    ));
}

#[test]
fn message_id_of_a_waiting_request_is_refused() {
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
fn oplock_break_is_nobodys_answer() {
    let mut client = ClientChannel::new();
    translated(&mut client, &read(u64::MAX, 0, 10, V1, &descriptors()));
    let bytes = other(answer(18, u64::MAX, SUCCESS), &[24; 24]);
    assert_eq!(answer_of(&mut client, &bytes), Ok(pass(None)));
    assert_eq!(client.pending(), 1);
}

#[test]
fn headers_that_are_no_smb2_are_refused() {
    let bytes = with(header(READ, 7), 4, &[63, 0]);
    let refusal = refused(&bytes);
    assert!(matches!(refusal, Refusal::Header { .. }), "{refusal}");
}

/// A chain of CREATE, READ or WRITE by RDMA and CLOSE.
fn chain(middle: Vec<u8>) -> Vec<Vec<u8>> {
    vec![
        other(header(CREATE, 20), &[57; 59]),
        flagged(middle, RELATED),
        flagged(other(header(CLOSE, 22), &[24; 21]), RELATED),
    ]
}

#[test]
fn read_in_a_related_compound_is_translated_in_its_place() {
    let read = read(21, 0, 10, V1_INVALIDATE, &descriptors());
    let elements = chain(with(read, 80, &[0xff; 16]));
    for padding in [0, 0xaa] {
        let mut client = ClientChannel::new();
        let parts = translated(&mut client, &compound_padded(&elements, padding));
        let bytes = sent(&parts);
        let expected = [
            with(
                compound_padded(&elements[..2], padding)[..128].to_vec(),
                0,
                b"\xfeSMB",
            ),
            {
                let mut read = read_without_channel(&elements[1]);
                read.resize(120, 0);
                with(read, 20, &120_u32.to_le_bytes())
            },
            elements[2].clone(),
        ];
        assert_eq!(bytes, expected.concat());
        assert_eq!(client.pending(), 1);
    }
}

#[test]
fn writes_in_a_compound_are_padded_behind_their_data() {
    for length in 0..9 {
        let elements: Vec<_> = (0..3)
            .map(|id| write_by_rdma(id, 0, length, V1, &descriptors()))
            .collect();
        let mut client = ClientChannel::new();
        let bytes = sent(&translated(&mut client, &compound(&elements)));
        let plain: Vec<_> = elements
            .iter()
            .map(|element| write_with_data(element, length))
            .collect();
        assert_eq!(bytes, compound(&plain));
        assert_eq!(client.pending(), 3);
    }
}

/// Returns the placements of a compound answer, and its messages with the tokens that they invalidate.
type Steps = (
    Vec<(Bytes, Vec<BufferDescriptorV1>)>,
    Vec<(Bytes, Option<Token>)>,
);

fn steps(client: &mut ClientChannel, bytes: &[u8]) -> Result<Steps, ServerFault> {
    assert_eq!(answer_of(client, bytes), Ok(Answer::Compound));
    let (mut placed, mut messages) = (Vec::new(), Vec::new());
    for step in client.compound_answer(Bytes::copy_from_slice(bytes))? {
        match step {
            Step::Place { data, to } => {
                assert!(messages.is_empty(), "data comes before the answers");
                placed.push((data, to));
            }
            Step::Send {
                message,
                invalidate,
            } => messages.push((message.into_bytes(), invalidate)),
        }
    }
    Ok((placed, messages))
}

#[test]
fn compound_answer_stays_one_with_its_data_placed() {
    for (channel, token) in [(V1, None), (V1_INVALIDATE, Some(Token(TOKENS[0])))] {
        let mut client = ClientChannel::new();
        let elements = chain(read(21, 0, 10, channel, &descriptors()));
        translated(&mut client, &compound(&elements));
        let answers = [
            other(answer(CREATE, 20, SUCCESS), &[89; 91]),
            flagged(read_answer(21, b"abc", 0), RELATED),
            flagged(other(answer(CLOSE, 22, SUCCESS), &[60; 63]), RELATED),
        ];
        let (placed, messages) = steps(&mut client, &compound_padded(&answers, 0xaa)).unwrap();
        assert_eq!(placed, [(Bytes::from_static(b"abc"), descriptors())]);
        let expected = [
            compound_padded(&answers[..2], 0xaa)[..160].to_vec(),
            with(
                flagged(read_answer(21, &[], 3), RELATED),
                20,
                &80_u32.to_le_bytes(),
            ),
            answers[2].clone(),
        ];
        assert_eq!(messages, [(expected.concat().into(), token)]);
        assert_eq!(client.pending(), 0);
    }
}

#[test]
fn last_element_of_a_compound_answer_is_placed() {
    let mut client = ClientChannel::new();
    let requests = [
        header(ECHO, 1),
        read(2, 0, 10, V1, &descriptors()),
        read(3, 0, 10, V1, &descriptors()),
    ];
    translated(&mut client, &compound(&requests));
    let answers = [
        other(answer(ECHO, 1, SUCCESS), &[4, 0, 0, 0]),
        read_answer(2, &[], 0),
        read_answer(3, b"abc", 0),
    ];
    let (placed, messages) = steps(&mut client, &compound(&answers)).unwrap();
    assert_eq!(placed, [(Bytes::from_static(b"abc"), descriptors())]);
    let expected = [
        answers[0].clone(),
        read_answer(2, &[], 0),
        read_answer(3, &[], 3),
    ];
    assert_eq!(messages, [(compound(&expected).into(), None)]);
}

#[test]
fn compound_answer_that_invalidates_more_than_one_token_is_split() {
    let mut client = ClientChannel::new();
    let requests: Vec<_> = (0..3)
        .map(|id| match id {
            1 => write_by_rdma(id, 0, 3, V1_INVALIDATE, &descriptors()[1..]),
            _ => read(id, 0, 3, V1_INVALIDATE, &descriptors()[id as usize..]),
        })
        .collect();
    translated(&mut client, &compound(&requests));
    let answers = [
        read_answer(0, b"abc", 0),
        flagged(write_answer(1, 3), RELATED),
        flagged(error(READ, 2, END_OF_FILE), RELATED),
        flagged(other(answer(ECHO, 9, SUCCESS), &[4, 0, 0, 0]), RELATED),
    ];
    let (placed, messages) = steps(&mut client, &compound(&answers)).unwrap();
    assert_eq!(placed, [(Bytes::from_static(b"abc"), descriptors())]);
    // An element that is sent alone has no RELATED flag. Its padding stays, because servers may pad too.
    let alone = |element: &[u8], length| {
        let mut element = with(element.to_vec(), 16, &1_u32.to_le_bytes());
        element.resize(length, 0);
        Bytes::from(element)
    };
    let expected = [
        (read_answer(0, &[], 3).into(), Some(Token(TOKENS[0]))),
        (alone(&answers[1], 88), Some(Token(TOKENS[1]))),
        (alone(&answers[2], 80), Some(Token(TOKENS[2]))),
        (alone(&answers[3], 68), None),
    ];
    assert_eq!(messages, expected);
    assert_eq!(client.pending(), 0);
}

#[test]
fn signed_answers_in_a_compound_are_not_changed() {
    let mut client = ClientChannel::new();
    let requests = [
        read(1, 0, 3, V1, &descriptors()),
        flagged(header(ECHO, 2), SIGNED),
        flagged(header(ECHO, 3), SIGNED),
    ];
    translated(&mut client, &compound(&requests));
    let signed = |id, body: &[u8]| flagged(other(answer(ECHO, id, SUCCESS), body), SIGNED);
    let answers = [
        read_answer(1, b"abc", 0),
        signed(2, &[4, 0, 0, 0]),
        signed(3, &[4, 0, 0, 0]),
    ];
    let bytes = compound_padded(&answers, 0xaa);
    let (_, messages) = steps(&mut client, &bytes).unwrap();
    let tail = &messages[0].0[80..];
    assert_eq!(tail, &bytes[88..], "with their padding");
}

#[test]
fn signed_answer_that_would_have_to_change_is_a_fault() {
    let mut client = ClientChannel::new();
    translated(&mut client, &read(1, 0, 3, V1, &descriptors()));
    let bytes = flagged(read_answer(1, b"abc", 0), SIGNED);
    assert_eq!(answer_of(&mut client, &bytes), Err(ServerFault::Signed));

    let mut client = ClientChannel::new();
    let requests: Vec<_> = (0..2)
        .map(|id| write_by_rdma(id, 0, 3, V1_INVALIDATE, &descriptors()))
        .collect();
    translated(&mut client, &compound(&requests));
    let answers = [0, 1].map(|id| flagged(write_answer(id, 3), SIGNED));
    assert_eq!(
        steps(&mut client, &compound(&answers)),
        Err(ServerFault::Signed)
    );

    // An answer that is forwarded unchanged may be signed.
    let mut client = ClientChannel::new();
    translated(
        &mut client,
        &write_by_rdma(1, 0, 3, V1_INVALIDATE, &descriptors()),
    );
    let bytes = flagged(write_answer(1, 3), SIGNED);
    assert_eq!(answer_of(&mut client, &bytes), Ok(pass(Some(TOKENS[0]))));
}

#[test]
fn compound_answer_with_nothing_to_translate_passes() {
    let mut client = ClientChannel::new();
    translated(&mut client, &read(1, 0, 3, V1_INVALIDATE, &descriptors()));
    let bytes = compound_padded(
        &[
            interim(READ, 1),
            error(CREATE, 5, END_OF_FILE),
            read_answer(6, b"other", 0),
        ],
        0xaa,
    );
    let (placed, messages) = steps(&mut client, &bytes).unwrap();
    assert!(placed.is_empty());
    assert_eq!(messages, [(bytes.into(), None)]);
    assert_eq!(client.pending(), 1);
    // A compound answer that invalidates one token is also forwarded unchanged.
    let bytes = compound_padded(&[error(READ, 1, END_OF_FILE), interim(WRITE, 5)], 0xaa);
    let (_, messages) = steps(&mut client, &bytes).unwrap();
    assert_eq!(messages, [(bytes.into(), Some(Token(TOKENS[0])))]);
}

#[test]
fn answers_of_a_compound_may_come_alone_and_in_any_order() {
    let mut client = ClientChannel::new();
    let elements = chain(read(21, 0, 10, V1_INVALIDATE, &descriptors()));
    translated(&mut client, &compound(&elements));
    let close = other(answer(CLOSE, 22, SUCCESS), &[60; 60]);
    assert_eq!(answer_of(&mut client, &close), Ok(pass(None)));
    assert!(matches!(
        answer_of(&mut client, &read_answer(21, b"abc", 0)),
        Ok(Answer::Place(_))
    ));
    let create = other(answer(CREATE, 20, SUCCESS), &[89; 89]);
    assert_eq!(answer_of(&mut client, &create), Ok(pass(None)));
}

#[test]
fn broken_compounds_are_refused() {
    let good = compound(&[header(ECHO, 1), read(2, 0, 3, V1, &descriptors())]);
    for next_command in [1_u32, 8, 56, 63, 65, 68, good.len() as u32, u32::MAX] {
        let bytes = with(good.clone(), 20, &next_command.to_le_bytes());
        let refusal = refused(&bytes);
        assert!(matches!(refusal, Refusal::Malformed { .. }), "{refusal}");
        let mut client = ClientChannel::new();
        translated(&mut client, &read(7, 0, 3, V1, &descriptors()));
        let fault = client.compound_answer(bytes.into()).unwrap_err();
        assert!(matches!(fault, ServerFault::Malformed { .. }), "{fault}");
    }
    // Every truncation except one at the end of an element.
    for length in 65..good.len() {
        assert!(matches!(
            refused(&good[..length]),
            Refusal::Malformed { .. }
        ));
    }
}

#[test]
fn more_data_than_was_asked_for_is_a_fault() {
    let mut client = ClientChannel::new();
    translated(&mut client, &read(1, 0, 3, V1, &descriptors()));
    assert_eq!(
        answer_of(&mut client, &read_answer(1, b"abcd", 0)),
        Err(ServerFault::TooMuch {
            length: 4,
            requested: 3
        })
    );
}

#[test]
fn answers_that_lie_about_their_data_are_faults() {
    let good = read_answer(1, b"abc", 0);
    let huge = u32::MAX.to_le_bytes();
    for bytes in [
        with(good.clone(), 66, &[79]),
        with(good.clone(), 66, &[81]),
        with(good.clone(), 66, &[0]),
        with(good.clone(), 68, &huge),
        with(good.clone(), 64, &[9, 0]),
        error(READ, 1, SUCCESS),
        error(READ, 1, PENDING),
        error(READ, 1, 0x4000_0001),
    ] {
        let mut client = ClientChannel::new();
        translated(&mut client, &read(1, 0, 100, V1, &descriptors()));
        let fault = answer_of(&mut client, &bytes).unwrap_err();
        assert!(matches!(fault, ServerFault::Malformed { .. }), "{fault}");
    }
    for length in 64..good.len() {
        let mut client = ClientChannel::new();
        translated(&mut client, &read(1, 0, 100, V1, &descriptors()));
        assert!(answer_of(&mut client, &good[..length]).is_err());
    }
}

#[test]
fn answer_is_one_without_the_flag_of_answers() {
    let mut client = ClientChannel::new();
    translated(&mut client, &read(1, 0, 3, V1, &descriptors()));
    let bytes = with(read_answer(1, b"abc", 0), 16, &[0; 4]);
    let answer = answer_of(&mut client, &bytes);
    assert!(matches!(answer, Ok(Answer::Place(_))), "{answer:?}");
    let mut client = ClientChannel::new();
    translated(
        &mut client,
        &write_by_rdma(1, 0, 3, V1_INVALIDATE, &descriptors()),
    );
    let bytes = with(interim(WRITE, 1), 16, &ASYNC.to_le_bytes());
    assert_eq!(answer_of(&mut client, &bytes), Ok(pass(None)));
    assert_eq!(client.pending(), 1);
}

#[test]
fn answer_with_a_broken_header_is_a_fault() {
    let good = read_answer(1, b"abc", 0);
    let mut client = ClientChannel::new();
    for bytes in [&good[..63], &good[..4], &with(good.clone(), 4, &[63, 0])] {
        assert_eq!(answer_of(&mut client, bytes), Ok(pass(None)));
    }
    translated(&mut client, &read(1, 0, 3, V1, &descriptors()));
    for bytes in [&good[..63], &good[..4], &with(good.clone(), 4, &[63, 0])] {
        let fault = answer_of(&mut client, bytes).unwrap_err();
        assert!(matches!(fault, ServerFault::Header { .. }), "{fault}");
    }
}

#[test]
fn encrypted_answer_to_a_client_that_does_not_encrypt_is_a_fault() {
    let mut client = ClientChannel::new();
    // Without an unanswered request with a channel, the answer cannot belong to a translated request.
    assert_eq!(answer_of(&mut client, &encrypted(200)), Ok(pass(None)));
    translated(&mut client, &read(1, 0, 3, V1, &descriptors()));
    let fault = answer_of(&mut client, &encrypted(200));
    assert_eq!(fault, Err(ServerFault::Encrypted));
    passes(&mut client, &encrypted(100));
    assert_eq!(answer_of(&mut client, &encrypted(200)), Ok(pass(None)));
}

#[test]
fn compressed_answer_that_was_not_asked_for_is_a_fault() {
    let compressible = with(read(5, 0, 10, 0, &[]), 67, &[0x02]);
    for allows in [
        compressed(100),
        compressible.clone(),
        compound(&[header(ECHO, 4), compressible]),
    ] {
        let mut client = ClientChannel::new();
        translated(
            &mut client,
            &with(read(1, 0, 3, V1, &descriptors()), 67, &[0x02]),
        );
        passes(&mut client, &with(read(2, 0, 10, 0, &[]), 67, &[0xfd]));
        let fault = answer_of(&mut client, &compressed(200));
        assert_eq!(fault, Err(ServerFault::Compressed));
        passes(&mut client, &allows);
        assert_eq!(answer_of(&mut client, &compressed(200)), Ok(pass(None)));
    }
}

#[test]
fn answers_to_requests_without_a_channel_pass() {
    let mut client = ClientChannel::new();
    translated(&mut client, &read(1, 0, 3, V1_INVALIDATE, &descriptors()));
    for bytes in [
        read_answer(2, b"more than was asked for", 0),
        write_answer(1, 3),
        with(header(READ, 1), 0, b"\xffSMB"),
        Vec::new(),
    ] {
        assert_eq!(answer_of(&mut client, &bytes), Ok(pass(None)), "{bytes:?}");
        assert_eq!(client.pending(), 1);
    }
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
