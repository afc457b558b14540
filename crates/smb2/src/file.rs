//! An open file: reads and writes by RDMA or by messages.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::BytesMut;
use smb2::{
    ReparseTag,
    msg::{
        close::CloseRequest,
        create::CreateResponse,
        lock::{
            LockElement, LockRequest, SMB2_LOCKFLAG_EXCLUSIVE_LOCK, SMB2_LOCKFLAG_FAIL_IMMEDIATELY,
            SMB2_LOCKFLAG_UNLOCK,
        },
        query_info::{InfoType, QueryInfoRequest, QueryInfoResponse},
    },
    pack::{Pack, ReadCursor, Unpack},
    types::{Command, FileId, status::NtStatus},
};
use smbdirect::{Access, MemoryRegion};
use tokio::{
    runtime::Handle,
    sync::{OwnedRwLockReadGuard, RwLock},
};

use crate::{
    credits::Turn,
    error::Error,
    requests::{ReadAnswer, ReadRequest, Source, WriteRequest, disposition, end_of_file, written},
    tree::{Answer, Requests, detached},
};

/// An open file. Clones are handles on one open file, for requests in parallel. When the last one is dropped, the file
/// is closed without a report.
///
/// A request that was sent continues if its future is dropped or ends with [`Error::NoAnswer`]. Its memory stays
/// registered until the server has answered, or the connection has ended.
#[derive(Clone)]
pub struct File {
    inner: Arc<Inner>,
}

struct Inner {
    requests: Requests,
    file_id: FileId,
    length: u64,
    /// AllocationSize of CREATE: bytes that the file takes on the server.
    allocated: u64,
    /// Whether CLOSE was sent. Each request that is with the server holds a read lock, and CLOSE waits for them.
    closed: Arc<RwLock<bool>>,
    /// The server deletes the file when it is closed.
    is_temporary: AtomicBool,
    /// Where to send CLOSE if the last handle is dropped outside of the runtime.
    runtime: Handle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.closed.try_read().is_ok_and(|closed| *closed) {
            return;
        }
        let closing = close(self.requests.for_task(), self.file_id, self.closed.clone());
        self.runtime.spawn(async move {
            // Nobody is left to whom a failure could be reported.
            let _ = closing.await;
        });
    }
}

/// Sends CLOSE after the answers to the requests of the file.
async fn close(
    requests: Requests,
    file_id: FileId,
    closed: Arc<RwLock<bool>>,
) -> Result<(), Error> {
    const COMMAND: Command = Command::Close;
    let mut closed = closed.write().await;
    if *closed {
        return Err(is_closed(COMMAND));
    }
    let turn = requests.turn(1).await;
    *closed = true;
    let request = CloseRequest { flags: 0, file_id };
    let answer = requests.send(turn, COMMAND, &request).await?;
    answer.success(COMMAND).map(drop)
}

const fn is_closed(command: Command) -> Error {
    Error::Status {
        command,
        status: NtStatus::FILE_CLOSED,
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("file_id", &self.inner.file_id)
            .field("length", &self.inner.length)
            .finish_non_exhaustive()
    }
}

/// The result of a read.
#[derive(Debug)]
#[non_exhaustive]
pub struct Read {
    /// The caller's buffer, cut to the bytes that were read.
    pub data: BytesMut,
    /// How many of them the server wrote by RDMA.
    pub by_rdma: usize,
}

/// The result of a write.
#[derive(Debug)]
#[non_exhaustive]
pub struct Written {
    /// The caller's buffer, unchanged.
    pub data: BytesMut,
    /// How many of its bytes the server read by RDMA.
    pub by_rdma: usize,
}

/// The outcome of one request.
enum Moved {
    /// These bytes moved by RDMA.
    Rdma(BytesMut),
    /// These bytes moved in a message.
    Message(BytesMut),
    /// The server refused the channel.
    Refused,
    /// No byte moved in a message, or a READ reached the end of the file.
    Nothing,
}

impl File {
    pub(crate) fn new(requests: Requests, created: &CreateResponse) -> Self {
        Self {
            inner: Arc::new(Inner {
                requests,
                file_id: created.file_id,
                length: created.end_of_file,
                allocated: created.allocation_size,
                closed: Arc::default(),
                is_temporary: AtomicBool::new(false),
                runtime: Handle::current(),
            }),
        }
    }

    /// Returns the length of the file when it was opened, in bytes.
    pub fn length(&self) -> u64 {
        self.inner.length
    }

    pub(crate) fn id(&self) -> FileId {
        self.inner.file_id
    }

    pub(crate) fn requests(&self) -> &Requests {
        &self.inner.requests
    }

    /// Fills `buffer` from the file at `offset`, with as many requests as the server needs. Returns fewer bytes only at
    /// the end of the file.
    ///
    /// If the server refuses or ignores the RDMA channel, and takes the same request without it, later requests
    /// of the share move their data in messages.
    ///
    /// # Errors
    /// The server refuses the request, breaks the protocol or does not answer, or the connection ends. The buffer is
    /// then dropped.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the file and the session usable. The buffer is dropped after the server has answered
    /// the request, or the connection has ended.
    pub async fn read(&self, offset: u64, buffer: BytesMut) -> Result<Read, Error> {
        let (mut rest, mut done) = (buffer, BytesMut::new());
        let (mut by_rdma, mut is_refused) = (0, false);
        while !rest.is_empty() {
            let at = offset + done.len() as u64;
            let reading = self.read_piece(at, &mut rest, is_refused);
            match self.requests().within_limit(reading).await? {
                Moved::Rdma(piece) => {
                    by_rdma += piece.len();
                    done.unsplit(piece);
                }
                Moved::Message(piece) => {
                    // The server takes this request, so it was the channel that it refused.
                    if is_refused {
                        self.requests().refuse_rdma();
                    }
                    done.unsplit(piece);
                }
                Moved::Refused => is_refused = true,
                Moved::Nothing => break,
            }
        }
        Ok(Read {
            data: done,
            by_rdma,
        })
    }

    /// Writes `data` to the file at `offset`, with as many requests as the server needs.
    ///
    /// If the server refuses or ignores the RDMA channel, and takes the same request without it, later requests
    /// of the share move their data in messages.
    ///
    /// # Errors
    /// The server refuses the request, writes nothing, breaks the protocol or does not answer, or the connection ends.
    /// The buffer is then dropped, and a part of the data may have been written.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the file and the session usable. The server may write the data of the request that
    /// it has. The buffer is dropped after the server has answered it, or the connection has ended.
    pub async fn write(&self, offset: u64, data: BytesMut) -> Result<Written, Error> {
        let (mut rest, mut done) = (data, BytesMut::new());
        let (mut by_rdma, mut is_refused) = (0, false);
        while !rest.is_empty() {
            let at = offset + done.len() as u64;
            let writing = self.write_piece(at, &mut rest, is_refused);
            match self.requests().within_limit(writing).await? {
                Moved::Rdma(piece) => {
                    by_rdma += piece.len();
                    done.unsplit(piece);
                }
                Moved::Message(piece) => {
                    // The server takes this request, so it was the channel that it refused.
                    if is_refused {
                        self.requests().refuse_rdma();
                    }
                    done.unsplit(piece);
                }
                Moved::Refused => is_refused = true,
                Moved::Nothing => return Err(no_progress()),
            }
        }
        Ok(Written {
            data: done,
            by_rdma,
        })
    }

    /// Returns whether the server deletes the file when it is closed: it was opened with [`OpenMode::New`], the server
    /// supports that, and [`keep`](Self::keep) was not called.
    ///
    /// [`OpenMode::New`]: crate::OpenMode::New
    pub fn is_temporary(&self) -> bool {
        self.inner.is_temporary.load(Ordering::Relaxed)
    }

    /// Makes the server keep a file of [`OpenMode::New`] when it is closed. Its data must have been written.
    ///
    /// # Errors
    /// The server refuses it or does not answer, or the connection ends.
    ///
    /// # Cancel safety
    /// If the future is dropped, the server may keep the file or delete it.
    ///
    /// [`OpenMode::New`]: crate::OpenMode::New
    pub async fn keep(&self) -> Result<(), Error> {
        if self.is_temporary() {
            self.set_temporary(false).await?;
        }
        Ok(())
    }

    /// Asks the server to delete the file when it is closed, or to keep it.
    pub(crate) async fn set_temporary(&self, is_temporary: bool) -> Result<(), Error> {
        let request = disposition(self.inner.file_id, is_temporary);
        self.request(Command::SetInfo, request).await?;
        self.is_now_temporary(is_temporary);
        Ok(())
    }

    /// Sets the length of the file in bytes. Bytes beyond it are lost, and new ones are zeros.
    ///
    /// # Errors
    /// The server refuses it or does not answer, or the connection ends.
    pub async fn set_length(&self, length: u64) -> Result<(), Error> {
        let request = end_of_file(self.inner.file_id, length);
        self.request(Command::SetInfo, request).await
    }

    /// Returns the greatest length for which the server has room: the bytes that the file has, and those that this user
    /// can still use on its file system. `None` if the server does not say.
    ///
    /// # Errors
    /// The server does not answer, or the connection ends.
    pub async fn room(&self) -> Result<Option<u64>, Error> {
        const FILE_FS_FULL_SIZE_INFORMATION: u8 = 7;
        let class = (InfoType::Filesystem, FILE_FS_FULL_SIZE_INFORMATION);
        let Some(answer) = self.query(class, 32).await? else {
            return Ok(None);
        };
        // Units in all, units for this user, units, sectors of a unit, bytes of a sector.
        let (Some(&[all, available, ..]), Some(sizes)) = (
            answer.as_chunks().0.first_chunk::<3>(),
            answer.get(24..).and_then(|sizes| sizes.first_chunk()),
        ) else {
            return Ok(None);
        };
        let [sectors, bytes] =
            [0, 32].map(|shift| u64::from_le_bytes(*sizes) >> shift & 0xffff_ffff);
        let unit = sectors.saturating_mul(bytes);
        let available = u64::from_le_bytes(available).saturating_mul(unit);
        let is_known = u64::from_le_bytes(all) > 0 && unit > 0;
        Ok(is_known.then(|| available.saturating_add(self.inner.allocated)))
    }

    /// Checks that no other client has locked a part of the file, as far as the server has locks.
    ///
    /// # Errors
    /// STATUS_LOCK_NOT_GRANTED if one has. The server does not answer, or the connection ends.
    pub async fn check_unlocked(&self) -> Result<(), Error> {
        let lock = SMB2_LOCKFLAG_EXCLUSIVE_LOCK | SMB2_LOCKFLAG_FAIL_IMMEDIATELY;
        let with = |flags| LockRequest {
            lock_sequence: 0,
            file_id: self.inner.file_id,
            locks: vec![LockElement {
                offset: 0,
                length: u64::MAX,
                flags,
            }],
        };
        match self.request(Command::Lock, with(lock)).await {
            Ok(()) => {
                self.request(Command::Lock, with(SMB2_LOCKFLAG_UNLOCK))
                    .await
            }
            // A server without locks has none that are in the way.
            Err(error) if error.status().is_some_and(|status| !is_locked(status)) => Ok(()),
            refused => refused,
        }
    }

    /// Returns which kind of reparse point the file is; `None` if the server does not report it.
    pub(crate) async fn reparse_tag(&self) -> Result<Option<ReparseTag>, Error> {
        const FILE_ATTRIBUTE_TAG_INFORMATION: u8 = 35;
        let class = (InfoType::File, FILE_ATTRIBUTE_TAG_INFORMATION);
        let answer = self.query(class, 8).await?;
        let tag = answer.and_then(|answer| answer.get(4..)?.first_chunk().copied());
        Ok(tag.map(|tag| ReparseTag(u32::from_le_bytes(tag))))
    }

    /// Returns at most `length` bytes of information; `None` if the server refuses it.
    async fn query(&self, class: (InfoType, u8), length: u32) -> Result<Option<Vec<u8>>, Error> {
        const COMMAND: Command = Command::QueryInfo;
        let (info_type, file_info_class) = class;
        let request = QueryInfoRequest {
            info_type,
            file_info_class,
            output_buffer_length: length,
            additional_information: 0,
            flags: 0,
            file_id: self.inner.file_id,
            input_buffer: Vec::new(),
        };
        let answer = self.requests().execute(COMMAND, request).await?;
        if answer.status() != NtStatus::SUCCESS {
            return Ok(None);
        }
        let body = answer.success(COMMAND)?;
        let answer = QueryInfoResponse::unpack(&mut ReadCursor::new(&body)).map_err(Error::Smb2)?;
        Ok(Some(answer.output_buffer))
    }

    /// Sends a request whose answer has nothing but its status.
    async fn request(&self, command: Command, body: impl Pack + 'static) -> Result<(), Error> {
        let answer = self.requests().execute(command, body).await?;
        answer.success(command).map(drop)
    }

    pub(crate) fn is_now_temporary(&self, is_temporary: bool) {
        let state = &self.inner.is_temporary;
        state.store(is_temporary, Ordering::Relaxed);
    }

    /// Closes the file, after the server has answered its requests, also those whose futures were dropped. Other
    /// handles of it fail afterwards.
    ///
    /// # Errors
    /// The server reports an error of the file, for example a full disk, or does not answer, or the connection ends.
    ///
    /// # Cancel safety
    /// If the future is dropped, the file is closed all the same, when the server has answered its requests.
    pub async fn close(self) -> Result<(), Error> {
        let Inner {
            requests,
            file_id,
            closed,
            ..
        } = &*self.inner;
        let closing = close(requests.for_task(), *file_id, closed.clone());
        requests.within_limit(detached(closing)).await
    }

    /// Begins a request on the file.
    async fn begin(&self, command: Command) -> Result<OwnedRwLockReadGuard<bool>, Error> {
        let closed = self.inner.closed.clone().read_owned().await;
        if *closed {
            Err(is_closed(command))
        } else {
            Ok(closed)
        }
    }

    /// Reads the first bytes of `rest` with one request, as many as the credits allow. Bytes that were not read
    /// stay in the buffer.
    async fn read_piece(
        &self,
        offset: u64,
        rest: &mut BytesMut,
        is_refused: bool,
    ) -> Result<Moved, Error> {
        const COMMAND: Command = Command::Read;
        let open = self.begin(COMMAND).await?;
        let (turn, length, channel) = self.requests().next(rest.len(), is_refused).await;
        let mut request = ReadRequest {
            file_id: self.inner.file_id,
            offset,
            length: length as u32,
            channel: None,
        };
        let (answer, mut piece) = match channel {
            Some(channel) => {
                let region = self.register(rest.split_to(length), Access::REMOTE_WRITE)?;
                request.channel = Some((channel, vec![region.descriptor()]));
                self.send_with(open, turn, COMMAND, request, region).await?
            }
            None => {
                let requests = self.requests().for_task();
                let sending = async move {
                    let answer = requests.send(turn, COMMAND, &request).await;
                    drop(open);
                    answer
                };
                (detached(sending).await?, rest.split_to(length))
            }
        };
        if channel.is_some() && is_refusal(answer.status()) {
            piece.unsplit_before(rest);
            return Ok(Moved::Refused);
        }
        if answer.status() == NtStatus::END_OF_FILE {
            return Ok(Moved::Nothing);
        }
        let body = answer.success(COMMAND)?;
        let answer = decode_read(&body, length)?;
        let is_by_rdma = channel.is_some() && answer.inline.is_empty();
        let moved = if is_by_rdma {
            answer.by_rdma as usize
        } else {
            answer.inline.len()
        };
        if moved == 0 {
            return Ok(Moved::Nothing);
        }
        if !is_by_rdma {
            piece[..moved].copy_from_slice(answer.inline);
            // The server ignored the channel.
            if channel.is_some() {
                self.requests().refuse_rdma();
            }
        }
        piece.split_off(moved).unsplit_before(rest);
        Ok(if is_by_rdma {
            Moved::Rdma(piece)
        } else {
            Moved::Message(piece)
        })
    }

    /// Writes the first bytes of `rest` with one request, as many as the credits allow. Bytes that were not
    /// written stay in the buffer.
    async fn write_piece(
        &self,
        offset: u64,
        rest: &mut BytesMut,
        is_refused: bool,
    ) -> Result<Moved, Error> {
        const COMMAND: Command = Command::Write;
        let open = self.begin(COMMAND).await?;
        let (turn, length, channel) = self.requests().next(rest.len(), is_refused).await;
        let piece = rest.split_to(length);
        let file_id = self.inner.file_id;
        let (answer, mut piece) = match channel {
            Some(channel) => {
                let region = self.register(piece, Access::REMOTE_READ)?;
                let source = Source::Memory {
                    length: length as u32,
                    channel,
                    descriptors: vec![region.descriptor()],
                };
                let request = WriteRequest {
                    file_id,
                    offset,
                    source,
                };
                self.send_with(open, turn, COMMAND, request, region).await?
            }
            None => {
                let requests = self.requests().for_task();
                let sending = async move {
                    let request = WriteRequest {
                        file_id,
                        offset,
                        source: Source::Inline(&piece),
                    };
                    let answer = requests.send(turn, COMMAND, &request).await;
                    drop(open);
                    answer.map(|answer| (answer, piece))
                };
                detached(sending).await?
            }
        };
        if channel.is_some() && is_refusal(answer.status()) {
            piece.unsplit_before(rest);
            return Ok(Moved::Refused);
        }
        let count = decode_written(&answer.success(COMMAND)?, length)?;
        piece.split_off(count).unsplit_before(rest);
        Ok(match channel {
            // The server ignored the channel: for it this was a WRITE without data.
            Some(_) if count == 0 => Moved::Refused,
            Some(_) => Moved::Rdma(piece),
            None if count == 0 => Moved::Nothing,
            None => Moved::Message(piece),
        })
    }

    /// Sends a request, and ends the registration of its memory after the answer or the end of the connection, also if
    /// this future is dropped.
    async fn send_with(
        &self,
        open: OwnedRwLockReadGuard<bool>,
        turn: Turn,
        command: Command,
        body: impl Pack + 'static,
        region: MemoryRegion,
    ) -> Result<(Answer, BytesMut), Error> {
        let requests = self.requests().for_task();
        let sending = async move {
            let answer = requests.send(turn, command, &body).await;
            let piece = region.deregister().await;
            drop(open);
            // The failure of the request is the cause of what follows from it.
            let answer = answer?;
            let piece = piece.map_err(|error| Error::Register(error.to_string()))?;
            Ok((answer, piece))
        };
        detached(sending).await
    }

    fn register(&self, piece: BytesMut, access: Access) -> Result<MemoryRegion, Error> {
        let access = access | Access::REMOTE_INVALIDATE;
        let direct = self.requests().direct();
        let direct = direct.expect("data moves by RDMA over SMB Direct only");
        let registered = direct.register(piece, access);
        registered.map_err(|error| Error::Register(error.reason.to_string()))
    }
}

/// Puts a piece back in front of the rest that it was split from.
trait UnsplitBefore {
    fn unsplit_before(self, rest: &mut BytesMut);
}

impl UnsplitBefore for BytesMut {
    fn unsplit_before(mut self, rest: &mut BytesMut) {
        self.unsplit(std::mem::take(rest));
        *rest = self;
    }
}

/// Returns whether the status can mean that the server does not take the channel. If it means something
/// else, the request without a channel gets the same status.
///
/// A server that requires signing denies the access of an unsigned request ([MS-SMB2] 3.3.5.2.4). It announces
/// this in NEGOTIATE, but a server may require more of one session than of all.
const fn is_refusal(status: NtStatus) -> bool {
    matches!(
        status,
        NtStatus::INVALID_PARAMETER | NtStatus::NOT_SUPPORTED | NtStatus::ACCESS_DENIED
    )
}

/// STATUS_LOCK_NOT_GRANTED.
const LOCK_NOT_GRANTED: NtStatus = NtStatus(0xc000_0055);

/// Returns whether the status says that another client has a lock.
fn is_locked(status: NtStatus) -> bool {
    status == LOCK_NOT_GRANTED || status == NtStatus::FILE_LOCK_CONFLICT
}

fn decode_read(body: &[u8], length: usize) -> Result<ReadAnswer<'_>, Error> {
    let wrong = |fault| Error::Answer {
        command: Command::Read,
        fault,
    };
    let answer = ReadAnswer::decode(body).map_err(|_| wrong("it is malformed"))?;
    if answer.inline.len() > length || answer.by_rdma as usize > length {
        return Err(wrong("it has more bytes than were asked for"));
    }
    Ok(answer)
}

fn decode_written(body: &[u8], length: usize) -> Result<usize, Error> {
    let wrong = |fault| Error::Answer {
        command: Command::Write,
        fault,
    };
    let count = written(body).map_err(|_| wrong("it is malformed"))? as usize;
    if count > length {
        Err(wrong("it has more bytes than were sent"))
    } else {
        Ok(count)
    }
}

const fn no_progress() -> Error {
    Error::Answer {
        command: Command::Write,
        fault: "no byte was written",
    }
}
