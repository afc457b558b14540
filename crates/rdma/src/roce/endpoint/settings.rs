//! The settings of an endpoint, and the plain data of its interface.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;

use crate::{
    roce::cm::{CmTimeout, CmTiming, PathMtu, RejectReason},
    work::{ProviderError, WorkRequest},
};

/// The settings of an [`Endpoint`](super::Endpoint).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSettings {
    /// IRD: the most RDMA Reads of a peer that a connection serves concurrently.
    pub responder_resources: u8,
    /// ORD: the most RDMA Reads that a connection has outstanding.
    pub initiator_depth: u8,
    /// The times of CM messages.
    pub timing: CmTiming,
    /// The time after which packets without an acknowledgement are sent again.
    pub ack_timeout: CmTimeout,
    /// How long this end takes to acknowledge a packet, as it announces to peers, which add it to their
    /// timeouts.
    pub target_ack_delay: CmTimeout,
    /// How often packets are sent again without an answer before the connection breaks; at most 7.
    pub retry_count: u8,
    /// The most bytes of a connection that are sent and not acknowledged, which the receive buffer of
    /// the peer's socket should be able to take.
    pub max_in_flight: usize,
    /// The most bytes in flight of connections whose ends have the same IP address, and therefore usually receive
    /// buffers of the same size.
    pub max_in_flight_within_host: usize,
    /// The longest time from a graceful disconnect until posted work is finished and the peer has
    /// answered.
    pub close_timeout: Duration,
    /// The most connection requests that are not answered or whose answer the peer has not
    /// confirmed. Further requests are ignored, and their senders repeat them.
    pub max_half_open: usize,
    /// The most connections. Further requests are rejected.
    pub max_connections: usize,
}

impl Default for EndpointSettings {
    fn default() -> Self {
        Self {
            responder_resources: 32,
            initiator_depth: 32,
            timing: CmTiming::default(),
            // 537 ms.
            ack_timeout: CmTimeout::from_exponent(17),
            // 268 ms, with which Linux waits for 1.07 s before it sends again.
            target_ack_delay: CmTimeout::from_exponent(16),
            retry_count: 7,
            max_in_flight: 1 << 18,
            max_in_flight_within_host: 1 << 18,
            close_timeout: Duration::from_secs(5),
            max_half_open: 64,
            max_connections: 65_536,
        }
    }
}

/// The identifier of a connection of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(super) u32);

/// The two ends of a connection, as UDP sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// The address and UDP port of this end. The address is never unspecified.
    pub local: SocketAddr,
    /// The address and UDP port of the peer.
    pub remote: SocketAddr,
}

/// The arguments of [`Endpoint::connect`](super::Endpoint::connect).
#[derive(Debug)]
pub struct ConnectParameters {
    /// The two ends.
    pub path: Path,
    /// The path MTU.
    pub path_mtu: PathMtu,
    /// The port to connect to, which becomes a service ID.
    pub port: u16,
    /// The private data; at most [`MAX_REQUEST_DATA`] bytes.
    pub private_data: Bytes,
    /// The receive to post before the peer can send.
    pub receive: WorkRequest,
}

/// The arguments of [`Endpoint::accept`](super::Endpoint::accept).
#[derive(Debug)]
pub struct AcceptParameters {
    /// The private data; at most [`MAX_REPLY_DATA`] bytes.
    pub private_data: Bytes,
    /// The receive to post before the peer can send.
    pub receive: WorkRequest,
    /// The most RDMA Reads that the peer serves concurrently, if its private data contains it.
    pub peer_serves_reads: Option<u32>,
}

/// The most bytes of private data in a connection request: 92, without the header of the RDMA CM
/// and the signature of this library.
pub const MAX_REQUEST_DATA: usize = 92 - 36 - 8;
/// The most bytes of private data in the answer: 196, without the signature of this library.
pub const MAX_REPLY_DATA: usize = 196 - 8;

/// A change that the owner of an endpoint has to know about.
#[derive(Debug, PartialEq, Eq)]
pub enum EndpointEvent {
    /// A peer asks to connect. The owner calls [`Endpoint::accept`](super::Endpoint::accept) or
    /// [`Endpoint::reject`](super::Endpoint::reject).
    Requested {
        /// The new connection.
        id: ConnectionId,
        /// The port that the peer connects to.
        port: u16,
        /// The two ends.
        path: Path,
        /// The path MTU that the peer asks for.
        path_mtu: PathMtu,
        /// The private data of the request.
        private_data: Bytes,
    },
    /// The connection is established.
    Connected {
        /// The connection.
        id: ConnectionId,
        /// The private data of the answer; empty on the accepting side.
        private_data: Bytes,
    },
    /// The connection was not established. It no longer exists.
    Failed {
        /// The connection.
        id: ConnectionId,
        /// The reason.
        error: ProviderError,
        /// The path MTU that the peer supports, if it rejected the path MTU of the request.
        path_mtu: Option<PathMtu>,
    },
    /// The connection has completions, or room for work.
    Ready {
        /// The connection.
        id: ConnectionId,
    },
}

/// The reason to reject a connection request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The consumer does not want the connection.
    Consumer,
    /// The path MTU is larger than this one, which is the most that this end supports.
    PathMtu(PathMtu),
}

impl Rejection {
    /// Returns the reason and the additional information of the REJ.
    pub(super) fn fields(self) -> (RejectReason, Vec<u8>) {
        match self {
            Self::Consumer => (RejectReason::CONSUMER, Vec::new()),
            Self::PathMtu(mtu) => (RejectReason::INVALID_PATH_MTU, vec![mtu.code()]),
        }
    }
}

/// Datagrams to send in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The two ends.
    pub path: Path,
    /// The length of each datagram in bytes, except the last one, which may be shorter.
    pub segment_size: usize,
    /// What the datagrams carry, which decides the DSCP and the ECN field of their IP headers.
    pub traffic: Traffic,
}

/// What datagrams carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// Packets of a queue pair. Their ECN field is ECT(0), so that switches can mark them.
    QueuePair,
    /// A congestion notification packet. Its ECN field is 0.
    CongestionNotification,
    /// A message of the CM. Its ECN field is 0.
    ConnectionManager,
}

impl Traffic {
    /// Returns whether the ECN field of the datagrams is ECT(0), and otherwise 0.
    //= ROCE-A17.9-01
    pub const fn is_ecn_capable(self) -> bool {
        matches!(self, Self::QueuePair)
    }
}

/// The counts of received datagrams, and of those that were dropped for each reason, since the endpoint was
/// created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EndpointStatistics {
    /// The datagrams that were received.
    pub received: u64,
    /// The datagrams that are not RoCEv2 packets.
    pub malformed: u64,
    /// The packets whose ICRC is wrong.
    pub wrong_icrc: u64,
    /// The packets whose IPv4 Identification does not continue that of their connection.
    pub unexpected_identification: u64,
    /// The packets for a queue pair that does not exist, or from another address than its peer's.
    pub unknown_queue_pair: u64,
    /// The connection requests that were ignored because too many were open.
    pub ignored_requests: u64,
}
