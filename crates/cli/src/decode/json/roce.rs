//! The objects of the messages and packets of RoCE.

use std::fmt::Write;

use serde::Serialize;
use smbdirect::rdma::roce::{
    cm::{Message as Cm, RdmaCmHeader},
    packet::Syndrome,
};
use smbdirect_decode::{Icrc, Repeated, RocePacket, What};

use super::super::text::roce::{nak, opcode_name, used, wait};

/// A message of RoCE, with its fields.
#[derive(Debug, Serialize)]
#[serde(tag = "message")]
pub(in super::super) enum Message<'a> {
    #[serde(rename = "CM REQ")]
    ConnectRequest {
        service_id: u64,
        port: Option<u16>,
        source_port: Option<u16>,
        queue_pair: u32,
        psn: u32,
        path_mtu: Option<usize>,
        ird: u8,
        ord: u8,
        retry_count: u8,
        rnr_retry_count: u8,
        again: bool,
        private_data: String,
    },
    #[serde(rename = "CM REP")]
    ConnectReply {
        queue_pair: u32,
        psn: u32,
        ird: u8,
        ord: u8,
        rnr_retry_count: u8,
        again: bool,
        private_data: String,
    },
    #[serde(rename = "CM RTU")]
    ReadyToUse { again: bool, private_data: String },
    #[serde(rename = "CM DREQ")]
    DisconnectRequest {
        queue_pair: u32,
        again: bool,
        private_data: String,
    },
    #[serde(rename = "CM DREP")]
    DisconnectReply { again: bool, private_data: String },
    #[serde(rename = "CM REJ")]
    Reject {
        reason: u16,
        reason_text: &'a str,
        again: bool,
        private_data: String,
    },
    #[serde(rename = "CM MRA")]
    Receipt {
        service_timeout_seconds: f64,
        again: bool,
        private_data: String,
    },
    #[serde(rename = "RDMA Write")]
    Write {
        r_key: Option<u32>,
        virtual_address: Option<u64>,
        dma_length: Option<u32>,
        length: u64,
        packets: u64,
    },
    #[serde(rename = "RDMA Read Request")]
    ReadRequest {
        r_key: u32,
        virtual_address: u64,
        dma_length: u32,
    },
    #[serde(rename = "RDMA Read Response")]
    ReadResponse {
        r_key: Option<u32>,
        virtual_address: Option<u64>,
        dma_length: Option<u32>,
        length: u64,
        packets: u64,
    },
    #[serde(rename = "NAK")]
    Nak { code: &'a str, psn: u32 },
    #[serde(rename = "RNR NAK")]
    RnrNak { wait_ms: f64, psn: u32 },
    #[serde(rename = "RoCE packet")]
    BadPacket { opcode: u8 },
}

/// A packet.
#[derive(Debug, Serialize)]
pub(in super::super) struct Packet {
    opcode: u8,
    name: &'static str,
    queue_pair: u32,
    psn: u32,
    ack_request: bool,
    solicited_event: bool,
    p_key: u16,
    length: u32,
    /// Of the RETH.
    r_key: Option<u32>,
    virtual_address: Option<u64>,
    dma_length: Option<u32>,
    /// Of the AETH.
    syndrome: Option<u8>,
    acknowledgement: Option<&'static str>,
    msn: Option<u32>,
    /// Of the IETH.
    invalidated: Option<u32>,
    /// Whether the ICRC is right; `null` if it was not checked.
    icrc: Option<bool>,
    sent_again: bool,
    captured_again: bool,
}

impl<'a> Message<'a> {
    /// Returns the object of a message of RoCE.
    pub(super) fn of(what: &'a What) -> Option<Self> {
        Some(match what {
            What::Cm { message, again } => Self::cm(message, *again),
            What::RoceWrite(region) => Self::Write {
                r_key: region.reth.map(|reth| reth.r_key),
                virtual_address: region.reth.map(|reth| reth.virtual_address),
                dma_length: region.reth.map(|reth| reth.length),
                length: region.length,
                packets: region.packets,
            },
            What::RoceReadRequest(reth) => Self::ReadRequest {
                r_key: reth.r_key,
                virtual_address: reth.virtual_address,
                dma_length: reth.length,
            },
            What::RoceReadResponse {
                request,
                length,
                packets,
            } => Self::ReadResponse {
                r_key: request.map(|reth| reth.r_key),
                virtual_address: request.map(|reth| reth.virtual_address),
                dma_length: request.map(|reth| reth.length),
                length: *length,
                packets: *packets,
            },
            What::Nak { code, psn } => Self::Nak {
                code: nak(*code),
                psn: psn.value(),
            },
            What::RnrNak { timer, psn } => Self::RnrNak {
                wait_ms: wait(*timer),
                psn: psn.value(),
            },
            What::BadPacket { opcode } => Self::BadPacket { opcode: *opcode },
            _ => return None,
        })
    }

    fn cm(message: &Cm, again: bool) -> Self {
        match message {
            Cm::ConnectRequest(request) => {
                let port = request.service_id.port();
                let data = request.private_data.as_bytes();
                let header = port.and_then(|_| RdmaCmHeader::decode(data));
                let start = header.map_or(0, |_| RdmaCmHeader::LENGTH);
                Self::ConnectRequest {
                    service_id: request.service_id.0,
                    port,
                    source_port: header.map(|header| header.source_port),
                    queue_pair: request.queue_pair,
                    psn: request.starting_psn,
                    path_mtu: request.path_mtu.map(|mtu| mtu.bytes()),
                    ird: request.responder_resources,
                    ord: request.initiator_depth,
                    retry_count: request.retry_count,
                    rnr_retry_count: request.rnr_retry_count,
                    again,
                    private_data: hexadecimal(&data[start..]),
                }
            }
            Cm::ConnectReply(reply) => Self::ConnectReply {
                queue_pair: reply.queue_pair,
                psn: reply.starting_psn,
                ird: reply.responder_resources,
                ord: reply.initiator_depth,
                rnr_retry_count: reply.rnr_retry_count,
                again,
                private_data: hexadecimal(reply.private_data.as_bytes()),
            },
            Cm::ReadyToUse(message) => Self::ReadyToUse {
                again,
                private_data: hexadecimal(message.private_data.as_bytes()),
            },
            Cm::DisconnectRequest(message) => Self::DisconnectRequest {
                queue_pair: message.remote_queue_pair,
                again,
                private_data: hexadecimal(message.private_data.as_bytes()),
            },
            Cm::DisconnectReply(message) => Self::DisconnectReply {
                again,
                private_data: hexadecimal(message.private_data.as_bytes()),
            },
            Cm::Reject(message) => Self::Reject {
                reason: message.reason.0,
                reason_text: message.reason.text(),
                again,
                private_data: hexadecimal(message.private_data.as_bytes()),
            },
            Cm::MessageReceiptAcknowledgment(message) => Self::Receipt {
                service_timeout_seconds: message.service_timeout.duration().as_secs_f64(),
                again,
                private_data: hexadecimal(message.private_data.as_bytes()),
            },
        }
    }
}

impl From<&RocePacket> for Packet {
    fn from(packet: &RocePacket) -> Self {
        let (bth, reth) = (&packet.bth, packet.reth);
        let syndrome = packet.aeth.map(|aeth| aeth.syndrome);
        Self {
            opcode: bth.opcode as u8,
            name: opcode_name(bth.opcode),
            queue_pair: bth.destination_qp,
            psn: bth.psn.value(),
            ack_request: bth.ack_request,
            solicited_event: bth.solicited_event,
            p_key: bth.p_key,
            length: packet.length,
            r_key: reth.map(|reth| reth.r_key),
            virtual_address: reth.map(|reth| reth.virtual_address),
            dma_length: reth.map(|reth| reth.length),
            syndrome: syndrome.map(Syndrome::encode),
            acknowledgement: syndrome.map(|syndrome| match syndrome {
                Syndrome::Ack { .. } => "ACK",
                Syndrome::RnrNak { .. } => "RNR NAK",
                Syndrome::Nak(code) => nak(code),
            }),
            msn: packet.aeth.map(|aeth| aeth.message_sequence_number),
            invalidated: packet.invalidated,
            icrc: match packet.icrc {
                Icrc::Right => Some(true),
                Icrc::Wrong => Some(false),
                Icrc::Unknown => None,
            },
            sent_again: packet.repeated == Repeated::SentAgain,
            captured_again: packet.repeated == Repeated::CapturedAgain,
        }
    }
}

/// Returns private data in hexadecimal digits, without the zeros at its end: its length is not
/// transmitted.
fn hexadecimal(data: &[u8]) -> String {
    let mut text = String::new();
    for byte in used(data) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
