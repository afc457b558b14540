//! An event that a running gateway reports.

use std::net::SocketAddr;

use serde::Serialize;
use smbdirect_transport::NegotiatedReport;

use crate::{
    admission::turned_away::SinceLastLine, figures::counters::Carried, servers::state::Seen,
};

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
        /// The trusted proxy that the client came through, if there is one.
        #[serde(skip_serializing_if = "Option::is_none")]
        proxy: Option<SocketAddr>,
        /// The address of the server.
        upstream: SocketAddr,
        /// The server, as the settings name it.
        server_name: &'a str,
        /// The limits negotiated with the client; `None` for TCP.
        client: Option<NegotiatedReport>,
        /// The limits negotiated with the server; `None` for TCP.
        server: Option<NegotiatedReport>,
        /// Time that the client took to connect and negotiate SMB Direct.
        negotiate_seconds: f64,
        /// Time that connecting to the server took.
        connect_seconds: f64,
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
    Closed(Closed<'a>),
    /// A client was turned away.
    TurnedAway {
        /// The client.
        peer: SocketAddr,
        /// Sessions that are open now.
        open: u64,
        /// The reason.
        reason: &'a str,
        /// What a line in the log says about others. `None` if the last line about the address is less than a minute old:
        /// then there should be no other one.
        #[serde(skip)]
        since_last_line: Option<SinceLastLine>,
    },
    /// A server takes clients again.
    ServerUp {
        /// The server, as the settings name it.
        server: &'a str,
    },
    /// A server gets no new clients, because its checks fail. Its sessions continue.
    ServerDown {
        /// The server, as the settings name it.
        server: &'a str,
        /// What the last check saw.
        state: Seen,
        /// Why the last check failed.
        reason: &'a str,
    },
    /// Neither the checks of a server nor its sessions have an answer, so its sessions end.
    ServerGivenUp {
        /// The server, as the settings name it.
        server: &'a str,
        /// Why the last check failed.
        reason: &'a str,
    },
    /// The gateway waits for the answers to requests before it ends.
    Draining {
        /// Sessions that are open now.
        open: u64,
        /// Longest time that it waits; `None` without a limit.
        seconds: Option<f64>,
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

/// A session that has ended.
#[derive(Debug, Serialize)]
pub struct Closed<'a> {
    /// The number of the session, from 1.
    pub id: u64,
    /// The client.
    pub peer: SocketAddr,
    /// The trusted proxy that the client came through, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy: Option<SocketAddr>,
    /// The server, as the settings name it; `None` if none was reached.
    pub server_name: Option<&'a str>,
    /// Time that the client took to connect and negotiate SMB Direct.
    pub negotiate_seconds: f64,
    /// Time that connecting to the server took.
    pub connect_seconds: f64,
    /// Time from the client's connection to the end of the session.
    pub seconds: f64,
    /// Whether it ended without a fault.
    pub ok: bool,
    /// Why it ended.
    pub ended: &'a str,
    /// The traffic that it carried.
    #[serde(flatten)]
    pub carried: Carried,
    /// Sessions that are open now.
    pub open: u64,
    /// Sessions so far.
    pub total: u64,
}
