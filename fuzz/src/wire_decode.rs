//! Every decoder: decoding and encoding gives the same bytes, except for ignored fields.

use smbdirect::{
    rdma::iwarp::{
        ddp::Header,
        mpa::{Fpdu, FrameKind, StartupError, StartupFrame},
        rdmap::{Opcode, ReadRequest, Terminate},
    },
    wire::{BufferDescriptorV1, DataTransfer, IrdOrd, NegotiateRequest, NegotiateResponse},
};

/// Decodes `data` as each kind of message, and encodes the result again.
pub fn wire_decode(data: &[u8]) {
    negotiate(data);
    data_transfer(data);
    descriptors(data);
    depths(data);
    for kind in [FrameKind::Request, FrameKind::Reply] {
        startup(kind, data);
    }
    for crc in [false, true] {
        fpdu(data, crc);
    }
    segment(data);
}

fn negotiate(data: &[u8]) {
    if let Ok(request) = NegotiateRequest::decode(data) {
        let mut canonical = data[..NegotiateRequest::LENGTH].to_vec();
        canonical[4..6].fill(0);
        assert_eq!(written(|out| request.encode(out)), canonical);
        assert_eq!(NegotiateRequest::decode(&canonical), Ok(request));
    } else {
        assert!(data.len() < NegotiateRequest::LENGTH);
    }
    if let Ok(response) = NegotiateResponse::decode(data) {
        let mut canonical = data[..NegotiateResponse::LENGTH].to_vec();
        canonical[6..8].fill(0);
        assert_eq!(written(|out| response.encode(out)), canonical);
        assert_eq!(NegotiateResponse::decode(&canonical), Ok(response));
    } else {
        assert!(data.len() < NegotiateResponse::LENGTH);
    }
}

fn data_transfer(data: &[u8]) {
    let Ok(message) = DataTransfer::decode(data) else {
        return;
    };
    // The payload must be inside the message.
    assert_eq!(
        data[message.payload()].len(),
        message.data_length as usize,
        "{message:?}"
    );
    let offset = message.data_offset as usize;
    let is_empty = offset == 0 && message.data_length == 0;
    if !is_empty && offset < DataTransfer::PAYLOAD_OFFSET as usize {
        return;
    }
    let bytes = written(|out| message.encode(out));
    assert_eq!(bytes.len(), message.encoded_length());
    let mut canonical = data[..bytes.len()].to_vec();
    canonical[6..8].fill(0);
    canonical[DataTransfer::HEADER_LENGTH..].fill(0);
    assert_eq!(bytes, canonical);
    let whole = [&bytes, &data[message.payload()]].concat();
    assert_eq!(DataTransfer::decode(&whole), Ok(message));
}

fn descriptors(data: &[u8]) {
    let whole = data.len().is_multiple_of(BufferDescriptorV1::LENGTH);
    let array = BufferDescriptorV1::decode_array(data);
    assert_eq!(array.is_ok(), whole);
    if let Ok(array) = array {
        let bytes = written(|out| array.iter().for_each(|descriptor| descriptor.encode(out)));
        assert_eq!(bytes, data);
    }
}

fn depths(data: &[u8]) {
    match IrdOrd::decode(data) {
        Ok(Some(depths)) => {
            assert!(depths.ird > 0 && depths.ord > 0);
            let bytes = written(|out| depths.encode(out));
            assert_eq!(IrdOrd::decode(&bytes), Ok(Some(depths)));
        }
        Ok(None) => assert!(data.len() < IrdOrd::LENGTH),
        Err(zero) => {
            let text = zero.to_string();
            assert!(
                text.contains("are 0 and ") || text.contains(" and 0,"),
                "{text}"
            );
        }
    }
}

fn startup(kind: FrameKind, data: &[u8]) {
    // Without a valid key almost every input would end here.
    let bytes = [key(kind), data].concat();
    match StartupFrame::decode(kind, &bytes) {
        Ok(frame) => {
            let length = frame.encoded_length();
            assert!(length <= bytes.len());
            let again = written(|out| frame.encode(out));
            assert_eq!(again.len(), length);
            assert_eq!(StartupFrame::decode(kind, &again), Ok(frame.clone()));
            let mut canonical = bytes[..length].to_vec();
            // Clears the reserved flags, and in revision 1 the flag of the enhanced block.
            canonical[16] &= if frame.enhanced.is_some() { 0xf0 } else { 0xe0 };
            assert_eq!(again, canonical);
        }
        Err(StartupError::Incomplete { needed }) => assert!(needed > bytes.len()),
        Err(_) => {}
    }
    let _ = StartupFrame::decode(kind, data);
}

fn fpdu(data: &[u8], crc: bool) {
    if let Ok(Some(fpdu)) = Fpdu::decode(data, crc) {
        let mut again = Vec::new();
        Fpdu::encode(&[fpdu.ulpdu], crc, &mut again);
        assert_eq!(again.len(), fpdu.length);
        assert_eq!(again[2..2 + fpdu.ulpdu.len()], *fpdu.ulpdu);
    }
    let ulpdu = &data[..data.len().min(usize::from(u16::MAX))];
    let (head, tail) = ulpdu.split_at(ulpdu.len() / 3);
    let mut bytes = Vec::new();
    Fpdu::encode(&[head, tail], crc, &mut bytes);
    let length = bytes.len();
    bytes.push(0xee);
    assert_eq!(
        Fpdu::decode(&bytes, crc),
        Ok(Some(Fpdu { ulpdu, length })),
        "what is framed is what was put in"
    );
    assert_eq!(Fpdu::decode(&bytes[..length - 1], crc), Ok(None));
}

fn segment(data: &[u8]) {
    if let Ok((header, payload)) = Header::decode(data) {
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        bytes.extend_from_slice(payload);
        let mut canonical = data.to_vec();
        canonical[0] &= 0xc3;
        assert_eq!(bytes, canonical);
        if let Ok(opcode) = Opcode::of(&header) {
            let tagged = matches!(header, Header::Tagged(_));
            assert_eq!(opcode.control() & 0x0f, data[1] & 0x0f);
            assert!(!(tagged && opcode.invalidates()));
        }
    }
    if let Ok(request) = ReadRequest::decode(data) {
        assert_eq!(request.encode()[..], *data);
    } else {
        assert_ne!(data.len(), ReadRequest::LENGTH);
    }
    let terminate = Terminate::decode(data);
    let mut bytes = Vec::new();
    terminate.encode(&mut bytes);
    assert_eq!(Terminate::decode(&bytes), terminate);
    assert!(!terminate.to_string().is_empty());
    let offending = Terminate::new(terminate.code(), Some((data.len() as u16, data)));
    assert!(offending.ulpdu().len() <= 18 + 4 + 2 + 46);
}

const fn key(kind: FrameKind) -> &'static [u8] {
    match kind {
        FrameKind::Request => b"MPA ID Req Frame",
        FrameKind::Reply => b"MPA ID Rep Frame",
    }
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    write(&mut bytes);
    bytes
}
