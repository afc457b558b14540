//! Forwards requests from the client to the server, and moves the data of WRITEs by RDMA.
//!
//! ```text
//!   SMB Direct ── ClientChannel ── pieces ── TCP               fetched ahead, sent in order
//!   SMB Direct ── ClientChannel ── ServerChannel ── SMB Direct
//!   TCP ── ServerChannel ── SMB Direct
//!   TCP ── pieces ── TCP
//! ```
//!
//! Buffered messages, memory that data is read into, and registered memory all count towards the memory
//! for requests. When it is used up, the gateway receives no further request from the client.

use std::{collections::VecDeque, pin::pin};

use bytes::{Buf, Bytes, BytesMut};
use smbdirect::{Access, BufferDescriptorV1, Connection, Message, Reading};
use smbdirect_smb::{
    ServerChannel,
    client_channel::{Part, Request},
    frame::MAX_MESSAGE_LENGTH,
    server_channel::Offload,
};
use tokio::sync::mpsc;

use super::{
    buffers::{CHUNK, region_size},
    exchange::{Exchange, Region},
    memory::Grant,
    peer::{Side, Sink, Source, Stop, longest},
    relay::{Never, tcp_to_tcp, whole},
    tcp,
};

/// Maximum number of pieces queued for a TCP server. Their memory is limited separately.
const MAX_QUEUED_PIECES: usize = 64;
/// Bytes of one RDMA Read from the memory of the client.
const FETCH_BYTES: usize = 2 * CHUNK;
/// Bytes of the largest piece that is sent together with the next one, so that the head of a request
/// leaves with its data.
const MAX_GATHERED_BYTES: usize = 4 << 10;
/// Maximum length in bytes of a READ request that is sent with a channel, because it is buffered whole.
const MAX_BUFFERED_READ_BYTES: usize = u16::MAX as usize;

/// Forwards requests until one side ends.
pub(super) async fn carry(exchange: &Exchange<'_>, from: &mut Source, to: &mut Sink) -> Stop {
    let ended = match (from, to) {
        (Source::SmbDirect(client), Sink::Tcp(server)) => {
            fetch_and_send(exchange, client, server).await
        }
        (Source::SmbDirect(client), Sink::SmbDirect(server)) => {
            relay_rdma(exchange, client, server).await
        }
        (Source::Tcp(client), Sink::SmbDirect(server)) => offload(exchange, client, server).await,
        (Source::Tcp(client), Sink::Tcp(server)) => {
            let counters = exchange.counters;
            tcp_to_tcp(exchange, client, server, Side::Client, |length| {
                counters.to_server(length);
                counters.passed();
            })
            .await
        }
    };
    match ended {
        Ok(never) => match never {},
        Err(stop) => stop,
    }
}

/// A piece of the stream to a TCP server.
enum Piece {
    /// A message of this many bytes begins.
    Begin(usize),
    /// Bytes of the message, with the memory that they hold.
    Bytes(Message, Option<Grant>),
    /// Bytes that an RDMA Read fetches from the memory of the client.
    Fetched(Reading, Grant),
}

/// Waits until another request can be recorded, and returns the next request of an SMB Direct client.
async fn next_request(exchange: &Exchange<'_>, client: &Connection) -> Result<Request, Stop> {
    exchange.check_serving()?;
    unless_gone(gone(client), exchange.client_channel_room()).await?;
    let message = client.recv().await;
    let message = message.map_err(|error| Stop::of(Side::Client, &error))?;
    exchange.counters.note_request(message.chunk());
    Ok(exchange.client_channel().request(message)?)
}

/// Waits for `room`, which only answers to earlier requests free. The server may never answer, so the
/// wait also ends when the client is gone.
async fn unless_gone<T>(
    gone: impl Future<Output = Stop>,
    room: impl Future<Output = T>,
) -> Result<T, Stop> {
    tokio::select! {
        biased;
        room = room => Ok(room),
        stop = gone => Err(stop),
    }
}

/// Waits until the connection of an SMB Direct client ends.
async fn gone(client: &Connection) -> Stop {
    Stop::of(Side::Client, &client.closed().await)
}

/// Waits until a TCP client has finished sending and no answer has been sent to it for
/// `ANSWER_TIMEOUT`.
async fn gone_silent(exchange: &Exchange<'_>, client: &tcp::Source) -> Stop {
    client.hung_up().await;
    exchange.counters.of_session().silence().await;
    Stop::Closed(Side::Client)
}

/// Receives requests and fetches their data, and concurrently sends them to the server. When receiving
/// ends, the queued pieces are still sent.
async fn fetch_and_send(
    exchange: &Exchange<'_>,
    client: &Connection,
    server: &mut tcp::Sink,
) -> Result<Never, Stop> {
    let (pieces, waiting) = mpsc::channel(MAX_QUEUED_PIECES);
    let mut sending = pin!(send_pieces(exchange, waiting, server));
    let ended = tokio::select! {
        ended = fetch(exchange, client, pieces) => ended,
        sent = &mut sending => return Err(sent.err().unwrap_or(Stop::Here)),
    };
    // The reason why receiving ended is more specific than the reason why sending fails.
    let _ = sending.await;
    ended
}

/// Receives requests, and starts RDMA Reads of the data of WRITEs.
async fn fetch(
    exchange: &Exchange<'_>,
    client: &Connection,
    pieces: mpsc::Sender<Piece>,
) -> Result<Never, Stop> {
    // The result is ignored: the receiver of the queue lives as long as this task.
    let put = async |piece| drop(pieces.send(piece).await);
    loop {
        match next_request(exchange, client).await? {
            Request::Pass(message) => {
                let length = message.len();
                if length > MAX_MESSAGE_LENGTH as usize {
                    return Err(Stop::too_long(Side::Client, length, MAX_MESSAGE_LENGTH));
                }
                let grant = exchange.requests.take(length).await;
                put(Piece::Begin(length)).await;
                put(Piece::Bytes(message, Some(grant))).await;
                exchange.counters.passed();
            }
            Request::Translated(parts) => {
                put(Piece::Begin(parts.iter().map(Part::len).sum())).await;
                for part in parts {
                    match part {
                        Part::Bytes(bytes) => put(Piece::Bytes(bytes.into(), None)).await,
                        Part::Remote { from, length } => {
                            let length = length as usize;
                            exchange.counters.written_by_rdma(length);
                            for offset in (0..length).step_by(FETCH_BYTES) {
                                let size = FETCH_BYTES.min(length - offset);
                                let grant = exchange.requests.take(region_size(size)).await;
                                let into = exchange.region(size);
                                let reading = client.read(&from, offset as u64, into);
                                put(Piece::Fetched(reading, grant)).await;
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Sends pieces in order. If the data of a message cannot be read, the message stays incomplete and the
/// server ignores it.
async fn send_pieces(
    exchange: &Exchange<'_>,
    mut pieces: mpsc::Receiver<Piece>,
    server: &mut tcp::Sink,
) -> Result<(), Stop> {
    let failed = |fault: tcp::Fault| Stop::of_tcp(Side::Server, &fault);
    // Small pieces are sent together with the next one.
    let mut small = VecDeque::new();
    let mut missing = 0;
    while let Some(piece) = pieces.recv().await {
        match piece {
            Piece::Begin(length) => {
                missing = length;
                let header = tcp::header(length).map_err(failed)?;
                small.push_back(Bytes::copy_from_slice(&header));
                exchange.counters.to_server(length);
            }
            Piece::Bytes(message, grant) => {
                missing -= message.len();
                let is_small = message.len() <= MAX_GATHERED_BYTES && grant.is_none();
                if is_small && missing > 0 {
                    small.push_back(message.into_bytes());
                } else {
                    let before: Message = small.drain(..).collect();
                    server.write(before.chain(message)).await.map_err(failed)?;
                }
            }
            Piece::Fetched(reading, _grant) => {
                let buffer = reading
                    .await
                    .map_err(|error| Stop::of_read(&error))?
                    .freeze();
                missing -= buffer.len();
                let before: Message = small.drain(..).collect();
                let whole = before.chain(buffer.clone());
                server.write(whole).await.map_err(failed)?;
                exchange.buffers.give_shared_region(exchange.id, buffer);
            }
        }
    }
    Ok(())
}

/// Forwards requests from a client with RDMA to a server with RDMA. The data of a WRITE is fetched into
/// memory that the server then reads.
async fn relay_rdma(
    exchange: &Exchange<'_>,
    client: &Connection,
    server: &Connection,
) -> Result<Never, Stop> {
    loop {
        // Memory for the fetched data of a message, until it is sent.
        let mut _fetched = None;
        let message = match next_request(exchange, client).await? {
            Request::Pass(message) => {
                exchange.counters.passed();
                message
            }
            Request::Translated(parts) => {
                if relay_write(exchange, client, server, &parts).await? {
                    continue;
                }
                let length = parts.iter().map(Part::len).sum();
                let largest = parts.iter().map(fetched_size).max().unwrap_or(0);
                if largest > 0 {
                    let taking = exchange.requests.take(length + largest);
                    _fetched = Some(unless_gone(gone(client), taking).await?);
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
                whole.freeze().into()
            }
        };
        // `ServerChannel::request` needs the message as one slice.
        let message = message.into_bytes();
        let length = message.len();
        let offload = exchange.server_channel().request(&message, length)?;
        match offload {
            Offload::Pass | Offload::Incomplete => {
                send(exchange, server, message.into(), length).await?;
            }
            Offload::Read { length: to_read } => {
                let taking = exchange.requests.take(region_size(to_read as usize));
                let grant = unless_gone(gone(client), taking).await?;
                let region = register_read(exchange, server, to_read, grant)?;
                send_with_region(exchange, server, &message, length, region).await?;
            }
            Offload::Write { data } => {
                let taking = exchange.requests.take(region_size(data.len()));
                let grant = unless_gone(gone(client), taking).await?;
                exchange.counters.written_by_rdma(data.len());
                let mut buffer = exchange.region(data.len());
                buffer.copy_from_slice(&message[data]);
                let region = register(server, buffer, Access::REMOTE_READ, grant)?;
                send_with_region(exchange, server, &message, length, region).await?;
            }
        }
    }
}

/// Moves the data of a WRITE by RDMA on both sides, through the same memory. Returns false and does
/// nothing if the parts are not such a WRITE.
async fn relay_write(
    exchange: &Exchange<'_>,
    client: &Connection,
    server: &Connection,
    parts: &[Part],
) -> Result<bool, Stop> {
    let [Part::Bytes(head), Part::Remote { from, length }] = parts else {
        return Ok(false);
    };
    let whole = head.len() + *length as usize;
    let offload = exchange.server_channel().request(head, whole)?;
    let Offload::Write { .. } = offload else {
        return Ok(false);
    };
    let taking = exchange.requests.take(region_size(*length as usize));
    let grant = unless_gone(gone(client), taking).await?;
    let buffer = fetch_whole(exchange, client, from, *length).await?;
    let region = register(server, buffer, Access::REMOTE_READ, grant)?;
    send_with_region(exchange, server, head, whole, region).await?;
    Ok(true)
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
    exchange.counters.written_by_rdma(length as usize);
    let into = exchange.region(length as usize);
    let read = client.read(from, 0, into).await;
    read.map_err(|error| Stop::of_read(&error))
}

/// Forwards requests from a client on TCP to a server with RDMA.
async fn offload(
    exchange: &Exchange<'_>,
    client: &mut tcp::Source,
    server: &Connection,
) -> Result<Never, Stop> {
    let failed = |fault: tcp::Fault| Stop::of_tcp(Side::Client, &fault);
    let most = longest(server);
    loop {
        exchange.check_serving()?;
        let message = client.message(ServerChannel::REQUEST_HEAD).await;
        let Some(length) = message.map_err(failed)? else {
            return Err(Stop::Closed(Side::Client));
        };
        exchange.counters.note_request(client.head());
        let offload = exchange.server_channel().request(client.head(), length)?;
        match offload {
            Offload::Pass | Offload::Incomplete => {
                if length > most {
                    return Err(Stop::too_long(Side::Client, length, most as u32));
                }
                let taking = exchange.requests.take(length);
                let _grant = unless_gone(gone_silent(exchange, client), taking).await?;
                let message = whole(exchange, client).await.map_err(failed)?;
                if offload == Offload::Incomplete {
                    exchange.server_channel().request(&message, length)?;
                }
                exchange.counters.passed();
                send(exchange, server, message.into(), length).await?;
            }
            Offload::Read { length: to_read } => {
                if length > MAX_BUFFERED_READ_BYTES {
                    return Err(Stop::too_long(
                        Side::Client,
                        length,
                        MAX_BUFFERED_READ_BYTES as u32,
                    ));
                }
                let message = client.take(length).await.map_err(failed)?;
                let taking = exchange.requests.take(region_size(to_read as usize));
                let grant = unless_gone(gone_silent(exchange, client), taking).await?;
                let region = register_read(exchange, server, to_read, grant)?;
                send_with_region(exchange, server, &message, length, region).await?;
            }
            Offload::Write { data } => {
                let taking = exchange.requests.take(region_size(data.len()));
                let grant = unless_gone(gone_silent(exchange, client), taking).await?;
                let head = client.take(data.start).await.map_err(failed)?;
                let mut buffer = exchange.region(data.len());
                buffer.clear();
                client.fill(&mut buffer, data.len()).await.map_err(failed)?;
                client.skip(client.remaining()).await.map_err(failed)?;
                exchange.counters.written_by_rdma(data.len());
                let region = register(server, buffer, Access::REMOTE_READ, grant)?;
                send_with_region(exchange, server, &head, length, region).await?;
            }
        }
    }
}

/// Sends a message of `length` bytes, including the data that is fetched for it.
async fn send(
    exchange: &Exchange<'_>,
    server: &Connection,
    message: Message,
    length: usize,
) -> Result<(), Stop> {
    let sending = server
        .send(message)
        .map_err(|error| Stop::of_send(Side::Client, Side::Server, error))?;
    // Count before the wait: the server may receive the message, and end the session, before this
    // task continues.
    exchange.counters.to_server(length);
    let sent = sending.await;
    sent.map_err(|error| Stop::of(Side::Server, &error))
}

/// Registers memory for the server to write to.
fn register_read(
    exchange: &Exchange<'_>,
    server: &Connection,
    length: u32,
    grant: Grant,
) -> Result<Region, Stop> {
    let buffer = exchange.region(length as usize);
    register(server, buffer, Access::REMOTE_WRITE, grant)
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
    exchange: &Exchange<'_>,
    server: &Connection,
    head: &[u8],
    length: usize,
    region: Region,
) -> Result<(), Stop> {
    let request = exchange.expect_answer(head, length, region);
    send(exchange, server, request.into(), length).await
}
