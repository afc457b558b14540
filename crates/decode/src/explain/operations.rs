//! The SMB2 requests of a connection: what they ask for, and when each of their parts moved.

use std::collections::HashMap;

use smbdirect_smb::smb2::{
    Channel, Command, Elements, Header, Protocol, ReadRequest, WriteRequest,
};

use super::{
    assembly::Message,
    cause::Cause,
    report::{InMessages, Reason, SizeClass},
    timeline::{Sort, Stage, Tag, What},
};
use crate::tcp::Position;

/// The requests of a connection.
#[derive(Debug, Default)]
pub(super) struct Operations {
    /// Requests without their response, by MessageId.
    outstanding: HashMap<u64, Operation>,
    /// The request of each token of the client's memory.
    tokens: HashMap<u32, u64>,
    /// Reads of the server that have no response yet: the sink of iWARP, and the request.
    reads: Vec<(Option<u32>, u64)>,
    /// Encrypted requests and responses, which are matched by their order.
    sealed: [u64; 2],
    smb2_held: Option<i64>,
    smb2_charge: i64,
    /// The fewest SMB2 credits that the client has held after a request.
    pub(super) smb2_lowest: Option<i64>,
    /// Whether the client has logged in.
    is_ready: bool,
    /// The session of the last message that names one.
    pub(super) session: u64,
    pub(super) kinds: HashMap<(Kind, SizeClass), Sums>,
    pub(super) in_messages: HashMap<Reason, InMessages>,
    pub(super) rdma_bytes: u64,
    /// Responses whose request is not in the capture.
    pub(super) unasked: u64,
    pub(super) forgotten: u64,
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    Read,
    Write,
    Metadata,
    Encrypted,
}

/// A request without its response.
#[derive(Clone, Debug)]
struct Operation {
    kind: Kind,
    tag: Tag,
    stage: Stage,
    began: u64,
    asked: u64,
    /// The first and the last byte of its data by RDMA.
    data: Option<[u64; 2]>,
    rdma_bytes: u64,
    /// Bytes that are taken as its data, because they are cut.
    hidden: u64,
    /// RDMA operations that are moving.
    moving: u32,
    reason: Option<Reason>,
    tokens: Vec<u32>,
}

/// Sums over the requests of a kind, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    pub(super) requests: u64,
    pub(super) bytes: u64,
    pub(super) rdma_bytes: u64,
    pub(super) request: u64,
    pub(super) server_before: u64,
    pub(super) data: u64,
    pub(super) server_after: u64,
    pub(super) response: u64,
}

/// A mark without its place.
type Marks<'a> = &'a mut dyn FnMut(Position, What);

/// Maximum number of requests that are outstanding: more than the SMB2 credits of any server.
const MAX_OUTSTANDING: usize = 1 << 16;
/// Maximum number of requests that are put in order for each packet that is cut. Clients have fewer outstanding.
const MAX_ORDERED: usize = 512;
/// Requests for fewer bytes are not expected to use RDMA: the threshold of Linux and Windows.
const RDMA_BYTES: u32 = 4096;
/// CHANGE_NOTIFY waits for something to happen, so nobody waits for it.
const CHANGE_NOTIFY: Command = Command(0x000f);
/// The last command of a login; those before it have lower numbers.
const TREE_CONNECT: Command = Command(0x0003);

impl Operations {
    /// Takes a message of the client or the server.
    pub(super) fn message(&mut self, message: &Message, from_start: bool, marks: Marks<'_>) {
        match message.protocol {
            Protocol::Smb2 if message.from_client => self.request(message, from_start, marks),
            Protocol::Smb2 => self.response(message, marks),
            Protocol::Encrypted | Protocol::Compressed => self.sealed(message, marks),
            Protocol::Smb1 | Protocol::Unknown => {}
        }
    }

    /// Takes an RDMA operation of the server on a token of the client: `began` if it has only begun, as a Read
    /// until its response.
    pub(super) fn data(&mut self, token: u32, bytes: u64, places: [Position; 2], marks: Marks<'_>) {
        let Some(&id) = self.tokens.get(&token) else {
            return;
        };
        self.begin_data(id, places[0], marks);
        self.end_data(id, bytes, places[1], marks);
    }

    /// Takes a Read request of the server, whose response names the sink (iWARP) or the token (RoCE).
    pub(super) fn read(&mut self, token: u32, sink: Option<u32>, at: Position, marks: Marks<'_>) {
        let Some(&id) = self.tokens.get(&token) else {
            return;
        };
        if self.reads.len() < MAX_OUTSTANDING {
            self.reads.push((sink.or(Some(token)), id));
            self.begin_data(id, at, marks);
        }
    }

    /// Takes the response to a Read.
    pub(super) fn read_response(
        &mut self,
        sink: Option<u32>,
        bytes: u64,
        at: Position,
        marks: Marks<'_>,
    ) {
        let index = self
            .reads
            .iter()
            .position(|&(known, _)| sink.is_none() || known == sink);
        if let Some(index) = index {
            let (_, id) = self.reads.remove(index);
            self.end_data(id, bytes, at, marks);
        }
    }

    /// Forgets what is outstanding, because the capture lacks something.
    pub(super) fn lost(&mut self, at: Position, marks: Marks<'_>) {
        self.forget(at, marks);
        marks(at, What::Unseen);
    }

    /// So many bytes of an end are cut, with headers in them. Those of the server are taken as the data of the READs that
    /// are outstanding, in their order; an answer follows its data.
    pub(super) fn cut(&mut self, by_client: bool, mut hidden: u64, at: Position, marks: Marks<'_>) {
        self.smb2_held = None;
        if by_client {
            marks(at, What::Unseen);
            return;
        }
        // Encrypted requests are told apart by their order only.
        if self.outstanding.len() > MAX_ORDERED || self.sealed != [0; 2] {
            self.lost(at, marks);
            return;
        }
        let order = |(&id, operation): (&u64, &Operation)| {
            let began = operation.data.map_or(u64::MAX, |[began, _]| began);
            (began, operation.asked, id)
        };
        let mut ids: Vec<_> = self.outstanding.iter().map(order).collect();
        ids.sort_unstable();
        for (.., id) in ids {
            let Some(operation) = self.outstanding.get_mut(&id) else {
                continue;
            };
            let mut moved = 0;
            if operation.kind == Kind::Read {
                moved = hidden.min(operation.missing());
                hidden -= moved;
                operation.hidden += moved;
            }
            if !operation.tokens.is_empty() {
                self.rdma_bytes += moved;
            }
            if operation.missing() > 0 {
                if moved > 0 {
                    let now = nanos(at);
                    operation.data.get_or_insert([now; 2])[1] = now;
                    operation.moves(id, Stage::Data, at, marks);
                }
                continue;
            }
            operation.moves(id, Stage::Done, at, marks);
            let operation = self.outstanding.remove(&id).expect("it was found above");
            self.release(id, &operation);
            if operation.tag.size > 0 {
                self.count(&operation, at, at);
            } else {
                self.forgotten += 1;
                marks(at, What::Unseen);
            }
        }
    }

    /// Forgets what is outstanding.
    pub(super) fn forget(&mut self, at: Position, marks: Marks<'_>) {
        self.reads.clear();
        self.tokens.clear();
        self.smb2_held = None;
        let mut all: Vec<_> = self.outstanding.drain().collect();
        all.sort_unstable_by_key(|&(id, _)| id);
        for (id, mut operation) in all {
            self.forgotten += 1;
            operation.moves(id, Stage::Done, at, marks);
        }
        self.sealed = [0; 2];
    }

    fn begin_data(&mut self, id: u64, at: Position, marks: Marks<'_>) {
        let Some(operation) = self.outstanding.get_mut(&id) else {
            return;
        };
        operation.moving += 1;
        operation.data.get_or_insert_with(|| [nanos(at); 2]);
        if operation.moving == 1 {
            operation.moves(id, Stage::Data, at, marks);
        }
    }

    fn end_data(&mut self, id: u64, bytes: u64, at: Position, marks: Marks<'_>) {
        let Some(operation) = self.outstanding.get_mut(&id) else {
            return;
        };
        operation.rdma_bytes += bytes;
        self.rdma_bytes += bytes;
        operation.moving = operation.moving.saturating_sub(1);
        if let Some([_, last]) = &mut operation.data {
            *last = nanos(at).max(*last);
        }
        if operation.moving == 0 && operation.stage == Stage::Data {
            let stage = if operation.missing() == 0 {
                Stage::Server
            } else {
                Stage::Between
            };
            operation.moves(id, stage, at, marks);
        }
    }

    fn request(&mut self, message: &Message, from_start: bool, marks: Marks<'_>) {
        let mut first = None;
        let mut found = None;
        for element in Elements::of(&message.head).map_while(Result::ok) {
            let header = element.header;
            if from_start && header.command == Command::NEGOTIATE {
                self.smb2_held = Some(1);
            }
            if header.session_id != 0 && header.session_id != u64::MAX {
                self.session = header.session_id;
            }
            let charge = i64::from(header.credit_charge.max(1));
            if header.command == Command::CANCEL || header.is_response() {
                continue;
            }
            self.smb2_held = self.smb2_held.map(|held| held - charge);
            first.get_or_insert(header.message_id);
            let length = (message.length as usize).saturating_sub(element.place.start);
            let operation = operation(&header, &message.head[element.place.start..], length);
            if found.is_none() || operation.kind != Kind::Metadata {
                found = Some(operation);
            }
            if header.command == CHANGE_NOTIFY {
                return;
            }
            if operation_moves_data(&header) {
                self.smb2_charge = charge;
            }
            if !self.is_ready && header.command.0 > TREE_CONNECT.0 {
                self.is_ready = true;
                marks(message.began, What::Ready);
            }
        }
        let (Some(id), Some(operation)) = (first, found) else {
            return;
        };
        if let Some(held) = self.smb2_held {
            let lowest = self.smb2_lowest.unwrap_or(held).min(held);
            self.smb2_lowest = Some(lowest);
        }
        self.begin(id, operation, message, marks);
        self.mark_smb2_credits(message.ended, marks);
    }

    fn begin(&mut self, id: u64, mut operation: Operation, message: &Message, marks: Marks<'_>) {
        if self.outstanding.len() >= MAX_OUTSTANDING || self.outstanding.contains_key(&id) {
            return;
        }
        operation.began = nanos(message.began);
        operation.asked = nanos(message.ended);
        for &token in &operation.tokens {
            self.tokens.insert(token, id);
        }
        marks(message.began, What::Began(operation.tag));
        operation.moves(id, Stage::Server, message.ended, marks);
        self.outstanding.insert(id, operation);
    }

    fn response(&mut self, message: &Message, marks: Marks<'_>) {
        let mut ended = Vec::new();
        for element in Elements::of(&message.head).map_while(Result::ok) {
            let header = element.header;
            self.smb2_held = self.smb2_held.map(|held| held + i64::from(header.credits));
            if header.session_id != 0 {
                self.session = header.session_id;
            }
            if !header.is_interim() && header.is_response() {
                ended.push(header.message_id);
            }
        }
        for id in ended {
            self.end(id, message, marks);
        }
        self.mark_smb2_credits(message.ended, marks);
    }

    fn end(&mut self, id: u64, message: &Message, marks: Marks<'_>) {
        let Some(mut operation) = self.outstanding.remove(&id) else {
            // The later elements of a compound are part of its first one.
            self.unasked += u64::from(self.outstanding.is_empty());
            return;
        };
        operation.moves(id, Stage::Response, message.began, marks);
        operation.moves(id, Stage::Done, message.ended, marks);
        self.release(id, &operation);
        self.count(&operation, message.began, message.ended);
    }

    /// Forgets the tokens of a request that has ended.
    fn release(&mut self, id: u64, operation: &Operation) {
        for token in &operation.tokens {
            if self.tokens.get(token) == Some(&id) {
                self.tokens.remove(token);
            }
        }
        self.reads.retain(|&(_, read)| read != id);
    }

    /// Counts a request with its response, which began and ended at these places.
    fn count(&mut self, operation: &Operation, responded: Position, ended: Position) {
        let (responded, ended) = (nanos(responded), nanos(ended));
        let [data_began, data_ended] = operation.data.unwrap_or([responded; 2]);
        let key = (operation.kind, SizeClass::of(operation.tag.size));
        let sums = self.kinds.entry(key).or_default();
        sums.requests += 1;
        sums.bytes += u64::from(operation.tag.size);
        sums.rdma_bytes += operation.rdma_bytes;
        if !operation.tokens.is_empty() {
            sums.rdma_bytes += operation.hidden;
        }
        // The times of a capture can be anything.
        let add = |sum: &mut u64, from: u64, to: u64| {
            *sum = sum.saturating_add(to.saturating_sub(from));
        };
        add(&mut sums.request, operation.began, operation.asked);
        add(&mut sums.server_before, operation.asked, data_began);
        add(&mut sums.data, data_began, data_ended);
        add(&mut sums.server_after, data_ended, responded);
        add(&mut sums.response, responded, ended);
        if let Some(reason) = operation.reason {
            let counts = self.in_messages.entry(reason).or_default();
            counts.requests += 1;
            counts.bytes += u64::from(operation.tag.size);
        }
    }

    /// Takes an encrypted or compressed message, of which only its length is known.
    fn sealed(&mut self, message: &Message, marks: Marks<'_>) {
        let size = u32::try_from(message.length).unwrap_or(u32::MAX);
        // Their numbers are above those of messages that are not encrypted.
        const SEALED: u64 = 1 << 63;
        let number = &mut self.sealed[usize::from(message.from_client)];
        *number += 1;
        let id = SEALED | *number;
        if message.from_client {
            if !self.is_ready {
                self.is_ready = true;
                marks(message.began, What::Ready);
            }
            let is_data = size >= RDMA_BYTES;
            let operation = Operation {
                kind: Kind::Encrypted,
                tag: Tag {
                    size,
                    // A response may be long, so any request may ask for data.
                    sort: Sort::InMessages(Cause::Encryption),
                },
                reason: is_data.then_some(Reason::Encrypted),
                ..Operation::metadata()
            };
            self.begin(id, operation, message, marks);
        } else {
            if size >= RDMA_BYTES {
                let counts = self.in_messages.entry(Reason::Encrypted).or_default();
                counts.requests += 1;
                counts.bytes += u64::from(size);
            }
            self.end(id, message, marks);
        }
    }

    fn mark_smb2_credits(&self, at: Position, marks: Marks<'_>) {
        if let Some(held) = self.smb2_held {
            let charge = self.smb2_charge;
            marks(at, What::Smb2Credits { held, charge });
        }
    }
}

impl Operation {
    fn metadata() -> Self {
        Self {
            kind: Kind::Metadata,
            tag: Tag {
                size: 0,
                sort: Sort::Metadata,
            },
            stage: Stage::Request,
            began: 0,
            asked: 0,
            data: None,
            rdma_bytes: 0,
            hidden: 0,
            moving: 0,
            reason: None,
            tokens: Vec::new(),
        }
    }

    /// Returns the bytes of its data that have not moved.
    fn missing(&self) -> u64 {
        let moved = self.rdma_bytes.saturating_add(self.hidden);
        u64::from(self.tag.size).saturating_sub(moved)
    }

    fn moves(&mut self, id: u64, to: Stage, at: Position, marks: Marks<'_>) {
        let from = std::mem::replace(&mut self.stage, to);
        if from == to {
            return;
        }
        let what = What::Moved {
            id,
            from,
            to,
            asked: self.asked,
            tag: self.tag,
        };
        marks(at, what);
    }
}

const fn operation_moves_data(header: &Header) -> bool {
    matches!(header.command, Command::READ | Command::WRITE)
}

/// Returns what an element of a request asks for.
fn operation(header: &Header, element: &[u8], length: usize) -> Operation {
    let command = header.command;
    let kind = match command {
        Command::READ => Kind::Read,
        Command::WRITE => Kind::Write,
        _ => return Operation::metadata(),
    };
    let Ok(channel) = Channel::of_request(command, element) else {
        return Operation::metadata();
    };
    let (size, descriptors) = match kind {
        Kind::Read => match ReadRequest::decode(element) {
            Ok(request) => (request.length, request.descriptors),
            Err(_) => return Operation::metadata(),
        },
        _ => match WriteRequest::decode(element, length) {
            Ok(request) if channel == Channel::None => (request.data.len() as u32, Vec::new()),
            Ok(request) => (request.remaining_bytes, request.descriptors),
            Err(_) => return Operation::metadata(),
        },
    };
    let reason = match channel {
        Channel::None if header.is_signed() && size >= RDMA_BYTES => Some(Reason::Signed),
        Channel::None if size >= RDMA_BYTES => Some(Reason::Threshold),
        Channel::None => Some(Reason::Small),
        _ => None,
    };
    let sort = match reason {
        Some(Reason::Signed) => Sort::InMessages(Cause::Signing),
        Some(Reason::Threshold) => Sort::InMessages(Cause::Threshold),
        _ => Sort::Data,
    };
    Operation {
        kind,
        tag: Tag { size, sort },
        reason,
        tokens: descriptors
            .iter()
            .map(|descriptor| descriptor.token)
            .collect(),
        ..Operation::metadata()
    }
}

pub(super) fn nanos(at: Position) -> u64 {
    u64::try_from(at.time.as_nanos()).unwrap_or(u64::MAX)
}
