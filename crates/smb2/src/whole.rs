//! Whole files: several requests outstanding, whose results are taken in order.

use std::{collections::VecDeque, future::Future, io};

use bytes::BytesMut;
use tokio::task::JoinHandle;

use crate::{
    error::Error,
    file::{File, Read, Written},
};

/// Bytes of one request, if the server accepts requests of this size.
const REQUEST_BYTES: usize = 1 << 20;
/// Bytes of the requests that are outstanding. More do not make a transfer faster.
const OUTSTANDING_BYTES: usize = 8 << 20;
/// Maximum number of requests that are outstanding: some servers grant 128 credits or fewer.
const MAX_OUTSTANDING: usize = 32;
/// Bytes that are asked for beyond the length that the server gave. They fit a message, so no memory is registered.
const BYTES_BEYOND: usize = 4095;

/// Bytes that were moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Moved {
    /// All of them.
    pub bytes: u64,
    /// Bytes that moved by RDMA.
    pub by_rdma: u64,
}

impl File {
    /// Reads the file from its beginning to its end, whatever length the server gave, and passes its bytes to `sink` in
    /// order.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read), and [`Error::Local`] with an error of `sink`.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the file and the session usable.
    pub async fn download(
        &self,
        mut sink: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<Moved, Error> {
        let (request_bytes, outstanding) = self.shape();
        let mut pipeline = Pipeline::new();
        let mut moved = Moved::default();
        let (mut asked, mut length) = (0, self.length());
        let mut spare = BytesMut::new();
        loop {
            // Up to the length, and one request more, which finds the end.
            while asked <= length && pipeline.len() < outstanding {
                let wanted = match length - asked {
                    0 => BYTES_BEYOND.min(request_bytes),
                    left => usize::try_from(left)
                        .unwrap_or(usize::MAX)
                        .min(request_bytes),
                };
                let mut buffer = std::mem::take(&mut spare);
                buffer.resize(wanted, 0);
                let (file, at) = (self.clone(), asked);
                asked = asked.saturating_add(wanted as u64);
                pipeline.push(async move { Ok((file.read(at, buffer).await?, wanted)) });
            }
            let next = pipeline.next().await.expect("the end is not found yet");
            let (Read { data, by_rdma, .. }, wanted) = match next {
                // All bytes that the server promised are here. ksmbd, for example, answers a READ at the end of a file
                // with a wrong signature.
                Err(_) if moved.bytes == self.length() => return Ok(moved),
                next => next?,
            };
            sink(&data).map_err(Error::Local)?;
            moved.bytes += data.len() as u64;
            moved.by_rdma += by_rdma as u64;
            if data.len() < wanted {
                return Ok(moved);
            }
            if moved.bytes > length {
                // The file has more than the server said: whole requests until its end.
                length = moved.bytes.saturating_add(request_bytes as u64);
            }
            spare = data;
        }
    }

    /// Writes the file from its beginning. `source` fills a part of a buffer and returns its bytes, as [`io::Read`] does,
    /// and returns 0 at the end.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write), and [`Error::Local`] with an error of `source`.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the file and the session usable. The server may write the data of requests that it has.
    pub async fn upload(
        &self,
        mut source: impl FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> Result<Moved, Error> {
        let (request_bytes, outstanding) = self.shape();
        let mut pipeline = Pipeline::new();
        let mut moved = Moved::default();
        let mut asked = 0;
        let mut is_at_end = false;
        let mut spare = BytesMut::new();
        loop {
            while !is_at_end && pipeline.len() < outstanding {
                let mut buffer = std::mem::take(&mut spare);
                buffer.resize(request_bytes, 0);
                let filled = fill(&mut buffer, &mut source).map_err(Error::Local)?;
                is_at_end = filled < buffer.len();
                buffer.truncate(filled);
                let (file, at) = (self.clone(), asked);
                asked += filled as u64;
                pipeline.push(async move { file.write(at, buffer).await });
            }
            let Some(next) = pipeline.next().await else {
                return Ok(moved);
            };
            let Written { data, by_rdma, .. } = next?;
            moved.bytes += data.len() as u64;
            moved.by_rdma += by_rdma as u64;
            spare = data;
        }
    }

    /// Returns the bytes of a request, and how many requests are outstanding.
    fn shape(&self) -> (usize, usize) {
        let request_bytes = self.requests().max_bytes().min(REQUEST_BYTES);
        let outstanding = (OUTSTANDING_BYTES / request_bytes).clamp(2, MAX_OUTSTANDING);
        (request_bytes, outstanding)
    }
}

/// Fills the buffer as far as the source goes. Returns the number of bytes.
fn fill(
    buffer: &mut [u8],
    source: &mut impl FnMut(&mut [u8]) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match source(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Outstanding requests, oldest first. Dropping it abandons them; those that were sent keep their memory until the
/// server has answered.
struct Pipeline<T> {
    requests: VecDeque<JoinHandle<Result<T, Error>>>,
}

impl<T: Send + 'static> Pipeline<T> {
    const fn new() -> Self {
        Self {
            requests: VecDeque::new(),
        }
    }

    fn len(&self) -> usize {
        self.requests.len()
    }

    fn push(&mut self, request: impl Future<Output = Result<T, Error>> + Send + 'static) {
        self.requests.push_back(tokio::spawn(request));
    }

    /// Returns the result of the oldest request; `None` if there is none.
    async fn next(&mut self) -> Option<Result<T, Error>> {
        let result = self.requests.front_mut()?.await;
        self.requests.pop_front();
        Some(result.expect("requests neither panic nor are aborted while they are waited for"))
    }
}

impl<T> Drop for Pipeline<T> {
    fn drop(&mut self) {
        for request in &self.requests {
            request.abort();
        }
    }
}
