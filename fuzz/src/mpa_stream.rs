//! Startup frames and FPDUs: the same bytes give the same result however TCP splits them.

use std::io::IoSlice;

use bytes::{Bytes, BytesMut};
use smbdirect::rdma::{
    iwarp::{
        Stream, StreamConfig,
        ddp::Tagged,
        mpa::{Fpdu, FrameKind, StartupError, StartupFrame},
        rdmap::Opcode,
    },
    work::{Completion, Inline, RemoteAddress, Token, WorkId, WorkRequest},
};

use crate::input::Input;

/// Inputs up to this length are also delivered byte by byte.
const FEW: usize = 600;
/// The STag of the sink of the first Read of a stream.
const FIRST_SINK: u32 = 0x100;
/// Number of posted receives.
const RECEIVES: u64 = 300;

/// Reads a stream whole and in pieces, and compares the results.
pub fn mpa_stream(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = if input.is_odd() {
        FrameKind::Request
    } else {
        FrameKind::Reply
    };
    let starts_up = input.is_odd();
    let framing = input.byte();
    let (is_framed, flips) = (framing & 1 == 1, framing & 2 == 2);
    let mut crc = input.is_odd();
    let read = input.pick(&[0, 100, 40_000]);
    let cuts: Vec<usize> = (0..input.up_to(8)).map(|_| input.length(70_000)).collect();

    let mut rest = input.rest();
    if starts_up {
        let Some(frame) = startup(kind, rest) else {
            return;
        };
        crc = frame.crc;
        rest = &rest[frame.encoded_length()..];
    }
    let mut bytes = if is_framed {
        framed(rest, crc, read)
    } else {
        rest.to_vec()
    };
    if flips && !bytes.is_empty() {
        let at = rest.len() * 997 % bytes.len();
        bytes[at] ^= 1;
    }

    let config = StreamConfig {
        initiator: kind == FrameKind::Reply,
        crc,
        max_fpdu: 1448,
        one_fpdu_a_write: false,
        max_backlog: 512 * 1024,
        max_outbound_reads: 1,
        max_inbound_reads: 4,
        ready_to_receive: None,
    };
    let whole = outcome(&config, read, [&bytes[..]]);
    let mut rest = &bytes[..];
    let pieces: Vec<&[u8]> = cuts
        .into_iter()
        .map(|cut| {
            let (piece, behind) = rest.split_at(cut.min(rest.len()));
            rest = behind;
            piece
        })
        .collect();
    let pieces = pieces.into_iter().chain([rest]);
    assert_eq!(whole, outcome(&config, read, pieces));
    if bytes.len() <= FEW {
        assert_eq!(whole, outcome(&config, read, bytes.chunks(1)));
    }
}

/// Reads a startup frame. A part of it has to be incomplete, or give the same result as the whole.
fn startup(kind: FrameKind, bytes: &[u8]) -> Option<StartupFrame> {
    let whole = StartupFrame::decode(kind, bytes);
    for length in 0..bytes.len().min(FEW) {
        let part = StartupFrame::decode(kind, &bytes[..length]);
        match (&part, &whole) {
            (Err(StartupError::Incomplete { needed }), Ok(frame)) => {
                assert!(length < *needed && *needed <= frame.encoded_length());
            }
            (Err(StartupError::Incomplete { needed }), _) => assert!(length < *needed),
            _ => assert_eq!(part, whole),
        }
    }
    whole.ok()
}

/// Wraps ranges of the bytes in FPDUs, some of them long, and makes parts of the response to a Read
/// of `read` bytes.
fn framed(data: &[u8], crc: bool, read: usize) -> Vec<u8> {
    let mut input = Input::new(data);
    let mut out = Vec::new();
    let mut filled = 0;
    while !input.is_empty() && out.len() < 300_000 {
        let length = input.byte();
        if length == u8::MAX {
            let more = input.length(read - filled);
            let header = Tagged {
                last: filled + more == read,
                rdmap_control: Opcode::RdmaReadResponse.control(),
                stag: FIRST_SINK,
                tagged_offset: filled as u64,
            };
            filled += more;
            Fpdu::encode(&[&header.encode(), &vec![length; more]], crc, &mut out);
            continue;
        }
        let ulpdu = input.bytes(length.into());
        let more = if input.up_to(7) == 7 {
            input.any::<u16>().into()
        } else {
            0
        };
        let more = vec![length; usize::min(more, usize::from(u16::MAX) - ulpdu.len())];
        Fpdu::encode(&[ulpdu, &more], crc, &mut out);
    }
    out
}

/// The result of a stream.
#[derive(Debug, PartialEq)]
struct Outcome {
    messages: Vec<(u64, Bytes, Option<Token>)>,
    read: Option<BytesMut>,
    /// The output, if the stream ended gracefully. How a stream breaks may depend on the split:
    /// the header of a long segment is checked before its end and its CRC have arrived.
    said: Option<Vec<u8>>,
}

fn outcome<'a>(
    config: &StreamConfig,
    read: usize,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Outcome {
    let mut stream = Stream::new(config);
    for id in 0..RECEIVES {
        stream.post(WorkRequest::Receive {
            id: WorkId(id),
            length: 8192,
            count: 1,
        });
    }
    if read > 0 {
        stream.post(WorkRequest::Read {
            id: WorkId(RECEIVES),
            from: RemoteAddress {
                token: Token(7),
                offset: 0,
            },
            into: BytesMut::zeroed(read),
        });
    }
    stream.post(WorkRequest::Send {
        id: WorkId(RECEIVES + 1),
        header: Inline::new(),
        payload: Bytes::from_static(b"something to say"),
        invalidate: None,
    });
    let mut said = said_by(&mut stream);
    for (count, piece) in pieces.into_iter().enumerate() {
        if count % 2 == 0 {
            stream.handle_bytes(piece);
        } else {
            fill_slices(&mut stream, piece);
        }
    }
    said.extend(said_by(&mut stream));
    stream.handle_end();

    let (mut messages, mut result) = (Vec::new(), None);
    while let Some(completion) = stream.poll_completion() {
        match completion {
            Completion::Received {
                id,
                message,
                invalidated,
            } => messages.push((id.0, message, invalidated)),
            Completion::Read { buffer, .. } => result = Some(buffer),
            _ => {}
        }
    }
    Outcome {
        messages,
        read: result,
        said: (!stream.is_broken()).then_some(said),
    }
}

fn fill_slices(stream: &mut Stream, mut bytes: &[u8]) {
    while !bytes.is_empty() && !stream.has_ended() {
        let mut count = 0;
        for slice in stream.receive_slices() {
            let (now, later) = bytes.split_at(slice.len().min(bytes.len()));
            slice[..now.len()].copy_from_slice(now);
            count += now.len();
            bytes = later;
        }
        stream.received(count);
    }
}

fn said_by(stream: &mut Stream) -> Vec<u8> {
    let mut said = Vec::new();
    while stream.prepare() > 0 {
        let mut slices = [IoSlice::new(&[]); 16];
        let count = stream.transmit_slices(&mut slices);
        let length = said.len();
        for slice in &slices[..count] {
            said.extend_from_slice(slice);
        }
        stream.transmitted(said.len() - length);
    }
    said
}
