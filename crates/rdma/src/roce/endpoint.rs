//! The endpoint: many queue pairs and their communications behind one UDP socket. It does no I/O and has no
//! clock.
//!
//! ```text
//!   connect, listen, accept, post ──>┌──────────────────────────────┐──> poll_transmit ──> socket
//!                                    │ CM: communications           │
//!   poll_event, poll_completion   <──│ RC: queue pairs, by DestQP   │<── handle_datagram <── socket
//!                                    └──────────────────────────────┘
//! ```
//!
//! The caller passes received datagrams with their addresses to [`handle_datagram`](Endpoint::handle_datagram),
//! sends what [`poll_transmit`](Endpoint::poll_transmit) returns until it returns nothing, then takes events
//! until there are none, and calls [`handle_timeout`](Endpoint::handle_timeout) at the time of
//! [`poll_timeout`](Endpoint::poll_timeout). After every other call, the caller also does these steps, in this
//! order. A caller that passes several datagrams before it polls coalesces their acknowledgements.
//!
//! # Attackers
//!
//! Queue pair numbers, starting PSNs and communication IDs are random. Packets from another address than the
//! peer's are dropped. To place a packet of data, an attacker who forges the address of a peer, and does not see
//! the traffic, has to guess the queue pair number (24 bits) and what [`QueuePair`] describes. To disconnect, the
//! attacker has to guess both communication IDs (32 bits each) and the queue pair number, or only the number of
//! the peer's queue pair (24 bits, random at ends of this library): a connection request from a queue pair that
//! is already connected shows that the peer has restarted.

mod connection;
mod establish;
mod identification;
mod mads;
mod receive;
mod settings;
mod signature;

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use bytes::{Bytes, BytesMut};

pub use settings::{
    AcceptParameters, ConnectParameters, ConnectionId, EndpointEvent, EndpointSettings,
    EndpointStatistics, MAX_REPLY_DATA, MAX_REQUEST_DATA, Path, Rejection, Traffic, Transmit,
};

use self::{
    connection::{Connection, Stage},
    identification::RecentIdentifications,
    signature::Cause,
};
use crate::{
    deadline::bounded,
    memory::{DeregisterError, RegisterError, RegisterFault, Registration},
    roce::{
        Psn,
        cm::{Mad, PrivateData, RejectReason},
        icrc::{self, DatagramHeader},
        packet::{Bth, Deth, Extended, Opcode, Packet},
        rc::{CongestionStatistics, RetransmissionStatistics},
    },
    software::pool::Account,
    work::{
        Access, Completion, Disconnect, Limits, ProviderError, ProviderErrorKind, Room, Teardown,
        Token, WorkRequest,
    },
};

/// Many queue pairs and their communications behind one UDP socket.
#[derive(Debug)]
pub struct Endpoint {
    settings: EndpointSettings,
    /// The connections by their queue pair number.
    connections: HashMap<u32, Connection>,
    /// The queue pair numbers by communication ID.
    by_communication: HashMap<u32, u32>,
    /// The queue pair numbers of passive connections by the address and the communication ID of
    /// the peer.
    by_request: HashMap<(IpAddr, u32), u32>,
    /// The queue pair numbers by the address and the queue pair number of the peer.
    by_remote: HashMap<(SocketAddr, u32), u32>,
    /// The ports that are listened on.
    listening: HashSet<u16>,
    /// The number of connections that are half open: the request is not answered, or the answer is not confirmed.
    half_open: usize,
    /// The CM messages to send.
    mads: VecDeque<(Path, Mad)>,
    /// Whether a waiting CM message is sent before the next packets of a connection. The two alternate.
    mads_first: bool,
    /// The PSN of the next CM message.
    mad_psn: Psn,
    /// The connections that have received packets and have not been settled yet.
    unsettled: Vec<u32>,
    /// The connections that may have packets to send.
    transmit_queue: VecDeque<u32>,
    events: VecDeque<EndpointEvent>,
    /// The deadlines of the connections.
    timers: BTreeSet<(Instant, u32)>,
    recent_identifications: RecentIdentifications,
    /// Counts the memory of messages that have readers.
    account: Account,
    statistics: EndpointStatistics,
}

/// The queue pair of the CM.
const GENERAL_SERVICES_QUEUE_PAIR: u32 = 1;
/// The Q_Key of the CM's queue pair.
const GENERAL_SERVICES_QUEUE_KEY: u32 = 0x8001_0000;
/// The most CM messages that wait to be sent. Lost messages are sent again.
const MAX_WAITING_MADS: usize = 1024;
/// The lowest queue pair number that is assigned: some low numbers have a meaning.
const LOWEST_QUEUE_PAIR: u32 = 0x100;
/// The lowest port that is assigned if the caller does not choose one.
const LOWEST_DYNAMIC_PORT: u16 = 49_152;

impl Endpoint {
    /// Creates an endpoint without connections.
    pub fn new(settings: EndpointSettings) -> Self {
        Self {
            settings,
            connections: HashMap::new(),
            by_communication: HashMap::new(),
            by_request: HashMap::new(),
            by_remote: HashMap::new(),
            listening: HashSet::new(),
            half_open: 0,
            mads: VecDeque::new(),
            mads_first: true,
            mad_psn: Psn::new(0),
            unsettled: Vec::new(),
            transmit_queue: VecDeque::new(),
            events: VecDeque::new(),
            timers: BTreeSet::new(),
            recent_identifications: RecentIdentifications::default(),
            account: Account::default(),
            statistics: EndpointStatistics::default(),
        }
    }

    /// Returns the counter of the memory of messages that have readers.
    #[cfg(feature = "tokio")]
    pub(super) const fn account(&self) -> &Account {
        &self.account
    }

    /// Returns the counters of received datagrams.
    pub const fn statistics(&self) -> EndpointStatistics {
        self.statistics
    }

    /// Returns whether there is no connection and no listener.
    pub fn is_unused(&self) -> bool {
        self.connections.is_empty() && self.listening.is_empty()
    }

    /// Begins to listen on `port`, or on a free one if it is 0, and returns the port.
    ///
    /// # Errors
    /// Returns an error if the port is already listened on, or if no port is free.
    pub fn listen(&mut self, port: u16) -> Result<u16, ProviderError> {
        let in_use = |what: &str| ProviderError::new(ProviderErrorKind::InUse, what);
        if port != 0 {
            return if self.listening.insert(port) {
                Ok(port)
            } else {
                Err(in_use("listening: address already in use"))
            };
        }
        let first = random()? as u16 | LOWEST_DYNAMIC_PORT;
        let ports = (first..=u16::MAX).chain(LOWEST_DYNAMIC_PORT..first);
        for port in ports {
            if self.listening.insert(port) {
                return Ok(port);
            }
        }
        Err(in_use("listening: no port is free"))
    }

    /// Ends listening on `port`. Requests that wait for an answer can still be answered.
    pub fn unlisten(&mut self, port: u16) {
        self.listening.remove(&port);
    }

    /// Returns how much work may be posted on a connection now.
    pub fn room(&self, id: ConnectionId) -> Room {
        let none = Room {
            sends: 0,
            receives: 0,
        };
        let pair = self
            .connections
            .get(&id.0)
            .and_then(|one| one.queue_pair.as_ref());
        pair.map_or(none, |pair| pair.room())
    }

    /// Returns the limits of a connection, or `None` if it has no queue pair yet or is not known.
    pub fn limits(&self, id: ConnectionId) -> Option<Limits> {
        let pair = self.connections.get(&id.0)?.queue_pair.as_ref()?;
        Some(pair.limits())
    }

    /// Posts work on an established connection. It is sent after [`flush`](Self::flush), or with the
    /// answer to the next packet of the peer.
    pub fn post(&mut self, id: ConnectionId, work: WorkRequest) {
        let Some(connection) = self.connections.get_mut(&id.0) else {
            return;
        };
        let Some(pair) = &mut connection.queue_pair else {
            return;
        };
        pair.post(work);
    }

    /// Lets [`poll_transmit`](Self::poll_transmit) send posted work.
    pub fn flush(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id.0) {
            enqueue_if_needed(&mut self.transmit_queue, id.0, connection);
        }
    }

    /// Returns the next completion of a connection.
    pub fn poll_completion(&mut self, id: ConnectionId) -> Option<Completion> {
        let connection = self.connections.get_mut(&id.0)?;
        let completion = connection.queue_pair.as_mut()?.poll_completion();
        connection.is_reported &= completion.is_some();
        completion
    }

    /// Moves the completions of a connection to `into`, which has to be empty.
    /// [`poll_completion`](Self::poll_completion) returns the completions that remain, such as the end of the
    /// connection.
    #[cfg(feature = "tokio")]
    pub(super) fn take_completions(&mut self, id: ConnectionId, into: &mut VecDeque<Completion>) {
        let connection = self.connections.get_mut(&id.0);
        if let Some(pair) = connection.and_then(|one| one.queue_pair.as_mut()) {
            pair.take_completions(into);
        }
    }

    /// Returns how many bytes of datagrams a connection has sent and received so far.
    pub fn moved_bytes(&self, id: ConnectionId) -> (u64, u64) {
        let connection = self.connections.get(&id.0);
        connection.map_or((0, 0), |connection| connection.moved)
    }

    /// Returns the retransmissions of a connection, or `None` if it has no queue pair yet or is not known.
    pub fn retransmissions(&self, id: ConnectionId) -> Option<RetransmissionStatistics> {
        let pair = self.connections.get(&id.0)?.queue_pair.as_ref()?;
        Some(pair.retransmissions())
    }

    /// Returns the signs of congestion of a connection, or `None` if it has no queue pair yet or is not known.
    pub fn congestion(&self, id: ConnectionId) -> Option<CongestionStatistics> {
        let pair = self.connections.get(&id.0)?.queue_pair.as_ref()?;
        Some(pair.congestion())
    }

    /// Returns whether packets of the peer can still cause completions of a connection.
    pub fn awaits_packets(&self, id: ConnectionId) -> bool {
        let connection = self.connections.get(&id.0);
        connection.is_some_and(Connection::takes_packets)
    }

    /// Returns whether [`poll_completion`](Self::poll_completion) would return a completion.
    pub fn has_completion(&self, id: ConnectionId) -> bool {
        let pair = self
            .connections
            .get(&id.0)
            .and_then(|one| one.queue_pair.as_ref());
        pair.is_some_and(|pair| pair.has_completion())
    }

    /// Ends a connection. Completions follow, and the last is [`Completion::Disconnected`].
    pub fn disconnect(&mut self, now: Instant, id: ConnectionId, how: Teardown) {
        let Some(connection) = self.connections.get_mut(&id.0) else {
            return;
        };
        let Some(pair) = &mut connection.queue_pair else {
            return;
        };
        match (how, &connection.stage) {
            (Teardown::Graceful, Stage::Open) => {
                pair.close();
                connection.stage = Stage::Draining;
                connection.close_deadline = Some(now + bounded(self.settings.close_timeout));
            }
            // The peer has acknowledged what was reported as sent.
            (
                Teardown::Abort | Teardown::Terminate,
                Stage::Open | Stage::Draining | Stage::Disconnecting,
            ) => {
                self.end(now, id.0, Disconnect::Local, Cause::Aborted);
            }
            _ => {}
        }
        self.settle(now, id.0);
    }

    /// Abandons a connection, because its owner no longer uses it. An open connection is aborted, and a
    /// request that is not answered is rejected.
    pub fn release(&mut self, now: Instant, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id.0) else {
            return;
        };
        connection.is_released = true;
        match connection.stage {
            Stage::Requested(_) => self.reject(now, id, Rejection::Consumer),
            Stage::Ended => {}
            // A graceful disconnect continues without its owner.
            Stage::Draining | Stage::Disconnecting => {}
            Stage::Connecting { .. } | Stage::Accepting | Stage::Open => {
                self.end(now, id.0, Disconnect::Local, Cause::Aborted);
            }
        }
        self.settle(now, id.0);
    }

    /// Registers memory for the peer of a connection.
    ///
    /// # Errors
    /// Returns an error that holds the buffer, also if the connection no longer exists.
    pub fn register(
        &mut self,
        id: ConnectionId,
        buffer: BytesMut,
        access: Access,
    ) -> Result<Registration, RegisterError> {
        let connection = self.connections.get_mut(&id.0);
        match connection.and_then(|connection| connection.queue_pair.as_mut()) {
            Some(pair) => pair.memory().register(buffer, access),
            None => Err(RegisterError {
                buffer,
                reason: RegisterFault::NoToken,
            }),
        }
    }

    /// Ends a registration and returns the buffer.
    ///
    /// # Errors
    /// Returns the errors of [`MemoryTable::deregister`](crate::memory::MemoryTable).
    pub fn deregister(
        &mut self,
        id: ConnectionId,
        token: Token,
    ) -> Result<BytesMut, DeregisterError> {
        let connection = self.connections.get_mut(&id.0);
        let pair = connection.and_then(|connection| connection.queue_pair.as_mut());
        let pair = pair.ok_or(DeregisterError::Unknown)?;
        pair.memory().deregister(token)
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) has to be called next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(time, _)| *time)
    }

    /// Processes the time `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(time, number)) = self.timers.first()
            && time <= now
        {
            self.timers.pop_first();
            let Some(connection) = self.connections.get_mut(&number) else {
                continue;
            };
            connection.scheduled = None;
            if let Some(pair) = &mut connection.queue_pair {
                pair.handle_timeout(now);
            }
            let output = connection.communication.handle_timeout(now);
            //= ROCE-UDP-07
            let is_overdue = connection
                .close_deadline
                .is_some_and(|deadline| deadline <= now);
            self.apply(now, number, output);
            if is_overdue {
                self.end(now, number, Disconnect::Local, Cause::Aborted);
            }
            self.settle(now, number);
        }
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<EndpointEvent> {
        self.events.pop_front()
    }

    /// Appends at most `max_segments` datagrams to `out`, to be sent with one system call. The caller has cleared
    /// `out`. Returns `None` if there is nothing to send.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        max_segments: usize,
        out: &mut BytesMut,
    ) -> Option<Transmit> {
        while let Some(number) = self.unsettled.pop() {
            self.settle(now, number);
        }
        loop {
            if self.mads_first || self.transmit_queue.is_empty() {
                self.mads_first = false;
                if let Some((path, mad)) = self.mads.pop_front() {
                    match self.encode_mad(path, &mad, out) {
                        Some(transmit) => return Some(transmit),
                        None => continue,
                    }
                }
            }
            self.mads_first = true;
            let number = self.transmit_queue.pop_front()?;
            let Some(connection) = self.connections.get_mut(&number) else {
                continue;
            };
            connection.is_queued = false;
            let transmit = connection.fill(now, max_segments, out);
            if transmit.is_some() {
                enqueue(&mut self.transmit_queue, number, connection);
                return transmit;
            }
            if let Some(mad) = connection.farewell.take() {
                let path = connection.path;
                self.send_mad(path, mad);
            }
            self.settle(now, number);
            // The queue pair has nothing to send until a packet arrives for it or its timer expires. A DREQ that
            // `settle` has made is sent in the next iteration.
            if let Some(connection) = self.connections.get_mut(&number)
                && connection.is_queued
                && connection.farewell.is_none()
                && self.transmit_queue.back() == Some(&number)
            {
                self.transmit_queue.pop_back();
                connection.is_queued = false;
            }
        }
    }

    /// Writes a CM message as a datagram from queue pair 1 to queue pair 1.
    fn encode_mad(&mut self, path: Path, mad: &Mad, out: &mut BytesMut) -> Option<Transmit> {
        let header = DatagramHeader::between(path.local, path.remote)?;
        let psn = self.mad_psn;
        self.mad_psn = psn.add(1);
        let packet = Packet {
            bth: Bth::new(Opcode::UdSendOnly, GENERAL_SERVICES_QUEUE_PAIR, psn),
            extended: Extended::Deth(Deth {
                q_key: GENERAL_SERVICES_QUEUE_KEY,
                source_qp: GENERAL_SERVICES_QUEUE_PAIR,
            }),
            payload: Bytes::copy_from_slice(&mad.encode()),
        };
        packet.encode(out);
        icrc::append(&header, out, 0);
        Some(Transmit {
            path,
            segment_size: out.len(),
            traffic: Traffic::ConnectionManager,
        })
    }

    fn send_mad(&mut self, path: Path, mad: Mad) {
        if self.mads.len() < MAX_WAITING_MADS {
            self.mads.push_back((path, mad));
        }
    }

    /// Ends a connection now, and tells the peer.
    fn end(&mut self, now: Instant, number: u32, how: Disconnect, cause: Cause) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        self.half_open -= usize::from(connection.is_half_open());
        connection.stage = Stage::Ended;
        connection.close_deadline = None;
        if let Some(pair) = &mut connection.queue_pair {
            pair.end(how);
        }
        let output = match connection.queue_pair {
            Some(_) => connection.communication.disconnect(now, cause.sign()),
            None => connection.communication.reject(
                now,
                RejectReason::TIMEOUT,
                &[],
                PrivateData::default(),
            ),
        };
        match (output.message, cause) {
            // The negative acknowledgement of the queue pair is sent first.
            (Some(mad), Cause::Broken) => connection.farewell = Some(mad),
            (Some(mad), _) => {
                let path = connection.path;
                self.send_mad(path, mad);
            }
            (None, _) => {}
        }
    }

    /// Processes the consequences of a change to a connection: detects the end of its queue pair, reports
    /// completions, and updates its timer.
    fn settle(&mut self, now: Instant, number: u32) {
        let Some(connection) = self.connections.get(&number) else {
            return;
        };
        if let Some(pair) = &connection.queue_pair {
            match connection.stage {
                Stage::Accepting | Stage::Open | Stage::Draining | Stage::Disconnecting
                    if pair.has_ended() =>
                {
                    self.end(now, number, Disconnect::Local, Cause::Broken);
                }
                Stage::Draining if pair.is_drained() => self.finish(now, number),
                _ => {}
            }
        }
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        if let Some(pair) = &connection.queue_pair {
            let is_open = !connection.is_half_open();
            if is_open
                && !connection.is_released
                && !connection.is_reported
                && pair.has_completion()
            {
                connection.is_reported = true;
                let id = ConnectionId(number);
                self.events.push_back(EndpointEvent::Ready { id });
            }
            enqueue_if_needed(&mut self.transmit_queue, number, connection);
        }
        let is_done = matches!(connection.stage, Stage::Ended) && !connection.is_queued;
        if connection.is_released && is_done {
            // In time wait, the connection no longer needs its queue pair.
            connection.queue_pair = None;
        }
        if connection.is_released && connection.communication.is_closed() {
            self.forget(number);
            return;
        }
        let next = connection.poll_timeout();
        if connection.scheduled != next {
            if let Some(time) = connection.scheduled {
                self.timers.remove(&(time, number));
            }
            self.timers.extend(next.map(|time| (time, number)));
            connection.scheduled = next;
        }
    }

    /// Sends the DREQ of a graceful disconnect whose work is finished.
    fn finish(&mut self, now: Instant, number: u32) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        connection.stage = Stage::Disconnecting;
        let output = connection
            .communication
            .disconnect(now, Cause::Graceful.sign());
        self.apply(now, number, output);
    }

    /// Removes a connection.
    fn forget(&mut self, number: u32) {
        let Some(connection) = self.connections.remove(&number) else {
            return;
        };
        self.half_open -= usize::from(connection.is_half_open());
        let communication = &connection.communication;
        self.by_communication.remove(&communication.local_id());
        let request = (connection.path.remote.ip(), communication.remote_id());
        if self.by_request.get(&request) == Some(&number) {
            self.by_request.remove(&request);
        }
        let remote = (connection.path.remote, communication.remote_queue_pair());
        if self.by_remote.get(&remote) == Some(&number) {
            self.by_remote.remove(&remote);
        }
        if let Some(time) = connection.scheduled {
            self.timers.remove(&(time, number));
        }
    }
}

/// Puts a connection into the transmit queue.
fn enqueue(queue: &mut VecDeque<u32>, number: u32, connection: &mut Connection) {
    if !connection.is_queued {
        connection.is_queued = true;
        queue.push_back(number);
    }
}

/// Puts a connection into the transmit queue if it may have something to send.
fn enqueue_if_needed(queue: &mut VecDeque<u32>, number: u32, connection: &mut Connection) {
    let has_packets = connection
        .queue_pair
        .as_ref()
        .is_some_and(|pair| pair.has_packet());
    if has_packets || connection.farewell.is_some() {
        enqueue(queue, number, connection);
    }
}

/// Returns a random number of 32 bits.
fn random() -> Result<u32, ProviderError> {
    //= ROCE-UDP-01
    getrandom::u32().map_err(|error| {
        let what = format!("the operating system returned no random numbers: {error}");
        ProviderError::new(ProviderErrorKind::Local, what)
    })
}

#[cfg(test)]
mod tests;
