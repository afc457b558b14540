//! A gateway: one of the channels, and the RDMA work that it asks for.

use std::collections::HashMap;

use bytes::Bytes;
use fastrand::Rng;
use smbdirect::{BufferDescriptorV1, Message};
use smbdirect_smb::{
    ClientChannel, ServerChannel,
    client_channel::{Answer as ClientAnswer, Part, Request, Step},
    server_channel::{Answer as ServerAnswer, Offload, Settings},
};

use crate::{
    Sent,
    meaning::elements,
    memory::{AccessFault, Memory},
    messages::u64_at,
};

/// Why a gateway ends a connection.
#[derive(Debug)]
pub(crate) struct End(pub(crate) String);

impl From<AccessFault> for End {
    fn from(fault: AccessFault) -> Self {
        Self(format!("{fault:?}"))
    }
}

#[derive(Debug)]
pub(crate) enum Hop {
    /// Takes RDMA off.
    Client(ClientChannel),
    /// Puts RDMA on, with the memory of the unanswered requests.
    Server(ServerChannel, HashMap<u64, Vec<BufferDescriptorV1>>),
}

impl Hop {
    pub(crate) fn client() -> Self {
        Self::Client(ClientChannel::new())
    }

    pub(crate) fn server(random: &mut Rng) -> Self {
        let settings = Settings {
            threshold: [0, 1, 64, 1000][random.usize(..4)],
            max_read_write_size: [100, 2000, 1 << 20][random.usize(..3)],
        };
        Self::Server(ServerChannel::new(settings), HashMap::new())
    }

    /// Requests that wait for their answer.
    pub(crate) fn pending(&self) -> usize {
        match self {
            Self::Client(channel) => channel.pending(),
            Self::Server(channel, memory) => {
                assert_eq!(channel.pending(), memory.len());
                channel.pending()
            }
        }
    }

    /// Takes a request, and returns the parts of the request to forward.
    pub(crate) fn request(
        &mut self,
        bytes: Vec<u8>,
        random: &mut Rng,
        memory: &mut Memory,
    ) -> Result<Vec<Part>, End> {
        let end = |refusal: smbdirect_smb::Refusal| {
            assert!(!refusal.cure().is_empty());
            End(refusal.to_string())
        };
        match self {
            Self::Client(channel) => {
                assert!(channel.has_room());
                let request = channel.request(in_parts(&bytes, random)).map_err(end)?;
                Ok(match request {
                    Request::Pass(message) => vec![Part::Bytes(message.into_bytes())],
                    Request::Translated(parts) => {
                        assert!(parts.iter().all(|part| !part.is_empty()));
                        parts
                    }
                })
            }
            Self::Server(channel, registered) => {
                let least = ServerChannel::REQUEST_HEAD.min(bytes.len());
                let head = random.usize(least..=bytes.len());
                let mut offload = channel.request(&bytes[..head], bytes.len()).map_err(end)?;
                if offload == Offload::Incomplete {
                    offload = channel.request(&bytes, bytes.len()).map_err(end)?;
                }
                let id = || u64_at(&bytes, 24);
                let request = match offload {
                    Offload::Pass => bytes.into(),
                    Offload::Incomplete => panic!("it was there whole"),
                    Offload::Read { length } => {
                        let mut content = vec![0; length as usize];
                        random.fill(&mut content);
                        let pieces = memory.register_pieces(random, &content);
                        let request = channel.read_request(&bytes, &pieces);
                        assert!(registered.insert(id(), pieces).is_none());
                        request
                    }
                    Offload::Write { data } => {
                        let pieces = memory.register_pieces(random, &bytes[data]);
                        let request = channel.write_request(&bytes[..head], bytes.len(), &pieces);
                        assert!(registered.insert(id(), pieces).is_none());
                        request
                    }
                };
                Ok(vec![Part::Bytes(request)])
            }
        }
    }

    /// Takes an answer, and returns the messages to forward.
    pub(crate) fn answer(
        &mut self,
        sent: Sent,
        random: &mut Rng,
        memory: &mut Memory,
    ) -> Result<Vec<Sent>, End> {
        let end = |fault: smbdirect_smb::ServerFault| End(fault.to_string());
        match self {
            Self::Client(channel) => {
                let bytes = Bytes::from(sent.bytes);
                let least = ClientChannel::ANSWER_HEAD.min(bytes.len());
                let head = &bytes[..random.usize(least..=bytes.len())];
                match channel.answer(head, bytes.len()).map_err(end)? {
                    ClientAnswer::Pass { invalidate } => Ok(vec![Sent {
                        bytes: bytes.into(),
                        invalidate: invalidate.map(|token| token.0),
                    }]),
                    ClientAnswer::Place(placement) => {
                        memory.write(&placement.to, &bytes[placement.data])?;
                        Ok(vec![Sent {
                            bytes: placement.reply.into(),
                            invalidate: placement.invalidate.map(|token| token.0),
                        }])
                    }
                    ClientAnswer::Compound => {
                        let mut messages = Vec::new();
                        for step in channel.compound_answer(bytes).map_err(end)? {
                            match step {
                                Step::Place { data, to } => {
                                    assert!(!data.is_empty());
                                    memory.write(&to, &data)?;
                                }
                                Step::Send {
                                    message,
                                    invalidate,
                                } => messages.push(Sent {
                                    bytes: message.into_bytes().into(),
                                    invalidate: invalidate.map(|token| token.0),
                                }),
                            }
                        }
                        Ok(messages)
                    }
                }
            }
            Self::Server(channel, registered) => {
                if let Some(token) = sent.invalidate {
                    memory.invalidate(token)?;
                }
                let answer = channel.answer(&sent.bytes).map_err(end)?;
                let bytes = match answer {
                    ServerAnswer::Pass => sent.bytes,
                    ServerAnswer::Done { message_id } => {
                        let pieces = registered.remove(&message_id).expect("its memory");
                        memory.release(&pieces);
                        sent.bytes
                    }
                    ServerAnswer::Data {
                        message_id,
                        head,
                        length,
                    } => {
                        let pieces = registered.remove(&message_id).expect("its memory");
                        let content = memory.content(&pieces);
                        memory.release(&pieces);
                        [&head, &content[..length as usize]].concat()
                    }
                };
                Ok(vec![bytes.into()])
            }
        }
    }

    /// Memory of the gateway for a request.
    pub(crate) fn described(&self, message_id: u64) -> Option<Vec<BufferDescriptorV1>> {
        match self {
            Self::Client(_) => None,
            Self::Server(_, registered) => registered.get(&message_id).cloned(),
        }
    }
}

/// A message of random parts.
fn in_parts(bytes: &[u8], random: &mut Rng) -> Message {
    let longest = [1, 30, 104, 1340, usize::MAX][random.usize(..5)];
    let places = elements(bytes).unwrap_or_default();
    let mut rest = Bytes::copy_from_slice(bytes);
    let mut parts = Vec::new();
    if random.bool() && places.len() > 1 {
        parts.push(rest.split_to(places[0].end));
    }
    while !rest.is_empty() {
        let length = random.usize(1..=longest.min(rest.len()));
        parts.push(rest.split_to(length));
    }
    parts.into_iter().collect()
}
