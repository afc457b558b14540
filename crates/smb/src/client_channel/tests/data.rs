//! Reads and writes: how requests are translated and data is placed.

use super::*;

#[test]
fn read_loses_its_channel_and_nothing_else() {
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
fn compressed_answers_are_not_requested() {
    let read = with(read(7, 0, 10, V1, &descriptors()), 67, &[0x03]);
    let parts = translated(&mut ClientChannel::new(), &read);
    assert_eq!(sent(&parts)[67], 0x01);
}

#[test]
fn read_data_is_placed_and_removed_from_the_answer() {
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
fn data_is_found_at_any_data_offset() {
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
fn short_and_empty_reads_report_the_placed_length() {
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
fn read_of_zero_bytes_needs_no_descriptors() {
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
fn write_contains_the_data_of_its_descriptors() {
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
fn requests_without_rdma_pass_unchanged() {
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
