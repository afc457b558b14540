//! Answers of the server, with faults among them.

use super::*;

#[test]
fn more_data_than_requested_is_a_fault() {
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
fn answers_with_a_wrong_offset_or_length_are_faults() {
    let good = read_answer(1, b"abc", 0);
    let huge = u32::MAX.to_le_bytes();
    for bytes in [
        with(good.clone(), 66, &[79]),
        with(good.clone(), 66, &[81]),
        with(good.clone(), 66, &[0]),
        with(good.clone(), 68, &huge),
        with(good.clone(), 64, &[9, 0]),
        error(READ, 1, SUCCESS),
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
fn answer_needs_no_response_flag() {
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
fn unrequested_compressed_answer_is_a_fault() {
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
