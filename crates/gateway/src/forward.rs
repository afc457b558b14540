//! Forwards the messages of one direction: receives the next one, translates it, and sends it.
//!
//! ```text
//!   client on SMB Direct ── ClientChannel ──┬── in pieces, fetched ahead ─── server on TCP
//!                           requests        └── ServerChannel ────────────── server on SMB Direct
//!   client on TCP ──────────────────────────┬── ServerChannel ────────────── server on SMB Direct
//!                                           └── in pieces ────────────────── server on TCP
//!
//!   server on SMB Direct ── ServerChannel ──┬── ClientChannel, RDMA Write ── client on SMB Direct
//!                           answers         └── unchanged ────────────────── client on TCP
//!   server on TCP ──────────────────────────┬── ClientChannel, RDMA Write ── client on SMB Direct
//!                                           └── in pieces ────────────────── client on TCP
//! ```
//!
//! Buffered messages, memory that data is read into, and registered memory count towards the memory for requests or
//! for answers. When it is used up, the gateway receives no further message from that side.

use std::pin::pin;

use tokio::sync::mpsc;

use crate::{
    answers,
    peer::{Direction, Sink, Source, Stop},
    queue::Queue,
    relay::Relay,
    requests,
};

/// Maximum number of pieces queued for a TCP server. Their memory is limited separately.
const MAX_QUEUED_PIECES: usize = 64;

/// Forwards messages until one side ends. Every complete message that a side sent before its end is sent to the other.
pub(super) async fn forward(relay: Relay<'_>, from: &mut Source, to: &mut Sink) -> Stop {
    let server = match (relay.direction, &*from, to) {
        (Direction::ToServer, Source::SmbDirect(..), Sink::Tcp(server)) => server,
        (_, _, to) => return forward_all(relay, from, to).await,
    };
    let (pieces, waiting) = mpsc::channel(MAX_QUEUED_PIECES);
    let mut sending = pin!(requests::send_pieces(relay, waiting, server));
    let mut queue = Sink::Queue(Queue(pieces));
    let stop = tokio::select! {
        stop = forward_all(relay, from, &mut queue) => stop,
        sent = &mut sending => return sent.err().unwrap_or(Stop::Here),
    };
    drop(queue);
    // The reason why receiving ended is more specific than the reason why sending fails.
    let _ = sending.await;
    stop
}

async fn forward_all(relay: Relay<'_>, from: &mut Source, to: &mut Sink) -> Stop {
    loop {
        if let Err(stop) = forward_next(relay, from, to).await {
            return stop;
        }
    }
}

async fn forward_next(relay: Relay<'_>, from: &mut Source, to: &mut Sink) -> Result<(), Stop> {
    let message = relay.next(from).await?;
    match relay.direction {
        Direction::ToServer => requests::forward(relay, message, to).await,
        Direction::ToClient => {
            answers::forward(relay, message, to).await?;
            relay.exchange.traffic.delivered();
            Ok(())
        }
    }
}
