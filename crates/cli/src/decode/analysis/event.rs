//! The events of a capture.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use smbdirect::{
    rdma::{
        iwarp::{
            mpa::{FrameKind, StartupError, StartupFrame},
            rdmap::{ReadRequest, Terminate},
        },
        roce::{
            Psn,
            cm::Message,
            packet::{Aeth, Bth, NakCode, Reth},
        },
    },
    wire::{NegotiateRequest, NegotiateResponse},
};
use smbdirect_smb::smb2::{Channel, Command};

use super::tcp::Place;

/// An event of a stream.
#[derive(Debug)]
pub(crate) struct Event {
    /// The number of the stream; streams are counted from 1, in the order in which they begin.
    pub(crate) stream: u32,
    /// The packet that completed it.
    pub(crate) place: Place,
    pub(crate) from: Sender,
    pub(crate) what: What,
    /// The send credits that the initiator and the responder hold after it; `None` if the capture
    /// lacks something that they depend on.
    pub(crate) credits: [Option<u32>; 2],
    /// The rules that its sender broke by it.
    pub(crate) broken: Vec<Broken>,
}

/// The sender of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    Initiator,
    Responder,
    /// One end, and the other, if it is unknown which of them connected.
    A,
    B,
}

impl Sender {
    /// Returns the sender of a direction; `initiator` is the direction of the end that connected.
    pub(super) const fn of(way: usize, initiator: Option<usize>) -> Self {
        match (initiator, way) {
            (Some(initiator), way) if initiator == way => Self::Initiator,
            (Some(_), _) => Self::Responder,
            (None, 0) => Self::A,
            (None, _) => Self::B,
        }
    }
}

/// An end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Tcp(SocketAddr),
    /// A queue pair of RoCE, and the port of its service, as far as they are known.
    Roce {
        address: IpAddr,
        queue_pair: Option<u32>,
        port: Option<u16>,
    },
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Tcp(address) => address.fmt(f),
            Self::Roce {
                address,
                queue_pair,
                port,
            } => {
                address.fmt(f)?;
                match (queue_pair, port) {
                    (Some(queue_pair), _) => write!(f, " QP 0x{queue_pair:06x}")?,
                    (None, None) => f.write_str(" QP unknown")?,
                    (None, Some(_)) => {}
                }
                port.map_or(Ok(()), |port| write!(f, " port {port}"))
            }
        }
    }
}

/// A broken rule, and how it was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    /// Its id in `specs`.
    pub(crate) rule: &'static str,
    pub(crate) how: String,
}

/// The content of an event.
#[derive(Debug)]
pub(crate) enum What {
    /// A stream begins, between the initiator and the responder, or A and B.
    Stream {
        ends: [End; 2],
        /// Whether its beginning is in the capture.
        whole: bool,
    },
    Startup(StartupFrame),
    BadStartup {
        kind: FrameKind,
        error: StartupError,
    },
    /// An FPDU that cannot be decoded.
    BadFpdu {
        ulpdu_length: u16,
    },
    /// A Ready to Receive frame.
    ReadyToReceive(&'static str),
    Write(Tagged),
    ReadRequest(ReadRequest),
    ReadResponse(Tagged),
    Terminate(Terminate),
    NegotiateRequest(NegotiateRequest),
    NegotiateResponse(NegotiateResponse),
    DataTransfer(DataTransfer),
    /// A Send that is too short for its kind, or whose head is not in the capture.
    Headless {
        name: &'static str,
        length: u64,
    },
    /// A message of the communication manager of RoCE; `again` if it was sent before.
    Cm {
        message: Message,
        again: bool,
    },
    /// An RDMA Write over RoCE.
    RoceWrite(Region),
    RoceReadRequest(Reth),
    /// A Read Response over RoCE; the request is `None` if it is not in the capture.
    RoceReadResponse {
        request: Option<Reth>,
        length: u64,
        packets: u64,
    },
    /// A negative acknowledgement of the packet with this number.
    Nak {
        code: NakCode,
        psn: Psn,
    },
    /// The receiver had no buffer for the packet with this number; `timer` codes the time to wait.
    RnrNak {
        timer: u8,
        psn: Psn,
    },
    /// A packet of RoCE that cannot be decoded, or was damaged.
    BadPacket {
        /// The byte of the opcode.
        opcode: u8,
    },
    /// A packet of RoCE. It may be part of a message that ends with a later packet.
    Packet(RocePacket),
    /// Packets that were sent before.
    SentAgain {
        /// The number of the first.
        psn: Psn,
        packets: u64,
    },
    /// This many packets are not in the capture.
    MissingPackets(u64),
    /// This many bytes are not in the capture.
    Gap(u64),
    /// This many bytes were skipped until the next FPDU was found.
    InStep(u64),
    Note(&'static str),
    Closed {
        reset: bool,
    },
}

impl What {
    /// Returns the name of a message; `None` if it is no message.
    pub(crate) fn name(&self) -> Option<&'static str> {
        let of_kind = |kind: &FrameKind| match kind {
            FrameKind::Request => "MPA Request",
            FrameKind::Reply => "MPA Reply",
        };
        Some(match self {
            Self::Startup(frame) => of_kind(&frame.kind),
            Self::BadStartup { kind, .. } => of_kind(kind),
            Self::BadFpdu { .. } => "FPDU",
            Self::ReadyToReceive(_) => "Ready to Receive",
            Self::Write(_) => "RDMA Write",
            Self::ReadRequest(_) => "RDMA Read Request",
            Self::ReadResponse(_) => "RDMA Read Response",
            Self::Terminate(_) => "Terminate",
            Self::NegotiateRequest(_) => "Negotiate Request",
            Self::NegotiateResponse(_) => "Negotiate Response",
            Self::DataTransfer(_) => "Data Transfer",
            Self::Headless { name, .. } => name,
            Self::Cm { message, .. } => match message {
                Message::ConnectRequest(_) => "CM REQ",
                Message::MessageReceiptAcknowledgment(_) => "CM MRA",
                Message::Reject(_) => "CM REJ",
                Message::ConnectReply(_) => "CM REP",
                Message::ReadyToUse(_) => "CM RTU",
                Message::DisconnectRequest(_) => "CM DREQ",
                Message::DisconnectReply(_) => "CM DREP",
            },
            Self::RoceWrite(_) => "RDMA Write",
            Self::RoceReadRequest(_) => "RDMA Read Request",
            Self::RoceReadResponse { .. } => "RDMA Read Response",
            Self::Nak { .. } => "NAK",
            Self::RnrNak { .. } => "RNR NAK",
            Self::BadPacket { .. } => "RoCE packet",
            Self::Packet(_)
            | Self::SentAgain { .. }
            | Self::MissingPackets(_)
            | Self::Stream { .. }
            | Self::Gap(_)
            | Self::InStep(_)
            | Self::Note(_)
            | Self::Closed { .. } => return None,
        })
    }
}

/// The fields of a Data Transfer as on the wire, valid or not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataTransfer {
    pub(crate) credits_requested: u16,
    pub(crate) credits_granted: u16,
    pub(crate) flags: u16,
    pub(crate) reserved: u16,
    pub(crate) remaining_data_length: u32,
    pub(crate) data_offset: u32,
    pub(crate) data_length: u32,
    pub(crate) payload: Payload,
    /// The token of the receiver that it invalidates.
    pub(crate) invalidated: Option<u32>,
}

/// All segments of an RDMA Write or a Read Response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tagged {
    pub(crate) stag: u32,
    pub(crate) tagged_offset: u64,
    pub(crate) length: u64,
    pub(crate) segments: u64,
}

/// All packets of an RDMA Write over RoCE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Region {
    /// The address, and the length that the first packet announces; `None` if it is not in the
    /// capture.
    pub(crate) reth: Option<Reth>,
    /// Bytes of data in the capture.
    pub(crate) length: u64,
    pub(crate) packets: u64,
}

/// A packet of RoCE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RocePacket {
    pub(crate) bth: Bth,
    /// Bytes of payload.
    pub(crate) length: u32,
    pub(crate) aeth: Option<Aeth>,
    pub(crate) reth: Option<Reth>,
    /// The R_Key that it invalidates.
    pub(crate) invalidated: Option<u32>,
    pub(crate) icrc: Icrc,
    pub(crate) repeated: Repeated,
}

/// The ICRC of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Icrc {
    Right,
    Wrong,
    /// It is not in the capture, or depends on headers that are not read.
    Unknown,
}

/// Whether the capture has a packet more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeated {
    No,
    /// Its sender sent it again.
    SentAgain,
    /// The network mirrored it more than once, so nothing was sent again.
    CapturedAgain,
}

/// The kind of a payload, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    None,
    /// A continuation of a message that began earlier.
    Continued,
    Smb2 {
        command: Command,
        response: bool,
        by_rdma: Option<ByRdma>,
    },
    /// The SMB2 header of a message is not in the capture.
    Smb2Headless,
    Encrypted,
    Compressed,
    Smb1,
    Other,
}

/// How the data of a READ or WRITE request moves if it is not in the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByRdma {
    pub(crate) channel: Channel,
    /// Bytes of data.
    pub(crate) length: u32,
}

/// Returns a broken rule.
pub(super) fn broken(rule: &'static str, how: impl Into<String>) -> Broken {
    let how = how.into();
    Broken { rule, how }
}

/// Returns the values of both directions, that of the initiator first.
pub(super) fn in_order<T: Copy>(both: [T; 2], initiator: Option<usize>) -> [T; 2] {
    match initiator {
        Some(1) => [both[1], both[0]],
        _ => both,
    }
}
