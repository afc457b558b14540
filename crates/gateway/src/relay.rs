//! The functions of both directions that forward a message: receiving it, memory for it, and sending it.

use bytes::{Buf, Bytes};
use smbdirect::{Connection, Message, Token};
use smbdirect_smb::{ClientChannel, ServerChannel};

use crate::{
    exchange::Exchange,
    incoming::{Content, Incoming, failed, gone, unless_gone},
    memory::Grant,
    peer::{Direction, Sink, Source, Stop},
    queue::Piece,
    tcp,
};

/// One direction of a session.
#[derive(Clone, Copy)]
pub(super) struct Relay<'a> {
    pub(super) exchange: &'a Exchange<'a>,
    pub(super) direction: Direction,
}

impl Relay<'_> {
    /// Receives the next message: all of it by SMB Direct, and at least the bytes that decide by TCP.
    pub(super) async fn next(self, from: &mut Source) -> Result<Incoming<'_>, Stop> {
        let side = self.direction.from();
        let is_request = self.direction == Direction::ToServer;
        if is_request {
            self.exchange.check_serving()?;
        }
        let head = if is_request {
            ServerChannel::REQUEST_HEAD
        } else {
            ClientChannel::ANSWER_HEAD
        };
        let content = match from {
            Source::SmbDirect(connection, first) => {
                if is_request {
                    unless_gone(gone(connection), self.exchange.client_channel_room()).await?;
                }
                let message = match first.take() {
                    Some(first) => Ok(first),
                    None => connection.recv().await,
                };
                Content::Whole(message.map_err(|error| Stop::of(side, &error))?, connection)
            }
            Source::Tcp(source) => {
                let length = source.message(head).await.map_err(failed(side))?;
                length.ok_or(Stop::Closed(side))?;
                Content::Begun(source)
            }
        };
        let message = Incoming { side, content };
        let head = message.head(head);
        self.exchange
            .traffic
            .received(self.direction, &head, message.arrived());
        if is_request {
            self.exchange.learn_client(&head);
        } else {
            self.exchange.seat.server.has_answered();
        }
        drop(head);
        Ok(message)
    }

    /// Waits for memory for a message that is buffered, or that has data in memory of the gateway.
    pub(super) async fn memory(self, message: &Incoming<'_>, bytes: usize) -> Result<Grant, Stop> {
        match self.direction {
            Direction::ToServer => message.memory_for_request(self.exchange, bytes).await,
            Direction::ToClient => Ok(self.exchange.answer_memory(bytes).await),
        }
    }

    /// Checks that the other side, which takes at most `most` bytes, takes a message of `length` bytes.
    pub(super) fn check_length(self, length: usize, most: u32) -> Result<(), Stop> {
        if length > most as usize {
            return Err(Stop::too_long(self.direction.from(), length, most));
        }
        Ok(())
    }

    /// Sends a message unchanged; to a client on SMB Direct with the invalidation of a token.
    pub(super) async fn pass(
        self,
        mut message: Incoming<'_>,
        to: &mut Sink,
        invalidate: Option<Token>,
    ) -> Result<(), Stop> {
        let length = message.remaining();
        self.check_length(length, to.longest())?;
        if let Content::Whole(whole, _) = message.content {
            return self.pass_whole(whole, to, invalidate).await;
        }
        let buffers = &self.exchange.buffers;
        match to {
            Sink::SmbDirect(to) => {
                let _grant = self.memory(&message, length).await?;
                let mut pieces = Vec::new();
                while message.remaining() > 0 {
                    pieces.push(message.piece(length, buffers).await?);
                }
                let whole = pieces.iter().cloned().collect();
                self.send(to, whole, invalidate, length).await?;
                pieces
                    .into_iter()
                    .for_each(|piece| buffers.give_chunk(piece));
            }
            Sink::Tcp(to) => {
                let failed = failed(self.direction.to());
                self.exchange.traffic.forwarded(self.direction, length);
                let mut before = Bytes::copy_from_slice(&tcp::header(length).map_err(&failed)?);
                while message.remaining() > 0 {
                    let piece = message.piece(length, buffers).await?;
                    let writing = to.write((&mut before).chain(piece.clone()));
                    self.to_peer(writing).await.map_err(&failed)?;
                    buffers.give_chunk(piece);
                }
            }
            Sink::Queue(_) => unreachable!("only messages of SMB Direct are queued"),
        }
        Ok(())
    }

    async fn pass_whole(
        self,
        message: Message,
        to: &mut Sink,
        invalidate: Option<Token>,
    ) -> Result<(), Stop> {
        let length = message.len();
        match to {
            Sink::SmbDirect(to) => self.send(to, message, invalidate, length).await,
            Sink::Tcp(to) => {
                self.exchange.traffic.forwarded(self.direction, length);
                let put = self.to_peer(to.put(message)).await;
                put.map_err(failed(self.direction.to()))
            }
            Sink::Queue(queue) => {
                let grant = self.exchange.request_memory(length).await;
                queue.put(Piece::Begin(length)).await;
                queue.put(Piece::Bytes(message, Some(grant))).await;
                Ok(())
            }
        }
    }

    /// Sends a message by SMB Direct. `length` is its length together with the data that moves by RDMA for it.
    pub(super) async fn send(
        self,
        to: &Connection,
        message: Message,
        invalidate: Option<Token>,
        length: usize,
    ) -> Result<(), Stop> {
        let sending = match invalidate {
            Some(token) => to.send_and_invalidate(message, token),
            None => to.send(message),
        };
        let Self { direction, .. } = self;
        let failed = |error| Stop::of_send(direction.from(), direction.to(), error);
        let sending = sending.map_err(failed)?;
        // Count before the wait: the peer may receive the message, and end the session, before this task continues.
        self.exchange.traffic.forwarded(direction, length);
        let sent = self.to_peer(sending).await;
        sent.map_err(|error| Stop::of(direction.to(), &error))
    }

    /// Waits until the peer has taken what is sent. The wait for a client counts as one for its window; the wait for a
    /// server is one of those for its answers.
    async fn to_peer<T>(self, sending: impl Future<Output = T>) -> T {
        match self.direction {
            Direction::ToClient => self.exchange.traffic.window(sending).await,
            Direction::ToServer => sending.await,
        }
    }
}
