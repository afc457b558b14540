//! A running gateway: accepts clients, and ends their sessions.

pub(crate) mod admitted;
pub(crate) mod health;
pub(crate) mod listener;

use std::{convert::Infallible, future::Future, sync::Arc, time::Duration};

use smbdirect_transport::Error;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{sleep_until, timeout},
};
use tracing::{debug, warn};

use crate::{
    daemon::{
        admitted::Admitted,
        listener::{Client, ClientListener},
    },
    path::peer::CLOSE_TIMEOUT,
    phase::{Phase, Phases},
    session::{event::Event, service::Service},
};

/// Maximum number of clients that wait for their session to begin.
const BACKLOG: usize = 16;
/// Time without a session after which the free buffers of the pool are released.
const IDLE_MEMORY_TIME: Duration = Duration::from_mins(1);

/// A running gateway. Dropping it ends its sessions.
#[derive(Debug)]
pub struct Gateway {
    service: Arc<Service>,
    /// The tasks that accept clients, one for each listener.
    listeners: JoinSet<()>,
    clients: mpsc::Receiver<Result<Client, Error>>,
    sessions: JoinSet<()>,
    phase: watch::Sender<Phase>,
    phases: Phases,
    /// The time when the last session ended.
    idle_since: tokio::time::Instant,
}

impl Gateway {
    /// Creates a gateway for the clients of `listeners`, and begins to accept clients and to check the servers. Must be
    /// called within a tokio runtime.
    pub fn new(service: Arc<Service>, listeners: impl IntoIterator<Item = ClientListener>) -> Self {
        let (phase, phases) = watch::channel(Phase::Serving);
        let phases = Phases(phases);
        let (accepted, clients) = mpsc::channel(BACKLOG);
        let accepting = listeners
            .into_iter()
            .map(|listener| listener.accept_all(service.clone(), accepted.clone(), phases.clone()));
        let listeners = accepting.collect();
        service.begin_checks();
        Self {
            service,
            listeners,
            clients,
            sessions: JoinSet::new(),
            phase,
            phases,
            idle_since: tokio::time::Instant::now(),
        }
    }

    /// Serves clients: forwards their messages.
    ///
    /// # Errors
    /// A listener accepts no more clients.
    ///
    /// # Cancel safety
    /// Dropping the future loses no client. Sessions continue.
    pub async fn serve(&mut self) -> Result<Infallible, Error> {
        loop {
            let is_idle = self.sessions.is_empty() && self.service.buffers.kept() > 0;
            tokio::select! {
                Some(accepted) = self.clients.recv() => self.begin(accepted?),
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

    /// Begins the session of a client.
    fn begin(&mut self, client: Client) {
        let admitted = Admitted {
            client,
            service: self.service.clone(),
            phases: self.phases.clone(),
        };
        self.sessions.spawn(admitted.run());
    }

    /// Stops listening, because another process has the listening sockets now. The sessions continue, also those of
    /// clients that connected before. Returns when all of them have ended or the drain timeout has passed; [`end`](Self::end)
    /// follows.
    pub async fn be_succeeded(&mut self) {
        self.phase.send_replace(Phase::Succeeded);
        let limit = self.service.live().drain_timeout;
        let all = async {
            loop {
                tokio::select! {
                    Some(accepted) = self.clients.recv() => {
                        // A listener that has failed has no more clients.
                        if let Ok(client) = accepted {
                            self.begin(client);
                        }
                    }
                    Some(_) = self.sessions.join_next() => {}
                    else => return,
                }
            }
        };
        match limit {
            Some(limit) => drop(timeout(limit, all).await),
            None => all.await,
        }
    }

    /// Stops listening. When it returns, another service or process can use the addresses, and gets all clients that
    /// connect. [`end`](Self::end) follows.
    pub async fn stop_listening(&mut self) {
        self.listeners.shutdown().await;
        self.clients.close();
    }

    /// Stops listening, and ends the sessions: first those whose requests are answered, and all of them after the
    /// drain timeout or when `urgent` resolves. Reports the totals.
    pub async fn end(mut self, urgent: impl Future<Output = ()>) {
        self.stop_listening().await;
        let Self {
            service,
            clients,
            mut sessions,
            phase,
            ..
        } = self;
        drop(clients);
        drain(&service, &phase, &mut sessions, urgent).await;
        service.report_summary();
    }
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
    let open = service.open();
    if open > 0 && limit != Some(Duration::ZERO) {
        service.report(&Event::Draining {
            open,
            seconds: limit.map(|limit| limit.as_secs_f64()),
        });
        phase.send_replace(Phase::Draining);
        let all = async { while sessions.join_next().await.is_some() {} };
        let limited = async {
            let Some(limit) = limit else {
                return all.await;
            };
            if timeout(limit, all).await.is_err() {
                let open = service.open();
                warn!(
                    "the drain timeout has passed; sessions that end with unanswered requests: {open}"
                );
            }
        };
        tokio::select! {
            () = limited => {}
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
