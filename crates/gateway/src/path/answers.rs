//! The answers of a session: translates each to the client, and moves the data of READs by RDMA.
//!
//! ```text
//!   server on SMB Direct ── ServerChannel ──┬── ClientChannel, RDMA Write ── client on SMB Direct
//!                                           └── unchanged ────────────────── client on TCP
//!   server on TCP ──────────────────────────┬── ClientChannel, RDMA Write ── client on SMB Direct
//!                                           └── in pieces ────────────────── client on TCP
//! ```

use std::{collections::VecDeque, convert::Infallible};

use bytes::{Buf, Bytes};
use smbdirect::{Connection, Message, Token, Writing};
use smbdirect_smb::{
    ClientChannel,
    client_channel::{Answer, Placement, Step},
    server_channel,
};

use crate::{
    path::{
        buffers::CHUNK,
        exchange::Exchange,
        incoming::{self, Incoming, failed},
        memory::Grant,
        peer::{Sink, Source},
        tcp,
    },
    stop::{Direction, Side, Stop},
};

/// Maximum number of chunks in flight to the client, so that one is read while others are sent.
const MAX_CHUNKS_IN_FLIGHT: usize = 8;

/// The direction from the server to the client.
#[derive(Clone, Copy)]
pub(crate) struct Answers<'a>(pub(crate) &'a Exchange<'a>);

impl Answers<'_> {
    /// Forwards answers until one side ends. Every complete answer that the server sent before its end is sent to the
    /// client.
    pub(crate) async fn forward(self, from: &mut Source, to: &mut Sink) -> Stop {
        let Err(stop) = self.forward_all(from, to).await;
        stop
    }

    async fn forward_all(self, from: &mut Source, to: &mut Sink) -> Result<Infallible, Stop> {
        let exchange = self.0;
        loop {
            match from {
                Source::SmbDirect(server) => {
                    let answer = server.recv(Side::Server).await?;
                    let head = incoming::head(&answer, ClientChannel::ANSWER_HEAD);
                    let direction = Direction::ToClient;
                    exchange.traffic.received(direction, &head, None);
                    drop(head);
                    exchange.seat.server.has_answered();
                    self.translate(answer.into_bytes(), &server.connection, to)
                        .await?;
                }
                Source::Tcp(server) => {
                    let head = server.message(ClientChannel::ANSWER_HEAD).await;
                    let length = head.map_err(failed(Side::Server))?;
                    length.ok_or(Stop::Closed(Side::Server))?;
                    let (head, arrived) = (server.head(), Some(server.arrived()));
                    exchange
                        .traffic
                        .received(Direction::ToClient, head, arrived);
                    exchange.seat.server.has_answered();
                    let answer = Incoming::begun(Side::Server, server);
                    self.deliver(answer, to, false).await?;
                }
            }
            exchange.traffic.delivered();
        }
    }

    /// Forwards an answer of a server on SMB Direct, together with the data that the server wrote to registered memory.
    async fn translate(
        self,
        answer: Bytes,
        server: &Connection,
        to: &mut Sink,
    ) -> Result<(), Stop> {
        let exchange = self.0;
        let whole = |message: Message| Incoming::whole(Side::Server, message, server);
        let translated = exchange.server_channel().answer(&answer)?;
        match translated {
            server_channel::Answer::Pass => self.deliver(whole(answer.into()), to, false).await,
            server_channel::Answer::Done { message_id } => {
                exchange.end_region(message_id).await?;
                self.deliver(whole(answer.into()), to, false).await
            }
            server_channel::Answer::Data {
                message_id,
                head,
                length,
            } => {
                let (buffer, _grant) = exchange.take_region(message_id).await?;
                let buffer = buffer.freeze();
                let data = buffer.slice(..length as usize);
                exchange.traffic.read_by_rdma(length as usize);
                let message = [head, data].into_iter().collect();
                self.deliver(whole(message), to, true).await?;
                exchange.buffers.give_shared_region(exchange.id, buffer);
                Ok(())
            }
        }
    }

    /// Sends an answer to the client. `is_counted` says whether its data has already been counted as moved by RDMA.
    async fn deliver(
        self,
        message: Incoming<'_>,
        to: &mut Sink,
        is_counted: bool,
    ) -> Result<(), Stop> {
        let client = match to {
            Sink::SmbDirect(client) => &*client,
            Sink::Tcp(client) => return self.pass_to_tcp(message, client).await,
        };
        let answer = {
            let head = message.head(ClientChannel::ANSWER_HEAD);
            let mut channel = self.0.client_channel();
            channel.answer(&head, message.remaining())?
        };
        match answer {
            Answer::Pass { invalidate } => self.pass(message, client, invalidate).await?,
            Answer::Place(placement) => {
                self.place(message, client, placement, is_counted).await?;
            }
            Answer::Compound => self.take_steps(message, client).await?,
        }
        self.0.answered();
        Ok(())
    }

    /// Sends an answer unchanged to a client on TCP, as it arrives.
    async fn pass_to_tcp(self, message: Incoming<'_>, client: &mut tcp::Sink) -> Result<(), Stop> {
        let Exchange {
            traffic, buffers, ..
        } = self.0;
        let failed = failed(Side::Client);
        let length = message.remaining();
        traffic.forwarded(Direction::ToClient, length);
        let mut message = match message.into_whole() {
            Ok(answer) => {
                let put = traffic.window(client.put(answer)).await;
                return put.map_err(failed);
            }
            Err(begun) => begun,
        };
        let mut before = Bytes::copy_from_slice(&tcp::header(length).map_err(&failed)?);
        while message.remaining() > 0 {
            let piece = message.piece(length, buffers).await?;
            let writing = client.write((&mut before).chain(piece.clone()));
            traffic.window(writing).await.map_err(&failed)?;
            buffers.give_chunk(piece);
        }
        Ok(())
    }

    /// Sends an answer unchanged to a client on SMB Direct, with the invalidation of a token.
    async fn pass(
        self,
        message: Incoming<'_>,
        client: &Connection,
        invalidate: Option<Token>,
    ) -> Result<(), Stop> {
        let length = message.remaining();
        let most = client.negotiated().max_fragmented_send_size;
        if length > most as usize {
            return Err(Stop::too_long(Side::Server, length, most));
        }
        let mut message = match message.into_whole() {
            Ok(answer) => return self.send(client, answer, invalidate, length).await,
            Err(begun) => begun,
        };
        let _grant = self.0.answer_memory(length).await;
        let mut pieces = Vec::new();
        while message.remaining() > 0 {
            pieces.push(message.piece(length, &self.0.buffers).await?);
        }
        let whole = pieces.iter().cloned().collect();
        self.send(client, whole, invalidate, length).await?;
        for piece in pieces {
            self.0.buffers.give_chunk(piece);
        }
        Ok(())
    }

    /// Writes the data of an answer to the memory of the client as it arrives, and sends the answer without it.
    async fn place(
        self,
        mut message: Incoming<'_>,
        client: &Connection,
        placement: Placement,
        is_counted: bool,
    ) -> Result<(), Stop> {
        let Placement {
            data,
            to,
            reply,
            invalidate,
            ..
        } = placement;
        let mut placing = Placing {
            exchange: self.0,
            chunks: VecDeque::new(),
        };
        message.skip(data.start).await?;
        let mut placed = 0;
        while placed < data.len() {
            let left = data.len() - placed;
            let mut grant = None;
            if message.is_arriving() {
                grant = Some(placing.take(left.min(CHUNK)).await?);
            }
            let chunk = message.piece(left, &self.0.buffers).await?;
            if placing.chunks.len() >= MAX_CHUNKS_IN_FLIGHT {
                placing.finish_one().await?;
            }
            let writing = client.write(&to, placed as u64, chunk.clone());
            placed += chunk.len();
            placing.chunks.push_back((writing, chunk, grant));
        }
        message.skip(message.remaining()).await?;
        if !is_counted {
            self.0.traffic.read_by_rdma(placed);
        }
        let length = reply.len() + placed;
        self.send(client, reply.into(), invalidate, length).await?;
        // The chunks were sent before the reply, so this wait is short. An idle session must not hold their
        // memory.
        while !placing.chunks.is_empty() {
            placing.finish_one().await?;
        }
        Ok(())
    }

    /// Takes the steps that translate a compound answer to the client.
    async fn take_steps(self, mut message: Incoming<'_>, client: &Connection) -> Result<(), Stop> {
        let mut _grant = None;
        if message.is_arriving() {
            _grant = Some(self.0.answer_memory(message.remaining()).await);
        }
        let answer = message.rest(self.0).await?;
        let steps = self.0.client_channel().compound_answer(answer)?;
        let mut placed = 0;
        for step in steps {
            match step {
                Step::Place { data, to } => {
                    let length = data.len();
                    let writing = client.write(&to, 0, data);
                    let written = self.0.traffic.window(writing).await;
                    written.map_err(|fault| Stop::of_transfer(&fault))?;
                    self.0.traffic.read_by_rdma(length);
                    placed += length;
                }
                Step::Send {
                    message,
                    invalidate,
                } => {
                    let length = message.len() + std::mem::take(&mut placed);
                    self.send(client, message, invalidate, length).await?;
                }
            }
        }
        Ok(())
    }

    /// Sends an answer to a client on SMB Direct. `length` is its length together with the data that moves by RDMA for it.
    async fn send(
        self,
        client: &Connection,
        answer: Message,
        invalidate: Option<Token>,
        length: usize,
    ) -> Result<(), Stop> {
        let sending = match invalidate {
            Some(token) => client.send_and_invalidate(answer, token),
            None => client.send(answer),
        };
        let sending = sending.map_err(|error| Stop::of_send(Side::Server, Side::Client, error))?;
        // Count before the wait: the client may receive the answer, and end the session, before this task continues.
        self.0.traffic.forwarded(Direction::ToClient, length);
        let sent = self.0.traffic.window(sending).await;
        sent.map_err(|error| Stop::of(Side::Client, &error))
    }
}

/// RDMA Writes in flight to the memory of the client, oldest first.
struct Placing<'a, 'b> {
    exchange: &'a Exchange<'b>,
    chunks: VecDeque<(Writing, Bytes, Option<Grant>)>,
}

impl Placing<'_, '_> {
    /// Takes a grant for another chunk. If no memory is free, waits for the oldest chunks in flight.
    async fn take(&mut self, bytes: usize) -> Result<Grant, Stop> {
        loop {
            if let Some(grant) = self.exchange.try_answer_memory(bytes) {
                return Ok(grant);
            }
            if self.chunks.is_empty() {
                return Ok(self.exchange.answer_memory(bytes).await);
            }
            self.finish_one().await?;
        }
    }

    async fn finish_one(&mut self) -> Result<(), Stop> {
        if let Some((writing, chunk, grant)) = self.chunks.pop_front() {
            let written = self.exchange.traffic.window(writing).await;
            written.map_err(|fault| Stop::of_transfer(&fault))?;
            // A chunk without a grant is memory of the connection to the server.
            if grant.is_some() {
                self.exchange.buffers.give_chunk(chunk);
            }
        }
        Ok(())
    }
}
