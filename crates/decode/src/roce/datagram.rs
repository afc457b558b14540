//! A packet of RoCE: its headers, the start of its payload, and its ICRC.

use std::{collections::VecDeque, iter};

use smbdirect::rdma::roce::{
    Psn,
    icrc::{self, IpHeader},
    packet::{Bth, DecodeError, Extended, ICRC_LENGTH, Layout, Opcode, Packet as Wire},
};

use super::super::{
    event::{Detail, Icrc, Repeated, RocePacket},
    packet::Datagram,
    tcp::Position,
};

/// A packet, as far as it is in the capture.
#[derive(Debug)]
pub(super) struct Packet {
    /// The place of the packet in the capture.
    pub(super) position: Position,
    pub(super) bth: Bth,
    pub(super) extended: Extended,
    /// The first bytes of the payload of a Send or a datagram, and with all content those of data.
    pub(super) head: Vec<u8>,
    /// Bytes of payload.
    pub(super) length: u32,
    pub(super) icrc: Icrc,
    /// Whether a switch has marked it for congestion.
    pub(super) is_marked: bool,
    /// What distinguishes it from a copy that its sender sent later: the Identification of IPv4,
    /// and the ICRC. `None` if there is no Identification.
    pub(super) fingerprint: Option<Fingerprint>,
}

type Fingerprint = (u16, [u8; ICRC_LENGTH]);

/// The last packets, among which a copy by the network is searched.
#[derive(Debug, Default)]
pub(super) struct Recent(VecDeque<Fingerprint>);

const RECENT_PACKETS: usize = 64;

impl Recent {
    /// Returns whether the network copied the packet; if not, adds it.
    pub(super) fn has(&mut self, packet: &Packet) -> bool {
        let Some(fingerprint) = packet.fingerprint else {
            return false;
        };
        if self.0.contains(&fingerprint) {
            return true;
        }
        if self.0.len() == RECENT_PACKETS {
            self.0.pop_front();
        }
        self.0.push_back(fingerprint);
        false
    }
}

/// A packet that cannot be decoded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Undecoded {
    /// The queue pair that it goes to, and the byte of its opcode.
    pub(super) queue_pair: u32,
    pub(super) opcode: u8,
    /// The reason; `None` if the packet was damaged, so that nothing in it can be trusted.
    pub(super) error: Option<DecodeError>,
    /// Whether it is as it was sent: the capture has all of it, and no adapter has joined it with others.
    pub(super) is_certain: bool,
}

/// Maximum number of bytes that are kept of a payload: headers, and the beginning of the upper layer.
const MAX_HEAD_BYTES: usize = 4096;

impl Packet {
    /// Decodes a packet; `None` if its headers are not in the capture, or if it is too long to be one packet.
    pub(super) fn decode(
        datagram: &Datagram<'_>,
        position: Position,
        detail: Detail,
    ) -> Option<Result<Self, Undecoded>> {
        let bytes = datagram.bytes;
        let is_cut = bytes.len() < datagram.length;
        let bth = bytes.first_chunk::<{ Bth::LENGTH }>()?;
        let icrc = match &datagram.header {
            Some(header) if !is_cut => {
                if icrc::verify(header, bytes) {
                    Icrc::Right
                } else {
                    Icrc::Wrong
                }
            }
            _ => Icrc::Unknown,
        };
        let undecoded = |error| Undecoded {
            queue_pair: u32::from_be_bytes([0, bth[5], bth[6], bth[7]]),
            opcode: bth[0],
            error,
            is_certain: icrc != Icrc::Unknown && !datagram.is_joined,
        };
        if icrc == Icrc::Wrong {
            return Some(Err(undecoded(None)));
        }
        // The missing end counts as zeros, which are not kept.
        let mut whole = Vec::new();
        if is_cut {
            whole.extend_from_slice(bytes);
            whole.resize(datagram.length, 0);
        }
        let split = Wire::split(if is_cut { &whole } else { bytes });
        Some(match split {
            Ok((bth, extended, payload)) => {
                let start = Bth::LENGTH + extended.layout().length();
                let captured = bytes.len().checked_sub(start)?;
                if payload.len() > max_payload(bth.opcode) {
                    return None;
                }
                let has_content = matches!(Part::of(bth.opcode), Part::Send | Part::Datagram);
                let kept = if has_content || detail == Detail::Content {
                    payload.len().min(captured).min(MAX_HEAD_BYTES)
                } else {
                    0
                };
                Ok(Self {
                    position,
                    bth,
                    extended,
                    head: payload[..kept].to_vec(),
                    length: payload.len() as u32,
                    icrc,
                    is_marked: datagram.is_marked,
                    fingerprint: fingerprint(datagram),
                })
            }
            Err(error) => Err(undecoded(Some(error))),
        })
    }

    /// Returns the packet as an event shows it.
    pub(super) fn shown(&self, repeated: Repeated) -> RocePacket {
        RocePacket {
            bth: self.bth,
            length: self.length,
            aeth: self.extended.aeth(),
            reth: self.extended.reth(),
            invalidated: self.extended.ieth().map(|ieth| ieth.r_key),
            icrc: self.icrc,
            congestion_marked: self.is_marked,
            repeated,
        }
    }

    /// Returns whether it is a request of a reliable connection.
    pub(super) fn is_request(&self) -> bool {
        let is_datagram = matches!(self.extended.layout(), Layout::Deth | Layout::DethImmediate);
        let opcode = self.bth.opcode;
        !is_datagram && !opcode.is_response() && opcode != Opcode::CongestionNotification
    }
}

/// Returns the rule that an undecodable packet breaks.
pub(super) const fn rule(error: DecodeError) -> Option<&'static str> {
    match error {
        DecodeError::TooShort { .. } => Some("ROCE-9.2.1-03"),
        DecodeError::Unaligned { .. } => Some("ROCE-9.2.1-04"),
        DecodeError::Version(_) => Some("ROCE-9.2.1-02"),
        DecodeError::Syndrome(_) => Some("ROCE-9.7.5-01"),
        // Later versions of the specification define more opcodes.
        DecodeError::Opcode(_) => None,
    }
}

/// What a packet is part of, by the numbers of opcodes (IBTA 9.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Send,
    Write,
    ReadRequest,
    ReadResponse,
    Datagram,
    Other,
}

impl Part {
    pub(super) const fn of(opcode: Opcode) -> Self {
        match opcode as u8 {
            0x00..=0x05 | 0x16 | 0x17 => Self::Send,
            0x06..=0x0b => Self::Write,
            0x0c => Self::ReadRequest,
            0x0d..=0x10 => Self::ReadResponse,
            0x64 | 0x65 => Self::Datagram,
            _ => Self::Other,
        }
    }
}

/// Returns the most bytes that a packet has after its headers.
const fn max_payload(opcode: Opcode) -> usize {
    match opcode {
        Opcode::Acknowledge | Opcode::ReadRequest => 0,
        _ => MAX_PAYLOAD_BYTES,
    }
}

/// Returns whether a packet is the first of a Send, or its only one.
pub(super) const fn begins_send(opcode: Opcode) -> bool {
    matches!(opcode as u8, 0x00 | 0x04 | 0x05 | 0x17)
}

fn fingerprint(datagram: &Datagram<'_>) -> Option<Fingerprint> {
    let IpHeader::V4 {
        identification: identification @ 1..,
        ..
    } = datagram.header?.ip
    else {
        return None;
    };
    let icrc = datagram.bytes.last_chunk()?;
    (datagram.bytes.len() == datagram.length).then_some((identification, *icrc))
}

/// The largest path MTU: bytes of payload of a packet.
const MAX_PAYLOAD_BYTES: usize = 4096;
/// The longest packet: its payload, BTH, RETH, immediate data, ICRC.
const MAX_PACKET_BYTES: usize = MAX_PAYLOAD_BYTES + 12 + 20 + 4;
/// The shortest packet: BTH and ICRC.
const MIN_PACKET_BYTES: usize = Bth::LENGTH + ICRC_LENGTH;

/// Returns the packets of a datagram. There are several if the capture was made on a host whose
/// network card cuts datagrams (UDP segmentation offload) or joins them (GRO).
pub(super) fn packets<'a>(datagram: &Datagram<'a>) -> impl Iterator<Item = Datagram<'a>> {
    let segment = segment_length(datagram).unwrap_or(datagram.length);
    let whole = *datagram;
    let mut index = 0;
    iter::from_fn(move || {
        let start = segment * usize::from(index);
        if index > 0 && start >= whole.bytes.len() {
            return None;
        }
        let length = segment.min(whole.length - start);
        let end = (start + length).min(whole.bytes.len());
        let bytes = &whole.bytes[start..end];
        let header = whole.header.map(|header| match header.ip {
            IpHeader::V4 { identification, .. } => {
                let next = header.with_identification(identification.wrapping_add(index));
                // Senders that do not count keep the Identification.
                if icrc::verify(&next, bytes) {
                    next
                } else {
                    header
                }
            }
            IpHeader::V6 { .. } => header,
        });
        index += 1;
        Some(Datagram {
            header,
            bytes,
            length,
            is_joined: whole.is_joined || length < whole.length,
            ..whole
        })
    })
}

/// Returns the length of the first of several packets in a datagram, which GRO or segmentation offload
/// has left together. It is the length with which the ICRC of the first packet is right and a BTH of the
/// same queue pair follows.
fn segment_length(datagram: &Datagram<'_>) -> Option<usize> {
    let (bytes, header) = (datagram.bytes, datagram.header.as_ref()?);
    if bytes.len() < 2 * MIN_PACKET_BYTES || icrc::verify(header, bytes) {
        return None;
    }
    let is_response = |bth: &[u8]| Opcode::decode(bth[0]).map(Opcode::is_response);
    let psn = |bth: &[u8]| Psn::new(u32::from_be_bytes([0, bth[9], bth[10], bth[11]]));
    let (first, last) = (MIN_PACKET_BYTES, bytes.len() - MIN_PACKET_BYTES);
    let mut lengths = (first..=last.min(MAX_PACKET_BYTES)).step_by(4);
    lengths.find(|&length| {
        let next = &bytes[length..];
        let has_same_ends = next[2..4] == bytes[2..4] && next[5..8] == bytes[5..8];
        // An acknowledgement after a request has the PSN of a request of the peer.
        let continues = is_response(next) != is_response(bytes)
            || psn(next).distance(psn(bytes)).unsigned_abs() <= 1 << 16;
        has_same_ends && continues && icrc::verify(header, &bytes[..length])
    })
}
