//! One accepted connection, and the connection to the server that belongs to it.

pub(crate) mod connect;
pub(crate) mod event;
pub(crate) mod places;
pub(crate) mod service;
pub(crate) mod state;

use std::{
    net::SocketAddr,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use smbdirect_smb::{Refusal, ServerChannel, server_channel::Settings};
use smbdirect_transport::NegotiatedReport;
use tokio::time::sleep;
use tracing::{error, warn};

use crate::{
    figures::counters::SessionTraffic,
    live::Live,
    path::{
        answers::Answers,
        exchange::Exchange,
        peer::{Peer, Sink, Source},
        requests::Requests,
    },
    phase::{Phase, Phases},
    servers::Seat,
    session::{
        event::{Closed, Event},
        places::Place,
        service::{Outgoing, Service},
        state::SessionState,
    },
    stop::{Side, Stop},
};

/// Minimum number of data bytes in a READ or WRITE of a TCP client that move by RDMA to the server.
const RDMA_THRESHOLD: u32 = 16 << 10;

/// Interval between two checks whether every request of a draining session is answered.
const QUIET_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Consecutive checks that must find every request answered before the session ends. One check is not
/// enough, because a request that was just taken is not counted before it is sent.
const QUIET_POLLS: u32 = 5;

/// One accepted connection, and the connection to the server that belongs to it.
pub(crate) struct Session {
    pub(crate) state: Arc<SessionState>,
    pub(crate) place: Place,
    /// The address that the connection comes from: that of the client, or of its proxy.
    pub(crate) peer: SocketAddr,
    pub(crate) service: Arc<Service>,
    /// The settings when the session began.
    pub(crate) live: Arc<Live>,
    pub(crate) phases: Phases,
}

/// The connection to a server, and the seat there.
pub(crate) struct Connected {
    pub(crate) server: Peer,
    pub(crate) seat: Seat,
    /// Whether the client may still tell its ClientGuid, because it has begun with SMB1.
    pub(crate) is_unknown: bool,
    pub(crate) _outgoing: Outgoing,
}

impl Session {
    /// Forwards messages until either side ends.
    pub(crate) async fn carry(&mut self, client: Peer) -> Stop {
        if let Err(stop) = client.prepare(Side::Client, &self.service.settings.config) {
            return stop;
        }
        let here = client.local();
        let negotiated = client.negotiated();
        let client_id = client.connection_id();
        let is_tcp = matches!(client, Peer::Tcp(..));
        let (mut from_client, mut to_client) = client.split(Side::Client, self.live.stall_limit);
        let (phases, state) = (self.phases.clone(), self.state.clone());
        let connected = tokio::select! {
            connected = self.connect(&mut from_client, here) => connected,
            () = phases.reached(Phase::Draining) => Err(Stop::Here),
            () = state.ended() => Err(Stop::Ended),
        };
        match connected {
            Ok(connected) => {
                let server_id = connected.server.connection_id();
                self.state.set_connections([client_id, server_id]);
                self.report_opened(negotiated, &connected);
                self.carry_both(from_client, to_client, connected, is_tcp)
                    .await
            }
            Err(stop) => {
                drop(from_client);
                to_client.close().await;
                stop
            }
        }
    }

    async fn carry_both(
        &self,
        mut from_client: Source,
        mut to_client: Sink,
        connected: Connected,
        answers_can_follow: bool,
    ) -> Stop {
        let Connected {
            server,
            seat,
            is_unknown,
            _outgoing,
        } = connected;
        // A TCP server closes its connection when the gateway shuts down sending; SMB Direct has no
        // such signal.
        let server_goes_on = matches!(server, Peer::SmbDirect(_));
        let exchange = self.exchange(&server, &seat, is_unknown);
        let (mut from_server, mut to_server) = server.split(Side::Server, self.live.stall_limit);
        let stop = {
            let leaving = from_client.leaving();
            // A client on TCP can wait for answers after it has finished sending.
            let mut left = pin!(async {
                leaving.wait().await;
                self.state.traffic.silence().await;
            });
            let (requests, answers) = (Requests(&exchange), Answers(&exchange));
            let mut down = pin!(answers.forward(&mut from_server, &mut to_client));
            let (mut answers_go_on, mut has_left) = (true, false);
            let stop = tokio::select! {
                stop = requests.forward(&mut from_client, &mut to_server) => stop,
                stop = &mut down => {
                    answers_go_on = false;
                    stop
                }
                () = self.drained() => Stop::Here,
                stop = self.cut(&seat) => stop,
                // The server takes no more requests, so that the end of the client is not received.
                () = &mut left => {
                    has_left = true;
                    Stop::Closed(Side::Client)
                }
            };
            if answers_go_on && matches!(stop, Stop::Here) {
                // No further request is taken. The answers to the others are due.
                tokio::select! {
                    () = self.drained() => {}
                    _ = &mut down => {}
                    // The client may leave without its answers.
                    () = left => {}
                    _ = self.cut(&seat) => {}
                }
            }
            // If every request is answered, the session ends immediately: the server must close the client's
            // files before the client connects again.
            let answers_are_due = answers_can_follow
                && !has_left
                && !(server_goes_on && self.state.traffic.is_answered());
            if answers_are_due && matches!(stop, Stop::Closed(Side::Client)) {
                to_server.finish().await;
                tokio::select! {
                    last = down => match last {
                        Stop::Failed(Side::Server, _) => last,
                        _ => stop,
                    },
                    () = self.state.traffic.silence() => stop,
                    _ = self.cut(&seat) => stop,
                }
            } else {
                stop
            }
        };
        drop(from_server);
        if let Stop::Closed(Side::Server) | Stop::Failed(Side::Server, _) = stop {
            // The last answers are on the way to a client that may go on sending.
            to_client.finish().await;
            tokio::select! {
                () = from_client.discard() => {}
                () = self.phases.reached(Phase::Draining) => {}
            }
        }
        // A full inbox grants no credits, and closing may need credits.
        drop(from_client);
        tokio::join!(to_client.close(), to_server.close());
        stop
    }

    /// Waits for a reason to end the session immediately, whatever is unanswered.
    async fn cut(&self, seat: &Seat) -> Stop {
        tokio::select! {
            () = self.phases.reached(Phase::Ending) => Stop::Here,
            () = self.state.ended() => Stop::Ended,
            () = seat.server.given_up() => {
                let what = "its checks and its sessions get no answers, so its sessions end";
                Stop::Failed(Side::Server, what.into())
            }
        }
    }

    /// Waits until the gateway drains and every request has been answered for a moment.
    async fn drained(&self) {
        self.phases.reached(Phase::Draining).await;
        let mut quiet = 0;
        while quiet < QUIET_POLLS {
            sleep(QUIET_POLL_INTERVAL).await;
            quiet = if self.state.traffic.is_answered() {
                quiet + 1
            } else {
                0
            };
        }
    }

    fn exchange<'a>(&'a self, server: &Peer, seat: &'a Seat, is_unknown: bool) -> Exchange<'a> {
        let max_read_write_size = match server {
            Peer::SmbDirect(connection) => connection.negotiated().max_read_write_size,
            Peer::Tcp(..) => 0,
        };
        let settings = Settings {
            threshold: RDMA_THRESHOLD,
            max_read_write_size,
        };
        let requests = self.service.requests.share();
        let answers = self.service.answers.share();
        self.state
            .set_holding([requests.holding(), answers.holding()]);
        Exchange::new(
            self.state.id,
            ServerChannel::new(settings),
            [requests, answers],
            self.service.buffers.clone(),
            self.session_traffic(),
            self.phases.clone(),
            (seat, is_unknown),
        )
    }

    fn session_traffic(&self) -> SessionTraffic<'_> {
        SessionTraffic {
            session: &self.state.traffic,
            all: &self.service.counters.traffic,
        }
    }

    /// Returns the address of the proxy that the client came through, if there is one.
    fn proxy(&self) -> Option<SocketAddr> {
        (self.state.client() != self.peer).then_some(self.peer)
    }

    fn report_opened(&self, client: Option<NegotiatedReport>, connected: &Connected) {
        let server = &connected.server;
        let (_, took) = self.state.server();
        let _reporting = self.service.reporting();
        self.service.report(&Event::Opened {
            id: self.state.id,
            peer: self.state.client(),
            proxy: self.proxy(),
            upstream: server.address(),
            server_name: &connected.seat.server.name,
            client,
            server: server.negotiated(),
            negotiate_seconds: self.state.negotiated.as_secs_f64(),
            connect_seconds: took.as_secs_f64(),
            open: self.service.open(),
            total: self.service.total(),
        });
    }

    fn report_refused(&self, refusal: &Refusal) {
        self.session_traffic().refused();
        let (reason, cure) = (refusal.to_string(), refusal.cure());
        self.service.report(&Event::Refused {
            id: self.state.id,
            peer: self.state.client(),
            reason: &reason,
            cure,
        });
        warn!(%reason, cure, "a request is refused, and its connection ends");
    }

    /// Gives the place back, and reports the end of the session.
    pub(crate) fn report_closed(self, stop: &Stop) {
        let counters = &self.service.counters;
        counters.ended(stop);
        let ok = matches!(
            stop,
            Stop::Closed(_) | Stop::Here | Stop::Ended | Stop::NotAdmitted(_)
        );
        if !ok {
            counters.failed.fetch_add(1, Relaxed);
        }
        match stop {
            Stop::Refused(refusal) => self.report_refused(refusal),
            Stop::Fault(what) => error!("a fault of smbdirect ends a session: {what}"),
            Stop::NotAdmitted(why) => self.service.turn_away(self.state.client(), why),
            _ => {}
        }
        let proxy = self.proxy();
        let (server_name, connected) = self.state.server();
        let _reporting = self.service.reporting();
        let open = self.place.end();
        self.service.report(&Event::Closed(Closed {
            id: self.state.id,
            peer: self.state.client(),
            proxy,
            server_name: server_name.as_deref(),
            negotiate_seconds: self.state.negotiated.as_secs_f64(),
            connect_seconds: connected.as_secs_f64(),
            seconds: self.state.since.elapsed().as_secs_f64(),
            ok,
            ended: &stop.to_string(),
            carried: self.state.traffic.carried(),
            open,
            total: self.service.total(),
        }));
    }
}
