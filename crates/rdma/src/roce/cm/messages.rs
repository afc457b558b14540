//! The CM messages other than the REQ: REP, RTU, DREQ, DREP, REJ and MRA (12.6.6 to 12.6.11).

use super::{
    body::Body,
    fields::{CmTimeout, MessageKind, RejectReason, is_queue_pair},
    private_data::PrivateData,
};

/// A REP: the passive end accepts the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectReply {
    /// The communication ID of the sender.
    pub local_communication_id: u32,
    /// The communication ID of the receiver.
    pub remote_communication_id: u32,
    /// The Q_Key of the sender; zero for a reliable connection.
    pub queue_key: u32,
    /// The queue pair of the sender, of 24 bits.
    pub queue_pair: u32,
    /// The PSN of the first request that the sender of this message expects, of 24 bits. The
    /// receiver of this message starts its requests with it.
    pub starting_psn: u32,
    /// The most RDMA Reads of the peer that the sender serves concurrently.
    pub responder_resources: u8,
    /// The most RDMA Reads that the sender has outstanding.
    pub initiator_depth: u8,
    /// How long the sender takes to acknowledge a packet.
    pub target_ack_delay: CmTimeout,
    /// Whether the sender accepted the alternate path, in 2 bits.
    pub failover_accepted: u8,
    /// Whether the sender's queue pair has end-to-end flow control.
    pub end_to_end_flow_control: bool,
    /// How often a message is sent again to a peer that is not ready; 7 is without a limit.
    pub rnr_retry_count: u8,
    /// Whether the sender's queue pair takes receives from a shared queue.
    pub shared_receive_queue: bool,
    /// The identifier of the sender's channel adapter.
    pub ca_guid: u64,
    /// The private data.
    pub private_data: PrivateData<196>,
}

impl ConnectReply {
    /// Returns the reason to reject this reply, or `None` if its fields have values that a reliable
    /// connection can have.
    pub const fn fault(&self) -> Option<RejectReason> {
        //= ROCE-12.6-03
        if is_queue_pair(self.queue_pair) && self.starting_psn >> 24 == 0 {
            None
        } else {
            Some(RejectReason::UNSUPPORTED)
        }
    }

    pub(super) fn decode(body: &Body<'_>) -> Self {
        Self {
            local_communication_id: body.u32(0),
            remote_communication_id: body.u32(4),
            queue_key: body.u32(8),
            queue_pair: body.u24(12),
            starting_psn: body.u24(20),
            responder_resources: body.u8(24),
            initiator_depth: body.u8(25),
            target_ack_delay: CmTimeout::from_exponent(body.u8(26) >> 3),
            failover_accepted: body.u8(26) >> 1 & 0x03,
            end_to_end_flow_control: body.u8(26) & 0x01 != 0,
            rnr_retry_count: body.u8(27) >> 5,
            shared_receive_queue: body.u8(27) & 0x10 != 0,
            ca_guid: u64::from_be_bytes(body.array(28)),
            private_data: PrivateData::copy_from(body.slice(36, 196)),
        }
    }

    pub(super) fn encode(&self, bytes: &mut [u8]) {
        put_ids(
            bytes,
            self.local_communication_id,
            self.remote_communication_id,
        );
        bytes[8..12].copy_from_slice(&self.queue_key.to_be_bytes());
        bytes[12..15].copy_from_slice(&self.queue_pair.to_be_bytes()[1..]);
        bytes[20..23].copy_from_slice(&self.starting_psn.to_be_bytes()[1..]);
        bytes[24] = self.responder_resources;
        bytes[25] = self.initiator_depth;
        bytes[26] = self.target_ack_delay.exponent() << 3
            | (self.failover_accepted & 0x03) << 1
            | u8::from(self.end_to_end_flow_control);
        bytes[27] = self.rnr_retry_count << 5 | u8::from(self.shared_receive_queue) << 4;
        bytes[28..36].copy_from_slice(&self.ca_guid.to_be_bytes());
        bytes[36..232].copy_from_slice(self.private_data.as_bytes());
    }
}

/// An RTU: the active end has received the REP, and the connection is established.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyToUse {
    /// The communication ID of the sender.
    pub local_communication_id: u32,
    /// The communication ID of the receiver.
    pub remote_communication_id: u32,
    /// The private data.
    pub private_data: PrivateData<224>,
}

/// A DREQ: one end disconnects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisconnectRequest {
    /// The communication ID of the sender.
    pub local_communication_id: u32,
    /// The communication ID of the receiver.
    pub remote_communication_id: u32,
    /// The queue pair of the receiver, of 24 bits.
    pub remote_queue_pair: u32,
    /// The private data.
    pub private_data: PrivateData<220>,
}

/// A DREP: the answer to a DREQ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DisconnectReply {
    /// The communication ID of the sender.
    pub local_communication_id: u32,
    /// The communication ID of the receiver.
    pub remote_communication_id: u32,
    /// The private data.
    pub private_data: PrivateData<224>,
}

/// A REJ: one end ends a connection that is not established.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reject {
    /// The communication ID of the sender, or zero if it has none.
    pub local_communication_id: u32,
    /// The communication ID of the receiver.
    pub remote_communication_id: u32,
    /// The kind of message that is rejected.
    pub rejected: MessageKind,
    /// The number of valid bytes in `information`, at most 72.
    pub information_length: u8,
    /// The reason.
    pub reason: RejectReason,
    /// Additional information about the reason, such as the supported path MTU.
    pub information: PrivateData<72>,
    /// The private data.
    pub private_data: PrivateData<148>,
}

/// An MRA: the sender has received a message and will take some time to answer it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageReceiptAcknowledgment {
    /// The communication ID of the sender.
    pub local_communication_id: u32,
    /// The communication ID of the receiver.
    pub remote_communication_id: u32,
    /// The kind of message that is acknowledged.
    pub acknowledged: MessageKind,
    /// The time until the answer.
    pub service_timeout: CmTimeout,
    /// The private data.
    pub private_data: PrivateData<222>,
}

impl ReadyToUse {
    pub(super) fn decode(body: &Body<'_>) -> Self {
        Self {
            local_communication_id: body.u32(0),
            remote_communication_id: body.u32(4),
            private_data: PrivateData::copy_from(body.slice(8, 224)),
        }
    }

    pub(super) fn encode(&self, bytes: &mut [u8]) {
        put_ids(
            bytes,
            self.local_communication_id,
            self.remote_communication_id,
        );
        bytes[8..232].copy_from_slice(self.private_data.as_bytes());
    }
}

impl DisconnectRequest {
    pub(super) fn decode(body: &Body<'_>) -> Self {
        Self {
            local_communication_id: body.u32(0),
            remote_communication_id: body.u32(4),
            remote_queue_pair: body.u24(8),
            private_data: PrivateData::copy_from(body.slice(12, 220)),
        }
    }

    pub(super) fn encode(&self, bytes: &mut [u8]) {
        put_ids(
            bytes,
            self.local_communication_id,
            self.remote_communication_id,
        );
        bytes[8..11].copy_from_slice(&self.remote_queue_pair.to_be_bytes()[1..]);
        bytes[12..232].copy_from_slice(self.private_data.as_bytes());
    }
}

impl DisconnectReply {
    pub(super) fn decode(body: &Body<'_>) -> Self {
        Self {
            local_communication_id: body.u32(0),
            remote_communication_id: body.u32(4),
            private_data: PrivateData::copy_from(body.slice(8, 224)),
        }
    }

    pub(super) fn encode(&self, bytes: &mut [u8]) {
        put_ids(
            bytes,
            self.local_communication_id,
            self.remote_communication_id,
        );
        bytes[8..232].copy_from_slice(self.private_data.as_bytes());
    }
}

impl Reject {
    pub(super) fn decode(body: &Body<'_>) -> Self {
        Self {
            local_communication_id: body.u32(0),
            remote_communication_id: body.u32(4),
            rejected: MessageKind::from_code(body.u8(8) >> 6),
            information_length: (body.u8(9) >> 1).min(72),
            reason: RejectReason(body.u16(10)),
            information: PrivateData::copy_from(body.slice(12, 72)),
            private_data: PrivateData::copy_from(body.slice(84, 148)),
        }
    }

    pub(super) fn encode(&self, bytes: &mut [u8]) {
        put_ids(
            bytes,
            self.local_communication_id,
            self.remote_communication_id,
        );
        bytes[8] = self.rejected.code() << 6;
        bytes[9] = self.information_length.min(72) << 1;
        bytes[10..12].copy_from_slice(&self.reason.0.to_be_bytes());
        bytes[12..84].copy_from_slice(self.information.as_bytes());
        bytes[84..232].copy_from_slice(self.private_data.as_bytes());
    }
}

impl MessageReceiptAcknowledgment {
    pub(super) fn decode(body: &Body<'_>) -> Self {
        Self {
            local_communication_id: body.u32(0),
            remote_communication_id: body.u32(4),
            acknowledged: MessageKind::from_code(body.u8(8) >> 6),
            service_timeout: CmTimeout::from_exponent(body.u8(9) >> 3),
            private_data: PrivateData::copy_from(body.slice(10, 222)),
        }
    }

    pub(super) fn encode(&self, bytes: &mut [u8]) {
        put_ids(
            bytes,
            self.local_communication_id,
            self.remote_communication_id,
        );
        bytes[8] = self.acknowledged.code() << 6;
        bytes[9] = self.service_timeout.exponent() << 3;
        bytes[10..232].copy_from_slice(self.private_data.as_bytes());
    }
}

fn put_ids(bytes: &mut [u8], local: u32, remote: u32) {
    bytes[0..4].copy_from_slice(&local.to_be_bytes());
    bytes[4..8].copy_from_slice(&remote.to_be_bytes());
}
