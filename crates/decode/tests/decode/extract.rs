//! Files that are rebuilt from captures: by RDMA, in messages, in parts, and with hostile names.

use std::{collections::BTreeMap, path::Component};

use smbdirect::rdma::iwarp::{
    ddp::Untagged,
    rdmap::{Opcode, ReadRequest},
};
use smbdirect_decode::{Extract, Extraction, Packets};
use smbdirect_test::{
    messages::{
        CREATE, END_OF_FILE, FILE_ID, READ, RELATED, SUCCESS, V1, answer, compound, descriptor,
        encrypted, error, flagged, header, other, put, read, read_answer, write, write_answer,
        write_by_rdma,
    },
    talk::{I, R, Talk, Transfer},
};

type Files = BTreeMap<String, Vec<u8>>;

fn extract(talk: &Talk) -> (Extraction, Files) {
    let capture = talk.capture();
    let mut packets = Packets::new(&capture[..]).unwrap();
    let mut extract = Extract::new(&[], &[]);
    let mut files = Files::new();
    let mut sink = |path: &std::path::Path, offset: u64, bytes: &[u8]| {
        assert!(
            path.components()
                .all(|part| matches!(part, Component::Normal(_)))
        );
        let file = files
            .entry(path.to_str().unwrap().replace('\\', "/"))
            .or_default();
        let end = offset as usize + bytes.len();
        file.resize(file.len().max(end), 0);
        file[offset as usize..end].copy_from_slice(bytes);
    };
    while let Some(packet) = packets.next_packet().unwrap() {
        extract.packet(&packet, &mut sink);
    }
    let extraction = extract.finish(&mut sink);
    (extraction, files)
}

fn message(talk: &mut Talk, way: usize, payload: &[u8]) {
    let transfer = Transfer {
        rest: [&[0; 4], payload].concat(),
        ..Transfer::of(payload.len() as u32, 0)
    };
    talk.transfer(way, &transfer);
}

fn utf16(text: &str) -> Vec<u8> {
    text.encode_utf16().flat_map(u16::to_le_bytes).collect()
}

/// Returns a request with a name at the end of its body.
fn named(command: u16, id: u64, body: usize, fields: usize, name: &[u8]) -> Vec<u8> {
    let mut request = header(command, id);
    request.resize(64 + body, 0);
    put(
        &mut request,
        64 + fields,
        &((64 + body) as u16).to_le_bytes(),
    );
    put(
        &mut request,
        64 + fields + 2,
        &(name.len() as u16).to_le_bytes(),
    );
    request.extend_from_slice(name);
    request
}

fn create(id: u64, name: &[u8]) -> Vec<u8> {
    named(CREATE, id, 56, 44, name)
}

fn created(id: u64, size: u64) -> Vec<u8> {
    let mut response = answer(CREATE, id, SUCCESS);
    response.resize(64 + 88, 0);
    put(&mut response, 112, &size.to_le_bytes());
    put(&mut response, 128, &FILE_ID);
    response
}

/// A connection with an open file of a share.
fn opened(name: &[u8], size: u64) -> Talk {
    const TREE_CONNECT: u16 = 3;
    let mut talk = Talk::established();
    let share = utf16("\\\\server\\share");
    message(&mut talk, I, &named(TREE_CONNECT, 1, 8, 4, &share));
    message(
        &mut talk,
        R,
        &other(answer(TREE_CONNECT, 1, SUCCESS), &[0; 16]),
    );
    message(&mut talk, I, &create(2, name));
    message(&mut talk, R, &created(2, size));
    talk
}

#[test]
fn a_file_that_moved_by_rdma_is_whole() {
    let mut talk = opened(&utf16("folder\\file"), 3000);
    let data: Vec<u8> = (0..3000).map(|byte| byte as u8).collect();
    // Two descriptors, and the Writes in another order.
    let memory = [descriptor(0x100, 5, 1000), descriptor(0x900, 6, 2000)];
    message(&mut talk, I, &read(3, 0, 3000, V1, &memory));
    talk.tagged(R, Opcode::RdmaWrite, true, (6, 0x900), &data[1000..]);
    talk.tagged(R, Opcode::RdmaWrite, false, (5, 0x100), &data[..600]);
    talk.tagged(
        R,
        Opcode::RdmaWrite,
        true,
        (5, 0x100 + 600),
        &data[600..1000],
    );
    message(&mut talk, R, &read_answer(3, &[], 3000));
    let (extraction, files) = extract(&talk);
    assert_eq!(files["share/folder/file"], data);
    assert!(extraction.files[0].complete, "{extraction:?}");
}

#[test]
fn what_the_client_writes_is_there_in_messages_and_by_rdma() {
    let mut talk = opened(&utf16("new"), 0);
    message(&mut talk, I, &write(3, 0, b"in a message"));
    message(&mut talk, R, &write_answer(3, 12));
    message(
        &mut talk,
        I,
        &write_by_rdma(4, 12, 8, V1, &[descriptor(0x40, 9, 8)]),
    );
    let request = ReadRequest {
        sink_stag: 1,
        sink_tagged_offset: 0,
        read_message_size: 8,
        source_stag: 9,
        source_tagged_offset: 0x40,
    };
    let head = Untagged {
        queue_number: 1,
        message_sequence_number: 1,
        rdmap_control: Opcode::RdmaReadRequest.control(),
        ..talk.header(R, Opcode::RdmaReadRequest)
    };
    talk.number[R] -= 1;
    talk.fpdu(R, &head.encode(), &request.encode());
    talk.tagged(I, Opcode::RdmaReadResponse, true, (1, 0), b" by RDMA");
    message(&mut talk, R, &write_answer(4, 8));
    let (extraction, files) = extract(&talk);
    assert_eq!(files["share/new"], b"in a message by RDMA");
    assert!(extraction.files[0].complete, "{extraction:?}");
}

#[test]
fn a_part_is_a_sparse_file_that_is_not_complete() {
    let mut talk = opened(&utf16("part"), 1 << 40);
    message(&mut talk, I, &read(3, 4096, 4, 0, &[]));
    message(&mut talk, R, &read_answer(3, b"part", 0));
    let (extraction, files) = extract(&talk);
    assert_eq!(files["share/part"][4096..], *b"part");
    let file = &extraction.files[0];
    assert_eq!(
        (file.bytes, file.size, file.complete),
        (4, Some(1 << 40), false)
    );
}

#[test]
fn what_the_server_did_not_confirm_is_not_there() {
    let mut talk = opened(&utf16("file"), 100);
    message(&mut talk, I, &write(3, 0, b"refused"));
    message(&mut talk, R, &error(9, 3, 0xc000_0022));
    message(&mut talk, I, &read(4, 0, 10, V1, &[descriptor(0, 5, 10)]));
    talk.tagged(R, Opcode::RdmaWrite, true, (5, 0), b"0123456789");
    message(&mut talk, R, &error(READ, 4, END_OF_FILE));
    // Without an answer.
    message(&mut talk, I, &write(5, 0, b"unanswered"));
    let (extraction, files) = extract(&talk);
    assert!(
        files.is_empty() && extraction.files.is_empty(),
        "{extraction:?}"
    );
}

#[test]
fn a_short_answer_confirms_its_bytes_only() {
    let mut talk = opened(&utf16("file"), 6);
    message(&mut talk, I, &read(3, 0, 10, V1, &[descriptor(0, 5, 10)]));
    talk.tagged(R, Opcode::RdmaWrite, true, (5, 0), b"0123456789");
    message(&mut talk, R, &read_answer(3, &[], 6));
    let (_, files) = extract(&talk);
    assert_eq!(files["share/file"], b"012345");
}

#[test]
fn a_compound_writes_to_the_file_that_it_opens() {
    let mut talk = opened(&utf16("other"), 0);
    let mut related = flagged(write(4, 0, b"small"), RELATED);
    put(&mut related, 80, &[0xff; 16]);
    message(
        &mut talk,
        I,
        &compound(&[create(3, &utf16("small")), related]),
    );
    message(
        &mut talk,
        R,
        &compound(&[created(3, 0), write_answer(4, 5)]),
    );
    let (_, files) = extract(&talk);
    assert_eq!(files["share/small"], b"small");
}

#[test]
fn hostile_names_and_offsets_stay_within_bounds() {
    for name in [
        utf16("..\\..\\..\\etc\\passwd"),
        utf16("/etc/passwd"),
        utf16("C:\\x:y"),
        utf16("CON"),
        utf16(&"x".repeat(3000)),
        // Half of a character.
        vec![0x00, 0xd8, b'a', 0],
        Vec::new(),
    ] {
        let mut talk = opened(&name, 10);
        message(&mut talk, I, &read(3, 0, 1, 0, &[]));
        message(&mut talk, R, &read_answer(3, b"x", 0));
        message(&mut talk, I, &read(4, u64::MAX - 3, 8, 0, &[]));
        message(&mut talk, R, &read_answer(4, b"too far!", 0));
        // The sink asserts that the path stays within its folder.
        let (extraction, files) = extract(&talk);
        assert_eq!(files.values().next().unwrap(), b"x");
        assert_eq!(extraction.left_out_bytes, 8, "{extraction:?}");
    }
}

#[test]
fn files_that_were_opened_before_the_capture_have_a_number() {
    let mut talk = Talk::established();
    message(&mut talk, I, &read(3, 0, 1, 0, &[]));
    message(&mut talk, R, &read_answer(3, b"x", 0));
    message(&mut talk, I, &encrypted(100));
    let (extraction, files) = extract(&talk);
    assert_eq!(files["share/unnamed-0"], b"x");
    assert_eq!(
        (extraction.files[0].size, extraction.encrypted_bytes),
        (None, 100)
    );
}
