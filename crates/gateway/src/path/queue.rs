//! The queue of pieces of requests for a TCP server. Their data is fetched while pieces before it are sent.

use smbdirect::{Message, Reading};
use tokio::sync::mpsc;

use crate::path::memory::Grant;

/// A piece of the stream to a TCP server.
pub(crate) enum Piece {
    /// A message of this many bytes begins.
    Begin(usize),
    /// Bytes of the message, with the memory that they hold.
    Bytes(Message, Option<Grant>),
    /// Bytes that an RDMA Read fetches from the memory of the client.
    Fetched(Reading, Grant),
}

/// The pieces that wait to be sent to a TCP server.
pub(crate) struct Queue(pub(crate) mpsc::Sender<Piece>);

impl Queue {
    /// Adds a piece, after waiting for room.
    pub(crate) async fn put(&self, piece: Piece) {
        // The result is ignored: the receiver of the queue lives as long as this task.
        let _ = self.0.send(piece).await;
    }
}
