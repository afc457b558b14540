//! `smbdirect send`: sends files to a `listen --receive`.

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Result, anyhow};
use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;
use smbdirect::{Config, Connection, ConnectionError};

use crate::{
    failure::{Kind, OfKind, of_kind},
    options::{Address, CommonOptions, ConnectOptions, seconds, with_profiles},
    report::{self, NegotiatedReport, Report},
    signals::{Interrupted, Interruption, Stopped, unless},
    transfer::{
        Checksum, INACTIVITY_LIMIT, Method, TransferError,
        sending::{Sent, Source, send_file},
    },
    transport::{self, Rdma},
};

/// Send files to a `smbdirect listen --receive`
///
/// The listener checks the SHA-256 of each file before it gives it its name, and never overwrites.
/// The exit status is 0 only if all files arrived.
#[derive(Debug, Args)]
#[command(after_help = with_profiles(EXAMPLES))]
pub(crate) struct Send {
    /// The listener: HOST[:PORT]; the default port is 5445 for iWARP, 445 for RoCE and InfiniBand
    #[arg(value_name = "ADDR")]
    address: Address,

    /// Files to send; `-` is stdin, which arrives as the file `stdin`
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Let the listener fetch the bytes by RDMA Read, instead of sending them in messages
    #[arg(long)]
    rdma: bool,

    /// Give up after this time without progress [default: 30]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    inactivity_limit: Option<Duration>,

    #[command(flatten)]
    connect: ConnectOptions,

    #[command(flatten)]
    pub(crate) options: CommonOptions,
}

const EXAMPLES: &str = "\x1b[1m\x1b[4mExamples:\x1b[0m
  smbdirect send fileserver big.iso
  smbdirect send 10.0.0.2:5445 --rdma *.img
  smbdirect send [fe80::1%eth0] log.txt --pcap send.pcap
  journalctl | smbdirect send fileserver -

\x1b[1m\x1b[4mWith --json:\x1b[0m
  {\"event\":\"connected\", address, transport, negotiated}
  {\"event\":\"file\", file, name, bytes, bytes_moved, method, seconds, bytes_per_second, sha256,
   ok, error}                                       one for each FILE
  {\"event\":\"summary\", files, arrived, bytes, seconds, bytes_per_second, interrupted, ok}";

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
        bytes_moved: u64,
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
        interrupted: bool,
        ok: bool,
    },
}

/// Longest time for closing the connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The totals so far.
#[derive(Default)]
struct Total {
    files: u64,
    arrived: u64,
    bytes: u64,
    took: Duration,
    interrupted: bool,
    connection: Option<Arc<Connection>>,
    current: Option<CurrentFile>,
}

/// The file that is being sent.
struct CurrentFile {
    path: PathBuf,
    name: String,
    length: u64,
    bar: ProgressBar,
}

impl Send {
    pub(crate) async fn run(self) -> Result<bool> {
        transport::check_connectable(&self.address)?;
        let report = Report::new(self.options.json);
        let config = self.options.config(Some(&self.connect), None)?;
        let (rdma, _capture) =
            transport::one_end(&self.options, Some(&self.connect), &self.address)?;
        let mut interrupted = Interrupted::new();
        let mut total = Total::default();
        let mut files = self.openable(&report, &mut interrupted, &mut total).await?;
        let result = if files.is_empty() {
            Ok(())
        } else {
            let sending = self.send_all(&report, &rdma, &config, &mut files, &mut total);
            unless(&mut interrupted, sending).await
        };
        total.interrupted = matches!(result, Err(Stopped::Interrupted));
        if let Some(current) = total.current.take() {
            self.report_stopped(&report, current);
        }
        for (path, source) in files {
            self.report_not_sent(&report, &path, source);
        }
        if let Some(connection) = total.connection.take() {
            transport::close(&connection, CLOSE_TIMEOUT).await;
        }
        self.report_total(&report, &total);
        match result {
            Ok(()) => Ok(total.arrived == total.files),
            Err(Stopped::Interrupted) => Err(Interruption.into()),
            Err(Stopped::Failed(error)) => Err(error),
        }
    }

    /// Opens the files that can be opened, and reports the others, before anything is sent.
    ///
    /// # Errors
    /// A signal arrived while stdin was read.
    async fn openable(
        &self,
        report: &Report,
        interrupted: &mut Interrupted,
        total: &mut Total,
    ) -> Result<VecDeque<(PathBuf, Source)>> {
        let mut files = VecDeque::new();
        let mut is_stdin_read = false;
        for path in &self.files {
            total.files += 1;
            let source = if path != Path::new("-") {
                Source::open(path)
            } else if is_stdin_read {
                Err("stdin can be sent only once; give `-` once".into())
            } else {
                is_stdin_read = true;
                tokio::select! {
                    source = Source::stdin() => source,
                    () = interrupted.wait() => return Err(Interruption.into()),
                }
            };
            match source {
                Ok(source) => files.push_back((path.clone(), source)),
                Err(reason) => self.report_failure(report, path, None, &reason),
            }
        }
        Ok(files)
    }

    /// Connects and sends. When it ends, `files` has the files that were not reached.
    async fn send_all(
        &self,
        report: &Report,
        rdma: &Rdma,
        config: &Config,
        files: &mut VecDeque<(PathBuf, Source)>,
        total: &mut Total,
    ) -> Result<()> {
        let connected = rdma.connect(&self.address, config).await;
        let connected = connected.of_kind(Kind::Connect)?;
        let connection = Arc::new(connected);
        total.connection = Some(connection.clone());
        report.event(&Event::Connected {
            address: connection.peer_addr().to_string(),
            transport: rdma.name(),
            negotiated: connection.negotiated().into(),
        });
        while let Some((path, source)) = files.pop_front() {
            let (name, length) = (source.name.clone(), source.length);
            let bar = report.progress(length, &name);
            total.current = Some(CurrentFile {
                path: path.clone(),
                name: name.clone(),
                length,
                bar: bar.clone(),
            });
            let progress = |done| bar.set_position(done);
            let limit = self.inactivity_limit.unwrap_or(INACTIVITY_LIMIT);
            let result = send_file(&connection, source, self.method(), limit, progress).await;
            total.current = None;
            // Finishing a bar fills it, so the position is read first.
            let moved = bar.position();
            bar.finish_and_clear();
            match result {
                Ok(sent) => {
                    total.arrived += 1;
                    total.bytes += length;
                    total.took += sent.took;
                    self.report_file(report, &path, &name, length, sent);
                }
                Err(error) => {
                    let known = Some((name, length, moved));
                    self.report_failure(report, &path, known, &error.to_string());
                    if error.ends_connection() {
                        return Err(lost(&error, &connection));
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
            bytes_moved: length,
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
        known: Option<(String, u64, u64)>,
        reason: &str,
    ) {
        let file = path.to_string_lossy();
        let moved = match known {
            Some((_, length, moved)) if moved > 0 => {
                format!(" ({} moved)", report::part(moved, length))
            }
            _ => String::new(),
        };
        report::error_line(&anyhow!("{file}: {reason}{moved}"));
        self.failure_event(report, path, known, reason);
    }

    /// Reports the file that was being sent at a signal.
    fn report_stopped(&self, report: &Report, current: CurrentFile) {
        let CurrentFile {
            path,
            name,
            length,
            bar,
        } = current;
        // Finishing a bar fills it, so the position is read first.
        let moved = bar.position();
        bar.finish_and_clear();
        report.line(format_args!(
            "{}  {}  {}",
            report
                .style
                .bold(&report::printable(&path.to_string_lossy())),
            report::part(moved, length),
            report.style.bad("interrupted"),
        ));
        self.failure_event(report, &path, Some((name, length, moved)), "interrupted");
    }

    /// Reports a file that was not reached.
    fn report_not_sent(&self, report: &Report, path: &Path, source: Source) {
        report.line(format_args!(
            "{}  {}  {}",
            report
                .style
                .bold(&report::printable(&path.to_string_lossy())),
            report::bytes(source.length),
            report.style.bad("not sent"),
        ));
        let known = Some((source.name, source.length, 0));
        self.failure_event(report, path, known, "not sent");
    }

    fn failure_event(
        &self,
        report: &Report,
        path: &Path,
        known: Option<(String, u64, u64)>,
        reason: &str,
    ) {
        let (name, bytes, moved) = match known {
            Some((name, bytes, moved)) => (Some(name), Some(bytes), moved),
            None => (None, None, 0),
        };
        report.event(&Event::File {
            file: path.to_string_lossy().into_owned(),
            name,
            bytes,
            bytes_moved: moved,
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
            interrupted,
            ..
        } = total;
        if files > 1 {
            let how = if arrived == files {
                format!("{} arrived", report::plural(files, "file"))
            } else {
                let short = format!("{arrived} of {} arrived", report::plural(files, "file"));
                report.style.bad(&short)
            };
            let moved = if arrived > 0 {
                let (bytes, time) = (report::bytes(bytes), report::time(took));
                format!(", {bytes} in {time}  {}", report::rate(total.bytes, took))
            } else {
                String::new()
            };
            let why = if interrupted { "; interrupted" } else { "" };
            report.line(format_args!("{how}{why}{moved}"));
        }
        report.event(&Event::Summary {
            files,
            arrived,
            bytes,
            seconds: took.as_secs_f64(),
            bytes_per_second: report::per_second(bytes, took),
            interrupted,
            ok: arrived == files,
        });
    }
}

fn lost(error: &TransferError, connection: &Connection) -> anyhow::Error {
    let peer = connection.peer_addr();
    let error = match error {
        TransferError::Connection(ConnectionError::Violation(_)) => {
            anyhow!("gave up on {peer}, which breaks the protocol; sending again will not help")
        }
        TransferError::Connection(_) => anyhow!(
            "the connection to {peer} was lost; see what `smbdirect listen` says there, and send again"
        ),
        TransferError::Inactive(_) => {
            anyhow!("gave up on {peer}; see whether it is overloaded, or raise --inactivity-limit")
        }
        _ => anyhow!("gave up on {peer}; does it run `smbdirect listen --receive DIR`?"),
    };
    of_kind(Kind::Connection, error)
}
