//! Translates requests from the client to the server, and moves the data of WRITEs by RDMA.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};
use smbdirect::{Access, BufferDescriptorV1, Connection, Message};
use smbdirect_smb::{
    client_channel::{Part, Request},
    server_channel::Offload,
};
use tokio::sync::mpsc;

use crate::{
    buffers::{CHUNK, region_size},
    exchange::{Exchange, Region},
    incoming::{Content, Incoming, failed, gone, unless_gone},
    memory::Grant,
    peer::{Side, Sink, Stop, longest},
    queue::{Piece, Queue},
    relay::Relay,
    tcp,
};

/// Bytes of one RDMA Read from the memory of the client.
const FETCH_BYTES: usize = 2 * CHUNK;
/// Bytes of the largest piece that is sent together with the next one, so that the head of a request
/// leaves with its data.
const MAX_GATHERED_BYTES: usize = 4 << 10;
/// Maximum length in bytes of a READ request that is sent with a channel, because it is buffered whole.
const MAX_BUFFERED_READ_BYTES: u32 = u16::MAX as u32;

/// Forwards a request.
pub(super) async fn forward(
    relay: Relay<'_>,
    message: Incoming<'_>,
    to: &mut Sink,
) -> Result<(), Stop> {
    let exchange = relay.exchange;
    let (request, client) = match message.content {
        Content::Whole(request, client) => (request, client),
        Content::Begun(_) => return without_channel(relay, message, to).await,
    };
    let request = exchange.client_channel().request(request)?;
    let parts = match request {
        Request::Pass(request) => {
            exchange.traffic.passed();
            let message = Incoming::whole(Side::Client, request, client);
            return without_channel(relay, message, to).await;
        }
        Request::Translated(parts) => parts,
    };
    match to {
        Sink::SmbDirect(server) => fetch_and_send(relay, client, parts, server).await,
        Sink::Queue(queue) => {
            fetch_in_pieces(exchange, client, parts, queue).await;
            Ok(())
        }
        Sink::Tcp(_) => unreachable!("requests of SMB Direct for TCP are queued"),
    }
}

/// Forwards a request without a channel to memory of the client.
async fn without_channel(
    relay: Relay<'_>,
    message: Incoming<'_>,
    to: &mut Sink,
) -> Result<(), Stop> {
    if let Sink::SmbDirect(server) = to {
        return offload(relay, message, server).await;
    }
    if message.is_arriving() {
        relay.exchange.traffic.passed();
    }
    relay.pass(message, to, None).await
}

/// Queues the parts of a request, and starts RDMA Reads of the data of WRITEs.
async fn fetch_in_pieces(
    exchange: &Exchange<'_>,
    client: &Connection,
    parts: Vec<Part>,
    queue: &Queue,
) {
    let length = parts.iter().map(Part::len).sum();
    queue.put(Piece::Begin(length)).await;
    for part in parts {
        match part {
            Part::Bytes(bytes) => queue.put(Piece::Bytes(bytes.into(), None)).await,
            Part::Remote { from, length } => {
                let length = length as usize;
                exchange.traffic.written_by_rdma(length);
                for offset in (0..length).step_by(FETCH_BYTES) {
                    let size = FETCH_BYTES.min(length - offset);
                    let grant = exchange.request_memory(region_size(size)).await;
                    let into = exchange.region(size);
                    let reading = client.read(&from, offset as u64, into);
                    queue.put(Piece::Fetched(reading, grant)).await;
                }
            }
        }
    }
}

/// Sends pieces in order. If the data of a message cannot be read, the message stays incomplete and the
/// server ignores it.
pub(super) async fn send_pieces(
    relay: Relay<'_>,
    mut pieces: mpsc::Receiver<Piece>,
    server: &mut tcp::Sink,
) -> Result<(), Stop> {
    let Relay {
        exchange,
        direction,
    } = relay;
    let failed = failed(direction.to());
    // Small pieces are sent together with the next one.
    let mut small = VecDeque::new();
    let mut missing = 0;
    while let Some(piece) = pieces.recv().await {
        match piece {
            Piece::Begin(length) => {
                missing = length;
                let header = tcp::header(length).map_err(&failed)?;
                small.push_back(Bytes::copy_from_slice(&header));
                exchange.traffic.forwarded(direction, length);
            }
            Piece::Bytes(message, grant) => {
                missing -= message.len();
                let is_small = message.len() <= MAX_GATHERED_BYTES && grant.is_none();
                if is_small && missing > 0 {
                    small.push_back(message.into_bytes());
                } else {
                    let before: Message = small.drain(..).collect();
                    server.write(before.chain(message)).await.map_err(&failed)?;
                }
            }
            Piece::Fetched(reading, _grant) => {
                let read = exchange.traffic.window(reading).await;
                let buffer = read.map_err(|error| Stop::of_read(&error))?.freeze();
                missing -= buffer.len();
                let before: Message = small.drain(..).collect();
                let whole = before.chain(buffer.clone());
                server.write(whole).await.map_err(&failed)?;
                exchange.buffers.give_shared_region(exchange.id, buffer);
            }
        }
    }
    Ok(())
}

/// Fetches the data of a request into memory, and forwards the request with it to a server with RDMA.
async fn fetch_and_send(
    relay: Relay<'_>,
    client: &Connection,
    parts: Vec<Part>,
    server: &Connection,
) -> Result<(), Stop> {
    let exchange = relay.exchange;
    let memory = |bytes| unless_gone(gone(client), exchange.request_memory(bytes));
    if let [Part::Bytes(head), Part::Remote { from, length }] = &*parts {
        let whole = head.len() + *length as usize;
        let offload = exchange.server_channel().request(head, whole)?;
        if let Offload::Write { .. } = offload {
            // The server reads from the memory that the data is fetched into.
            let grant = memory(region_size(*length as usize)).await?;
            let buffer = fetch_whole(exchange, client, from, *length).await?;
            let region = register(server, buffer, Access::REMOTE_READ, grant)?;
            return send_with_region(relay, server, head, whole, region).await;
        }
    }
    let length = parts.iter().map(Part::len).sum();
    let largest = parts.iter().map(fetched_size).max().unwrap_or(0);
    // Memory for the fetched data, until the message is sent.
    let mut _fetched = None;
    if largest > 0 {
        _fetched = Some(memory(length + largest).await?);
    }
    let mut whole = BytesMut::with_capacity(length);
    for part in parts {
        match part {
            Part::Bytes(bytes) => whole.extend_from_slice(&bytes),
            Part::Remote { from, length } => {
                let data = fetch_whole(exchange, client, &from, length).await?;
                whole.extend_from_slice(&data);
                exchange.buffers.give_region(exchange.id, data);
            }
        }
    }
    let message = Incoming::whole(Side::Client, whole.freeze().into(), client);
    offload(relay, message, server).await
}

/// Returns the number of bytes of memory that a part needs for its fetched data.
fn fetched_size(part: &Part) -> usize {
    match part {
        Part::Bytes(_) => 0,
        Part::Remote { length, .. } => region_size(*length as usize),
    }
}

/// Reads the first `length` bytes of the memory of a client into one buffer.
async fn fetch_whole(
    exchange: &Exchange<'_>,
    client: &Connection,
    from: &[BufferDescriptorV1],
    length: u32,
) -> Result<BytesMut, Stop> {
    exchange.traffic.written_by_rdma(length as usize);
    let into = exchange.region(length as usize);
    let read = exchange.traffic.window(client.read(from, 0, into)).await;
    read.map_err(|error| Stop::of_read(&error))
}

/// Forwards a request to a server with RDMA: a READ or WRITE with a channel to memory of the gateway, if that is
/// worth it.
async fn offload(
    relay: Relay<'_>,
    mut message: Incoming<'_>,
    server: &Connection,
) -> Result<(), Stop> {
    let exchange = relay.exchange;
    message.join();
    let length = message.remaining();
    let offload = exchange
        .server_channel()
        .request(&message.head(length), length)?;
    match offload {
        Offload::Pass | Offload::Incomplete => {
            relay.check_length(length, longest(server))?;
            let mut _grant = None;
            if message.is_arriving() {
                _grant = Some(relay.memory(&message, length).await?);
                exchange.traffic.passed();
            }
            let message = message.rest(exchange).await?;
            if offload == Offload::Incomplete {
                exchange.server_channel().request(&message, length)?;
            }
            relay.send(server, message.into(), None, length).await
        }
        Offload::Read { length: to_read } => {
            if message.is_arriving() && length > MAX_BUFFERED_READ_BYTES as usize {
                return Err(Stop::too_long(
                    Side::Client,
                    length,
                    MAX_BUFFERED_READ_BYTES,
                ));
            }
            let head = message.take(length).await?;
            let grant = relay
                .memory(&message, region_size(to_read as usize))
                .await?;
            let buffer = exchange.region(to_read as usize);
            let region = register(server, buffer, Access::REMOTE_WRITE, grant)?;
            send_with_region(relay, server, &head, length, region).await
        }
        Offload::Write { data } => {
            let grant = relay.memory(&message, region_size(data.len())).await?;
            let head = message.take(data.start).await?;
            let mut buffer = exchange.region(data.len());
            buffer.clear();
            message.fill(&mut buffer, data.len()).await?;
            message.skip(message.remaining()).await?;
            exchange.traffic.written_by_rdma(data.len());
            let region = register(server, buffer, Access::REMOTE_READ, grant)?;
            send_with_region(relay, server, &head, length, region).await
        }
    }
}

fn register(
    server: &Connection,
    buffer: BytesMut,
    access: Access,
    grant: Grant,
) -> Result<Region, Stop> {
    let region = server
        .register(buffer, access | Access::REMOTE_INVALIDATE)
        .map_err(|error| Stop::Failed(Side::Server, error.to_string()))?;
    Ok(Region { region, grant })
}

/// Sends a request with the channel to memory that was registered for it. `length` is the length of
/// the request with its data.
async fn send_with_region(
    relay: Relay<'_>,
    server: &Connection,
    head: &[u8],
    length: usize,
    region: Region,
) -> Result<(), Stop> {
    let request = relay.exchange.expect_answer(head, length, region);
    relay.send(server, request.into(), None, length).await
}
