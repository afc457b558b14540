//! `smbdirect ping`: round trips, by keepalive or by echo.

use std::time::{Duration, Instant};

use anyhow::Result;
use bytes::Bytes;
use clap::Args;
use hdrhistogram::Histogram;
use serde::Serialize;
use smbdirect::{Connection, ConnectionError};
use tokio::time::{sleep_until, timeout};

use crate::{
    failure::{Kind, OfKind},
    options::{
        Address, CommonOptions, ConnectOptions, seconds, seconds_or_zero, size, usage,
        with_profiles,
    },
    report::{self, NegotiatedReport, Report},
    signals, transport,
};

/// Measure round trips over an SMB Direct connection
///
/// Asks the peer for a response by keepalive (RESPONSE_REQUESTED), which works with every SMB
/// Direct peer, including Windows and Linux. With --echo it sends messages instead, which
/// `smbdirect listen --echo` returns, and compares them.
#[derive(Debug, Args)]
#[command(after_help = with_profiles(EXAMPLES))]
pub(crate) struct Ping {
    /// The peer: HOST[:PORT]; the default port is 5445 for iWARP, 445 for RoCE and InfiniBand
    #[arg(value_name = "ADDR")]
    address: Address,

    /// Number of round trips; 0 continues until interrupted
    #[arg(short, long, value_name = "N", default_value_t = 4)]
    count: u64,

    /// Time from one round trip to the next; 0 for none
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds_or_zero)]
    interval: Duration,

    /// Send messages that a `listen --echo` returns
    #[arg(long)]
    echo: bool,

    /// With --echo, bytes in a message [default: 64]
    #[arg(short, long, value_name = "SIZE", value_parser = size)]
    size: Option<u32>,

    /// With --echo, longest time until a message comes back [default: 5]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,

    #[command(flatten)]
    connect: ConnectOptions,

    #[command(flatten)]
    pub(crate) options: CommonOptions,
}

const EXAMPLES: &str = "\x1b[1m\x1b[4mExamples:\x1b[0m
  smbdirect ping fileserver
  smbdirect ping 10.0.0.2:5445 --count 1000 --interval 0
  smbdirect ping 10.0.0.2 --echo --size 64K

\x1b[1m\x1b[4mWith --json:\x1b[0m
  {\"event\":\"connected\", address, transport, negotiated}
  {\"event\":\"reply\", sequence, seconds}          bytes too, with --echo
  {\"event\":\"lost\", sequence, error}
  {\"event\":\"summary\", sent, answered, lost, interrupted,
   min_seconds, median_seconds, p99_seconds, max_seconds}";

#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Connected {
        address: String,
        transport: &'a str,
        negotiated: NegotiatedReport,
    },
    Reply {
        sequence: u64,
        seconds: f64,
        #[serde(skip_serializing_if = "Option::is_none")]
        bytes: Option<u32>,
    },
    Lost {
        sequence: u64,
        error: &'a str,
    },
    Summary {
        sent: u64,
        answered: u64,
        lost: u64,
        interrupted: bool,
        min_seconds: Option<f64>,
        median_seconds: Option<f64>,
        p99_seconds: Option<f64>,
        max_seconds: Option<f64>,
    },
}

impl Ping {
    pub(crate) async fn run(self) -> Result<bool> {
        transport::check_connectable(&self.address)?;
        let report = Report::new(self.options.json);
        let config = self.options.config(Some(&self.connect), None)?;
        for (option, given) in [
            ("--size", self.size.is_some()),
            ("--timeout", self.timeout.is_some()),
        ] {
            if given && !self.echo {
                return Err(usage(format!("{option} needs --echo")));
            }
        }
        if self.size() == 0 {
            return Err(usage(
                "--size must be at least 1: empty messages are not returned",
            ));
        }
        let (rdma, _capture) =
            transport::one_end(&self.options, Some(&self.connect), &self.address)?;
        let connecting = rdma.connect(&self.address, &config);
        let connecting = async { connecting.await.of_kind(Kind::Connect) };
        let connection = signals::unless_interrupted(connecting).await?;
        self.check_size(&connection)?;
        self.report_connected(&report, &connection, rdma.name());
        let tally = self.run_all(&report, &connection).await;
        tally.report(&report);
        // The way in which the connection ends does not change the measurement.
        transport::close(&connection, CLOSE_TIMEOUT).await;
        Ok(tally.lost == 0 && tally.answered() > 0)
    }

    fn size(&self) -> u32 {
        self.size.unwrap_or(64)
    }

    fn timeout(&self) -> Duration {
        self.timeout.unwrap_or(Duration::from_secs(5))
    }

    fn check_size(&self, connection: &Connection) -> Result<()> {
        let negotiated = connection.negotiated();
        let most = negotiated
            .max_fragmented_send_size
            .min(negotiated.max_fragmented_receive_size);
        if self.echo && self.size() > most {
            let size = self.size();
            return Err(usage(format!(
                "--size {size} is more than {most}, the largest message that was negotiated; \
                 see --max-fragmented-size"
            )));
        }
        Ok(())
    }

    fn report_connected(&self, report: &Report, connection: &Connection, transport: &str) {
        let (address, negotiated) = (connection.peer_addr(), connection.negotiated());
        let kind = if self.echo {
            format!("echo of {}", report::bytes(self.size().into()))
        } else {
            "keepalive".into()
        };
        let version = report::VERSION;
        report.line(format_args!(
            "{} by {kind}, over {transport}, SMB Direct {version}",
            report.style.bold(&address.to_string()),
        ));
        report.event(&Event::Connected {
            address: address.to_string(),
            transport,
            negotiated: negotiated.into(),
        });
    }

    async fn run_all(&self, report: &Report, connection: &Connection) -> Tally {
        let mut tally = Tally::new();
        let mut interrupted = signals::Interrupted::new();
        let mut due = tokio::time::Instant::now();
        while (self.count == 0 || tally.sent < self.count) && !report::is_unread() {
            tokio::select! {
                biased;
                () = interrupted.wait() => {
                    tally.interrupted = true;
                    break;
                }
                () = sleep_until(due) => {}
            }
            due = (due + self.interval).max(tokio::time::Instant::now());
            let sequence = tally.sent + 1;
            let result = tokio::select! {
                biased;
                result = self.one(connection, sequence) => result,
                () = interrupted.wait() => {
                    tally.interrupted = true;
                    break;
                }
            };
            tally.sent += 1;
            match result {
                Ok(took) => {
                    tally.answer(took);
                    report.line(format_args!("{sequence:>5}  {:>8}", report::time(took)));
                    report.event(&Event::Reply {
                        sequence,
                        seconds: took.as_secs_f64(),
                        bytes: self.echo.then(|| self.size()),
                    });
                }
                Err(lost) => {
                    tally.lost += 1;
                    report.line(format_args!(
                        "{sequence:>5}  {} {}",
                        report.style.bad("lost:"),
                        lost.reason
                    ));
                    report.event(&Event::Lost {
                        sequence,
                        error: &lost.reason,
                    });
                    if lost.last {
                        break;
                    }
                }
            }
        }
        tally
    }

    async fn one(&self, connection: &Connection, sequence: u64) -> Result<Duration, Lost> {
        if self.echo {
            return self.echo(connection, sequence).await;
        }
        Ok(connection.keepalive().await?)
    }

    async fn echo(&self, connection: &Connection, sequence: u64) -> Result<Duration, Lost> {
        let sent = contents(sequence, self.size() as usize);
        let started = Instant::now();
        let sending = connection
            .send(sent.clone())
            .map_err(|error| Lost::last(&error))?;
        let answer = async {
            sending.await?;
            connection.recv().await
        };
        let Ok(received) = timeout(self.timeout(), answer).await else {
            let limit = report::time(self.timeout());
            return Err(Lost::last(&format!(
                "nothing came back in {limit}; does the peer run `smbdirect listen --echo`?"
            )));
        };
        let (received, took) = (received?.into_bytes(), started.elapsed());
        let reason = match sent
            .iter()
            .zip(&received)
            .position(|(sent, came)| sent != came)
        {
            // This process may have been delayed itself.
            _ if took > self.timeout() => {
                format!("it came back after {}, too late", report::time(took))
            }
            _ if received.len() != sent.len() => {
                let (came, sent) = (received.len(), sent.len());
                format!("{came} bytes came back, {sent} were sent")
            }
            Some(at) => format!("the message came back changed from byte {at} on"),
            None => return Ok(took),
        };
        let last = false;
        Err(Lost { reason, last })
    }
}

/// Why a round trip failed.
struct Lost {
    reason: String,
    /// The connection is over, so no further round trip is possible.
    last: bool,
}

impl Lost {
    fn last(error: &dyn std::fmt::Display) -> Self {
        Self {
            reason: error.to_string(),
            last: true,
        }
    }
}

impl From<ConnectionError> for Lost {
    fn from(error: ConnectionError) -> Self {
        Self::last(&transport::explain_end(&error))
    }
}

/// Returns bytes that differ between messages and within each message.
fn contents(sequence: u64, length: usize) -> Bytes {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(sequence).fill(&mut bytes);
    bytes.into()
}

/// Longest time for closing the connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Upper bound of the histogram: an hour, more than a keepalive or an echo can take.
const MAX_NANOSECONDS: u64 = 3_600_000_000_000;

struct Tally {
    sent: u64,
    lost: u64,
    interrupted: bool,
    /// The round trips, rounded to three digits.
    nanoseconds: Histogram<u64>,
    min: Duration,
    max: Duration,
}

impl Tally {
    fn new() -> Self {
        let nanoseconds = Histogram::new_with_bounds(1, MAX_NANOSECONDS, 3);
        Self {
            sent: 0,
            lost: 0,
            interrupted: false,
            nanoseconds: nanoseconds.expect("the bounds are legal"),
            min: Duration::MAX,
            max: Duration::ZERO,
        }
    }

    fn answered(&self) -> u64 {
        self.nanoseconds.len()
    }

    fn answer(&mut self, took: Duration) {
        self.nanoseconds.saturating_record(took.as_nanos() as u64);
        self.min = self.min.min(took);
        self.max = self.max.max(took);
    }

    /// Returns the quantile at `share` of the round trips.
    fn quantile(&self, share: f64) -> Duration {
        let rounded = Duration::from_nanos(self.nanoseconds.value_at_quantile(share));
        rounded.clamp(self.min.min(self.max), self.max)
    }

    fn report(&self, report: &Report) {
        let (median, p99) = (self.quantile(0.5), self.quantile(0.99));
        let lost = format!("{} lost", report::count(self.lost));
        report.line(format_args!(
            "\n{} sent, {} answered, {}",
            report::count(self.sent),
            report::count(self.answered()),
            if self.lost > 0 {
                report.style.bad(&lost)
            } else {
                lost
            },
        ));
        if self.answered() > 0 {
            let [min, median, p99, max] = [self.min, median, p99, self.max].map(report::time);
            report.line(format_args!(
                "min {min}   median {median}   p99 {p99}   max {max}"
            ));
        }
        let seconds = |time: Duration| (self.answered() > 0).then_some(time.as_secs_f64());
        report.event(&Event::Summary {
            sent: self.sent,
            answered: self.answered(),
            lost: self.lost,
            interrupted: self.interrupted,
            min_seconds: seconds(self.min),
            median_seconds: seconds(median),
            p99_seconds: seconds(p99),
            max_seconds: seconds(self.max),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_have_their_length_and_differ() {
        for length in [1, 7, 8, 9, 64, 100_000] {
            assert_eq!(contents(1, length).len(), length);
        }
        assert_ne!(contents(1, 8), contents(2, 8));
        assert_eq!(contents(3, 64), contents(3, 64));
    }

    #[test]
    fn quantiles_lie_between_the_extremes() {
        let mut tally = Tally::new();
        for microseconds in 1..=1000 {
            tally.answer(Duration::from_micros(microseconds));
        }
        assert_eq!(tally.min, Duration::from_micros(1));
        assert_eq!(tally.max, Duration::from_micros(1000));
        let median = tally.quantile(0.5).as_micros();
        assert!((499..=501).contains(&median), "{median}");
        let p99 = tally.quantile(0.99).as_micros();
        assert!((989..=991).contains(&p99), "{p99}");
        assert_eq!(Tally::new().quantile(0.5), Duration::ZERO);
        let mut one = Tally::new();
        one.answer(Duration::from_nanos(1_234_567));
        assert_eq!(one.quantile(0.99), Duration::from_nanos(1_234_567));
    }
}
