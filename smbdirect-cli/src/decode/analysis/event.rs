//! The events of a capture.

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
        ends: [SocketAddr; 2],
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
            Self::Stream { .. }
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
