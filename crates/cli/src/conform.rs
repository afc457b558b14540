//! `smbdirect conform`: judges another implementation of SMB Direct, with the cases of
//! `smbdirect-conform`.
//!
//! The cases block, so they run on a thread of their own ([`judge`]). The command waits for it, and
//! tells it to stop after the current case at a signal.

mod capture;
mod judge;
mod junit;
mod output;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use smbdirect_conform::{
    Case, Detect, Echo, PeerFacts, RdmaClient, RdmaServer, Selection, Smb2, Timers, UpperLayer,
};
use tokio::sync::oneshot;

use crate::{
    failure::{Kind, OfKind},
    options::{AcceptOptions, Address, CommonOptions, ConnectOptions, Transport, seconds, usage},
    report::Report,
    signals::{self, Interrupted, Interruption},
    transport::{self, Families, Rdma},
};
use capture::Captures;
use judge::Judge;
use output::Output;

/// Judge another implementation: does it keep the rules?
///
/// Connects to a server and runs cases 1 to 42 of Microsoft's suite, peers that break iWARP, RDMA or SMB
/// Direct, and bugs that other implementations have had. With --listen, judges clients that
/// connect, by the mirror image of Microsoft's cases; each connection takes the next case. The
/// status is 0 only if no case failed and at least one passed.
///
/// Cases that can disable a server run only with --disruptive. A case that waits for a long timer of the
/// peer is run only if --max-wait permits it. `docs/conform.md` explains each kind of result.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Conform {
    /// The server to judge; with --listen, the address to listen on
    #[arg(value_name = "HOST[:PORT]", required_unless_present = "list")]
    address: Option<Address>,

    /// Judge the clients that connect
    #[arg(long)]
    listen: bool,

    /// Upper layer of the peer; auto detects it
    ///
    /// echo is `smbdirect listen --echo` and `ping --echo`, smb2 any SMB3 server or client
    #[arg(long, value_enum, default_value_t, value_name = "LAYER")]
    upper: Upper,

    /// Run only these cases: m7, m19-m33, or microsoft, mirror, hostile, iwarp, bugs
    #[arg(long, value_name = "CASES", value_delimiter = ',')]
    only: Vec<Selection>,

    /// Do not run these cases
    #[arg(long, value_name = "CASES", value_delimiter = ',')]
    skip: Vec<Selection>,

    /// Also run the cases that can disable a server
    #[arg(long)]
    disruptive: bool,

    /// Longest time that a case may wait for timers of the peer
    ///
    /// 400 is enough for all cases.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    max_wait: Duration,

    /// How late the peer may be with what the specification requires immediately
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    timeout: Duration,

    /// With --listen, the longest time to wait for the next connection
    #[arg(hide_short_help = true, long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    accept_timeout: Duration,

    /// Write the results to FILE, for a CI system
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,

    /// Print the cases, and run none
    #[arg(long)]
    list: bool,

    #[command(flatten)]
    accept: AcceptOptions,

    #[command(flatten)]
    connect: ConnectOptions,

    #[command(flatten)]
    pub(crate) options: CommonOptions,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Upper {
    #[default]
    Auto,
    Echo,
    Smb2,
}

impl Upper {
    /// Returns the upper layer of the peer, unless it has to be detected.
    const fn given(self) -> Option<&'static dyn UpperLayer> {
        match self {
            Self::Auto => None,
            Self::Echo => Some(&Echo),
            Self::Smb2 => Some(&Smb2),
        }
    }
}

const EXAMPLES: &str = "\x1b[1m\x1b[4mExamples:\x1b[0m
  smbdirect conform fileserver
  smbdirect conform fileserver --disruptive --junit conform.xml --pcap captures/
  smbdirect conform 10.0.0.2:445 --transport verbs
  smbdirect conform 10.0.0.2 --transport roce
  smbdirect conform fileserver --only m35,m36 --max-wait 400
  smbdirect conform --list

  smbdirect conform --listen :5445          and on the client, in a loop, one of
  mount -t cifs //HOST/x /mnt -o rdma,user=x,password=x
  smbdirect ping HOST --echo --count 2 --size 65536

\x1b[1m\x1b[4mConnection settings\x1b[0m
  describe the peer: --negotiation-timeout, --keepalive-interval,
  --keepalive-response-timeout and --credit-grant-timeout are its timers. The cases choose sizes and
  credits themselves. --pcap takes a file, or a directory for a file per case.

\x1b[1m\x1b[4mWith --json:\x1b[0m
  {\"event\":\"started\", peer, transport, upper, cases}
  {\"event\":\"case\", id, group, title, section, does, disruptive, outcome, expected, seen, reason,
   seconds, capture}
  {\"event\":\"summary\", passed, failed, skipped, seconds, interrupted}";

impl Conform {
    pub(crate) async fn run(self) -> Result<bool> {
        let report = Report::new(self.options.json);
        if self.list {
            let listed = self.address.is_none() || self.listen;
            output::list(
                &report,
                &self.cases(!listed || self.address.is_none(), listed),
            );
            return Ok(true);
        }
        self.check_options()?;
        let cases = self.cases(!self.listen, self.listen);
        if cases.is_empty() {
            return Err(usage(if self.listen {
                "no case for clients is selected; those of the group mirror are for clients"
            } else {
                "no case for servers is selected; those of the group mirror are for clients, see --listen"
            }));
        }
        let captures = Captures::new(self.options.pcap.as_deref())?;
        let rdma = self.rdma(&captures)?;
        let output = Output::new(report, cases.len(), self.junit.clone());
        let judge = Judge {
            cases,
            output,
            captures,
            disruptive: self.disruptive,
            stop: Arc::default(),
        };
        if self.listen {
            self.judge_clients(rdma, judge).await
        } else {
            self.judge_server(rdma, judge).await
        }
    }

    /// Checks options that no case uses.
    fn check_options(&self) -> Result<()> {
        if self.options.has_sizes_or_credits() {
            return Err(usage(
                "the cases choose sizes and credits themselves; do not give --profile, sizes or \
                 credits",
            ));
        }
        if !self.listen {
            transport::check_connectable(self.address())?;
        }
        Ok(())
    }

    /// Returns the selected cases, for servers, for clients or for both.
    fn cases(&self, for_servers: bool, for_clients: bool) -> Vec<&'static Case> {
        let servers = smbdirect_conform::server_cases().filter(|_| for_servers);
        let clients = smbdirect_conform::client_cases().filter(|_| for_clients);
        servers
            .chain(clients)
            .filter(|case| is_selected(case, &self.only, &self.skip))
            .collect()
    }

    /// Sets what is known of the peer: its timers, and how long to wait for it.
    fn apply(&self, facts: &mut PeerFacts) -> Result<()> {
        let config = self
            .options
            .config(Some(&self.connect), Some(&self.accept))?;
        let given = self.accept.negotiation_timeout();
        facts.timers = Timers {
            negotiation: given.unwrap_or(facts.timers.negotiation),
            keepalive_interval: config.keepalive_interval,
            keepalive_response: config.keepalive_response_timeout,
            credit_grant: self.options.given_credit_grant_timeout(),
        };
        facts.prompt = self.timeout;
        facts.late = self.timeout + Duration::from_secs(1);
        facts.patience = self.max_wait;
        Ok(())
    }

    fn rdma(&self, captures: &Captures) -> Result<Rdma> {
        transport::check_one_end(&self.options, Some(&self.connect))?;
        let mut settings = self.options.rdma(Some(&self.connect));
        settings.iwarp.tap = captures.tap();
        settings.roce.tap = captures.datagram_tap();
        Ok(Rdma::at(settings, self.address())?)
    }

    fn address(&self) -> &Address {
        self.address.as_ref().expect("clap requires it")
    }

    async fn judge_server(self, rdma: Rdma, judge: Judge) -> Result<bool> {
        let config = self.options.config(Some(&self.connect), None)?;
        let choosing = async {
            let chosen = rdma.choose(self.address(), &config).await;
            chosen.of_kind(Kind::Connect)
        };
        let address = signals::unless_interrupted(choosing).await?;
        in_thread(judge.stop.clone(), move || {
            let mut server = RdmaServer::new(rdma.provider().clone(), address)?;
            // Adapters with iWARP have a TCP of their own.
            if self.options.transport == Transport::Iwarp {
                server = server.with_tcp();
            }
            self.apply(&mut server.facts)?;
            judge.server(server, (address, rdma.name()), self.upper.given())
        })
        .await
    }

    async fn judge_clients(self, rdma: Rdma, judge: Judge) -> Result<bool> {
        let families = Families::of(self.options.transport);
        let port = rdma.provider().attributes().default_port;
        let address = transport::resolve_listen(self.address(), port, families).await?;
        in_thread(judge.stop.clone(), move || {
            let waiting = judge.output.waiting();
            let mut client = RdmaClient::listen(&**rdma.provider(), address, waiting)
                .map_err(|error| anyhow!("cannot listen on {address}: {error}"))?;
            self.apply(&mut client.facts)?;
            client.accept_timeout = self.accept_timeout;
            let upper = self.upper.given().unwrap_or(&Detect);
            judge.clients(client, rdma.name(), upper)
        })
        .await
    }
}

/// Returns whether a case is selected: it is in `only`, unless that is empty, and not in `skip`.
fn is_selected(case: &Case, only: &[Selection], skip: &[Selection]) -> bool {
    let wanted = only.is_empty() || only.iter().any(|selection| selection.contains(case));
    wanted && !skip.iter().any(|selection| selection.contains(case))
}

/// Runs the cases on a thread. The first signal stops them after the current case.
async fn in_thread(
    stop: Arc<AtomicBool>,
    work: impl FnOnce() -> Result<bool> + Send + 'static,
) -> Result<bool> {
    let (sender, mut result) = oneshot::channel();
    let mut interrupted = Interrupted::new();
    thread::Builder::new()
        .name("conform".into())
        .spawn(move || sender.send(work()))
        .context("no thread for the cases")?;
    let ended = tokio::select! {
        ended = &mut result => ended,
        () = interrupted.wait() => {
            stop.store(true, Ordering::Relaxed);
            tokio::select! {
                ended = result => ended,
                () = interrupted.wait() => return Err(Interruption.into()),
            }
        }
    };
    ended.map_err(|_| anyhow!("a case failed in this program; please report it"))?
}

#[cfg(test)]
mod tests {
    use smbdirect_conform::server_cases;

    use super::*;

    #[test]
    fn only_and_skip_combine() {
        let parse = |text: &str| vec![text.parse::<Selection>().unwrap()];
        let count = |only: &[Selection], skip: &[Selection]| {
            let cases = server_cases().filter(|case| is_selected(case, only, skip));
            cases.count()
        };
        assert_eq!(count(&[], &[]), server_cases().count());
        assert_eq!(count(&parse("m1-m3"), &[]), 3);
        assert_eq!(count(&parse("m1-m3"), &parse("m2")), 2);
        assert_eq!(count(&parse("bugs"), &parse("bugs")), 0);
    }
}
