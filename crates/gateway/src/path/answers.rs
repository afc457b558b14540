//! The answers of a session: translates each to the client, and moves the data of READs by RDMA.
//!
//! ```text
//!   server on SMB Direct ── ServerChannel ──┬── ClientChannel, RDMA Write ── client on SMB Direct
//!                                           └── unchanged ────────────────── client on TCP
//!   server on TCP ──────────────────────────┬── ClientChannel, RDMA Write ── client on SMB Direct
//!                                           └── in pieces ────────────────── client on TCP
//! ```
//!
//! The answer to a READ goes one way, and comes back to this file four times: received ([`Exchange::receive`]), looked at
//! by the translator of the client ([`Exchange::client_channel`]), its data taken ([`Incoming::piece`], once for each
//! chunk), and sent without it ([`Exchange::send`]).

use std::{collections::VecDeque, convert::Infallible};

use bytes::Bytes;
use smbdirect::{Connection, Message, Token, Writing};
use smbdirect_smb::{
    client_channel::{self, Placement, Step},
    server_channel,
};

use crate::{
    path::{
        buffers::CHUNK,
        exchange::Exchange,
        incoming::Incoming,
        peer::{Sink, Source},
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
        loop {
            match self.0.receive(Direction::ToClient, from).await? {
                Incoming::Whole(answer, server) => {
                    self.translate(answer.into_bytes(), server, to).await?;
                }
                begun @ Incoming::Begun(_) => self.deliver(begun, to, false).await?,
            }
            self.0.delivered();
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
        let translated = exchange.server_channel().answer(&answer)?;
        match translated {
            server_channel::Answer::Pass => {}
            server_channel::Answer::Done { message_id } => exchange.end_region(message_id).await?,
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
                let message = Incoming::Whole(message, server);
                self.deliver(message, to, true).await?;
                exchange.buffers.give_shared_region(exchange.id, buffer);
                return Ok(());
            }
        }
        let message = Incoming::Whole(answer.into(), server);
        self.deliver(message, to, false).await
    }

    /// Sends an answer to the client. `is_counted` says whether its data has already been counted as moved by RDMA.
    async fn deliver(
        self,
        message: Incoming<'_>,
        to: &mut Sink,
        is_counted: bool,
    ) -> Result<(), Stop> {
        use client_channel::Answer;
        let client = match to {
            Sink::SmbDirect(client) => &*client,
            Sink::Tcp(client) => {
                let passing = self.0.pass_to_tcp(Direction::ToClient, message, client);
                return passing.await;
            }
        };
        let answer = {
            let head = message.head(Exchange::head_length(Direction::ToClient));
            let mut channel = self.0.client_channel();
            channel.answer(&head, message.remaining())?
        };
        match answer {
            Answer::Pass { invalidate } => self.pass(message, client, invalidate).await,
            Answer::Place(placement) => self.place(message, client, placement, is_counted).await,
            Answer::Compound => self.take_steps(message, client).await,
        }
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
        let _grant = self.0.answer_memory(&message, length).await;
        let mut message = match message.into_whole() {
            Ok(answer) => return self.send(client, answer, invalidate, length).await,
            Err(begun) => begun,
        };
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
        let in_flight = data.len().min(MAX_CHUNKS_IN_FLIGHT * CHUNK);
        let _grant = self.0.answer_memory(&message, in_flight).await;
        let is_pooled = message.is_arriving();
        message.skip(data.start).await?;
        // RDMA Writes in flight to the memory of the client, oldest first.
        let mut writes = VecDeque::new();
        let mut placed = 0;
        while placed < data.len() {
            if writes.len() >= MAX_CHUNKS_IN_FLIGHT {
                self.finish(writes.pop_front(), is_pooled).await?;
            }
            let chunk = message.piece(data.len() - placed, &self.0.buffers).await?;
            let writing = client.write(&to, placed as u64, chunk.clone());
            placed += chunk.len();
            writes.push_back((writing, chunk));
        }
        message.skip(message.remaining()).await?;
        if !is_counted {
            self.0.traffic.read_by_rdma(placed);
        }
        let length = reply.len() + placed;
        self.send(client, reply.into(), invalidate, length).await?;
        // The chunks were sent before the reply, so this wait is short. An idle session must not hold their memory.
        while !writes.is_empty() {
            self.finish(writes.pop_front(), is_pooled).await?;
        }
        Ok(())
    }

    /// Waits until an RDMA Write has ended, and gives its chunk back to the pool if it is from there: otherwise it is memory
    /// of the connection to the server.
    async fn finish(self, write: Option<(Writing, Bytes)>, is_pooled: bool) -> Result<(), Stop> {
        if let Some((writing, chunk)) = write {
            let written = self.0.traffic.window(writing).await;
            written.map_err(|fault| Stop::of_transfer(&fault))?;
            if is_pooled {
                self.0.buffers.give_chunk(chunk);
            }
        }
        Ok(())
    }

    /// Takes the steps that translate a compound answer to the client.
    async fn take_steps(self, mut message: Incoming<'_>, client: &Connection) -> Result<(), Stop> {
        let _grant = self.0.answer_memory(&message, message.remaining()).await;
        let answer = self.0.rest(&mut message).await?;
        let steps = self.0.client_channel().compound_answer(answer)?;
        let mut placed = 0;
        for step in steps {
            match step {
                Step::Place { data, to } => {
                    let length = data.len();
                    let writing = client.write(&to, 0, data.clone());
                    self.finish(Some((writing, data)), false).await?;
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
        let sending = self
            .0
            .send(Direction::ToClient, client, answer, invalidate, length);
        sending.await
    }
}
