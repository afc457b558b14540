//! Adds an RDMA channel to requests of a client that has no RDMA.
//!
//! * READ: the gateway registers memory and sends the request to the server with a channel to it. It
//!   sends the client the answer with the data that the server has written to the memory.
//! * WRITE: the gateway copies the data to registered memory, and sends the request to the server with a
//!   channel to it.
//!
//! This applies to single requests that are neither signed nor encrypted, whose data is between a
//! threshold and the server's MaxReadWriteSize, on dialect 3.0 and later. All other messages are
//! forwarded byte for byte. A request that already has a channel is refused, because the server would
//! access memory that is not the client's.

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

/// The translator for a server with RDMA, which records the unanswered requests with a channel.
#[derive(Debug)]
pub struct ServerChannel {
    settings: Settings,
    dialect: Option<u16>,
    pending: HashMap<u64, Pending>,
    opaque: Opaque,
}

/// Maximum number of unanswered requests with a channel. This is the default of `smb2 max credits` of Samba.
/// Further requests are forwarded without a channel.
const MAX_PENDING: usize = 8192;

/// The range of data lengths that move by RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Minimum number of data bytes that move by RDMA.
    pub threshold: u32,
    /// MaxReadWriteSize of the connection to the server: the maximum number of data bytes of one request.
    pub max_read_write_size: u32,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    command: Command,
    length: u32,
}

/// The action of the gateway on a request of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Forward the request unchanged.
    Pass,
    /// The request is a compound and `head` is not all of it: call again with the complete message.
    Incomplete,
    /// Register `length` bytes for the server to write to, and call
    /// [`ServerChannel::read_request`].
    Read {
        /// Number of bytes to register.
        length: u32,
    },
    /// Register these bytes of the message for the server to read, and call
    /// [`ServerChannel::write_request`].
    Write {
        /// The range of the data in the message.
        data: Range<usize>,
    },
}

/// The action of the gateway on an answer of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Forward the answer unchanged.
    Pass,
    /// Forward the answer unchanged, and deregister the memory of the request.
    Done {
        /// The MessageId of the request.
        message_id: u64,
    },
    /// Deregister the memory of the request, and send the client `head` followed by the first `length`
    /// bytes of that memory.
    Data {
        /// The MessageId of the request.
        message_id: u64,
        /// The answer up to its data.
        head: Bytes,
        /// Number of data bytes.
        length: u32,
    },
}

impl ServerChannel {
    /// Number of bytes of a request that [`request`](Self::request) needs, if the request is that long.
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

    /// Decides how to translate a request of the client. The request has `length` bytes, and `head` has
    /// the first [`REQUEST_HEAD`](Self::REQUEST_HEAD) of them, or all.
    ///
    /// # Errors
    /// The request must not be forwarded, and the caller must end the connection.
    pub fn request(&mut self, head: &[u8], length: usize) -> Result<Offload, Refusal> {
        let protocol = Protocol::of(head);
        self.opaque.request(protocol);
        if protocol != Protocol::Smb2 {
            return Ok(Offload::Pass);
        }
        let header = match Header::decode(head) {
            Ok(header) => header,
            // A message without a complete header has no command, so it has no channel.
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

    /// Checks the element, and returns how it would be translated. The caller decides whether it may be: an element
    /// that is signed or part of a compound is passed unchanged.
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
        // The descriptors may be beyond `head`, so the channel is checked before they are decoded.
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

    /// Returns a READ with a channel to the memory that was registered for it.
    ///
    /// # Panics
    /// Panics if `request` cannot be decoded. It must be the one for which
    /// [`request`](Self::request) returned [`Offload::Read`].
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

    /// Returns a WRITE with a channel to the registered memory that holds its data. The request has
    /// `length` bytes, and `head` has at least the first [`REQUEST_HEAD`](Self::REQUEST_HEAD) of them.
    ///
    /// # Panics
    /// Panics if `head` cannot be decoded. It must be the beginning of the request for which
    /// [`request`](Self::request) returned [`Offload::Write`].
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

    /// Decides how to translate a complete answer of the server.
    ///
    /// # Errors
    /// The answer must not be forwarded, and the caller must end the connection.
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
            // No data moved by RDMA. The message has the data, if there is any.
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

    /// Returns the request whose final answer has this header. The flag SMB2_FLAGS_SERVER_TO_REDIR is not
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
