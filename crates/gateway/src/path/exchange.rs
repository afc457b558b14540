//! The state that both directions of a session share: unanswered requests, and the memory that they
//! hold.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Instant,
};

use bytes::{Buf, Bytes, BytesMut};
use smbdirect::{Connection, MemoryRegion, Message, Token};
use smbdirect_smb::{
    ClientChannel, ServerChannel,
    smb2::{Command, Header, Protocol},
};
use tokio::sync::Notify;

use crate::{
    admission::clients::ClientKey,
    figures::counters::SessionTraffic,
    path::{
        buffers::Buffers,
        incoming::{Incoming, gone, head, unless_gone},
        memory::{Grant, Share},
        peer::{SmbDirectSource, Source},
        tcp,
    },
    phase::{Phase, Phases},
    servers::Seat,
    stop::{Direction, Side, Stop},
};

/// One session's state that requests and answers share.
#[derive(Debug)]
pub(crate) struct Exchange<'a> {
    pub(crate) id: u64,
    client_channel: Mutex<ClientChannel>,
    /// Notified when a request with a channel has been answered.
    answered: Notify,
    server_channel: Mutex<ServerChannel>,
    /// Memory that the server may access, by the MessageId of its request.
    regions: Mutex<HashMap<u64, Region>>,
    requests: Share,
    answers: Share,
    pub(crate) buffers: Arc<Buffers>,
    pub(crate) traffic: SessionTraffic<'a>,
    phases: Phases,
    /// The server, and the place of the client there.
    pub(crate) seat: &'a Seat,
    /// Whether the ClientGuid of the client may follow.
    is_unknown: AtomicBool,
}

/// Memory that the server may access.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) region: MemoryRegion,
    pub(crate) grant: Grant,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Exchange<'a> {
    pub(crate) fn new(
        id: u64,
        server_channel: ServerChannel,
        [requests, answers]: [Share; 2],
        buffers: Arc<Buffers>,
        traffic: SessionTraffic<'a>,
        phases: Phases,
        (seat, is_unknown): (&'a Seat, bool),
    ) -> Self {
        Self {
            id,
            client_channel: Mutex::new(ClientChannel::new()),
            answered: Notify::new(),
            server_channel: Mutex::new(server_channel),
            regions: Mutex::new(HashMap::new()),
            requests,
            answers,
            buffers,
            traffic,
            phases,
            seat,
            is_unknown: AtomicBool::new(is_unknown),
        }
    }

    /// Receives the next message of a direction: all of it by SMB Direct, and by TCP the first bytes, which decide.
    pub(crate) async fn receive<'s>(
        &self,
        direction: Direction,
        from: &'s mut Source,
    ) -> Result<Incoming<'s>, Stop> {
        Ok(match from {
            Source::SmbDirect(peer) => {
                let message = self.receive_whole(direction, peer).await?;
                Incoming::Whole(message, &peer.connection)
            }
            Source::Tcp(peer) => {
                self.check_serving(direction)?;
                peer.message(Self::head_length(direction)).await?;
                self.note(direction, peer.head(), Some(peer.arrived()));
                Incoming::Begun(peer)
            }
        })
    }

    /// Receives the next message of a direction by SMB Direct.
    pub(crate) async fn receive_whole(
        &self,
        direction: Direction,
        from: &mut SmbDirectSource,
    ) -> Result<Message, Stop> {
        self.check_serving(direction)?;
        if direction == Direction::ToServer {
            unless_gone(gone(&from.connection), self.client_channel_room()).await?;
        }
        let message = from.recv().await?;
        let head = head(&message, Self::head_length(direction));
        self.note(direction, &head, None);
        drop(head);
        Ok(message)
    }

    pub(crate) const fn head_length(direction: Direction) -> usize {
        match direction {
            Direction::ToServer => ServerChannel::REQUEST_HEAD,
            Direction::ToClient => ClientChannel::ANSWER_HEAD,
        }
    }

    /// Takes note of a message that has arrived, by its first bytes.
    fn note(&self, direction: Direction, head: &[u8], arrived: Option<Instant>) {
        self.traffic.received(direction, head, arrived);
        match direction {
            Direction::ToServer => self.learn_client(head),
            Direction::ToClient => self.seat.server.has_answered(),
        }
    }

    /// Takes note that the answer that was received last was forwarded.
    pub(crate) fn delivered(&self) {
        self.traffic.delivered();
        self.answered.notify_one();
    }

    /// Sends a message by SMB Direct. `length` is its length together with the data that moves by RDMA for it.
    pub(crate) async fn send(
        &self,
        direction: Direction,
        to: &Connection,
        message: Message,
        invalidate: Option<Token>,
        length: usize,
    ) -> Result<(), Stop> {
        let (from_side, to_side) = direction.ends();
        let sending = match invalidate {
            Some(token) => to.send_and_invalidate(message, token),
            None => to.send(message),
        };
        let sending = sending.map_err(|error| Stop::of_send(from_side, to_side, error))?;
        // Count before the wait: the peer may receive the message, and answer or end the session, before this task
        // continues.
        self.traffic.forwarded(direction, length);
        let sent = self.traffic.sent(direction, sending).await;
        sent.map_err(|error| Stop::of(to_side, &error))
    }

    /// Sends a message unchanged by TCP, as it arrives.
    pub(crate) async fn pass_to_tcp(
        &self,
        direction: Direction,
        message: Incoming<'_>,
        to: &mut tcp::Sink,
    ) -> Result<(), Stop> {
        let length = message.remaining();
        self.traffic.forwarded(direction, length);
        let mut message = match message.into_whole() {
            Ok(whole) => return self.traffic.sent(direction, to.put(whole)).await,
            Err(begun) => begun,
        };
        let mut before = to.header(length)?;
        while message.remaining() > 0 {
            let piece = message.piece(length, &self.buffers).await?;
            let writing = to.write((&mut before).chain(piece.clone()));
            self.traffic.sent(direction, writing).await?;
            self.buffers.give_chunk(piece);
        }
        Ok(())
    }

    /// Looks for the ClientGuid in a request of a client that has begun with SMB1, so that its other connections go to
    /// the same server.
    fn learn_client(&self, head: &[u8]) {
        if !self.is_unknown.load(Relaxed) || matches!(Protocol::of(head), Protocol::Smb1) {
            return;
        }
        if let Some(key) = ClientKey::of_first_message(head) {
            self.seat.add_key(key);
        }
        self.is_unknown.store(false, Relaxed);
    }

    /// Checks that another message of this direction may be taken.
    fn check_serving(&self, direction: Direction) -> Result<(), Stop> {
        if direction == Direction::ToServer && self.phases.has_reached(Phase::Draining) {
            return Err(Stop::Here);
        }
        Ok(())
    }

    /// Locks the translator of a client with RDMA. Do not hold the guard across an await.
    pub(crate) fn client_channel(&self) -> MutexGuard<'_, ClientChannel> {
        lock(&self.client_channel)
    }

    /// Locks the translator of a server with RDMA. Do not hold the guard across an await.
    pub(crate) fn server_channel(&self) -> MutexGuard<'_, ServerChannel> {
        lock(&self.server_channel)
    }

    /// Takes the rest of a message in one piece.
    pub(crate) async fn rest(&self, message: &mut Incoming<'_>) -> Result<Bytes, Stop> {
        let length = message.remaining();
        if message.is_arriving() && message.head(length).len() < length {
            let mut whole = self.region(length);
            whole.clear();
            message.fill(&mut whole, length).await?;
            return Ok(whole.freeze());
        }
        message.take(length).await
    }

    /// Waits for memory for a request, which only answers to earlier requests free. The server may never answer, so
    /// the wait also ends when the client is gone.
    pub(crate) async fn memory_for(
        &self,
        request: &Incoming<'_>,
        bytes: usize,
    ) -> Result<Grant, Stop> {
        let gone = async {
            match request {
                Incoming::Whole(_, client) => gone(client).await,
                // A client on TCP can wait for answers after it has finished sending.
                Incoming::Begun(client) => {
                    client.hang_up().wait().await;
                    self.traffic.session.silence().await;
                    Stop::Closed(Side::Client)
                }
            }
        };
        unless_gone(gone, self.request_memory(bytes)).await
    }

    /// Waits for memory for a request.
    pub(crate) async fn request_memory(&self, bytes: usize) -> Grant {
        self.traffic.memory(self.requests.take(bytes)).await
    }

    /// Waits for memory of an answer of which `bytes` are in memory at once, if it is still arriving.
    pub(crate) async fn answer_memory(&self, answer: &Incoming<'_>, bytes: usize) -> Option<Grant> {
        match answer {
            // It is memory of the connection to the server.
            Incoming::Whole(..) => None,
            Incoming::Begun(_) => Some(self.traffic.memory(self.answers.take(bytes)).await),
        }
    }

    /// Returns a buffer of `length` bytes that contains no data of another session.
    pub(crate) fn region(&self, length: usize) -> BytesMut {
        self.buffers.region(self.id, length)
    }

    /// Waits until another request with a channel can be recorded.
    async fn client_channel_room(&self) {
        loop {
            // Created before the check, so that an answer in between is not missed.
            let answered = self.answered.notified();
            if self.client_channel().has_room() {
                return;
            }
            answered.await;
        }
    }

    /// Records the memory for a request, and returns the request with a channel to that memory. `head`
    /// is the beginning of the request, and `length` is its total length.
    pub(crate) fn expect_answer(&self, head: &[u8], length: usize, region: Region) -> Bytes {
        let descriptors = [region.region.descriptor()];
        let header = Header::decode(head).expect("the request was looked at before");
        let mut channel = self.server_channel();
        let request = if header.command == Command::READ {
            channel.read_request(head, &descriptors)
        } else {
            channel.write_request(head, length, &descriptors)
        };
        drop(channel);
        lock(&self.regions).insert(header.message_id, region);
        request
    }

    /// Deregisters the memory of a request, which ends the server's access, and returns the memory.
    pub(crate) async fn take_region(&self, message_id: u64) -> Result<(BytesMut, Grant), Stop> {
        let region = lock(&self.regions).remove(&message_id);
        let Region { region, grant } =
            region.expect("a request with RDMA keeps its memory until it is answered");
        let buffer = region.deregister().await;
        let buffer = buffer.map_err(|error| Stop::Failed(Side::Server, error.to_string()))?;
        Ok((buffer, grant))
    }

    /// Deregisters the memory of a request whose content is no longer needed.
    pub(crate) async fn end_region(&self, message_id: u64) -> Result<(), Stop> {
        let (buffer, _grant) = self.take_region(message_id).await?;
        self.buffers.give_region(self.id, buffer);
        Ok(())
    }
}
