//! One accepted connection and what becomes of it.

use std::{
    net::SocketAddr,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use tokio::{sync::watch, time::sleep};

use super::{
    Count, Counts, Event, Totals, Way,
    peer::{Direction, Peer, Side, Stop},
};
use crate::report;

/// A TCP client that sends no more may wait for answers; after so long without one it does not.
const LINGER: Duration = Duration::from_secs(2);

/// One accepted connection and what becomes of it.
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) peer: SocketAddr,
    pub(super) way: Arc<Way>,
    pub(super) started: Instant,
    pub(super) counts: Counts,
}

impl Session {
    pub(super) async fn run(self, client: Peer, mut told_to_end: watch::Receiver<bool>) {
        let stop = match self.connect(&client, &mut told_to_end).await {
            Ok(server) => {
                self.report_opened(&client, &server);
                self.carry_both(client, server, &mut told_to_end).await
            }
            Err(stop) => {
                let (_, mut to_client) = client.split(self.way.stall_limit);
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
        client.prepare(Side::Client, &self.way.config)?;
        let server = tokio::select! {
            server = self.way.connect() => server,
            () = told(told_to_end) => return Err(Stop::Here),
        };
        let server = server.map_err(|error| Stop::Failed(Side::Server, format!("{error:#}")))?;
        server.prepare(Side::Server, &self.way.config)?;
        Ok(server)
    }

    async fn carry_both(
        &self,
        client: Peer,
        server: Peer,
        told_to_end: &mut watch::Receiver<bool>,
    ) -> Stop {
        let answers_can_follow = matches!(client, Peer::Tcp(..));
        let stall_limit = self.way.stall_limit;
        let (mut from_client, mut to_client) = client.split(stall_limit);
        let (mut from_server, mut to_server) = server.split(stall_limit);
        let stop = {
            let up = Direction {
                from: Side::Client,
                to: Side::Server,
                counts: [&self.counts.to_server, &self.way.totals.counts.to_server],
            };
            let down = Direction {
                from: Side::Server,
                to: Side::Client,
                counts: [&self.counts.to_client, &self.way.totals.counts.to_client],
            };
            let mut down = pin!(down.carry(&mut from_server, &mut to_client));
            let stop = tokio::select! {
                stop = up.carry(&mut from_client, &mut to_server) => stop,
                stop = &mut down => stop,
                () = told(told_to_end) => Stop::Here,
            };
            if answers_can_follow && matches!(stop, Stop::Closed(Side::Client)) {
                to_server.finish().await;
                tokio::select! {
                    last = down => match last {
                        Stop::Failed(Side::Server, _) => last,
                        _ => stop,
                    },
                    () = silence(&self.counts.to_client) => stop,
                    () = told(told_to_end) => stop,
                }
            } else {
                stop
            }
        };
        // A full inbox would withhold the credits that a close may need.
        drop((from_client, from_server));
        tokio::join!(to_client.close(), to_server.close());
        stop
    }

    fn report_opened(&self, client: &Peer, server: &Peer) {
        let Totals { open, total, .. } = &self.way.totals;
        self.way.report.event(&Event::Opened {
            id: self.id,
            peer: self.peer,
            upstream: server.address(),
            client: client.negotiated(),
            server: server.negotiated(),
            open: open.load(Relaxed),
            total: total.load(Relaxed),
        });
    }

    fn report_closed(&self, stop: &Stop) {
        let report = self.way.report;
        let Totals {
            open,
            total,
            failed,
            ..
        } = &self.way.totals;
        let open = open.fetch_sub(1, Relaxed) - 1;
        let (ok, ended) = (!matches!(stop, Stop::Failed(..)), stop.to_string());
        let how = if ok {
            report.style.dim(&ended)
        } else {
            failed.fetch_add(1, Relaxed);
            report.style.bad(&ended)
        };
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
    // The lock in the result is not to be kept.
    let _ = told_to_end.wait_for(|&told| told).await;
}

/// Waits until nothing has been counted for [`LINGER`].
async fn silence(count: &Count) {
    loop {
        let before = count.messages.load(Relaxed);
        sleep(LINGER).await;
        if count.messages.load(Relaxed) == before {
            return;
        }
    }
}
