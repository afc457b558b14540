//! `smbdirect check`: finds out whether SMB Direct works and is used, and if not, why.
//!
//! Small probes gather [`facts`]: [`machine`] those of this machine, [`way`] those of the way to a
//! server. [`judge`] turns them into an [`answer`] without any I/O, so every diagnosis is tested
//! without a network. [`fault`] lists what is known, and docs/check.md explains each.

#[path = "../../check/src/probe/adapters.rs"]
mod adapters;
#[path = "../../check/src/diagnosis.rs"]
mod answer;
#[path = "../../check/src/facts.rs"]
mod facts;
#[path = "../../check/src/fault.rs"]
mod fault;
#[path = "../../check/src/probe/interfaces.rs"]
mod interfaces;
#[path = "../../check/src/diagnose.rs"]
mod judge;
#[path = "../../check/src/probe/kernel.rs"]
mod kernel;
#[path = "../../check/src/probe/local.rs"]
mod machine;
#[path = "../../check/src/probe/mounts.rs"]
mod mounts;
mod output;
#[path = "../../check/src/probe/route.rs"]
mod path;
#[path = "../../check/src/probe/attempt.rs"]
mod rdma;
#[path = "../../check/src/probe/files.rs"]
mod root;
#[path = "../../check/src/probe/servers.rs"]
mod servers;
#[path = "../../check/src/probe/session.rs"]
mod session;
#[path = "../../check/src/probe/negotiate.rs"]
mod smb;
#[path = "../../check/src/probe/tcp_port.rs"]
mod tcp;
#[path = "../../check/src/probe/remote.rs"]
mod way;

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context, Result};
use clap::{ArgAction, Args};

use crate::{
    options::{Address, usage},
    password::password,
    pcap::Capture,
    report::Report,
    signals,
};
use answer::{Answer, Outcome};
use facts::Facts;
use root::Root;
use session::Account;
use way::{Progress, Target};

/// Find out whether SMB Direct works and is used, and if not, why
///
/// Without TARGET it examines this machine: the kernel, RDMA adapters, mounts and servers. With
/// SERVER or //SERVER/SHARE it also examines the way there: name, route, MTU, ports, SMB Direct
/// over each transport, SMB. With --user it logs in and asks what only a session tells: the
/// interfaces that the server offers, signing and encryption.
///
/// Prints a verdict, then each step with what was seen, and for each fault its cause and commands
/// that cure it. Each attempt is a complete, correct exchange, and disturbs no server.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Check {
    /// The server: HOST[:PORT] or //HOST/SHARE. A port is tried in addition to 445 and 5445
    #[arg(value_name = "TARGET")]
    target: Option<String>,

    /// Log in as this user; DOMAIN\USER for a domain. The password is asked for, unless
    /// SMBDIRECT_PASSWORD is set
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,

    /// Read the password from this file descriptor
    #[arg(long, value_name = "N", requires = "user")]
    password_fd: Option<u32>,

    /// Print one JSON object per line, for programs
    #[arg(long)]
    json: bool,

    /// Capture the connections of software iWARP and RoCE to FILE, for Wireshark
    #[arg(long, value_name = "FILE", requires = "target")]
    pcap: Option<PathBuf>,

    /// Read the files of this machine below another directory
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,

    /// Log to stderr; give it twice for more
    #[arg(short, long, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

const EXAMPLES: &str = "\x1b[1m\x1b[4mExamples:\x1b[0m
  smbdirect check                              this machine and its mounts
  smbdirect check fileserver                   the way to a server
  smbdirect check //fileserver/data --user me  also what a session tells
  smbdirect check fileserver --user me --password-fd 3 3<password

\x1b[1m\x1b[4mWith --json:\x1b[0m
  {\"event\":\"verdict\", outcome (works, does_not, unknown), verdict, faults, limits}
  {\"event\":\"step\", about (client, server, mounts, way, session), section, name,
   state (ok, warning, fault, unknown, skipped), evidence, fault, cause,
   cures: [{place, command}]}

\x1b[1m\x1b[4mExit status:\x1b[0m
  0 SMB Direct works, 1 it does not, 2 it could not be checked";

/// The server and share of TARGET.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    address: Address,
    share: Option<String>,
}

impl Check {
    /// Returns the exit status.
    pub(crate) async fn run(self) -> Result<u8> {
        let report = Report::new(self.json);
        let place = self.target.as_deref().map(place).transpose()?;
        if self.user.is_some() && place.is_none() {
            return Err(usage("--user goes with a TARGET"));
        }
        let account = match &self.user {
            Some(user) => Some(Account {
                password: password(user, self.password_fd)?,
                user: user.clone(),
            }),
            None => None,
        };
        let bar = report.spinner();
        let shown = bar.clone();
        let progress: Progress = Arc::new(move |step: &str| shown.set_message(step.to_owned()));
        let facts = self.gather(place, account, &progress);
        let facts = signals::unless_interrupted(facts).await;
        bar.finish_and_clear();
        let answer = judge::judge(&facts?);
        output::print(&answer, &report);
        Ok(status(&answer))
    }

    async fn gather(
        &self,
        place: Option<Place>,
        account: Option<Account>,
        progress: &Progress,
    ) -> Result<Facts> {
        progress("this machine");
        let root = Root::new(&self.root);
        let gathering = tokio::task::spawn_blocking(move || machine::gather(&root));
        let mut machine = gathering.await.context("this machine cannot be examined")?;
        let way = match place {
            None => {
                machine.server.attempt = way::own_ksmbd(&machine, progress).await;
                None
            }
            Some(Place { address, share }) => {
                let mut iwarp = rdma::iwarp_config();
                let capture = self.pcap.as_deref().map(Capture::create).transpose()?;
                let mut roce = rdma::roce_config();
                iwarp.tap = capture.as_ref().map(Capture::tap);
                roce.tap = capture.as_ref().map(Capture::datagram_tap);
                let target = Target {
                    host: address.host,
                    port: address.port,
                    share,
                    account,
                    iwarp,
                    roce,
                };
                Some(way::gather(target, &machine, progress).await)
            }
        };
        Ok(Facts { machine, way })
    }
}

const fn status(answer: &Answer) -> u8 {
    match answer.outcome {
        Outcome::Works => 0,
        Outcome::DoesNot => 1,
        Outcome::Unknown => 2,
    }
}

/// Parses TARGET.
fn place(text: &str) -> Result<Place> {
    let forward = text.replace('\\', "/");
    let path = forward
        .strip_prefix("smb://")
        .or_else(|| forward.strip_prefix("//"));
    let (server, share) = match path {
        None => (text, None),
        Some(path) => match path.split_once('/') {
            None => (path, None),
            // A folder in the share does not matter.
            Some((server, rest)) => (server, rest.split('/').next()),
        },
    };
    let address: Address = server
        .parse()
        .map_err(|error| usage(format!("`{text}`: {error}, or //HOST/SHARE")))?;
    if address.host.is_empty() || address.port == Some(0) {
        return Err(usage(format!("`{text}` names no server")));
    }
    let share = share.filter(|share| !share.is_empty()).map(str::to_owned);
    Ok(Place { address, share })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_in_all_their_forms() {
        for (text, host, port, share) in [
            ("server", "server", None, None),
            ("server:4455", "server", Some(4455), None),
            ("//server/share", "server", None, Some("share")),
            (r"\\server\share\folder", "server", None, Some("share")),
            ("smb://server/share", "server", None, Some("share")),
            ("//[::1]:5445/share", "::1", Some(5445), Some("share")),
            ("//server/", "server", None, None),
        ] {
            let place = place(text).unwrap();
            let found = (
                &*place.address.host,
                place.address.port,
                place.share.as_deref(),
            );
            assert_eq!(found, (host, port, share), "{text}");
        }
        for text in [
            "",
            "//",
            "///share",
            ":445",
            "server/share",
            "server:0",
            "a b",
        ] {
            assert!(place(text).is_err(), "{text}");
        }
    }
}
