//! The READs and WRITEs of a connection, and the data that moves for each.

use std::collections::{HashMap, VecDeque};

use smbdirect::BufferDescriptorV1;
use smbdirect_smb::smb2::{
    Command, Header, ReadRequest, ReadResponse, WriteRequest, WriteResponse,
};

use super::opens;

/// The READs and WRITEs of a connection without their response.
#[derive(Debug, Default)]
pub(super) struct Moving {
    requests: HashMap<u64, Request>,
    /// The place of each token of the client's memory: the request, and where its memory begins in the data.
    tokens: HashMap<u32, Place>,
    /// Reads of the server over iWARP: the sink, and the place of the data.
    reads: VecDeque<((u32, u64), u64, u64)>,
    /// Bytes that are held.
    held: usize,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    id: u64,
    begins: u64,
    address: u64,
    length: u64,
}

/// A READ or WRITE.
#[derive(Debug)]
struct Request {
    target: Target,
    is_read: bool,
    offset: u64,
    parts: Vec<(u64, Vec<u8>)>,
}

/// The file of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    File([u8; 16]),
    /// The file that the CREATE with this MessageId opens, in the same compound.
    OpenedBy(u64),
}

/// Data at an offset of a file.
pub(super) type Part = (Target, u64, Vec<u8>);

/// Maximum number of bytes that wait for responses in one connection: more than clients have outstanding.
const MAX_HELD_BYTES: usize = 128 << 20;
/// Maximum number of requests that wait for responses.
const MAX_REQUESTS: usize = 1 << 14;

impl Moving {
    /// Takes a READ or WRITE request.
    pub(super) fn request(&mut self, header: &Header, element: &[u8], opened_by: Option<u64>) {
        let id = header.message_id;
        if self.requests.len() >= MAX_REQUESTS {
            return;
        }
        let target = |file_id| match opened_by {
            Some(create) if file_id == opens::RELATED_FILE => Target::OpenedBy(create),
            _ => Target::File(file_id),
        };
        self.forget(id);
        let (request, descriptors) = if header.command == Command::READ {
            let Ok(read) = ReadRequest::decode(element) else {
                return;
            };
            let request = Request {
                target: target(read.file_id),
                is_read: true,
                offset: read.offset,
                parts: Vec::new(),
            };
            (request, read.descriptors)
        } else {
            let Ok(write) = WriteRequest::decode(element, element.len()) else {
                return;
            };
            let data = element[write.data].to_vec();
            let request = Request {
                target: target(write.file_id),
                is_read: false,
                offset: write.offset,
                parts: Vec::new(),
            };
            self.requests.insert(id, request);
            self.keep(id, 0, data);
            self.remember(id, &write.descriptors);
            return;
        };
        self.requests.insert(id, request);
        self.remember(id, &descriptors);
    }

    fn remember(&mut self, id: u64, descriptors: &[BufferDescriptorV1]) {
        let mut begins = 0;
        for descriptor in descriptors {
            let place = Place {
                id,
                begins,
                address: descriptor.offset,
                length: descriptor.length.into(),
            };
            begins += u64::from(descriptor.length);
            if self.tokens.len() < 4 * MAX_REQUESTS {
                self.tokens.insert(descriptor.token, place);
            }
        }
    }

    /// Takes data that moves to or from an address of the client's memory.
    pub(super) fn data(&mut self, token: u32, address: u64, data: Vec<u8>) {
        if let Some((id, begins)) = self.place(token, address) {
            self.keep(id, begins, data);
        }
    }

    /// Takes a Read of the server over iWARP.
    pub(super) fn read(&mut self, token: u32, address: u64, sink: (u32, u64)) {
        if let Some((id, begins)) = self.place(token, address)
            && self.reads.len() < MAX_REQUESTS
        {
            self.reads.push_back((sink, id, begins));
        }
    }

    /// Takes the response to such a Read.
    pub(super) fn read_response(&mut self, sink: (u32, u64), data: Vec<u8>) {
        let index = self.reads.iter().position(|&(known, ..)| known == sink);
        if let Some((_, id, begins)) = index.and_then(|index| self.reads.remove(index)) {
            self.keep(id, begins, data);
        }
    }

    /// Returns the request of an address in the client's memory, and its place in the data.
    fn place(&self, token: u32, address: u64) -> Option<(u64, u64)> {
        let place = self.tokens.get(&token)?;
        let within = address.checked_sub(place.address)?;
        (within < place.length).then_some((place.id, place.begins + within))
    }

    fn keep(&mut self, id: u64, begins: u64, data: Vec<u8>) {
        let has_room = self.held + data.len() <= MAX_HELD_BYTES;
        if let Some(request) = self.requests.get_mut(&id)
            && !data.is_empty()
            && has_room
        {
            self.held += data.len();
            request.parts.push((begins, data));
        }
    }

    /// Forgets a request. Returns it with its data.
    fn forget(&mut self, id: u64) -> Option<Request> {
        let request = self.requests.remove(&id)?;
        let held = request.parts.iter().map(|(_, data)| data.len());
        self.held -= held.sum::<usize>();
        Some(request)
    }

    /// Takes the response to a READ or WRITE. Returns the data that it confirms.
    pub(super) fn response(&mut self, header: &Header, element: &[u8]) -> Vec<Part> {
        if header.is_interim() {
            return Vec::new();
        }
        let Some(mut request) = self.forget(header.message_id) else {
            return Vec::new();
        };
        self.tokens.retain(|_, place| place.id != header.message_id);
        let confirmed = if header.is_error() {
            0
        } else if request.is_read {
            match ReadResponse::decode(element, element.len()) {
                Ok(response) if response.data_remaining > 0 => u64::from(response.data_remaining),
                Ok(response) => {
                    let data = element[response.data].to_vec();
                    let length = data.len() as u64;
                    request.parts = vec![(0, data)];
                    length
                }
                Err(_) => 0,
            }
        } else {
            WriteResponse::decode(element).map_or(0, |response| response.count.into())
        };
        let parts = request.parts.into_iter().filter_map(|(begins, mut data)| {
            let length = confirmed.saturating_sub(begins).min(data.len() as u64);
            data.truncate(length as usize);
            let offset = request.offset.checked_add(begins)?;
            (length > 0).then_some((request.target, offset, data))
        });
        parts.collect()
    }

    /// Forgets what waits, because the capture lacks something.
    pub(super) fn lost(&mut self) {
        *self = Self::default();
    }
}
