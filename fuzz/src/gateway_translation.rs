//! Valid and invalid messages of a client and a server, through both directions of a gateway.

use std::collections::HashMap;

use bytes::Bytes;
use smbdirect::{BufferDescriptorV1, Message};
use smbdirect_smb::{
    ClientChannel, ServerChannel,
    client_channel::{self, Part, Request, Step},
    server_channel::{self, Offload, Settings},
    smb2::{Channel, Command, Elements, Header, Protocol, ReadRequest, ReadResponse, WriteRequest},
};

use crate::input::Input;

/// Length of the longest message in bytes. SMB over TCP has three bytes for it.
const MAX_MESSAGE: usize = 0x00ff_ffff;
/// Maximum number of requests with a channel that wait for a response.
const MAX_PENDING: usize = 8192;

/// A request of a client with RDMA.
#[derive(Debug, PartialEq, Eq)]
struct Waiting {
    command: Command,
    /// The number of bytes that a READ requests; 0 for a WRITE.
    length: u64,
    /// The token that its final response invalidates.
    token: Option<u32>,
}

/// Runs the messages in `data`, each with one byte for its origin, two for its length, and its
/// bytes.
pub fn gateway_translation(data: &[u8]) {
    let mut input = Input::new(data);
    let mut ends = Ends::new(&mut input);
    while !input.is_empty() {
        let control = input.byte();
        let length = usize::from(input.any::<u16>());
        let bytes = input.bytes(length).to_vec();
        let goes_on = match control & 3 {
            0 => ends.request_by_rdma(bytes, control >> 2),
            1 => ends.answer_to_rdma(&bytes),
            2 => ends.plain_request(&bytes),
            _ => ends.answer_by_rdma(&bytes),
        };
        if !goes_on {
            return;
        }
    }
}

struct Ends {
    client_channel: ClientChannel,
    /// Requests of a client with RDMA, by MessageId.
    waiting: HashMap<u64, Waiting>,
    server_channel: ServerChannel,
    settings: Settings,
    /// Requests to a server with RDMA, by MessageId, with the bytes of memory of each.
    offloaded: HashMap<u64, u32>,
}

impl Ends {
    fn new(input: &mut Input<'_>) -> Self {
        let settings = Settings {
            threshold: input.up_to(255) as u32,
            max_read_write_size: input.any::<u16>().into(),
        };
        Self {
            client_channel: ClientChannel::new(),
            waiting: HashMap::new(),
            server_channel: ServerChannel::new(settings),
            settings,
            offloaded: HashMap::new(),
        }
    }

    /// Passes a request of a client with RDMA; `parts` decides where the parts of its message end.
    fn request_by_rdma(&mut self, bytes: Vec<u8>, parts: u8) -> bool {
        let room = self.client_channel.has_room();
        let length = [bytes.len(), 1, 63, 111, 112, 200][usize::from(parts) % 6].max(1);
        let message: Message = bytes.chunks(length).map(Bytes::copy_from_slice).collect();
        let request = match self.client_channel.request(message) {
            Ok(request) => request,
            Err(refusal) => {
                assert!(!refusal.to_string().is_empty() && !refusal.cure().is_empty());
                return false;
            }
        };
        match request {
            Request::Pass(message) => {
                assert_eq!(message.into_bytes(), bytes, "it passes unchanged");
                assert!(channels(&bytes).is_empty(), "a channel passes");
            }
            Request::Translated(parts) => self.translated(&bytes, &parts),
        }
        assert!(self.client_channel.pending() <= MAX_PENDING);
        assert_eq!(self.client_channel.pending(), self.waiting.len());
        // Requests are limited by room, except that one more message may exceed it.
        room
    }

    fn translated(&mut self, bytes: &[u8], parts: &[Part]) {
        let asked = channels(bytes);
        assert!(!asked.is_empty(), "there is nothing to translate");
        let mut remote: Vec<_> = asked
            .iter()
            .filter_map(|asked| {
                asked
                    .write_length
                    .map(|length| (length, &asked.descriptors))
            })
            .filter(|(length, _)| *length > 0)
            .collect();
        remote.reverse();
        let mut plain = Vec::new();
        for part in parts {
            assert!(!part.is_empty());
            match part {
                Part::Bytes(part) => plain.extend_from_slice(part),
                Part::Remote { from, length } => {
                    assert_eq!(remote.pop(), Some((*length, from)));
                    assert!(u64::from(*length) <= described(from));
                    // Zeros replace the content of the client's memory.
                    plain.resize(plain.len() + *length as usize, 0);
                }
            }
        }
        assert!(remote.is_empty() && plain.len() <= MAX_MESSAGE);
        assert!(channels(&plain).is_empty(), "a channel goes on");
        let headers = |bytes: &[u8]| -> Vec<_> {
            let elements = Elements::of(bytes).map(|element| element.expect("it is well-formed"));
            elements
                .map(|element| Header {
                    next_command: 0,
                    ..element.header
                })
                .collect()
        };
        assert_eq!(headers(bytes), headers(&plain));
        for asked in asked {
            let invalidates = match asked.channel {
                Channel::RdmaV1Invalidate => asked.descriptors.first(),
                _ => None,
            };
            let waiting = Waiting {
                command: asked.command,
                length: asked.read_length,
                token: invalidates.map(|first| first.token),
            };
            let replaced = self.waiting.insert(asked.message_id, waiting);
            assert_eq!(replaced, None, "two requests with one MessageId");
        }
    }

    /// Passes a response of a server to a client with RDMA.
    fn answer_to_rdma(&mut self, bytes: &[u8]) -> bool {
        let head = &bytes[..bytes.len().min(ClientChannel::ANSWER_HEAD)];
        let answer = match self.client_channel.answer(head, bytes.len()) {
            Ok(answer) => answer,
            Err(fault) => {
                assert!(!fault.to_string().is_empty());
                return false;
            }
        };
        match answer {
            client_channel::Answer::Pass { invalidate } => {
                self.sent(bytes, invalidate.map(|token| token.0));
            }
            client_channel::Answer::Place(placement) => {
                assert!(placement.data.end <= bytes.len());
                let length = placement.data.len() as u64;
                assert!(length <= described(&placement.to));
                assert!(length <= self.waiting[&message_id(bytes)].length);
                let reply = ReadResponse::decode(&placement.reply, placement.reply.len());
                let reply = reply.expect("it has just been encoded");
                assert!(reply.data.is_empty());
                assert_eq!(u64::from(reply.data_remaining), length);
                let token = placement.invalidate.map(|token| token.0);
                self.sent(&placement.reply, token);
            }
            client_channel::Answer::Compound => {
                let whole = Bytes::copy_from_slice(bytes);
                let Ok(steps) = self.client_channel.compound_answer(whole) else {
                    return false;
                };
                self.steps(bytes, steps);
            }
        }
        assert_eq!(self.client_channel.pending(), self.waiting.len());
        true
    }

    fn steps(&mut self, bytes: &[u8], steps: Vec<Step>) {
        let (mut sent, mut placed, mut elements) = (0, 0, 0);
        for step in steps {
            match step {
                Step::Place { data, to } => {
                    assert!(!data.is_empty() && data.len() as u64 <= described(&to));
                    assert_eq!(sent, 0, "data goes before the answers");
                    placed += data.len();
                }
                Step::Send {
                    message,
                    invalidate,
                } => {
                    let message = message.into_bytes();
                    elements += Elements::of(&message).filter(Result::is_ok).count();
                    self.sent(&message, invalidate.map(|token| token.0));
                    sent += 1;
                }
            }
        }
        assert!(sent > 0 && placed < bytes.len());
        assert_eq!(elements, Elements::of(bytes).count());
    }

    /// Checks a message to a client with RDMA, and ends the request that it answers.
    fn sent(&mut self, message: &[u8], invalidate: Option<u32>) {
        let mut tokens = Vec::new();
        if Protocol::of(message) == Protocol::Smb2 {
            for element in Elements::of(message).map_while(Result::ok) {
                let header = element.header;
                let waiting = self.waiting.get(&header.message_id);
                if !header.is_interim()
                    && waiting.is_some_and(|waiting| waiting.command == header.command)
                {
                    let waiting = self.waiting.remove(&header.message_id);
                    tokens.extend(waiting.and_then(|waiting| waiting.token));
                }
            }
        }
        assert!(tokens.len() <= 1, "a message carries one token");
        assert_eq!(tokens.first().copied(), invalidate);
    }

    /// Passes a request of a client without RDMA.
    fn plain_request(&mut self, bytes: &[u8]) -> bool {
        let head = &bytes[..bytes.len().min(ServerChannel::REQUEST_HEAD)];
        let mut offload = self.server_channel.request(head, bytes.len());
        if offload == Ok(Offload::Incomplete) {
            offload = self.server_channel.request(bytes, bytes.len());
            assert!(matches!(offload, Ok(Offload::Pass) | Err(_)));
        }
        let offload = match offload {
            Ok(offload) => offload,
            Err(refusal) => {
                assert!(!refusal.to_string().is_empty() && !refusal.cure().is_empty());
                return false;
            }
        };
        let (length, request) = match offload {
            Offload::Pass | Offload::Incomplete => {
                assert!(channels(bytes).is_empty(), "a channel passes");
                return true;
            }
            Offload::Read { length } => {
                let request = self.server_channel.read_request(bytes, &memory(length));
                (length, request)
            }
            Offload::Write { data } => {
                let length = data.len() as u32;
                assert!(data.start >= WriteRequest::FIXED && data.end <= bytes.len());
                let whole = bytes.len();
                let request = self
                    .server_channel
                    .write_request(head, whole, &memory(length));
                (length, request)
            }
        };
        assert!(length > 0 && length >= self.settings.threshold);
        assert!(length <= self.settings.max_read_write_size);
        self.back_again(bytes, &request, length);
        let replaced = self.offloaded.insert(message_id(bytes), length);
        assert_eq!(replaced, None, "two requests with one MessageId");
        assert_eq!(self.server_channel.pending(), self.offloaded.len());
        assert!(self.offloaded.len() <= MAX_PENDING);
        true
    }

    /// Checks that the other direction reverses a translation.
    fn back_again(&self, bytes: &[u8], request: &Bytes, length: u32) {
        let asked = channels(request);
        assert_eq!(asked.len(), 1);
        assert_eq!(asked[0].descriptors, memory(length));
        assert!(matches!(
            asked[0].channel,
            Channel::RdmaV1 | Channel::RdmaV1Invalidate
        ));
        let again = ClientChannel::new().request(request.clone().into());
        let Ok(Request::Translated(parts)) = again else {
            panic!("it cannot be translated back");
        };
        let Part::Bytes(head) = &parts[0] else {
            panic!("a message begins with a header");
        };
        assert_eq!(head[..Header::LENGTH], bytes[..Header::LENGTH]);
        match asked[0].write_length {
            Some(written) => {
                let plain = WriteRequest::decode(head, head.len() + length as usize);
                let before = WriteRequest::decode(bytes, bytes.len());
                let (plain, before) = (
                    plain.expect("the translation is valid"),
                    before.expect("the request is valid"),
                );
                assert_eq!(written, length);
                assert_eq!(plain.data.len(), before.data.len());
                let same =
                    |request: &WriteRequest| (request.offset, request.file_id, request.flags);
                assert_eq!(same(&plain), same(&before));
            }
            None => {
                let plain = ReadRequest::decode(head).expect("the translation is valid");
                let before = ReadRequest::decode(bytes).expect("the request is valid");
                let expected = ReadRequest {
                    flags: before.flags & !ReadRequest::REQUEST_COMPRESSED,
                    remaining_bytes: 0,
                    ..before
                };
                assert_eq!(plain, expected);
            }
        }
    }

    /// Passes a response of a server with RDMA.
    fn answer_by_rdma(&mut self, bytes: &[u8]) -> bool {
        let answer = match self.server_channel.answer(bytes) {
            Ok(answer) => answer,
            Err(fault) => {
                assert!(!fault.to_string().is_empty());
                return false;
            }
        };
        match answer {
            server_channel::Answer::Pass => {}
            server_channel::Answer::Done { message_id: id } => {
                assert_eq!(id, message_id(bytes));
                assert!(self.offloaded.remove(&id).is_some());
            }
            server_channel::Answer::Data {
                message_id: id,
                head,
                length,
            } => {
                assert_eq!(id, message_id(bytes));
                let asked = self
                    .offloaded
                    .remove(&id)
                    .expect("the request has memory until its answer");
                assert!(length > 0 && length <= asked);
                let whole = head.len() + length as usize;
                let response = ReadResponse::decode(&head, whole).expect("the answer is valid");
                assert_eq!(response.data, head.len()..whole);
                assert_eq!(response.data_remaining, 0);
            }
        }
        assert_eq!(self.server_channel.pending(), self.offloaded.len());
        true
    }
}

/// An element with a channel.
struct Asked {
    command: Command,
    message_id: u64,
    channel: Channel,
    descriptors: Vec<BufferDescriptorV1>,
    /// The number of bytes that a READ requests; 0 for a WRITE.
    read_length: u64,
    write_length: Option<u32>,
}

/// Returns the READs and WRITEs with a channel in a message.
fn channels(message: &[u8]) -> Vec<Asked> {
    let mut asked = Vec::new();
    for element in Elements::of(message).map_while(Result::ok) {
        if !element.moves_data() {
            continue;
        }
        let bytes = &message[element.place];
        let (command, message_id) = (element.header.command, element.header.message_id);
        if command == Command::READ {
            let Ok(read) = ReadRequest::decode(bytes) else {
                continue;
            };
            asked.push(Asked {
                command,
                message_id,
                channel: read.channel,
                descriptors: read.descriptors,
                read_length: read.length.into(),
                write_length: None,
            });
        } else {
            let Ok(write) = WriteRequest::decode(bytes, bytes.len()) else {
                continue;
            };
            asked.push(Asked {
                command,
                message_id,
                channel: write.channel,
                descriptors: write.descriptors,
                read_length: 0,
                write_length: Some(write.remaining_bytes),
            });
        }
    }
    asked.retain(|asked| asked.channel != Channel::None);
    asked
}

fn described(descriptors: &[BufferDescriptorV1]) -> u64 {
    let lengths = descriptors.iter();
    lengths.map(|descriptor| u64::from(descriptor.length)).sum()
}

/// Memory that a gateway has registered for a request.
fn memory(length: u32) -> Vec<BufferDescriptorV1> {
    vec![BufferDescriptorV1 {
        offset: 0x1000,
        token: 0x7788,
        length,
    }]
}

fn message_id(message: &[u8]) -> u64 {
    Header::decode(message).expect("it has a header").message_id
}
