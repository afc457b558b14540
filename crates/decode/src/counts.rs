//! Counts over a capture.

use std::collections::BTreeMap;

use serde::Serialize;

/// Counts over the capture.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Counts {
    /// Packets of the capture.
    pub packets: u64,
    /// Packets of TCP.
    #[serde(rename = "tcp_packets")]
    pub tcp: u64,
    /// Packets of RoCE.
    #[serde(flatten)]
    pub roce: RoceCounts,
    /// Fragments of IP packets, which are not reassembled.
    #[serde(skip)]
    pub fragments: u64,
    /// Packets whose content is not understood.
    #[serde(rename = "not_understood")]
    pub unread: BTreeMap<String, u64>,
    /// Packets of which a part is not in the file.
    #[serde(skip)]
    pub cut: u64,
}

/// Counts of RoCE.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RoceCounts {
    /// All packets.
    #[serde(rename = "roce_packets")]
    pub packets: u64,
    /// Packets of RoCEv1.
    #[serde(rename = "rocev1_packets")]
    pub v1: u64,
    /// Packets of which a part is not in the file.
    #[serde(skip)]
    pub cut: u64,
    /// Packets whose ICRC is wrong.
    #[serde(rename = "roce_wrong_icrc")]
    pub wrong_icrc: u64,
    /// Packets that cannot be decoded, or are of another transport service.
    #[serde(rename = "roce_undecoded")]
    pub undecoded: u64,
    /// Congestion notification packets.
    #[serde(rename = "roce_congestion_notifications")]
    pub congestion: u64,
    /// Packets that a switch has marked for congestion (CE).
    #[serde(rename = "roce_congestion_marked")]
    pub congestion_marked: u64,
    /// Unreliable datagrams, except those of the CM for a known connection.
    #[serde(skip)]
    pub datagrams: u64,
    /// Connections, or single directions, that do not show SMB Direct.
    #[serde(rename = "roce_other_connections")]
    pub other_connections: u64,
}
