//! One accepted connection, and the connection to the server that belongs to it.

use std::{
    net::SocketAddr,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use smbdirect_smb::{Refusal, ServerChannel, server_channel::Settings};
use tokio::time::sleep;
use tracing::{Instrument, info_span, warn};

use super::{
    counters::{SessionTraffic, Traffic},
    event::Event,
    exchange::Exchange,
    forward::forward,
    live::Live,
    peer::{Direction, Peer, Side, Stop},
    phase::{Phase, Phases},
    relay::Relay,
    service::Service,
};

/// Minimum number of data bytes in a READ or WRITE of a TCP client that move by RDMA to the server.
const RDMA_THRESHOLD: u32 = 16 << 10;

/// Interval between two checks whether every request of a draining session is answered.
const QUIET_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Consecutive checks that must find every request answered before the session ends. One check is not
/// enough, because a request that was just taken is not counted before it is sent.
const QUIET_POLLS: u32 = 5;

/// One accepted connection, and the connection to the server that belongs to it.
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) peer: SocketAddr,
    pub(super) service: Arc<Service>,
    /// The settings when the session began.
    pub(super) live: Arc<Live>,
    pub(super) phases: Phases,
    pub(super) started: Instant,
    pub(super) traffic: Traffic,
}

impl Session {
    /// Forwards messages until either side ends. Each log line of the session names it.
    pub(super) async fn run(self, client: Peer) {
        let span = info_span!("session", id = self.id, client = %self.peer);
        self.carry(client).instrument(span).await;
    }

    async fn carry(self, client: Peer) {
        let stop = match self.connect(&client).await {
            Ok(server) => {
                self.report_opened(&client, &server);
                self.carry_both(client, server).await
            }
            Err(stop) => {
                let (_, mut to_client) = client.split(self.live.stall_limit);
                to_client.close().await;
                stop
            }
        };
        self.report_closed(&stop);
    }

    async fn connect(&self, client: &Peer) -> Result<Peer, Stop> {
        let (config, stall_limit) = (&self.service.settings.config, self.live.stall_limit);
        client.prepare(Side::Client, config, stall_limit)?;
        let server = tokio::select! {
            server = self.service.connect(&self.live.upstream) => server,
            () = self.phases.reached(Phase::Draining) => return Err(Stop::Here),
        };
        let server = server.map_err(|error| Stop::Unreachable(format!("{error:#}")))?;
        server.prepare(Side::Server, config, stall_limit)?;
        Ok(server)
    }

    async fn carry_both(&self, client: Peer, server: Peer) -> Stop {
        let answers_can_follow = matches!(client, Peer::Tcp(..));
        // A TCP server closes its connection when the gateway shuts down sending; SMB Direct has no
        // such signal.
        let server_goes_on = matches!(server, Peer::SmbDirect(_));
        let stall_limit = self.live.stall_limit;
        let exchange = self.exchange(&server);
        let (mut from_client, mut to_client) = client.split(stall_limit);
        let (mut from_server, mut to_server) = server.split(stall_limit);
        let stop = {
            let relay = |direction| Relay {
                exchange: &exchange,
                direction,
            };
            let answers = relay(Direction::ToClient);
            let mut down = pin!(forward(answers, &mut from_server, &mut to_client));
            let requests = relay(Direction::ToServer);
            let mut answers_go_on = true;
            let stop = tokio::select! {
                stop = forward(requests, &mut from_client, &mut to_server) => stop,
                stop = &mut down => {
                    answers_go_on = false;
                    stop
                }
                () = self.drained() => Stop::Here,
                () = self.phases.reached(Phase::Ending) => Stop::Here,
            };
            if answers_go_on && matches!(stop, Stop::Here) {
                // No further request is taken. The answers to the others are due.
                tokio::select! {
                    () = self.drained() => {}
                    _ = &mut down => {}
                    () = self.phases.reached(Phase::Ending) => {}
                }
            }
            // If every request is answered, the session ends immediately: the server must close the client's
            // files before the client connects again.
            let answers_are_due =
                answers_can_follow && !(server_goes_on && self.traffic.is_answered());
            if answers_are_due && matches!(stop, Stop::Closed(Side::Client)) {
                to_server.finish().await;
                tokio::select! {
                    last = down => match last {
                        Stop::Failed(Side::Server, _) => last,
                        _ => stop,
                    },
                    () = self.traffic.silence() => stop,
                    () = self.phases.reached(Phase::Ending) => stop,
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

    /// Waits until the gateway drains and every request has been answered for a moment.
    async fn drained(&self) {
        self.phases.reached(Phase::Draining).await;
        let mut quiet = 0;
        while quiet < QUIET_POLLS {
            sleep(QUIET_POLL_INTERVAL).await;
            quiet = if self.traffic.is_answered() {
                quiet + 1
            } else {
                0
            };
        }
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
            self.session_traffic(),
            self.phases.clone(),
        )
    }

    fn session_traffic(&self) -> SessionTraffic<'_> {
        SessionTraffic {
            session: &self.traffic,
            all: &self.service.counters.traffic,
        }
    }

    fn report_opened(&self, client: &Peer, server: &Peer) {
        let counters = &self.service.counters;
        self.service.report(&Event::Opened {
            id: self.id,
            peer: self.peer,
            upstream: server.address(),
            client: client.negotiated(),
            server: server.negotiated(),
            open: counters.open.load(Relaxed),
            total: counters.total.load(Relaxed),
        });
    }

    fn report_refused(&self, refusal: &Refusal) {
        self.session_traffic().refused();
        let (reason, cure) = (refusal.to_string(), refusal.cure());
        self.service.report(&Event::Refused {
            id: self.id,
            peer: self.peer,
            reason: &reason,
            cure,
        });
        warn!(%reason, cure, "a request is refused, and its connection ends");
    }

    fn report_closed(&self, stop: &Stop) {
        let counters = &self.service.counters;
        let open = counters.open.fetch_sub(1, Relaxed) - 1;
        counters.ended(stop);
        let ok = matches!(stop, Stop::Closed(_) | Stop::Here);
        if !ok {
            counters.failed.fetch_add(1, Relaxed);
        }
        if let Stop::Refused(refusal) = stop {
            self.report_refused(refusal);
        }
        self.service.report(&Event::Closed {
            id: self.id,
            peer: self.peer,
            seconds: self.started.elapsed().as_secs_f64(),
            ok,
            ended: &stop.to_string(),
            carried: self.traffic.carried(),
            open,
            total: counters.total.load(Relaxed),
        });
    }
}
