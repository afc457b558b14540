//! The READs and WRITEs of a connection whose data moves by RDMA, and the data.

use std::collections::{BTreeMap, HashMap, VecDeque};

use smbdirect::{BufferDescriptorV1, rdma::iwarp::rdmap};
use smbdirect_smb::smb2::{
    Channel, Command, Element, Header, ReadRequest, ReadResponse, WriteRequest,
};

use crate::{
    per_end::{PerEnd, Side},
    tcp::LATE_PACKETS,
};

/// The requests of a connection whose data moves by RDMA.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// By MessageId.
    requests: HashMap<u64, Move>,
    /// The memory of the client: token and address of each descriptor.
    places: BTreeMap<(u32, u64), Place>,
    /// Reads of the server over iWARP without their whole response.
    reads: VecDeque<rdmap::ReadRequest>,
    /// Losses in each direction so far.
    losses: PerEnd<u64>,
    /// Bytes that are held, with those of the structures.
    held: usize,
}

/// A READ or WRITE.
#[derive(Debug)]
struct Move {
    command: Command,
    length: u32,
    data: Pieces,
    /// Losses in each direction before the request.
    losses: PerEnd<u64>,
    /// The keys of its descriptors in `places`.
    places: Vec<(u32, u64)>,
    /// The frame of the answer to a WRITE.
    answered: Option<u64>,
    /// Whether the answer is an error, so that its data need not have moved.
    has_failed: bool,
}

/// The memory of a descriptor.
#[derive(Clone, Copy, Debug)]
struct Place {
    message_id: u64,
    /// The offset in the data of the request.
    begins: u64,
    length: u32,
}

/// Maximum number of requests with a channel that wait for their answer: the most credits that Windows and Samba grant.
const MAX_REQUESTS: usize = 8192;
/// Maximum number of descriptors of these requests.
const MAX_PLACES: usize = 65_536;
/// Maximum number of Reads of a server that wait for their response. Adapters have up to 256 outstanding.
const MAX_READS: usize = 256;
/// The memory that a request, a descriptor or a piece of data takes in addition to its bytes, roughly.
const OVERHEAD: usize = 128;

impl Moves {
    /// Returns the bytes that are held.
    pub(super) const fn held(&self) -> usize {
        self.held
    }

    /// Takes an element of a request. Returns its MessageId if it is a WRITE whose data comes later.
    pub(super) fn request(&mut self, header: &Header, element: &[u8]) -> Option<u64> {
        let is_v1 = |channel| matches!(channel, Channel::RdmaV1 | Channel::RdmaV1Invalidate);
        let (length, descriptors) = match header.command {
            Command::READ => {
                let read = ReadRequest::decode(element).ok()?;
                is_v1(read.channel).then_some((read.length, read.descriptors))?
            }
            Command::WRITE => {
                let write = WriteRequest::decode(element, element.len()).ok()?;
                let has_channel = is_v1(write.channel) && write.data.is_empty();
                has_channel.then_some((write.remaining_bytes, write.descriptors))?
            }
            _ => return None,
        };
        self.forget(header.message_id);
        let has_room = self.requests.len() < MAX_REQUESTS
            && self.places.len() + descriptors.len() <= MAX_PLACES;
        if length == 0 || !has_room {
            return None;
        }
        let places = self.describe(header.message_id, &descriptors);
        self.held += OVERHEAD;
        let request = Move {
            command: header.command,
            length,
            data: Pieces::default(),
            losses: self.losses,
            places,
            answered: None,
            has_failed: false,
        };
        self.requests.insert(header.message_id, request);
        (header.command == Command::WRITE).then_some(header.message_id)
    }

    /// Notes the memory of a request. Memory of an earlier request is that of the new one if they overlap.
    fn describe(&mut self, message_id: u64, descriptors: &[BufferDescriptorV1]) -> Vec<(u32, u64)> {
        let (mut begins, mut keys) = (0, Vec::new());
        for descriptor in descriptors {
            let (token, address) = (descriptor.token, descriptor.offset);
            let end = address.saturating_add(descriptor.length.into());
            while let Some((&key, place)) = self.places.range(..(token, end)).next_back()
                && key.0 == token
                && key.1.saturating_add(place.length.into()) > address
            {
                self.places.remove(&key);
                self.held -= OVERHEAD;
            }
            let place = Place {
                message_id,
                begins,
                length: descriptor.length,
            };
            begins += u64::from(descriptor.length);
            if descriptor.length > 0 {
                self.held += OVERHEAD;
                self.places.insert((token, address), place);
                keys.push((token, address));
            }
        }
        keys
    }

    /// Takes data that moves to or from the memory of the client.
    pub(super) fn data(&mut self, token: u32, mut address: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let Some((&(key, start), place)) = self.places.range(..=(token, address)).next_back()
            else {
                return;
            };
            if key != token || address - start >= place.length.into() {
                return;
            }
            let within = address - start;
            let room = u64::from(place.length) - within;
            let (part, rest) = bytes.split_at(bytes.len().min(room as usize));
            let losses = self.losses;
            // After losses in both directions, the request may have been answered and its memory used again.
            if let Some(request) = self.requests.get_mut(&place.message_id)
                && Side::BOTH
                    .into_iter()
                    .any(|side| request.losses[side] == losses[side])
            {
                self.held -= request.data.held;
                request
                    .data
                    .add(place.begins + within, part, request.length);
                self.held += request.data.held;
            }
            (address, bytes) = (address.saturating_add(part.len() as u64), rest);
        }
    }

    /// Takes a Read of the server over iWARP.
    pub(super) fn read(&mut self, read: rdmap::ReadRequest) {
        if self.reads.len() == MAX_READS {
            self.reads.pop_front();
        }
        if read.read_message_size > 0 {
            self.reads.push_back(read);
        }
    }

    /// Takes a part of the response to such a Read.
    pub(super) fn read_response(&mut self, stag: u32, offset: u64, bytes: &[u8]) {
        let within = |read: &rdmap::ReadRequest| {
            let within = offset.checked_sub(read.sink_tagged_offset)?;
            let size = u64::from(read.read_message_size);
            (read.sink_stag == stag && within < size).then_some((within, size))
        };
        let found = self.reads.iter().enumerate();
        let found = found.filter_map(|(index, read)| Some((index, within(read)?)));
        let Some((index, (within, size))) = found.into_iter().next() else {
            return;
        };
        let read = self.reads[index];
        if within + bytes.len() as u64 >= size {
            self.reads.remove(index);
        }
        let address = read.source_tagged_offset.saturating_add(within);
        self.data(read.source_stag, address, bytes);
    }

    /// Handles a loss in a direction.
    pub(super) fn lost(&mut self, side: Side) {
        self.losses[side] += 1;
        // A later Read may have the sink of one whose response was lost.
        self.reads.clear();
    }

    /// Returns whether the data of a WRITE is all there, or will not come any more.
    ///
    /// Packets of it may be later in the file than the answer, as far as packets can be late.
    pub(super) fn is_settled(&self, message_id: u64, frame: u64) -> bool {
        let is_over = |answered| answered + LATE_PACKETS < frame;
        self.requests.get(&message_id).is_none_or(|request| {
            request.has_failed
                || request.answered.is_some_and(is_over)
                || request.data.is_whole(request.length)
        })
    }

    /// Ends a WRITE. Returns its data if all of it is there, and otherwise whether the capture lacks data that moved.
    pub(super) fn written(&mut self, message_id: u64) -> (Option<Vec<u8>>, bool) {
        let Some(request) = self.forget(message_id) else {
            return (None, true);
        };
        let data = request.data.first(request.length);
        let is_missed = data.is_none() && !request.has_failed;
        (data, is_missed)
    }

    /// Takes the answer to a READ or WRITE. Returns the data of a READ if all of it is there.
    pub(super) fn answer(
        &mut self,
        header: &Header,
        element: &[u8],
        frame: u64,
    ) -> Option<(u32, Vec<u8>)> {
        let request = self.requests.get_mut(&header.message_id)?;
        if header.is_interim() || request.command != header.command {
            return None;
        }
        if header.command == Command::WRITE {
            // The request may still wait for others before it.
            request.answered = Some(frame);
            request.has_failed = header.is_error();
            return None;
        }
        let request = self.forget(header.message_id)?;
        let response = ReadResponse::decode(element, element.len()).ok()?;
        let moved = response.data_remaining;
        let has_moved = !header.is_error() && moved > 0 && response.data.is_empty();
        let data = has_moved.then(|| request.data.first(moved)).flatten()?;
        Some((response.flags, data))
    }

    fn forget(&mut self, message_id: u64) -> Option<Move> {
        let request = self.requests.remove(&message_id)?;
        for key in &request.places {
            let place = self.places.get(key);
            if place.is_some_and(|place| place.message_id == message_id) {
                self.places.remove(key);
                self.held -= OVERHEAD;
            }
        }
        self.held -= OVERHEAD + request.data.held;
        Some(request)
    }
}

/// Returns whether an answer says that RDMA moved its data.
pub(super) fn says_moved(element: &Element, bytes: &[u8]) -> bool {
    element.header.command == Command::READ
        && element.header.is_response()
        && !element.header.is_error()
        && ReadResponse::decode(bytes, bytes.len())
            .is_ok_and(|response| response.data_remaining > 0)
}

/// Parts of the data of a request, none of which overlap.
#[derive(Debug, Default)]
struct Pieces {
    pieces: BTreeMap<u64, Vec<u8>>,
    /// Bytes of all pieces.
    bytes: u64,
    /// The memory that they take.
    held: usize,
}

impl Pieces {
    /// Adds bytes at an offset of data that has `length` bytes. Later bytes replace earlier ones, as in memory.
    fn add(&mut self, mut at: u64, mut bytes: &[u8], length: u32) {
        let room = u64::from(length).saturating_sub(at);
        bytes = &bytes[..bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
        while !bytes.is_empty() {
            let next = self.pieces.range(at + 1..).next().map(|(&start, _)| start);
            let free = next.map_or(u64::MAX, |start| start - at);
            let before = self.pieces.range_mut(..=at).next_back();
            let taken = match before {
                Some((&start, piece)) if at - start < piece.len() as u64 => {
                    let known = &mut piece[(at - start) as usize..];
                    let taken = known.len().min(bytes.len());
                    known[..taken].copy_from_slice(&bytes[..taken]);
                    taken
                }
                before => {
                    let taken = bytes.len().min(usize::try_from(free).unwrap_or(usize::MAX));
                    match before {
                        Some((&start, piece)) if at - start == piece.len() as u64 => {
                            piece.extend_from_slice(&bytes[..taken]);
                        }
                        _ => {
                            self.pieces.insert(at, bytes[..taken].to_vec());
                            self.held += OVERHEAD;
                        }
                    }
                    self.bytes += taken as u64;
                    self.held += taken;
                    taken
                }
            };
            (at, bytes) = (at + taken as u64, &bytes[taken..]);
        }
    }

    fn is_whole(&self, length: u32) -> bool {
        self.bytes == u64::from(length)
    }

    /// Returns the first `length` bytes, if they are all there.
    fn first(self, length: u32) -> Option<Vec<u8>> {
        let mut data = Vec::new();
        for (start, piece) in self.pieces {
            if data.len() as u64 >= u64::from(length) || start != data.len() as u64 {
                break;
            }
            if data.is_empty() {
                data = piece;
            } else {
                data.extend_from_slice(&piece);
            }
        }
        data.truncate(length as usize);
        (data.len() as u64 == u64::from(length)).then_some(data)
    }
}
