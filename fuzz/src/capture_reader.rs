//! Arbitrary captures: an error, or streams that are in the file.

use smbdirect::{
    rdma::iwarp::mpa::Fpdu,
    wire::{DataTransfer, NegotiateRequest, NegotiateResponse},
};
use smbdirect_test::captures::{self as reader, Found, Kind};

/// Reads `data` as a capture, and encodes its messages again.
pub fn capture_reader(data: &[u8]) {
    for cut in [false, true] {
        let (mut startups, mut connections, mut read) = (0, 0, 0);
        let result = reader::read(data, cut, &mut |found| match found {
            Found::Connection => connections += 1,
            Found::Startup { frame, bytes } => {
                startups += 1;
                read += bytes.len();
                assert_eq!(frame.encoded_length(), bytes.len());
            }
            Found::Fpdu {
                header,
                opcode,
                payload,
                crc,
                bytes,
            } => {
                read += bytes.len();
                let mut ulpdu = Vec::new();
                header.encode(&mut ulpdu);
                let mut again = Vec::new();
                Fpdu::encode(&[&ulpdu, payload], crc, &mut again);
                assert_eq!(again.len(), bytes.len());
                assert!(payload.len() < bytes.len() && opcode as u8 <= 7);
            }
            Found::Message { kind, bytes } => message(kind, bytes),
        });
        // Each byte that was read is in the file, and a connection has two directions.
        assert!(read <= data.len(), "{read} bytes out of {}", data.len());
        if result.is_ok() {
            assert_eq!(startups, 2 * connections);
        } else {
            let error = result.as_ref().map_err(ToString::to_string);
            assert!(startups <= 2 * connections && error.is_err());
        }
    }
}

fn message(kind: Kind, bytes: &[u8]) {
    match kind {
        Kind::NegotiateRequest => drop(NegotiateRequest::decode(bytes)),
        Kind::NegotiateResponse => drop(NegotiateResponse::decode(bytes)),
        Kind::DataTransfer => {
            if let Ok(transfer) = DataTransfer::decode(bytes) {
                assert!(transfer.payload().end <= bytes.len());
            }
        }
    }
}
