//! Explains where the time of a capture's connections went, and what makes them slow.
//!
//! ```text
//! operations   SMB2 messages, RDMA       -> requests and their stages
//! path         packets of TCP and RoCE   -> round trips, losses, windows
//! timeline     stages, credits, packets  -> each instant in one phase, by one cause
//! verdict      the sums of all           -> the largest causes, their evidence and cures
//! ```
//!
//! What the capture does not show never counts: not for a cause, and not against one. The time of a request counts when its
//! answer is seen ([`waits`]), the rest is not seen; and of the causes only those are named that are larger than that.
//!
//! A capture is read once. Each connection keeps at most 65536 things that happened until they are in order, and all
//! connections together at most [`MAX_MARKS`].

mod account;
mod cause;
mod clock;
mod operations;
mod path;
mod report;
mod timeline;
mod verdict;
mod waits;

use std::{collections::BTreeMap, time::Duration};

use smbdirect_smb::smb2::{Header, Protocol};

use self::{
    clock::Clock,
    operations::{Operations, nanos},
    path::{Path, Signs},
    timeline::{Mark, Timeline, What},
};
use crate::{
    assembly::{Assembly, Message},
    capture::Packet,
    event::{DataTransfer, Detail, End, Event, EventKind, Payload},
    per_end::{PerEnd, Role, Side},
    streams::Streams,
    tcp::Position,
};
pub use cause::{Cause, Limit, Phase};
pub use report::{
    CauseReport, ConnectionReport, Evidence, Explanation, InMessages, PathReport, PhaseReport,
    RequestReport, Verdict,
};

/// Reads a capture, and explains it at its end.
///
/// ```
/// use smbdirect_decode::{Explain, Packets};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = "../smbdirect/tests/captures/siw-negotiate.pcap";
/// let mut packets = Packets::new(std::fs::File::open(path)?)?;
/// let mut explain = Explain::new(&[], &[]);
/// while let Some(packet) = packets.next_packet()? {
///     explain.packet(&packet);
/// }
/// let explanation = explain.finish();
/// assert_eq!(explanation.connections.len(), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Explain {
    streams: Streams,
    connections: BTreeMap<u32, Connection>,
    /// Marks of all connections that wait.
    marks: usize,
    clock: Clock,
    /// Connections beyond [`MAX_CONNECTIONS`].
    ignored: u64,
}

/// A connection.
#[derive(Debug)]
struct Connection {
    ends: PerEnd<End>,
    from_start: bool,
    assembly: Assembly,
    operations: Operations,
    path: Path,
    timeline: Timeline,
    first: Position,
    last: Position,
    fewest_send_credits: PerEnd<Option<u32>>,
    /// Whether each end had send credits to spare in the last mark.
    had_credits: PerEnd<Option<bool>>,
    gaps: u64,
    /// Messages whose SMB2 header is not all in the capture.
    headless: u64,
    has_ended: bool,
}

/// Maximum number of marks of all connections that wait to be sorted: about 150 MB.
const MAX_MARKS: usize = 2 << 20;
/// Maximum number of connections that are explained. A hostile capture can have any number of them.
const MAX_CONNECTIONS: usize = 1000;
/// Maximum number of bytes of a message that are kept.
const MAX_HEAD_BYTES: usize = 4096;
/// Packets of one end within this time of each other are one mark.
const PACKET_INTERVAL: u64 = 50_000;

impl Explain {
    /// Explains connections to the ports of SMB Direct and to `ports`, and RoCE on its UDP port and on
    /// `udp_ports`.
    pub fn new(ports: &[u16], udp_ports: &[u16]) -> Self {
        Self {
            streams: Streams::new(ports, udp_ports).with_detail(Detail::Heads),
            connections: BTreeMap::new(),
            marks: 0,
            clock: Clock::default(),
            ignored: 0,
        }
    }

    /// Takes the next packet.
    pub fn packet(&mut self, packet: &Packet<'_>) {
        self.clock.packet(packet.time, packet.frame);
        let Self {
            streams,
            connections,
            marks,
            ignored,
            ..
        } = self;
        streams.packet(packet, &mut |event| {
            take(connections, marks, ignored, &event);
        });
        if self.marks > MAX_MARKS {
            for connection in self.connections.values_mut() {
                let half = connection.timeline.waiting() / 2;
                connection.settle(half);
            }
            let waiting = |connection: &Connection| connection.timeline.waiting();
            self.marks = self.connections.values().map(waiting).sum();
        }
    }

    /// Returns the number of packets so far, and how many of them are of TCP.
    pub const fn counts(&self) -> &crate::Counts {
        self.streams.counts()
    }

    /// Ends the capture, and explains it.
    pub fn finish(mut self) -> Explanation {
        let Self {
            streams,
            connections,
            marks,
            ignored,
            ..
        } = &mut self;
        streams.finish(&mut |event| take(connections, marks, ignored, &event));
        for connection in self.connections.values_mut() {
            connection.finish(self.clock.latest);
        }
        let fault = self.clock.fault();
        let mut unseen: Vec<String> = fault.iter().cloned().collect();
        unseen.extend(self.cut());
        unseen.extend(verdict::unseen(&self.connections));
        if self.ignored > 0 {
            unseen.push(format!(
                "{} more connections are not explained.",
                self.ignored
            ));
        }
        let uses_rdma = self
            .connections
            .values()
            .any(|connection| connection.requests() > 0);
        let verdict = match self.streams.plain_smb() {
            Some(plain) if !uses_rdma => verdict::without_rdma(plain),
            plain => {
                unseen.extend(plain.map(|plain| {
                    format!(
                        "{} bytes went over TCP to or from port 445: SMB without RDMA, which is not explained.",
                        plain.bytes
                    )
                }));
                verdict::verdict(&self.connections, fault.is_none())
            }
        };
        Explanation {
            verdict,
            connections: verdict::connections(&self.connections),
            unseen,
        }
    }

    /// Says what packets that are cut short do not show.
    fn cut(&self) -> Option<String> {
        let counts = self.streams.counts();
        let cut = counts.cut + counts.roce.cut;
        let of_all =
            |of: fn(&Connection) -> u64| -> u64 { self.connections.values().map(of).sum() };
        let headless = of_all(|connection| connection.headless);
        let hidden = of_all(|connection| connection.operations.hidden);
        if headless > 0 {
            return Some(format!(
                "{headless} messages are cut before the end of their SMB2 header, and cannot be explained: capture 256 bytes of each packet, or all (tcpdump -s 256, -s 0)."
            ));
        }
        (cut > 0).then(|| {
            let what = if hidden > 0 {
                format!("and the answers of {hidden} requests with them: their time is not seen. Capture whole packets (tcpdump -s 0)")
            } else {
                "and what is in their headers is explained".into()
            };
            format!("{cut} packets are cut short, {what}.")
        })
    }
}

/// Hands an event to its connection.
fn take(
    connections: &mut BTreeMap<u32, Connection>,
    marks: &mut usize,
    ignored: &mut u64,
    event: &Event,
) {
    if let EventKind::Stream {
        ends,
        initiator,
        from_start,
    } = event.kind
    {
        if connections.len() < MAX_CONNECTIONS {
            let ends = ends.initiator_first(initiator);
            let connection = Connection::new(PerEnd(ends), from_start, event.position);
            connections.insert(event.stream, connection);
        } else {
            *ignored += 1;
        }
    } else if let Some(connection) = connections.get_mut(&event.stream) {
        let before = connection.timeline.waiting();
        connection.event(event);
        *marks = (*marks + connection.timeline.waiting()).saturating_sub(before);
    }
}

impl Connection {
    fn new(ends: PerEnd<End>, from_start: bool, first: Position) -> Self {
        Self {
            ends,
            from_start,
            assembly: Assembly::default(),
            operations: Operations::default(),
            path: Path::default(),
            timeline: Timeline::new(from_start),
            first,
            last: first,
            fewest_send_credits: PerEnd::default(),
            had_credits: PerEnd::default(),
            gaps: 0,
            headless: 0,
            has_ended: false,
        }
    }

    fn event(&mut self, event: &Event) {
        if event.position.time > self.last.time {
            self.last = event.position;
        }
        match &event.kind {
            EventKind::DataTransfer(transfer) => {
                self.send_credits(event);
                self.assembly.client = event.initiator.or(self.assembly.client);
                let message = self.assembly.transfer(event, transfer, MAX_HEAD_BYTES);
                if lacks_header(event, transfer) || message.as_ref().is_some_and(is_headless) {
                    self.headless += 1;
                    self.lost(event.position);
                } else if let (Some(message), Some(client)) = (message, self.assembly.client) {
                    let (from_start, from) = (self.from_start, Role::of(message.from, client));
                    self.with_operations(|operations, marks| {
                        operations.message(&message, from, from_start, marks);
                    });
                }
            }
            EventKind::Gap { .. } | EventKind::MissingPackets { .. } => {
                if event.extra.hidden.is_some() {
                    self.cut(event);
                    return;
                }
                self.gaps += 1;
                let at = event.position;
                if matches!(event.kind, EventKind::MissingPackets { .. }) {
                    self.mark(nanos(at), at.frame, What::Gap);
                }
                self.lost(at);
            }
            EventKind::Closed { .. } if !self.has_ended => {
                self.has_ended = true;
                self.with_operations(|operations, marks| operations.finish(event.position, marks));
            }
            _ => {
                self.rdma(event);
                self.packet(event);
            }
        }
    }

    /// The capture lacks something of both ends.
    fn lost(&mut self, at: Position) {
        for end in Side::BOTH {
            self.assembly.lost(end);
        }
        self.with_operations(|operations, marks| operations.lost(at, marks));
    }

    /// Takes bytes that are cut, of packets that are in the capture.
    fn cut(&mut self, event: &Event) {
        let at = event.position;
        let from = self.sender(event);
        self.assembly.lost(event.from);
        self.with_operations(|operations, marks| operations.cut(from, at, marks));
    }

    /// Takes an RDMA operation.
    fn rdma(&mut self, event: &Event) {
        let at = event.position;
        let places = [event.extra.began.unwrap_or(at), at];
        self.with_operations(|operations, marks| match &event.kind {
            EventKind::Write(tagged) => operations.data(tagged.stag, tagged.length, places, marks),
            EventKind::ReadRequest(read) => {
                operations.read(read.source_stag, Some(read.sink_stag), at, marks);
            }
            EventKind::ReadResponse(tagged) => {
                operations.read_response(Some(tagged.stag), tagged.length, at, marks);
            }
            EventKind::RoceWrite(region) => {
                if let Some(reth) = region.reth {
                    operations.data(reth.r_key, region.length, places, marks);
                }
            }
            EventKind::RoceReadRequest(reth) => operations.read(reth.r_key, None, at, marks),
            EventKind::RoceReadResponse(region) => {
                let token = region.reth.map(|reth| reth.r_key);
                operations.read_response(token, region.length, at, marks);
            }
            _ => {}
        });
    }

    /// Takes what a packet says about the path.
    fn packet(&mut self, event: &Event) {
        let mut signs = Signs::default();
        self.path.event(event, self.sender(event), &mut signs);
        for (time, what) in signs.marks {
            self.mark(time, event.position.frame, what);
        }
    }

    /// Returns the sender of an event. Without any sign, the first end counts as the client.
    fn sender(&self, event: &Event) -> Role {
        let client = event.initiator.or(self.assembly.client);
        Role::of(event.from, client.unwrap_or(Side::A))
    }

    fn send_credits(&mut self, event: &Event) {
        let held = event.credits.initiator_first(event.initiator);
        for (fewest, credits) in self.fewest_send_credits.iter_mut().zip(held) {
            if let Some(credits) = credits {
                *fewest = Some(fewest.map_or(credits, |fewest| fewest.min(credits)));
            }
        }
        let has_credits = PerEnd(held.map(|credits| credits.map(|credits| credits > 1)));
        if has_credits != self.had_credits {
            self.had_credits = has_credits;
            let what = What::SendCredits(PerEnd(held));
            self.mark(nanos(event.position), event.position.frame, what);
        }
    }

    fn with_operations(
        &mut self,
        run: impl FnOnce(&mut Operations, &mut dyn FnMut(Position, What)),
    ) {
        let round_trips = self.path.round_trips();
        let Self {
            operations,
            timeline,
            ..
        } = self;
        run(operations, &mut |at: Position, what| {
            let mark = Mark {
                time: nanos(at),
                frame: at.frame,
                what,
            };
            timeline.push(mark, round_trips);
        });
    }

    fn mark(&mut self, time: u64, frame: u64, what: What) {
        let round_trips = self.path.round_trips();
        self.timeline.push(Mark { time, frame, what }, round_trips);
    }

    fn settle(&mut self, count: usize) {
        self.timeline.settle(count, self.path.round_trips());
    }

    /// Ends the capture at a time.
    fn finish(&mut self, end: Duration) {
        // Until then the answers could have come.
        if self.operations.is_waiting() && !self.path.lacks_an_end() {
            self.last.time = end.max(self.last.time);
        }
        let (time, frame) = (nanos(self.last), self.last.frame);
        let mut signs = Signs::default();
        self.path.finish(time, &mut signs);
        for (time, what) in signs.marks {
            self.mark(time, frame, what);
        }
        let at = self.last;
        self.with_operations(|operations, marks| operations.finish(at, marks));
        let what = What::Packet {
            from: Role::Client,
            has_data: false,
            acknowledges: false,
            bytes: 0,
        };
        self.mark(time, frame, what);
        self.timeline.finish(self.path.round_trips());
        self.timeline.account.end_run();
    }

    /// Returns the bytes of data that moved.
    fn bytes(&self) -> u64 {
        self.operations.rdma_bytes + self.operations.all_in_messages().bytes
    }

    fn requests(&self) -> u64 {
        let kinds = self.operations.kinds.values();
        kinds.map(|sums| sums.requests).sum()
    }
}

/// Returns whether the capture lacks so much of a Data Transfer that it is unknown whether a message begins in it.
fn lacks_header(event: &Event, transfer: &DataTransfer) -> bool {
    let kept = event.extra.content.len() as u64;
    let needed = u64::from(transfer.data_offset) + u64::from(transfer.data_length).min(4);
    transfer.data_length > 0 && transfer.payload != Payload::Continued && kept < needed
}

/// Returns whether the capture lacks a part of the SMB2 header of a message.
fn is_headless(message: &Message) -> bool {
    message.protocol == Protocol::Smb2 && message.bytes.len() < Header::LENGTH
}
