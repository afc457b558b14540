//! What is told of a capture.

use std::net::SocketAddr;

use smbdirect::{
    rdma::iwarp::{
        mpa::{FrameKind, StartupError, StartupFrame},
        rdmap::{ReadRequest, Terminate},
    },
    wire::{NegotiateRequest, NegotiateResponse},
};
use smbdirect_smb::smb2::{Channel, Command};

use super::tcp::Place;

/// Something that was said on a stream.
#[derive(Debug)]
pub(crate) struct Event {
    /// Streams are counted from 1, as they begin.
    pub(crate) stream: u32,
    /// Of the packet that completed it.
    pub(crate) place: Place,
    pub(crate) from: Sender,
    pub(crate) what: What,
    /// The send credits that the initiator and the responder hold behind it; `None` where the
    /// capture does not have all that they depend on.
    pub(crate) credits: [Option<u32>; 2],
    /// The rules that its sender broke by it.
    pub(crate) broken: Vec<Broken>,
}

/// Who said something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    Initiator,
    Responder,
    /// One end, and the other: nobody knows which of them connected.
    A,
    B,
}

/// A rule that was broken, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    /// Its id in `specs`.
    pub(crate) rule: &'static str,
    pub(crate) how: String,
}

/// What was said.
#[derive(Debug)]
pub(crate) enum What {
    /// A stream begins here, between the initiator and the responder, or A and B.
    Stream {
        ends: [SocketAddr; 2],
        /// Its beginning is in the capture.
        whole: bool,
    },
    Startup(StartupFrame),
    BadStartup {
        kind: FrameKind,
        error: StartupError,
    },
    /// An FPDU in which nothing else is to be seen.
    BadFpdu {
        ulpdu_length: u16,
    },
    /// A frame that only tells that its sender is ready.
    ReadyToReceive(&'static str),
    Write(Tagged),
    ReadRequest(ReadRequest),
    ReadResponse(Tagged),
    Terminate(Terminate),
    NegotiateRequest(NegotiateRequest),
    NegotiateResponse(NegotiateResponse),
    DataTransfer(DataTransfer),
    /// A Send that is too short for what it should be, or of which the head is not there.
    Headless {
        name: &'static str,
        length: u64,
    },
    /// So many bytes are not in the capture.
    Gap(u64),
    /// So many bytes were passed over until the boundaries of FPDUs were found again.
    InStep(u64),
    Note(&'static str),
    Closed {
        reset: bool,
    },
}

impl What {
    /// What it is called, if it is a message.
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
            Self::Stream { .. }
            | Self::Gap(_)
            | Self::InStep(_)
            | Self::Note(_)
            | Self::Closed { .. } => return None,
        })
    }
}

/// The fields of a Data Transfer as they stand on the wire, right or wrong.
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
    /// The token of the receiver's that came with it.
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

/// What a payload is by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    None,
    /// Bytes of a message that began earlier.
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

/// How the data of a READ or WRITE request travels if it is not in the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByRdma {
    pub(crate) channel: Channel,
    /// Bytes of data.
    pub(crate) length: u32,
}

/// A broken rule.
pub(super) fn broken(rule: &'static str, how: impl Into<String>) -> Broken {
    let how = how.into();
    Broken { rule, how }
}
