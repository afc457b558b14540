//! The sending side of a file. Read [`send_file`] first.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, IsTerminal, Read, Seek, stdin},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use sha2::{Digest as _, Sha256};
use smbdirect::rdma::work::Token;
use smbdirect::{Access, BufferDescriptorV1, Connection, MemoryRegion, Message, Writing};
use tokio::{
    sync::{mpsc, oneshot},
    task::spawn_blocking,
    time::timeout,
};

use crate::report::plain;

use super::{
    Checksum, MAX_PIECE, MAX_STALE, Method, TransferError, WINDOW, broken,
    frame::{DATA_OVERHEAD, Frame},
    store::check_name,
};

/// A file to send.
#[derive(Debug)]
pub(crate) struct Source {
    file: File,
    pub(crate) name: String,
    pub(crate) length: u64,
    /// The checksum if it is known; otherwise the file is hashed while it is sent.
    pub(crate) checksum: Option<Checksum>,
}

impl Source {
    /// Opens a regular file with a name that a receiver accepts.
    ///
    /// # Errors
    /// The reason why it cannot be sent.
    pub(crate) fn open(path: &Path) -> Result<Self, String> {
        // Opening a pipe would block until it has a writer.
        let metadata = std::fs::metadata(path).map_err(|error| plain(&error))?;
        if !metadata.is_file() {
            return Err("it is not a regular file".into());
        }
        let file = File::open(path).map_err(|error| plain(&error))?;
        let metadata = file.metadata().map_err(|error| plain(&error))?;
        let name = path.file_name().unwrap_or(path.as_os_str());
        let name = name.to_str().ok_or("its name is not UTF-8")?;
        check_name(name).map_err(|fault| format!("its name cannot be sent: {fault}"))?;
        Ok(Self {
            file,
            name: name.into(),
            length: metadata.len(),
            checksum: None,
        })
    }

    /// Copies stdin to a temporary file without a name, because an offer states the length.
    ///
    /// The file is offered under the name `stdin`. Dropping the future leaves the copying thread
    /// to end with the process.
    ///
    /// # Errors
    /// The reason why stdin cannot be sent.
    pub(crate) async fn stdin() -> Result<Self, String> {
        if stdin().is_terminal() {
            return Err("stdin is a terminal; pipe something into it".into());
        }
        let (sender, copied) = oneshot::channel();
        // Reading stdin cannot be interrupted, so no task of the runtime does it.
        thread::spawn(move || sender.send(copy_stdin()));
        let copied = copied.await.map_err(|_| "stdin was not read")?;
        copied.map_err(|error| plain(&error))
    }
}

fn copy_stdin() -> io::Result<Source> {
    let mut file = tempfile::tempfile()?;
    let length = io::copy(&mut stdin().lock(), &mut file)?;
    file.rewind()?;
    Ok(Source {
        file,
        name: "stdin".into(),
        length,
        checksum: None,
    })
}

/// A file that arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) checksum: Checksum,
    pub(crate) took: Duration,
}

/// Sends one file, and returns when the receiver has checked and stored it. Calls `progress` with
/// the bytes done.
///
/// # Errors
/// The file did not arrive; see [`TransferError::ends_connection`].
pub(crate) async fn send_file(
    connection: &Connection,
    source: Source,
    method: Method,
    inactivity_limit: Duration,
    mut progress: impl FnMut(u64),
) -> Result<Sent, TransferError> {
    let started = Instant::now();
    let (name, length) = (source.name.clone(), source.length);
    let mut sender = Sender {
        connection,
        inactivity_limit,
        method,
        length,
        offset: 0,
        pieces: spawn_reader(source, piece_size(connection, method)),
        in_flight: VecDeque::new(),
        memory: VecDeque::new(),
        writes: VecDeque::new(),
        checksum: None,
    };
    sender.say(Frame::Offer {
        length,
        method,
        name,
    })?;
    match sender.next_frame().await? {
        (Frame::Accept, _) => {}
        (frame, _) => return Err(sender.unexpected(frame)),
    }
    let checksum = loop {
        if let Some(checksum) = sender.checksum
            && sender.nothing_outstanding()
        {
            break checksum;
        }
        sender.step(&mut progress).await?;
    };
    sender.say(Frame::Finish(checksum))?;
    match sender.next_frame().await? {
        (Frame::Stored, _) => Ok(Sent {
            checksum,
            took: started.elapsed(),
        }),
        (frame, _) => Err(sender.unexpected(frame)),
    }
}

/// Returns the bytes of each piece except the last.
fn piece_size(connection: &Connection, method: Method) -> usize {
    let limit = connection.negotiated().max_fragmented_send_size;
    let size = match method {
        Method::Messages => MAX_PIECE.min(limit.saturating_sub(DATA_OVERHEAD as u32)),
        Method::RdmaRead | Method::RdmaWrite => MAX_PIECE,
    };
    // Pieces of more than one page are whole pages.
    (if size >= 4096 {
        size - size % 4096
    } else {
        size
    }) as usize
}

struct Sender<'a> {
    connection: &'a Connection,
    inactivity_limit: Duration,
    method: Method,
    length: u64,
    /// The offset of the next piece.
    offset: u64,
    pieces: mpsc::Receiver<Piece>,
    /// Pieces that were sent and that the receiver has not stored.
    in_flight: VecDeque<PieceInFlight>,
    /// Memory of the receiver to write to.
    memory: VecDeque<BufferDescriptorV1>,
    /// RDMA Writes that have not completed.
    writes: VecDeque<Writing>,
    /// The checksum, once the whole file was read.
    checksum: Option<Checksum>,
}

struct PieceInFlight {
    end: u64,
    /// Memory that the receiver reads from, registered until this is dropped.
    region: Option<MemoryRegion>,
}

impl Sender<'_> {
    async fn step(&mut self, progress: &mut impl FnMut(u64)) -> Result<(), TransferError> {
        let wants_piece = self.checksum.is_none()
            && match self.method {
                Method::RdmaWrite if self.offset == self.length => true,
                Method::RdmaWrite => !self.memory.is_empty() && self.writes.len() < WINDOW,
                Method::Messages | Method::RdmaRead => self.in_flight.len() < WINDOW,
            };
        let connection = self.connection;
        let step = async {
            Ok::<_, TransferError>(tokio::select! {
                biased;
                result = front(&mut self.writes) => Step::Written(result),
                message = connection.recv() => Step::Message(message?),
                Some(piece) = self.pieces.recv(), if wants_piece => Step::Piece(piece),
            })
        };
        let step = timeout(self.inactivity_limit, step)
            .await
            .map_err(|_| TransferError::Inactive(self.inactivity_limit))??;
        match step {
            Step::Message(message) => self.receive(message, progress),
            Step::Written(result) => Ok(result?),
            Step::Piece(Piece::Bytes(bytes)) => self.send_piece(bytes, progress),
            Step::Piece(Piece::End(checksum)) => {
                self.checksum = Some(checksum);
                Ok(())
            }
            Step::Piece(Piece::Failed(reason)) => self.cancel(reason).await,
        }
    }

    fn send_piece(
        &mut self,
        bytes: BytesMut,
        progress: &mut impl FnMut(u64),
    ) -> Result<(), TransferError> {
        let offset = self.offset;
        let end = offset + bytes.len() as u64;
        self.offset = end;
        let region = match self.method {
            Method::Messages => {
                let payload = bytes.freeze();
                self.say(Frame::Data { offset, payload })?;
                None
            }
            Method::RdmaRead => {
                let access = Access::REMOTE_READ | Access::REMOTE_INVALIDATE;
                let region = self
                    .connection
                    .register(bytes, access)
                    .map_err(|error| TransferError::Here(error.to_string()))?;
                let descriptor = region.descriptor();
                self.say(Frame::Memory { offset, descriptor })?;
                Some(region)
            }
            Method::RdmaWrite => {
                let memory = self
                    .memory
                    .pop_front()
                    .expect("a piece is taken for memory");
                let writing = self.connection.write(&[memory], 0, bytes.freeze());
                self.writes.push_back(writing);
                let done = Frame::Done { offset: end }.into_message();
                let token = Token(memory.token);
                drop(self.connection.send_and_invalidate(done, token)?);
                progress(end);
                return Ok(());
            }
        };
        self.in_flight.push_back(PieceInFlight { end, region });
        Ok(())
    }

    fn receive(
        &mut self,
        message: Message,
        progress: &mut impl FnMut(u64),
    ) -> Result<(), TransferError> {
        let invalidated = message.invalidated_token();
        match (Frame::decode(message.into_bytes())?, self.method) {
            (Frame::Done { offset }, Method::Messages | Method::RdmaRead) => {
                let Some(done) = self.in_flight.pop_front() else {
                    return broken("DONE for a piece that was not sent");
                };
                if done.end != offset {
                    return broken(format!("DONE at {offset}, the next is {}", done.end));
                }
                let token = done.region.as_ref().map(MemoryRegion::token);
                // An adapter may not report the invalidation, so the registration is ended here
                // too.
                if invalidated.is_some() && invalidated != token {
                    return broken("DONE that invalidates other memory than that of its piece");
                }
                progress(offset);
                Ok(())
            }
            (Frame::Memory { offset, descriptor }, Method::RdmaWrite) => {
                self.take_memory(offset, descriptor)
            }
            (frame, _) => Err(self.unexpected(frame)),
        }
    }

    fn take_memory(
        &mut self,
        offset: u64,
        memory: BufferDescriptorV1,
    ) -> Result<(), TransferError> {
        let waiting = self.memory.iter().map(|memory| u64::from(memory.length));
        let expected = self.offset + waiting.sum::<u64>();
        let length = (self.length - expected.min(self.length)).min(MAX_PIECE.into());
        if offset != expected || u64::from(memory.length) != length {
            return broken(format!(
                "memory for {} bytes at {offset}, the next piece is {length} at {expected}",
                memory.length
            ));
        }
        if self.memory.len() >= WINDOW {
            return broken("more memory registered than the window allows");
        }
        self.memory.push_back(memory);
        Ok(())
    }

    fn nothing_outstanding(&self) -> bool {
        self.in_flight.is_empty() && self.writes.is_empty() && self.offset == self.length
    }

    /// Gives the file up, and waits for the answer of the receiver.
    async fn cancel(&mut self, reason: String) -> Result<(), TransferError> {
        self.say(Frame::Cancel(reason.clone()))?;
        for _ in 0..MAX_STALE {
            if let (Frame::Failed(_), _) = self.next_frame().await? {
                return Err(TransferError::Here(reason));
            }
        }
        broken("a message about a file that was cancelled")
    }

    /// Handles an unexpected message: the receiver may have given the file up.
    fn unexpected(&self, frame: Frame) -> TransferError {
        match frame {
            Frame::Failed(reason) => match self.say(Frame::Cancel(String::new())) {
                Ok(()) if reason.is_empty() => TransferError::Peer("not stored".into()),
                Ok(()) => TransferError::Peer(format!("not stored: {reason}")),
                Err(error) => error,
            },
            frame => TransferError::Protocol(format!("{} at the wrong time", frame.kind())),
        }
    }

    fn say(&self, frame: Frame) -> Result<(), TransferError> {
        // The send is not awaited: the window bounds the messages in flight.
        drop(self.connection.send(frame.into_message())?);
        Ok(())
    }

    async fn next_frame(&self) -> Result<(Frame, Option<Token>), TransferError> {
        next_frame(self.connection, self.inactivity_limit).await
    }
}

/// Returns the next message, with the token that it invalidated.
pub(super) async fn next_frame(
    connection: &Connection,
    inactivity_limit: Duration,
) -> Result<(Frame, Option<Token>), TransferError> {
    let message = timeout(inactivity_limit, connection.recv())
        .await
        .map_err(|_| TransferError::Inactive(inactivity_limit))??;
    let invalidated = message.invalidated_token();
    Ok((Frame::decode(message.into_bytes())?, invalidated))
}

/// Returns the result of the oldest future and removes it; waits forever if there is none.
pub(super) async fn front<F: Future + Unpin>(queue: &mut VecDeque<F>) -> F::Output {
    match queue.front_mut() {
        Some(first) => {
            let output = first.await;
            queue.pop_front();
            output
        }
        None => std::future::pending().await,
    }
}

enum Step {
    Message(Message),
    Written(Result<(), smbdirect::TransferFault>),
    Piece(Piece),
}

/// The output of the reading thread.
enum Piece {
    Bytes(BytesMut),
    End(Checksum),
    Failed(String),
}

/// Reads and hashes the file in a thread of its own, a few pieces ahead. The thread ends when the
/// receiver of its output is dropped.
fn spawn_reader(source: Source, piece_size: usize) -> mpsc::Receiver<Piece> {
    let (pieces, receiver) = mpsc::channel(2);
    spawn_blocking(move || {
        let last = match read_all(source, piece_size, &pieces) {
            Ok(checksum) => Piece::End(checksum),
            Err(error) => Piece::Failed(format!("reading failed: {}", plain(&error))),
        };
        let _ = pieces.blocking_send(last);
    });
    receiver
}

fn read_all(
    mut source: Source,
    piece_size: usize,
    pieces: &mpsc::Sender<Piece>,
) -> io::Result<Checksum> {
    let mut hasher = Sha256::new();
    let mut left = source.length;
    while left > 0 {
        let length = left.min(piece_size as u64) as usize;
        let mut bytes = BytesMut::zeroed(length);
        source
            .file
            .read_exact(&mut bytes)
            .map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => {
                    io::Error::other("the file became shorter meanwhile")
                }
                _ => error,
            })?;
        if source.checksum.is_none() {
            hasher.update(&bytes);
        }
        left -= length as u64;
        if pieces.blocking_send(Piece::Bytes(bytes)).is_err() {
            break;
        }
    }
    Ok(source.checksum.unwrap_or_else(|| hasher.into()))
}
