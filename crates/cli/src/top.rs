//! `smbdirect top`: the connections of a running gateway or listener, with their rates.
//!
//! ```text
//!   client ── GET /status of --metrics ──> rates ──> screen   on a terminal, refreshed in place
//!                                               └──> table    once, or as JSON
//! ```

mod client;
mod columns;
mod keys;
mod rates;
mod screen;
mod table;
mod waits;

use std::{
    io::{self, IsTerminal},
    pin::pin,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use clap::{ArgAction, Args};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::warn;

use crate::{
    metrics::Endpoint,
    options::{Address, seconds},
    report::{self, Report},
    signals::{self, Interrupted},
    transport,
};

use columns::Order;
use keys::{Key, Keys};
use rates::{Rated, Rates};
use screen::Screen;

/// Show the connections of a running gateway or listener
///
/// The gateway or listener has to run with --metrics. On a terminal the table is refreshed in place;
/// q ends it. Otherwise, or with --once, the rates of one interval are printed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Top {
    /// The address of --metrics: HOST[:PORT], or the path of its socket or of --control [default: 127.0.0.1]
    ///
    /// The default port is 9445
    #[arg(value_name = "ADDR")]
    address: Option<Endpoint>,

    /// Time between two refreshes
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,

    /// Print one table and exit
    #[arg(long)]
    once: bool,

    /// Print a JSON object for each interval, or one with --once
    ///
    /// While the gateway or listener is not there, because it is restarted, there is none
    #[arg(long)]
    pub(crate) json: bool,

    /// Log to stderr
    #[arg(short, long, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

const EXAMPLES: &str = "\x1b[1m\x1b[4mExamples:\x1b[0m
  smbdirect gateway :5445 127.0.0.1 --metrics 127.0.0.1:9445
  smbdirect top                                              of this gateway
  smbdirect top server:9445 --once                           one table, for a script or a report

\x1b[1m\x1b[4mColumns:\x1b[0m
  PEER, AGE                 address of the peer, and how long it has been connected
  SENT/s, RECV/s, OUT, IN   messages and their bytes per second
  READ, WRITE               bytes per second by RDMA Read and Write of this end
  CREDITS                   send credits held / requested
  GRANTED                   credits granted to the peer / maximum
  STALLS/s                  how often per second a message had to wait for a send credit
  WAIT                      share of the time in which messages waited for one
  WAITS FOR                 what took most of the time: think: the client asks for nothing; server: it has a
                            request; network: data to or from the client waits for the network or its window;
                            memory: --memory is used up; send_credits: the peer grants none; own_credits: the
                            peer has used all that this end granted; this_machine: a thread takes all of a
                            core. Of a listener, or if messages are encrypted: also send_queue: it is full;
                            messages: none moved; -: none of these. docs/slow.md has the cures
  RTT                       last round trip of a keepalive
  REGIONS                   registered memory regions";

impl Top {
    pub(crate) async fn run(self) -> Result<bool> {
        let address = self.address.clone().unwrap_or_else(|| {
            Endpoint::Address(Address {
                host: "127.0.0.1".into(),
                port: None,
            })
        });
        if let Endpoint::Address(address) = &address {
            transport::check_connectable(address)?;
        }
        let mut rates = Rates::default();
        let first = client::status(&address).await?;
        let first = rates.next(first);
        let screen = !self.once && !self.json && io::stdout().is_terminal();
        if screen {
            return self.refresh(&address, rates, first).await;
        }
        let report = Report::new(self.json);
        let mut interrupted = Interrupted::new();
        let mut is_waiting = false;
        loop {
            tokio::select! {
                () = sleep(self.interval) => {}
                () = interrupted.wait() => return Ok(true),
            }
            let status = tokio::select! {
                status = client::status(&address) => status,
                () = interrupted.wait() => return Ok(true),
            };
            let status = match status {
                Ok(status) => status,
                // The command may be restarted, so the next interval tries again.
                Err(error) if self.json && !self.once => {
                    if !std::mem::replace(&mut is_waiting, true) {
                        warn!("waiting for {address}: {error:#}");
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            is_waiting = false;
            let rated = rates.next(status);
            report.event(&rated);
            if !self.json {
                table::print(report, &rated);
            }
            if self.once || !self.json || report::is_unread() {
                return Ok(true);
            }
        }
    }

    /// Shows the table on the terminal until a key or a signal ends it.
    async fn refresh(&self, address: &Endpoint, mut rates: Rates, first: Rated) -> Result<bool> {
        let mut interrupted = Interrupted::new();
        let mut screen = Screen::open().context("the terminal cannot be used")?;
        let mut keys = Keys::new();
        let mut continued = signals::Continued::new();
        let mut ticks = interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        let (mut rated, mut fault, mut order) = (first, None, Order::default());
        // Keys and signals count while the answer is waited for: the endpoint may hang.
        let mut asked = pin!(None);
        loop {
            screen
                .draw(&rated, fault.as_deref(), order)
                .map_err(|_| terminal_gone())?;
            tokio::select! {
                _ = ticks.tick(), if asked.is_none() => asked.set(Some(client::status(address))),
                answer = async { asked.as_mut().as_pin_mut().expect("it is asked").await },
                    if asked.is_some() =>
                {
                    asked.set(None);
                    match answer {
                        Ok(status) => (rated, fault) = (rates.next(status), None),
                        // The command may be restarted, so the error is shown and the next tick tries again.
                        Err(error) => fault = Some(format!("{error:#}")),
                    }
                },
                key = keys.next() => match key {
                    Some(Key::Quit) => return Ok(true),
                    None => return Err(terminal_gone()),
                    Some(Key::Order) => order = order.next(),
                    Some(Key::Scroll(lines)) => screen.scroll(lines),
                    Some(Key::Redraw) => {}
                    Some(Key::Stop) => screen.leave(signals::stop).map_err(|_| terminal_gone())?,
                },
                () = continued.wait() => screen.leave(|| ()).map_err(|_| terminal_gone())?,
                () = interrupted.wait() => return Ok(true),
            }
        }
    }
}

fn terminal_gone() -> anyhow::Error {
    anyhow!("the terminal is gone")
}
