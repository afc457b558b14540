//! An event that a running gateway reports.

use std::net::SocketAddr;

use serde::Serialize;
use smbdirect_transport::NegotiatedReport;

use crate::counters::Carried;

/// An event of a running gateway.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event<'a> {
    /// A session has both of its connections.
    Opened {
        /// The number of the session, from 1.
        id: u64,
        /// The client.
        peer: SocketAddr,
        /// The server.
        upstream: SocketAddr,
        /// The limits negotiated with the client; `None` for TCP.
        client: Option<NegotiatedReport>,
        /// The limits negotiated with the server; `None` for TCP.
        server: Option<NegotiatedReport>,
        /// Sessions that are open now.
        open: u64,
        /// Sessions so far.
        total: u64,
    },
    /// A client sent a request that cannot be translated. The end of its session follows.
    Refused {
        /// The number of the session, from 1.
        id: u64,
        /// The client.
        peer: SocketAddr,
        /// The reason.
        reason: &'a str,
        /// What to try.
        cure: &'static str,
    },
    /// A session has ended.
    Closed {
        /// The number of the session, from 1.
        id: u64,
        /// The client.
        peer: SocketAddr,
        /// Time from its beginning to its end.
        seconds: f64,
        /// Whether it ended without a fault.
        ok: bool,
        /// Why it ended.
        ended: &'a str,
        /// The traffic that it carried.
        #[serde(flatten)]
        carried: Carried,
        /// Sessions that are open now.
        open: u64,
        /// Sessions so far.
        total: u64,
    },
    /// A client was turned away.
    TurnedAway {
        /// The client.
        peer: SocketAddr,
        /// Sessions that are open now.
        open: u64,
        /// The reason.
        reason: &'a str,
    },
    /// The gateway waits for the answers to requests before it ends.
    Draining {
        /// Sessions that are open now.
        open: u64,
        /// Longest time that it waits.
        seconds: f64,
    },
    /// The gateway has ended.
    Summary {
        /// Sessions so far.
        total: u64,
        /// Sessions that ended by a fault.
        failed: u64,
        /// Clients that were turned away, for whatever reason.
        turned_away: u64,
        /// The traffic that it carried.
        #[serde(flatten)]
        carried: Carried,
    },
}
