//! An observer of the bytes on the wire.

use std::{fmt, net::SocketAddr};

use crate::software::direction::Direction;

/// An observer of the bytes of connections, startup frames included, for example to write captures.
pub trait Tap: Send + Sync + fmt::Debug {
    /// Receives the next `bytes` that the socket accepted or delivered in their direction.
    fn bytes(&self, direction: Direction, local: SocketAddr, remote: SocketAddr, bytes: &[u8]);

    /// Reports that one system call moved `count` bytes of FPDUs, or 0 bytes if the socket was full
    /// or empty. [`bytes`](Self::bytes) receives the same bytes, in one or several calls.
    fn call(&self, direction: Direction, count: usize) {
        let _ = (direction, count);
    }
}
