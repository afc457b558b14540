//! Removes the RDMA channel from requests of a client whose server has no RDMA.
//!
//! * READ: the gateway sends the request to the server without its channel. It writes the data of the
//!   answer to the client's memory by RDMA, and sends the client the answer without the data.
//! * WRITE: the gateway reads the data from the client's memory by RDMA, and sends the request with the
//!   data to the server.
//!
//! Interim answers are forwarded unchanged. The final answer to a request with SMB2_CHANNEL_RDMA_V1_INVALIDATE,
//! with any status, invalidates the token of the request's first descriptor. All other messages are forwarded
//! byte for byte. If a translation could be wrong, the result is a [`Refusal`] or a [`ServerFault`].

mod checks;
mod compound;

use std::{
    collections::{HashMap, HashSet},
    ops::Range,
};

use bytes::{Buf, Bytes, BytesMut};
use smbdirect::{BufferDescriptorV1, Message, Token};

use crate::{
    fault::{Refusal, ServerFault},
    frame::MAX_MESSAGE_LENGTH,
    opaque::Opaque,
    smb2::{
        Channel, Command, Element, Elements, Header, Malformed, Protocol, ReadRequest,
        ReadResponse, WriteRequest, pad_to_element,
    },
};

use checks::{channel, check_length, check_unique, invalidated_token, malformed};
use compound::{join_elements, set_next_command, single_message};

/// Maximum number of unanswered requests with a channel. This is the default of `smb2 max credits` of Samba.
const MAX_PENDING: usize = 8192;
/// Maximum number of descriptors of all unanswered requests, which take 1 MiB of memory.
const MAX_DESCRIPTORS: usize = 65_536;
/// Maximum number of descriptors of one request, whose length in bytes is a field of 16 bits.
const MAX_DESCRIPTORS_PER_REQUEST: usize = u16::MAX as usize / BufferDescriptorV1::LENGTH;

/// The translator for one client with RDMA, which records the client's unanswered requests.
#[derive(Debug, Default)]
pub struct ClientChannel {
    pending: HashMap<u64, Pending>,
    /// Number of descriptors in `pending`.
    descriptors: usize,
    opaque: Opaque,
}

/// A request with a channel that waits for its final answer.
#[derive(Debug)]
struct Pending {
    command: Command,
    /// Length of a READ.
    length: u32,
    /// The memory of the client for the data of a READ.
    descriptors: Vec<BufferDescriptorV1>,
    /// The token that the final answer invalidates.
    invalidate: Option<Token>,
}

/// The message to send to the server for a request of the client.
#[derive(Debug)]
pub enum Request {
    /// The message is forwarded unchanged.
    Pass(Message),
    /// The message to send consists of these parts, in order.
    Translated(Vec<Part>),
}

/// A part of a translated request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Bytes to send.
    Bytes(Bytes),
    /// The first `length` bytes of the memory in the client's descriptors, to be read by RDMA.
    Remote {
        /// The client's memory.
        from: Vec<BufferDescriptorV1>,
        /// Number of bytes: at least 1, and at most as many as the descriptors hold.
        length: u32,
    },
}

impl Part {
    /// Returns the number of bytes of the part.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Remote { length, .. } => *length as usize,
        }
    }

    /// Returns whether the part has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Collects the parts of a translated request.
#[derive(Debug, Default)]
struct Translated {
    parts: Vec<Part>,
    length: u64,
}

impl Translated {
    fn push(&mut self, part: Part) {
        self.length += part.len() as u64;
        self.parts.push(part);
    }

    /// Checks that the message to the server is not too long with `more` additional bytes.
    const fn check_length(&self, more: u64) -> Result<(), Refusal> {
        let length = self.length + more;
        if length > MAX_MESSAGE_LENGTH as u64 {
            return Err(Refusal::TooLong {
                length,
                most: MAX_MESSAGE_LENGTH,
            });
        }
        Ok(())
    }

    fn finish(self) -> Result<Vec<Part>, Refusal> {
        self.check_length(0)?;
        Ok(self.parts)
    }
}

/// The action of the gateway on an answer of the server.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// Send the answer unchanged, and invalidate a token with it if there is one.
    Pass {
        /// The client's token that this message invalidates.
        invalidate: Option<Token>,
    },
    /// Write the data of the answer to the client's memory, and then send `reply` in place of the answer.
    Place(Placement),
    /// The answer is a compound: call [`ClientChannel::compound_answer`] with the complete message.
    Compound,
}

/// The placement of a READ's data in the client's memory, and the answer without the data.
#[derive(Debug, PartialEq, Eq)]
pub struct Placement {
    /// The range of the data in the answer; empty if there is none.
    pub data: Range<usize>,
    /// The client's memory to write the data to, from its beginning.
    pub to: Vec<BufferDescriptorV1>,
    /// The message for the client, to be sent after the data.
    pub reply: Bytes,
    /// The client's token that `reply` invalidates.
    pub invalidate: Option<Token>,
}

/// A step in the translation of a compound answer.
#[derive(Debug)]
pub enum Step {
    /// Write data to the client's memory by RDMA.
    Place {
        /// The data, at least one byte.
        data: Bytes,
        /// The client's memory to write the data to.
        to: Vec<BufferDescriptorV1>,
    },
    /// Send a message to the client.
    Send {
        /// The message.
        message: Message,
        /// The client's token that this message invalidates.
        invalidate: Option<Token>,
    },
}

impl ClientChannel {
    /// Number of bytes of an answer that [`answer`](Self::answer) needs, if the answer is that long.
    pub const ANSWER_HEAD: usize = ReadResponse::FIXED;

    /// Creates the state of a new client.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether another request can be recorded. If not, wait for an answer, which frees room.
    pub fn has_room(&self) -> bool {
        self.pending.len() < MAX_PENDING
            && self.descriptors + MAX_DESCRIPTORS_PER_REQUEST <= MAX_DESCRIPTORS
    }

    /// Returns the number of unanswered requests with a channel.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Translates a request of the client.
    ///
    /// # Errors
    /// The request must not be forwarded, and the caller must end the connection.
    pub fn request(&mut self, message: Message) -> Result<Request, Refusal> {
        // A message can consist of several slices. Joins them only if the first is too short to decode.
        let seen = message.chunk().len();
        let message = if seen < message.len() && seen < ReadRequest::FIXED {
            message.into_bytes().into()
        } else {
            message
        };
        let head = message.chunk();
        let protocol = Protocol::of(head);
        self.opaque.request(protocol);
        if protocol != Protocol::Smb2 {
            return Ok(Request::Pass(message));
        }
        let header = match Header::decode(head) {
            Ok(header) => header,
            // A message without a complete header has no command, so it has no channel.
            Err(Malformed::TooShort { .. }) => return Ok(Request::Pass(message)),
            Err(fault) => return Err(Refusal::Header { fault }),
        };
        if header.next_command != 0 {
            return self.compound(message.into_bytes());
        }
        let element = Element {
            header,
            place: 0..message.len(),
        };
        if channel(&element, head)? == Channel::None {
            self.pass(&element, head)?;
            return Ok(Request::Pass(message));
        }
        let message = message.into_bytes();
        let mut translated = Translated::default();
        self.element(&element, &message, 0, &mut translated)?;
        translated.finish().map(Request::Translated)
    }

    fn compound(&mut self, message: Bytes) -> Result<Request, Refusal> {
        let first = Header::decode(&message).map(|header| header.command);
        let command = first.unwrap_or(Command(0));
        let mut translates = false;
        for element in Elements::of(&message) {
            let element = element.map_err(|fault| malformed(command, fault))?;
            translates |= channel(&element, &message[element.place.clone()])? != Channel::None;
        }
        let mut translated = Translated::default();
        let mut message_ids = HashSet::new();
        for element in Elements::of(&message).map_while(Result::ok) {
            let bytes = message.slice(element.place.clone());
            if translates {
                check_unique(&element.header, &mut message_ids)?;
            }
            if channel(&element, &bytes)? == Channel::None {
                self.pass(&element, &bytes)?;
                translated.push(Part::Bytes(bytes));
            } else {
                let padding = usize::from(element.place.end < message.len());
                self.element(&element, &bytes, padding, &mut translated)?;
            }
        }
        if translates {
            translated.finish().map(Request::Translated)
        } else {
            Ok(Request::Pass(message.into()))
        }
    }

    /// Records an element that is forwarded unchanged.
    fn pass(&mut self, element: &Element, bytes: &[u8]) -> Result<(), Refusal> {
        if element.header.command == Command::READ {
            self.opaque.read(ReadRequest::flags_of(bytes));
        }
        self.check_message_id(&element.header)
    }

    /// Translates a READ or WRITE with a channel. `padding` is not 0 if another element follows.
    fn element(
        &mut self,
        element: &Element,
        bytes: &[u8],
        padding: usize,
        translated: &mut Translated,
    ) -> Result<(), Refusal> {
        self.check_message_id(&element.header)?;
        let command = element.header.command;
        let pending = match command {
            Command::READ => {
                let mut request =
                    ReadRequest::decode(bytes).map_err(|fault| malformed(command, fault))?;
                let (channel, length) = (request.channel, request.length);
                check_length(command, length, &request.descriptors)?;
                let descriptors = std::mem::take(&mut request.descriptors);
                translated.push(read_inline(&element.header, request, padding));
                Pending {
                    command,
                    length,
                    invalidate: invalidated_token(channel, &descriptors),
                    descriptors,
                }
            }
            _ => {
                let request = WriteRequest::decode(bytes, bytes.len())
                    .map_err(|fault| malformed(command, fault))?;
                let (channel, length) = (request.channel, request.remaining_bytes);
                check_length(command, length, &request.descriptors)?;
                if !request.data.is_empty() {
                    let length = request.data.len();
                    return Err(Refusal::DataAndChannel { length });
                }
                // Checked before the lengths are added as `usize`, which may have only 32 bits.
                translated.check_length((WriteRequest::FIXED as u64) + u64::from(length))?;
                let invalidate = invalidated_token(channel, &request.descriptors);
                for part in write_inline(&element.header, request, padding) {
                    translated.push(part);
                }
                Pending {
                    command,
                    length,
                    descriptors: Vec::new(),
                    invalidate,
                }
            }
        };
        self.insert(element.header.message_id, pending)
    }

    fn insert(&mut self, message_id: u64, pending: Pending) -> Result<(), Refusal> {
        self.descriptors += pending.descriptors.len();
        self.pending.insert(message_id, pending);
        if self.pending.len() > MAX_PENDING || self.descriptors > MAX_DESCRIPTORS {
            return Err(Refusal::TooMany {
                requests: MAX_PENDING,
                descriptors: MAX_DESCRIPTORS,
            });
        }
        Ok(())
    }

    /// Checks that no other unanswered request has the same MessageId. CANCEL is exempt, because it has
    /// the MessageId of the request that it cancels.
    fn check_message_id(&self, header: &Header) -> Result<(), Refusal> {
        if header.command != Command::CANCEL && self.pending.contains_key(&header.message_id) {
            return Err(Refusal::Repeated {
                command: header.command,
                message_id: header.message_id,
            });
        }
        Ok(())
    }

    /// Decides how to translate an answer of the server. The answer has `length` bytes, and `head` has
    /// the first [`ANSWER_HEAD`](Self::ANSWER_HEAD) of them, or all.
    ///
    /// # Errors
    /// The answer must not be forwarded, and the caller must end the connection.
    pub fn answer(&mut self, head: &[u8], length: usize) -> Result<Answer, ServerFault> {
        let pass = Answer::Pass { invalidate: None };
        if self.pending.is_empty() {
            return Ok(pass);
        }
        let protocol = Protocol::of(head);
        self.opaque.answer(protocol)?;
        if protocol != Protocol::Smb2 {
            return Ok(pass);
        }
        let header = Header::decode(head).map_err(|fault| ServerFault::Header { fault })?;
        if header.next_command != 0 {
            return Ok(Answer::Compound);
        }
        let Some(pending) = self.take_pending(&header) else {
            return Ok(pass);
        };
        Ok(match placement(&header, &pending, head, length)? {
            Some((data, reply)) => Answer::Place(Placement {
                data,
                to: pending.descriptors,
                reply,
                invalidate: pending.invalidate,
            }),
            None => Answer::Pass {
                invalidate: pending.invalidate,
            },
        })
    }

    /// Translates a complete compound answer. The steps first place all data, and then send one message,
    /// or one message per element if several tokens have to be invalidated.
    ///
    /// # Errors
    /// The answer must not be forwarded, and the caller must end the connection.
    pub fn compound_answer(&mut self, message: Bytes) -> Result<Vec<Step>, ServerFault> {
        let fault = |fault| ServerFault::Malformed {
            command: Header::decode(&message).map_or(Command(0), |header| header.command),
            fault,
        };
        let elements: Vec<Element> = Elements::of(&message)
            .collect::<Result<_, _>>()
            .map_err(fault)?;
        let mut steps = Vec::new();
        let mut answers = Vec::new();
        let mut placed = false;
        for element in elements {
            let bytes = message.slice(element.place);
            let header = element.header;
            let Some(pending) = self.take_pending(&header) else {
                answers.push((header, bytes, None));
                continue;
            };
            let bytes = match placement(&header, &pending, &bytes, bytes.len())? {
                Some((data, reply)) => {
                    let to = pending.descriptors;
                    let data = bytes.slice(data);
                    placed = true;
                    if !data.is_empty() {
                        steps.push(Step::Place { data, to });
                    }
                    reply
                }
                None => bytes,
            };
            answers.push((header, bytes, pending.invalidate));
        }
        let tokens = answers.iter().filter(|(.., token)| token.is_some()).count();
        if tokens > 1 {
            for (header, bytes, invalidate) in answers {
                steps.push(Step::Send {
                    message: single_message(header, bytes)?.into(),
                    invalidate,
                });
            }
        } else if tokens == 0 && !placed {
            steps.push(Step::Send {
                message: message.into(),
                invalidate: None,
            });
        } else {
            let invalidate = answers.iter().find_map(|(.., token)| *token);
            let message = join_elements(answers).into();
            steps.push(Step::Send {
                message,
                invalidate,
            });
        }
        Ok(steps)
    }

    /// Removes and returns the request whose final answer has this header. The flag
    /// SMB2_FLAGS_SERVER_TO_REDIR is not required, because a client may ignore it.
    fn take_pending(&mut self, header: &Header) -> Option<Pending> {
        if header.is_interim() {
            return None;
        }
        let pending = self.pending.get(&header.message_id)?;
        // An oplock break is not an answer, and its MessageId belongs to no request.
        if pending.command != header.command {
            return None;
        }
        let pending = self.pending.remove(&header.message_id)?;
        self.descriptors -= pending.descriptors.len();
        Some(pending)
    }
}

/// Returns a READ without its channel.
fn read_inline(header: &Header, request: ReadRequest, padding: usize) -> Part {
    let request = ReadRequest {
        // The gateway could not find the data in a compressed answer.
        flags: request.flags & !ReadRequest::REQUEST_COMPRESSED,
        channel: Channel::None,
        remaining_bytes: 0,
        descriptors: Vec::new(),
        ..request
    };
    let mut bytes = BytesMut::with_capacity(ReadRequest::FIXED + 8);
    header.encode(&mut bytes);
    request.encode(&mut bytes);
    if padding > 0 {
        pad_to_element(&mut bytes);
        set_next_command(header, bytes.len(), &mut bytes);
    }
    Part::Bytes(bytes.freeze())
}

/// Returns a WRITE without its channel, followed by the data to fetch.
fn write_inline(header: &Header, request: WriteRequest, padding: usize) -> Vec<Part> {
    let length = request.remaining_bytes;
    let mut bytes = BytesMut::with_capacity(WriteRequest::FIXED + 8);
    header.encode(&mut bytes);
    request.encode_inline(length, &mut bytes);
    let whole = bytes.len() + length as usize;
    let pad = match padding {
        0 => 0,
        _ => whole.next_multiple_of(8) - whole,
    };
    if padding > 0 {
        set_next_command(header, whole + pad, &mut bytes);
    }
    let mut parts = vec![Part::Bytes(bytes.freeze())];
    if length > 0 {
        parts.push(Part::Remote {
            from: request.descriptors,
            length,
        });
    }
    if pad > 0 {
        parts.push(Part::Bytes(Bytes::from_static(&[0; 8]).slice(..pad)));
    }
    parts
}

/// Returns the range of the data in the answer to a successful READ, and the answer without the data.
/// Returns `None` if the answer is forwarded unchanged: an error, or the answer to a WRITE.
fn placement(
    header: &Header,
    pending: &Pending,
    head: &[u8],
    length: usize,
) -> Result<Option<(Range<usize>, Bytes)>, ServerFault> {
    if pending.command != Command::READ || header.is_error() {
        return Ok(None);
    }
    let response = ReadResponse::decode(head, length).map_err(|fault| ServerFault::Malformed {
        command: header.command,
        fault,
    })?;
    if response.data.len() as u64 > u64::from(pending.length) {
        return Err(ServerFault::TooMuch {
            length: response.data.len() as u64,
            requested: pending.length,
        });
    }
    if header.is_signed() {
        return Err(ServerFault::Signed);
    }
    let mut reply = BytesMut::with_capacity(ReadResponse::FIXED);
    header.encode(&mut reply);
    let placed = response.data.len() as u32;
    ReadResponse::encode(0, placed, response.flags, &mut reply);
    Ok(Some((response.data, reply.freeze())))
}

#[cfg(test)]
mod tests;
