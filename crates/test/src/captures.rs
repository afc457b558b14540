//! Reads captures: packets, their TCP streams, and the iWARP and SMB Direct messages in these.
//!
//! A file may contain anything. An invalid file is a [`CaptureError`], and no file takes more memory
//! than a small multiple of its length.

use std::{borrow::Cow, collections::BTreeMap, net::Ipv4Addr};

use pcap_file::{
    PcapError,
    pcap::PcapParser,
    pcapng::{Block, PcapNgParser},
};
use smbdirect::rdma::iwarp::{
    ddp::{self, DdpError, Header},
    mpa::{CrcMismatch, Fpdu, FrameKind, StartupError, StartupFrame},
    rdmap::{Opcode, RdmapError},
};
use thiserror::Error;

/// One direction of a TCP connection: from, to.
type Flow = [(Ipv4Addr, u16); 2];

/// The bytes of each direction of each TCP connection.
type Flows = BTreeMap<Flow, Vec<u8>>;

/// The port of SMB Direct over iWARP.
const PORT: u16 = 5445;

/// Something in a capture.
#[derive(Debug)]
pub enum Found<'a> {
    /// An iWARP connection. All items up to the next connection belong to it.
    Connection,
    /// A startup frame and its bytes. All items up to the next startup frame follow it in the stream.
    Startup {
        frame: StartupFrame,
        bytes: &'a [u8],
    },
    /// An FPDU and its bytes.
    Fpdu {
        header: Header,
        opcode: Opcode,
        payload: &'a [u8],
        crc: bool,
        bytes: &'a [u8],
    },
    /// A whole message of SMB Direct.
    Message { kind: Kind, bytes: &'a [u8] },
}

/// The kind of a message of SMB Direct, which its position determines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    NegotiateRequest,
    NegotiateResponse,
    DataTransfer,
}

/// Why a capture cannot be read.
#[derive(Debug, Error)]
pub enum CaptureError {
    #[error("no capture: {0}")]
    File(#[from] PcapError),
    #[error("a packet is shorter than its headers say")]
    Packet,
    #[error("bytes of a TCP stream are missing")]
    Gap,
    #[error(transparent)]
    Startup(#[from] StartupError),
    #[error(transparent)]
    Crc(#[from] CrcMismatch),
    #[error(transparent)]
    Ddp(#[from] DdpError),
    #[error(transparent)]
    Rdmap(#[from] RdmapError),
    #[error("a direction ends inside a message")]
    Cut,
}

/// Reads all iWARP connections of a capture, in pcap or pcapng, and passes each item to `found`.
/// `cut` allows directions to end within a message.
pub fn read(file: &[u8], cut: bool, found: &mut impl FnMut(Found<'_>)) -> Result<(), CaptureError> {
    let flows = flows(file)?;
    for (flow, initiator) in &flows {
        if flow[1].1 != PORT {
            continue;
        }
        // A connection that was not accepted has no other direction.
        let Some(responder) = flows.get(&[flow[1], flow[0]]) else {
            continue;
        };
        found(Found::Connection);
        let request = StartupFrame::decode(FrameKind::Request, initiator)?;
        let reply = StartupFrame::decode(FrameKind::Reply, responder)?;
        let crc = request.crc || reply.crc;
        for (frame, bytes) in [(request, initiator), (reply, responder)] {
            let (bytes, behind) = bytes.split_at(frame.encoded_length());
            let first = match frame.kind {
                FrameKind::Request => Kind::NegotiateRequest,
                FrameKind::Reply => Kind::NegotiateResponse,
            };
            found(Found::Startup { frame, bytes });
            direction(behind, crc, first, cut, found)?;
        }
    }
    Ok(())
}

/// Reads the FPDUs of one direction, and the messages in the Sends.
fn direction(
    mut rest: &[u8],
    crc: bool,
    first: Kind,
    cut: bool,
    found: &mut impl FnMut(Found<'_>),
) -> Result<(), CaptureError> {
    let mut message = Vec::new();
    let mut kind = first;
    while !rest.is_empty() {
        let Some(fpdu) = Fpdu::decode(rest, crc)? else {
            break;
        };
        let (header, payload) = Header::decode(fpdu.ulpdu)?;
        let opcode = Opcode::of(&header)?;
        let bytes;
        (bytes, rest) = rest.split_at(fpdu.length);
        found(Found::Fpdu {
            header,
            opcode,
            payload,
            crc,
            bytes,
        });
        if !is_send(opcode) {
            continue;
        }
        message.extend_from_slice(payload);
        if is_last(&header) {
            let bytes = &message;
            found(Found::Message { kind, bytes });
            message.clear();
            kind = Kind::DataTransfer;
        }
    }
    let whole = rest.is_empty() && message.is_empty();
    if whole || cut {
        Ok(())
    } else {
        Err(CaptureError::Cut)
    }
}

/// Whether a segment is the last of its message.
pub const fn is_last(header: &Header) -> bool {
    match header {
        Header::Tagged(ddp::Tagged { last, .. }) | Header::Untagged(ddp::Untagged { last, .. }) => {
            *last
        }
    }
}

const fn is_send(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::Send
            | Opcode::SendInvalidate
            | Opcode::SendSolicited
            | Opcode::SendSolicitedInvalidate
    )
}

/// The bytes of each direction of each TCP connection, in order and without repetitions.
fn flows(file: &[u8]) -> Result<Flows, CaptureError> {
    let mut segments: BTreeMap<Flow, Vec<Segment<'_>>> = BTreeMap::new();
    let mut starts = BTreeMap::new();
    let packets = packets(file)?;
    for packet in &packets {
        let Some((flow, segment)) = tcp_segment(packet)? else {
            continue;
        };
        if segment.is_syn {
            starts.insert(flow, segment.sequence.wrapping_add(1));
        }
        segments.entry(flow).or_default().push(segment);
    }
    // The last packets of a connection that began before the capture are ignored.
    let begun = segments
        .into_iter()
        .filter_map(|(flow, segments)| Some((flow, segments, *starts.get(&flow)?)));
    begun
        .map(|(flow, segments, start)| Ok((flow, in_order(segments, start)?)))
        .collect()
}

/// Joins segments, whose first byte has the sequence number `start`.
fn in_order(mut segments: Vec<Segment<'_>>, start: u32) -> Result<Vec<u8>, CaptureError> {
    let place = |segment: &Segment<'_>| segment.sequence.wrapping_sub(start) as usize;
    segments.retain(|segment| !segment.payload.is_empty());
    segments.sort_by_key(place);
    let mut bytes = Vec::new();
    for segment in &segments {
        let known = bytes.len().checked_sub(place(segment));
        let known = known.ok_or(CaptureError::Gap)?;
        bytes.extend_from_slice(segment.payload.get(known..).unwrap_or_default());
    }
    Ok(bytes)
}

/// The packets of a capture in either format.
fn packets(file: &[u8]) -> Result<Vec<Cow<'_, [u8]>>, CaptureError> {
    let mut packets = Vec::new();
    if file.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]) {
        let (mut rest, mut parser) = PcapNgParser::new(file)?;
        while !rest.is_empty() {
            let block;
            (rest, block) = parser.next_block(rest)?;
            if let Block::EnhancedPacket(packet) = block {
                packets.push(packet.data);
            }
        }
    } else {
        let (mut rest, parser) = PcapParser::new(file)?;
        while !rest.is_empty() {
            let packet;
            (rest, packet) = parser.next_packet(rest)?;
            packets.push(packet.data);
        }
    }
    Ok(packets)
}

/// A segment of a TCP stream.
struct Segment<'a> {
    sequence: u32,
    is_syn: bool,
    payload: &'a [u8],
}

/// The TCP segment in an Ethernet frame; `None` if there is something else in it.
fn tcp_segment(frame: &[u8]) -> Result<Option<(Flow, Segment<'_>)>, CaptureError> {
    const ETHERNET: usize = 14;
    const IPV4: [u8; 2] = [0x08, 0x00];
    const TCP: u8 = 6;
    const SYN: u8 = 0x02;
    let Some((ethernet, packet)) = frame.split_at_checked(ETHERNET) else {
        return Ok(None);
    };
    let is_tcp = ethernet[12..] == IPV4 && packet.get(9) == Some(&TCP);
    if !is_tcp {
        return Ok(None);
    }
    // Bytes after the packet pad the frame to its minimum length.
    let length = usize::from(short(packet, 2)?);
    let packet = packet.get(..length).ok_or(CaptureError::Packet)?;
    let [from, to] = [12, 16].map(|at| {
        let address = packet.get(at..).and_then(|bytes| bytes.first_chunk::<4>());
        address.map(|&address| Ipv4Addr::from(address))
    });
    let segment = behind_header(packet, 0, 0x0f)?;
    let ports = (short(segment, 0)?, short(segment, 2)?);
    let (Some(from), Some(to)) = (from, to) else {
        return Err(CaptureError::Packet);
    };
    let sequence = u32::from(short(segment, 4)?) << 16 | u32::from(short(segment, 6)?);
    let flags = *segment.get(13).ok_or(CaptureError::Packet)?;
    let segment = Segment {
        sequence,
        is_syn: flags & SYN != 0,
        payload: behind_header(segment, 12, 0xf0)?,
    };
    Ok(Some(([(from, ports.0), (to, ports.1)], segment)))
}

/// Returns the bytes after a header whose length in 32-bit words is in the bits `mask` of the byte `at`.
fn behind_header(bytes: &[u8], at: usize, mask: u8) -> Result<&[u8], CaptureError> {
    let byte = *bytes.get(at).ok_or(CaptureError::Packet)?;
    let words = (byte & mask) >> mask.trailing_zeros();
    bytes
        .get(4 * usize::from(words)..)
        .ok_or(CaptureError::Packet)
}

fn short(bytes: &[u8], at: usize) -> Result<u16, CaptureError> {
    let bytes = bytes.get(at..).and_then(|bytes| bytes.first_chunk::<2>());
    bytes
        .map(|&bytes| u16::from_be_bytes(bytes))
        .ok_or(CaptureError::Packet)
}
