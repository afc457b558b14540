//! The state that both directions of a session share: unanswered requests, and the memory that they
//! hold.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use bytes::{Bytes, BytesMut};
use smbdirect::MemoryRegion;
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
        memory::{Grant, Share},
    },
    phase::{Phase, Phases},
    servers::Seat,
    stop::{Side, Stop},
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

    /// Looks for the ClientGuid in a request of a client that has begun with SMB1, so that its other connections go to
    /// the same server.
    pub(crate) fn learn_client(&self, head: &[u8]) {
        if !self.is_unknown.load(Relaxed) || matches!(Protocol::of(head), Protocol::Smb1) {
            return;
        }
        if let Some(key) = ClientKey::of_first_message(head) {
            self.seat.add_key(key);
        }
        self.is_unknown.store(false, Relaxed);
    }

    /// Checks that another request may be taken from the client.
    pub(crate) fn check_serving(&self) -> Result<(), Stop> {
        if self.phases.has_reached(Phase::Draining) {
            Err(Stop::Here)
        } else {
            Ok(())
        }
    }

    /// Locks the translator of a client with RDMA. Do not hold the guard across an await.
    pub(crate) fn client_channel(&self) -> MutexGuard<'_, ClientChannel> {
        lock(&self.client_channel)
    }

    /// Locks the translator of a server with RDMA. Do not hold the guard across an await.
    pub(crate) fn server_channel(&self) -> MutexGuard<'_, ServerChannel> {
        lock(&self.server_channel)
    }

    /// Waits for memory for a request.
    pub(crate) async fn request_memory(&self, bytes: usize) -> Grant {
        self.traffic.memory(self.requests.take(bytes)).await
    }

    /// Waits for memory for an answer.
    pub(crate) async fn answer_memory(&self, bytes: usize) -> Grant {
        self.traffic.memory(self.answers.take(bytes)).await
    }

    /// Takes memory for an answer if it is free.
    pub(crate) fn try_answer_memory(&self, bytes: usize) -> Option<Grant> {
        self.answers.try_take(bytes)
    }

    /// Returns a buffer of `length` bytes that contains no data of another session.
    pub(crate) fn region(&self, length: usize) -> BytesMut {
        self.buffers.region(self.id, length)
    }

    /// Waits until another request with a channel can be recorded.
    pub(crate) async fn client_channel_room(&self) {
        loop {
            // Created before the check, so that an answer in between is not missed.
            let answered = self.answered.notified();
            if self.client_channel().has_room() {
                return;
            }
            answered.await;
        }
    }

    /// Wakes the task that waits for room after an answer.
    pub(crate) fn answered(&self) {
        self.answered.notify_one();
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
