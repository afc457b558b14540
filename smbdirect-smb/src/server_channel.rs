//! Puts RDMA onto the requests of a client that has none.
//!
//! * READ: the request goes to the server with a channel to memory of the gateway's. The answer
//!   goes to the client with the data that the server has written there.
//! * WRITE: the data is put into such memory, and the request goes to the server with a channel
//!   to it.
//!
//! That is done for single requests that are neither signed nor encrypted, from a threshold on and
//! up to the server's MaxReadWriteSize, on dialect 3.0 and later. All else passes byte for byte. A
//! client that asks for a channel by itself is refused: the server would move data to and from
//! memory that is not the client's.

use std::{collections::HashMap, ops::Range};

use bytes::{Bytes, BytesMut};
use smbdirect::BufferDescriptorV1;

use crate::{
    fault::{Refusal, ServerFault},
    opaque::Opaque,
    smb2::{
        Channel, Command, DIALECT_3_0, DIALECT_3_0_2, Element, Elements, Header, Malformed,
        Protocol, ReadRequest, ReadResponse, WriteRequest, negotiated_dialect,
    },
};

/// The unanswered requests with a channel.
#[derive(Debug)]
pub struct ServerChannel {
    settings: Settings,
    dialect: Option<u16>,
    pending: HashMap<u64, Pending>,
    opaque: Opaque,
}

/// Most unanswered requests with a channel: the credits that a server gives. Above that, requests
/// go to the server without a channel.
const MAX_PENDING: usize = 8192;

/// The requests that become RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Least bytes of data that move by RDMA.
    pub threshold: u32,
    /// MaxReadWriteSize of the connection to the server: most bytes of one request by RDMA.
    pub max_read_write_size: u32,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    command: Command,
    length: u32,
}

/// What to do with a request of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offload {
    /// It goes to the server unchanged.
    Pass,
    /// It is a compound that is incomplete: call again with all of it.
    Incomplete,
    /// Register `length` bytes for the server to write to, and call
    /// [`ServerChannel::read_request`].
    Read {
        /// Bytes to register.
        length: u32,
    },
    /// Register these bytes of the message for the server to read, and call
    /// [`ServerChannel::write_request`].
    Write {
        /// The place of the data in the message.
        data: Range<usize>,
    },
}

/// What to do with an answer of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It goes to the client unchanged.
    Pass,
    /// It goes to the client unchanged, and the memory of this request is done with.
    Done {
        /// The MessageId of the request.
        message_id: u64,
    },
    /// `head` goes to the client, followed by the first `length` bytes of the memory of this
    /// request, which is done with.
    Data {
        /// The MessageId of the request.
        message_id: u64,
        /// The answer up to its data.
        head: Bytes,
        /// Bytes of data.
        length: u32,
    },
}

impl ServerChannel {
    /// Bytes of a request that [`request`](Self::request) needs to see, of requests that have them.
    pub const REQUEST_HEAD: usize = WriteRequest::FIXED;

    /// Creates the state of a new connection.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            dialect: None,
            pending: HashMap::new(),
            opaque: Opaque::default(),
        }
    }

    /// Returns the number of unanswered requests with a channel.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Looks at a request of the client of `length` bytes, of which `head` has the first
    /// [`REQUEST_HEAD`](Self::REQUEST_HEAD), or all.
    ///
    /// # Errors
    /// It is not to be forwarded, and the connection is to end.
    pub fn request(&mut self, head: &[u8], length: usize) -> Result<Offload, Refusal> {
        let protocol = Protocol::of(head);
        self.opaque.request(protocol);
        if protocol != Protocol::Smb2 {
            return Ok(Offload::Pass);
        }
        let header = match Header::decode(head) {
            Ok(header) => header,
            // It has no command that could have a channel.
            Err(Malformed::TooShort { .. }) => return Ok(Offload::Pass),
            Err(fault) => return Err(Refusal::Header { fault }),
        };
        if header.next_command != 0 {
            if head.len() < length {
                return Ok(Offload::Incomplete);
            }
            for element in Elements::of(head) {
                let element = element.map_err(|fault| malformed(header.command, fault))?;
                let bytes = &head[element.place.clone()];
                self.element(&element, bytes, bytes.len())?;
                self.pass(&element, bytes);
            }
            return Ok(Offload::Pass);
        }
        let element = Element {
            header,
            place: 0..length,
        };
        let offload = self.element(&element, head, length)?;
        let can = self.dialect.is_some_and(|dialect| dialect >= DIALECT_3_0)
            && !header.is_signed()
            && self.pending.len() < MAX_PENDING;
        if !can || offload == Offload::Pass {
            self.pass(&element, head);
            return Ok(Offload::Pass);
        }
        Ok(offload)
    }

    /// Records an element that is forwarded unchanged.
    const fn pass(&mut self, element: &Element, bytes: &[u8]) {
        if element.header.command.0 == Command::READ.0 {
            self.opaque.read(ReadRequest::flags_of(bytes));
        }
    }

    /// Returns what to do with an element that may be changed and is no part of a compound.
    fn element(&self, element: &Element, head: &[u8], length: usize) -> Result<Offload, Refusal> {
        let command = element.header.command;
        let message_id = element.header.message_id;
        if command != Command::CANCEL && self.pending.contains_key(&message_id) {
            return Err(Refusal::Repeated {
                command,
                message_id,
            });
        }
        if !element.moves_data() {
            return Ok(Offload::Pass);
        }
        let malformed = |fault| malformed(command, fault);
        // The descriptors need not be in `head`, so the channel is checked before they are read.
        let channel = Channel::of_request(command, head).map_err(malformed)?;
        if channel != Channel::None {
            return Err(Refusal::NoRdma { command, channel });
        }
        let (size, offload) = match command {
            Command::READ => {
                let length = ReadRequest::decode(head).map_err(malformed)?.length;
                (length as usize, Offload::Read { length })
            }
            _ => {
                let data = WriteRequest::decode(head, length).map_err(malformed)?.data;
                (data.len(), Offload::Write { data })
            }
        };
        let Settings {
            threshold,
            max_read_write_size,
        } = self.settings;
        let range = threshold.max(1) as usize..=max_read_write_size as usize;
        Ok(if range.contains(&size) {
            offload
        } else {
            Offload::Pass
        })
    }

    /// Returns the READ for which memory was registered, with the channel to it.
    ///
    /// # Panics
    /// If the request is not the one that was to become [`Offload::Read`].
    pub fn read_request(&mut self, request: &[u8], descriptors: &[BufferDescriptorV1]) -> Bytes {
        let (header, channel) = self.start(request);
        let read = ReadRequest::decode(request).expect("the request was looked at before");
        self.expect_answer(&header, read.length);
        let read = ReadRequest {
            flags: read.flags & !ReadRequest::REQUEST_COMPRESSED,
            channel,
            remaining_bytes: 0,
            descriptors: descriptors.to_vec(),
            ..read
        };
        let mut bytes = BytesMut::with_capacity(request.len() + 64);
        header.encode(&mut bytes);
        read.encode(&mut bytes);
        bytes.freeze()
    }

    /// Returns the WRITE of which the data was registered, with the channel to it. `head` has at
    /// least the first [`REQUEST_HEAD`](Self::REQUEST_HEAD) bytes of the request of `length` bytes.
    ///
    /// # Panics
    /// If the request is not the one that was to become [`Offload::Write`].
    pub fn write_request(
        &mut self,
        head: &[u8],
        length: usize,
        descriptors: &[BufferDescriptorV1],
    ) -> Bytes {
        let (header, channel) = self.start(head);
        let write = WriteRequest::decode(head, length).expect("the request was looked at before");
        let remaining_bytes = write.data.len() as u32;
        self.expect_answer(&header, remaining_bytes);
        let write = WriteRequest {
            channel,
            remaining_bytes,
            descriptors: descriptors.to_vec(),
            ..write
        };
        let mut bytes = BytesMut::with_capacity(WriteRequest::FIXED + 64);
        header.encode(&mut bytes);
        write.encode_channel(&mut bytes);
        bytes.freeze()
    }

    fn start(&self, head: &[u8]) -> (Header, Channel) {
        let header = Header::decode(head).expect("the request was looked at before");
        let channel = match self.dialect {
            Some(dialect) if dialect >= DIALECT_3_0_2 => Channel::RdmaV1Invalidate,
            _ => Channel::RdmaV1,
        };
        (header, channel)
    }

    fn expect_answer(&mut self, header: &Header, length: u32) {
        let command = header.command;
        self.pending
            .insert(header.message_id, Pending { command, length });
    }

    /// Handles a complete answer of the server.
    ///
    /// # Errors
    /// The answer is not to be carried, and the connection is to end.
    pub fn answer(&mut self, message: &[u8]) -> Result<Answer, ServerFault> {
        let protocol = Protocol::of(message);
        if !self.pending.is_empty() {
            self.opaque.answer(protocol)?;
        }
        if protocol != Protocol::Smb2 {
            return Ok(Answer::Pass);
        }
        let header = match Header::decode(message) {
            Ok(header) => header,
            Err(_) if self.pending.is_empty() => return Ok(Answer::Pass),
            Err(fault) => return Err(ServerFault::Header { fault }),
        };
        if let Some(dialect) = negotiated_dialect(&header, message) {
            self.dialect = Some(dialect);
        }
        if self.pending.is_empty() {
            return Ok(Answer::Pass);
        }
        let malformed = |fault| ServerFault::Malformed {
            command: header.command,
            fault,
        };
        if header.next_command != 0 {
            for element in Elements::of(message) {
                let element = element.map_err(malformed)?;
                if self.pending_for(&element.header).is_some() {
                    let command = element.header.command;
                    return Err(ServerFault::Compounded { command });
                }
            }
            return Ok(Answer::Pass);
        }
        let Some(pending) = self.pending_for(&header) else {
            return Ok(Answer::Pass);
        };
        let message_id = header.message_id;
        self.pending.remove(&message_id);
        if pending.command != Command::READ || header.is_error() {
            return Ok(Answer::Done { message_id });
        }
        let response = ReadResponse::decode(message, message.len()).map_err(malformed)?;
        let (inline, remaining) = (response.data.len(), response.data_remaining);
        if remaining == 0 {
            // The server may have sent the data in the message.
            return Ok(Answer::Done { message_id });
        }
        if inline > 0 {
            return Err(ServerFault::InlineAndRdma { inline, remaining });
        }
        if remaining > pending.length {
            return Err(ServerFault::TooMuch {
                length: remaining.into(),
                requested: pending.length,
            });
        }
        if header.is_signed() {
            return Err(ServerFault::Signed);
        }
        let mut head = BytesMut::with_capacity(ReadResponse::FIXED);
        header.encode(&mut head);
        ReadResponse::encode(remaining, 0, response.flags, &mut head);
        Ok(Answer::Data {
            message_id,
            head: head.freeze(),
            length: remaining,
        })
    }

    /// Returns the request that `header` is the final answer to. SMB2_FLAGS_SERVER_TO_REDIR is not
    /// required, because a client may ignore it.
    fn pending_for(&self, header: &Header) -> Option<Pending> {
        if header.is_interim() {
            return None;
        }
        let pending = self.pending.get(&header.message_id)?;
        (pending.command == header.command).then_some(*pending)
    }
}

fn malformed(command: Command, fault: Malformed) -> Refusal {
    Refusal::Malformed { command, fault }
}

#[cfg(test)]
mod tests;
