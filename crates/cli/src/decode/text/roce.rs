//! Describes the messages and packets of RoCE.

use std::fmt::Write;

use smbdirect::rdma::roce::{
    cm::{ConnectRequest, Message, MessageKind, RdmaCmHeader},
    packet::{Opcode, Reth, Syndrome},
};
use smbdirect_decode::{
    EventKind, Icrc, Region, Repeated, RocePacket, nak_name, opcode_name, private_data_used,
    rnr_wait_ms,
};

use crate::report::plural;

/// Describes an event of RoCE; `None` for all other events.
pub(super) fn words(kind: &EventKind) -> Option<String> {
    Some(match kind {
        EventKind::Cm { message, again } => {
            let again = if *again { ", sent again" } else { "" };
            format!("{}{again}", cm(message))
        }
        EventKind::RoceWrite(region) => write(region),
        EventKind::RoceReadRequest(reth) => {
            format!("{} from {}", bytes(reth.length.into()), place(reth))
        }
        EventKind::RoceReadResponse(region) => {
            let (length, packets) = (bytes(region.length), plural(region.packets, "packet"));
            match &region.reth {
                Some(reth) => format!("{length} from {}, {packets}", place(reth)),
                None => format!("{length}, {packets}"),
            }
        }
        EventKind::Nak { code, psn } => {
            let psn = psn.value();
            format!("{}, PSN 0x{psn:06x}", nak_name(*code))
        }
        EventKind::RnrNak { timer, psn } => format!(
            "no receive was posted, PSN 0x{:06x}, wait {} ms",
            psn.value(),
            rnr_wait_ms(*timer)
        ),
        EventKind::BadPacket { opcode } => match Opcode::decode(*opcode) {
            Ok(opcode) => format!("{}, cannot be decoded", opcode_name(opcode)),
            Err(_) => format!("opcode 0x{opcode:02x}, not read"),
        },
        _ => return None,
    })
}

/// Describes an event of RoCE that is not a message; `None` for all other events.
pub(super) fn remark(kind: &EventKind) -> Option<String> {
    Some(match kind {
        EventKind::SentAgain { psn, packets } => format!(
            "-- {} sent again, from PSN 0x{:06x}",
            plural(*packets, "packet"),
            psn.value()
        ),
        EventKind::MissingPackets { packets } => {
            let verb = if *packets == 1 { "is" } else { "are" };
            let packets = plural(*packets, "packet");
            format!("-- {packets} of this direction {verb} not in the capture")
        }
        EventKind::Packet(packet) => packet_words(packet),
        _ => return None,
    })
}

/// Describes a packet.
fn packet_words(packet: &RocePacket) -> String {
    let bth = &packet.bth;
    let mut text = format!(
        "-- {:<24} PSN 0x{:06x} QP 0x{:06x}",
        opcode_name(bth.opcode),
        bth.psn.value(),
        bth.destination_qp
    );
    if packet.length > 0 {
        let _ = write!(text, ", {}", bytes(packet.length.into()));
    }
    if let Some(reth) = &packet.reth {
        let _ = write!(text, ", {} of {}", bytes(reth.length.into()), place(reth));
    }
    if let Some(aeth) = packet.aeth {
        let syndrome = match aeth.syndrome {
            Syndrome::Ack { .. } => "ACK".to_owned(),
            Syndrome::RnrNak { timer } => format!("RNR NAK, wait {} ms", rnr_wait_ms(timer)),
            Syndrome::Nak(code) => format!("NAK {}", nak_name(code)),
        };
        let msn = aeth.message_sequence_number;
        let _ = write!(text, ", {syndrome}, MSN {msn}");
    }
    if let Some(r_key) = packet.invalidated {
        let _ = write!(text, ", invalidates 0x{r_key:08x}");
    }
    for (is_set, word) in [
        (bth.ack_request, "asks for an ACK"),
        (bth.solicited_event, "solicited"),
        (bth.fecn, "FECN"),
        (bth.becn, "BECN"),
        (packet.congestion_marked, "marked CE"),
        (packet.icrc == Icrc::Unknown, "ICRC not checked"),
        (packet.repeated == Repeated::SentAgain, "sent again"),
        (packet.repeated == Repeated::CapturedAgain, "captured again"),
    ] {
        if is_set {
            let _ = write!(text, ", {word}");
        }
    }
    text
}

fn write(region: &Region) -> String {
    let packets = plural(region.packets, "packet");
    match &region.reth {
        Some(reth) if u64::from(reth.length) == region.length => {
            format!("{} to {}, {packets}", bytes(region.length), place(reth))
        }
        Some(reth) => format!(
            "{} of {} to {}, {packets}",
            bytes(region.length),
            reth.length,
            place(reth)
        ),
        None => format!("{}, {packets}, without its beginning", bytes(region.length)),
    }
}

fn bytes(length: u64) -> String {
    plural(length, "byte")
}

fn place(reth: &Reth) -> String {
    let Reth {
        r_key,
        virtual_address,
        ..
    } = reth;
    format!("R_Key 0x{r_key:08x} address 0x{virtual_address:x}")
}

fn cm(message: &Message) -> String {
    match message {
        Message::ConnectRequest(request) => connect_request(request),
        Message::ConnectReply(reply) => {
            let mut text = format!(
                "QP 0x{:06x}, PSN 0x{:06x}, IRD {}, ORD {}",
                reply.queue_pair,
                reply.starting_psn,
                reply.responder_resources,
                reply.initiator_depth,
            );
            private_data(&mut text, reply.private_data.as_bytes());
            text
        }
        Message::ReadyToUse(message) => {
            only_private_data("the connection is ready", message.private_data.as_bytes())
        }
        Message::DisconnectRequest(message) => {
            let text = format!(
                "ends the connection of QP 0x{:06x}",
                message.remote_queue_pair
            );
            only_private_data(&text, message.private_data.as_bytes())
        }
        Message::DisconnectReply(message) => {
            only_private_data("the connection has ended", message.private_data.as_bytes())
        }
        Message::Reject(message) => {
            let text = format!(
                "rejects {}: {}",
                kind(message.rejected, "the message"),
                message.reason
            );
            only_private_data(&text, message.private_data.as_bytes())
        }
        Message::MessageReceiptAcknowledgment(message) => {
            let text = format!(
                "has {}, and answers within {:.3} s",
                kind(message.acknowledged, "the message"),
                message.service_timeout.duration().as_secs_f64()
            );
            only_private_data(&text, message.private_data.as_bytes())
        }
    }
}

const fn kind(kind: MessageKind, other: &'static str) -> &'static str {
    match kind {
        MessageKind::Request => "the REQ",
        MessageKind::Reply => "the REP",
        MessageKind::Other => other,
    }
}

fn connect_request(request: &ConnectRequest) -> String {
    let service = match request.service_id.port() {
        Some(port) => format!("port {port}"),
        None => format!("service 0x{:016x}", request.service_id.0),
    };
    let mtu = match request.path_mtu {
        Some(mtu) => mtu.bytes().to_string(),
        None => "unknown".into(),
    };
    let mut text = format!(
        "{service}, QP 0x{:06x}, PSN 0x{:06x}, path MTU {mtu}, IRD {}, ORD {}, retries {}, \
         RNR retries {}",
        request.queue_pair,
        request.starting_psn,
        request.responder_resources,
        request.initiator_depth,
        request.retry_count,
        request.rnr_retry_count,
    );
    let data = request.private_data.as_bytes();
    let header = match request.service_id.port() {
        Some(_) => RdmaCmHeader::decode(data),
        None => None,
    };
    if let Some(header) = header {
        let _ = write!(text, ", from port {}", header.source_port);
    }
    let start = header.map_or(0, |_| RdmaCmHeader::LENGTH);
    private_data(&mut text, &data[start..]);
    text
}

fn only_private_data(text: &str, data: &[u8]) -> String {
    let mut text = text.to_owned();
    private_data(&mut text, data);
    text
}

/// The bytes at the end of private data of an end of this library. One more byte follows them.
const PEER_SIGNATURE: &[u8] = b"SMBDudp";

/// Shows private data up to its last byte that is not zero: its length is not transmitted. The signature of this
/// library, which follows zeros at the end of the field, is shown by its name.
fn private_data(text: &mut String, data: &[u8]) {
    let unsigned = data
        .split_last()
        .and_then(|(_, data)| data.strip_suffix(PEER_SIGNATURE));
    let used = private_data_used(unsigned.unwrap_or(data));
    if !used.is_empty() {
        text.push_str(", private data ");
        for byte in used {
            let _ = write!(text, "{byte:02x}");
        }
    }
    if unsigned.is_some() {
        text.push_str(", the smbdirect signature");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_of_this_library_is_shown_by_its_name() {
        let mut signed = [0; 24];
        signed[16..23].copy_from_slice(PEER_SIGNATURE);
        assert_eq!(only_private_data("", &signed), ", the smbdirect signature");
        signed[..2].copy_from_slice(&[1, 0xab]);
        signed[23] = 2;
        assert_eq!(
            only_private_data("", &signed),
            ", private data 01ab, the smbdirect signature"
        );
        assert_eq!(only_private_data("", &[7, 0, 0]), ", private data 07");
    }
}
