//! The REQ: a request to connect a queue pair (12.6.5).

use std::net::{IpAddr, Ipv6Addr};

use super::{
    body::Body,
    fields::{CmTimeout, PathMtu, RejectReason, ServiceId, is_default_partition, is_queue_pair},
    private_data::{PrivateData, gid_of},
};

/// A REQ: the active end asks to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// The communication ID of the sender.
    pub local_communication_id: u32,
    /// The service to connect to.
    pub service_id: ServiceId,
    /// The identifier of the sender's channel adapter.
    pub ca_guid: u64,
    /// The Q_Key of the sender; zero for a reliable connection.
    pub queue_key: u32,
    /// The queue pair of the sender, of 24 bits.
    pub queue_pair: u32,
    /// The most RDMA Reads of the peer that the sender serves concurrently.
    pub responder_resources: u8,
    /// The most RDMA Reads that the sender has outstanding.
    pub initiator_depth: u8,
    /// How long the peer may take to answer this message.
    pub remote_response_timeout: CmTimeout,
    /// The transport service type: 0 is a reliable connection.
    pub transport_service_type: u8,
    /// Whether the sender's queue pair has end-to-end flow control.
    pub end_to_end_flow_control: bool,
    /// The PSN of the first request that the sender of this message expects, of 24 bits. The
    /// receiver of this message starts its requests with it.
    pub starting_psn: u32,
    /// How long the sender takes to answer messages.
    pub local_response_timeout: CmTimeout,
    /// How often packets are sent again without an answer; at most 7.
    pub retry_count: u8,
    /// The partition; `0xffff` is the default partition.
    pub partition_key: u16,
    /// The path MTU, or `None` for a code that is not defined.
    pub path_mtu: Option<PathMtu>,
    /// Whether the sender has an RD channel to the peer.
    pub rdc_exists: bool,
    /// How often a message is sent again to a peer that is not ready; 7 is without a limit.
    pub rnr_retry_count: u8,
    /// How often a CM message is sent again; at most 15.
    pub max_cm_retries: u8,
    /// Whether the sender's queue pair takes receives from a shared queue.
    pub shared_receive_queue: bool,
    /// The extended transport type, of 3 bits; zero for a reliable connection.
    pub extended_transport_type: u8,
    /// The path of the connection.
    pub primary_path: PathRecord,
    /// The second path for automatic migration, or `None` if all its bytes are zero.
    pub alternate_path: Option<PathRecord>,
    /// The private data, which begins with an [`RdmaCmHeader`](super::RdmaCmHeader) if the service
    /// ID has a port.
    pub private_data: PrivateData<92>,
}

/// A path in a REQ. In the names of the fields, "local" is the sender of the REQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathRecord {
    /// The LID of the sender; `0xffff` on Ethernet.
    pub local_lid: u16,
    /// The LID of the peer; `0xffff` on Ethernet.
    pub remote_lid: u16,
    /// The GID of the sender: an IP address, with IPv4 mapped to IPv6.
    pub local_gid: Ipv6Addr,
    /// The GID of the peer.
    pub remote_gid: Ipv6Addr,
    /// The flow label, of 20 bits.
    pub flow_label: u32,
    /// The 6 reserved bits after the flow label, which Linux sets.
    pub reserved: u8,
    /// The maximum packet rate, of 6 bits.
    pub packet_rate: u8,
    /// The traffic class.
    pub traffic_class: u8,
    /// The hop limit.
    pub hop_limit: u8,
    /// The service level, of 4 bits.
    pub service_level: u8,
    /// Whether both ends are in the same subnet.
    pub subnet_local: bool,
    /// The time that the sender waits for an acknowledgement before it retries.
    pub local_ack_timeout: CmTimeout,
}

impl PathRecord {
    /// The length in bytes.
    const LENGTH: usize = 44;

    /// Returns the path between two IP addresses.
    pub const fn between(local: IpAddr, remote: IpAddr, local_ack_timeout: CmTimeout) -> Self {
        Self {
            local_lid: 0xffff,
            remote_lid: 0xffff,
            local_gid: gid_of(local),
            remote_gid: gid_of(remote),
            flow_label: 0,
            reserved: 0,
            // 10 Gbit/s (code 3), which is only a hint.
            packet_rate: 3,
            traffic_class: 0,
            hop_limit: 64,
            service_level: 0,
            subnet_local: false,
            local_ack_timeout,
        }
    }

    fn decode(body: &Body<'_>, at: usize) -> Self {
        let flow = body.u32(at + 36);
        Self {
            local_lid: body.u16(at),
            remote_lid: body.u16(at + 2),
            local_gid: body.array::<16>(at + 4).into(),
            remote_gid: body.array::<16>(at + 20).into(),
            flow_label: flow >> 12,
            reserved: (flow >> 6) as u8 & 0x3f,
            packet_rate: flow as u8 & 0x3f,
            traffic_class: body.u8(at + 40),
            hop_limit: body.u8(at + 41),
            service_level: body.u8(at + 42) >> 4,
            subnet_local: body.u8(at + 42) & 0x08 != 0,
            local_ack_timeout: CmTimeout::from_exponent(body.u8(at + 43) >> 3),
        }
    }

    fn encode(&self, bytes: &mut [u8]) {
        bytes[0..2].copy_from_slice(&self.local_lid.to_be_bytes());
        bytes[2..4].copy_from_slice(&self.remote_lid.to_be_bytes());
        bytes[4..20].copy_from_slice(&self.local_gid.octets());
        bytes[20..36].copy_from_slice(&self.remote_gid.octets());
        let flow = self.flow_label << 12
            | u32::from(self.reserved & 0x3f) << 6
            | u32::from(self.packet_rate & 0x3f);
        bytes[36..40].copy_from_slice(&flow.to_be_bytes());
        bytes[40] = self.traffic_class;
        bytes[41] = self.hop_limit;
        bytes[42] = self.service_level << 4 | u8::from(self.subnet_local) << 3;
        bytes[43] = self.local_ack_timeout.exponent() << 3;
    }
}

/// The offset of the primary path in the message.
const PRIMARY: usize = 52;
/// The offset of the alternate path in the message.
const ALTERNATE: usize = PRIMARY + PathRecord::LENGTH;

/// The transport service type of a reliable connection.
const RELIABLE_CONNECTION: u8 = 0;

impl ConnectRequest {
    /// Returns the reason for which every listener has to reject this request, or `None` if its fields have
    /// values that a reliable connection over Ethernet can have.
    ///
    /// The path records are not checked, because answers go to the address that the request came from.
    pub const fn fault(&self) -> Option<RejectReason> {
        //= ROCE-12.6-03
        if self.transport_service_type != RELIABLE_CONNECTION || self.extended_transport_type != 0 {
            Some(RejectReason::INVALID_TRANSPORT_TYPE)
        } else if !is_queue_pair(self.queue_pair)
            || self.starting_psn >> 24 != 0
            || !is_default_partition(self.partition_key)
        {
            Some(RejectReason::UNSUPPORTED)
        } else if self.path_mtu.is_none() {
            Some(RejectReason::INVALID_PATH_MTU)
        } else {
            None
        }
    }

    pub(super) fn decode(body: &Body<'_>) -> Self {
        let alternate = body.slice(ALTERNATE, PathRecord::LENGTH);
        let has_alternate = alternate.iter().any(|&byte| byte != 0);
        Self {
            local_communication_id: body.u32(0),
            service_id: ServiceId(u64::from_be_bytes(body.array(8))),
            ca_guid: u64::from_be_bytes(body.array(16)),
            queue_key: body.u32(28),
            queue_pair: body.u24(32),
            responder_resources: body.u8(35),
            initiator_depth: body.u8(39),
            remote_response_timeout: CmTimeout::from_exponent(body.u8(43) >> 3),
            transport_service_type: body.u8(43) >> 1 & 0x03,
            end_to_end_flow_control: body.u8(43) & 0x01 != 0,
            starting_psn: body.u24(44),
            local_response_timeout: CmTimeout::from_exponent(body.u8(47) >> 3),
            retry_count: body.u8(47) & 0x07,
            partition_key: body.u16(48),
            path_mtu: PathMtu::from_code(body.u8(50) >> 4),
            rdc_exists: body.u8(50) & 0x08 != 0,
            rnr_retry_count: body.u8(50) & 0x07,
            max_cm_retries: body.u8(51) >> 4,
            shared_receive_queue: body.u8(51) & 0x08 != 0,
            extended_transport_type: body.u8(51) & 0x07,
            primary_path: PathRecord::decode(body, PRIMARY),
            alternate_path: has_alternate.then(|| PathRecord::decode(body, ALTERNATE)),
            private_data: PrivateData::copy_from(body.slice(140, 92)),
        }
    }

    pub(super) fn encode(&self, bytes: &mut [u8]) {
        bytes[0..4].copy_from_slice(&self.local_communication_id.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.service_id.0.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.ca_guid.to_be_bytes());
        bytes[28..32].copy_from_slice(&self.queue_key.to_be_bytes());
        bytes[32..35].copy_from_slice(&self.queue_pair.to_be_bytes()[1..]);
        bytes[35] = self.responder_resources;
        bytes[39] = self.initiator_depth;
        bytes[43] = self.remote_response_timeout.exponent() << 3
            | (self.transport_service_type & 0x03) << 1
            | u8::from(self.end_to_end_flow_control);
        bytes[44..47].copy_from_slice(&self.starting_psn.to_be_bytes()[1..]);
        bytes[47] = self.local_response_timeout.exponent() << 3 | self.retry_count & 0x07;
        bytes[48..50].copy_from_slice(&self.partition_key.to_be_bytes());
        bytes[50] = self.path_mtu.map_or(0, PathMtu::code) << 4
            | u8::from(self.rdc_exists) << 3
            | self.rnr_retry_count & 0x07;
        bytes[51] = self.max_cm_retries << 4
            | u8::from(self.shared_receive_queue) << 3
            | self.extended_transport_type & 0x07;
        self.primary_path.encode(&mut bytes[PRIMARY..ALTERNATE]);
        if let Some(path) = &self.alternate_path {
            path.encode(&mut bytes[ALTERNATE..ALTERNATE + PathRecord::LENGTH]);
        }
        bytes[140..232].copy_from_slice(self.private_data.as_bytes());
    }
}
