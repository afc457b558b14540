//! Functions that both directions use to forward messages.

use bytes::{Buf, Bytes};
use smbdirect_smb::smb2::Header;

use super::{
    exchange::Exchange,
    peer::{Side, Stop},
    tcp,
};

/// The success value of a direction's result: it has none, because a direction ends only with a [`Stop`].
pub(super) enum Never {}

/// Returns the rest of a message in one piece.
pub(super) async fn whole(
    exchange: &Exchange<'_>,
    source: &mut tcp::Source,
) -> Result<Bytes, tcp::Fault> {
    let length = source.remaining();
    if source.head().len() == length {
        return source.take(length).await;
    }
    let mut whole = exchange.region(length);
    whole.clear();
    source.fill(&mut whole, length).await?;
    Ok(whole.freeze())
}

/// Forwards messages from one TCP connection to another, in pieces.
pub(super) async fn tcp_to_tcp(
    exchange: &Exchange<'_>,
    from: &mut tcp::Source,
    to: &mut tcp::Sink,
    side: Side,
    count: impl Fn(usize),
) -> Result<Never, Stop> {
    let other = match side {
        Side::Client => Side::Server,
        Side::Server => Side::Client,
    };
    loop {
        if side == Side::Client {
            exchange.check_serving()?;
        }
        let length = from.message(Header::LENGTH).await;
        let length = length.map_err(|fault| Stop::of_tcp(side, &fault))?;
        let Some(length) = length else {
            return Err(Stop::Closed(side));
        };
        match side {
            Side::Client => exchange.counters.note_request(from.head()),
            Side::Server => exchange.counters.note_answer(from.head()),
        }
        let header = tcp::header(length).map_err(|fault| Stop::of_tcp(side, &fault))?;
        let mut before = Bytes::copy_from_slice(&header);
        while from.remaining() > 0 {
            let piece = from.piece(length, &exchange.buffers).await;
            let piece = piece.map_err(|fault| Stop::of_tcp(side, &fault))?;
            let written = to.write((&mut before).chain(piece.clone())).await;
            written.map_err(|fault| Stop::of_tcp(other, &fault))?;
            exchange.buffers.give_chunk(piece);
        }
        count(length);
    }
}
