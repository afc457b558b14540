//! Takes RDMA off the requests of a client whose server has none.
//!
//! * READ: the request goes to the server without its channel. The data of the answer is written
//!   into the client's memory by RDMA, and the answer goes without it.
//! * WRITE: the data is fetched from the client's memory by RDMA, and the request goes to the
//!   server with it.
//!
//! Interim answers pass. The final answer to a request with SMB2_CHANNEL_RDMA_V1_INVALIDATE,
//! whatever its status, invalidates the token of the request's first descriptor. All else passes
//! byte for byte. A message whose translation could be wrong is a [`Refusal`] or a [`ServerFault`].

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
    opaque::Opaque,
    smb2::{
        Channel, Command, Element, Elements, Header, Malformed, Protocol, ReadRequest,
        ReadResponse, WriteRequest, pad_to_element,
    },
};

use checks::{channel, check_length, check_unique, invalidated_token, malformed};
use compound::{join_elements, set_next_command, single_message};

/// Most bytes of a message to the server: SMB over TCP has three bytes for its length.
const MAX_MESSAGE_BYTES: usize = 0x00ff_ffff;
/// Most unanswered requests with a channel: the credits that a server gives.
const MAX_PENDING: usize = 8192;
/// Most descriptors of all unanswered requests: 1 MiB of memory.
const MAX_DESCRIPTORS: usize = 65_536;
/// Most descriptors of one request, by the 16 bits of their length.
const MAX_DESCRIPTORS_PER_REQUEST: usize = u16::MAX as usize / BufferDescriptorV1::LENGTH;

/// The unanswered requests of one client.
#[derive(Debug, Default)]
pub struct ClientChannel {
    pending: HashMap<u64, Pending>,
    /// Descriptors in `pending`.
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

/// The message that goes to the server for a request.
#[derive(Debug)]
pub enum Request {
    /// The message, unchanged.
    Pass(Message),
    /// A message made of these parts, in order.
    Translated(Vec<Part>),
}

/// A part of a translated request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// These bytes.
    Bytes(Bytes),
    /// The first `length` bytes of the memory in the client's descriptors, to be read by RDMA.
    Remote {
        /// The client's memory.
        from: Vec<BufferDescriptorV1>,
        /// Bytes, not 0 and no more than the descriptors hold.
        length: u32,
    },
}

impl Part {
    /// Returns the bytes of the part.
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

    /// Checks that a message to the server can have `more` bytes on top of those so far.
    const fn check_length(&self, more: u64) -> Result<(), Refusal> {
        let length = self.length + more;
        if length > MAX_MESSAGE_BYTES as u64 {
            return Err(Refusal::TooLong {
                length,
                most: MAX_MESSAGE_BYTES,
            });
        }
        Ok(())
    }

    fn finish(self) -> Result<Vec<Part>, Refusal> {
        self.check_length(0)?;
        Ok(self.parts)
    }
}

/// What to do with an answer of the server.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// It passes unchanged, and may invalidate a token.
    Pass {
        /// The token of the client to invalidate with it.
        invalidate: Option<Token>,
    },
    /// Write its data to the memory of the client, and then send `reply` in its place.
    Place(Placement),
    /// It is a compound: call [`ClientChannel::compound_answer`] with all of it.
    Compound,
}

/// The data of a READ, and the answer without it.
#[derive(Debug, PartialEq, Eq)]
pub struct Placement {
    /// The place of the data in the answer; empty if there is none.
    pub data: Range<usize>,
    /// The memory of the client to write it to, from the beginning.
    pub to: Vec<BufferDescriptorV1>,
    /// The message for the client, to be sent after the data.
    pub reply: Bytes,
    /// The token of the client to invalidate with it.
    pub invalidate: Option<Token>,
}

/// A step of carrying a compound answer to the client.
#[derive(Debug)]
pub enum Step {
    /// RDMA Write.
    Place {
        /// The data, at least one byte.
        data: Bytes,
        /// The memory of the client to write it to.
        to: Vec<BufferDescriptorV1>,
    },
    /// A message to the client.
    Send {
        /// The message.
        message: Message,
        /// The token of the client to invalidate with it.
        invalidate: Option<Token>,
    },
}

impl ClientChannel {
    /// Bytes of an answer that [`answer`](Self::answer) needs to see, of answers that have them.
    pub const ANSWER_HEAD: usize = ReadResponse::FIXED;

    /// Creates the state of a new client.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether another request can be taken. If not, an answer makes room.
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
    /// It is not to be forwarded, and the connection is to end.
    pub fn request(&mut self, message: Message) -> Result<Request, Refusal> {
        // The division of a message into parts has no meaning; most messages are one part.
        let seen = message.chunk().len();
        let message = match seen < message.len() && seen < ReadRequest::FIXED {
            true => message.into_bytes().into(),
            false => message,
        };
        let head = message.chunk();
        let protocol = Protocol::of(head);
        self.opaque.request(protocol);
        if protocol != Protocol::Smb2 {
            return Ok(Request::Pass(message));
        }
        let header = match Header::decode(head) {
            Ok(header) => header,
            // It has no command that could have a channel.
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
        match translates {
            true => translated.finish().map(Request::Translated),
            false => Ok(Request::Pass(message.into())),
        }
    }

    /// Records an element that is forwarded unchanged.
    fn pass(&mut self, element: &Element, bytes: &[u8]) -> Result<(), Refusal> {
        if element.header.command == Command::READ {
            self.opaque.read(ReadRequest::flags_of(bytes));
        }
        self.check_message_id(&element.header)
    }

    /// Translates a READ or WRITE with a channel. With `padding` another element follows.
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
                // Checked before the sum of `usize` lengths, which may exceed 32 bits.
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

    /// Checks that the MessageId is of no other unanswered request; CANCEL has that of the request
    /// that it cancels.
    fn check_message_id(&self, header: &Header) -> Result<(), Refusal> {
        if header.command != Command::CANCEL && self.pending.contains_key(&header.message_id) {
            return Err(Refusal::Repeated {
                command: header.command,
                message_id: header.message_id,
            });
        }
        Ok(())
    }

    /// Takes an answer of the server of `length` bytes, of which `head` has the first
    /// [`ANSWER_HEAD`](Self::ANSWER_HEAD), or all.
    ///
    /// # Errors
    /// The answer is not to be carried, and the connection is to end.
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

    /// Translates a complete compound answer. Its data comes first, then one message, or one for
    /// each element if more than one token is to be invalidated.
    ///
    /// # Errors
    /// The answer is not to be carried, and the connection is to end.
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

    /// Takes the request that `header` is the final answer to. SMB2_FLAGS_SERVER_TO_REDIR is not
    /// required, because a client may ignore it.
    fn take_pending(&mut self, header: &Header) -> Option<Pending> {
        if header.is_interim() {
            return None;
        }
        let pending = self.pending.get(&header.message_id)?;
        // The MessageId of an oplock break is that of no request.
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
        // The data of a compressed answer could not be found.
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

/// Returns a WRITE without its channel, followed by the data to be fetched.
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

/// Returns where the data of a successful READ is, and the answer without it. `None` if the answer
/// passes unchanged: an error, or the answer to a WRITE.
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
