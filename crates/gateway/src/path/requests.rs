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

use bytes::{Buf, Bytes, BytesMut};
use smbdirect::{Access, BufferDescriptorV1, Connection, Message};
use smbdirect_smb::{
    ServerChannel,
    client_channel::{Part, Request},
    server_channel::Offload,
};
use tokio::sync::mpsc;

use crate::{
    path::{
        buffers::{CHUNK, region_size},
        exchange::{Exchange, Region},
        incoming::{self, Incoming, failed, gone, unless_gone},
        memory::Grant,
        peer::{Sink, SmbDirectSource, Source},
        queue::{Piece, Queue},
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

/// The direction from the client to the server.
#[derive(Clone, Copy)]
pub(crate) struct Requests<'a>(pub(crate) &'a Exchange<'a>);

impl Requests<'_> {
    /// Forwards requests until one side ends. Every complete request that the client sent before its end is sent to the
    /// server.
    pub(crate) async fn forward(self, from: &mut Source, to: &mut Sink) -> Stop {
        let end = match (from, to) {
            (Source::SmbDirect(client), Sink::SmbDirect(server)) => {
                self.rdma_to_rdma(client, server).await
            }
            (Source::SmbDirect(client), Sink::Tcp(server)) => {
                return self.rdma_to_tcp(client, server).await;
            }
            (Source::Tcp(client), Sink::SmbDirect(server)) => {
                self.tcp_to_rdma(client, server).await
            }
            (Source::Tcp(client), Sink::Tcp(server)) => self.tcp_to_tcp(client, server).await,
        };
        let Err(stop) = end;
        stop
    }

    async fn rdma_to_rdma(
        self,
        client: &mut SmbDirectSource,
        server: &Connection,
    ) -> Result<Infallible, Stop> {
        loop {
            let request = self.receive(client).await?;
            let client = &client.connection;
            let request = self.0.client_channel().request(request)?;
            match request {
                Request::Pass(request) => {
                    self.0.traffic.passed();
                    let request = Incoming::whole(Side::Client, request, client);
                    self.offload(request, server).await?;
                }
                Request::Translated(parts) => self.fetch_and_send(client, parts, server).await?,
            }
        }
    }

    /// Fetches the data of WRITEs while requests before them are sent.
    async fn rdma_to_tcp(self, client: &mut SmbDirectSource, server: &mut tcp::Sink) -> Stop {
        let (pieces, waiting) = mpsc::channel(MAX_QUEUED_PIECES);
        let mut sending = pin!(self.send_pieces(waiting, server));
        let queue = Queue(pieces);
        let stop = tokio::select! {
            end = self.rdma_to_queue(client, &queue) => {
                let Err(stop) = end;
                stop
            }
            sent = &mut sending => return sent.err().unwrap_or(Stop::Here),
        };
        drop(queue);
        // The reason why receiving ended is more specific than the reason why sending fails.
        let _ = sending.await;
        stop
    }

    async fn rdma_to_queue(
        self,
        client: &mut SmbDirectSource,
        queue: &Queue,
    ) -> Result<Infallible, Stop> {
        loop {
            let request = self.receive(client).await?;
            let request = self.0.client_channel().request(request)?;
            match request {
                Request::Pass(request) => {
                    self.0.traffic.passed();
                    let length = request.len();
                    let grant = self.0.request_memory(length).await;
                    queue.put(Piece::Begin(length)).await;
                    queue.put(Piece::Bytes(request, Some(grant))).await;
                }
                Request::Translated(parts) => {
                    self.fetch_in_pieces(&client.connection, parts, queue).await;
                }
            }
        }
    }

    async fn tcp_to_rdma(
        self,
        client: &mut tcp::Source,
        server: &Connection,
    ) -> Result<Infallible, Stop> {
        loop {
            self.begin(client).await?;
            let request = Incoming::begun(Side::Client, client);
            self.offload(request, server).await?;
        }
    }

    async fn tcp_to_tcp(
        self,
        client: &mut tcp::Source,
        server: &mut tcp::Sink,
    ) -> Result<Infallible, Stop> {
        let (at_client, at_server) = (failed(Side::Client), failed(Side::Server));
        let Exchange {
            traffic, buffers, ..
        } = self.0;
        loop {
            self.begin(client).await?;
            traffic.passed();
            let length = client.remaining();
            traffic.forwarded(Direction::ToServer, length);
            let mut before = Bytes::copy_from_slice(&tcp::header(length).map_err(&at_server)?);
            while client.remaining() > 0 {
                let piece = client.piece(length, buffers).await.map_err(&at_client)?;
                let writing = server.write((&mut before).chain(piece.clone()));
                writing.await.map_err(&at_server)?;
                buffers.give_chunk(piece);
            }
        }
    }

    /// Receives the next request by SMB Direct.
    async fn receive(self, client: &mut SmbDirectSource) -> Result<Message, Stop> {
        self.0.check_serving()?;
        let gone = gone(&client.connection);
        unless_gone(gone, self.0.client_channel_room()).await?;
        let request = client.recv(Side::Client).await?;
        let head = incoming::head(&request, ServerChannel::REQUEST_HEAD);
        self.0.traffic.received(Direction::ToServer, &head, None);
        self.0.learn_client(&head);
        drop(head);
        Ok(request)
    }

    /// Receives the bytes of the next request by TCP that decide.
    async fn begin(self, client: &mut tcp::Source) -> Result<(), Stop> {
        self.0.check_serving()?;
        let length = client.message(ServerChannel::REQUEST_HEAD).await;
        let length = length.map_err(failed(Side::Client))?;
        length.ok_or(Stop::Closed(Side::Client))?;
        let (head, arrived) = (client.head(), Some(client.arrived()));
        self.0.traffic.received(Direction::ToServer, head, arrived);
        self.0.learn_client(head);
        Ok(())
    }

    /// Queues the parts of a request, and starts RDMA Reads of the data of WRITEs.
    async fn fetch_in_pieces(self, client: &Connection, parts: Vec<Part>, queue: &Queue) {
        let length = parts.iter().map(Part::len).sum();
        queue.put(Piece::Begin(length)).await;
        for part in parts {
            match part {
                Part::Bytes(bytes) => queue.put(Piece::Bytes(bytes.into(), None)).await,
                Part::Remote { from, length } => {
                    let length = length as usize;
                    self.0.traffic.written_by_rdma(length);
                    for offset in (0..length).step_by(FETCH_BYTES) {
                        let size = FETCH_BYTES.min(length - offset);
                        let grant = self.0.request_memory(region_size(size)).await;
                        let into = self.0.region(size);
                        let reading = client.read(&from, offset as u64, into);
                        queue.put(Piece::Fetched(reading, grant)).await;
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
        let failed = failed(Side::Server);
        // Small pieces are sent together with the next one.
        let mut small = VecDeque::new();
        let mut missing = 0;
        while let Some(piece) = pieces.recv().await {
            match piece {
                Piece::Begin(length) => {
                    missing = length;
                    let header = tcp::header(length).map_err(&failed)?;
                    small.push_back(Bytes::copy_from_slice(&header));
                    self.0.traffic.forwarded(Direction::ToServer, length);
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
                    let read = self.0.traffic.window(reading).await;
                    let buffer = read.map_err(|error| Stop::of_read(&error))?.freeze();
                    missing -= buffer.len();
                    let before: Message = small.drain(..).collect();
                    let whole = before.chain(buffer.clone());
                    server.write(whole).await.map_err(&failed)?;
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
        let message = Incoming::whole(Side::Client, whole.freeze().into(), client);
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
        read.map_err(|error| Stop::of_read(&error))
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
                    _grant = Some(message.memory_for_request(exchange, length).await?);
                    exchange.traffic.passed();
                }
                let message = message.rest(exchange).await?;
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
                let grant = message
                    .memory_for_request(exchange, region_size(to_read as usize))
                    .await?;
                let buffer = exchange.region(to_read as usize);
                let region = register(server, buffer, Access::REMOTE_WRITE, grant)?;
                self.send_with_region(server, &head, length, region).await
            }
            Offload::Write { data } => {
                let grant = message
                    .memory_for_request(exchange, region_size(data.len()))
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
        let sending = server.send(request);
        let sending = sending.map_err(|error| Stop::of_send(Side::Client, Side::Server, error))?;
        // Count before the wait: the server may answer before this task continues.
        self.0.traffic.forwarded(Direction::ToServer, length);
        let sent = sending.await;
        sent.map_err(|error| Stop::of(Side::Server, &error))
    }
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
