//! The receiving side of files. Read [`receive_files`] first, then [`Receiver::step`].

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use sha2::{Digest as _, Sha256};
use smbdirect::{
    Access, BufferDescriptorV1, Connection, ConnectionError, MemoryRegion, Message, ReadError,
    Reading, rdma::work::Token,
};
use tokio::{
    sync::mpsc,
    task::{JoinHandle, spawn_blocking},
    time::timeout,
};
use tracing::Span;

use crate::{report::plain, transport::connection_span};

use super::{
    Checksum, MAX_PIECE, MAX_STALE, Method, TransferError, WINDOW, broken,
    frame::Frame,
    sending::{front, next_frame},
    store::{Store, Target, check_name},
};

/// A file that was offered, and the result.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) name: String,
    pub(crate) length: u64,
    /// Bytes received and written, whether the file was stored or not.
    pub(crate) moved: u64,
    pub(crate) method: Method,
    pub(crate) took: Duration,
    /// The reason why it was not stored.
    pub(crate) result: Result<Checksum, String>,
}

/// Stores the files that the peer offers, one after the other, until it closes the connection.
/// Calls `report` for each.
///
/// # Errors
/// The connection cannot continue, or did not end gracefully.
pub(crate) async fn receive_files(
    connection: &Connection,
    store: Arc<dyn Store>,
    inactivity_limit: Duration,
    mut report: impl FnMut(Received),
) -> Result<(), TransferError> {
    let mut is_first = true;
    loop {
        let (length, method, name) = match next_frame(connection, inactivity_limit).await {
            Ok((
                Frame::Offer {
                    length,
                    method,
                    name,
                },
                _,
            )) => (length, method, name),
            Ok((frame, _)) => return broken(format!("{} without an OFFER", frame.kind())),
            Err(TransferError::Connection(
                ConnectionError::Closed | ConnectionError::ClosedHere,
            )) => return Ok(()),
            Err(TransferError::Protocol(_)) if is_first => {
                return broken("this is not an offer of a file; is the peer `ping --echo`?");
            }
            Err(error) => return Err(error),
        };
        is_first = false;
        let started = Instant::now();
        let mut receiver = Receiver {
            connection,
            inactivity_limit,
            method,
            length,
            offset: 0,
            stored: 0,
            waiting: VecDeque::new(),
            reads: VecDeque::new(),
            memory: VecDeque::new(),
            writer: Writer::spawn(store.clone(), name.clone(), connection_span(connection)),
            finishing: false,
        };
        let result = receiver.receive().await;
        let (writer, moved) = (receiver.writer, receiver.stored);
        // The file is reported only after it has got its name or was removed.
        writer.end().await;
        let name = name.chars().take(MAX_REPORTED_NAME_BYTES).collect();
        let received = |result| Received {
            name,
            length,
            moved,
            method,
            took: started.elapsed(),
            result,
        };
        match result {
            Ok(checksum) => report(received(Ok(checksum))),
            Err(Failure { reason, ends }) => {
                report(received(Err(reason)));
                if let Some(error) = ends {
                    return Err(error);
                }
            }
        }
    }
}

/// The reason why a file was not stored, and why the connection cannot continue if it cannot.
struct Failure {
    reason: String,
    ends: Option<TransferError>,
}

/// Maximum number of bytes of a refused name that are reported.
const MAX_REPORTED_NAME_BYTES: usize = 255;

struct Receiver<'a> {
    connection: &'a Connection,
    inactivity_limit: Duration,
    method: Method,
    length: u64,
    /// The offset of the next piece from the peer, or of the next piece that it gets memory for.
    offset: u64,
    /// The results of the writer.
    stored: u64,
    /// Pieces that are not stored yet.
    waiting: VecDeque<Waiting>,
    /// RDMA Reads in flight, for the oldest pieces in `waiting` that were not passed to the writer.
    reads: VecDeque<Reading>,
    /// Memory that the peer may write to, with the end of its piece.
    memory: VecDeque<(u64, MemoryRegion)>,
    writer: Writer,
    /// FINISH was received.
    finishing: bool,
}

struct Waiting {
    end: u64,
    /// The memory of the peer, which is invalidated when the piece is stored.
    token: Option<Token>,
}

enum Step {
    Message(Message),
    Read(Result<BytesMut, ReadError>),
    Written(WriterEvent),
}

impl Receiver<'_> {
    async fn receive(&mut self) -> Result<Checksum, Failure> {
        loop {
            let error = match self.step().await {
                Ok(None) => continue,
                Ok(Some(checksum)) => return Ok(checksum),
                Err(error) => error,
            };
            let reason = error.to_string();
            let ends = match error {
                TransferError::Peer(_) => None,
                TransferError::Here(reason) => self.give_up(reason).await.err(),
                error => Some(error),
            };
            return Err(Failure { reason, ends });
        }
    }

    async fn step(&mut self) -> Result<Option<Checksum>, TransferError> {
        match self.next_step().await? {
            Step::Message(message) => self.take_message(message).await?,
            Step::Read(Ok(buffer)) => self.writer.write(buffer.freeze()),
            Step::Read(Err(error)) => return Err(error.fault.into()),
            Step::Written(WriterEvent::Created) => {
                self.say(Frame::Accept)?;
                self.give_memory()?;
            }
            Step::Written(WriterEvent::Written(bytes)) => self.stored(bytes as u64)?,
            Step::Written(WriterEvent::Published(checksum)) => {
                self.say(Frame::Stored)?;
                return Ok(Some(checksum));
            }
            Step::Written(WriterEvent::Failed(reason)) => return Err(TransferError::Here(reason)),
        }
        Ok(None)
    }

    async fn next_step(&mut self) -> Result<Step, TransferError> {
        let connection = self.connection;
        let step = async {
            Ok(tokio::select! {
                biased;
                Some(event) = self.writer.events.recv() => Step::Written(event),
                read = front(&mut self.reads) => Step::Read(read),
                message = connection.recv() => Step::Message(message?),
            })
        };
        timeout(self.inactivity_limit, step)
            .await
            .map_err(|_| TransferError::Inactive(self.inactivity_limit))?
    }

    async fn take_message(&mut self, message: Message) -> Result<(), TransferError> {
        let invalidated = message.invalidated_token();
        let frame = Frame::decode(message.into_bytes())?;
        match (frame, self.method) {
            (Frame::Cancel(reason), _) => {
                // The peer is informed, as for every other reason to give up.
                self.finish_reads().await;
                self.say(Frame::Failed(String::new()))?;
                let reason = if reason.is_empty() {
                    "no reason given".into()
                } else {
                    reason
                };
                Err(TransferError::Peer(format!("the sender gave up: {reason}")))
            }
            (frame, _) if self.finishing => broken(format!("{} after FINISH", frame.kind())),
            (Frame::Data { offset, payload }, Method::Messages) => {
                self.expect_piece(offset, payload.len() as u64, None)?;
                self.writer.write(payload);
                Ok(())
            }
            (Frame::Memory { offset, descriptor }, Method::RdmaRead) => {
                let BufferDescriptorV1 { token, length, .. } = descriptor;
                self.expect_piece(offset, length.into(), Some(Token(token)))?;
                let buffer = BytesMut::zeroed(length as usize);
                let reading = self.connection.read(&[descriptor], 0, buffer);
                self.reads.push_back(reading);
                Ok(())
            }
            (Frame::Done { offset }, Method::RdmaWrite) => {
                self.take_memory_back(offset, invalidated).await
            }
            (Frame::Finish(checksum), _) => {
                let whole = match self.method {
                    Method::Messages | Method::RdmaRead => self.stored == self.length,
                    Method::RdmaWrite => self.offset == self.length && self.memory.is_empty(),
                };
                if !whole {
                    return broken(format!(
                        "FINISH with {} bytes stored of {}",
                        self.stored, self.length
                    ));
                }
                self.finishing = true;
                self.writer.finish(checksum);
                Ok(())
            }
            (frame, method) => broken(format!("{} in a file by {method}", frame.kind())),
        }
    }

    /// Handles a piece, which has to be the next, within the file and the window.
    fn expect_piece(
        &mut self,
        offset: u64,
        length: u64,
        token: Option<Token>,
    ) -> Result<(), TransferError> {
        if offset != self.offset || length > self.length - self.offset {
            return broken(format!(
                "a piece of {length} bytes at {offset}, the next is at {} of {}",
                self.offset, self.length
            ));
        }
        if self.waiting.len() >= WINDOW {
            return broken("more pieces outstanding than the window allows");
        }
        self.offset += length;
        self.waiting.push_back(Waiting {
            end: self.offset,
            token,
        });
        Ok(())
    }

    /// Handles a piece that the writer has stored, and makes room for another.
    fn stored(&mut self, bytes: u64) -> Result<(), TransferError> {
        self.stored += bytes;
        if self.method == Method::RdmaWrite {
            return self.give_memory();
        }
        let done = self.waiting.pop_front().expect("the writer had a piece");
        let frame = Frame::Done { offset: done.end };
        match done.token {
            None => self.say(frame),
            Some(token) => {
                let message = frame.into_message();
                drop(self.connection.send_and_invalidate(message, token)?);
                Ok(())
            }
        }
    }

    /// Gives the sender memory to write to, within the window.
    fn give_memory(&mut self) -> Result<(), TransferError> {
        if self.method != Method::RdmaWrite {
            return Ok(());
        }
        let window = WINDOW as u64 * u64::from(MAX_PIECE);
        while self.offset < self.length && self.offset - self.stored < window {
            let length = (self.length - self.offset).min(MAX_PIECE.into());
            let access = Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE;
            let region = self
                .connection
                .register(BytesMut::zeroed(length as usize), access)
                .map_err(|error| TransferError::Here(error.to_string()))?;
            self.say(Frame::Memory {
                offset: self.offset,
                descriptor: region.descriptor(),
            })?;
            self.offset += length;
            self.memory.push_back((self.offset, region));
        }
        Ok(())
    }

    async fn take_memory_back(
        &mut self,
        offset: u64,
        invalidated: Option<Token>,
    ) -> Result<(), TransferError> {
        let Some((end, region)) = self.memory.pop_front() else {
            return broken("DONE for memory that was not given");
        };
        // An adapter may not report the invalidation, so the registration is ended here too.
        if end != offset || invalidated.is_some_and(|token| token != region.token()) {
            return broken(format!(
                "DONE at {offset} does not give back the memory up to {end}"
            ));
        }
        let buffer = region
            .deregister()
            .await
            .map_err(|error| TransferError::Here(error.to_string()))?;
        self.writer.write(buffer.freeze());
        Ok(())
    }

    /// Abandons the file: informs the sender, and ignores the data that the sender sent before it was informed.
    async fn give_up(&mut self, reason: String) -> Result<(), TransferError> {
        self.finish_reads().await;
        self.say(Frame::Failed(reason))?;
        for _ in 0..MAX_STALE {
            let (frame, _) = next_frame(self.connection, self.inactivity_limit).await?;
            if let Frame::Cancel(_) = frame {
                return Ok(());
            }
        }
        broken("a message about a file that was given up")
    }

    /// Waits for all RDMA Reads, because the memory of the sender must not vanish under them.
    async fn finish_reads(&mut self) {
        while !self.reads.is_empty() {
            // If one fails, the connection is over, and the next message reports it.
            let _ = front(&mut self.reads).await;
        }
    }

    fn say(&self, frame: Frame) -> Result<(), TransferError> {
        // The send is not awaited: the window bounds the messages in flight.
        drop(self.connection.send(frame.into_message())?);
        Ok(())
    }
}

/// A thread that hashes and writes one file. The window bounds its queue.
struct Writer {
    jobs: mpsc::UnboundedSender<Job>,
    events: mpsc::UnboundedReceiver<WriterEvent>,
    thread: JoinHandle<()>,
}

enum Job {
    Write(Bytes),
    Finish(Checksum),
}

enum WriterEvent {
    Created,
    Written(usize),
    Published(Checksum),
    Failed(String),
}

impl Writer {
    /// Starts the thread, which logs in `span`.
    fn spawn(store: Arc<dyn Store>, name: String, span: Span) -> Self {
        let (jobs, mut receiver) = mpsc::unbounded_channel();
        let (sender, events) = mpsc::unbounded_channel();
        let thread = spawn_blocking(move || {
            let _entered = span.enter();
            let last = match write_file(&*store, &name, &mut receiver, &sender) {
                Ok(Some(checksum)) => WriterEvent::Published(checksum),
                Ok(None) => return,
                Err(reason) => WriterEvent::Failed(reason),
            };
            let _ = sender.send(last);
        });
        Self {
            jobs,
            events,
            thread,
        }
    }

    fn write(&self, bytes: Bytes) {
        // If the thread is gone, it has reported the reason.
        let _ = self.jobs.send(Job::Write(bytes));
    }

    fn finish(&self, checksum: Checksum) {
        let _ = self.jobs.send(Job::Finish(checksum));
    }

    /// Stops the thread, which removes the unfinished file.
    async fn end(self) {
        drop((self.jobs, self.events));
        let _ = self.thread.await;
    }
}

/// Runs in the thread. Returns `None` if the queue ended before the file.
fn write_file(
    store: &dyn Store,
    name: &str,
    jobs: &mut mpsc::UnboundedReceiver<Job>,
    events: &mpsc::UnboundedSender<WriterEvent>,
) -> Result<Option<Checksum>, String> {
    check_name(name).map_err(|fault| format!("the name is refused: {fault}"))?;
    let failed = |error: std::io::Error| plain(&error);
    let mut target: Box<dyn Target> = store.create(name).map_err(failed)?;
    let mut hasher = Sha256::new();
    let _ = events.send(WriterEvent::Created);
    while let Some(job) = jobs.blocking_recv() {
        match job {
            Job::Write(bytes) => {
                target.write(&bytes).map_err(failed)?;
                hasher.update(&bytes);
                let _ = events.send(WriterEvent::Written(bytes.len()));
            }
            Job::Finish(expected) => {
                let checksum = Checksum::from(hasher);
                if checksum != expected {
                    return Err(format!(
                        "the checksum is {checksum}, the sender's {expected}: damaged on the way"
                    ));
                }
                target.publish().map_err(failed)?;
                return Ok(Some(checksum));
            }
        }
    }
    Ok(None)
}
