//! All streams of a capture, and counts of everything else in it.

use std::{
    collections::{HashMap, VecDeque},
    net::SocketAddr,
    time::Duration,
};

use smbdirect::rdma::roce::packet::UDP_PORT;

use super::{
    capture::Packet,
    counts::Counts,
    event::{Detail, End, EventKind, Told},
    messages::Iwarp,
    out::{Out, Sink},
    packet::{Content, Segment, content},
    peel::OTHER_UDP,
    per_end::{PerEnd, Side},
    roce::Roce,
    tcp::{Another, Connection, LATE_PACKETS, Piece, Position, TcpPacket, Watch},
};

/// The connections of a capture, over TCP and RoCE.
#[derive(Debug, Default)]
pub struct Streams {
    /// Ports whose streams are iWARP even if their beginning is not in the capture.
    ports: Vec<u16>,
    /// Ports whose connections are SMB Direct over RoCE.
    roce_ports: Vec<u16>,
    /// UDP ports of RoCE.
    udp_ports: Vec<u16>,
    entries: HashMap<[SocketAddr; 2], Entry>,
    /// The frames of RSTs, and their connections, which end when no packet from before can come.
    resets: VecDeque<(u64, [SocketAddr; 2])>,
    roce: Roce,
    held_bytes: usize,
    streams: u32,
    /// The time of the first packet.
    start: Option<Duration>,
    counts: Counts,
    detail: Detail,
    plain_smb: Option<PlainSmb>,
    /// The sender and the receiver of the last packet, if it was one of SMB over TCP.
    plain_packet: Option<[SocketAddr; 2]>,
    /// Whether the last packet was one of TCP without data.
    is_without_data: bool,
}

/// TCP to and from the port of SMB over TCP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainSmb {
    pub(crate) bytes: u64,
    /// The first and the last packet with data.
    pub(crate) first: Position,
    pub(crate) last: Position,
}

#[derive(Debug)]
struct Entry {
    /// The sender of the first packet, and its peer.
    ends: [SocketAddr; 2],
    connection: Connection,
    upper: Upper,
    seen: u64,
    watch: Option<Watched>,
}

/// The packets of a connection, and those that wait until it is known whether it is iWARP.
#[derive(Debug, Default)]
struct Watched {
    watch: Watch,
    waiting: Vec<(Side, Position, TcpPacket)>,
}

#[derive(Debug)]
enum Upper {
    /// Waits for the first bytes.
    Undecided(Box<Iwarp>),
    Iwarp {
        stream: u32,
        iwarp: Box<Iwarp>,
    },
    /// Another protocol, or a stream that has ended.
    Nothing,
}

/// Maximum number of connections that are followed at the same time; beyond that, the connections without packets
/// for longest are given up.
const MAX_CONNECTIONS: usize = 2048;
/// If at least this many connections have carried no data, only connections without data are given up.
const MIN_ROOM: usize = 64;
/// Maximum number of bytes of all streams that wait for missing bytes.
const MAX_HELD_BYTES: usize = 256 << 20;
/// Maximum number of packets of a connection that wait until it is known whether it is iWARP.
const MAX_WAITING: usize = 256;
/// The port of SMB Direct over iWARP.
pub(crate) const PORT: u16 = 5445;
/// The port of SMB over TCP.
const SMB_PORT: u16 = 445;
/// The ports of SMB over TCP, and of SMB in sessions of NetBIOS.
const PLAIN_PORTS: [u16; 2] = [SMB_PORT, 139];
/// The first bytes of the startup frames of MPA.
const MPA_KEY: &[u8] = b"MPA ID Re";
/// The port of SMB Direct over RoCE.
const ROCE_PORT: u16 = 445;

impl Streams {
    /// Follows connections to the ports of SMB Direct and to `ports`, and reads RoCE on its UDP port and on
    /// `udp_ports`.
    pub fn new(ports: &[u16], udp_ports: &[u16]) -> Self {
        Self {
            ports: [&[PORT], ports].concat(),
            roce_ports: [&[ROCE_PORT, PORT], ports].concat(),
            udp_ports: [&[UDP_PORT], udp_ports].concat(),
            ..Self::default()
        }
    }

    /// Makes events carry more than is printed.
    pub(crate) fn with_detail(mut self, detail: Detail) -> Self {
        self.detail = detail;
        self.roce.detail = detail;
        self
    }

    /// Returns what went over TCP to and from the port of SMB over TCP.
    pub(crate) const fn plain_smb(&self) -> Option<PlainSmb> {
        self.plain_smb
    }

    /// Returns the sender and the receiver of the last packet, if it was one of SMB over TCP, with data or without.
    pub(crate) const fn plain_packet(&self) -> Option<[SocketAddr; 2]> {
        self.plain_packet
    }

    /// Returns whether the last packet was one of TCP without data.
    pub(crate) const fn is_without_data(&self) -> bool {
        self.is_without_data
    }

    /// Returns the counts up to now.
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Takes the next packet.
    pub fn packet(&mut self, packet: &Packet<'_>, sink: Sink<'_>) {
        (self.plain_packet, self.is_without_data) = (None, false);
        let counts = &mut self.counts;
        counts.packets += 1;
        let start = *self.start.get_or_insert(packet.time);
        let position = Position {
            frame: packet.frame,
            time: packet.time,
            seconds: packet.time.saturating_sub(start).as_secs_f64(),
        };
        while let Some((frame, key)) = self
            .resets
            .pop_front_if(|(frame, _)| *frame + LATE_PACKETS < packet.frame)
        {
            if let Some(entry) = self.entries.get_mut(&key) {
                self.held_bytes -= entry.connection.held_bytes();
                entry.settle(frame, &mut self.streams, sink);
                self.held_bytes += entry.connection.held_bytes();
            }
        }
        match content(packet, &self.udp_ports) {
            Content::Tcp(segment) => {
                counts.tcp += 1;
                counts.cut += u64::from(segment.missing > 0);
                let ports = [segment.head.from.port(), segment.head.to.port()];
                let bytes = segment.payload.len() as u64 + u64::from(segment.missing);
                if bytes > 0 && ports.contains(&SMB_PORT) && !self.ports.contains(&SMB_PORT) {
                    let plain = self.plain_smb.get_or_insert(PlainSmb {
                        bytes: 0,
                        first: position,
                        last: position,
                    });
                    plain.bytes += bytes;
                    plain.last = position;
                }
                self.segment(&segment, position, sink);
                let ends = [segment.head.from, segment.head.to];
                self.plain_packet = self.is_of_plain_smb(&segment).then_some(ends);
                self.is_without_data = bytes == 0;
            }
            Content::Roce(datagram) => {
                let mut out = Out {
                    streams: &mut self.streams,
                    counts: &mut counts.roce,
                    ports: &self.roce_ports,
                    sink,
                    position,
                };
                self.roce.datagram(&datagram, &mut out);
            }
            Content::Fragment => counts.fragments += 1,
            Content::Unread(unread) => counts.count_unread(unread),
            Content::Other => {}
        }
    }

    /// Reports the remaining events when the capture ends.
    pub fn finish(&mut self, sink: Sink<'_>) {
        let mut entries: Vec<_> = self.entries.drain().map(|(_, entry)| entry).collect();
        entries.sort_by_key(|entry| entry.seen);
        for mut entry in entries {
            entry.finish(&mut self.streams, sink);
        }
        let mut out = Out {
            streams: &mut self.streams,
            counts: &mut self.counts.roce,
            ports: &self.roce_ports,
            sink,
            position: Position::default(),
        };
        self.roce.finish(&mut out);
    }

    /// Returns whether a packet is of SMB over TCP: it is to or from the port of SMB, and its connection is not iWARP.
    fn is_of_plain_smb(&self, segment: &Segment<'_>) -> bool {
        let is_of = |port: &u16| {
            let ends = [segment.head.from, segment.head.to];
            ends.iter().any(|end| end.port() == *port)
        };
        let entry = self.entries.get(&key(segment));
        let is_iwarp = entry.is_some_and(|entry| matches!(entry.upper, Upper::Iwarp { .. }))
            || segment.payload.starts_with(MPA_KEY);
        PLAIN_PORTS.iter().any(is_of) && !self.ports.iter().any(is_of) && !is_iwarp
    }

    fn segment(&mut self, segment: &Segment<'_>, position: Position, sink: Sink<'_>) {
        let key = key(segment);
        let mut begun = None;
        if let Some(entry) = self.entries.get_mut(&key) {
            match entry
                .connection
                .another(entry.side(segment), segment, position)
            {
                Another::No => {}
                Another::Stray => return,
                Another::Yes(first) => {
                    // The ports were used before by another connection.
                    begun = first;
                    let mut entry = self
                        .entries
                        .remove(&key)
                        .expect("the entry was found above");
                    self.held_bytes -= entry.connection.held_bytes();
                    entry.finish(&mut self.streams, sink);
                }
            }
        }
        if self.entries.len() >= MAX_CONNECTIONS && !self.entries.contains_key(&key) {
            self.make_room(sink);
        }
        if let Some((head, position)) = begun {
            let syn = Segment {
                head,
                payload: &[],
                missing: 0,
            };
            self.take(key, &syn, position, sink);
        }
        self.take(key, segment, position, sink);
    }

    fn take(
        &mut self,
        key: [SocketAddr; 2],
        segment: &Segment<'_>,
        position: Position,
        sink: Sink<'_>,
    ) {
        let (ports, detail) = (&self.ports, self.detail);
        let entry = self
            .entries
            .entry(key)
            .or_insert_with(|| Entry::new(segment, ports, detail));
        entry.seen = position.frame;
        let before = entry.connection.held_bytes();
        entry.segment(segment, position, &mut self.streams, sink);
        if self.held_bytes + entry.connection.held_bytes() > MAX_HELD_BYTES + before {
            entry.flush(&mut self.streams, sink);
        }
        self.held_bytes = self.held_bytes + entry.connection.held_bytes() - before;
        if entry.connection.reset_frame() == Some(position.frame) {
            self.resets.push_back((position.frame, key));
        }
    }

    /// Gives up streams that have ended or are not iWARP, and if that is not enough, those that
    /// have had no data, and then those without packets for longest.
    fn make_room(&mut self, sink: Sink<'_>) {
        self.entries
            .retain(|_, entry| !matches!(entry.upper, Upper::Nothing));
        if self.entries.len() > MAX_CONNECTIONS / 2 {
            let rank = |entry: &Entry| (entry.connection.has_data, entry.seen);
            let mut ranks: Vec<_> = self.entries.values().map(rank).collect();
            let without_data = ranks.iter().filter(|(has_data, _)| !has_data).count();
            let excess = match without_data {
                0..MIN_ROOM => ranks.len() - MAX_CONNECTIONS / 2,
                // The newest of them may be about to begin.
                _ => without_data / 2,
            };
            let (_, &mut middle, _) = ranks.select_nth_unstable(excess);
            let old: Vec<_> = self
                .entries
                .extract_if(|_, entry| rank(entry) <= middle)
                .collect();
            for (_, mut entry) in old {
                entry.finish(&mut self.streams, sink);
            }
        }
        let held = self
            .entries
            .values()
            .map(|entry| entry.connection.held_bytes());
        self.held_bytes = held.sum();
    }
}

/// Returns the key of the connection of a packet.
fn key(segment: &Segment<'_>) -> [SocketAddr; 2] {
    let [from, to] = [segment.head.from, segment.head.to];
    [from.min(to), from.max(to)]
}

impl Counts {
    fn count_unread(&mut self, unread: String) {
        // A real file has few kinds of packets that are not understood. Each UDP port counts as a kind, and
        // clients use many ports, so UDP has a limit of its own.
        let limit = 64 >> usize::from(unread.starts_with(OTHER_UDP));
        if self.unread.len() < limit || self.unread.contains_key(&unread) {
            *self.unread.entry(unread).or_default() += 1;
        }
    }
}

impl Entry {
    fn new(segment: &Segment<'_>, ports: &[u16], detail: Detail) -> Self {
        let mut iwarp = Box::new(Iwarp::new(detail));
        let ends = [segment.head.from, segment.head.to];
        let [is_of_a, is_of_b] = ends.map(|end| ports.contains(&end.port()));
        if is_of_a {
            iwarp.expect(Side::B);
        } else if is_of_b {
            iwarp.expect(Side::A);
        }
        Self {
            ends,
            connection: Connection::default(),
            upper: Upper::Undecided(iwarp),
            seen: 0,
            watch: (detail != Detail::None).then(Watched::default),
        }
    }

    fn side(&self, segment: &Segment<'_>) -> Side {
        if self.ends[0] == segment.head.from {
            Side::A
        } else {
            Side::B
        }
    }

    fn segment(
        &mut self,
        segment: &Segment<'_>,
        position: Position,
        streams: &mut u32,
        sink: Sink<'_>,
    ) {
        let side = self.side(segment);
        if matches!(self.upper, Upper::Nothing) {
            return;
        }
        if let Some(watched) = &mut self.watch {
            let packet = watched.watch.packet(side, segment, position.time);
            watched.waiting.push((side, position, packet));
            self.tell_packets(sink);
        }
        let (ends, upper) = (self.ends, &mut self.upper);
        self.connection
            .segment(side, segment, position, &mut |side, piece, position| {
                upper.piece(side, &piece, position, ends, streams, sink);
            });
        if self.connection.ended {
            self.upper = Upper::Nothing;
        }
        if matches!(self.upper, Upper::Nothing) {
            self.connection.forget();
        }
    }

    /// Reports the packets, once it is known that the connection is iWARP.
    fn tell_packets(&mut self, sink: Sink<'_>) {
        let Some(watched) = &mut self.watch else {
            return;
        };
        let Upper::Iwarp { stream, iwarp } = &self.upper else {
            if watched.waiting.len() > MAX_WAITING {
                watched.waiting.clear();
            }
            return;
        };
        let initiator = iwarp.initiator();
        for (side, position, packet) in watched.waiting.drain(..) {
            let told = Told::from(EventKind::TcpPacket(packet));
            sink(told.event(*stream, position, (side, initiator), PerEnd::default()));
        }
    }

    /// Ends the connection if the RST of this frame has reset it.
    fn settle(&mut self, frame: u64, streams: &mut u32, sink: Sink<'_>) {
        let (ends, upper) = (self.ends, &mut self.upper);
        self.connection.settle(frame, &mut |side, piece, position| {
            upper.piece(side, &piece, position, ends, streams, sink);
        });
        if self.connection.ended {
            self.upper = Upper::Nothing;
        }
    }

    /// Reports the items that wait for bytes that will not arrive.
    fn flush(&mut self, streams: &mut u32, sink: Sink<'_>) {
        let (ends, upper) = (self.ends, &mut self.upper);
        self.connection.flush(&mut |side, piece, position| {
            upper.piece(side, &piece, position, ends, streams, sink);
        });
    }

    fn finish(&mut self, streams: &mut u32, sink: Sink<'_>) {
        if let Some(frame) = self.connection.reset_frame() {
            self.settle(frame, streams, sink);
        }
        self.flush(streams, sink);
        self.tell_packets(sink);
        self.upper = Upper::Nothing;
    }
}

impl Upper {
    fn piece(
        &mut self,
        side: Side,
        piece: &Piece<'_>,
        position: Position,
        ends: [SocketAddr; 2],
        streams: &mut u32,
        sink: Sink<'_>,
    ) {
        let (mut number, iwarp) = match self {
            Self::Undecided(iwarp) => (None, iwarp),
            Self::Iwarp { stream, iwarp } => (Some(*stream), iwarp),
            Self::Nothing => return,
        };
        let goes_on = iwarp.piece(side, piece, position, &mut |side, told, connection| {
            let ends_of_event = (side, connection.initiator);
            let credits = connection.smb.credits();
            let stream = *number.get_or_insert_with(|| {
                *streams += 1;
                let begins = Told::from(EventKind::Stream {
                    ends: PerEnd(ends.map(End::Tcp)),
                    initiator: connection.initiator,
                    from_start: connection.from_start,
                });
                sink(begins.event(*streams, position, ends_of_event, credits));
                *streams
            });
            sink(told.event(stream, position, ends_of_event, credits));
        });
        if !goes_on {
            *self = Self::Nothing;
        } else if let (Self::Undecided(iwarp), Some(stream)) = (&mut *self, number) {
            let iwarp = std::mem::take(iwarp);
            *self = Self::Iwarp { stream, iwarp };
        }
    }
}
