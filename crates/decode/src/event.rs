//! The events of a capture.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use serde::{Serialize, Serializer, ser::SerializeMap};
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

use super::{
    fields::{self, object},
    per_end::{PerEnd, Side},
    tcp::{Position, TcpPacket},
};

/// An event of a stream. It serialises to the JSON object that `smbdirect decode --json` prints.
#[derive(Debug)]
pub struct Event {
    /// The number of the stream; streams are counted from 1, in the order in which they begin.
    pub stream: u32,
    /// The packet that completed it.
    pub position: Position,
    /// The end that sent it.
    pub from: Side,
    /// The end that connected, as far as the capture has shown it.
    pub initiator: Option<Side>,
    /// The message that was sent, or the event that happened.
    pub kind: EventKind,
    /// The send credits that both ends hold after it; `None` if the capture lacks something that they depend on.
    pub credits: PerEnd<Option<u32>>,
    /// The rules that the sender broke by sending it.
    pub broken: Vec<Broken>,
    /// What explanations need beyond that.
    pub(crate) extra: Extra,
}

impl Event {
    /// Returns whether the initiator sent it; `None` if no end is known to be the initiator.
    pub fn is_from_initiator(&self) -> Option<bool> {
        Some(self.initiator? == self.from)
    }

    /// Returns the name of its sender, as in JSON: `initiator` or `responder`, or `a` or `b` if no end is known to
    /// be the initiator.
    pub fn sender(&self) -> &'static str {
        match (self.is_from_initiator(), self.from) {
            (Some(true), _) => "initiator",
            (Some(false), _) => "responder",
            (None, Side::A) => "a",
            (None, Side::B) => "b",
        }
    }
}

/// The content of an event, before it is known which stream it belongs to.
#[derive(Debug)]
pub(crate) struct Told {
    kind: EventKind,
    broken: Vec<Broken>,
    extra: Extra,
}

impl Told {
    /// Returns it without broken rules, if its bytes are not certain.
    pub(crate) fn certain(mut self, is_certain: bool) -> Self {
        if !is_certain {
            self.broken.clear();
        }
        self
    }

    /// Returns the event of a stream.
    pub(crate) fn event(
        self,
        stream: u32,
        position: Position,
        (from, initiator): (Side, Option<Side>),
        credits: PerEnd<Option<u32>>,
    ) -> Event {
        let Self {
            kind,
            broken,
            extra,
        } = self;
        Event {
            stream,
            position,
            from,
            initiator,
            kind,
            credits,
            broken,
            extra,
        }
    }
}

impl From<EventKind> for Told {
    fn from(kind: EventKind) -> Self {
        (kind, Vec::new()).into()
    }
}

impl From<(EventKind, Vec<Broken>)> for Told {
    fn from((kind, broken): (EventKind, Vec<Broken>)) -> Self {
        (kind, broken, Extra::default()).into()
    }
}

impl From<(EventKind, Vec<Broken>, Extra)> for Told {
    fn from((kind, broken, extra): (EventKind, Vec<Broken>, Extra)) -> Self {
        Self {
            kind,
            broken,
            extra,
        }
    }
}

/// What explanations need of a message beyond its fields.
#[derive(Debug, Default)]
pub(crate) struct Extra {
    /// The packet with its first byte, if that is another packet than the last.
    pub(crate) began: Option<Position>,
    /// The message of a Send, or the data of an RDMA operation, as far as it is kept.
    pub(crate) content: Vec<u8>,
    /// If the bytes of a gap are cut from a packet that is in the capture, the bytes up to its end that are not understood.
    pub(crate) hidden: Option<u64>,
}

impl Extra {
    pub(crate) fn began(began: Option<Position>) -> Self {
        Self {
            began,
            ..Self::default()
        }
    }

    pub(crate) fn content(content: Vec<u8>) -> Self {
        Self {
            content,
            ..Self::default()
        }
    }
}

/// The amount of content that events carry in [`Extra`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Detail {
    /// None.
    #[default]
    None,
    /// The beginning of each Send, and events of TCP packets.
    Heads,
    /// All bytes of each Send, and an event with its bytes for each packet or segment of an RDMA operation.
    Content,
}

impl Detail {
    /// Returns the maximum number of bytes that are kept of a Send.
    pub(crate) const fn max_send_bytes(self) -> usize {
        // Without the content, headers and the beginning of the upper layer.
        if matches!(self, Self::Content) {
            1 << 20
        } else {
            4096
        }
    }
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Line<'a> {
            event: &'static str,
            stream: u32,
            #[serde(flatten)]
            from: Option<From>,
            #[serde(skip_serializing_if = "Option::is_none")]
            message: Option<&'static str>,
            #[serde(flatten)]
            kind: &'a EventKind,
            #[serde(flatten)]
            credits: Option<Credits>,
            #[serde(skip_serializing_if = "Option::is_none")]
            broken: Option<&'a [Broken]>,
        }
        #[derive(Serialize)]
        struct From {
            #[serde(flatten)]
            position: Position,
            from: &'static str,
        }
        #[derive(Serialize)]
        struct Credits {
            initiator_credits: Option<u32>,
            responder_credits: Option<u32>,
        }

        let (event, kind) = (self.kind.event_name(), &self.kind);
        let message = match kind {
            EventKind::BadStartup { .. } => Some("MPA frame"),
            EventKind::Headless { .. } => Some("without fields"),
            kind => kind.name(),
        };
        let has_broken = message.is_some() || matches!(event, "note" | "closed");
        let [initiator_credits, responder_credits] = self.credits.initiator_first(self.initiator);
        let line = Line {
            event,
            stream: self.stream,
            from: (event != "stream").then_some(From {
                position: self.position,
                from: self.sender(),
            }),
            message,
            kind,
            credits: message.map(|_| Credits {
                initiator_credits,
                responder_credits,
            }),
            broken: has_broken.then_some(&self.broken),
        };
        line.serialize(serializer)
    }
}

/// An end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// An end of a TCP connection.
    Tcp(SocketAddr),
    /// A queue pair of RoCE, and the port of its service, as far as they are known.
    Roce {
        /// The IP address; RoCEv1 has one, too.
        address: IpAddr,
        /// The number of the queue pair.
        queue_pair: Option<u32>,
        /// The port of the service.
        port: Option<u16>,
    },
}

impl End {
    /// Returns the IP address.
    pub fn ip(&self) -> IpAddr {
        match self {
            Self::Tcp(address) => address.ip(),
            Self::Roce { address, .. } => *address,
        }
    }
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

/// Serialises the beginning of a stream.
fn serialize_stream<S: Serializer>(
    ends: &PerEnd<End>,
    connected: &Option<Side>,
    from_start: &bool,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let ends = ends.initiator_first(*connected);
    let of = |end| match end {
        End::Tcp(address) => ("iWARP", address.to_string(), None, None),
        End::Roce {
            address,
            queue_pair,
            port,
        } => ("RoCE", address.to_string(), queue_pair, port),
    };
    let (_, initiator, initiator_queue_pair, _) = of(ends[0]);
    let (transport, responder, responder_queue_pair, port) = of(ends[1]);
    object!(serializer, {
        transport: transport,
        initiator: initiator,
        responder: responder,
        initiator_queue_pair: initiator_queue_pair,
        responder_queue_pair: responder_queue_pair,
        port: port,
        roles_known: connected.is_some(),
        from_start: from_start,
    })
}

/// A broken rule, and how it was broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Broken {
    /// The id of the rule in `specs`.
    pub rule: &'static str,
    /// The fields or the circumstance that break it.
    pub how: String,
}

/// The content of an event.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum EventKind {
    /// A stream begins.
    #[serde(serialize_with = "serialize_stream")]
    Stream {
        /// The addresses of both ends.
        ends: PerEnd<End>,
        /// The end that connected, if that is known.
        initiator: Option<Side>,
        /// Whether its beginning is in the capture.
        from_start: bool,
    },
    /// An MPA Request or Reply.
    Startup(#[serde(serialize_with = "fields::startup")] StartupFrame),
    /// An MPA startup frame that cannot be decoded.
    BadStartup {
        /// Whether a Request or a Reply was expected.
        #[serde(skip)]
        kind: FrameKind,
        /// The reason why it cannot be decoded.
        #[serde(serialize_with = "fields::words")]
        error: StartupError,
    },
    /// An FPDU that cannot be decoded.
    BadFpdu {
        /// The length that its header gives.
        ulpdu_length: u16,
    },
    /// A Ready to Receive frame.
    ReadyToReceive {
        /// The operation.
        by: &'static str,
    },
    /// An RDMA Write over iWARP.
    Write(Tagged),
    /// An RDMA Read Request over iWARP.
    ReadRequest(#[serde(serialize_with = "fields::read_request")] ReadRequest),
    /// An RDMA Read Response over iWARP.
    ReadResponse(Tagged),
    /// A Terminate of RDMAP.
    Terminate(#[serde(serialize_with = "fields::terminate")] Terminate),
    /// A Negotiate Request of SMB Direct.
    NegotiateRequest(#[serde(serialize_with = "fields::negotiate_request")] NegotiateRequest),
    /// A Negotiate Response of SMB Direct.
    NegotiateResponse(#[serde(serialize_with = "fields::negotiate_response")] NegotiateResponse),
    /// A Data Transfer of SMB Direct.
    DataTransfer(DataTransfer),
    /// A Send that is too short for its kind, or whose head is not in the capture.
    Headless {
        /// The name of the message, by its place in the stream.
        name: &'static str,
        /// Bytes of the Send.
        length: u64,
    },
    /// A message of the communication manager of RoCE; `again` if it was sent before.
    #[serde(serialize_with = "fields::cm")]
    Cm {
        /// The message.
        message: Message,
        /// Whether it was sent before.
        again: bool,
    },
    /// An RDMA Write over RoCE.
    RoceWrite(Region),
    /// An RDMA Read Request over RoCE.
    RoceReadRequest(#[serde(serialize_with = "fields::reth")] Reth),
    /// A Read Response over RoCE.
    RoceReadResponse(Region),
    /// A negative acknowledgement of the packet with this number.
    Nak {
        /// The reason.
        #[serde(serialize_with = "fields::nak")]
        code: NakCode,
        /// The packet sequence number.
        #[serde(serialize_with = "fields::psn")]
        psn: Psn,
    },
    /// The receiver had no buffer for the packet with this number.
    RnrNak {
        /// The code of the time to wait.
        #[serde(rename = "wait_ms", serialize_with = "fields::rnr_wait")]
        timer: u8,
        /// The packet sequence number.
        #[serde(serialize_with = "fields::psn")]
        psn: Psn,
    },
    /// A packet of RoCE that cannot be decoded, or was damaged.
    BadPacket {
        /// The byte of the opcode.
        opcode: u8,
    },
    /// A packet of RoCE. It may be part of a message that ends with a later packet.
    Packet(RocePacket),
    /// A packet of TCP that says something about the path.
    TcpPacket(TcpPacket),
    /// Packets that were sent before.
    SentAgain {
        /// The number of the first.
        #[serde(serialize_with = "fields::psn")]
        psn: Psn,
        /// How many.
        packets: u64,
    },
    /// Packets of RoCE are not in the capture.
    MissingPackets {
        /// How many.
        packets: u64,
    },
    /// Bytes are not in the capture.
    Gap {
        /// How many.
        bytes: u64,
    },
    /// Bytes were skipped until the next FPDU was found.
    InStep {
        /// How many.
        passed_over: u64,
    },
    /// A remark, such as that a stream is not decoded further.
    Note {
        /// The remark.
        note: &'static str,
    },
    /// The TCP connection ends.
    Closed {
        /// Whether by RST.
        reset: bool,
    },
}

impl EventKind {
    /// Returns the kind of event, as in JSON.
    const fn event_name(&self) -> &'static str {
        match self {
            Self::Stream { .. } => "stream",
            Self::Packet(_) => "packet",
            Self::TcpPacket(_) => "tcp_packet",
            Self::SentAgain { .. } => "sent_again",
            Self::MissingPackets { .. } => "missing_packets",
            Self::Gap { .. } => "gap",
            Self::InStep { .. } => "in_step",
            Self::Note { .. } => "note",
            Self::Closed { .. } => "closed",
            _ => "message",
        }
    }

    /// Returns the name of a message; `None` for other events.
    pub fn name(&self) -> Option<&'static str> {
        let of_kind = |kind: &FrameKind| match kind {
            FrameKind::Request => "MPA Request",
            FrameKind::Reply => "MPA Reply",
        };
        Some(match self {
            Self::Startup(frame) => of_kind(&frame.kind),
            Self::BadStartup { kind, .. } => of_kind(kind),
            Self::BadFpdu { .. } => "FPDU",
            Self::ReadyToReceive { .. } => "Ready to Receive",
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
            Self::RoceReadResponse(_) => "RDMA Read Response",
            Self::Nak { .. } => "NAK",
            Self::RnrNak { .. } => "RNR NAK",
            Self::BadPacket { .. } => "RoCE packet",
            Self::Packet(_)
            | Self::TcpPacket(_)
            | Self::SentAgain { .. }
            | Self::MissingPackets { .. }
            | Self::Stream { .. }
            | Self::Gap { .. }
            | Self::InStep { .. }
            | Self::Note { .. }
            | Self::Closed { .. } => return None,
        })
    }
}

/// The fields of a Data Transfer as on the wire, valid or not.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct DataTransfer {
    /// CreditsRequested.
    pub credits_requested: u16,
    /// CreditsGranted.
    pub credits_granted: u16,
    /// Flags.
    pub flags: u16,
    /// Reserved.
    #[serde(skip)]
    pub reserved: u16,
    /// RemainingDataLength.
    pub remaining_data_length: u32,
    /// DataOffset.
    pub data_offset: u32,
    /// DataLength.
    pub data_length: u32,
    /// The kind of the payload.
    #[serde(flatten)]
    pub payload: Payload,
    /// The token of the receiver that it invalidates.
    pub invalidated: Option<u32>,
}

/// All segments of an RDMA Write or a Read Response.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Tagged {
    /// The STag of the memory.
    pub stag: u32,
    /// The offset of the first segment in the memory.
    pub tagged_offset: u64,
    /// Bytes of data.
    pub length: u64,
    /// DDP segments.
    pub segments: u64,
}

/// All packets of an RDMA Write or a Read Response over RoCE.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Region {
    /// The address and the length of the whole operation, from the first packet of a Write or from the Read
    /// Request; `None` if that is not in the capture.
    #[serde(flatten, serialize_with = "fields::optional_reth")]
    pub reth: Option<Reth>,
    /// Bytes of data in the capture.
    pub length: u64,
    /// Packets that carry them.
    pub packets: u64,
}

impl Region {
    /// Returns a part of an operation, of one packet.
    pub(crate) fn of(reth: Option<Reth>, length: u32) -> Self {
        Self {
            reth,
            length: length.into(),
            packets: 1,
        }
    }
}

/// A packet of RoCE.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RocePacket {
    /// The Base Transport Header.
    #[serde(flatten, serialize_with = "fields::bth")]
    pub bth: Bth,
    /// Bytes of payload.
    pub length: u32,
    /// The RDMA Extended Transport Header.
    #[serde(flatten, serialize_with = "fields::optional_reth")]
    pub reth: Option<Reth>,
    /// The ACK Extended Transport Header.
    #[serde(flatten, serialize_with = "fields::optional_aeth")]
    pub aeth: Option<Aeth>,
    /// The R_Key that it invalidates.
    pub invalidated: Option<u32>,
    /// Whether the checksum is right.
    pub icrc: Icrc,
    /// Whether a switch has marked the packet for congestion: the ECN field of its IP header is CE.
    pub congestion_marked: bool,
    /// Whether the packet is a repetition.
    #[serde(flatten)]
    pub repeated: Repeated,
}

/// The ICRC of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icrc {
    /// The checksum fits the packet.
    Right,
    /// The checksum does not fit the packet.
    Wrong,
    /// The checksum is not in the capture, or depends on headers that are not read.
    Unknown,
}

/// Serialises to whether it is right; to `null` if it was not checked.
impl Serialize for Icrc {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Right => serializer.serialize_bool(true),
            Self::Wrong => serializer.serialize_bool(false),
            Self::Unknown => serializer.serialize_none(),
        }
    }
}

/// Whether the capture has a packet more than once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeated {
    /// The packet is the first one with its number.
    No,
    /// The sender sent the packet again.
    SentAgain,
    /// The network mirrored it more than once, so nothing was sent again.
    CapturedAgain,
}

impl Serialize for Repeated {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        object!(serializer, {
            sent_again: *self == Self::SentAgain,
            captured_again: *self == Self::CapturedAgain,
        })
    }
}

/// The kind of a payload, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// There is none, or its kind cannot be known.
    None,
    /// A continuation of a message that began earlier.
    Continued,
    /// A message of SMB2.
    Smb2 {
        /// The command of the message.
        command: Command,
        /// Whether it is a response.
        response: bool,
        /// How the data of a READ or WRITE moves, if it is not in the message.
        by_rdma: Option<ByRdma>,
    },
    /// The SMB2 header of a message is not in the capture.
    Smb2Headless,
    /// An encrypted message of SMB3.
    Encrypted,
    /// A compressed message of SMB3.
    Compressed,
    /// A message of SMB1.
    Smb1,
    /// Bytes of another protocol.
    Other,
}

impl Payload {
    /// Describes it; `None` if nothing is known of it.
    pub fn words(&self) -> Option<String> {
        Some(match self {
            Self::None | Self::Other => return None,
            Self::Continued => "continued".into(),
            Self::Smb2 {
                command, response, ..
            } => {
                let kind = if *response { "response" } else { "request" };
                format!("SMB2 {command} {kind}")
            }
            Self::Smb2Headless => "SMB2".into(),
            Self::Encrypted => "SMB3 encrypted".into(),
            Self::Compressed => "SMB3 compressed".into(),
            Self::Smb1 => "SMB1".into(),
        })
    }

    /// Returns how the data of a READ or WRITE moves, if it is not in the message.
    pub const fn by_rdma(&self) -> Option<ByRdma> {
        match self {
            Self::Smb2 { by_rdma, .. } => *by_rdma,
            _ => None,
        }
    }
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let by_rdma = self.by_rdma();
        object!(serializer, {
            payload: self.words(),
            channel: by_rdma.map(|by_rdma| by_rdma.channel_name()),
            channel_bytes: by_rdma.map(|by_rdma| by_rdma.length),
        })
    }
}

/// How the data of a READ or WRITE request moves if it is not in the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByRdma {
    /// The kind of buffer descriptors in the request.
    pub channel: Channel,
    /// Bytes of data.
    pub length: u32,
}

impl ByRdma {
    /// Returns the name of the channel, or its number.
    pub fn channel_name(&self) -> String {
        match self.channel.name() {
            Some(name) => name.into(),
            None => self.channel.to_string(),
        }
    }
}

/// Returns a broken rule.
pub(super) fn broken(rule: &'static str, how: impl Into<String>) -> Broken {
    let how = how.into();
    Broken { rule, how }
}
