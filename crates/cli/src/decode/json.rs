//! Prints events as objects for programs.

mod roce;

use std::{
    collections::BTreeMap,
    fmt::Write,
    net::{IpAddr, SocketAddr},
};

use serde::Serialize;
use smbdirect::rdma::iwarp::mpa::StartupFrame;
use smbdirect_decode::{
    ByRdma, Counts, End, Event, Payload, Sender, Tagged, What, text as rule_text,
};

use super::{
    summary::{RoceTotals, Summary},
    text::{channel_name, payload},
};

/// The object of one line.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Line<'a> {
    Stream {
        stream: u32,
        transport: &'a str,
        initiator: Address,
        responder: Address,
        /// The queue pairs of RoCE, as far as they are known.
        initiator_queue_pair: Option<u32>,
        responder_queue_pair: Option<u32>,
        /// The port that the initiator of a RoCE connection asked for.
        port: Option<u16>,
        /// Whether it is known which of the two connected.
        roles_known: bool,
        from_start: bool,
    },
    Message {
        #[serde(flatten)]
        place: Place,
        #[serde(flatten)]
        message: Message<'a>,
        initiator_credits: Option<u32>,
        responder_credits: Option<u32>,
        broken: Vec<Broken<'a>>,
    },
    Gap {
        #[serde(flatten)]
        place: Place,
        bytes: u64,
    },
    InStep {
        #[serde(flatten)]
        place: Place,
        passed_over: u64,
    },
    /// Packets of RoCE that are not in the capture.
    MissingPackets {
        #[serde(flatten)]
        place: Place,
        packets: u64,
    },
    /// Packets of RoCE that were sent again.
    SentAgain {
        #[serde(flatten)]
        place: Place,
        psn: u32,
        packets: u64,
    },
    /// A packet of RoCE.
    Packet {
        #[serde(flatten)]
        place: Place,
        #[serde(flatten)]
        packet: roce::Packet,
    },
    Note {
        #[serde(flatten)]
        place: Place,
        note: &'a str,
        broken: Vec<Broken<'a>>,
    },
    Closed {
        #[serde(flatten)]
        place: Place,
        reset: bool,
        broken: Vec<Broken<'a>>,
    },
    Summary {
        packets: u64,
        tcp_packets: u64,
        roce_packets: u64,
        /// Packets of RoCEv1 among them.
        rocev1_packets: u64,
        /// Packets of RoCE whose ICRC is wrong.
        roce_wrong_icrc: u64,
        /// Packets of RoCE that were not decoded.
        roce_undecoded: u64,
        roce_congestion_notifications: u64,
        /// Connections of RoCE that do not show SMB Direct.
        roce_other_connections: u64,
        streams: u64,
        messages: &'a BTreeMap<&'static str, u64>,
        payload_bytes: u64,
        written_bytes: u64,
        read_bytes: u64,
        missing_bytes: u64,
        missing_packets: u64,
        /// Packets by what is not understood about them.
        not_understood: &'a BTreeMap<String, u64>,
        lowest_credits: Vec<LowestCredits>,
        roce: Vec<RoceStream>,
        broken: Vec<BrokenRule<'a>>,
    },
}

/// The address of an end, with its port on TCP.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Address {
    Tcp(SocketAddr),
    Roce(IpAddr),
}

/// The packets of a RoCE connection.
#[derive(Debug, Serialize)]
pub(super) struct RoceStream {
    stream: u32,
    #[serde(flatten)]
    totals: RoceTotals,
}

/// The place of a message in the capture.
#[derive(Debug, Serialize)]
pub(super) struct Place {
    stream: u32,
    frame: u64,
    seconds: f64,
    from: &'static str,
}

#[derive(Debug, Serialize)]
pub(super) struct Broken<'a> {
    rule: &'a str,
    how: &'a str,
}

#[derive(Debug, Serialize)]
pub(super) struct LowestCredits {
    stream: u32,
    initiator: Option<u32>,
    responder: Option<u32>,
}

#[derive(Debug, Serialize)]
pub(super) struct BrokenRule<'a> {
    rule: &'a str,
    text: &'a str,
    times: u64,
    stream: u32,
    frame: u64,
    by: &'a str,
}

/// A message, with its fields.
#[derive(Debug, Serialize)]
#[serde(tag = "message")]
pub(super) enum Message<'a> {
    #[serde(rename = "MPA Request")]
    MpaRequest(Startup),
    #[serde(rename = "MPA Reply")]
    MpaReply(Startup),
    #[serde(rename = "MPA frame")]
    BadStartup { error: String },
    #[serde(rename = "FPDU")]
    BadFpdu { ulpdu_length: u16 },
    #[serde(rename = "Ready to Receive")]
    ReadyToReceive { by: &'a str },
    #[serde(rename = "RDMA Write")]
    Write(Placed),
    #[serde(rename = "RDMA Read Response")]
    ReadResponse(Placed),
    #[serde(rename = "RDMA Read Request")]
    ReadRequest {
        read_message_size: u32,
        source_stag: u32,
        source_tagged_offset: u64,
        sink_stag: u32,
        sink_tagged_offset: u64,
    },
    Terminate {
        layer: u8,
        error_type: u8,
        error_code: u8,
        words: String,
    },
    #[serde(rename = "Negotiate Request")]
    NegotiateRequest {
        min_version: u16,
        max_version: u16,
        credits_requested: u16,
        preferred_send_size: u32,
        max_receive_size: u32,
        max_fragmented_size: u32,
    },
    #[serde(rename = "Negotiate Response")]
    NegotiateResponse {
        min_version: u16,
        max_version: u16,
        negotiated_version: u16,
        credits_requested: u16,
        credits_granted: u16,
        status: u32,
        max_read_write_size: u32,
        preferred_send_size: u32,
        max_receive_size: u32,
        max_fragmented_size: u32,
    },
    #[serde(rename = "Data Transfer")]
    DataTransfer {
        credits_requested: u16,
        credits_granted: u16,
        flags: u16,
        remaining_data_length: u32,
        data_offset: u32,
        data_length: u32,
        payload: Option<String>,
        /// The channel of an SMB2 READ or WRITE request whose data moves by RDMA.
        channel: Option<String>,
        channel_bytes: Option<u32>,
        invalidated: Option<u32>,
    },
    #[serde(rename = "without fields")]
    Headless { name: &'a str, length: u64 },
    #[serde(untagged)]
    Roce(roce::Message<'a>),
}

#[derive(Debug, Serialize)]
pub(super) struct Startup {
    revision: u8,
    markers: bool,
    crc: bool,
    rejected: bool,
    ird: Option<u16>,
    ord: Option<u16>,
    peer_to_peer: bool,
    rtr_send: bool,
    rtr_write: bool,
    rtr_read: bool,
    /// Private data in hexadecimal digits, without the enhanced block.
    private_data: String,
}

#[derive(Debug, Serialize)]
pub(super) struct Placed {
    stag: u32,
    tagged_offset: u64,
    length: u64,
    segments: u64,
}

impl<'a> Line<'a> {
    /// Returns the object of an event.
    pub(super) fn of(event: &'a Event, seconds: f64) -> Self {
        let place = Place {
            stream: event.stream,
            frame: event.place.frame,
            seconds,
            from: sender(event.from),
        };
        let broken = event.broken.iter().map(|broken| Broken {
            rule: broken.rule,
            how: &broken.how,
        });
        let broken = broken.collect();
        match &event.what {
            What::Stream { ends, whole } => Self::stream(event, *ends, *whole),
            What::MissingPackets(packets) => Self::MissingPackets {
                place,
                packets: *packets,
            },
            What::SentAgain { psn, packets } => Self::SentAgain {
                place,
                psn: psn.value(),
                packets: *packets,
            },
            What::Packet(packet) => Self::Packet {
                place,
                packet: packet.into(),
            },
            What::Gap(bytes) => Self::Gap {
                place,
                bytes: *bytes,
            },
            What::InStep(bytes) => Self::InStep {
                place,
                passed_over: *bytes,
            },
            What::Note(note) => Self::Note {
                place,
                note,
                broken,
            },
            What::Closed { reset } => Self::Closed {
                place,
                reset: *reset,
                broken,
            },
            what => Self::Message {
                place,
                message: Message::of(what),
                initiator_credits: event.credits[0],
                responder_credits: event.credits[1],
                broken,
            },
        }
    }

    fn stream(event: &Event, ends: [End; 2], from_start: bool) -> Self {
        let address = |end| match end {
            End::Tcp(address) => Address::Tcp(address),
            End::Roce { address, .. } => Address::Roce(address),
        };
        let queue_pair = |end| match end {
            End::Tcp(_) => None,
            End::Roce { queue_pair, .. } => queue_pair,
        };
        let [initiator, responder] = ends;
        let (transport, port) = match responder {
            End::Tcp(_) => ("iWARP", None),
            End::Roce { port, .. } => ("RoCE", port),
        };
        Self::Stream {
            stream: event.stream,
            transport,
            initiator: address(initiator),
            responder: address(responder),
            initiator_queue_pair: queue_pair(initiator),
            responder_queue_pair: queue_pair(responder),
            port,
            roles_known: !matches!(event.from, Sender::A | Sender::B),
            from_start,
        }
    }

    /// Returns the last object.
    pub(super) fn summary(summary: &'a Summary, counts: &'a Counts) -> Self {
        let broken = summary.broken.iter().map(|(rule, broken)| BrokenRule {
            rule,
            text: rule_text(rule),
            times: broken.times,
            stream: broken.stream,
            frame: broken.frame,
            by: sender(broken.by),
        });
        let lowest = summary.lowest_credits.iter();
        let lowest = lowest.map(|(&stream, &[initiator, responder])| LowestCredits {
            stream,
            initiator,
            responder,
        });
        Self::Summary {
            packets: counts.packets,
            tcp_packets: counts.tcp,
            roce_packets: counts.roce.packets,
            rocev1_packets: counts.roce.v1,
            roce_wrong_icrc: counts.roce.wrong_icrc,
            roce_undecoded: counts.roce.undecoded,
            roce_congestion_notifications: counts.roce.congestion,
            roce_other_connections: counts.roce.other_connections,
            streams: summary.streams,
            messages: &summary.messages,
            payload_bytes: summary.payload_bytes,
            written_bytes: summary.written_bytes,
            read_bytes: summary.read_bytes,
            missing_bytes: summary.missing_bytes,
            missing_packets: summary.roce.values().map(|roce| roce.missing).sum(),
            not_understood: &counts.unread,
            lowest_credits: lowest.collect(),
            roce: summary
                .roce
                .iter()
                .map(|(&stream, &totals)| RoceStream { stream, totals })
                .collect(),
            broken: broken.collect(),
        }
    }
}

impl<'a> Message<'a> {
    fn of(what: &'a What) -> Self {
        match what {
            What::Startup(frame) => match frame.kind {
                smbdirect::rdma::iwarp::mpa::FrameKind::Request => Self::MpaRequest(frame.into()),
                smbdirect::rdma::iwarp::mpa::FrameKind::Reply => Self::MpaReply(frame.into()),
            },
            What::BadStartup { error, .. } => Self::BadStartup {
                error: error.to_string(),
            },
            What::BadFpdu { ulpdu_length } => Self::BadFpdu {
                ulpdu_length: *ulpdu_length,
            },
            What::ReadyToReceive(by) => Self::ReadyToReceive { by },
            What::Write(tagged) => Self::Write(tagged.into()),
            What::ReadResponse(tagged) => Self::ReadResponse(tagged.into()),
            What::ReadRequest(request) => Self::ReadRequest {
                read_message_size: request.read_message_size,
                source_stag: request.source_stag,
                source_tagged_offset: request.source_tagged_offset,
                sink_stag: request.sink_stag,
                sink_tagged_offset: request.sink_tagged_offset,
            },
            What::Terminate(terminate) => Self::Terminate {
                layer: terminate.code().layer,
                error_type: terminate.code().error_type,
                error_code: terminate.code().error_code,
                words: terminate.to_string(),
            },
            What::NegotiateRequest(request) => Self::NegotiateRequest {
                min_version: request.min_version,
                max_version: request.max_version,
                credits_requested: request.credits_requested,
                preferred_send_size: request.preferred_send_size,
                max_receive_size: request.max_receive_size,
                max_fragmented_size: request.max_fragmented_size,
            },
            What::NegotiateResponse(response) => Self::NegotiateResponse {
                min_version: response.min_version,
                max_version: response.max_version,
                negotiated_version: response.negotiated_version,
                credits_requested: response.credits_requested,
                credits_granted: response.credits_granted,
                status: response.status.0,
                max_read_write_size: response.max_read_write_size,
                preferred_send_size: response.preferred_send_size,
                max_receive_size: response.max_receive_size,
                max_fragmented_size: response.max_fragmented_size,
            },
            What::DataTransfer(transfer) => Self::DataTransfer {
                credits_requested: transfer.credits_requested,
                credits_granted: transfer.credits_granted,
                flags: transfer.flags,
                remaining_data_length: transfer.remaining_data_length,
                data_offset: transfer.data_offset,
                data_length: transfer.data_length,
                payload: payload(transfer.payload),
                channel: by_rdma(transfer.payload).map(|by_rdma| channel_name(by_rdma.channel)),
                channel_bytes: by_rdma(transfer.payload).map(|by_rdma| by_rdma.length),
                invalidated: transfer.invalidated,
            },
            What::Headless { name, length } => Self::Headless {
                name,
                length: *length,
            },
            what => match roce::Message::of(what) {
                Some(message) => Self::Roce(message),
                None => unreachable!("they have lines of their own"),
            },
        }
    }
}

const fn by_rdma(payload: Payload) -> Option<ByRdma> {
    match payload {
        Payload::Smb2 { by_rdma, .. } => by_rdma,
        _ => None,
    }
}

const fn sender(from: Sender) -> &'static str {
    match from {
        Sender::Initiator => "initiator",
        Sender::Responder => "responder",
        Sender::A => "a",
        Sender::B => "b",
    }
}

impl From<&StartupFrame> for Startup {
    fn from(frame: &StartupFrame) -> Self {
        let enhanced = frame.enhanced.unwrap_or_default();
        let depth = |depth| frame.enhanced.map(|_| depth);
        let mut private_data = String::new();
        for byte in &frame.private_data {
            let _ = write!(private_data, "{byte:02x}");
        }
        Self {
            revision: frame.revision,
            markers: frame.markers,
            crc: frame.crc,
            rejected: frame.rejected,
            ird: depth(enhanced.ird),
            ord: depth(enhanced.ord),
            peer_to_peer: enhanced.peer_to_peer,
            rtr_send: enhanced.rtr_send,
            rtr_write: enhanced.rtr_write,
            rtr_read: enhanced.rtr_read,
            private_data,
        }
    }
}

impl From<&Tagged> for Placed {
    fn from(tagged: &Tagged) -> Self {
        Self {
            stag: tagged.stag,
            tagged_offset: tagged.tagged_offset,
            length: tagged.length,
            segments: tagged.segments,
        }
    }
}
