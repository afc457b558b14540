//! `smbdirect send`: files to a `listen --receive`.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, anyhow};
use clap::Args;
use serde::Serialize;
use smbdirect::Connection;

use crate::{
    options::{Address, CommonOptions, ConnectOptions, seconds},
    report::{self, NegotiatedReport, Report},
    signals,
    transfer::{
        Checksum, INACTIVITY_LIMIT, Method, TransferError,
        sending::{Sent, Source, send_file},
    },
    transport,
};

/// Send files to a `smbdirect listen --receive`
///
/// The far end checks each file by its SHA-256 before it gives it its name, and overwrites
/// nothing. The exit status is 0 only if all files arrived.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Send {
    /// The listener: HOST[:PORT], the port of SMB Direct if none is given (5445)
    #[arg(value_name = "ADDR")]
    address: Address,

    /// What to send
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Let the listener fetch the bytes by RDMA Read, instead of sending them in messages
    #[arg(long)]
    rdma: bool,

    /// Give up when nothing moves for so long
    #[arg(long, value_name = "SECONDS", default_value = INACTIVITY_LIMIT, value_parser = seconds)]
    inactivity_limit: Duration,

    #[command(flatten)]
    connect: ConnectOptions,

    #[command(flatten)]
    pub(crate) options: CommonOptions,
}

const EXAMPLES: &str = "\x1b[1m\x1b[4mExamples:\x1b[0m
  smbdirect send fileserver big.iso
  smbdirect send 10.0.0.2:5445 --rdma *.img
  smbdirect send [fe80::1%eth0] log.txt --pcap send.pcap

\x1b[1m\x1b[4mWith --json:\x1b[0m
  {\"event\":\"connected\", address, transport, negotiated}
  {\"event\":\"file\", file, name, bytes, method, seconds, bytes_per_second, sha256, ok, error}
  {\"event\":\"summary\", files, arrived, bytes, seconds, bytes_per_second, ok}";

#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event {
    Connected {
        address: String,
        transport: &'static str,
        negotiated: NegotiatedReport,
    },
    File {
        file: String,
        name: Option<String>,
        bytes: Option<u64>,
        method: Method,
        seconds: Option<f64>,
        bytes_per_second: Option<f64>,
        sha256: Option<Checksum>,
        ok: bool,
        error: Option<String>,
    },
    Summary {
        files: u64,
        arrived: u64,
        bytes: u64,
        seconds: f64,
        bytes_per_second: Option<f64>,
        ok: bool,
    },
}

/// How long the end of the connection may take.
const CLOSE: Duration = Duration::from_secs(5);

/// What has been done so far.
#[derive(Debug, Default)]
struct Total {
    files: u64,
    arrived: u64,
    bytes: u64,
    took: Duration,
}

impl Send {
    pub(crate) async fn run(self) -> Result<bool> {
        let report = Report::new(self.options.json);
        let config = self.options.config(Some(&self.connect))?;
        let (provider, _capture) = transport::one_end(&self.options, Some(&self.connect))?;
        let mut total = Total::default();
        let mut files = self.openable(&report, &mut total);
        if files.is_empty() {
            return Ok(false);
        }
        let connecting = transport::connect(&*provider, &self.address, &config, &self.connect);
        let connection = signals::unless_interrupted(connecting).await?;
        report.event(&Event::Connected {
            address: connection.remote_address().to_string(),
            transport: provider.name(),
            negotiated: connection.negotiated().into(),
        });
        let mut interrupted = signals::Interrupted::new();
        let result = tokio::select! {
            result = self.send_all(&report, &connection, &mut files, &mut total) => result,
            () = interrupted.wait() => Err(anyhow!("interrupted")),
        };
        transport::close(&connection, CLOSE).await;
        result?;
        self.report_total(&report, &total);
        Ok(total.arrived == total.files)
    }

    /// Opens what can be opened, and reports the others, before anything is moved.
    fn openable(&self, report: &Report, total: &mut Total) -> Vec<(PathBuf, Source)> {
        let mut files = Vec::new();
        for path in &self.files {
            total.files += 1;
            match Source::open(path) {
                Ok(source) => files.push((path.clone(), source)),
                Err(reason) => self.report_failure(report, path, None, &reason),
            }
        }
        files
    }

    async fn send_all(
        &self,
        report: &Report,
        connection: &Connection,
        files: &mut Vec<(PathBuf, Source)>,
        total: &mut Total,
    ) -> Result<()> {
        for (path, source) in files.drain(..) {
            let (name, length) = (source.name.clone(), source.length);
            let bar = report.progress(length, &name);
            let progress = |done| bar.set_position(done);
            let limit = self.inactivity_limit;
            let result = send_file(connection, source, self.method(), limit, progress).await;
            bar.finish_and_clear();
            match result {
                Ok(sent) => {
                    total.arrived += 1;
                    total.bytes += length;
                    total.took += sent.took;
                    self.report_file(report, &path, &name, length, sent);
                }
                Err(error) => {
                    self.report_failure(report, &path, Some((name, length)), &error.to_string());
                    if error.ends_connection() {
                        return Err(lost(&error, connection));
                    }
                }
            }
        }
        Ok(())
    }

    const fn method(&self) -> Method {
        if self.rdma {
            Method::RdmaRead
        } else {
            Method::Messages
        }
    }

    fn report_file(&self, report: &Report, path: &Path, name: &str, length: u64, sent: Sent) {
        let style = report.style;
        report.line(format_args!(
            "{}  {} in {}  {}  {}",
            style.bold(&report::printable(&path.to_string_lossy())),
            report::bytes(length),
            report::time(sent.took),
            report::rate(length, sent.took),
            style.good("arrived"),
        ));
        report.event(&Event::File {
            file: path.to_string_lossy().into_owned(),
            name: Some(name.into()),
            bytes: Some(length),
            method: self.method(),
            seconds: Some(sent.took.as_secs_f64()),
            bytes_per_second: report::per_second(length, sent.took),
            sha256: Some(sent.checksum),
            ok: true,
            error: None,
        });
    }

    fn report_failure(
        &self,
        report: &Report,
        path: &Path,
        known: Option<(String, u64)>,
        reason: &str,
    ) {
        let file = path.to_string_lossy();
        report::error(&anyhow!("{file}: {reason}"));
        let (name, bytes) = known.unzip();
        report.event(&Event::File {
            file: file.into_owned(),
            name,
            bytes,
            method: self.method(),
            seconds: None,
            bytes_per_second: None,
            sha256: None,
            ok: false,
            error: Some(reason.into()),
        });
    }

    fn report_total(&self, report: &Report, total: &Total) {
        let &Total {
            files,
            arrived,
            bytes,
            took,
        } = total;
        if files > 1 {
            let arrived = if arrived == files {
                format!("{} arrived", report::plural(files, "file"))
            } else {
                let short = format!("{arrived} of {} arrived", report::plural(files, "file"));
                report.style.bad(&short)
            };
            report.line(format_args!(
                "{arrived}, {} in {}  {}",
                report::bytes(bytes),
                report::time(took),
                report::rate(bytes, took),
            ));
        }
        report.event(&Event::Summary {
            files,
            arrived,
            bytes,
            seconds: took.as_secs_f64(),
            bytes_per_second: report::per_second(bytes, took),
            ok: arrived == files,
        });
    }
}

fn lost(error: &TransferError, connection: &Connection) -> anyhow::Error {
    let peer = connection.remote_address();
    match error {
        TransferError::Connection(_) => anyhow!(
            "the connection to {peer} was lost; see what `smbdirect listen` says there, and send again"
        ),
        TransferError::Inactive(_) => {
            anyhow!("gave up on {peer}; see whether it is overloaded, or raise --inactivity-limit")
        }
        _ => anyhow!("gave up on {peer}; does it run `smbdirect listen --receive DIR`?"),
    }
}
