//! The settings of a queue pair, which are determined when it connects.

use std::time::Duration;

use crate::roce::psn::Psn;

/// The settings of a queue pair. The connection manager of each end sends its own to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuePairSettings {
    /// The number of this queue pair, 24 bits.
    pub local_qpn: u32,
    /// The number of the peer's queue pair, 24 bits.
    pub remote_qpn: u32,
    /// The PSN of the first packet that this end sends.
    pub send_psn: Psn,
    /// The PSN of the first packet that the peer sends.
    pub expected_psn: Psn,
    /// The path MTU in bytes: 256, 512, 1024, 2048 or 4096. Each packet of a message except the
    /// last has a payload of this length.
    pub path_mtu: usize,
    /// The most RDMA Reads of the peer that are served concurrently.
    pub responder_resources: u32,
    /// The most RDMA Read requests that this end has outstanding. If it is 0, no Read may be posted.
    pub initiator_depth: u32,
    /// How many times the acknowledgement timeout may pass without an answer before the connection
    /// breaks, in addition to the first time.
    pub retry_count: u8,
    /// How many times a Send is repeated that finds no receive; 7 means without limit.
    pub rnr_retry_count: u8,
    /// The acknowledgement timeout. If the network is faster, packets are sent again sooner.
    pub ack_timeout: Duration,
    /// The longest time that the peer takes to acknowledge a packet that it has received, as it
    /// announces. It is added to the acknowledgement timeout.
    pub target_ack_delay: Duration,
    /// The most payload bytes that are sent and not acknowledged. At least two packets are
    /// permitted.
    pub max_in_flight: usize,
}
