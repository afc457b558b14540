//! The requests on one share: their limits, their sending, and how they move data.

use std::{
    future::{Future, pending, poll_fn},
    panic::resume_unwind,
    pin::pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
};

use smb2::{
    CompoundOp, Frame, Tree,
    client::connection,
    pack::Pack,
    types::{Command, CreditCharge, status::NtStatus},
};
use smbdirect::Connection;
use smbdirect_smb::smb2::Channel;
use tokio::{sync::watch, time::sleep};

use crate::{
    credits::Turn,
    error::Error,
    transfer::{BYTES_PER_CREDIT, Reason, Transfer, message_bytes},
    transport::Transport,
};

/// Held by each handle of a program: the client, its shares and its files. The tasks of requests hold none.
pub(crate) type Handle = Arc<watch::Sender<()>>;

/// Sends the requests of one share. Clones share the connection.
#[derive(Clone)]
pub(crate) struct Requests {
    inner: Arc<Inner>,
    _handle: Option<Handle>,
    handles: Weak<watch::Sender<()>>,
    /// Closed when the last handle is dropped.
    are_handles_gone: watch::Receiver<()>,
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
    /// Maximum number of bytes of a READ or WRITE by RDMA.
    rdma_bytes: usize,
    /// Maximum number of bytes of a READ or WRITE with the data in the message.
    message_bytes: usize,
}

impl Requests {
    pub(crate) fn new(
        transport: Transport,
        smb: connection::Connection,
        tree: Tree,
        transfer: Transfer,
        encrypts: Arc<AtomicBool>,
        handle: Handle,
    ) -> Self {
        let params = smb.params().expect("NEGOTIATE succeeded");
        let server = params.max_read_size.min(params.max_write_size) as usize;
        let direct = transport.direct().map(Connection::negotiated);
        let fit = direct.map_or(usize::MAX, |direct| {
            let (send, receive) = (
                direct.max_fragmented_send_size,
                direct.max_fragmented_receive_size,
            );
            message_bytes(send, receive)
        });
        let rdma = direct.map_or(0, |direct| direct.max_read_write_size);
        let inner = Inner {
            rdma_bytes: server.min(rdma as usize).max(1),
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
            handles: Arc::downgrade(&handle),
            are_handles_gone: handle.subscribe(),
            _handle: Some(handle),
        }
    }

    /// Returns this without a handle, for a task.
    pub(crate) fn for_task(&self) -> Self {
        Self {
            _handle: None,
            ..self.clone()
        }
    }

    /// Returns this with a handle, for a file, unless all handles are dropped.
    pub(crate) fn for_file(&self) -> Self {
        Self {
            _handle: self.handles.upgrade(),
            ..self.clone()
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

    /// Waits for the credits of the next READ or WRITE, when `left` bytes are left to move. Returns the number of
    /// bytes, and the channel; `None` if the data moves in messages. Another task may learn at any time that the
    /// server does not accept RDMA, so this reads that state once for both. With `is_refused` the server has
    /// refused the channel for this data.
    pub(crate) async fn next(
        &self,
        left: usize,
        is_refused: bool,
    ) -> (Turn, usize, Option<Channel>) {
        let turn = self.turn(left.min(self.max_bytes())).await;
        let (most, channel) = match self.transfer() {
            Transfer::Rdma(channel) if !is_refused => (self.inner.rdma_bytes, Some(channel)),
            _ => (self.inner.message_bytes, None),
        };
        let bytes = left
            .min(most)
            .min(usize::from(turn.charge) * BYTES_PER_CREDIT);
        let channel = channel.filter(|_| bytes >= Transfer::MIN_RDMA_BYTES);
        (turn, bytes, channel)
    }

    /// Waits for the credits of a request that moves `bytes`, or for fewer if the server's window is small.
    pub(crate) async fn turn(&self, bytes: usize) -> Turn {
        let wanted = bytes.div_ceil(BYTES_PER_CREDIT).max(1);
        let wanted = u16::try_from(wanted).unwrap_or(u16::MAX);
        let credits = self.inner.transport.credits();
        credits.turn(&self.inner.smb, wanted).await
    }

    pub(crate) fn tree(&self) -> &Tree {
        &self.inner.tree
    }

    pub(crate) fn transport(&self) -> &Transport {
        &self.inner.transport
    }

    /// Returns a handle on the connection of the crate smb2.
    pub(crate) fn smb2(&self) -> connection::Connection {
        self.inner.smb.clone()
    }

    /// Returns the SMB Direct connection, if it is one.
    pub(crate) fn direct(&self) -> Option<&Connection> {
        self.inner.transport.direct()
    }

    /// Remembers that the server does not take RDMA.
    pub(crate) fn refuse_rdma(&self) {
        self.inner.refused.store(true, Ordering::Relaxed);
    }

    /// Sends a request with one credit, and returns the answer, whatever its status.
    ///
    /// # Cancel safety
    /// The server still processes a request that was sent, but its answer is lost.
    pub(crate) async fn execute(
        &self,
        command: Command,
        body: impl Pack + 'static,
    ) -> Result<Answer, Error> {
        let sending = async {
            let (requests, turn) = (self.for_task(), self.turn(1).await);
            detached(async move { requests.send(turn, command, &body).await }).await
        };
        self.within_limit(sending).await
    }

    /// Sends a request for which there are credits, and waits for its answer without a limit.
    pub(crate) async fn send(
        &self,
        turn: Turn,
        command: Command,
        body: &dyn Pack,
    ) -> Result<Answer, Error> {
        let operation = CompoundOp {
            credit_charge: CreditCharge(turn.charge),
            ..self.operation(command, body)
        };
        let mut answers = self.send_all(turn, &[operation]).await?;
        answers.pop().expect("one answer for each request")
    }

    /// Sends two requests on one file in one message, so that the end of the connection cannot part them. The
    /// second request fails if the first fails. The second answer is `None` if there was only one credit, and it
    /// was not sent.
    pub(crate) async fn send_both(
        &self,
        turn: Turn,
        first: (Command, &dyn Pack),
        second: (Command, &dyn Pack),
    ) -> Result<(Answer, Option<Answer>), Error> {
        let mut operations = vec![self.operation(first.0, first.1)];
        if turn.charge >= 2 {
            operations.push(self.operation(second.0, second.1));
        }
        let mut answers = self.send_all(turn, &operations).await?.into_iter();
        let first = answers.next().expect("one answer for each request")?;
        Ok((first, answers.next().transpose()?))
    }

    fn operation<'a>(&self, command: Command, body: &'a dyn Pack) -> CompoundOp<'a> {
        CompoundOp::new(command, body, Some(self.inner.tree.tree_id))
    }

    async fn send_all(
        &self,
        turn: Turn,
        operations: &[CompoundOp<'_>],
    ) -> Result<Vec<Result<Answer, Error>>, Error> {
        let Inner { transport, smb, .. } = &*self.inner;
        let mut sending = pin!(transport.until_end(smb.execute_compound(operations)));
        // The first poll takes the credits.
        let first = poll_fn(|context| Poll::Ready(sending.as_mut().poll(context))).await;
        drop(turn.taking);
        let answers = match first {
            Poll::Ready(answers) => answers,
            Poll::Pending => tokio::select! {
                biased;
                answers = &mut sending => answers,
                () = self.abandoned() => match transport.direct() {
                    Some(connection) => {
                        connection.abort();
                        sending.await
                    }
                    // The server has no memory of this process.
                    None => return Err(Error::NoAnswer(transport.limit())),
                },
            },
        };
        turn.in_flight.answered();
        let explained = |answer: Result<Frame, smb2::Error>| {
            let answer = answer.map_err(|error| transport.explain(error));
            answer.map(Answer)
        };
        Ok(answers?.into_iter().map(explained).collect())
    }

    /// Returns when all handles have been dropped for as long as a request may take. A server that still has not
    /// answered would keep the connection for ever.
    async fn abandoned(&self) {
        let mut are_gone = self.are_handles_gone.clone();
        while are_gone.changed().await.is_ok() {}
        sleep(self.inner.transport.limit()).await;
    }

    /// Drops `work` if the server does not answer for longer than the limit.
    pub(crate) async fn within_limit<T>(
        &self,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        self.inner.transport.within_limit(work).await
    }
}

/// Runs `work` to its end in a task of its own, also if the caller drops the future.
pub(crate) async fn detached<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> T {
    match tokio::spawn(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => resume_unwind(panic),
            // The runtime ends, and drops the caller too.
            Err(_) => pending().await,
        },
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

    /// Returns the body of a successful answer, and whether STATUS_BUFFER_OVERFLOW says that it has only a part of a
    /// message of a pipe.
    pub(crate) fn success_or_part(self, command: Command) -> Result<(Vec<u8>, bool), Error> {
        match self.status() {
            NtStatus::BUFFER_OVERFLOW => Ok((self.0.body, true)),
            _ => Ok((self.success(command)?, false)),
        }
    }
}
