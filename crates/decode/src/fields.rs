//! Serialises messages and headers of the library `smbdirect`, whose types have no JSON form of their own.

use std::fmt::{Display, Write};

use serde::{Serializer, ser::SerializeMap};
use smbdirect::{
    rdma::{
        iwarp::{
            mpa::StartupFrame,
            rdmap::{ReadRequest, Terminate},
        },
        roce::{
            Psn,
            cm::{Message, RdmaCmHeader},
            packet::{Aeth, Bth, NakCode, Reth, Syndrome},
        },
    },
    wire::{NegotiateRequest, NegotiateResponse},
};

use super::names::{nak_name, opcode_name, private_data_used, rnr_wait_ms};

/// Adds fields to an object.
macro_rules! entries {
    ($object:expr, { $($name:ident: $value:expr),* $(,)? }) => {
        $($object.serialize_entry(stringify!($name), &$value)?;)*
    };
}

/// Serialises fields as an object.
macro_rules! object {
    ($serializer:expr, $fields:tt) => {{
        let mut object = $serializer.serialize_map(None)?;
        $crate::fields::entries!(object, $fields);
        object.end()
    }};
}

pub(super) use {entries, object};

pub(super) fn words<S: Serializer>(value: &impl Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

pub(super) fn psn<S: Serializer>(psn: &Psn, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u32(psn.value())
}

pub(super) fn nak<S: Serializer>(code: &NakCode, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(nak_name(*code))
}

pub(super) fn rnr_wait<S: Serializer>(timer: &u8, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(rnr_wait_ms(*timer))
}

pub(super) fn startup<S: Serializer>(frame: &StartupFrame, to: S) -> Result<S::Ok, S::Error> {
    let enhanced = frame.enhanced.unwrap_or_default();
    object!(to, {
        revision: frame.revision,
        markers: frame.markers,
        crc: frame.crc,
        rejected: frame.rejected,
        ird: frame.enhanced.map(|enhanced| enhanced.ird),
        ord: frame.enhanced.map(|enhanced| enhanced.ord),
        peer_to_peer: enhanced.peer_to_peer,
        rtr_send: enhanced.rtr_send,
        rtr_write: enhanced.rtr_write,
        rtr_read: enhanced.rtr_read,
        private_data: hexadecimal(&frame.private_data),
    })
}

pub(super) fn read_request<S: Serializer>(request: &ReadRequest, to: S) -> Result<S::Ok, S::Error> {
    object!(to, {
        read_message_size: request.read_message_size,
        source_stag: request.source_stag,
        source_tagged_offset: request.source_tagged_offset,
        sink_stag: request.sink_stag,
        sink_tagged_offset: request.sink_tagged_offset,
    })
}

pub(super) fn terminate<S: Serializer>(terminate: &Terminate, to: S) -> Result<S::Ok, S::Error> {
    let code = terminate.code();
    object!(to, {
        layer: code.layer,
        error_type: code.error_type,
        error_code: code.error_code,
        words: terminate.to_string(),
    })
}

pub(super) fn negotiate_request<S: Serializer>(
    request: &NegotiateRequest,
    to: S,
) -> Result<S::Ok, S::Error> {
    object!(to, {
        min_version: request.min_version,
        max_version: request.max_version,
        credits_requested: request.credits_requested,
        preferred_send_size: request.preferred_send_size,
        max_receive_size: request.max_receive_size,
        max_fragmented_size: request.max_fragmented_size,
    })
}

pub(super) fn negotiate_response<S: Serializer>(
    response: &NegotiateResponse,
    to: S,
) -> Result<S::Ok, S::Error> {
    object!(to, {
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
    })
}

/// Serialises a message of the communication manager.
pub(super) fn cm<S: Serializer>(message: &Message, again: &bool, to: S) -> Result<S::Ok, S::Error> {
    let mut object = to.serialize_map(None)?;
    let private_data = match message {
        Message::ConnectRequest(request) => {
            let port = request.service_id.port();
            let data = request.private_data.as_bytes();
            let header = port.and_then(|_| RdmaCmHeader::decode(data));
            entries!(object, {
                service_id: request.service_id.0,
                port: port,
                source_port: header.map(|header| header.source_port),
                queue_pair: request.queue_pair,
                psn: request.starting_psn,
                path_mtu: request.path_mtu.map(|mtu| mtu.bytes()),
                ird: request.responder_resources,
                ord: request.initiator_depth,
                retry_count: request.retry_count,
                rnr_retry_count: request.rnr_retry_count,
            });
            &data[header.map_or(0, |_| RdmaCmHeader::LENGTH)..]
        }
        Message::ConnectReply(reply) => {
            entries!(object, {
                queue_pair: reply.queue_pair,
                psn: reply.starting_psn,
                ird: reply.responder_resources,
                ord: reply.initiator_depth,
                rnr_retry_count: reply.rnr_retry_count,
            });
            reply.private_data.as_bytes()
        }
        Message::ReadyToUse(message) => message.private_data.as_bytes(),
        Message::DisconnectRequest(message) => {
            entries!(object, { queue_pair: message.remote_queue_pair });
            message.private_data.as_bytes()
        }
        Message::DisconnectReply(message) => message.private_data.as_bytes(),
        Message::Reject(message) => {
            entries!(object, {
                reason: message.reason.0,
                reason_text: message.reason.text(),
            });
            message.private_data.as_bytes()
        }
        Message::MessageReceiptAcknowledgment(message) => {
            let timeout = message.service_timeout.duration();
            entries!(object, { service_timeout_seconds: timeout.as_secs_f64() });
            message.private_data.as_bytes()
        }
    };
    // The length of private data is not transmitted.
    let private_data = hexadecimal(private_data_used(private_data));
    entries!(object, { again: again, private_data: private_data });
    object.end()
}

pub(super) fn bth<S: Serializer>(bth: &Bth, to: S) -> Result<S::Ok, S::Error> {
    object!(to, {
        opcode: bth.opcode as u8,
        name: opcode_name(bth.opcode),
        queue_pair: bth.destination_qp,
        psn: bth.psn.value(),
        ack_request: bth.ack_request,
        solicited_event: bth.solicited_event,
        p_key: bth.p_key,
    })
}

pub(super) fn reth<S: Serializer>(reth: &Reth, to: S) -> Result<S::Ok, S::Error> {
    optional_reth(&Some(*reth), to)
}

pub(super) fn optional_reth<S: Serializer>(reth: &Option<Reth>, to: S) -> Result<S::Ok, S::Error> {
    object!(to, {
        r_key: reth.map(|reth| reth.r_key),
        virtual_address: reth.map(|reth| reth.virtual_address),
        dma_length: reth.map(|reth| reth.length),
    })
}

pub(super) fn optional_aeth<S: Serializer>(aeth: &Option<Aeth>, to: S) -> Result<S::Ok, S::Error> {
    let name = |syndrome| match syndrome {
        Syndrome::Ack { .. } => "ACK",
        Syndrome::RnrNak { .. } => "RNR NAK",
        Syndrome::Nak(code) => nak_name(code),
    };
    object!(to, {
        syndrome: aeth.map(|aeth| aeth.syndrome.encode()),
        acknowledgement: aeth.map(|aeth| name(aeth.syndrome)),
        msn: aeth.map(|aeth| aeth.message_sequence_number),
    })
}

fn hexadecimal(data: &[u8]) -> String {
    let mut text = String::new();
    for byte in data {
        let _ = write!(text, "{byte:02x}");
    }
    text
}
