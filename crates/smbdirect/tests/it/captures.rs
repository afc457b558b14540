//! Captures of Linux 7.2 (cifs, ksmbd, siw), read with our decoders and written again
//! with our encoders: every startup frame, FPDU and SMB Direct message, to the byte.

use std::{collections::BTreeMap, fs, path::Path};

use smbdirect::{
    rdma::iwarp::{
        mpa::{Fpdu, StartupError, StartupFrame},
        rdmap::{Opcode, ReadRequest, Terminate},
    },
    wire::{DataTransfer, NegotiateRequest, NegotiateResponse},
};
use smbdirect_test::captures::{self as reader, Found, Kind, is_last};

/// The number of decoded items in a capture, by kind.
type Counts = BTreeMap<&'static str, usize>;

/// Reads all iWARP connections of a capture and writes them again. `cut` allows directions to end
/// within an FPDU.
fn read(path: &Path, cut: bool) -> Counts {
    let mut counts = Counts::new();
    let file = fs::read(path).unwrap();
    reader::read(&file, cut, &mut |found| {
        for name in write_again(found).into_iter().flatten() {
            *counts.entry(name).or_default() += 1;
        }
    })
    .unwrap();
    counts
}

/// Encodes a decoded item, compares the bytes, and returns its name.
fn write_again(found: Found<'_>) -> [Option<&'static str>; 2] {
    let mut again = Vec::new();
    let (names, bytes) = match found {
        Found::Connection => return [Some("connections"), None],
        Found::Startup { frame, bytes } => {
            frame.encode(&mut again);
            for length in 0..bytes.len() {
                let truncated = StartupFrame::decode(frame.kind, &bytes[..length]);
                assert!(matches!(truncated, Err(StartupError::Incomplete { .. })));
            }
            ([Some("startup frames"), None], bytes)
        }
        Found::Fpdu {
            header,
            opcode,
            payload,
            crc,
            bytes,
        } => {
            let mut ulpdu = Vec::new();
            header.encode(&mut ulpdu);
            Fpdu::encode(&[&ulpdu, payload], crc, &mut again);
            payload_again(opcode, payload);
            let name = is_last(&header).then_some(name(opcode));
            ([Some("FPDUs"), name], bytes)
        }
        Found::Message { kind, bytes } => {
            let name = message_again(kind, bytes, &mut again);
            ([Some(name), None], bytes)
        }
    };
    assert_eq!(again, bytes, "{names:?}");
    names
}

fn payload_again(opcode: Opcode, payload: &[u8]) {
    let mut again = Vec::new();
    match opcode {
        Opcode::RdmaReadRequest => {
            again.extend_from_slice(&ReadRequest::decode(payload).unwrap().encode());
        }
        Opcode::Terminate => Terminate::decode(payload).encode(&mut again),
        _ => return,
    }
    assert_eq!(again, payload);
}

const fn name(opcode: Opcode) -> &'static str {
    match opcode {
        Opcode::RdmaWrite => "Writes",
        Opcode::RdmaReadRequest => "Read Requests",
        Opcode::RdmaReadResponse => "Read Responses",
        Opcode::SendInvalidate => "Sends with Invalidate",
        Opcode::Terminate => "Terminates",
        _ => "Sends",
    }
}

fn message_again(kind: Kind, message: &[u8], again: &mut Vec<u8>) -> &'static str {
    match kind {
        Kind::NegotiateRequest => {
            NegotiateRequest::decode(message).unwrap().encode(again);
            "Negotiate Requests"
        }
        Kind::NegotiateResponse => {
            NegotiateResponse::decode(message).unwrap().encode(again);
            "Negotiate Responses"
        }
        Kind::DataTransfer => {
            let transfer = DataTransfer::decode(message).unwrap();
            transfer.encode(again);
            again.extend_from_slice(&message[transfer.payload()]);
            "Data Transfers"
        }
    }
}

/// Reads a committed capture.
fn small(name: &str) -> Counts {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
    read(&folder.join(name), false)
}

/// Reads a capture that is too large to commit, if it is there.
fn large(name: &str, cut: bool, expected: &[(&str, usize)]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/pcaps");
    let path = folder.join(name);
    if !path.exists() {
        eprintln!("skipped: {} is not there", path.display());
        return;
    }
    check(&read(&path, cut), expected);
}

fn check(counts: &Counts, expected: &[(&str, usize)]) {
    let expected: BTreeMap<_, _> = expected.iter().copied().collect();
    assert_eq!(*counts, expected);
}

#[test]
fn siw_negotiate() {
    check(
        &small("siw-negotiate.pcap"),
        &[
            ("Data Transfers", 59),
            ("FPDUs", 61),
            ("Negotiate Requests", 1),
            ("Negotiate Responses", 1),
            ("Sends", 61),
            ("connections", 1),
            ("startup frames", 2),
        ],
    );
}

#[test]
fn siw_negotiate_crc() {
    check(
        &small("siw-negotiate-crc.pcap"),
        &[
            ("Data Transfers", 51),
            ("FPDUs", 53),
            ("Negotiate Requests", 1),
            ("Negotiate Responses", 1),
            ("Sends", 53),
            ("connections", 1),
            ("startup frames", 2),
        ],
    );
}

#[test]
fn siw_small() {
    check(
        &small("siw-small.pcap"),
        &[
            ("Data Transfers", 245),
            ("FPDUs", 262),
            ("Negotiate Requests", 1),
            ("Negotiate Responses", 1),
            ("Sends", 227),
            ("Sends with Invalidate", 20),
            ("Writes", 10),
            ("connections", 1),
            ("startup frames", 2),
        ],
    );
}

#[test]
fn siw_bigmsg() {
    check(
        &small("siw-bigmsg.pcap"),
        &[
            ("Data Transfers", 151),
            ("FPDUs", 153),
            ("Negotiate Requests", 1),
            ("Negotiate Responses", 1),
            ("Sends", 153),
            ("connections", 1),
            ("startup frames", 2),
        ],
    );
}

#[test]
fn siw_keepalive() {
    check(
        &small("siw-keepalive.pcap"),
        &[
            ("Data Transfers", 65),
            ("FPDUs", 68),
            ("Negotiate Requests", 2),
            ("Negotiate Responses", 1),
            ("Sends", 68),
            ("connections", 2),
            ("startup frames", 4),
        ],
    );
}

#[test]
fn siw_negotiate_refused() {
    check(
        &small("siw-negotiate-refused.pcap"),
        &[
            ("FPDUs", 2),
            ("Negotiate Requests", 1),
            ("Negotiate Responses", 1),
            ("Sends", 2),
            ("connections", 1),
            ("startup frames", 2),
        ],
    );
}

#[test]
fn host_to_guest_ksmbd() {
    check(
        &small("host-to-guest-ksmbd.pcap"),
        &[
            ("Data Transfers", 4),
            ("FPDUs", 6),
            ("Negotiate Requests", 1),
            ("Negotiate Responses", 1),
            ("Sends", 6),
            ("connections", 1),
            ("startup frames", 2),
        ],
    );
}

#[test]
fn kernel_client_to_host() {
    check(
        &small("kernel-client-to-host.pcap"),
        &[
            ("Data Transfers", 1),
            ("FPDUs", 3),
            ("Negotiate Requests", 1),
            ("Negotiate Responses", 1),
            ("Sends", 3),
            ("connections", 1),
            ("startup frames", 2),
        ],
    );
}

#[test]
fn siw_large_head() {
    large(
        "siw-large-head.pcap",
        true,
        &[
            ("Data Transfers", 89),
            ("FPDUs", 1400),
            ("Negotiate Requests", 1),
            ("Negotiate Responses", 1),
            ("Read Requests", 3),
            ("Read Responses", 3),
            ("Sends", 84),
            ("Sends with Invalidate", 7),
            ("Writes", 30),
            ("connections", 1),
            ("startup frames", 2),
        ],
    );
}

#[test]
fn siw_frag() {
    large(
        "siw-frag.pcap",
        false,
        &[
            ("Data Transfers", 392),
            ("FPDUs", 394),
            ("Negotiate Requests", 1),
            ("Negotiate Responses", 1),
            ("Sends", 394),
            ("connections", 1),
            ("startup frames", 2),
        ],
    );
}

#[test]
fn siw_seal() {
    large(
        "siw-seal.pcap",
        false,
        &[
            ("Data Transfers", 276),
            ("FPDUs", 278),
            ("Negotiate Requests", 1),
            ("Negotiate Responses", 1),
            ("Sends", 278),
            ("connections", 1),
            ("startup frames", 2),
        ],
    );
}
