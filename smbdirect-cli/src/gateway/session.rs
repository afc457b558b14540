//! One accepted connection, and the connection to the server that belongs to it.

use std::{
    net::SocketAddr,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Instant,
};

use smbdirect_smb::{Refusal, ServerChannel, server_channel::Settings};
use tokio::sync::watch;
use tracing::{Instrument, info_span, warn};

use super::{
    answers,
    carried::{Counters, Counts},
    exchange::Exchange,
    peer::{Peer, Side, Stop},
    requests,
    service::{Event, Service, Totals},
};
use crate::report;

/// Minimum number of data bytes in a READ or WRITE of a TCP client that move by RDMA to the server.
const RDMA_THRESHOLD: u32 = 16 << 10;

/// One accepted connection, and the connection to the server that belongs to it.
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) peer: SocketAddr,
    pub(super) service: Arc<Service>,
    pub(super) started: Instant,
    pub(super) counts: Counts,
}

impl Session {
    /// Forwards messages until either side ends. Each log line of the session names it.
    pub(super) async fn run(self, client: Peer, told_to_end: watch::Receiver<bool>) {
        let span = info_span!("session", id = self.id, client = %self.peer);
        self.carry(client, told_to_end).instrument(span).await;
    }

    async fn carry(self, client: Peer, mut told_to_end: watch::Receiver<bool>) {
        let stop = match self.connect(&client, &mut told_to_end).await {
            Ok(server) => {
                self.report_opened(&client, &server);
                self.carry_both(client, server, &mut told_to_end).await
            }
            Err(stop) => {
                let (_, mut to_client) = client.split(self.service.stall_limit);
                to_client.close().await;
                stop
            }
        };
        self.report_closed(&stop);
    }

    async fn connect(
        &self,
        client: &Peer,
        told_to_end: &mut watch::Receiver<bool>,
    ) -> Result<Peer, Stop> {
        client.prepare(Side::Client, &self.service.config)?;
        let server = tokio::select! {
            server = self.service.connect() => server,
            () = told(told_to_end) => return Err(Stop::Here),
        };
        let server = server.map_err(|error| Stop::Unreachable(format!("{error:#}")))?;
        server.prepare(Side::Server, &self.service.config)?;
        Ok(server)
    }

    async fn carry_both(
        &self,
        client: Peer,
        server: Peer,
        told_to_end: &mut watch::Receiver<bool>,
    ) -> Stop {
        let answers_can_follow = matches!(client, Peer::Tcp(..));
        // A TCP server closes its connection when the gateway shuts down sending; SMB Direct has no
        // such signal.
        let server_goes_on = matches!(server, Peer::SmbDirect(_));
        let stall_limit = self.service.stall_limit;
        let exchange = self.exchange(&server);
        let (mut from_client, mut to_client) = client.split(stall_limit);
        let (mut from_server, mut to_server) = server.split(stall_limit);
        let stop = {
            let mut down = pin!(answers::carry(&exchange, &mut from_server, &mut to_client));
            let stop = tokio::select! {
                stop = requests::carry(&exchange, &mut from_client, &mut to_server) => stop,
                stop = &mut down => stop,
                () = told(told_to_end) => Stop::Here,
            };
            let answers_are_due = answers_can_follow && !(server_goes_on && self.is_answered());
            if answers_are_due && matches!(stop, Stop::Closed(Side::Client)) {
                to_server.finish().await;
                tokio::select! {
                    last = down => match last {
                        Stop::Failed(Side::Server, _) => last,
                        _ => stop,
                    },
                    () = self.counts.silence() => stop,
                    () = told(told_to_end) => stop,
                }
            } else {
                stop
            }
        };
        // A full inbox grants no credits, and closing may need credits.
        drop((from_client, from_server));
        tokio::join!(to_client.close(), to_server.close());
        stop
    }

    /// Returns whether the server has sent as many messages as it received. If so, a client that closes
    /// its connection expects no answer, and the session ends immediately: the server must close the
    /// client's files before the client connects again.
    fn is_answered(&self) -> bool {
        let to_server = self.counts.messages_to_server.load(Relaxed);
        self.counts.messages_to_client.load(Relaxed) >= to_server
    }

    fn exchange(&self, server: &Peer) -> Exchange<'_> {
        let max_read_write_size = match server {
            Peer::SmbDirect(connection) => connection.negotiated().max_read_write_size,
            Peer::Tcp(..) => 0,
        };
        let settings = Settings {
            threshold: RDMA_THRESHOLD,
            max_read_write_size,
        };
        Exchange::new(
            self.id,
            ServerChannel::new(settings),
            self.service.requests.share(),
            self.service.answers.share(),
            self.service.buffers.clone(),
            Counters([&self.counts, &self.service.totals.counts]),
        )
    }

    fn report_opened(&self, client: &Peer, server: &Peer) {
        let Totals { open, total, .. } = &self.service.totals;
        self.service.report.event(&Event::Opened {
            id: self.id,
            peer: self.peer,
            upstream: server.address(),
            client: client.negotiated(),
            server: server.negotiated(),
            open: open.load(Relaxed),
            total: total.load(Relaxed),
        });
    }

    fn report_refused(&self, refusal: &Refusal) {
        Counters([&self.counts, &self.service.totals.counts]).refused();
        let (reason, cure) = (refusal.to_string(), refusal.cure());
        self.service.report.event(&Event::Refused {
            id: self.id,
            peer: self.peer,
            reason: &reason,
            cure,
        });
        warn!(%reason, cure, "a request is refused, and its connection ends");
    }

    fn report_closed(&self, stop: &Stop) {
        let report = self.service.report;
        let Totals {
            open,
            total,
            failed,
            ..
        } = &self.service.totals;
        let open = open.fetch_sub(1, Relaxed) - 1;
        self.service.totals.ends.count(stop);
        let (ok, ended) = (
            !matches!(
                stop,
                Stop::Failed(..) | Stop::Unreachable(_) | Stop::Refused(_)
            ),
            stop.to_string(),
        );
        let how = if ok {
            report.style.dim(&ended)
        } else {
            failed.fetch_add(1, Relaxed);
            report.style.bad(&ended)
        };
        if let Stop::Refused(refusal) = stop {
            self.report_refused(refusal);
        }
        let (took, carried) = (self.started.elapsed(), self.counts.carried());
        report.line(format_args!(
            "{}  {carried} in {}  {how}",
            self.peer,
            report::time(took)
        ));
        report.event(&Event::Closed {
            id: self.id,
            peer: self.peer,
            seconds: took.as_secs_f64(),
            ok,
            ended: &ended,
            carried,
            open,
            total: total.load(Relaxed),
        });
    }
}

/// Waits until this process is told to end.
async fn told(told_to_end: &mut watch::Receiver<bool>) {
    // The result holds a lock, so it is dropped immediately.
    let _ = told_to_end.wait_for(|&told| told).await;
}
