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

    /// Receives groups of datagrams and passes each to `take`. Returns their number.
    pub(super) fn receive(
        &mut self,
        socket: &Socket,
        skip_readiness_check: bool,
        mut take: impl FnMut(&Group<'_>),
    ) -> io::Result<usize> {
        let mut buffers = self.memory.chunks_exact_mut(BUFFER_LENGTH);
        let mut slices = [(); GROUPS].map(|()| {
            let buffer = buffers
                .next()
                .expect("the memory has a buffer for each group");
            IoSliceMut::new(buffer)
        });
        let count = socket.receive(&mut slices, &mut self.metas, skip_readiness_check)?;
        let buffers = self.memory.chunks_exact(BUFFER_LENGTH);
        for (meta, buffer) in self.metas.iter().zip(buffers).take(count) {
            let ip = match socket.local().ip() {
                ip if ip.is_unspecified() => meta.dst_ip.unwrap_or(ip),
                ip => ip,
            };
            take(&Group {
                path: Path {
                    local: canonical(SocketAddr::new(ip, socket.local().port())),
                    remote: canonical(meta.addr),
                },
                bytes: &buffer[..meta.len],
                stride: meta.stride.max(1),
            });
        }
        Ok(count)
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

impl<'a> Group<'a> {
    /// Returns the datagrams, in the order in which they arrived.
    pub(super) fn datagrams(&self) -> impl Iterator<Item = &'a [u8]> {
        self.bytes.chunks(self.stride)
    }
}
