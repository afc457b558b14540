//! Log lines about connections, and their end.

use std::{net::SocketAddr, time::Duration};

use smbdirect::{Connection, ConnectionError};
use tokio::time::timeout;
use tracing::{Span, debug, error_span, field};

/// Creates a span for the command's log lines about a connection, with the name and the fields of
/// the library's span. Do not connect in it: the library's span would be its child, and each line
/// would name the connection twice.
pub fn connection_span(connection: &Connection) -> Span {
    let span = peer_span(connection.peer_addr());
    span.record("local", field::display(connection.local_addr()));
    span
}

/// Creates the span of a connection of which only the peer is known.
pub fn peer_span(peer: SocketAddr) -> Span {
    error_span!("connection", %peer, local = field::Empty)
}

/// Closes a connection gracefully, and stops waiting after `limit`. A peer that has not answered in time does not
/// answer the end either, so that a connection that timed out ends in the background.
pub async fn close(connection: &Connection, limit: Duration) {
    if matches!(connection.error(), Some(ConnectionError::TimedOut(_))) {
        return;
    }
    let closed = timeout(limit, connection.close()).await;
    connection_span(connection).in_scope(|| match closed {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "the connection did not end well"),
        Err(_) => debug!("the connection does not end"),
    });
}
