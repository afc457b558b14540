//! The SMB2 requests of a connection: what they ask for, and when each of their parts moved.
//!
//! A request has a life: it is asked, its data moves, and it ends. It ends in one of three ways ([`Stage`]): its answer is
//! seen; its answer cannot be seen any more, because the capture lacks bytes in which it may be; or the connection ends
//! without it. Only a life that ended in sight is counted.

use std::collections::{BTreeMap, HashMap, HashSet};

use smbdirect_smb::smb2::{Channel, Command, Flags, Header, Protocol, ReadRequest, WriteRequest};

use super::{
    cause::Cause,
    report::InMessages,
    timeline::{Sort, Stage, Tag, What},
};
use crate::{
    assembly::Message,
    per_end::{PerEnd, Role},
    tcp::Position,
};

/// The requests of a connection.
#[derive(Debug, Default)]
pub(super) struct Operations {
    /// Requests without their response, by the first MessageId of their compound.
    outstanding: BTreeMap<u64, Operation>,
    /// The request of each token of the client's memory.
    tokens: HashMap<u32, u64>,
    /// Reads of the server that have no response yet: the sink of iWARP, and the request.
    reads: Vec<(Option<u32>, u64)>,
    /// Encrypted requests and responses, which are matched by their order.
    sealed: PerEnd<u64>,
    credits: Smb2Credits,
    /// Trees of named pipes.
    pipes: HashSet<u32>,
    /// Whether the client has logged in.
    is_ready: bool,
    pub(super) kinds: BTreeMap<Kind, Sums>,
    /// READs and WRITEs whose data is in messages: those that are too small for RDMA, and the others by the cause of it.
    pub(super) small: InMessages,
    pub(super) in_messages: HashMap<Cause, InMessages>,
    /// Those that asked for enough bytes for RDMA.
    pub(super) tagged: HashMap<Cause, u64>,
    pub(super) rdma_bytes: u64,
    /// Requests whose answer cannot be seen.
    pub(super) hidden: u64,
    /// Requests that wait although the server has said so, by command.
    pub(super) announced: BTreeMap<u16, u64>,
    /// Requests that had no answer when the connection or the capture ended.
    pub(super) unanswered: u64,
}

/// The SMB2 credits of the client.
#[derive(Debug, Default)]
struct Smb2Credits {
    /// The credits that it holds; `None` if the capture lacks a message that changes them.
    held: Option<i64>,
    /// The credits that its last READ or WRITE needs.
    charge: i64,
    /// Whether the server has granted fewer than the client asked for.
    is_refused: bool,
    /// The fewest that it has held after a request.
    lowest: Option<i64>,
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
    /// RDMA operations that are moving.
    moving: u32,
    tokens: Vec<u32>,
    /// The MessageId of the READ or WRITE of its compound, and the last one.
    data_id: u64,
    last_id: u64,
    /// The elements of its compound; `None` if the rest of it is cut.
    elements: Option<usize>,
    /// The SMB2 credits that the client asked for, and those that the request needs.
    credits: [i64; 2],
    is_on_pipe: bool,
}

/// Sums over the requests of a kind, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    pub(super) requests: u64,
    pub(super) failed: u64,
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
/// Maximum number of trees of pipes that are remembered. A client has one.
const MAX_PIPES: usize = 64;
/// Requests for fewer bytes are not expected to use RDMA: the threshold of Linux and Windows.
const RDMA_BYTES: u32 = 4096;
/// The first requests of a connection have lower numbers than the last command of a login.
const TREE_CONNECT: Command = Command(0x0003);
const CREATE: Command = Command(0x0005);
const LOCK: Command = Command(0x000a);
const IOCTL: Command = Command(0x000b);
/// ShareType of a named pipe.
const PIPE: u8 = 2;

impl Operations {
    /// Takes a message of the client or the server.
    pub(super) fn message(
        &mut self,
        message: &Message,
        from: Role,
        from_start: bool,
        marks: Marks<'_>,
    ) {
        match (message.protocol, from) {
            (Protocol::Smb2, Role::Client) => self.request(message, from_start, marks),
            (Protocol::Smb2, Role::Server) => self.response(message, marks),
            (Protocol::Encrypted | Protocol::Compressed, _) => self.sealed(message, from, marks),
            (Protocol::Smb1 | Protocol::Unknown, _) => {}
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

    /// The capture lacks something of the connection: the answers of all requests can be in it, and requests too.
    pub(super) fn lost(&mut self, at: Position, marks: Marks<'_>) {
        self.end_all(Stage::Hidden, at, marks);
        marks(at, What::Unseen);
    }

    /// Bytes of an end are cut, with headers in them: those of requests, or those of answers.
    pub(super) fn cut(&mut self, from: Role, at: Position, marks: Marks<'_>) {
        if from == Role::Client {
            self.credits.held = None;
            marks(at, What::Unseen);
        } else {
            self.lost(at, marks);
        }
    }

    /// The connection or the capture ends, and no answer can come.
    pub(super) fn finish(&mut self, at: Position, marks: Marks<'_>) {
        self.unanswered += self.outstanding.len() as u64;
        self.end_all(Stage::Unanswered, at, marks);
    }

    /// Returns the READs and WRITEs whose data was in messages.
    pub(super) fn all_in_messages(&self) -> InMessages {
        let add = |one: InMessages, other: &InMessages| InMessages {
            requests: one.requests + other.requests,
            bytes: one.bytes + other.bytes,
        };
        self.in_messages.values().fold(self.small, add)
    }

    /// Returns whether a request is outstanding.
    pub(super) fn is_waiting(&self) -> bool {
        !self.outstanding.is_empty()
    }

    /// Returns the fewest SMB2 credits that the client has held after a request.
    pub(super) const fn fewest_credits(&self) -> Option<i64> {
        self.credits.lowest
    }

    fn end_all(&mut self, how: Stage, at: Position, marks: Marks<'_>) {
        self.reads.clear();
        self.tokens.clear();
        self.credits.held = None;
        self.sealed = PerEnd::default();
        for (id, mut operation) in std::mem::take(&mut self.outstanding) {
            self.hidden += u64::from(how == Stage::Hidden);
            operation.moves(id, how, at, marks);
        }
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
        let mut found: Option<Operation> = None;
        let mut credits = [0; 2];
        let mut last_id = 0;
        let seen = Seen::of(message);
        for (header, element, length) in &seen.elements {
            if from_start && header.command == Command::NEGOTIATE {
                self.credits.held = Some(1);
            }
            if header.command == Command::CANCEL || header.is_response() {
                continue;
            }
            // It waits for something to happen, so nobody waits for it.
            if header.command == Command::CHANGE_NOTIFY {
                return;
            }
            let charge = i64::from(header.credit_charge.max(1));
            credits[0] += i64::from(header.credits);
            credits[1] += charge;
            first.get_or_insert(header.message_id);
            last_id = header.message_id;
            let operation = operation(header, element, *length);
            if operation.kind != Kind::Metadata {
                self.credits.charge = charge;
            }
            if found.is_none() || operation.kind != Kind::Metadata {
                found = Some(operation);
            }
            if !self.is_ready && header.command.0 > TREE_CONNECT.0 {
                self.is_ready = true;
                marks(message.began, What::Ready);
            }
        }
        let (Some(id), Some(mut operation)) = (first, found) else {
            return;
        };
        operation.last_id = last_id.max(id);
        operation.credits = credits;
        operation.is_on_pipe = seen.elements.iter().any(|(header, ..)| {
            let tree = tree_of(header);
            tree.is_some_and(|tree| self.pipes.contains(&tree))
        });
        operation.elements = (!seen.is_cut).then_some(seen.elements.len());
        if seen.is_cut {
            self.credits.held = None;
            if operation.kind == Kind::Metadata {
                operation.tag.sort = Sort::Unseen;
            }
        }
        self.credits.spend(credits[1]);
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
        if let Sort::InMessages(cause) = operation.tag.sort {
            *self.tagged.entry(cause).or_default() += 1;
        }
        marks(message.began, What::Began(operation.tag));
        operation.moves(id, Stage::Server, message.ended, marks);
        self.outstanding.insert(id, operation);
    }

    fn response(&mut self, message: &Message, marks: Marks<'_>) {
        let seen = Seen::of(message);
        let mut granted = 0;
        let mut ended = None;
        let mut is_compound = false;
        for (header, element, _) in &seen.elements {
            granted += i64::from(header.credits);
            if !header.is_response() {
                continue;
            }
            if header.is_interim() {
                self.interim(header, message.ended, marks);
                continue;
            }
            if header.command == TREE_CONNECT && !header.is_error() {
                self.tree(header, element);
                if !self.is_ready {
                    self.is_ready = true;
                    marks(message.ended, What::Ready);
                }
            }
            if let Some(operation) = self.outstanding.get(&header.message_id) {
                is_compound |= operation.elements != Some(1);
                if let Some(earlier) = ended.replace(header.message_id) {
                    self.end(earlier, &seen, message, granted, marks);
                }
            }
        }
        self.credits.gain(granted, seen.is_cut);
        if let Some(id) = ended {
            self.end(id, &seen, message, granted, marks);
        }
        if seen.is_cut && !is_compound {
            // It also answers other requests, and the capture does not show which.
            self.lost(message.ended, marks);
        }
        self.mark_smb2_credits(message.ended, marks);
    }

    /// The server says that a request waits.
    fn interim(&mut self, header: &Header, at: Position, marks: Marks<'_>) {
        let before = self.outstanding.range_mut(..=header.message_id);
        let Some((&id, operation)) = before.last() else {
            return;
        };
        let waits_for_others = matches!(header.command, CREATE | LOCK)
            || (operation.is_on_pipe
                && matches!(header.command, Command::READ | Command::WRITE | IOCTL));
        if operation.last_id < header.message_id
            || !waits_for_others
            || operation.tag.sort == Sort::Announced
        {
            return;
        }
        *self.announced.entry(header.command.0).or_default() += 1;
        let from = operation.tag;
        operation.tag.sort = Sort::Announced;
        let what = What::Announced {
            id,
            asked: operation.asked,
            from,
            to: operation.tag,
        };
        marks(at, what);
    }

    /// Learns from the answer to a TREE_CONNECT whether the tree has named pipes.
    fn tree(&mut self, header: &Header, element: &[u8]) {
        let share_type = element.get(Header::LENGTH + 2);
        if let (Some(tree), Some(&PIPE)) = (tree_of(header), share_type)
            && self.pipes.len() < MAX_PIPES
        {
            self.pipes.insert(tree);
        }
    }

    fn end(&mut self, id: u64, seen: &Seen<'_>, message: &Message, granted: i64, marks: Marks<'_>) {
        let Some(mut operation) = self.outstanding.remove(&id) else {
            return;
        };
        if !seen.is_cut {
            self.credits.compare(operation.credits, granted);
        }
        operation.moves(id, Stage::Response, message.began, marks);
        operation.moves(id, Stage::Done, message.ended, marks);
        self.release(id, &operation);
        let mut answer = seen.elements.iter();
        let answer = answer.rfind(|(header, ..)| header.message_id == operation.data_id);
        let moved = answer.map_or(Some(operation.rdma_bytes), |(header, element, length)| {
            operation.moved(header, element, *length)
        });
        self.count(&operation, moved, message.began, message.ended);
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

    /// Counts a request with its response, which began and ended at these places, and the bytes that it moved; `None` if it
    /// failed.
    fn count(
        &mut self,
        operation: &Operation,
        moved: Option<u64>,
        responded: Position,
        ended: Position,
    ) {
        let (responded, ended) = (nanos(responded), nanos(ended));
        let [data_began, data_ended] = operation.data.unwrap_or([responded; 2]);
        let bytes = moved.unwrap_or_default().min(operation.tag.size.into());
        let sums = self.kinds.entry(operation.kind).or_default();
        sums.requests += 1;
        sums.failed += u64::from(moved.is_none());
        sums.bytes += bytes;
        sums.rdma_bytes += operation.rdma_bytes;
        // The times of a capture can be anything.
        let add = |sum: &mut u64, from: u64, to: u64| {
            *sum = sum.saturating_add(to.saturating_sub(from));
        };
        add(&mut sums.request, operation.began, operation.asked);
        add(&mut sums.server_before, operation.asked, data_began);
        add(&mut sums.data, data_began, data_ended);
        add(&mut sums.server_after, data_ended, responded);
        add(&mut sums.response, responded, ended);
        let is_small = bytes < u64::from(RDMA_BYTES);
        let counts = match (operation.tag.sort, operation.kind) {
            _ if !operation.tokens.is_empty() => return,
            (Sort::InMessages(cause), _) if !is_small => self.in_messages.entry(cause).or_default(),
            (_, Kind::Read | Kind::Write) => &mut self.small,
            _ => return,
        };
        counts.requests += 1;
        counts.bytes += bytes;
    }

    /// Takes an encrypted or compressed message, of which only its length is known.
    fn sealed(&mut self, message: &Message, from: Role, marks: Marks<'_>) {
        let size = u32::try_from(message.length).unwrap_or(u32::MAX);
        // Their numbers are above those of messages that are not encrypted.
        const SEALED: u64 = 1 << 63;
        let number = &mut self.sealed[from];
        *number += 1;
        let id = SEALED | *number;
        if from == Role::Client {
            if !self.is_ready {
                self.is_ready = true;
                marks(message.began, What::Ready);
            }
            let operation = Operation {
                kind: Kind::Encrypted,
                tag: Tag {
                    size,
                    // A response may be long, so any request may ask for data.
                    sort: Sort::InMessages(Cause::Encryption),
                },
                ..Operation::metadata()
            };
            self.begin(id, operation, message, marks);
        } else {
            if size >= RDMA_BYTES {
                let counts = self.in_messages.entry(Cause::Encryption).or_default();
                counts.requests += 1;
                counts.bytes += u64::from(size);
            }
            self.end(id, &Seen::default(), message, 0, marks);
        }
    }

    fn mark_smb2_credits(&self, at: Position, marks: Marks<'_>) {
        if let Some(held) = self.credits.held {
            let Smb2Credits {
                charge, is_refused, ..
            } = self.credits;
            let is_short = is_refused && held < charge + SPARE_CREDITS;
            marks(at, What::Smb2Credits { is_short });
        }
    }
}

/// Clients keep up to two credits, for an ECHO and the acknowledgement of a lease break.
const SPARE_CREDITS: i64 = 2;

impl Smb2Credits {
    fn spend(&mut self, charge: i64) {
        // A client cannot spend what it does not have: the capture lacks a grant.
        self.held = self
            .held
            .map(|held| held - charge)
            .filter(|&held| held >= 0);
        if let Some(held) = self.held {
            self.lowest = Some(self.lowest.map_or(held, |lowest| lowest.min(held)));
        }
    }

    fn gain(&mut self, granted: i64, is_cut: bool) {
        self.held = self.held.filter(|_| !is_cut).map(|held| held + granted);
    }

    /// Compares what the client asked for with what it got.
    fn compare(&mut self, [asked, charge]: [i64; 2], granted: i64) {
        if granted < asked {
            self.is_refused = true;
        } else if asked > charge {
            self.is_refused = false;
        }
    }
}

/// The elements of a message, as far as the capture has them: each with its header, its bytes that are there, and its
/// length.
#[derive(Debug, Default)]
struct Seen<'a> {
    elements: Vec<(Header, &'a [u8], usize)>,
    /// Whether the capture lacks the header of another element.
    is_cut: bool,
}

impl<'a> Seen<'a> {
    fn of(message: &'a Message) -> Self {
        let mut seen = Self::default();
        let all = usize::try_from(message.length).unwrap_or(usize::MAX);
        let mut start = 0;
        loop {
            let rest = message.bytes.get(start..).unwrap_or_default();
            let Ok(header) = Header::decode(rest) else {
                seen.is_cut = start < all;
                return seen;
            };
            let next = header.next_command as usize;
            let length = if next == 0 {
                all.saturating_sub(start)
            } else {
                next
            };
            let there = &rest[..rest.len().min(length)];
            seen.elements.push((header, there, length));
            if next < Header::LENGTH {
                return seen;
            }
            start += next;
        }
    }
}

/// Returns the tree of an element; `None` if its field has another content.
fn tree_of(header: &Header) -> Option<u32> {
    let is_async = header.flags.contains(Flags::ASYNC);
    (!is_async).then_some((header.tree_or_async_id >> 32) as u32)
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
            moving: 0,
            tokens: Vec::new(),
            data_id: 0,
            last_id: 0,
            elements: Some(1),
            credits: [0; 2],
            is_on_pipe: false,
        }
    }

    /// Returns the bytes of its data that have not moved.
    fn missing(&self) -> u64 {
        u64::from(self.tag.size).saturating_sub(self.rdma_bytes)
    }

    /// Returns the bytes that it moved, by its answer; `None` if it failed.
    fn moved(&self, header: &Header, element: &[u8], length: usize) -> Option<u64> {
        if header.is_error() {
            return None;
        }
        // DataLength of READ and Count of WRITE are at the same place.
        let place = Header::LENGTH + 4..Header::LENGTH + 8;
        let field = element.get(place).and_then(|field| field.first_chunk());
        let said = field.map(|&field| u64::from(u32::from_le_bytes(field)));
        Some(match (self.kind, said) {
            (Kind::Metadata, _) => 0,
            (_, Some(said)) => said,
            (_, None) if !self.tokens.is_empty() => self.rdma_bytes,
            (Kind::Read, None) => length.saturating_sub(READ_ANSWER_BYTES) as u64,
            (_, None) => u64::from(self.tag.size),
        })
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

/// Bytes of the answer to a READ before its data.
const READ_ANSWER_BYTES: usize = 80;

/// Returns what an element of a request asks for.
fn operation(header: &Header, element: &[u8], length: usize) -> Operation {
    let command = header.command;
    let metadata = Operation {
        data_id: header.message_id,
        ..Operation::metadata()
    };
    let kind = match command {
        Command::READ => Kind::Read,
        Command::WRITE => Kind::Write,
        _ if command.0 <= TREE_CONNECT.0 => {
            return Operation {
                tag: Tag {
                    size: 0,
                    sort: Sort::Login,
                },
                ..metadata
            };
        }
        _ => return metadata,
    };
    let Ok(channel) = Channel::of_request(command, element) else {
        return metadata;
    };
    let (size, descriptors) = match kind {
        Kind::Read => match ReadRequest::decode(element) {
            Ok(request) => (request.length, request.descriptors),
            Err(_) => return metadata,
        },
        _ => match WriteRequest::decode(element, length) {
            Ok(request) if channel == Channel::None => (request.data.len() as u32, Vec::new()),
            Ok(request) => (request.remaining_bytes, request.descriptors),
            Err(_) => return metadata,
        },
    };
    let sort = match channel {
        Channel::None if size < RDMA_BYTES => Sort::Data,
        Channel::None if header.is_signed() => Sort::InMessages(Cause::Signing),
        Channel::None => Sort::InMessages(Cause::Threshold),
        _ => Sort::Data,
    };
    Operation {
        kind,
        tag: Tag { size, sort },
        tokens: descriptors
            .iter()
            .map(|descriptor| descriptor.token)
            .collect(),
        ..metadata
    }
}

pub(super) fn nanos(at: Position) -> u64 {
    u64::try_from(at.time.as_nanos()).unwrap_or(u64::MAX)
}
