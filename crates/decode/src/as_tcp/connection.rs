//! A connection of SMB Direct: puts its messages together, and writes them in their order.
//!
//! A WRITE request waits until its data is known, and what both ends sent after it waits with it, so that no answer is
//! before its question.

use std::{collections::VecDeque, io::Write, net::SocketAddr, time::Duration};

use smbdirect::rdma::roce::cm::{Message as Cm, RdmaCmHeader};
use smbdirect_smb::{
    frame::PORT,
    smb2::{Elements, Protocol},
};

use super::{
    AsTcpSummary,
    flow::Flow,
    moves::{Moves, says_moved},
    output::Output,
    put_back::{Data, put_back},
};
use crate::{
    assembly::{Assembly, Message},
    event::{End, Event, EventKind, Payload},
    per_end::{PerEnd, Side},
};

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    number: u32,
    ends: PerEnd<End>,
    /// The port of the client in the exchange of the communication manager.
    port: Option<u16>,
    assembly: Assembly,
    moves: Moves,
    queue: VecDeque<Item>,
    /// Bytes of the messages in `queue`.
    queued: usize,
    flow: Option<Flow>,
    has_ended: PerEnd<bool>,
    /// The frame of the last event.
    pub(super) seen: u64,
}

/// What happened in a connection.
#[derive(Debug)]
enum Item {
    /// An SMB message, and the WRITEs in it whose data comes later.
    Message(Message, Vec<u64>),
    Lost {
        from: Side,
        bytes: u64,
    },
    End {
        from: Side,
        reset: bool,
        time: Duration,
    },
}

/// Maximum number of events that wait for a WRITE whose data is not known yet.
const MAX_QUEUED: usize = 4096;
/// Maximum number of bytes of messages that wait for such a WRITE.
const MAX_QUEUED_BYTES: usize = 64 << 20;
/// Bytes of a message of the communication manager, without the headers below it.
const CM_BYTES: usize = 256;
/// Bytes of a startup frame or of a negotiation, at least.
const SETUP_BYTES: usize = 20;
/// The ports of servers of SMB Direct.
const SERVER_PORTS: [u16; 2] = [PORT, crate::streams::PORT];
/// The first of the ports that systems give to clients, and their number.
const CLIENT_PORTS: (u16, u32) = (49_152, 16_384);

impl Connection {
    pub(super) fn new(number: u32, ends: PerEnd<End>) -> Self {
        Self {
            number,
            ends,
            port: None,
            assembly: Assembly::default(),
            moves: Moves::default(),
            queue: VecDeque::new(),
            queued: 0,
            flow: None,
            has_ended: PerEnd::default(),
            seen: 0,
        }
    }

    /// Returns the bytes that are held.
    pub(super) fn held(&self) -> usize {
        let flow = self.flow.as_ref().map_or(0, Flow::held);
        self.assembly.held() + self.queued + self.moves.held() + flow
    }

    /// Takes an event.
    pub(super) fn event<W: Write>(&mut self, event: &Event, out: &mut Output<W>) {
        self.seen = event.position.frame;
        let client = event.initiator.or(self.assembly.client);
        self.assembly.client = client;
        let (from, time) = (event.from, event.position.time);
        let content = &event.extra.content[..];
        let is_client = client.map(|client| client == from);
        match &event.kind {
            EventKind::DataTransfer(transfer) => {
                out.summary.not_smb += u64::from(transfer.payload == Payload::Other);
                let message = self.assembly.transfer(event, transfer, usize::MAX);
                if let Some(message) = message {
                    self.message(message, &mut out.summary);
                }
            }
            EventKind::Write(tagged) if is_client == Some(false) => {
                out.earn(content.len());
                self.moves.data(tagged.stag, tagged.tagged_offset, content);
            }
            EventKind::ReadRequest(read) if is_client == Some(false) => self.moves.read(*read),
            EventKind::ReadResponse(tagged) if is_client == Some(true) => {
                out.earn(content.len());
                self.moves
                    .read_response(tagged.stag, tagged.tagged_offset, content);
            }
            EventKind::RoceWrite(region) | EventKind::RoceReadResponse(region) => {
                let is_read = matches!(event.kind, EventKind::RoceReadResponse(_));
                if let Some(reth) = region.reth
                    && is_client == Some(is_read)
                {
                    out.earn(content.len());
                    self.moves.data(reth.r_key, reth.virtual_address, content);
                }
            }
            EventKind::Gap { bytes } => self.lost(from, *bytes),
            EventKind::MissingPackets { packets } => self.lost(from, *packets),
            EventKind::BadFpdu { ulpdu_length } => self.lost(from, (*ulpdu_length).into()),
            EventKind::Headless { length, .. } => self.lost(from, *length),
            EventKind::Cm { message, .. } => {
                out.earn(CM_BYTES);
                self.cm(message);
            }
            EventKind::Startup(_)
            | EventKind::NegotiateRequest(_)
            | EventKind::NegotiateResponse(_) => out.earn(SETUP_BYTES),
            EventKind::Closed { reset } => self.end(from, *reset, time),
            _ => {}
        }
        self.write(false, out);
    }

    /// Returns whether messages wait for the end of their packet.
    pub(super) fn has_pending(&self) -> bool {
        self.flow.as_ref().is_some_and(|flow| flow.held() > 0)
    }

    /// Returns whether both directions have ended.
    pub(super) fn has_ended(&self) -> bool {
        *self.has_ended == [true; 2]
    }

    /// Writes the messages that the packet has completed.
    pub(super) fn flush<W: Write>(&mut self, out: &mut Output<W>) {
        if let Some(flow) = &mut self.flow {
            flow.flush(out);
        }
    }

    /// Ends the TCP connection, whose port is free after it.
    pub(super) fn release<W: Write>(&self, out: &mut Output<W>) {
        if let Some(flow) = &self.flow {
            let (client, server) = flow.ends();
            out.ports.release(client, server.ip());
        }
    }

    /// Writes everything that waits.
    pub(super) fn finish<W: Write>(&mut self, out: &mut Output<W>) {
        self.write(true, out);
        self.flush(out);
        self.moves = Moves::default();
        for side in Side::BOTH {
            self.assembly.lost(side);
        }
    }

    /// Takes a message, and puts the data of READs into it.
    fn message(&mut self, mut message: Message, summary: &mut AsTcpSummary) {
        let mut waits = Vec::new();
        if message.protocol == Protocol::Smb2 {
            let is_client = self.assembly.client == Some(message.from);
            let moves = &mut self.moves;
            if is_client {
                let is_whole = message.bytes.len() as u64 == message.length;
                for element in Elements::of(&message.bytes).map_while(Result::ok) {
                    let bytes = &message.bytes[element.place];
                    if is_whole && !element.header.is_response() {
                        waits.extend(moves.request(&element.header, bytes));
                    }
                }
            } else {
                let with_data = put_back(&message.bytes, |element, bytes| {
                    let answer = moves.answer(&element.header, bytes, message.ended.frame);
                    match answer {
                        Some((flags, data)) => {
                            summary.put_back_bytes += data.len() as u64;
                            Some(Data::Read(flags, data))
                        }
                        None => {
                            summary.without_data += u64::from(says_moved(element, bytes));
                            None
                        }
                    }
                });
                if let Some(with_data) = with_data {
                    message.length = with_data.len() as u64;
                    message.bytes = with_data;
                }
            }
        }
        self.queued += message.bytes.len();
        self.queue.push_back(Item::Message(message, waits));
    }

    /// Takes a message of the communication manager. Those that disconnect have no place among the messages of the queue
    /// pairs, which can follow them in the file.
    fn cm(&mut self, message: &Cm) {
        if let Cm::ConnectRequest(request) = message
            && request.service_id.port().is_some()
        {
            let header = RdmaCmHeader::decode(request.private_data.as_bytes());
            self.port = header.map(|header| header.source_port);
        }
    }

    fn lost(&mut self, from: Side, bytes: u64) {
        self.assembly.lost(from);
        self.moves.lost(from);
        // Losses without a message between them are one gap.
        if let Some(Item::Lost {
            from: last,
            bytes: all,
        }) = self.queue.back_mut()
            && *last == from
        {
            *all = all.saturating_add(bytes);
        } else {
            self.queue.push_back(Item::Lost { from, bytes });
        }
    }

    fn end(&mut self, from: Side, reset: bool, time: Duration) {
        if !std::mem::replace(&mut self.has_ended[from], true) {
            self.queue.push_back(Item::End { from, reset, time });
        }
    }

    /// Writes what does not wait any more; everything if nothing can come any more.
    fn write<W: Write>(&mut self, is_end: bool, out: &mut Output<W>) {
        while let Some(item) = self.queue.front() {
            let is_forced =
                is_end || self.queue.len() > MAX_QUEUED || self.queued > MAX_QUEUED_BYTES;
            let is_settled = |id: &u64| self.moves.is_settled(*id, self.seen);
            if let Item::Message(_, waits) = item
                && !is_forced
                && !waits.iter().all(is_settled)
            {
                return;
            }
            let Some(item) = self.queue.pop_front() else {
                return;
            };
            match item {
                Item::Message(message, waits) => self.write_message(message, &waits, out),
                Item::Lost { from, bytes } => {
                    out.summary.gaps += 1;
                    if let Some(flow) = &mut self.flow {
                        flow.lost(from, bytes, out);
                    }
                }
                Item::End { from, reset, time } => {
                    if let Some(flow) = &mut self.flow {
                        flow.end(from, reset, time, out);
                    }
                }
            }
        }
    }

    fn write_message<W: Write>(&mut self, message: Message, waits: &[u64], out: &mut Output<W>) {
        self.queued -= message.bytes.len();
        let mut length = message.length as usize;
        let mut bytes = message.bytes;
        if !waits.is_empty() {
            let moves = &mut self.moves;
            let with_data = put_back(&bytes, |element, _| {
                let id = element.header.message_id;
                if !waits.contains(&id) {
                    return None;
                }
                let (data, is_missed) = moves.written(id);
                out.summary.without_data += u64::from(is_missed);
                let data = data?;
                out.summary.put_back_bytes += data.len() as u64;
                Some(Data::Write(data))
            });
            if let Some(with_data) = with_data {
                length = with_data.len();
                bytes = with_data;
            }
        }
        let flow = self.flow.get_or_insert_with(|| {
            let client = *self
                .assembly
                .client
                .get_or_insert_with(|| client_by_port(&self.ends));
            let server = SocketAddr::new(self.ends[!client].ip(), PORT);
            let port = client_port(&self.ends, client, self.port);
            let address = SocketAddr::new(self.ends[client].ip(), port);
            let address = out.ports.take(address, server.ip());
            let ends = match client {
                Side::A => [address, server],
                Side::B => [server, address],
            };
            let ends = PerEnd(ends);
            Flow::new(ends, client, self.number)
        });
        let is_written = flow.message(message.from, message.ended, &bytes, length, out);
        out.summary.messages += u64::from(is_written);
    }
}

/// Returns the end that is more likely the client, if nothing shows it.
fn client_by_port(ends: &PerEnd<End>) -> Side {
    match ends[Side::A] {
        End::Tcp(address) if SERVER_PORTS.contains(&address.port()) => Side::B,
        End::Roce {
            port: Some(port), ..
        } if SERVER_PORTS.contains(&port) => Side::B,
        _ => Side::A,
    }
}

/// Returns the port of the client: that of TCP or of the communication manager, or one that stands for its queue
/// pair.
fn client_port(ends: &PerEnd<End>, client: Side, of_cm: Option<u16>) -> u16 {
    let (first, count) = CLIENT_PORTS;
    match (ends[client], ends[!client]) {
        (End::Tcp(address), _) => address.port(),
        (End::Roce { queue_pair, .. }, other) => {
            of_cm.filter(|&port| port != 0).unwrap_or_else(|| {
                let of_other = match other {
                    End::Roce { queue_pair, .. } => queue_pair,
                    End::Tcp(_) => None,
                };
                let number = queue_pair.or(of_other).unwrap_or_default();
                first + (number % count) as u16
            })
        }
    }
}
