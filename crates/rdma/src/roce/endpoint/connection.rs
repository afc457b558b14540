//! One connection of an endpoint: its communication, its queue pair and its progress.

use std::{net::SocketAddr, time::Instant};

use bytes::BytesMut;

use super::{
    identification::Identification,
    settings::{Path, Traffic, Transmit},
};
use crate::{
    roce::{
        cm::{Communication, ConnectRequest, Mad, PathMtu},
        icrc::{DatagramHeader, FlowIcrc},
        rc::QueuePair,
    },
    work::WorkRequest,
};

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) communication: Communication,
    pub(super) path: Path,
    pub(super) stage: Stage,
    /// The queue pair, as soon as both ends are known.
    pub(super) queue_pair: Option<Box<QueuePair>>,
    /// Whether the peer is an end of this library.
    pub(super) peer_is_smbdirect: bool,
    pub(super) identification: Identification,
    /// The ICRCs of packets to the peer.
    outbound: Flow,
    /// The ICRCs of packets of the peer.
    pub(super) inbound: Flow,
    /// The bytes of datagrams that were sent and received.
    pub(super) moved: (u64, u64),
    /// The DREQ to send after the last packets of a queue pair that broke.
    pub(super) farewell: Option<Mad>,
    /// The time at which a graceful disconnect ends even if the peer does not answer.
    pub(super) close_deadline: Option<Instant>,
    /// The time under which this connection is in the timer queue.
    pub(super) scheduled: Option<Instant>,
    /// Whether the connection waits in the transmit queue.
    pub(super) is_queued: bool,
    /// Whether the owner was told that there are completions, and has not taken all of them.
    pub(super) is_reported: bool,
    /// How often the system of the peer has reported the port as unreachable.
    pub(super) unreachable_reports: u8,
    /// Whether the owner no longer uses the connection.
    pub(super) is_released: bool,
}

/// The progress of a connection.
#[derive(Debug)]
pub(super) enum Stage {
    /// Active end: the REQ is sent.
    Connecting {
        /// The receive to post first.
        receive: WorkRequest,
        /// The PSN of the request.
        starting_psn: u32,
        /// The path MTU of the request.
        path_mtu: PathMtu,
    },
    /// Passive end: the owner decides about the request.
    Requested(Box<ConnectRequest>),
    /// Passive end: the REP is sent.
    Accepting,
    /// Data is sent and received.
    Open,
    /// A graceful disconnect waits until posted work is finished.
    Draining,
    /// The DREQ is sent.
    Disconnecting,
    /// Nothing is sent or received any more.
    Ended,
}

impl Connection {
    pub(super) const fn new(communication: Communication, path: Path, stage: Stage) -> Self {
        Self {
            communication,
            path,
            stage,
            queue_pair: None,
            peer_is_smbdirect: false,
            identification: Identification::new(),
            outbound: Flow(None),
            inbound: Flow(None),
            moved: (0, 0),
            farewell: None,
            close_deadline: None,
            scheduled: None,
            is_queued: false,
            is_reported: false,
            unreachable_reports: 0,
            is_released: false,
        }
    }

    /// Returns whether the connection is half open: its request is not answered, or the answer is not confirmed.
    pub(super) const fn is_half_open(&self) -> bool {
        matches!(self.stage, Stage::Requested(_) | Stage::Accepting)
    }

    /// Returns whether packets of the peer's queue pair are processed.
    pub(super) const fn takes_packets(&self) -> bool {
        matches!(
            self.stage,
            Stage::Accepting | Stage::Open | Stage::Draining | Stage::Disconnecting
        )
    }

    /// Returns the earliest deadline of the connection.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let queue_pair = self
            .queue_pair
            .as_ref()
            .and_then(|pair| pair.poll_timeout());
        let deadlines = [
            queue_pair,
            self.communication.poll_timeout(),
            self.close_deadline,
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Appends the next datagrams to `out`: the CNP that is due, or at most `max_segments`, all of the same length except the
    /// last, which may be shorter.
    pub(super) fn fill(
        &mut self,
        now: Instant,
        max_segments: usize,
        out: &mut BytesMut,
    ) -> Option<Transmit> {
        let queue_pair = self.queue_pair.as_mut()?;
        let before = out.len();
        let flow = self.outbound.get(self.path.local, self.path.remote)?;
        let (segment_size, traffic) = match queue_pair.poll_notification(flow, out) {
            Some(size) => (size, Traffic::CongestionNotification),
            None => {
                let size = queue_pair.poll_datagrams(now, flow, max_segments, out)?;
                (size, Traffic::QueuePair)
            }
        };
        self.moved.0 += (out.len() - before) as u64;
        Some(Transmit {
            path: self.path,
            segment_size,
            traffic,
        })
    }
}

/// The ICRCs of one direction, as long as the sockets stay the same.
#[derive(Debug)]
pub(super) struct Flow(Option<(SocketAddr, SocketAddr, FlowIcrc)>);

impl Flow {
    /// Returns the ICRCs of packets from `source` to `destination`, or `None` if one address is IPv4
    /// and the other is IPv6.
    pub(super) fn get(
        &mut self,
        source: SocketAddr,
        destination: SocketAddr,
    ) -> Option<&mut FlowIcrc> {
        let is_known =
            matches!(&self.0, Some((from, to, _)) if (*from, *to) == (source, destination));
        if !is_known {
            let header = DatagramHeader::between(source, destination)?;
            self.0 = Some((source, destination, FlowIcrc::new(&header)));
        }
        self.0.as_mut().map(|(.., flow)| flow)
    }
}
