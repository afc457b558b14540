//! All streams of a capture, and counts of everything else in it.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    time::Duration,
};

use smbdirect::rdma::roce::packet::UDP_PORT;

use super::{
    capture::Packet,
    event::{End, Event, Sender, What, in_order},
    messages::Iwarp,
    packet::{Content, Segment, content},
    roce::Roce,
    silence::Silence,
    tcp::{Connection, Piece, Place},
};

/// Receives events.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(Event);

/// Receives events, and numbers streams.
pub(super) struct Out<'a> {
    /// Number of streams so far.
    pub(super) streams: &'a mut u32,
    pub(super) sink: Sink<'a>,
}

/// The connections of a capture, over TCP and RoCE.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// Ports whose streams are iWARP even if their beginning is not in the capture.
    ports: Vec<u16>,
    /// Ports whose connections are SMB Direct over RoCE.
    roce_ports: Vec<u16>,
    /// UDP ports of RoCE.
    udp_ports: Vec<u16>,
    entries: HashMap<[SocketAddr; 2], Entry>,
    roce: Roce,
    held_bytes: usize,
    streams: u32,
    counts: Counts,
    silence: Silence,
}

/// Counts over the capture.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) packets: u64,
    pub(crate) tcp: u64,
    pub(crate) roce: RoceCounts,
    pub(crate) fragments: u64,
    /// Packets of unknown link layers.
    pub(crate) unknown_links: BTreeMap<u32, u64>,
    /// Packets of which a part is not in the file.
    pub(crate) cut: u64,
    pub(crate) first: Option<Duration>,
    pub(crate) last: Duration,
}

/// Counts of RoCE.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoceCounts {
    pub(crate) packets: u64,
    /// Packets of RoCEv1.
    pub(crate) v1: u64,
    /// Packets of which a part is not in the file.
    pub(crate) cut: u64,
    pub(crate) wrong_icrc: u64,
    /// Packets that cannot be decoded, or are of another transport service.
    pub(crate) undecoded: u64,
    /// Congestion notification packets.
    pub(crate) congestion: u64,
    /// Unreliable datagrams, except those of the CM for a known connection.
    pub(crate) datagrams: u64,
    /// Connections, or directions of some, that do not show SMB Direct.
    pub(crate) other_connections: u64,
}

#[derive(Debug)]
struct Entry {
    /// The sender of the first packet, and its peer.
    ends: [SocketAddr; 2],
    connection: Connection,
    upper: Upper,
    seen: u64,
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

/// Most connections that are followed at the same time; above, those without packets for longest
/// are given up.
const MAX_CONNECTIONS: usize = 2048;
/// Most bytes of all streams that wait for missing bytes.
const MAX_HELD_BYTES: usize = 256 << 20;
/// The port of SMB Direct over iWARP.
pub(crate) const PORT: u16 = 5445;
/// The port of SMB Direct over RoCE.
const ROCE_PORT: u16 = 445;

impl Streams {
    pub(crate) fn new(ports: &[u16], udp_ports: &[u16]) -> Self {
        Self {
            ports: [&[PORT], ports].concat(),
            roce_ports: [&[ROCE_PORT, PORT], ports].concat(),
            udp_ports: [&[UDP_PORT], udp_ports].concat(),
            ..Self::default()
        }
    }

    pub(crate) const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Takes the next packet.
    pub(crate) fn packet(&mut self, packet: &Packet<'_>, sink: Sink<'_>) {
        let mut silence = std::mem::take(&mut self.silence);
        self.examine(packet, &mut |event| {
            silence.event(&event).into_iter().for_each(&mut *sink);
            sink(event);
        });
        self.silence = silence;
    }

    fn examine(&mut self, packet: &Packet<'_>, sink: Sink<'_>) {
        let counts = &mut self.counts;
        counts.packets += 1;
        counts.first.get_or_insert(packet.time);
        counts.last = counts.last.max(packet.time);
        match content(packet, &self.udp_ports) {
            Content::Tcp(segment) => {
                counts.tcp += 1;
                counts.cut += u64::from(segment.missing > 0);
                let place = Place {
                    frame: packet.frame,
                    time: packet.time,
                };
                self.segment(&segment, place, sink);
            }
            Content::Roce(datagram) => {
                let place = Place {
                    frame: packet.frame,
                    time: packet.time,
                };
                let mut out = Out {
                    streams: &mut self.streams,
                    sink,
                };
                let counts = &mut counts.roce;
                let ports = &self.roce_ports;
                self.roce
                    .datagram(&datagram, place, ports, counts, &mut out);
            }
            Content::Fragment => counts.fragments += 1,
            Content::UnknownLink(link) => {
                // A real file has few streams; a file with more is crafted.
                if counts.unknown_links.len() < 64 || counts.unknown_links.contains_key(&link) {
                    *counts.unknown_links.entry(link).or_default() += 1;
                }
            }
            Content::Other => {}
        }
    }

    /// Reports what is left when the capture ends.
    pub(crate) fn finish(&mut self, sink: Sink<'_>) {
        let mut entries: Vec<_> = self.entries.drain().map(|(_, entry)| entry).collect();
        entries.sort_by_key(|entry| entry.seen);
        for mut entry in entries {
            entry.finish(&mut self.streams, sink);
        }
        let mut out = Out {
            streams: &mut self.streams,
            sink,
        };
        self.roce.finish(&mut self.counts.roce, &mut out);
    }

    fn segment(&mut self, segment: &Segment<'_>, place: Place, sink: Sink<'_>) {
        let key = match segment.from <= segment.to {
            true => [segment.from, segment.to],
            false => [segment.to, segment.from],
        };
        if let Some(entry) = self.entries.get_mut(&key)
            && entry.connection.is_another(entry.way(segment), segment)
        {
            // The ports were used before by another connection.
            let mut entry = self.entries.remove(&key).expect("it was just there");
            self.held_bytes -= entry.connection.held_bytes();
            entry.finish(&mut self.streams, sink);
        }
        if self.entries.len() >= MAX_CONNECTIONS && !self.entries.contains_key(&key) {
            self.make_room(sink);
        }
        let ports = &self.ports;
        let entry = self
            .entries
            .entry(key)
            .or_insert_with(|| Entry::new(segment, ports));
        entry.seen = place.frame;
        let before = entry.connection.held_bytes();
        entry.segment(segment, place, &mut self.streams, sink);
        if self.held_bytes + entry.connection.held_bytes() > MAX_HELD_BYTES + before {
            entry.flush(&mut self.streams, sink);
        }
        self.held_bytes = self.held_bytes + entry.connection.held_bytes() - before;
    }

    /// Gives up streams that have ended or are not iWARP, and if that is not enough, those without
    /// packets for longest.
    fn make_room(&mut self, sink: Sink<'_>) {
        self.entries
            .retain(|_, entry| !matches!(entry.upper, Upper::Nothing));
        if self.entries.len() > MAX_CONNECTIONS / 2 {
            let mut seen: Vec<_> = self.entries.values().map(|entry| entry.seen).collect();
            let (_, &mut middle, _) = seen.select_nth_unstable(MAX_CONNECTIONS / 2);
            let old: Vec<_> = self
                .entries
                .extract_if(|_, entry| entry.seen <= middle)
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

impl Entry {
    fn new(segment: &Segment<'_>, ports: &[u16]) -> Self {
        let mut iwarp = Box::new(Iwarp::default());
        let ends = [segment.from, segment.to];
        if let Some(way) = ends.iter().position(|end| ports.contains(&end.port())) {
            iwarp.expect(1 - way);
        }
        Self {
            ends,
            connection: Connection::default(),
            upper: Upper::Undecided(iwarp),
            seen: 0,
        }
    }

    fn way(&self, segment: &Segment<'_>) -> usize {
        usize::from(self.ends[0] != segment.from)
    }

    fn segment(&mut self, segment: &Segment<'_>, place: Place, streams: &mut u32, sink: Sink<'_>) {
        let way = self.way(segment);
        if segment.syn
            && let Upper::Undecided(iwarp) | Upper::Iwarp { iwarp, .. } = &mut self.upper
        {
            iwarp.begins(way, segment.acknowledged.is_none());
        }
        if matches!(self.upper, Upper::Nothing) {
            return;
        }
        let (ends, upper) = (self.ends, &mut self.upper);
        self.connection
            .segment(way, segment, place, &mut |way, piece, place| {
                upper.piece(way, &piece, place, ends, streams, sink);
            });
        if self.connection.has_ended() {
            self.upper = Upper::Nothing;
        }
        if matches!(self.upper, Upper::Nothing) {
            self.connection.forget();
        }
    }

    /// Reports what waits for bytes that will not come.
    fn flush(&mut self, streams: &mut u32, sink: Sink<'_>) {
        let (ends, upper) = (self.ends, &mut self.upper);
        self.connection.flush(&mut |way, piece, place| {
            upper.piece(way, &piece, place, ends, streams, sink);
        });
    }

    fn finish(&mut self, streams: &mut u32, sink: Sink<'_>) {
        self.flush(streams, sink);
        self.upper = Upper::Nothing;
    }
}

impl Upper {
    fn piece(
        &mut self,
        way: usize,
        piece: &Piece<'_>,
        place: Place,
        ends: [SocketAddr; 2],
        streams: &mut u32,
        sink: Sink<'_>,
    ) {
        let (mut number, iwarp) = match self {
            Self::Undecided(iwarp) => (None, iwarp),
            Self::Iwarp { stream, iwarp } => (Some(*stream), iwarp),
            Self::Nothing => return,
        };
        let goes_on = iwarp.piece(way, piece, &mut |way, what, broken, known| {
            let mut tell = |stream, what, broken| {
                sink(Event {
                    stream,
                    place,
                    from: Sender::of(way, known.initiator),
                    what,
                    credits: in_order(known.smb.credits(), known.initiator),
                    broken,
                });
            };
            let stream = *number.get_or_insert_with(|| {
                *streams += 1;
                let ends = in_order(ends, known.initiator).map(End::Tcp);
                let whole = known.from_start;
                tell(*streams, What::Stream { ends, whole }, Vec::new());
                *streams
            });
            tell(stream, what, broken);
        });
        if !goes_on {
            *self = Self::Nothing;
        } else if let (Self::Undecided(iwarp), Some(stream)) = (&mut *self, number) {
            let iwarp = std::mem::take(iwarp);
            *self = Self::Iwarp { stream, iwarp };
        }
    }
}
