//! What Linux 7.2 (cifs, ksmbd, siw) said on the wire, read with our decoders and written again
//! with our encoders: every startup frame, FPDU and SMB Direct message, to the byte.

use std::{
    collections::{BTreeMap, HashMap},
    net::Ipv4Addr,
    path::Path,
};

use pcap_file::{
    pcap::PcapReader,
    pcapng::{Block, PcapNgReader},
};
use smbdirect::{
    rdma::iwarp::{
        ddp::{self, Header},
        mpa::{Fpdu, FrameKind, StartupError, StartupFrame},
        rdmap::{Opcode, ReadRequest, Terminate},
    },
    wire::{DataTransfer, NegotiateRequest, NegotiateResponse},
};

/// One direction of a TCP connection: from, to.
type Flow = [(Ipv4Addr, u16); 2];

/// What was decoded in a capture, by kind.
type Counts = BTreeMap<&'static str, usize>;

/// The bytes of each direction of each TCP connection, in order and without repetitions.
fn flows(path: &Path) -> HashMap<Flow, Vec<u8>> {
    let mut segments: HashMap<Flow, Vec<(u32, Vec<u8>)>> = HashMap::new();
    let mut starts = HashMap::new();
    for packet in packets(path) {
        let Some((flow, sequence, is_syn, payload)) = tcp_segment(&packet) else {
            continue;
        };
        if is_syn {
            starts.insert(flow, sequence.wrapping_add(1));
        }
        segments
            .entry(flow)
            .or_default()
            .push((sequence, payload.to_vec()));
    }
    // The last packets of a connection that was there before belong to nothing.
    segments.retain(|flow, _| starts.contains_key(flow));
    let in_order = |(flow, mut segments): (Flow, Vec<(u32, Vec<u8>)>)| {
        let start = starts[&flow];
        let place = |sequence: u32| sequence.wrapping_sub(start) as usize;
        segments.retain(|(_, payload)| !payload.is_empty());
        segments.sort_by_key(|(sequence, _)| place(*sequence));
        let mut bytes = Vec::new();
        for (sequence, payload) in segments {
            let known = bytes.len().checked_sub(place(sequence));
            let known = known.expect("the capture has no gap");
            bytes.extend_from_slice(payload.get(known..).unwrap_or_default());
        }
        (flow, bytes)
    };
    segments.into_iter().map(in_order).collect()
}

/// The packets of a capture in either format.
fn packets(path: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let mut packets = Vec::new();
    if bytes.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]) {
        let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
        while let Some(block) = reader.next_block() {
            if let Block::EnhancedPacket(packet) = block.unwrap() {
                packets.push(packet.data.into_owned());
            }
        }
    } else {
        let mut reader = PcapReader::new(&bytes[..]).unwrap();
        while let Some(packet) = reader.next_packet() {
            packets.push(packet.unwrap().data.into_owned());
        }
    }
    packets
}

/// The TCP segment in an Ethernet frame: flow, sequence number, SYN, payload.
fn tcp_segment(frame: &[u8]) -> Option<(Flow, u32, bool, &[u8])> {
    let short = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    if frame.len() < 54 || short(12) != 0x0800 || frame[23] != 6 {
        return None;
    }
    let end = 14 + usize::from(short(16));
    let tcp = 14 + 4 * usize::from(frame[14] & 0xf);
    let payload = tcp + 4 * usize::from(frame[tcp + 12] >> 4);
    let address = |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&frame[at..at + 4]).unwrap());
    let flow = [(address(26), short(tcp)), (address(30), short(tcp + 2))];
    let sequence = u32::from(short(tcp + 4)) << 16 | u32::from(short(tcp + 6));
    let is_syn = frame[tcp + 13] & 0x02 != 0;
    Some((flow, sequence, is_syn, &frame[payload..end]))
}

/// Reads all iWARP connections of a capture. `cut` allows directions to end within an FPDU.
fn read(path: &Path, cut: bool) -> Counts {
    let flows = flows(path);
    let mut counts = Counts::new();
    for (flow, request) in &flows {
        if flow[1].1 != 5445 {
            continue;
        }
        // A connection that nobody accepted has no other direction.
        let Some(reply) = flows.get(&[flow[1], flow[0]]) else {
            continue;
        };
        *counts.entry("connections").or_default() += 1;
        connection(request, reply, cut, &mut counts);
    }
    counts
}

fn connection(initiator: &[u8], responder: &[u8], cut: bool, counts: &mut Counts) {
    let request = startup(FrameKind::Request, initiator, counts);
    let reply = startup(FrameKind::Reply, responder, counts);
    let crc = request.crc || reply.crc;
    let mut both = [initiator, responder].into_iter();
    for (frame, is_client) in [(request, true), (reply, false)] {
        let bytes = &both.next().unwrap()[frame.encoded_length()..];
        direction(bytes, crc, is_client, cut, counts);
    }
}

fn startup(kind: FrameKind, bytes: &[u8], counts: &mut Counts) -> StartupFrame {
    let frame = StartupFrame::decode(kind, bytes).unwrap();
    let mut again = Vec::new();
    frame.encode(&mut again);
    assert_eq!(again, bytes[..frame.encoded_length()]);
    for length in 0..again.len() {
        let truncated = StartupFrame::decode(kind, &again[..length]);
        assert!(matches!(truncated, Err(StartupError::Incomplete { .. })));
    }
    *counts.entry("startup frames").or_default() += 1;
    frame
}

/// Reads the FPDUs of one direction, and the messages in the Sends.
fn direction(mut bytes: &[u8], crc: bool, is_client: bool, cut: bool, counts: &mut Counts) {
    let mut message = Vec::new();
    let mut is_first = true;
    while !bytes.is_empty() {
        let Some(fpdu) = Fpdu::decode(bytes, crc).unwrap() else {
            assert!(cut, "{} bytes behind the last FPDU", bytes.len());
            return;
        };
        let (header, payload) = Header::decode(fpdu.ulpdu).unwrap();
        let opcode = Opcode::of(&header).unwrap();
        let mut ulpdu = Vec::new();
        header.encode(&mut ulpdu);
        let mut again = Vec::new();
        Fpdu::encode(&[&ulpdu, payload], crc, &mut again);
        assert_eq!(again, bytes[..fpdu.length]);
        bytes = &bytes[fpdu.length..];
        *counts.entry("FPDUs").or_default() += 1;
        let (Header::Tagged(ddp::Tagged { last, .. })
        | Header::Untagged(ddp::Untagged { last, .. })) = header;
        *counts.entry(name(opcode)).or_default() += usize::from(last);
        match opcode {
            Opcode::RdmaWrite | Opcode::RdmaReadResponse => {}
            Opcode::RdmaReadRequest => {
                let request = ReadRequest::decode(payload).unwrap();
                assert_eq!(request.encode()[..], *payload);
            }
            Opcode::Terminate => {
                let mut again = Vec::new();
                Terminate::decode(payload).encode(&mut again);
                assert_eq!(again, payload);
            }
            _ => {
                message.extend_from_slice(payload);
                if last {
                    smb_direct(&message, is_first, is_client, counts);
                    message.clear();
                    is_first = false;
                }
            }
        }
    }
    assert!(message.is_empty() || cut, "a message without an end");
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

fn smb_direct(message: &[u8], is_first: bool, is_client: bool, counts: &mut Counts) {
    let mut again = Vec::new();
    let kind = if is_first && is_client {
        NegotiateRequest::decode(message)
            .unwrap()
            .encode(&mut again);
        "Negotiate Requests"
    } else if is_first {
        NegotiateResponse::decode(message)
            .unwrap()
            .encode(&mut again);
        "Negotiate Responses"
    } else {
        let transfer = DataTransfer::decode(message).unwrap();
        transfer.encode(&mut again);
        again.extend_from_slice(&message[transfer.payload()]);
        "Data Transfers"
    };
    assert_eq!(again, message, "{kind}");
    *counts.entry(kind).or_default() += 1;
}

/// Reads a capture that stands beside this file.
fn small(name: &str) -> Counts {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
    read(&folder.join(name), false)
}

/// Reads a capture that is too large to stand beside this file, where it can be found.
fn large(name: &str, cut: bool, expected: &[(&str, usize)]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/pcaps");
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
