//! An open file: reads and writes by RDMA or by messages.

use std::{fmt, sync::Arc};

use bytes::BytesMut;
use smb2::types::{Command, FileId, status::NtStatus};
use smbdirect::{Access, MemoryRegion};

use crate::{
    error::Error,
    requests::{ReadAnswer, ReadRequest, Source, WriteRequest, written},
    transfer::Channel,
    tree::{Answer, Requests},
};

/// An open file. Clones are handles on one open file, for requests in parallel.
#[derive(Clone)]
pub struct File {
    inner: Arc<Inner>,
}

struct Inner {
    requests: Requests,
    file_id: FileId,
    length: u64,
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
pub struct Read {
    /// The caller's buffer, cut to the bytes that were read.
    pub data: BytesMut,
    /// How many of them the server wrote by RDMA.
    pub by_rdma: usize,
}

/// The result of a write.
#[derive(Debug)]
pub struct Written {
    /// The caller's buffer, unchanged.
    pub data: BytesMut,
    /// How many of its bytes the server read by RDMA.
    pub by_rdma: usize,
}

/// The server refused the channel or ignored it. The buffer is not lost.
struct Refused(BytesMut);

impl File {
    pub(crate) fn new(requests: Requests, file_id: FileId, length: u64) -> Self {
        Self {
            inner: Arc::new(Inner {
                requests,
                file_id,
                length,
            }),
        }
    }

    /// Returns the length of the file when it was opened, in bytes.
    pub fn length(&self) -> u64 {
        self.inner.length
    }

    fn requests(&self) -> &Requests {
        &self.inner.requests
    }

    /// Fills `buffer` from the file at `offset`. Returns fewer bytes only at the end of the file.
    ///
    /// If the server refuses or ignores the RDMA channel, and takes the same request without it, later requests
    /// of the share move their data in messages.
    ///
    /// # Errors
    /// The server refuses the request or breaks the protocol, or the connection ends. The buffer is then
    /// dropped.
    ///
    /// # Cancel safety
    /// Dropping the future ends the server's access to the buffer and drops the buffer.
    pub async fn read(&self, offset: u64, buffer: BytesMut) -> Result<Read, Error> {
        let (mut rest, mut done) = (buffer, BytesMut::new());
        let (mut by_rdma, mut is_refused) = (0, false);
        while !rest.is_empty() {
            let at = offset + done.len() as u64;
            let (asked, channel) = self.requests().next(rest.len(), is_refused);
            let mut piece = rest.split_to(asked);
            piece = match channel {
                Some(channel) => match self.read_by_rdma(at, piece, channel).await? {
                    Ok((piece, moved)) => {
                        by_rdma += moved;
                        piece
                    }
                    Err(Refused(piece)) => {
                        is_refused = true;
                        piece.unsplit_before(&mut rest);
                        continue;
                    }
                },
                None => {
                    let piece = self.read_by_message(at, piece).await?;
                    // The server takes this request, so it was the channel that it refused.
                    if is_refused {
                        self.requests().refuse_rdma();
                    }
                    piece
                }
            };
            let is_end = piece.len() < asked;
            done.unsplit(piece);
            if is_end {
                break;
            }
        }
        Ok(Read {
            data: done,
            by_rdma,
        })
    }

    /// Writes `data` to the file at `offset`.
    ///
    /// If the server refuses or ignores the RDMA channel, and takes the same request without it, later requests
    /// of the share move their data in messages.
    ///
    /// # Errors
    /// The server refuses the request, writes less or breaks the protocol, or the connection ends. The
    /// buffer is then dropped, and a part of the data may have been written.
    ///
    /// # Cancel safety
    /// Dropping the future ends the server's access to the buffer and drops the buffer. A part of the data
    /// may have been written.
    pub async fn write(&self, offset: u64, data: BytesMut) -> Result<Written, Error> {
        let (mut rest, mut done) = (data, BytesMut::new());
        let (mut by_rdma, mut is_refused) = (0, false);
        while !rest.is_empty() {
            let at = offset + done.len() as u64;
            let (length, channel) = self.requests().next(rest.len(), is_refused);
            let mut piece = rest.split_to(length);
            piece = match channel {
                Some(channel) => match self.write_by_rdma(at, piece, channel).await? {
                    Ok(piece) => {
                        by_rdma += piece.len();
                        piece
                    }
                    Err(Refused(piece)) => {
                        is_refused = true;
                        piece.unsplit_before(&mut rest);
                        continue;
                    }
                },
                None => {
                    let piece = self.write_by_message(at, piece).await?;
                    // The server takes this request, so it was the channel that it refused.
                    if is_refused {
                        self.requests().refuse_rdma();
                    }
                    piece
                }
            };
            done.unsplit(piece);
        }
        Ok(Written {
            data: done,
            by_rdma,
        })
    }

    /// Closes the file. Other handles of it fail afterwards.
    ///
    /// # Errors
    /// The server reports an error of the file, for example a full disk, or the connection ends.
    pub async fn close(self) -> Result<(), Error> {
        self.requests().close(self.inner.file_id).await
    }

    async fn read_by_rdma(
        &self,
        offset: u64,
        piece: BytesMut,
        channel: Channel,
    ) -> Result<Result<(BytesMut, usize), Refused>, Error> {
        const COMMAND: Command = Command::Read;
        let length = piece.len();
        let region = self.register(piece, Access::REMOTE_WRITE)?;
        let request = ReadRequest {
            file_id: self.inner.file_id,
            offset,
            length: length as u32,
            channel: Some((channel, vec![region.descriptor()])),
        };
        let answer = self.requests().execute(COMMAND, &request, length).await;
        let (answer, mut piece) = self.take_back(answer, region).await?;
        if is_refusal(answer.status()) {
            return Ok(Err(Refused(piece)));
        }
        if answer.status() == NtStatus::END_OF_FILE {
            piece.clear();
            return Ok(Ok((piece, 0)));
        }
        let body = answer.success(COMMAND)?;
        let answer = decode_read(&body, length)?;
        if answer.inline.is_empty() {
            let moved = answer.by_rdma as usize;
            piece.truncate(moved);
            return Ok(Ok((piece, moved)));
        }
        // The server ignored the channel.
        self.requests().refuse_rdma();
        piece[..answer.inline.len()].copy_from_slice(answer.inline);
        piece.truncate(answer.inline.len());
        Ok(Ok((piece, 0)))
    }

    async fn read_by_message(&self, offset: u64, mut piece: BytesMut) -> Result<BytesMut, Error> {
        const COMMAND: Command = Command::Read;
        let length = piece.len();
        let request = ReadRequest {
            file_id: self.inner.file_id,
            offset,
            length: length as u32,
            channel: None,
        };
        let answer = self.requests().execute(COMMAND, &request, length).await?;
        if answer.status() == NtStatus::END_OF_FILE {
            piece.clear();
            return Ok(piece);
        }
        let body = answer.success(COMMAND)?;
        let inline = decode_read(&body, length)?.inline;
        piece[..inline.len()].copy_from_slice(inline);
        piece.truncate(inline.len());
        Ok(piece)
    }

    async fn write_by_rdma(
        &self,
        offset: u64,
        piece: BytesMut,
        channel: Channel,
    ) -> Result<Result<BytesMut, Refused>, Error> {
        const COMMAND: Command = Command::Write;
        let length = piece.len();
        let region = self.register(piece, Access::REMOTE_READ)?;
        let request = WriteRequest {
            file_id: self.inner.file_id,
            offset,
            source: Source::Memory {
                length: length as u32,
                channel,
                descriptors: vec![region.descriptor()],
            },
        };
        let answer = self.requests().execute(COMMAND, &request, length).await;
        let (answer, piece) = self.take_back(answer, region).await?;
        if is_refusal(answer.status()) {
            return Ok(Err(Refused(piece)));
        }
        match decode_written(&answer.success(COMMAND)?)? {
            count if count == length => Ok(Ok(piece)),
            // The server ignored the channel: for it this was a WRITE without data.
            0 => Ok(Err(Refused(piece))),
            _ => Err(short_write()),
        }
    }

    async fn write_by_message(&self, offset: u64, piece: BytesMut) -> Result<BytesMut, Error> {
        const COMMAND: Command = Command::Write;
        let length = piece.len();
        let request = WriteRequest {
            file_id: self.inner.file_id,
            offset,
            source: Source::Inline(&piece),
        };
        let answer = self.requests().execute(COMMAND, &request, length).await?;
        if decode_written(&answer.success(COMMAND)?)? != length {
            return Err(short_write());
        }
        Ok(piece)
    }

    fn register(&self, piece: BytesMut, access: Access) -> Result<MemoryRegion, Error> {
        let access = access | Access::REMOTE_INVALIDATE;
        let registered = self.requests().connection().register(piece, access);
        registered.map_err(|error| Error::Register(error.reason.to_string()))
    }

    /// Ends the registration after the answer or the failure of its request.
    async fn take_back(
        &self,
        answer: Result<Answer, Error>,
        region: MemoryRegion,
    ) -> Result<(Answer, BytesMut), Error> {
        let piece = region.deregister().await;
        // The failure of the request is the cause of what follows from it.
        let answer = answer?;
        let piece = piece.map_err(|error| Error::Register(error.to_string()))?;
        Ok((answer, piece))
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

fn decode_read(body: &[u8], length: usize) -> Result<ReadAnswer<'_>, Error> {
    let wrong = |fault| Error::Answer {
        command: Command::Read,
        fault,
    };
    let answer = ReadAnswer::decode(body).ok_or_else(|| wrong("it is too short"))?;
    if answer.inline.len() > length || answer.by_rdma as usize > length {
        return Err(wrong("it has more bytes than were asked for"));
    }
    Ok(answer)
}

fn decode_written(body: &[u8]) -> Result<usize, Error> {
    let count = written(body).ok_or(Error::Answer {
        command: Command::Write,
        fault: "it is too short",
    });
    Ok(count? as usize)
}

const fn short_write() -> Error {
    Error::Answer {
        command: Command::Write,
        fault: "not all bytes were written",
    }
}
