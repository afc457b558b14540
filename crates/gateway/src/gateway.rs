//! A running gateway: accepts clients, and ends their sessions.

use std::{
    convert::Infallible,
    future::Future,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use anyhow::Result;
use smbdirect_transport::canonical;
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{sleep_until, timeout},
};
use tracing::{debug, warn};

use super::{
    counters::Traffic,
    event::Event,
    listener::ClientListener,
    peer::CLOSE_TIMEOUT,
    phase::{Phase, Phases},
    service::Service,
    session::Session,
};

/// Time without a session after which the free buffers of the pool are released.
const IDLE_MEMORY_TIME: Duration = Duration::from_mins(1);

/// A running gateway. Dropping it ends its sessions.
#[derive(Debug)]
pub struct Gateway {
    service: Arc<Service>,
    listener: ClientListener,
    sessions: JoinSet<()>,
    phase: watch::Sender<Phase>,
    phases: Phases,
    /// The time when the last session ended.
    idle_since: tokio::time::Instant,
}

impl Gateway {
    /// Creates a gateway for the clients of `listener`.
    pub fn new(service: Arc<Service>, listener: ClientListener) -> Self {
        let (phase, phases) = watch::channel(Phase::Serving);
        Self {
            service,
            listener,
            sessions: JoinSet::new(),
            phase,
            phases: Phases(phases),
            idle_since: tokio::time::Instant::now(),
        }
    }

    /// Accepts clients, and forwards their messages.
    ///
    /// # Errors
    /// No more clients can be accepted.
    ///
    /// # Cancel safety
    /// Dropping the future loses no client. Sessions continue.
    pub async fn serve(&mut self) -> Result<Infallible> {
        loop {
            let is_idle = self.sessions.is_empty() && self.service.buffers.kept() > 0;
            tokio::select! {
                accepted = self.listener.accept() => {
                    let (peer, client) = accepted?;
                    if let Some(session) = admit(&self.service, canonical(peer), &self.phases) {
                        self.sessions.spawn(session.run(client));
                    }
                }
                // Removes a finished session from the set; it has already reported its result.
                Some(_) = self.sessions.join_next() => {
                    self.idle_since = tokio::time::Instant::now();
                }
                () = sleep_until(self.idle_since + IDLE_MEMORY_TIME), if is_idle => {
                    self.service.buffers.release();
                }
            }
        }
    }

    /// Stops listening, and ends the sessions: first those whose requests are answered, and all of them after the
    /// drain timeout or when `urgent` resolves. Reports the totals.
    pub async fn end(self, urgent: impl Future<Output = ()>) {
        let Self {
            service,
            listener,
            mut sessions,
            phase,
            ..
        } = self;
        drop(listener);
        drain(&service, &phase, &mut sessions, urgent).await;
        service.report_summary();
    }
}

/// Returns the session of a client that was accepted, or turns the client away.
fn admit(service: &Arc<Service>, peer: SocketAddr, phases: &Phases) -> Option<Session> {
    let live = service.live();
    if !live.permits(peer.ip()) {
        service.refuse_address(peer);
        return None;
    }
    let counters = &service.counters;
    if counters.open.load(Relaxed) >= live.max_connections {
        service.turn_away(peer);
        return None;
    }
    counters.open.fetch_add(1, Relaxed);
    Some(Session {
        id: counters.total.fetch_add(1, Relaxed) + 1,
        peer,
        service: service.clone(),
        live,
        phases: phases.clone(),
        started: Instant::now(),
        traffic: Traffic::default(),
    })
}

/// Ends the sessions: first those whose requests are answered, and all of them after the drain
/// timeout or when `urgent` resolves.
async fn drain(
    service: &Service,
    phase: &watch::Sender<Phase>,
    sessions: &mut JoinSet<()>,
    urgent: impl Future<Output = ()>,
) {
    let limit = service.live().drain_timeout;
    let open = service.counters.open.load(Relaxed);
    if open > 0 && !limit.is_zero() {
        service.report(&Event::Draining {
            open,
            seconds: limit.as_secs_f64(),
        });
        phase.send_replace(Phase::Draining);
        let all = async { while sessions.join_next().await.is_some() {} };
        tokio::select! {
            done = timeout(limit, all) => if done.is_err() {
                let open = service.counters.open.load(Relaxed);
                warn!("the drain timeout has passed; sessions that end with unanswered requests: {open}");
            },
            () = urgent => {}
        }
    }
    phase.send_replace(Phase::Ending);
    let all = async { while sessions.join_next().await.is_some() {} };
    // Each session has a time limit of its own.
    if timeout(CLOSE_TIMEOUT * 2, all).await.is_err() {
        debug!("some connections did not end in time");
    }
}
