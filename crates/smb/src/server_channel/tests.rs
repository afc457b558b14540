use super::*;
use crate::messages::*;

const SETTINGS: Settings = Settings {
    threshold: 100,
    max_read_write_size: 5000,
};

/// Returns the state of a connection whose server has selected this dialect.
fn speaking(dialect: u16) -> ServerChannel {
    let mut server = ServerChannel::new(SETTINGS);
    assert_eq!(server.answer(&negotiated(dialect)), Ok(Answer::Pass));
    server
}

/// Returns the state of a connection whose server has selected dialect 3.1.1.
fn server() -> ServerChannel {
    speaking(0x0311)
}

/// Passes the head of a request to the translator, as a caller that has not received all of it does. Then passes the
/// whole request: for the result if the head was not enough, and otherwise to check that the result is the same.
fn ask(server: &mut ServerChannel, bytes: &[u8]) -> Result<Offload, Refusal> {
    let head = bytes.len().min(ServerChannel::REQUEST_HEAD);
    match server.request(&bytes[..head], bytes.len()) {
        Ok(Offload::Incomplete) => server.request(bytes, bytes.len()),
        result => {
            assert_eq!(server.request(bytes, bytes.len()), result);
            result
        }
    }
}

/// Returns descriptors of the gateway's memory for a request.
fn memory(length: u32) -> [BufferDescriptorV1; 1] {
    [descriptor(0x7f00_0000_1234, 0xabcd_0001, length)]
}

/// Translates a READ to one with a channel.
fn read_goes(server: &mut ServerChannel, message_id: u64, length: u32) -> Bytes {
    let request = read(message_id, 9, length, 0, &[]);
    assert_eq!(ask(server, &request), Ok(Offload::Read { length }));
    server.read_request(&request, &memory(length))
}

/// Translates a WRITE to one with a channel.
fn write_goes(server: &mut ServerChannel, message_id: u64, length: u32) -> Bytes {
    let request = write(message_id, 9, &vec![7; length as usize]);
    let data = 112..112 + length as usize;
    assert_eq!(ask(server, &request), Ok(Offload::Write { data }));
    let head = &request[..ServerChannel::REQUEST_HEAD];
    server.write_request(head, request.len(), &memory(length))
}

#[test]
fn read_goes_by_rdma_and_nothing_else_changes() {
    for (dialect, channel) in [
        (0x0300, V1),
        (0x0302, V1_INVALIDATE),
        (0x0311, V1_INVALIDATE),
    ] {
        let mut server = speaking(dialect);
        let mut expected = read(7, 9, 4000, channel, &memory(4000));
        put(&mut expected, 104, &[0; 4]);
        assert_eq!(read_goes(&mut server, 7, 4000), expected);
        assert_eq!(server.pending(), 1);
    }
}

#[test]
fn write_goes_by_rdma_and_nothing_else_changes() {
    for (dialect, channel) in [
        (0x0300, V1),
        (0x0302, V1_INVALIDATE),
        (0x0311, V1_INVALIDATE),
    ] {
        let mut server = speaking(dialect);
        let expected = write_by_rdma(7, 9, 4000, channel, &memory(4000));
        assert_eq!(write_goes(&mut server, 7, 4000), expected);
        assert_eq!(server.pending(), 1);
    }
}

#[test]
fn data_of_a_write_is_found_behind_any_data_offset() {
    let mut bytes = write(7, 9, &[7; 200]);
    bytes.splice(112..112, [0xff; 9]);
    put(&mut bytes, 66, &121_u16.to_le_bytes());
    assert_eq!(
        ask(&mut server(), &bytes),
        Ok(Offload::Write { data: 121..321 })
    );
}

#[test]
fn compressed_answers_are_not_requested() {
    let mut server = server();
    let request = with(read(7, 9, 4000, 0, &[]), 67, &[0x03]);
    ask(&mut server, &request).unwrap();
    assert_eq!(server.read_request(&request, &memory(4000))[67], 0x01);
}

#[test]
fn dialects_before_3_0_have_no_rdma() {
    let read = read(7, 0, 4000, 0, &[]);
    let mut untold = ServerChannel::new(SETTINGS);
    assert_eq!(ask(&mut untold, &read), Ok(Offload::Pass));
    for dialect in [0x0202, 0x0210, 0x02ff] {
        assert_eq!(ask(&mut speaking(dialect), &read), Ok(Offload::Pass));
    }
    // A client that offers SMB1 negotiates twice.
    let mut server = speaking(0x02ff);
    server.answer(&negotiated(0x0302)).unwrap();
    assert_eq!(ask(&mut server, &read), Ok(Offload::Read { length: 4000 }));
}

#[test]
fn threshold_and_limit_are_inclusive() {
    for (length, goes) in [
        (0, false),
        (1, false),
        (99, false),
        (100, true),
        (5000, true),
        (5001, false),
    ] {
        let expected = |offload| if goes { offload } else { Offload::Pass };
        let request = read(7, 0, length, 0, &[]);
        assert_eq!(
            ask(&mut server(), &request),
            Ok(expected(Offload::Read { length }))
        );
        let data = 112..112 + length as usize;
        let request = write(7, 0, &vec![7; length as usize]);
        assert_eq!(
            ask(&mut server(), &request),
            Ok(expected(Offload::Write { data }))
        );
    }
    let request = read(7, 0, u32::MAX, 0, &[]);
    assert_eq!(ask(&mut server(), &request), Ok(Offload::Pass));
}

#[test]
fn nothing_goes_by_rdma_without_a_byte() {
    let mut server = ServerChannel::new(Settings {
        threshold: 0,
        max_read_write_size: 5000,
    });
    server.answer(&negotiated(0x0311)).unwrap();
    for request in [read(7, 0, 0, 0, &[]), write(7, 0, &[])] {
        assert_eq!(ask(&mut server, &request), Ok(Offload::Pass));
    }
}

#[test]
fn all_passes_that_must_not_change() {
    let mut smb1 = header(READ, 1);
    put(&mut smb1, 0, b"\xffSMB");
    for bytes in [
        Vec::new(),
        header(READ, 1)[..63].to_vec(),
        encrypted(5000),
        compressed(5000),
        smb1,
        header(NEGOTIATE, 0),
        flagged(read(1, 0, 4000, 0, &[]), SIGNED),
        flagged(write(2, 0, &[1; 4000]), SIGNED),
        other(header(CANCEL, 3), &[4, 0, 0, 0]),
        compound(&[
            other(header(CREATE, 4), &[57; 57]),
            flagged(read(5, 0, 4000, 0, &[]), RELATED),
            flagged(write(6, 0, &[1; 4000]), RELATED),
        ]),
    ] {
        assert_eq!(ask(&mut server(), &bytes), Ok(Offload::Pass));
    }
}

#[test]
fn compound_is_judged_whole() {
    let bytes = compound(&[header(ECHO, 1), read(2, 0, 4000, 0, &[])]);
    let mut server = server();
    // A READ without a channel may lack the one byte of its Buffer.
    for length in 64..64 + 112 {
        let result = server.request(&bytes[..length], bytes.len());
        assert_eq!(result, Ok(Offload::Incomplete));
        let result = server.request(&bytes[..length], length);
        assert!(matches!(result, Err(Refusal::Malformed { .. })), "{length}");
    }
}

#[test]
fn client_that_asks_for_rdma_is_refused() {
    for number in [1, 2, 3, u32::MAX] {
        let channel = Channel::from_number(number);
        let read = read(7, 0, 10, number, &memory(10));
        let write = write_by_rdma(7, 0, 10, number, &memory(10));
        for (command, bytes) in [(Command::READ, read), (Command::WRITE, write)] {
            for bytes in [
                flagged(bytes.clone(), SIGNED),
                compound(&[header(ECHO, 1), bytes.clone()]),
                bytes,
            ] {
                let refusal = Refusal::NoRdma { command, channel };
                assert_eq!(ask(&mut server(), &bytes), Err(refusal.clone()));
                let mut untold = ServerChannel::new(SETTINGS);
                assert_eq!(ask(&mut untold, &bytes), Err(refusal));
            }
        }
    }
}

#[test]
fn truncated_requests_are_refused() {
    for bytes in [read(7, 0, 4000, 0, &[]), write(7, 0, &[1; 4000])] {
        for length in 64..112 {
            let refusal = ask(&mut server(), &bytes[..length]).unwrap_err();
            assert!(matches!(refusal, Refusal::Malformed { .. }), "{refusal}");
        }
    }
    let bytes = write(7, 0, &[1; 4000]);
    let refusal = ask(&mut server(), &bytes[..bytes.len() - 1]).unwrap_err();
    assert!(matches!(refusal, Refusal::Malformed { .. }), "{refusal}");
    let refusal = ask(&mut server(), &with(header(READ, 1), 4, &[0, 0])).unwrap_err();
    assert!(matches!(refusal, Refusal::Header { .. }), "{refusal}");
}

#[test]
fn answer_to_a_read_gets_its_data_back() {
    for length in [1, 3999, 4000] {
        for status in [SUCCESS, BUFFER_OVERFLOW] {
            let flags = 0x40_u32.to_le_bytes();
            let mut bytes = with(read_answer(7, &[], length), 76, &flags);
            put(&mut bytes, 8, &status.to_le_bytes());
            // Some servers send the byte that StructureSize counts, and some do not.
            for extra in [0, 1] {
                let mut server = server();
                read_goes(&mut server, 7, 4000);
                bytes.resize(80 + extra, 0);
                let Ok(Answer::Data {
                    message_id,
                    head,
                    length: found,
                }) = server.answer(&bytes)
                else {
                    panic!("the data goes to the client");
                };
                assert_eq!((message_id, found), (7, length));
                let mut expected = bytes[..80].to_vec();
                put(&mut expected, 68, &length.to_le_bytes());
                put(&mut expected, 72, &0_u32.to_le_bytes());
                assert_eq!(head, expected);
                assert_eq!(server.pending(), 0);
            }
        }
    }
}

#[test]
fn answer_with_its_data_in_it_passes() {
    for data in [&b""[..], b"abc"] {
        let mut server = server();
        read_goes(&mut server, 7, 4000);
        let done = Answer::Done { message_id: 7 };
        assert_eq!(server.answer(&read_answer(7, data, 0)), Ok(done));
        assert_eq!(server.pending(), 0);
    }
}

#[test]
fn final_answers_end_the_use_of_memory() {
    let mut server = server();
    for id in 0..4 {
        read_goes(&mut server, 2 * id, 4000);
        write_goes(&mut server, 2 * id + 1, 4000);
    }
    let done = |message_id| Ok(Answer::Done { message_id });
    assert_eq!(server.answer(&interim(READ, 0)), Ok(Answer::Pass));
    assert_eq!(server.answer(&interim(WRITE, 1)), Ok(Answer::Pass));
    assert_eq!(server.pending(), 8);
    assert_eq!(server.answer(&write_answer(5, 4000)), done(5));
    assert_eq!(server.answer(&error(READ, 4, END_OF_FILE)), done(4));
    assert_eq!(server.answer(&error(WRITE, 1, CANCELLED)), done(1));
    assert_eq!(server.answer(&error(READ, 2, 0x8000_0011)), done(2));
    let bytes = flagged(read_answer(0, &[], 3), ASYNC | SIGNED);
    assert_eq!(server.answer(&bytes), Err(ServerFault::Signed));
    assert_eq!(server.answer(&write_answer(3, 0)), done(3));
    assert_eq!(server.answer(&write_answer(3, 0)), Ok(Answer::Pass));
}

#[test]
fn answers_to_other_requests_pass() {
    let mut server = server();
    read_goes(&mut server, u64::MAX, 4000);
    for bytes in [
        read_answer(6, b"inline", 0),
        read_answer(6, &[], 100),
        // An oplock break.
        other(answer(18, u64::MAX, SUCCESS), &[24; 24]),
        compound(&[
            read_answer(6, b"inline", 0),
            error(CREATE, 5, END_OF_FILE),
            interim(READ, u64::MAX),
        ]),
        Vec::new(),
    ] {
        assert_eq!(server.answer(&bytes), Ok(Answer::Pass));
        assert_eq!(server.pending(), 1);
    }
}

#[test]
fn answer_is_one_without_the_flag_of_answers() {
    let mut server = server();
    read_goes(&mut server, 7, 4000);
    let bytes = with(read_answer(7, &[], 3), 16, &[0; 4]);
    let answer = server.answer(&bytes);
    assert!(matches!(answer, Ok(Answer::Data { .. })), "{answer:?}");
    write_goes(&mut server, 8, 4000);
    let bytes = with(interim(WRITE, 8), 16, &ASYNC.to_le_bytes());
    assert_eq!(server.answer(&bytes), Ok(Answer::Pass));
    assert_eq!(server.pending(), 1);
}

#[test]
fn answer_with_a_broken_header_is_a_fault() {
    let good = read_answer(7, &[], 3);
    let mut server = server();
    for bytes in [&good[..63], &good[..4], &with(good.clone(), 4, &[63, 0])] {
        assert_eq!(server.answer(bytes), Ok(Answer::Pass));
    }
    read_goes(&mut server, 7, 4000);
    for bytes in [&good[..63], &good[..4], &with(good.clone(), 4, &[63, 0])] {
        let fault = server.answer(bytes).unwrap_err();
        assert!(matches!(fault, ServerFault::Header { .. }), "{fault}");
    }
}

#[test]
fn answers_that_cannot_be_true_are_faults() {
    let both = ServerFault::InlineAndRdma {
        inline: 3,
        remaining: 3,
    };
    let too_much = ServerFault::TooMuch {
        length: 4001,
        requested: 4000,
    };
    for (bytes, fault) in [
        (read_answer(7, b"abc", 3), both),
        (read_answer(7, &[], 4001), too_much),
        (flagged(read_answer(7, &[], 3), SIGNED), ServerFault::Signed),
        (
            compound(&[header(ECHO, 1), read_answer(7, &[], 3)]),
            ServerFault::Compounded {
                command: Command::READ,
            },
        ),
        (encrypted(300), ServerFault::Encrypted),
        (compressed(300), ServerFault::Compressed),
    ] {
        let mut server = server();
        read_goes(&mut server, 7, 4000);
        assert_eq!(server.answer(&bytes), Err(fault));
    }
    let good = read_answer(7, &[], 3);
    for bytes in [
        error(READ, 7, SUCCESS),
        with(good.clone(), 64, &[9, 0]),
        with(good.clone(), 68, &u32::MAX.to_le_bytes()),
    ]
    .into_iter()
    .chain((64..80).map(|length| good[..length].to_vec()))
    {
        let mut server = server();
        read_goes(&mut server, 7, 4000);
        let fault = server.answer(&bytes).unwrap_err();
        assert!(matches!(fault, ServerFault::Malformed { .. }), "{fault}");
    }
}

#[test]
fn broken_compound_that_may_hide_an_answer_is_a_fault() {
    let good = compound(&[header(ECHO, 1), read_answer(7, &[], 3)]);
    // A client could find the second element although NextCommand is wrong.
    let mut odd = good.clone();
    odd.insert(64, 0);
    put(&mut odd, 20, &65_u32.to_le_bytes());
    for bytes in [odd, with(good, 20, &u32::MAX.to_le_bytes())] {
        let mut server = server();
        assert_eq!(server.answer(&bytes), Ok(Answer::Pass));
        read_goes(&mut server, 7, 4000);
        let fault = server.answer(&bytes).unwrap_err();
        assert!(matches!(fault, ServerFault::Malformed { .. }), "{fault}");
    }
}

#[test]
fn opaque_answers_pass_if_the_client_asked_for_them() {
    let compressible = |length| with(read(5, 0, length, 0, &[]), 67, &[0x02]);
    for (request, answer) in [
        (encrypted(100), encrypted(300)),
        (compressed(100), compressed(300)),
        (compressible(10), compressed(300)),
        (flagged(compressible(4000), SIGNED), compressed(300)),
        (
            compound(&[header(ECHO, 4), compressible(10)]),
            compressed(300),
        ),
    ] {
        let mut server = server();
        // READ by RDMA does not ask for compression.
        assert_eq!(
            ask(&mut server, &compressible(4000)),
            Ok(Offload::Read { length: 4000 })
        );
        read_goes(&mut server, 7, 4000);
        assert!(server.answer(&answer).is_err());
        assert_eq!(ask(&mut server, &request), Ok(Offload::Pass));
        assert_eq!(server.answer(&answer), Ok(Answer::Pass));
    }
}

#[test]
fn message_id_of_an_outstanding_request_is_refused() {
    let mut server = server();
    read_goes(&mut server, 7, 4000);
    let repeated = |command| {
        Err(Refusal::Repeated {
            command,
            message_id: 7,
        })
    };
    for (command, bytes) in [
        (Command::READ, read(7, 0, 4000, 0, &[])),
        (Command::READ, read(7, 0, 1, 0, &[])),
        (Command::WRITE, write(7, 0, &[1; 4000])),
        (Command(13), header(ECHO, 7)),
        (Command(13), compound(&[header(ECHO, 1), header(ECHO, 7)])),
    ] {
        assert_eq!(ask(&mut server, &bytes), repeated(command));
    }
    for bytes in [
        header(CANCEL, 7),
        compound(&[header(ECHO, 1), header(CANCEL, 7)]),
    ] {
        assert_eq!(ask(&mut server, &bytes), Ok(Offload::Pass));
    }
}

#[test]
fn only_so_many_requests_go_by_rdma_at_a_time() {
    let mut server = server();
    for id in 0..MAX_PENDING as u64 {
        read_goes(&mut server, id, 4000);
    }
    let request = read(u64::MAX, 9, 4000, 0, &[]);
    assert_eq!(ask(&mut server, &request), Ok(Offload::Pass));
    server.answer(&error(READ, 3, END_OF_FILE)).unwrap();
    read_goes(&mut server, u64::MAX, 4000);
}
