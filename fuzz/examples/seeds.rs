//! Writes seeds into the corpora: the traffic of Linux in the captures of the tests, or in the
//! captures that are given as arguments.
//!
//! Run `cargo run -p smbdirect-fuzz --example seeds [CAPTURE...]`. `cargo fuzz cmin` then removes
//! inputs that add no coverage.

use std::{
    collections::HashSet,
    env, fs, io,
    path::{Path, PathBuf},
};

use pcap_file::pcap::{PcapPacket, PcapReader, PcapWriter};
use smbdirect::{rdma::iwarp::mpa::FrameKind, wire::DataTransfer};
use smbdirect_smb::smb2::Protocol;
use smbdirect_test::{
    captures::{self as reader, Found, Kind, is_last},
    messages,
};

/// Maximum number of bytes of a stream in a seed. The rest adds nothing new.
const STREAM_SEED_BYTES: usize = 1500;
/// Length of the longest seed for the decoders in bytes.
const MESSAGE_SEED_BYTES: usize = 200;
/// Length of the longest capture that is used as a seed in bytes.
const CAPTURE_SEED_BYTES: usize = 2000;

/// Length of the longest SMB2 message that is used as a seed in bytes.
const SMB2_SEED_BYTES: usize = 400;
/// Maximum number of bytes of messages in a seed of `gateway_translation`.
const EXCHANGE_SEED_BYTES: usize = 1200;

fn main() -> io::Result<()> {
    let named: Vec<_> = env::args_os().skip(1).collect();
    if !named.is_empty() {
        return named.iter().try_for_each(|path| seeds_of(Path::new(path)));
    }
    composed()?;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/smbdirect/tests/captures");
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "pcap")
        {
            seeds_of(&path)?;
        }
    }
    Ok(())
}

/// Packets in a seed of RoCE, and the bytes of each that are kept.
const ROCE_SEED_PACKETS: usize = 14;
const ROCE_PACKET_BYTES: usize = 110;
/// Seeds of a capture of RoCE.
const ROCE_SEEDS: usize = 3;

/// Writes parts of a capture of RoCE, with the beginning of each packet. The ICRC of such a packet
/// is not checked, so that a change of it is not only a wrong ICRC.
fn roce_seeds(name: &str, file: &[u8]) -> io::Result<()> {
    let mut reader = PcapReader::new(file).map_err(io::Error::other)?;
    let header = reader.header();
    let mut packets = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let packet = packet.map_err(io::Error::other)?.into_owned();
        if packet.data.get(36..38) == Some(&4791_u16.to_be_bytes()) {
            packets.push(packet);
        }
    }
    let step = packets.len().div_ceil(ROCE_SEEDS).max(1);
    for (index, start) in (0..packets.len()).step_by(step).enumerate() {
        let mut seed = Vec::new();
        let mut writer = PcapWriter::with_header(&mut seed, header).map_err(io::Error::other)?;
        for packet in packets[start..].iter().take(ROCE_SEED_PACKETS) {
            let kept = packet.data.len().min(ROCE_PACKET_BYTES);
            let part = PcapPacket::new(packet.timestamp, packet.orig_len, &packet.data[..kept]);
            writer.write_packet(&part).map_err(io::Error::other)?;
        }
        fs::write(corpus("decode")?.join(format!("{name}-{index}")), seed)?;
    }
    Ok(())
}

fn seeds_of(path: &Path) -> io::Result<()> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let file = fs::read(path)?;
    roce_seeds(&name, &file)?;
    if file.len() <= CAPTURE_SEED_BYTES {
        fs::write(corpus("capture_reader")?.join(&*name), &file)?;
        fs::write(corpus("decode")?.join(&*name), &file)?;
    }
    let (mut streams, mut parts) = (Vec::new(), HashSet::new());
    let mut messages = Vec::new();
    let read = reader::read(&file, true, &mut |found| match found {
        Found::Connection => {}
        Found::Startup { frame, bytes } => {
            parts.insert(bytes.to_vec());
            // The kind of frame, its presence, no framing, no CRC, no Read and no cut.
            let is_request = u8::from(frame.kind == FrameKind::Request);
            streams.push([&[is_request, 1, 0, 0, 0, 0][..], bytes].concat());
        }
        Found::Fpdu {
            header,
            opcode,
            payload,
            bytes,
            ..
        } => {
            let stream = streams.last_mut().expect("a stream starts up first");
            stream.extend_from_slice(bytes);
            if is_last(&header) && opcode as u8 != 0 {
                parts.insert(payload.to_vec());
            }
            parts.insert(bytes[2..].to_vec());
        }
        Found::Message { kind, bytes } => {
            parts.insert(bytes.to_vec());
            if kind == Kind::DataTransfer {
                messages.extend(smb2(bytes));
            }
        }
    });
    for (index, stream) in streams.iter().enumerate() {
        let start = &stream[..stream.len().min(STREAM_SEED_BYTES)];
        fs::write(corpus("mpa_stream")?.join(format!("{name}-{index}")), start)?;
    }
    let short = parts.iter().filter(|part| part.len() <= MESSAGE_SEED_BYTES);
    for (index, part) in short.enumerate() {
        fs::write(corpus("wire_decode")?.join(format!("{name}-{index}")), part)?;
    }
    smb2_seeds(&name, &messages)?;
    // A truncated capture is used as far as it goes.
    read.map_err(io::Error::other)
}

/// Returns the SMB2 message in a Data Transfer that holds a whole one.
fn smb2(bytes: &[u8]) -> Option<Vec<u8>> {
    let transfer = DataTransfer::decode(bytes).ok()?;
    let payload = &bytes[transfer.payload()];
    let is_whole = transfer.remaining_data_length == 0 && Protocol::of(payload) == Protocol::Smb2;
    (is_whole && payload.len() <= SMB2_SEED_BYTES).then(|| payload.to_vec())
}

/// Selects one message of each kind and length, and the exchange between client and server.
fn smb2_seeds(name: &str, messages: &[Vec<u8>]) -> io::Result<()> {
    let mut seen = HashSet::new();
    let new: Vec<_> = messages
        .iter()
        .filter(|message| message.len() >= 64)
        .filter(|message| seen.insert((message[12], message[16] & 1, message.len())))
        .collect();
    for (index, message) in new.iter().enumerate() {
        fs::write(corpus("smb2")?.join(format!("{name}-{index}")), message)?;
    }
    let mut exchanges = vec![[Vec::new(), Vec::new()]];
    for message in new {
        let last = exchanges.last().expect("there is one");
        if last[0].len() + message.len() > EXCHANGE_SEED_BYTES {
            exchanges.push([Vec::new(), Vec::new()]);
        }
        let [to_tcp, to_rdma] = exchanges.last_mut().expect("there is one");
        let is_answer = message[16] & 1;
        enter(to_tcp, is_answer, message);
        enter(to_rdma, 2 + is_answer, message);
    }
    for (index, exchange) in exchanges.iter().enumerate() {
        for (way, messages) in ["tcp", "rdma"].iter().zip(exchange) {
            let path = corpus("gateway_translation")?.join(format!("{name}-{way}-{index}"));
            // The threshold is 100 bytes, and the longest transfer 61680.
            fs::write(path, [&[100, 0xf0, 0xf0], &messages[..]].concat())?;
        }
    }
    Ok(())
}

/// A message, and the byte before it in the seed.
type Entry = (u8, Vec<u8>);

/// Appends a message in the format of `gateway_translation`.
fn enter(exchange: &mut Vec<u8>, control: u8, message: &[u8]) {
    exchange.push(control);
    exchange.extend_from_slice(&(message.len() as u16).to_le_bytes());
    exchange.extend_from_slice(message);
}

/// Makes seeds that the captures do not contain: data inline and by RDMA, compounds, interim
/// responses.
fn composed() -> io::Result<()> {
    use messages::*;
    let two = [descriptor(0x1000, 7, 150), descriptor(u64::MAX - 60, 8, 60)];
    let chain = |middle: Vec<u8>| {
        compound(&[
            other(header(CREATE, 20), &[57; 59]),
            flagged(middle, RELATED),
            flagged(other(header(CLOSE, 22), &[24; 21]), RELATED),
        ])
    };
    let answers = |middle: Vec<u8>| {
        compound(&[
            other(answer(CREATE, 20, SUCCESS), &[89; 89]),
            flagged(middle, RELATED),
            flagged(other(answer(CLOSE, 22, SUCCESS), &[60; 60]), RELATED),
        ])
    };
    let data = [0x61; 160];
    let exchanges: [(&str, Vec<Entry>); 6] = [
        (
            "read",
            vec![
                (0, read(1, 0, 200, V1_INVALIDATE, &two)),
                (1, interim(READ, 1)),
                (1, flagged(read_answer(1, &data, 0), ASYNC)),
            ],
        ),
        (
            "write",
            vec![
                (0, write_by_rdma(2, 9, 200, V1_INVALIDATE, &two)),
                (0, other(header(CANCEL, 2), &[4, 0, 0, 0])),
                (1, write_answer(2, 200)),
            ],
        ),
        (
            "related",
            vec![
                (0, chain(read(21, 0, 200, V1, &two))),
                (1, answers(read_answer(21, &data, 0))),
            ],
        ),
        (
            "tokens",
            vec![
                (
                    0,
                    compound(&[
                        read(1, 0, 200, V1_INVALIDATE, &two[..1]),
                        write_by_rdma(2, 0, 60, V1_INVALIDATE, &two[1..]),
                    ]),
                ),
                (
                    1,
                    compound(&[error(READ, 1, END_OF_FILE), write_answer(2, 60)]),
                ),
            ],
        ),
        (
            "offloaded",
            vec![
                (3, negotiated(0x0302)),
                (2, read(1, 0, 200, 0, &[])),
                (2, write(2, 0, &data)),
                (3, interim(WRITE, 2)),
                (3, read_answer(1, &[], 180)),
                (3, flagged(write_answer(2, 160), ASYNC)),
            ],
        ),
        (
            "opaque",
            vec![
                (0, encrypted(60)),
                (0, read(1, 0, 200, V1, &two)),
                (1, encrypted(60)),
                (
                    1,
                    with(read_answer(1, &data, 0), 8, &BUFFER_OVERFLOW.to_le_bytes()),
                ),
            ],
        ),
    ];
    for (name, messages) in exchanges {
        let mut exchange = vec![100, 0xf0, 0xf0];
        for (index, (control, message)) in messages.iter().enumerate() {
            enter(&mut exchange, *control, message);
            fs::write(corpus("smb2")?.join(format!("{name}-{index}")), message)?;
        }
        fs::write(corpus("gateway_translation")?.join(name), exchange)?;
    }
    Ok(())
}

fn corpus(target: &str) -> io::Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}
