//! A reliable connection: the messages that packets form, and SMB Direct on them.

mod requests;

use std::{collections::VecDeque, net::IpAddr};

use smbdirect::rdma::roce::{
    Psn,
    cm::Message,
    packet::{NakCode, Opcode, Syndrome},
};

use super::{
    super::{
        event::{Detail, End, EventKind, Icrc, Region, Repeated, Told, broken},
        out::Out,
        per_end::{PerEnd, Side},
        smb::{Send, SmbDirect},
        tcp::Position,
    },
    datagram::{Packet, Part, Recent, Undecoded, rule},
    order::Requests,
    reads::{Read, Reads, Response, response_packets},
};

/// A reliable connection of two queue pairs.
#[derive(Debug)]
pub(super) struct Connection {
    /// The senders of direction 0 and of direction 1.
    pub(super) ends: PerEnd<QueuePair>,
    /// The port that the initiator asked for.
    pub(super) port: Option<u16>,
    /// The frame of the last packet.
    pub(super) seen: u64,
    /// The direction of the end that connected.
    initiator: Option<Side>,
    /// Whether its first message is in the capture.
    from_start: bool,
    /// The number of the stream, once it is reported.
    number: Option<u32>,
    upper: Upper,
    /// Events that wait until it is known whether the connection carries SMB Direct, and which end is
    /// the initiator.
    waiting: Vec<(Side, Position, Told)>,
    /// The identifiers in the messages of the CM so far.
    cm: Vec<(u16, u64, u32)>,
    smb: SmbDirect,
    directions: PerEnd<DirectionState>,
    /// The number of payload bytes in each packet that is not the last of its message, if it is known.
    mtu: Option<u32>,
    /// The content that events carry.
    pub(super) detail: Detail,
}

/// An end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuePair {
    pub(super) address: IpAddr,
    pub(super) number: Option<u32>,
}

/// The protocol that a connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Upper {
    Undecided,
    SmbDirect,
    Other,
}

/// The state of a direction.
#[derive(Debug, Default)]
struct DirectionState {
    requests: Requests,
    /// Reads that this direction has requested.
    reads: Reads,
    /// Whether all of it so far is in the capture, from the first request on.
    whole: bool,
    /// Whether the current packet is as it was sent, because the direction is whole or its ICRC is right.
    is_certain: bool,
    sending: Option<Sending>,
    writing: Option<Region>,
    /// The first packet of `writing`.
    written: Option<Position>,
    /// Bytes and packets of a Read response whose request is not in the capture.
    reading: Option<(u64, u64)>,
    /// Consecutive packets that were sent again.
    again: Option<(Psn, u64, Position)>,
    /// Packets of Read responses before their request.
    early: VecDeque<Packet>,
    /// The PSN of the last response packet.
    last_response: Option<Psn>,
    /// Complete Sends.
    sends: u64,
    recent: Recent,
}

/// A Send without its last packet so far.
#[derive(Debug, Default)]
struct Sending {
    send: Send,
    /// Its first packet, or the first one that is in the capture.
    began: Option<Position>,
}

/// Maximum number of events of a connection that wait until it is known what it carries.
const MAX_WAITING: usize = 64;
/// Maximum number of messages of the CM that are remembered.
const MAX_CM: usize = 16;
/// Maximum number of packets of Read responses that wait for their request.
const MAX_EARLY: usize = 256;
/// Packets within which two directions of a connection acknowledge each other.
const PAIRING_WINDOW: i64 = 4096;

impl Connection {
    /// Creates a connection of two ends: their addresses and their queue pairs.
    pub(super) fn new(ends: [(IpAddr, Option<u32>); 2]) -> Self {
        Self {
            ends: PerEnd(ends.map(|(address, number)| QueuePair { address, number })),
            port: None,
            seen: 0,
            initiator: None,
            from_start: false,
            number: None,
            upper: Upper::Undecided,
            waiting: Vec::new(),
            cm: Vec::new(),
            smb: SmbDirect::default(),
            directions: Default::default(),
            mtu: None,
            detail: Detail::None,
        }
    }

    /// Returns whether it is known to carry SMB Direct.
    pub(super) fn is_smb_direct(&self) -> bool {
        self.upper == Upper::SmbDirect
    }

    /// Treats the connection as one of SMB Direct from here on.
    pub(super) fn expect(&mut self, initiator: Option<Side>, out: &mut Out<'_>) {
        if self.initiator.is_none() {
            self.initiator = initiator;
        }
        if self.upper != Upper::Undecided {
            return;
        }
        self.upper = Upper::SmbDirect;
        if self.initiator.is_some() {
            self.tell_waiting(out);
        }
    }

    /// Learns from a packet which end is the initiator.
    fn learn_initiator(&mut self, initiator: Option<Side>, out: &mut Out<'_>) {
        if self.initiator.is_none() && initiator.is_some() {
            self.initiator = initiator;
            if self.is_smb_direct() {
                self.tell_waiting(out);
            }
        }
    }

    fn tell_waiting(&mut self, out: &mut Out<'_>) {
        for (side, position, told) in std::mem::take(&mut self.waiting) {
            self.tell(side, told, &mut out.at(position));
        }
    }

    /// Returns the number of bytes that wait.
    pub(super) fn held_bytes(&self) -> usize {
        let held = |state: &DirectionState| state.requests.held_bytes();
        self.directions.iter().map(held).sum()
    }

    /// Returns whether a request cannot be of this connection.
    pub(super) fn is_foreign(&self, side: Side, packet: &Packet) -> bool {
        packet.is_request() && self.directions[side].requests.is_foreign(packet.bth.psn)
    }

    /// Returns whether the PSN of a response belongs to one of the recent requests of a direction.
    pub(super) fn may_answer(&self, side: Side, response: Psn) -> bool {
        let requests = &self.directions[side].requests;
        let recent = requests.next() - PAIRING_WINDOW..=requests.reach();
        let at = requests.index(response);
        at.is_some_and(|at| recent.contains(&at))
    }

    /// Returns whether a request may be the first of a direction whose first PSN is known.
    pub(super) fn may_begin(&self, side: Side, request: Psn) -> bool {
        let requests = &self.directions[side].requests;
        let at = requests.index(request);
        requests.is_new() && at.is_some_and(|at| (0..PAIRING_WINDOW).contains(&at))
    }

    /// Returns the PSN of the last response in a direction.
    pub(super) fn last_response(&self, side: Side) -> Option<Psn> {
        self.directions[side].last_response
    }

    /// Handles a message of the CM in a direction, and reports it if the connection is one of SMB Direct.
    pub(super) fn cm(&mut self, side: Side, transaction: u64, message: Message, out: &mut Out<'_>) {
        self.seen = out.position.frame;
        let id = (
            message.attribute(),
            transaction,
            message.local_communication_id(),
        );
        let again = self.cm.contains(&id);
        if !again && self.cm.len() < MAX_CM {
            self.cm.push(id);
        }
        match &message {
            Message::ConnectRequest(request) if !again => {
                self.port = request.service_id.port();
                self.initiator = Some(side);
                self.from_start = true;
                self.mtu = request.path_mtu.map(|mtu| mtu.bytes() as u32);
                self.begin(side, request.queue_pair, request.starting_psn);
            }
            Message::ConnectReply(reply) if !again => {
                self.initiator = Some(!side);
                self.begin(side, reply.queue_pair, reply.starting_psn);
            }
            _ => {}
        }
        if self.upper != Upper::Other && self.waiting.len() < MAX_WAITING {
            let kind = EventKind::Cm { message, again };
            self.waiting.push((side, out.position, kind.into()));
        }
        let is_expected = self.port.is_some_and(|port| out.ports.contains(&port));
        if is_expected {
            self.expect(None, out);
        }
        if self.is_smb_direct() {
            self.tell_waiting(out);
        }
    }

    fn begin(&mut self, side: Side, queue_pair: u32, psn: u32) {
        self.ends[side].number = Some(queue_pair);
        // It is the first PSN that this end expects, and therefore the first PSN of the other direction.
        let this = &mut self.directions[!side];
        if !this.requests.has_started() {
            this.requests.start(Psn::new(psn));
            this.whole = true;
        }
    }

    /// Handles a packet that cannot be decoded.
    pub(super) fn bad(&mut self, side: Side, bad: &Undecoded, out: &mut Out<'_>) {
        self.seen = out.position.frame;
        self.directions[side].is_certain = bad.is_certain;
        let broken = match bad.error {
            None => Some(broken("ROCE-A17.3.3-04", "a wrong ICRC")),
            Some(error) => rule(error).map(|rule| broken(rule, error.to_string())),
        };
        let opcode = bad.opcode;
        let broken: Vec<_> = broken.into_iter().collect();
        self.emit(side, (EventKind::BadPacket { opcode }, broken), out);
    }

    /// Handles a packet in a direction.
    pub(super) fn packet(&mut self, side: Side, packet: Packet, out: &mut Out<'_>) {
        self.seen = out.position.frame;
        if self.upper == Upper::Other {
            return;
        }
        if self.directions[side].recent.has(&packet) {
            self.show(side, &packet, Repeated::CapturedAgain, out);
            return;
        }
        self.learn_mtu(&packet);
        if packet.is_request() {
            self.take(side, packet, out);
        } else {
            self.response(side, packet, out);
        }
        self.drain(out);
        for side in Side::BOTH {
            self.directions[side].requests.tick();
            while let Some((read, missing, position)) = self.directions[side].reads.tick() {
                self.end_read(!side, read, missing, &mut out.at(position));
            }
        }
        while self
            .directions
            .iter()
            .any(|state| state.requests.gives_up())
        {
            self.force(out);
        }
    }

    /// Reports a packet that is no part of the sequence: a copy that the network made, or a congestion notification,
    /// which has no PSN.
    pub(super) fn show(
        &mut self,
        side: Side,
        packet: &Packet,
        repeated: Repeated,
        out: &mut Out<'_>,
    ) {
        let shown = packet.shown(repeated);
        self.emit(side, EventKind::Packet(shown), out);
    }

    /// Reports the messages that wait for packets that will not arrive.
    pub(super) fn finish(&mut self, out: &mut Out<'_>) {
        let holds = |state: &DirectionState| state.requests.first_held().is_some();
        while self.directions.iter().any(holds) {
            self.force(out);
        }
        for side in Side::BOTH {
            while let Some(packet) = self.directions[side].early.pop_front() {
                self.read_response(side, &packet, &mut out.at(packet.position));
            }
            while let Some((read, missing, position)) = self.directions[!side].reads.last() {
                self.end_read(side, read, missing, &mut out.at(position));
            }
            self.tell_again(side, out);
        }
        if self.is_smb_direct() {
            self.tell_waiting(out);
        }
    }

    /// Learns the path MTU from a packet that is not the last of its message.
    fn learn_mtu(&mut self, packet: &Packet) {
        const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];
        if self.mtu.is_none() && !packet.bth.opcode.ends_message() && MTUS.contains(&packet.length)
        {
            let mtu = packet.length;
            self.mtu = Some(mtu);
            for state in self.directions.iter_mut() {
                if let Some(end) = state
                    .reads
                    .limit(|reth| response_packets(reth, Some(mtu)).0)
                {
                    state.requests.resolve(end);
                }
            }
        }
    }

    /// Takes a request.
    fn take(&mut self, side: Side, packet: Packet, out: &mut Out<'_>) {
        let psn = packet.bth.psn;
        let mut shown = packet.shown(Repeated::No);
        let after = self.directions[!side].requests.acknowledged();
        let (at, is_new) = self.directions[side].requests.take(packet, after);
        if !is_new {
            shown.repeated = Repeated::SentAgain;
            if shown.bth.opcode == Opcode::ReadRequest {
                self.directions[side].reads.ask_again(at);
            }
        }
        self.emit(side, EventKind::Packet(shown), out);
        self.count_again(side, psn, !is_new, out);
    }

    /// Handles an acknowledgement or a packet of a Read response.
    fn response(&mut self, side: Side, packet: Packet, out: &mut Out<'_>) {
        let psn = packet.bth.psn;
        self.directions[side].last_response = Some(psn);
        self.check(side, &packet);
        let requester = &mut self.directions[!side];
        let at = requester.requests.index(psn);
        let syndrome = packet.extended.aeth().map(|aeth| aeth.syndrome);
        let is_positive = !matches!(syndrome, Some(Syndrome::Nak(_) | Syndrome::RnrNak { .. }));
        let is_of_read = Part::of(packet.bth.opcode) == Part::ReadResponse;
        if let Some(at) = at {
            requester.requests.acknowledge(at + i64::from(is_positive));
        }
        let repeated = match at.and_then(|at| requester.reads.has(at)) {
            Some(true) if is_of_read => Repeated::SentAgain,
            _ => Repeated::No,
        };
        let is_early = at.is_some_and(|at| at >= requester.requests.reach());
        let shown = packet.shown(repeated);
        self.emit(side, EventKind::Packet(shown), out);
        match syndrome {
            Some(Syndrome::Nak(code)) => {
                let mut faults = Vec::new();
                if let NakCode::Reserved(code) = code {
                    let how = format!("a NAK with the reserved code {code}");
                    faults.push(broken("ROCE-9.7.5-01", how));
                }
                self.emit(side, (EventKind::Nak { code, psn }, faults), out);
            }
            Some(Syndrome::RnrNak { timer }) => {
                self.emit(side, EventKind::RnrNak { timer, psn }, out);
            }
            _ if is_of_read && is_early && self.directions[side].early.len() < MAX_EARLY => {
                self.directions[side].early.push_back(packet);
            }
            _ if is_of_read => self.read_response(side, &packet, out),
            _ => {}
        }
    }

    /// Learns whether a packet is as it was sent.
    fn check(&mut self, side: Side, packet: &Packet) {
        let this = &mut self.directions[side];
        this.is_certain = this.whole || packet.icrc == Icrc::Right;
    }

    fn read_response(&mut self, side: Side, packet: &Packet, out: &mut Out<'_>) {
        let (psn, opcode, length) = (packet.bth.psn, packet.bth.opcode, packet.length);
        let requester = &mut self.directions[!side];
        let at = requester.requests.index(psn);
        let part = at.and_then(|at| requester.reads.part(at, opcode.ends_message(), length));
        let response = match at {
            Some(at) => match requester.reads.take(at, opcode, length, packet.position) {
                // The response was complete before.
                Response::Unknown if requester.requests.has(at) => Response::Again,
                response => response,
            },
            None => Response::Unknown,
        };
        let is_again = matches!(response, Response::Again);
        if self.detail == Detail::Content && !is_again {
            let kind = EventKind::RoceReadResponse(Region::of(part, length));
            self.part(side, kind, packet, out);
        }
        self.count_again(side, psn, is_again, out);
        match response {
            Response::Continues | Response::Again => {}
            Response::Completes(read) => self.end_read(side, read, 0, out),
            Response::Unknown => {
                let reading = self.directions[side].reading.get_or_insert_default();
                reading.0 += u64::from(length);
                reading.1 += 1;
                if opcode.ends_message()
                    && let Some((length, packets)) = self.directions[side].reading.take()
                {
                    let reth = None;
                    let region = Region {
                        reth,
                        length,
                        packets,
                    };
                    self.moved(
                        side,
                        EventKind::RoceReadResponse(region),
                        Vec::new(),
                        None,
                        out,
                    );
                }
            }
        }
    }

    /// Reports a response in a direction.
    fn end_read(&mut self, side: Side, read: Read, missing: u64, out: &mut Out<'_>) {
        if missing > 0 {
            self.emit(side, EventKind::MissingPackets { packets: missing }, out);
        }
        let kind = EventKind::RoceReadResponse(Region {
            reth: Some(read.reth),
            length: read.length,
            packets: read.packets,
        });
        let faults = match u64::from(read.reth.length) {
            requested if missing == 0 && requested != read.length && self.is_whole() => {
                let how = format!("{} bytes of {requested} requested", read.length);
                vec![broken("ROCE-9.7.4-04", how)]
            }
            _ => Vec::new(),
        };
        self.moved(side, kind, faults, read.began, out);
    }

    /// Counts a packet that was sent again; any other one ends the series.
    fn count_again(&mut self, side: Side, psn: Psn, is_again: bool, out: &mut Out<'_>) {
        if !is_again {
            self.tell_again(side, out);
            return;
        }
        let (_, packets, last) = self.directions[side]
            .again
            .get_or_insert((psn, 0, out.position));
        *packets += 1;
        *last = out.position;
    }

    fn tell_again(&mut self, side: Side, out: &mut Out<'_>) {
        if let Some((psn, packets, position)) = self.directions[side].again.take() {
            let kind = EventKind::SentAgain { psn, packets };
            self.emit(side, kind, &mut out.at(position));
        }
    }

    /// Handles everything that is in order.
    fn drain(&mut self, out: &mut Out<'_>) {
        loop {
            let mut is_idle = true;
            for side in Side::BOTH {
                let other = &self.directions[!side].requests;
                let peer_reach = other.has_started().then(|| other.reach());
                if let Some((at, held)) = self.directions[side].requests.pop(peer_reach) {
                    let mut out = out.at(held.packet.position);
                    self.request(side, at, held.packet, &mut out);
                    is_idle = false;
                }
            }
            for side in Side::BOTH {
                let requests = &self.directions[!side].requests;
                let early = self.directions[side].early.front();
                let at = early.and_then(|packet| requests.index(packet.bth.psn));
                if at.is_some_and(|at| at < requests.reach())
                    && let Some(packet) = self.directions[side].early.pop_front()
                {
                    self.read_response(side, &packet, &mut out.at(packet.position));
                    is_idle = false;
                }
            }
            if is_idle {
                return;
            }
        }
    }

    /// Gives up the packets that the longest-waiting packet waits for.
    fn force(&mut self, out: &mut Out<'_>) {
        let first = |side: Side| Some((self.directions[side].requests.first_held()?, side));
        let first = Side::BOTH.into_iter().filter_map(first);
        let Some((position, side)) = first.min_by_key(|(position, side)| (position.frame, *side))
        else {
            return;
        };
        let (side, until) = match self.directions[side].requests.wanted() {
            Some(until) => (!side, until),
            None => (side, i64::MAX),
        };
        let missing = self.directions[side].requests.lose(until);
        if missing > 0 {
            let out = &mut out.at(position);
            self.emit(side, EventKind::MissingPackets { packets: missing }, out);
            self.lost(side, out);
        }
        self.drain(out);
    }

    /// Returns whether both directions are whole.
    fn is_whole(&self) -> bool {
        self.directions.iter().all(|state| state.whole)
    }

    fn emit(&mut self, side: Side, told: impl Into<Told>, out: &mut Out<'_>) {
        let told = told.into().certain(self.directions[side].is_certain);
        let has_room = self.waiting.len() < MAX_WAITING;
        let waits = match self.upper {
            Upper::SmbDirect => self.initiator.is_none() && self.number.is_none() && has_room,
            Upper::Undecided if self.from_start && has_room => true,
            Upper::Undecided | Upper::Other => return,
        };
        if waits {
            self.waiting.push((side, out.position, told));
        } else {
            self.tell_waiting(out);
            self.tell(side, told, out);
        }
    }

    fn tell(&mut self, side: Side, told: Told, out: &mut Out<'_>) {
        let (initiator, credits) = (self.initiator, self.smb.credits());
        let number = match self.number {
            Some(number) => number,
            None => {
                *out.streams += 1;
                self.number = Some(*out.streams);
                let passive = initiator.map(|initiator| !initiator);
                let end = |side: Side| End::Roce {
                    address: self.ends[side].address,
                    queue_pair: self.ends[side].number,
                    port: self.port.filter(|_| passive == Some(side)),
                };
                let begins = Told::from(EventKind::Stream {
                    ends: PerEnd(Side::BOTH.map(end)),
                    initiator,
                    from_start: self.from_start,
                });
                (out.sink)(begins.event(*out.streams, out.position, (side, initiator), credits));
                *out.streams
            }
        };
        (out.sink)(told.event(number, out.position, (side, initiator), credits));
    }
}
