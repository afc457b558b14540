//! The requests on one share: their limits, their sending, and how they move data.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use smb2::{
    Frame, Tree,
    client::connection,
    pack::Pack,
    types::{Command, CreditCharge, FileId, status::NtStatus},
};
use smbdirect::Connection;

use crate::{
    error::Error,
    transfer::{BYTES_PER_CREDIT, Channel, Reason, Transfer, message_bytes},
    transport::Transport,
};

/// Sends the requests of one share. Clones share the connection.
#[derive(Clone)]
pub(crate) struct Requests {
    inner: Arc<Inner>,
}

struct Inner {
    transport: Transport,
    smb: connection::Connection,
    tree: Tree,
    transfer: Transfer,
    /// The server has refused or ignored a channel.
    refused: AtomicBool,
    /// The session encrypts, perhaps since another share was connected.
    encrypts: Arc<AtomicBool>,
    /// Most bytes of a READ or WRITE by RDMA.
    rdma_bytes: usize,
    /// Most bytes of a READ or WRITE with the data in the message.
    message_bytes: usize,
}

impl Requests {
    pub(crate) fn new(
        transport: Transport,
        smb: connection::Connection,
        tree: Tree,
        transfer: Transfer,
        encrypts: Arc<AtomicBool>,
    ) -> Self {
        let params = smb.params().expect("NEGOTIATE succeeded");
        let server = params.max_read_size.min(params.max_write_size) as usize;
        let direct = transport.connection().negotiated();
        let fit = message_bytes(
            direct.max_fragmented_send_size,
            direct.max_fragmented_receive_size,
        );
        let inner = Inner {
            rdma_bytes: server.min(direct.max_read_write_size as usize).max(1),
            message_bytes: server.min(fit).max(1),
            transport,
            smb,
            tree,
            transfer,
            refused: AtomicBool::new(false),
            encrypts,
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Returns how files move their data.
    pub(crate) fn transfer(&self) -> Transfer {
        match self.inner.transfer {
            Transfer::Rdma(_) if self.inner.refused.load(Ordering::Relaxed) => {
                Transfer::Messages(Reason::Refused)
            }
            Transfer::Rdma(_) if self.inner.encrypts.load(Ordering::Relaxed) => {
                Transfer::Messages(Reason::Encryption)
            }
            transfer => transfer,
        }
    }

    /// Returns the most bytes that one request moves.
    pub(crate) fn max_bytes(&self) -> usize {
        match self.transfer() {
            Transfer::Rdma(_) => self.inner.rdma_bytes,
            Transfer::Messages(_) => self.inner.message_bytes,
        }
    }

    /// Returns the bytes of the next request, of `left` that are left, and its channel; `None` is for
    /// messages. Another task may find out at any time that the server does not take RDMA, so this reads
    /// that state once for both. With `is_refused` the server has refused the channel for this data.
    pub(crate) fn next(&self, left: usize, is_refused: bool) -> (usize, Option<Channel>) {
        let (most, channel) = match self.transfer() {
            Transfer::Rdma(channel) if !is_refused => (self.inner.rdma_bytes, Some(channel)),
            _ => (self.inner.message_bytes, None),
        };
        let bytes = left.min(most);
        (bytes, channel.filter(|_| bytes >= Transfer::MIN_RDMA_BYTES))
    }

    pub(crate) fn tree(&self) -> &Tree {
        &self.inner.tree
    }

    /// Returns a handle on the connection of the crate smb2.
    pub(crate) fn smb2(&self) -> connection::Connection {
        self.inner.smb.clone()
    }

    pub(crate) fn connection(&self) -> &Connection {
        self.inner.transport.connection()
    }

    /// Remembers that the server does not take RDMA.
    pub(crate) fn refuse_rdma(&self) {
        self.inner.refused.store(true, Ordering::Relaxed);
    }

    /// Sends a request that moves `bytes` of data, and returns the answer, whatever its status.
    pub(crate) async fn execute(
        &self,
        command: Command,
        body: &dyn Pack,
        bytes: usize,
    ) -> Result<Answer, Error> {
        let charge = bytes.div_ceil(BYTES_PER_CREDIT).max(1);
        let charge = CreditCharge(u16::try_from(charge).unwrap_or(u16::MAX));
        let tree = Some(self.inner.tree.tree_id);
        let frame = self
            .inner
            .smb
            .execute_with_credits(command, body, tree, charge);
        self.request(frame).await.map(Answer)
    }

    pub(crate) async fn close(&self, file_id: FileId) -> Result<(), Error> {
        let mut smb = self.smb2();
        self.request(self.inner.tree.close_handle(&mut smb, file_id))
            .await
    }

    /// Runs a request of the crate smb2, which ends when the connection ends.
    pub(crate) async fn request<T, E: Into<Error>>(
        &self,
        request: impl Future<Output = Result<T, E>>,
    ) -> Result<T, Error> {
        self.inner.transport.request(request).await
    }
}

/// An answer of the server.
pub(crate) struct Answer(Frame);

impl Answer {
    pub(crate) const fn status(&self) -> NtStatus {
        self.0.header.status
    }

    /// Returns the body of a successful answer.
    pub(crate) fn success(self, command: Command) -> Result<Vec<u8>, Error> {
        match self.status() {
            NtStatus::SUCCESS => Ok(self.0.body),
            status => Err(Error::Status { command, status }),
        }
    }
}
