//! SMB2 messages: decoding and encoding is the identity, and nothing is outside of the message.

use smbdirect_smb::{
    file_information::DirectoryEntry,
    frame,
    smb2::{
        Channel, Command, Elements, Header, Malformed, NegotiateRequest, NegotiateResponse,
        Protocol, ReadRequest, ReadResponse, SessionSetupResponse, WriteRequest, WriteResponse,
        negotiated_dialect,
    },
};

/// Reads `data` as a message, and each of its elements as every structure.
pub fn smb2(data: &[u8]) {
    let mut end = 0;
    let mut failed = false;
    for element in Elements::of(data) {
        assert!(!failed, "the walk ends after an error");
        let Ok(element) = element else {
            failed = true;
            continue;
        };
        assert_eq!(element.place.start, end, "elements follow each other");
        end = element.place.end;
        assert!(element.place.start.is_multiple_of(8) && element.place.len() >= Header::LENGTH);
        let bytes = &data[element.place];
        header(&element.header, bytes);
        body(&element.header, bytes);
    }
    assert!(failed || end == data.len(), "all of it is in elements");
    // Without a valid header almost every input would end here.
    let body_alone = [&[0; Header::LENGTH][..], data].concat();
    read_request(&body_alone);
    write_request(&body_alone);
    read_response(&body_alone);
    negotiation(&body_alone);
    let _ = SessionSetupResponse::decode(&body_alone);
    let _ = WriteResponse::decode(&body_alone);
    if let Ok(entries) = DirectoryEntry::decode_all(data) {
        let names: usize = entries.iter().map(|entry| 2 * entry.name.len()).sum();
        assert!(names <= data.len(), "entries do not overlap");
    }
    if let Some(Ok(length)) = data
        .first_chunk()
        .map(|header| frame::message_length(*header))
    {
        let again = frame::header(length as usize).expect("it has three bytes");
        assert_eq!(again[1..], data[1..4]);
    }
}

/// Decodes NEGOTIATE, and encodes it again without what a decoder ignores.
fn negotiation(element: &[u8]) {
    let mut again = vec![0; Header::LENGTH];
    if let Ok(request) = NegotiateRequest::decode(element) {
        request.encode(&mut again);
        assert_eq!(NegotiateRequest::decode(&again), Ok(request));
    }
    again.truncate(Header::LENGTH);
    if let Ok(response) = NegotiateResponse::decode(element) {
        response.encode(&mut again);
        assert_eq!(NegotiateResponse::decode(&again), Ok(response));
    }
}

fn header(header: &Header, bytes: &[u8]) {
    assert_eq!(Protocol::of(bytes), Protocol::Smb2);
    assert_eq!(Header::decode(bytes), Ok(*header));
    let mut again = Vec::new();
    header.encode(&mut again);
    assert_eq!(again, bytes[..Header::LENGTH]);
    assert!(!header.command.to_string().is_empty());
}

fn body(header: &Header, bytes: &[u8]) {
    if let Some(dialect) = negotiated_dialect(header, bytes) {
        assert_eq!(header.command, Command::NEGOTIATE);
        assert_eq!(dialect.to_le_bytes(), bytes[68..70]);
    }
    read_request(bytes);
    write_request(bytes);
    read_response(bytes);
}

fn read_request(bytes: &[u8]) {
    let channel = Channel::of_request(Command::READ, bytes);
    let request = match ReadRequest::decode(bytes) {
        Ok(request) => request,
        Err(fault) => return explained(fault, bytes),
    };
    assert_eq!(channel, Ok(request.channel));
    assert_eq!(ReadRequest::flags_of(bytes), request.flags);
    let mut again = bytes[..Header::LENGTH].to_vec();
    request.encode(&mut again);
    assert_eq!(ReadRequest::decode(&again), Ok(request.clone()));
    // The fixed part without the position of the descriptors.
    assert_eq!(again[..108], bytes[..108]);
    if !request.descriptors.is_empty() {
        let start = usize::from(u16::from_le_bytes([bytes[108], bytes[109]]));
        let length = again.len() - ReadRequest::FIXED;
        assert!(start >= ReadRequest::FIXED);
        assert_eq!(
            again[ReadRequest::FIXED..],
            bytes[start..start + length],
            "descriptors"
        );
    }
}

fn write_request(bytes: &[u8]) {
    let channel = Channel::of_request(Command::WRITE, bytes);
    let request = match WriteRequest::decode(bytes, bytes.len()) {
        Ok(request) => request,
        Err(fault) => return explained(fault, bytes),
    };
    assert_eq!(channel, Ok(request.channel));
    assert!(request.data.is_empty() || request.data.start >= WriteRequest::FIXED);
    assert!(request.data.end <= bytes.len());
    if request.channel == Channel::None {
        let head = &bytes[..WriteRequest::FIXED];
        let from_head = WriteRequest::decode(head, bytes.len());
        assert_eq!(from_head, Ok(request.clone()), "the head is enough");
    }
    let mut inline = bytes[..Header::LENGTH].to_vec();
    request.encode_inline(request.data.len() as u32, &mut inline);
    assert_eq!(inline[72..96], bytes[72..96], "Offset and FileId");
    let length = inline.len() + request.data.len();
    let plain = WriteRequest::decode(&inline, length).expect("it has just been encoded");
    assert_eq!(plain.data.len(), request.data.len());
    assert_eq!((plain.channel, plain.flags), (Channel::None, request.flags));
    let mut by_rdma = bytes[..Header::LENGTH].to_vec();
    request.encode_channel(&mut by_rdma);
    let again = WriteRequest::decode(&by_rdma, by_rdma.len());
    let expected = WriteRequest {
        data: 0..0,
        ..request
    };
    assert_eq!(again, Ok(expected));
}

fn read_response(bytes: &[u8]) {
    let response = match ReadResponse::decode(bytes, bytes.len()) {
        Ok(response) => response,
        Err(fault) => return explained(fault, bytes),
    };
    let data = response.data(bytes).expect("it is there whole");
    assert_eq!(data, &bytes[response.data.clone()]);
    let head = &bytes[..ReadResponse::FIXED];
    assert_eq!(
        ReadResponse::decode(head, bytes.len()),
        Ok(response.clone())
    );
    let mut again = bytes[..Header::LENGTH].to_vec();
    let length = data.len() as u32;
    ReadResponse::encode(length, response.data_remaining, response.flags, &mut again);
    again.extend_from_slice(data);
    let expected = match length {
        0 => response,
        _ => ReadResponse {
            data: ReadResponse::FIXED..again.len(),
            ..response
        },
    };
    assert_eq!(ReadResponse::decode(&again, again.len()), Ok(expected));
}

/// Checks that an error describes the input correctly.
fn explained(fault: Malformed, bytes: &[u8]) {
    assert!(!fault.to_string().is_empty());
    match fault {
        Malformed::TooShort {
            minimum, length, ..
        } => assert!(length == bytes.len() && length < minimum),
        Malformed::StructureSize {
            expected, found, ..
        } => assert_ne!(expected, found),
        Malformed::OutOfBounds { offset, length, .. } => {
            let end = u64::from(offset) + u64::from(length);
            assert!(offset < 112 || end > bytes.len() as u64);
        }
        Malformed::Descriptors { length } => assert!(!length.is_multiple_of(16)),
        _ => {}
    }
}
