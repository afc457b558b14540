//! The reliable connections of a capture: finds the connection and the direction of each packet.
//!
//! A packet names the queue pair that it goes to, so two addresses and a queue pair identify one
//! direction. The messages of the CM say which two directions are a connection. A direction that no
//! message of the CM announced is *loose*: its packets wait until a PSN shows which direction
//! answers it, and are read alone if there are too many of them.

use std::{collections::HashMap, net::IpAddr};

use smbdirect::rdma::roce::{
    Psn,
    packet::{Extended, Opcode},
};

use super::{
    super::{
        event::{Detail, Icrc, Repeated},
        out::Out,
        packet::Datagram,
        per_end::Side,
    },
    communication_ids::{CM_QUEUE_PAIR, CommunicationIds},
    connection::Connection,
    datagram::{Packet, Recent, packets},
    recognise::{is_initiator, recognise_packet},
};

/// All reliable connections.
#[derive(Debug, Default)]
pub(crate) struct Roce {
    pub(super) connections: HashMap<u32, Connection>,
    /// The connection of each direction, and the direction's index in it.
    directions: HashMap<FlowKey, (u32, Side)>,
    pub(super) ids: CommunicationIds,
    loose: HashMap<FlowKey, Loose>,
    /// Connections of which one queue pair is unknown.
    open: Vec<u32>,
    last: u32,
    held_bytes: usize,
    /// The last datagrams of the CM.
    pub(super) recent: Recent,
    /// The content that events carry.
    pub(crate) detail: Detail,
}

/// The packets from an address to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct FlowKey {
    from: IpAddr,
    to: IpAddr,
    queue_pair: u32,
}

/// A direction whose connection is unknown.
#[derive(Debug, Default)]
struct Loose {
    packets: Vec<Packet>,
    /// The PSN of the first request, and the PSN after the last.
    requests: Option<(Psn, Psn)>,
    /// The PSN of the last response.
    response: Option<Psn>,
}

/// The match for a loose direction.
#[derive(Clone, Copy, Debug)]
enum Fit {
    Loose(FlowKey),
    /// A direction of a connection.
    Open(u32, Side),
}

/// Maximum number of connections that are followed at the same time; beyond that, the connections without packets
/// for longest are given up.
const MAX_CONNECTIONS: usize = 2048;
/// Maximum number of bytes of all connections that wait for missing packets.
const MAX_HELD_BYTES: usize = 256 << 20;
/// Maximum number of loose directions.
const MAX_LOOSE: usize = 256;
/// Maximum number of packets of a loose direction. It is more than a sender has in flight before the first
/// acknowledgement.
const MAX_LOOSE_PACKETS: usize = 128;
/// Maximum number of connections of which one queue pair is unknown.
const MAX_OPEN: usize = 256;

impl Roce {
    /// Handles a datagram.
    pub(crate) fn datagram(&mut self, datagram: &Datagram<'_>, out: &mut Out<'_>) {
        let (from, to) = (datagram.from, datagram.to);
        let key = |queue_pair| FlowKey {
            from,
            to,
            queue_pair,
        };
        for part in packets(datagram) {
            let decoded = Packet::decode(&part, out.position, self.detail);
            let is_right = matches!(&decoded, Some(Ok(packet)) if packet.icrc == Icrc::Right);
            if part.is_to_another_port && !is_right {
                continue;
            }
            let counts = &mut *out.counts;
            counts.packets += 1;
            counts.v1 += u64::from(part.is_v1);
            counts.cut += u64::from(part.bytes.len() < part.length);
            counts.congestion_marked += u64::from(part.is_marked);
            let packet = match decoded {
                None => {
                    counts.undecoded += 1;
                    continue;
                }
                Some(Err(bad)) => {
                    match bad.error {
                        None => counts.wrong_icrc += 1,
                        Some(_) => counts.undecoded += 1,
                    }
                    if let Some((connection, side)) = self.connection(key(bad.queue_pair)) {
                        connection.bad(side, &bad, out);
                    }
                    continue;
                }
                Some(Ok(packet)) => packet,
            };
            let queue_pair = packet.bth.destination_qp;
            match (packet.bth.opcode, &packet.extended) {
                (Opcode::CongestionNotification, _) => {
                    counts.congestion += 1;
                    if let Some((connection, side)) = self.connection(key(queue_pair)) {
                        connection.show(side, &packet, Repeated::No, out);
                    }
                }
                (_, Extended::Deth(_)) if queue_pair == CM_QUEUE_PAIR => {
                    let is_known = self.cm((from, to), &packet, out);
                    out.counts.datagrams += u64::from(!is_known);
                }
                (_, Extended::Deth(_) | Extended::DethImmediate(..)) => counts.datagrams += 1,
                _ => self.packet(key(queue_pair), packet, out),
            }
        }
    }

    /// Returns the connection of a direction, and the direction in it.
    fn connection(&mut self, key: FlowKey) -> Option<(&mut Connection, Side)> {
        let &(id, side) = self.directions.get(&key)?;
        Some((self.connections.get_mut(&id)?, side))
    }

    /// Reports the remaining messages when the capture ends.
    pub(crate) fn finish(&mut self, out: &mut Out<'_>) {
        let mut loose: Vec<_> = self.loose.keys().copied().collect();
        loose.sort_unstable_by_key(|key| self.loose[key].first_frame());
        for key in loose {
            self.read_alone(key, out);
        }
        let mut ids: Vec<_> = self.connections.keys().copied().collect();
        ids.sort_unstable_by_key(|id| (self.connections[id].seen, *id));
        for id in ids {
            self.remove(id, out);
        }
    }

    /// Handles a packet of a reliable connection.
    fn packet(&mut self, key: FlowKey, packet: Packet, out: &mut Out<'_>) {
        if let Some(&(id, side)) = self.directions.get(&key)
            && let Some(connection) = self.connections.get_mut(&id)
        {
            if !connection.is_foreign(side, &packet) {
                feed(connection, &mut self.held_bytes, side, packet, out);
                return;
            }
            // The numbers of the queue pairs were used before by another connection.
            self.remove(id, out);
        }
        if !self.loose.contains_key(&key) && self.loose.len() >= MAX_LOOSE {
            let oldest = self
                .loose
                .iter()
                .min_by_key(|(_, loose)| loose.last_frame());
            if let Some((&oldest, _)) = oldest {
                self.make_room(out);
                self.read_alone(oldest, out);
            }
        }
        let loose = self.loose.entry(key).or_default();
        loose.push(packet);
        let is_full = loose.packets.len() >= MAX_LOOSE_PACKETS;
        self.make_room(out);
        match self.fit(key) {
            Some(Fit::Open(id, side)) => self.join(key, id, side, out),
            Some(Fit::Loose(other)) => self.pair(key, other, out),
            None if is_full => self.read_alone(key, out),
            None => {}
        }
    }

    /// Finds the direction that answers a loose direction, if that is certain.
    fn fit(&self, key: FlowKey) -> Option<Fit> {
        let loose = &self.loose[&key];
        let others = self.loose.iter().filter(|&(other, candidate)| {
            let is_opposite = other.from == key.to && other.to == key.from;
            is_opposite && *other != key && loose.answers(candidate)
        });
        let open = self.open.iter().filter_map(|id| {
            let connection = self.connections.get(id)?;
            let side = Side::BOTH.into_iter().find(|&side| {
                let (from, to) = (&connection.ends[side], &connection.ends[!side]);
                let is_missing = to.number.is_none();
                is_missing && from.address == key.from && to.address == key.to
            })?;
            loose
                .answers_connection(connection, side)
                .then_some(Fit::Open(*id, side))
        });
        let mut fits = others.map(|(&other, _)| Fit::Loose(other)).chain(open);
        let first = fits.next()?;
        fits.next().is_none().then_some(first)
    }

    /// Makes two loose directions a connection.
    fn pair(&mut self, first: FlowKey, second: FlowKey, out: &mut Out<'_>) {
        let (Some(one), Some(other)) = (self.loose.remove(&first), self.loose.remove(&second))
        else {
            return;
        };
        let ends = [
            (first.from, Some(second.queue_pair)),
            (first.to, Some(first.queue_pair)),
        ];
        let id = self.add(Connection::new(ends));
        let first = one.packets.into_iter().map(|packet| (Side::A, packet));
        let second = other.packets.into_iter().map(|packet| (Side::B, packet));
        self.replay(id, first.chain(second).collect(), out);
    }

    /// Adds a loose direction to a connection whose other direction is known.
    fn join(&mut self, key: FlowKey, id: u32, side: Side, out: &mut Out<'_>) {
        let (Some(loose), Some(connection)) =
            (self.loose.remove(&key), self.connections.get_mut(&id))
        else {
            return;
        };
        connection.ends[!side].number = Some(key.queue_pair);
        self.name(id);
        let packets = loose.packets.into_iter().map(|packet| (side, packet));
        self.replay(id, packets.collect(), out);
    }

    /// Reads a loose direction without the other one.
    fn read_alone(&mut self, key: FlowKey, out: &mut Out<'_>) {
        let Some(loose) = self.loose.remove(&key) else {
            return;
        };
        let ends = [(key.from, None), (key.to, Some(key.queue_pair))];
        let id = self.add(Connection::new(ends));
        let packets = loose.packets.into_iter().map(|packet| (Side::A, packet));
        self.replay(id, packets.collect(), out);
    }

    /// Hands the packets that have waited to their connection.
    fn replay(&mut self, id: u32, mut packets: Vec<(Side, Packet)>, out: &mut Out<'_>) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        packets.sort_by_key(|(_, packet)| packet.position.frame);
        let is_smb_direct = packets
            .iter()
            .any(|(_, packet)| recognise_packet(packet).is_some());
        if is_smb_direct {
            let initiator = packets.iter().find_map(|(side, packet)| {
                is_initiator(packet).map(|is| if is { *side } else { !*side })
            });
            connection.expect(initiator, out);
        }
        for (side, packet) in packets {
            feed(connection, &mut self.held_bytes, side, packet, out);
        }
    }

    /// Adds a connection and returns its number.
    pub(super) fn add(&mut self, mut connection: Connection) -> u32 {
        connection.detail = self.detail;
        self.last = self.last.wrapping_add(1);
        self.connections.insert(self.last, connection);
        self.name(self.last);
        self.last
    }

    /// Finds packets of a connection by the queue pairs that are known now.
    pub(super) fn name(&mut self, id: u32) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        self.open.retain(|&open| open != id);
        for side in Side::BOTH {
            match FlowKey::of(connection, side) {
                Some(key) => {
                    self.directions.insert(key, (id, side));
                }
                None if self.open.len() < MAX_OPEN => self.open.push(id),
                None => {}
            }
        }
    }

    /// Returns the connection that a queue pair of an end belongs to, and the direction to it.
    pub(super) fn with_queue_pair(
        &self,
        from: IpAddr,
        to: IpAddr,
        queue_pair: u32,
    ) -> Option<(u32, Side)> {
        let key = FlowKey {
            from,
            to,
            queue_pair,
        };
        self.directions.get(&key).copied()
    }

    /// Ends a connection.
    pub(super) fn remove(&mut self, id: u32, out: &mut Out<'_>) {
        let Some(mut connection) = self.connections.remove(&id) else {
            return;
        };
        self.held_bytes -= connection.held_bytes();
        for side in Side::BOTH {
            if let Some(key) = FlowKey::of(&connection, side)
                && self.directions.get(&key) == Some(&(id, side))
            {
                self.directions.remove(&key);
            }
        }
        self.open.retain(|&open| open != id);
        self.ids.forget(id);
        connection.finish(out);
        if !connection.is_smb_direct() {
            out.counts.other_connections += 1;
        }
    }

    /// Gives up the connections without packets for longest, if there are too many or too much
    /// waits.
    pub(super) fn make_room(&mut self, out: &mut Out<'_>) {
        while self.held_bytes > MAX_HELD_BYTES {
            let most = self
                .connections
                .iter()
                .max_by_key(|(_, connection)| connection.held_bytes());
            let Some((&most, _)) = most else { break };
            self.remove(most, out);
        }
        if self.connections.len() < MAX_CONNECTIONS {
            return;
        }
        let mut seen: Vec<_> = self
            .connections
            .iter()
            .map(|(id, connection)| (connection.seen, *id))
            .collect();
        let half = seen.len() / 2;
        seen.select_nth_unstable(half);
        seen[..half].sort_unstable();
        for (_, id) in &seen[..half] {
            self.remove(*id, out);
        }
    }
}

/// Hands a packet, which may have waited, to its connection, and keeps count of the bytes that wait there.
fn feed(
    connection: &mut Connection,
    held_bytes: &mut usize,
    side: Side,
    packet: Packet,
    out: &mut Out<'_>,
) {
    let before = connection.held_bytes();
    let position = packet.position;
    connection.packet(side, packet, &mut out.at(position));
    *held_bytes = *held_bytes + connection.held_bytes() - before;
}

impl FlowKey {
    /// Returns a direction of a connection, if the queue pair that it goes to is known.
    fn of(connection: &Connection, side: Side) -> Option<Self> {
        let [from, to] = [connection.ends[side], connection.ends[!side]];
        Some(Self {
            from: from.address,
            to: to.address,
            queue_pair: to.number?,
        })
    }
}

impl Loose {
    fn push(&mut self, packet: Packet) {
        let psn = packet.bth.psn;
        if packet.is_request() {
            // The response to a Read takes up to one number for 256 bytes.
            let numbers = match packet.extended.reth() {
                Some(reth) if packet.bth.opcode == Opcode::ReadRequest => {
                    reth.length.div_ceil(256).max(1)
                }
                _ => 1,
            };
            let behind = psn.add(numbers);
            let (first, end) = self.requests.get_or_insert((psn, behind));
            if psn.distance(*first) < 0 {
                *first = psn;
            }
            if behind.distance(*end) > 0 {
                *end = behind;
            }
        } else {
            self.response = Some(psn);
        }
        self.packets.push(packet);
    }

    /// Returns whether one of two directions acknowledges the other.
    fn answers(&self, other: &Self) -> bool {
        self.has_requested(other.response) || other.has_requested(self.response)
    }

    /// Returns whether this direction, which is sent by `side` of the connection, and the other
    /// one of the connection acknowledge each other.
    fn answers_connection(&self, connection: &Connection, side: Side) -> bool {
        let begins = self
            .requests
            .is_some_and(|(first, _)| connection.may_begin(side, first));
        let answers = self
            .response
            .is_some_and(|response| connection.may_answer(!side, response));
        begins || answers || self.has_requested(connection.last_response(!side))
    }

    fn has_requested(&self, response: Option<Psn>) -> bool {
        let (Some((first, end)), Some(response)) = (self.requests, response) else {
            return false;
        };
        response.distance(first) >= 0 && response.distance(end) < 0
    }

    fn first_frame(&self) -> u64 {
        let first = self.packets.first();
        first.map_or(0, |packet| packet.position.frame)
    }

    fn last_frame(&self) -> u64 {
        let last = self.packets.last();
        last.map_or(0, |packet| packet.position.frame)
    }
}
