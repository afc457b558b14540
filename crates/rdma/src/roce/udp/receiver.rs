//! The buffers that a socket receives datagrams into.

use std::{
    fmt,
    io::{self, IoSliceMut},
    mem,
    net::SocketAddr,
};

use bytes::{Bytes, BytesMut};
use quinn_udp::{EcnCodepoint, RecvMeta};

use super::{address::canonical, socket::Socket};
use crate::{
    roce::endpoint::Path,
    software::pool::{Account, Pool},
};

/// The buffers of one system call. Each takes one group of datagrams.
pub(super) struct Receiver {
    /// The buffers, each of [`BLOCK_BYTES`]. A buffer of which messages are slices is replaced before the next
    /// call.
    blocks: [BytesMut; GROUPS],
    metas: [RecvMeta; GROUPS],
    /// Counts the memory of messages that have readers.
    account: Account,
}

/// The most groups of datagrams in one call. With their buffers of 64 KiB they bound the memory of a
/// socket.
const GROUPS: usize = 8;
/// The size of a buffer: the longest group of datagrams that Linux delivers.
const BLOCK_BYTES: usize = 1 << 16;
/// The least length in bytes of a group whose messages may be slices of the buffer. Messages of shorter groups
/// are copied, which costs less than another buffer.
const MIN_SHARED_BYTES: usize = BLOCK_BYTES / 4;

/// The buffers of all sockets.
pub(super) static BLOCKS: Pool = Pool::new(BLOCK_BYTES, 128);

/// One group of datagrams.
#[derive(Debug)]
pub(super) struct Group<'a> {
    /// The two ends.
    pub(super) path: Path,
    memory: Memory<'a>,
    stride: usize,
    /// Whether the datagrams have the mark of congestion (CE). A group has one ECN field.
    pub(super) is_marked: bool,
}

/// The memory of a group.
#[derive(Debug)]
enum Memory<'a> {
    /// The buffer is used again for the next groups.
    Borrowed(&'a [u8]),
    /// Messages may be slices of the buffer.
    Shared(Bytes),
}

impl Receiver {
    /// Makes the buffers of a socket whose messages are counted on `account`.
    pub(super) fn new(account: Account) -> Self {
        Self {
            blocks: Default::default(),
            metas: [RecvMeta::default(); GROUPS],
            account,
        }
    }

    /// Receives groups of datagrams, and returns them.
    pub(super) fn receive<'a>(
        &'a mut self,
        socket: &Socket,
        skip_readiness_check: bool,
    ) -> io::Result<impl Iterator<Item = Group<'a>> + use<'a>> {
        let mut slices = self.blocks.each_mut().map(|block| {
            if block.is_empty() {
                *block = BLOCKS.take();
                block.resize(BLOCK_BYTES, 0);
            }
            IoSliceMut::new(block)
        });
        let count = socket.receive(&mut slices, &mut self.metas, skip_readiness_check)?;
        let local = socket.local();
        let account = &self.account;
        let groups = self.metas.iter().zip(&mut self.blocks).take(count);
        Ok(groups.map(move |(meta, block)| {
            let ip = match local.ip() {
                ip if ip.is_unspecified() => meta.dst_ip.unwrap_or(ip),
                ip => ip,
            };
            Group {
                path: Path {
                    local: canonical(SocketAddr::new(ip, local.port())),
                    remote: canonical(meta.addr),
                },
                memory: Memory::new(block, meta.len, account),
                stride: meta.stride.max(1),
                is_marked: meta.ecn == Some(EcnCodepoint::Ce),
            }
        }))
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

impl<'a> Memory<'a> {
    /// Returns the first `length` bytes of a buffer.
    fn new(block: &'a mut BytesMut, length: usize, account: &Account) -> Self {
        if length < MIN_SHARED_BYTES {
            return Self::Borrowed(&block[..length]);
        }
        let whole = mem::take(block).freeze();
        let group = whole.slice(..length);
        BLOCKS.lend_on(whole, Some(account));
        Self::Shared(group)
    }
}

impl Group<'_> {
    /// Returns the datagrams together.
    fn bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::Borrowed(bytes) => bytes,
            Memory::Shared(bytes) => bytes,
        }
    }

    /// Returns the memory of the datagrams, if messages may be slices of it.
    pub(super) const fn block(&self) -> Option<&Bytes> {
        match &self.memory {
            Memory::Borrowed(_) => None,
            Memory::Shared(bytes) => Some(bytes),
        }
    }

    /// Returns the length of all datagrams together, in bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Returns the datagrams, in the order in which they arrived.
    pub(super) fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes().chunks(self.stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_groups_keep_their_buffer_and_short_ones_leave_it() {
        for (length, is_shared) in [
            (0, false),
            (MIN_SHARED_BYTES - 1, false),
            (MIN_SHARED_BYTES, true),
            (BLOCK_BYTES, true),
        ] {
            let mut block = BytesMut::zeroed(BLOCK_BYTES);
            block[..length].fill(7);
            let place = block.as_ptr();
            let memory = Memory::new(&mut block, length, &Account::default());
            let (bytes, shares): (&[u8], _) = match &memory {
                Memory::Borrowed(bytes) => (bytes, false),
                Memory::Shared(bytes) => (bytes, true),
            };
            assert_eq!((bytes.as_ptr(), shares), (place, is_shared), "{length}");
            assert_eq!(bytes, vec![7; length]);
            drop(memory);
            // The next call replaces a buffer that is gone.
            assert_eq!(block.is_empty(), is_shared, "{length}");
        }
    }
}
