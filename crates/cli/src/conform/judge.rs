//! Runs the cases, one after the other, on the thread of the caller.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow};
use smbdirect::rdma::provider::Provider;
use smbdirect_conform::{
    Case, Detect, Echo, Outcome, PeerFacts, RdmaClient, RdmaServer, Server, SkipReason, Smb2, Stop,
    Timers, UpperLayer, detect, run, run_client, serves,
};

use crate::failure::{Kind, of_kind};

use super::{capture::Captures, output::Output};

/// The cases to run, and what they need.
pub(super) struct Judge {
    pub(super) cases: Vec<&'static Case>,
    pub(super) output: Output,
    pub(super) captures: Captures,
    /// Cases that can disable a server are run too.
    pub(super) disruptive: bool,
    /// Stops after the current case.
    pub(super) stop: Arc<AtomicBool>,
}

/// How long to wait for the peer.
pub(super) struct Waits {
    pub(super) timers: Timers,
    pub(super) prompt: Duration,
    pub(super) patience: Duration,
    pub(super) accept: Duration,
}

/// The server to judge.
pub(super) struct Servers {
    pub(super) provider: Arc<dyn Provider>,
    pub(super) address: SocketAddr,
    /// Whether the provider is software iWARP, over TCP of the operating system. Adapters with iWARP have their
    /// own TCP.
    pub(super) is_over_tcp: bool,
    /// The upper layer of the server. With `None`, the command detects it.
    pub(super) upper: Option<&'static dyn UpperLayer>,
}

/// The clients to judge.
pub(super) struct Clients {
    pub(super) provider: Arc<dyn Provider>,
    pub(super) address: SocketAddr,
    pub(super) upper: &'static dyn UpperLayer,
}

/// Returns the upper layer of a server, if it was given.
pub(super) fn for_server(echo: bool, smb2: bool) -> Option<&'static dyn UpperLayer> {
    match (echo, smb2) {
        (true, _) => Some(&Echo),
        (_, true) => Some(&Smb2),
        _ => None,
    }
}

/// Returns the upper layer of clients.
pub(super) fn for_clients(echo: bool, smb2: bool) -> &'static dyn UpperLayer {
    for_server(echo, smb2).unwrap_or(&Detect)
}

impl Waits {
    fn apply(&self, facts: &mut PeerFacts) {
        facts.timers = self.timers;
        facts.prompt = self.prompt;
        facts.late = self.prompt + Duration::from_secs(1);
        facts.patience = self.patience;
    }
}

impl Judge {
    /// Judges a server.
    ///
    /// # Errors
    /// There is no SMB Direct server at the address, or a capture cannot be written.
    pub(super) fn servers(mut self, servers: Servers, waits: &Waits) -> Result<bool> {
        let (address, transport) = (servers.address, servers.provider.attributes().name);
        let mut server = RdmaServer::new(servers.provider, address)?;
        if servers.is_over_tcp {
            server = server.with_tcp();
        }
        if let Some(watch) = self.captures.watch() {
            server = server.with_watch(watch);
        }
        waits.apply(&mut server.facts);
        let upper = match servers.upper {
            Some(upper) => upper,
            None => self.detect(&mut server, address)?,
        };
        self.output
            .started(&address.to_string(), transport, upper.name());
        let mut dead = None;
        for case in std::mem::take(&mut self.cases) {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let mut reason = self.reason_to_skip(case);
            if let Some(id) = dead {
                reason = Some(format!(
                    "the server has accepted no connection since case {id}"
                ));
            }
            let lives = self.one(case, reason, || {
                let outcome = run(case, &mut server, upper);
                judge_after(outcome, &mut server, upper)
            })?;
            if !lives {
                dead = Some(case.id);
            }
        }
        self.output.finish(self.stop.load(Ordering::Relaxed))
    }

    /// Finds out the upper layer of the server. The first connection may be lost, so it tries
    /// twice.
    fn detect(
        &self,
        server: &mut RdmaServer,
        address: SocketAddr,
    ) -> Result<&'static dyn UpperLayer> {
        let found = self.output.during("the upper layer", || {
            detect(server).or_else(|_| detect(server))
        });
        found.map_err(|stop| match stop {
            Stop::Unused { .. } => unreachable!("only clients leave connections unused"),
            Stop::Fail { expected, seen } => {
                let error = anyhow!(
                    "{address} answers neither SMB2 nor echoes: expected {expected}, seen {seen}; is \
                     an SMB Direct server there? `smbdirect ping {address}` tells, and --upper selects \
                     the upper layer"
                );
                of_kind(Kind::Connect, error)
            }
            Stop::Skip { reason } => anyhow!("{reason}"),
        })
    }

    /// Judges clients that connect.
    ///
    /// # Errors
    /// The address cannot be used, or a capture cannot be written.
    pub(super) fn clients(mut self, clients: Clients, waits: &Waits) -> Result<bool> {
        let transport = clients.provider.attributes().name;
        let waiting = self.output.waiting();
        let mut client = RdmaClient::listen(&*clients.provider, clients.address, waiting)
            .map_err(|error| anyhow!("cannot listen on {}: {error}", clients.address))?;
        waits.apply(&mut client.facts);
        client.accept_timeout = waits.accept;
        let address = client.local_addr();
        self.output
            .started(&address.to_string(), transport, clients.upper.name());
        self.output.invite(address);
        let mut nobody = false;
        for case in std::mem::take(&mut self.cases) {
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
            let mut reason = self.reason_to_skip(case);
            if nobody {
                reason = Some("no client connects any more".into());
            }
            let came = self.one(case, reason, || {
                let outcome = run_client(case, &mut client, clients.upper);
                let came = !matches!(
                    outcome,
                    Outcome::Skipped {
                        reason: SkipReason::NoClient(_)
                    }
                );
                (outcome, came)
            })?;
            nobody |= !came;
        }
        self.output.finish(self.stop.load(Ordering::Relaxed))
    }

    fn reason_to_skip(&self, case: &Case) -> Option<String> {
        let harmful = case.is_disruptive && !self.disruptive;
        harmful.then(|| "it can disable some servers; --disruptive runs it".into())
    }

    /// Runs one case, unless there is a reason to skip it, and reports it. Returns whether the peer
    /// can be judged further.
    fn one(
        &mut self,
        case: &'static Case,
        reason: Option<String>,
        judge: impl FnOnce() -> (Outcome, bool),
    ) -> Result<bool> {
        if let Some(reason) = reason {
            let reason = reason.into();
            let outcome = Outcome::Skipped { reason };
            self.output.case(case, &outcome, Duration::ZERO, None);
            return Ok(true);
        }
        let capture = self.captures.begin(case.id)?;
        let started = Instant::now();
        let (outcome, lives) = self.output.during(case.id, judge);
        let took = started.elapsed();
        self.captures.end();
        self.output.case(case, &outcome, took, capture.as_deref());
        Ok(lives)
    }
}

/// Time for a server to recover from a case that it failed.
const RECOVERY_TIME: Duration = Duration::from_secs(1);

/// After a failed case, checks whether the server still accepts connections.
fn judge_after(
    outcome: Outcome,
    server: &mut dyn Server,
    upper: &dyn UpperLayer,
) -> (Outcome, bool) {
    let Outcome::Fail { expected, seen } = outcome else {
        return (outcome, true);
    };
    for _ in 0..3 {
        if serves(server, upper).is_ok() {
            return (Outcome::Fail { expected, seen }, true);
        }
        sleep(RECOVERY_TIME);
    }
    let seen = format!("{seen}; and it accepts no connections any more");
    (Outcome::Fail { expected, seen }, false)
}
