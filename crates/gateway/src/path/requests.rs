//! The requests of a session: translates each to the server, and moves the data of WRITEs by RDMA.
//!
//! ```text
//!   client on SMB Direct ── ClientChannel ──┬── in pieces, fetched ahead ─── server on TCP
//!                                           └── ServerChannel ────────────── server on SMB Direct
//!   client on TCP ──────────────────────────┬── ServerChannel ────────────── server on SMB Direct
//!                                           └── in pieces ────────────────── server on TCP
//! ```
//!
//! Buffered messages, memory that data is read into, and registered memory count towards the memory for requests or
//! for answers. When it is used up, the gateway receives no further message from that side.

use std::{collections::VecDeque, convert::Infallible, pin::pin};

use bytes::{Buf, BytesMut};
use smbdirect::{Access, BufferDescriptorV1, Connection, Message, Reading};
use smbdirect_smb::{
    client_channel::{Part, Request},
    server_channel::Offload,
};
use tokio::sync::mpsc;

use crate::{
    path::{
        buffers::{CHUNK, region_size},
        exchange::{Exchange, Region},
        incoming::{Incoming, gone, unless_gone},
        memory::Grant,
        peer::{Sink, SmbDirectSource, Source},
        tcp,
    },
    stop::{Direction, Side, Stop},
};

/// Bytes of one RDMA Read from the memory of the client.
const FETCH_BYTES: usize = 2 * CHUNK;
/// Bytes of the largest piece that is sent together with the next one, so that the head of a request
/// leaves with its data.
const MAX_GATHERED_BYTES: usize = 4 << 10;
/// Maximum length in bytes of a READ request that is sent with a channel, because it is buffered whole.
const MAX_BUFFERED_READ_BYTES: u32 = u16::MAX as u32;
/// Maximum number of pieces queued for a TCP server. Their memory is limited separately.
const MAX_QUEUED_PIECES: usize = 64;

/// A piece of the stream to a server on TCP. The data of a piece is fetched while pieces before it are sent.
enum Piece {
    /// A message of this many bytes begins.
    Begin(usize),
    /// Bytes of the message, with the memory that they hold.
    Bytes(Message, Option<Grant>),
    /// Bytes that an RDMA Read fetches from the memory of the client.
    Fetched(Reading, Grant),
}

/// The pieces that wait to be sent. Their receiver lives as long as the task that adds them.
type Queue = mpsc::Sender<Piece>;

/// The direction from the client to the server.
#[derive(Clone, Copy)]
pub(crate) struct Requests<'a>(pub(crate) &'a Exchange<'a>);

impl Requests<'_> {
    /// Forwards requests until one side ends. Every complete request that the client sent before its end is sent to the
    /// server.
    pub(crate) async fn forward(self, from: &mut Source, to: &mut Sink) -> Stop {
        let end = match to {
            Sink::SmbDirect(server) => self.to_smb_direct(from, server).await,
            Sink::Tcp(server) => self.to_tcp(from, server).await,
        };
        let Err(stop) = end;
        stop
    }

    async fn to_smb_direct(
        self,
        from: &mut Source,
        server: &Connection,
    ) -> Result<Infallible, Stop> {
        loop {
            let request = self.0.receive(Direction::ToServer, from).await?;
            let request = match request {
                Incoming::Whole(request, client) => {
                    let request = self.0.client_channel().request(request)?;
                    match request {
                        Request::Pass(request) => {
                            self.0.traffic.passed();
                            Incoming::Whole(request, client)
                        }
                        Request::Translated(parts) => {
                            self.fetch_and_send(client, parts, server).await?;
                            continue;
                        }
                    }
                }
                begun @ Incoming::Begun(_) => begun,
            };
            self.offload(request, server).await?;
        }
    }

    async fn to_tcp(self, from: &mut Source, server: &mut tcp::Sink) -> Result<Infallible, Stop> {
        let client = match from {
            Source::SmbDirect(client) => client,
            Source::Tcp(_) => loop {
                let request = self.0.receive(Direction::ToServer, from).await?;
                self.0.traffic.passed();
                let passing = self.0.pass_to_tcp(Direction::ToServer, request, server);
                passing.await?;
            },
        };
        // The data of WRITEs is fetched while requests before them are sent.
        let (queue, waiting) = mpsc::channel(MAX_QUEUED_PIECES);
        let mut sending = pin!(self.send_pieces(waiting, server));
        let stop = tokio::select! {
            end = self.to_queue(client, queue) => end,
            sent = &mut sending => return Err(sent.err().unwrap_or(Stop::Here)),
        };
        // The reason why receiving ended is more specific than the reason why sending fails.
        let _ = sending.await;
        stop
    }

    async fn to_queue(
        self,
        client: &mut SmbDirectSource,
        queue: Queue,
    ) -> Result<Infallible, Stop> {
        loop {
            let request = self.0.receive_whole(Direction::ToServer, client).await?;
            let request = self.0.client_channel().request(request)?;
            match request {
                Request::Pass(request) => {
                    self.0.traffic.passed();
                    let length = request.len();
                    let grant = self.0.request_memory(length).await;
                    put(&queue, Piece::Begin(length)).await;
                    put(&queue, Piece::Bytes(request, Some(grant))).await;
                }
                Request::Translated(parts) => {
                    self.fetch_in_pieces(&client.connection, parts, &queue)
                        .await;
                }
            }
        }
    }

    /// Queues the parts of a request, and starts RDMA Reads of the data of WRITEs.
    async fn fetch_in_pieces(self, client: &Connection, parts: Vec<Part>, queue: &Queue) {
        let length = parts.iter().map(Part::len).sum();
        put(queue, Piece::Begin(length)).await;
        for part in parts {
            match part {
                Part::Bytes(bytes) => put(queue, Piece::Bytes(bytes.into(), None)).await,
                Part::Remote { from, length } => {
                    let length = length as usize;
                    self.0.traffic.written_by_rdma(length);
                    for offset in (0..length).step_by(FETCH_BYTES) {
                        let size = FETCH_BYTES.min(length - offset);
                        let grant = self.0.request_memory(region_size(size)).await;
                        let into = self.0.region(size);
                        let reading = client.read(&from, offset as u64, into);
                        put(queue, Piece::Fetched(reading, grant)).await;
                    }
                }
            }
        }
    }

    /// Sends pieces in order. If the data of a message cannot be read, the message stays incomplete and the
    /// server ignores it.
    async fn send_pieces(
        self,
        mut pieces: mpsc::Receiver<Piece>,
        server: &mut tcp::Sink,
    ) -> Result<(), Stop> {
        // Small pieces are sent together with the next one.
        let mut small = VecDeque::new();
        let mut missing = 0;
        while let Some(piece) = pieces.recv().await {
            match piece {
                Piece::Begin(length) => {
                    missing = length;
                    small.push_back(server.header(length)?);
                    self.0.traffic.forwarded(Direction::ToServer, length);
                }
                Piece::Bytes(message, grant) => {
                    missing -= message.len();
                    let is_small = message.len() <= MAX_GATHERED_BYTES && grant.is_none();
                    if is_small && missing > 0 {
                        small.push_back(message.into_bytes());
                    } else {
                        let before: Message = small.drain(..).collect();
                        server.write(before.chain(message)).await?;
                    }
                }
                Piece::Fetched(reading, _grant) => {
                    let read = self.0.traffic.window(reading).await;
                    let buffer = read
                        .map_err(|error| Stop::of_transfer(&error.fault))?
                        .freeze();
                    missing -= buffer.len();
                    let before: Message = small.drain(..).collect();
                    let whole = before.chain(buffer.clone());
                    server.write(whole).await?;
                    self.0.buffers.give_shared_region(self.0.id, buffer);
                }
            }
        }
        Ok(())
    }

    /// Fetches the data of a request into memory, and forwards the request with it to a server with RDMA.
    async fn fetch_and_send(
        self,
        client: &Connection,
        parts: Vec<Part>,
        server: &Connection,
    ) -> Result<(), Stop> {
        let exchange = self.0;
        let memory = |bytes| unless_gone(gone(client), exchange.request_memory(bytes));
        if let [Part::Bytes(head), Part::Remote { from, length }] = &*parts {
            let whole = head.len() + *length as usize;
            let offload = exchange.server_channel().request(head, whole)?;
            if let Offload::Write { .. } = offload {
                // The server reads from the memory that the data is fetched into.
                let grant = memory(region_size(*length as usize)).await?;
                let buffer = self.fetch_whole(client, from, *length).await?;
                let region = register(server, buffer, Access::REMOTE_READ, grant)?;
                return self.send_with_region(server, head, whole, region).await;
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
                    let data = self.fetch_whole(client, &from, length).await?;
                    whole.extend_from_slice(&data);
                    exchange.buffers.give_region(exchange.id, data);
                }
            }
        }
        let message = Incoming::Whole(whole.freeze().into(), client);
        self.offload(message, server).await
    }

    /// Reads the first `length` bytes of the memory of a client into one buffer.
    async fn fetch_whole(
        self,
        client: &Connection,
        from: &[BufferDescriptorV1],
        length: u32,
    ) -> Result<BytesMut, Stop> {
        self.0.traffic.written_by_rdma(length as usize);
        let into = self.0.region(length as usize);
        let read = self.0.traffic.window(client.read(from, 0, into)).await;
        read.map_err(|error| Stop::of_transfer(&error.fault))
    }

    /// Forwards a request to a server with RDMA: a READ or WRITE with a channel to memory of the gateway, if that is
    /// worth it.
    async fn offload(self, mut message: Incoming<'_>, server: &Connection) -> Result<(), Stop> {
        let exchange = self.0;
        message.join();
        let length = message.remaining();
        let offload = exchange
            .server_channel()
            .request(&message.head(length), length)?;
        match offload {
            Offload::Pass | Offload::Incomplete => {
                check_length(length, server)?;
                let mut _grant = None;
                if message.is_arriving() {
                    _grant = Some(exchange.memory_for(&message, length).await?);
                    exchange.traffic.passed();
                }
                let message = exchange.rest(&mut message).await?;
                if offload == Offload::Incomplete {
                    exchange.server_channel().request(&message, length)?;
                }
                self.send(server, message.into(), length).await
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
                let grant = exchange
                    .memory_for(&message, region_size(to_read as usize))
                    .await?;
                let buffer = exchange.region(to_read as usize);
                let region = register(server, buffer, Access::REMOTE_WRITE, grant)?;
                self.send_with_region(server, &head, length, region).await
            }
            Offload::Write { data } => {
                let grant = exchange
                    .memory_for(&message, region_size(data.len()))
                    .await?;
                let head = message.take(data.start).await?;
                let mut buffer = exchange.region(data.len());
                buffer.clear();
                message.fill(&mut buffer, data.len()).await?;
                message.skip(message.remaining()).await?;
                exchange.traffic.written_by_rdma(data.len());
                let region = register(server, buffer, Access::REMOTE_READ, grant)?;
                self.send_with_region(server, &head, length, region).await
            }
        }
    }

    /// Sends a request with the channel to memory that was registered for it. `length` is the length of
    /// the request with its data.
    async fn send_with_region(
        self,
        server: &Connection,
        head: &[u8],
        length: usize,
        region: Region,
    ) -> Result<(), Stop> {
        let request = self.0.expect_answer(head, length, region);
        self.send(server, request.into(), length).await
    }

    /// Sends a request to a server on SMB Direct. `length` is its length together with the data that moves by RDMA for it.
    async fn send(self, server: &Connection, request: Message, length: usize) -> Result<(), Stop> {
        let sending = self
            .0
            .send(Direction::ToServer, server, request, None, length);
        sending.await
    }
}

/// Adds a piece, after waiting for room.
async fn put(queue: &Queue, piece: Piece) {
    // The result is ignored: the receiver of the queue lives as long as this task.
    let _ = queue.send(piece).await;
}

/// Returns the number of bytes of memory that a part needs for its fetched data.
fn fetched_size(part: &Part) -> usize {
    match part {
        Part::Bytes(_) => 0,
        Part::Remote { length, .. } => region_size(*length as usize),
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

/// Checks that a server on SMB Direct takes a request of `length` bytes.
fn check_length(length: usize, server: &Connection) -> Result<(), Stop> {
    let most = server.negotiated().max_fragmented_send_size;
    if length > most as usize {
        return Err(Stop::too_long(Side::Client, length, most));
    }
    Ok(())
}
