//! `smbdirect check`: finds out whether SMB Direct works and is used, and if not, why.

mod output;

use std::path::PathBuf;

use anyhow::Result;
use clap::{ArgAction, Args};
use smbdirect_check::{Diagnosis, Measure, Outcome, Settings, Stage, Target, diagnose, gather};
use smbdirect_smb2::Login;

use crate::{
    login::LoginOptions,
    options::{large_size, usage},
    pcap::Capture,
    report::{self, Report},
    signals::{self, Interruption},
    smb::{Place, PlaceParser},
};

/// Find out whether SMB Direct works and is used, and if not, why
///
/// Without TARGET it examines this machine: the kernel, RDMA adapters, mounts and servers. With
/// SERVER or //SERVER/SHARE it also examines the way there: name, route, MTU, ports, SMB Direct
/// over each transport, SMB. With --user it also logs in and checks what the server shows only to a
/// session: its interfaces, signing and encryption.
///
/// Prints a verdict, then each step with what was seen, and for each fault its cause and commands
/// that cure it. Each attempt is a complete, correct exchange, and disturbs no server.
///
/// With --measure it also reads and writes a scratch file, over SMB on TCP and over SMB Direct, and says which is
/// faster and what limits each. The server deletes the file when the command ends, also by a signal; if that is not
/// certain, the command names the file.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Check {
    /// The server: HOST[:PORT] or //HOST/SHARE. A port is tried in addition to 445 and 5445
    #[arg(value_name = "TARGET", value_parser = PlaceParser::OrAddress)]
    target: Option<Place>,

    #[command(flatten)]
    login: LoginOptions,

    /// Measure the rates of //SERVER/SHARE over TCP and SMB Direct, and name what limits them
    ///
    /// It takes less than a minute. The port of the server, if it is given, is that of a `smbdirect listen --sink`,
    /// which shows what the path carries without SMB
    #[arg(long, requires = "target")]
    measure: bool,

    /// Size of the scratch file, or of the part of the file that is read [default: 64M]
    #[arg(long, value_name = "SIZE", value_parser = large_size, requires = "measure")]
    size: Option<u64>,

    /// Read this file of the share, and write nothing
    #[arg(long, value_name = "FILE", requires = "measure")]
    read_only: Option<String>,

    /// Print one JSON object per line, for programs
    #[arg(long)]
    pub(crate) json: bool,

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
  smbdirect check //fileserver/data --kerberos
  smbdirect check --measure //fileserver/data --user me    why is it slow?

\x1b[1m\x1b[4mWith --json:\x1b[0m
  {\"event\":\"verdict\", outcome (works, does_not, unknown), verdict, faults, limits}
  {\"event\":\"step\", about (client, server, mounts, way, session), section, name,
   state (ok, warning, fault, unknown, skipped), evidence, fault, cause,
   cures: [{place, command}]}
  With --measure:
  {\"event\":\"path\", bytes_per_second, sentence}
  {\"event\":\"rate\", transport, operation (write, first_read, read), request_bytes, outstanding,
   seconds, bytes, bytes_by_rdma, bytes_per_second, requests_per_second, cpu_seconds,
   busiest_thread, machine_busy, credit_wait, longest_wait}
  {\"event\":\"limit\", transport, operation, outstanding, limit (signing, disk, this_machine, path,
   send_credits, smb2_credits, one_outstanding, server, server_or_path), because}
  {\"event\":\"not_measured\", transport, reason}
  {\"event\":\"comparison\", transport, operation, ratio, sentence}

\x1b[1m\x1b[4mExit status:\x1b[0m
  0 SMB Direct works, 1 it does not, 2 it could not be checked, or measured, 3 a signal ended the command";

impl Check {
    /// Returns the exit status.
    pub(crate) async fn run(self) -> Result<u8> {
        let report = Report::new(self.json);
        let mut target = self.target.as_ref().map(target);
        let login = match &self.target {
            Some(place) if !self.measure => self.login.login(place).await?,
            Some(place) => Some(self.prepare_measurement(place, target.as_mut()).await?),
            None if self.login.user.is_some() => return Err(usage("--user needs a TARGET")),
            None if self.login.kerberos => return Err(usage("--kerberos needs a TARGET")),
            None => None,
        };
        if let Some(target) = &mut target {
            target.login = login;
        }
        let capture = self.pcap.as_deref().map(Capture::create).transpose()?;
        if let Some(target) = &mut target {
            target.iwarp_tap = capture.as_ref().map(Capture::tap);
            target.roce_tap = capture.as_ref().map(Capture::datagram_tap);
        }
        let is_measured = self.measure;
        let bar = report.spinner();
        let settings = Settings {
            root: self.root,
            target,
        };
        let progress = |stage: Stage| bar.set_message(stage.to_string());
        let facts = async { Ok(gather(settings, &progress).await) };
        let facts = signals::unless_interrupted(facts).await;
        bar.finish_and_clear();
        let facts = match facts {
            Err(error) if error.is::<Interruption>() => {
                report::error(&error);
                return Ok(INTERRUPTED);
            }
            facts => facts?,
        };
        let diagnosis = diagnose(&facts);
        output::print(&diagnosis, &report);
        Ok(status(&diagnosis, is_measured))
    }

    /// Checks what a measurement needs, and adds it to the target. Returns what to log in with.
    async fn prepare_measurement(
        &self,
        place: &Place,
        target: Option<&mut Target>,
    ) -> Result<Login> {
        let target = target.filter(|target| target.share.is_some());
        let target = target.ok_or_else(|| usage("--measure needs //SERVER/SHARE"))?;
        let size = self.size.unwrap_or(DEFAULT_SIZE);
        if size < MIN_SIZE {
            return Err(usage(format!("--size has to be at least {MIN_SIZE}")));
        }
        target.measure = Some(Measure {
            size,
            folder: place.path.clone(),
            read_only: self.read_only.clone(),
        });
        let login = self.login.login(place).await?;
        login.ok_or_else(|| usage("--measure needs --user or --kerberos"))
    }
}

/// The exit status after a signal: it was not found out whether SMB Direct works.
const INTERRUPTED: u8 = 3;
/// Bytes of the scratch file: enough for a second of most servers, and little enough for their memory.
const DEFAULT_SIZE: u64 = 64 << 20;
/// Bytes of the smallest request.
const MIN_SIZE: u64 = 4096;

/// Returns the server to examine, and its share.
fn target(place: &Place) -> Target {
    let Place { address, share, .. } = place;
    Target {
        host: address.host.clone(),
        port: address.port,
        share: (!share.is_empty()).then(|| share.clone()),
        login: None,
        measure: None,
        iwarp_tap: None,
        roce_tap: None,
    }
}

fn status(diagnosis: &Diagnosis, is_measured: bool) -> u8 {
    let speed = diagnosis.speed.as_ref();
    let has_rates = speed.is_some_and(|speed| {
        let mut transports = speed.transports.iter();
        transports.any(|transport| !transport.rates.is_empty())
    });
    match diagnosis.outcome {
        Outcome::Works if is_measured && !has_rates => 2,
        Outcome::Works => 0,
        Outcome::DoesNot => 1,
        Outcome::Unknown => 2,
    }
}
