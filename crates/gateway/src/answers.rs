//! Forwards answers from the server to the client, and moves the data of READs by RDMA.
//!
//! ```text
//!   TCP ── ClientChannel ── RDMA Write, message ── SMB Direct       written by RDMA as it arrives
//!   SMB Direct ── ServerChannel ── ClientChannel ── SMB Direct
//!   SMB Direct ── ServerChannel ── message with data ── TCP
//!   TCP ── pieces ── TCP
//! ```

use std::collections::VecDeque;

use bytes::{Buf, Bytes};
use smbdirect::{Connection, Message, Token, Writing};
use smbdirect_smb::{
    ClientChannel,
    client_channel::{Answer, Placement, Step},
    server_channel,
};

use super::{
    buffers::CHUNK,
    exchange::Exchange,
    memory::Grant,
    peer::{Side, Sink, Source, Stop, longest},
    relay::{Never, tcp_to_tcp, whole},
    tcp,
};

/// Forwards answers until one side ends. Every complete answer that the server sent before its end is
/// sent to the client first.
pub(super) async fn carry(exchange: &Exchange<'_>, from: &mut Source, to: &mut Sink) -> Stop {
    let ended = match (from, to) {
        (Source::Tcp(server), Sink::SmbDirect(client)) => place(exchange, server, client).await,
        (Source::SmbDirect(server), to) => from_memory(exchange, server, to).await,
        (Source::Tcp(server), Sink::Tcp(client)) => {
            let count = |length| exchange.counters.to_client(length);
            tcp_to_tcp(exchange, server, client, Side::Server, count).await
        }
    };
    match ended {
        Ok(never) => match never {},
        Err(stop) => stop,
    }
}

/// RDMA Writes in flight to the memory of the client, oldest first.
struct Placing<'a, 'b> {
    exchange: &'a Exchange<'b>,
    chunks: VecDeque<(Writing, Bytes, Grant)>,
}

impl Placing<'_, '_> {
    /// Takes a grant for another chunk. If no memory is free, waits for the oldest chunks in flight.
    async fn take(&mut self, bytes: usize) -> Result<Grant, Stop> {
        loop {
            if let Some(grant) = self.exchange.answers.try_take(bytes) {
                return Ok(grant);
            }
            if self.chunks.is_empty() {
                return Ok(self.exchange.answers.take(bytes).await);
            }
            self.finish_one().await?;
        }
    }

    /// Starts the RDMA Write of a chunk to the memory of the client, after the chunks in flight.
    async fn write(
        &mut self,
        client: &Connection,
        chunk: Bytes,
        placement: &Placement,
        offset: usize,
        grant: Grant,
    ) -> Result<(), Stop> {
        if self.chunks.len() >= MAX_CHUNKS_IN_FLIGHT {
            self.finish_one().await?;
        }
        let writing = client.write(&placement.to, offset as u64, chunk.clone());
        self.chunks.push_back((writing, chunk, grant));
        Ok(())
    }

    async fn finish_all(&mut self) -> Result<(), Stop> {
        while !self.chunks.is_empty() {
            self.finish_one().await?;
        }
        Ok(())
    }

    async fn finish_one(&mut self) -> Result<(), Stop> {
        if let Some((writing, chunk, _grant)) = self.chunks.pop_front() {
            writing.await.map_err(|fault| Stop::of_transfer(&fault))?;
            self.exchange.buffers.give_chunk(chunk);
        }
        Ok(())
    }
}

/// Maximum number of chunks in flight to the client, so that one is read while others are sent.
const MAX_CHUNKS_IN_FLIGHT: usize = 8;

/// Forwards answers from a server on TCP to a client with RDMA.
async fn place(
    exchange: &Exchange<'_>,
    server: &mut tcp::Source,
    client: &Connection,
) -> Result<Never, Stop> {
    let failed = |fault: tcp::Fault| Stop::of_tcp(Side::Server, &fault);
    let most = longest(client);
    let mut placing = Placing {
        exchange,
        chunks: VecDeque::new(),
    };
    loop {
        let message = server.message(ClientChannel::ANSWER_HEAD).await;
        let Some(length) = message.map_err(failed)? else {
            return Err(Stop::Closed(Side::Server));
        };
        exchange.counters.note_answer(server.head());
        let answer = exchange.client_channel().answer(server.head(), length)?;
        match answer {
            Answer::Pass { invalidate } => {
                if length > most {
                    return Err(Stop::too_long(Side::Server, length, most as u32));
                }
                let _grant = placing.take(length).await?;
                let mut pieces = Vec::new();
                while server.remaining() > 0 {
                    let piece = server.piece(length, &exchange.buffers).await;
                    pieces.push(piece.map_err(failed)?);
                }
                let message = pieces.iter().cloned().collect();
                send(exchange, client, message, invalidate).await?;
                pieces
                    .into_iter()
                    .for_each(|piece| exchange.buffers.give_chunk(piece));
            }
            Answer::Place(placement) => {
                let data = placement.data.clone();
                server.skip(data.start).await.map_err(failed)?;
                let mut placed = 0;
                while placed < data.len() {
                    let left = data.len() - placed;
                    let grant = placing.take(left.min(CHUNK)).await?;
                    let chunk = server.piece(left, &exchange.buffers).await;
                    let chunk = chunk.map_err(failed)?;
                    let length = chunk.len();
                    placing
                        .write(client, chunk, &placement, placed, grant)
                        .await?;
                    placed += length;
                }
                server.skip(server.remaining()).await.map_err(failed)?;
                exchange.counters.read_by_rdma(data.len());
                let Placement {
                    reply, invalidate, ..
                } = placement;
                send_reply(exchange, client, reply.into(), invalidate, data.len()).await?;
                // The chunks were sent before the reply, so this wait is short. An idle session must
                // not hold their memory.
                placing.finish_all().await?;
            }
            Answer::Compound => {
                let _grant = placing.take(length).await?;
                let message = whole(exchange, server).await.map_err(failed)?;
                take_steps(exchange, client, message).await?;
            }
        }
        exchange.answered();
    }
}

/// Executes the steps that translate a compound answer to the client.
async fn take_steps(
    exchange: &Exchange<'_>,
    client: &Connection,
    message: Bytes,
) -> Result<(), Stop> {
    let steps = exchange.client_channel().compound_answer(message)?;
    let mut placed = 0;
    for step in steps {
        match step {
            Step::Place { data, to } => {
                let length = data.len();
                let written = client.write(&to, 0, data).await;
                written.map_err(|fault| Stop::of_transfer(&fault))?;
                exchange.counters.read_by_rdma(length);
                placed += length;
            }
            Step::Send {
                message,
                invalidate,
            } => {
                let placed = std::mem::take(&mut placed);
                send_reply(exchange, client, message, invalidate, placed).await?;
            }
        }
    }
    Ok(())
}

/// Forwards answers of a server with RDMA, with the data that it wrote to registered memory.
async fn from_memory(
    exchange: &Exchange<'_>,
    server: &Connection,
    to: &mut Sink,
) -> Result<Never, Stop> {
    loop {
        let message = server.recv().await;
        let message = message.map_err(|error| Stop::of(Side::Server, &error))?;
        let message = message.into_bytes();
        exchange.counters.note_answer(&message);
        let answer = exchange.server_channel().answer(&message)?;
        match answer {
            server_channel::Answer::Pass => deliver(exchange, to, message.into(), false).await?,
            server_channel::Answer::Done { message_id } => {
                exchange.end_region(message_id).await?;
                deliver(exchange, to, message.into(), false).await?;
            }
            server_channel::Answer::Data {
                message_id,
                head,
                length,
            } => {
                let (buffer, _grant) = exchange.take_region(message_id).await?;
                let buffer = buffer.freeze();
                let data = buffer.slice(..length as usize);
                exchange.counters.read_by_rdma(length as usize);
                deliver(exchange, to, [head, data].into_iter().collect(), true).await?;
                exchange.buffers.give_shared_region(exchange.id, buffer);
            }
        }
    }
}

/// Sends an answer to a client on SMB Direct or TCP. `counted` says whether its data has
/// already been counted as moved by RDMA.
async fn deliver(
    exchange: &Exchange<'_>,
    to: &mut Sink,
    message: Message,
    counted: bool,
) -> Result<(), Stop> {
    let length = message.len();
    let client = match to {
        Sink::SmbDirect(client) => client,
        Sink::Tcp(client) => {
            let sent = client.put(message).await;
            sent.map_err(|fault| match fault {
                tcp::Fault::TooLong { length, most } => Stop::too_long(Side::Server, length, most),
                fault => Stop::of_tcp(Side::Client, &fault),
            })?;
            exchange.counters.to_client(length);
            return Ok(());
        }
    };
    let head = message
        .clone()
        .copy_to_bytes(length.min(ClientChannel::ANSWER_HEAD));
    let answer = exchange.client_channel().answer(&head, length)?;
    match answer {
        Answer::Pass { invalidate } => send(exchange, client, message, invalidate).await?,
        Answer::Place(placement) => {
            let data = placement.data.clone();
            let mut rest = message;
            rest.advance(data.start);
            let mut placed = 0;
            let mut writing = Vec::new();
            while placed < data.len() {
                let length = rest.chunk().len().min(data.len() - placed);
                let chunk = rest.copy_to_bytes(length);
                writing.push(client.write(&placement.to, placed as u64, chunk));
                placed += length;
            }
            if !counted {
                exchange.counters.read_by_rdma(placed);
            }
            let Placement {
                reply, invalidate, ..
            } = placement;
            send_reply(exchange, client, reply.into(), invalidate, placed).await?;
            for writing in writing {
                writing.await.map_err(|fault| Stop::of_transfer(&fault))?;
            }
        }
        Answer::Compound => take_steps(exchange, client, message.into_bytes()).await?,
    }
    exchange.answered();
    Ok(())
}

async fn send(
    exchange: &Exchange<'_>,
    client: &Connection,
    message: Message,
    invalidate: Option<Token>,
) -> Result<(), Stop> {
    send_reply(exchange, client, message, invalidate, 0).await
}

/// Sends a message whose `placed` bytes of data were written by RDMA before it.
async fn send_reply(
    exchange: &Exchange<'_>,
    client: &Connection,
    message: Message,
    invalidate: Option<Token>,
    placed: usize,
) -> Result<(), Stop> {
    let length = message.len();
    let sending = match invalidate {
        Some(token) => client.send_and_invalidate(message, token),
        None => client.send(message),
    };
    let sending = sending.map_err(|error| Stop::of_send(Side::Server, Side::Client, error))?;
    // Count before the wait: the client may receive the message, and end the session, before this
    // task continues.
    exchange.counters.to_client(length + placed);
    let sent = sending.await;
    sent.map_err(|error| Stop::of(Side::Client, &error))
}
