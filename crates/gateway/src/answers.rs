//! Translates answers from the server to the client, and moves the data of READs by RDMA.

use std::collections::VecDeque;

use bytes::Bytes;
use smbdirect::{Connection, Message, Writing};
use smbdirect_smb::{
    ClientChannel,
    client_channel::{Answer, Placement, Step},
    server_channel,
};

use crate::{
    buffers::CHUNK,
    exchange::Exchange,
    incoming::{Content, Incoming},
    memory::Grant,
    peer::{Side, Sink, Stop},
    relay::Relay,
};

/// Maximum number of chunks in flight to the client, so that one is read while others are sent.
const MAX_CHUNKS_IN_FLIGHT: usize = 8;

/// Forwards an answer. The answer of a server with RDMA includes the data that the server wrote to registered
/// memory.
pub(super) async fn forward(
    relay: Relay<'_>,
    message: Incoming<'_>,
    to: &mut Sink,
) -> Result<(), Stop> {
    let exchange = relay.exchange;
    let (answer, server) = match message.content {
        Content::Whole(answer, server) => (answer.into_bytes(), server),
        Content::Begun(_) => return deliver(relay, message, to, false).await,
    };
    let whole = |message: Message| Incoming::whole(Side::Server, message, server);
    let translated = exchange.server_channel().answer(&answer)?;
    match translated {
        server_channel::Answer::Pass => deliver(relay, whole(answer.into()), to, false).await,
        server_channel::Answer::Done { message_id } => {
            exchange.end_region(message_id).await?;
            deliver(relay, whole(answer.into()), to, false).await
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
            deliver(relay, whole(message), to, true).await?;
            exchange.buffers.give_shared_region(exchange.id, buffer);
            Ok(())
        }
    }
}

/// Sends an answer to a client on SMB Direct or TCP. `is_counted` says whether its data has already been counted as
/// moved by RDMA.
async fn deliver(
    relay: Relay<'_>,
    mut message: Incoming<'_>,
    to: &mut Sink,
    is_counted: bool,
) -> Result<(), Stop> {
    let exchange = relay.exchange;
    let Sink::SmbDirect(client) = to else {
        return relay.pass(message, to, None).await;
    };
    let length = message.remaining();
    let answer = {
        let head = message.head(ClientChannel::ANSWER_HEAD);
        exchange.client_channel().answer(&head, length)?
    };
    match answer {
        Answer::Pass { invalidate } => relay.pass(message, to, invalidate).await?,
        Answer::Place(placement) => {
            place(relay, message, client, placement, is_counted).await?;
        }
        Answer::Compound => {
            let mut _grant = None;
            if message.is_arriving() {
                _grant = Some(relay.memory(&message, length).await?);
            }
            let message = message.rest(exchange).await?;
            take_steps(relay, client, message).await?;
        }
    }
    exchange.answered();
    Ok(())
}

/// Writes the data of an answer to the memory of the client as it arrives, and sends the answer without it.
async fn place(
    relay: Relay<'_>,
    mut message: Incoming<'_>,
    client: &Connection,
    placement: Placement,
    is_counted: bool,
) -> Result<(), Stop> {
    let exchange = relay.exchange;
    let Placement {
        data,
        to,
        reply,
        invalidate,
        ..
    } = placement;
    let mut placing = Placing {
        exchange,
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
        let chunk = message.piece(left, &exchange.buffers).await?;
        if placing.chunks.len() >= MAX_CHUNKS_IN_FLIGHT {
            placing.finish_one().await?;
        }
        let writing = client.write(&to, placed as u64, chunk.clone());
        placed += chunk.len();
        placing.chunks.push_back((writing, chunk, grant));
    }
    message.skip(message.remaining()).await?;
    if !is_counted {
        exchange.traffic.read_by_rdma(placed);
    }
    let length = reply.len() + placed;
    relay.send(client, reply.into(), invalidate, length).await?;
    // The chunks were sent before the reply, so this wait is short. An idle session must not hold their
    // memory.
    while !placing.chunks.is_empty() {
        placing.finish_one().await?;
    }
    Ok(())
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

/// Executes the steps that translate a compound answer to the client.
async fn take_steps(relay: Relay<'_>, client: &Connection, message: Bytes) -> Result<(), Stop> {
    let exchange = relay.exchange;
    let steps = exchange.client_channel().compound_answer(message)?;
    let mut placed = 0;
    for step in steps {
        match step {
            Step::Place { data, to } => {
                let length = data.len();
                let writing = client.write(&to, 0, data);
                let written = exchange.traffic.window(writing).await;
                written.map_err(|fault| Stop::of_transfer(&fault))?;
                exchange.traffic.read_by_rdma(length);
                placed += length;
            }
            Step::Send {
                message,
                invalidate,
            } => {
                let length = message.len() + std::mem::take(&mut placed);
                relay.send(client, message, invalidate, length).await?;
            }
        }
    }
    Ok(())
}
