//! The buffers that a socket receives datagrams into.

use std::{
    fmt,
    io::{self, IoSliceMut},
    net::SocketAddr,
};

use quinn_udp::RecvMeta;

use super::{address::canonical, socket::Socket};
use crate::rdma::roce::endpoint::Path;

/// The buffers of one system call. Each takes one group of datagrams.
pub(super) struct Receiver {
    memory: Vec<u8>,
    metas: [RecvMeta; GROUPS],
}

/// The most groups of datagrams in one call. With their buffers of 64 KiB they bound the memory of a
/// socket.
const GROUPS: usize = 8;
/// The size of a buffer: the longest group of datagrams that Linux delivers.
const BUFFER_LENGTH: usize = 1 << 16;

/// One group of datagrams.
#[derive(Debug)]
pub(super) struct Group<'a> {
    /// The two ends.
    pub(super) path: Path,
    bytes: &'a [u8],
    stride: usize,
}

impl Receiver {
    pub(super) fn new() -> Self {
        Self {
            memory: vec![0; GROUPS * BUFFER_LENGTH],
            metas: [RecvMeta::default(); GROUPS],
        }
    }

    /// Receives groups of datagrams, and returns them.
    pub(super) fn receive<'a>(
        &'a mut self,
        socket: &Socket,
        skip_readiness_check: bool,
    ) -> io::Result<impl Iterator<Item = Group<'a>> + use<'a>> {
        let mut buffers = self.memory.chunks_exact_mut(BUFFER_LENGTH);
        let mut slices = [(); GROUPS].map(|()| {
            let buffer = buffers
                .next()
                .expect("the memory has a buffer for each group");
            IoSliceMut::new(buffer)
        });
        let count = socket.receive(&mut slices, &mut self.metas, skip_readiness_check)?;
        let local = socket.local();
        let buffers = self.memory.chunks_exact(BUFFER_LENGTH);
        let groups = self.metas.iter().zip(buffers).take(count);
        Ok(groups.map(move |(meta, buffer)| {
            let ip = match local.ip() {
                ip if ip.is_unspecified() => meta.dst_ip.unwrap_or(ip),
                ip => ip,
            };
            Group {
                path: Path {
                    local: canonical(SocketAddr::new(ip, local.port())),
                    remote: canonical(meta.addr),
                },
                bytes: &buffer[..meta.len],
                stride: meta.stride.max(1),
            }
        }))
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

impl<'a> Group<'a> {
    /// Returns the length of all datagrams together, in bytes.
    pub(super) const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the datagrams, in the order in which they arrived.
    pub(super) fn datagrams(&self) -> impl Iterator<Item = &'a [u8]> {
        self.bytes.chunks(self.stride)
    }
}
