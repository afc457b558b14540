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
use smbdirect_conform::{
    Case, Outcome, RdmaClient, RdmaServer, Server, SkipReason, Stop, UpperLayer, detect, run,
    run_client, serves,
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

impl Judge {
    /// Judges a server.
    ///
    /// # Errors
    /// There is no SMB Direct server at the address, or a capture cannot be written.
    pub(super) fn server(
        mut self,
        mut server: RdmaServer,
        (address, transport): (SocketAddr, &str),
        upper: Option<&'static dyn UpperLayer>,
    ) -> Result<bool> {
        if let Some(watch) = self.captures.watch() {
            server = server.with_watch(watch);
        }
        let upper = match upper {
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
    /// A capture cannot be written.
    pub(super) fn clients(
        mut self,
        mut client: RdmaClient,
        transport: &str,
        upper: &'static dyn UpperLayer,
    ) -> Result<bool> {
        let address = client.local_addr();
        self.output
            .started(&address.to_string(), transport, upper.name());
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
                let outcome = run_client(case, &mut client, upper);
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
