//! Shows the events of a gateway: as lines, as log lines with fields in the journal, and as JSON.

use std::{net::SocketAddr, time::Duration};

use serde::Serialize;
use smbdirect_gateway::{Carried, Closed, Event as GatewayEvent, SinceLastLine};
use tracing::{info, warn};

use crate::{
    options::Transport,
    report::{self, Report},
};

/// An event of the command itself, which --json prints as an object.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Event<'a> {
    Listening {
        address: String,
        /// `null` for TCP without SMB Direct.
        transport: Option<Transport>,
        service: &'a str,
    },
    Reloaded {
        changed: &'a [String],
        needs_restart: &'a [String],
        added: &'a [String],
        removed: &'a [String],
    },
    Upgraded {
        /// The ID of the new process.
        process: i32,
        /// The sessions of this process that are open.
        open: u64,
    },
}

/// An event of a service, and its name.
#[derive(Serialize)]
struct OfService<'a> {
    #[serde(flatten)]
    event: &'a GatewayEvent<'a>,
    service: &'a str,
}

/// Shows the events of a service.
#[derive(Clone, Debug)]
pub(super) struct Show {
    report: Report,
    service: String,
    /// The service in lines for people, if there are several.
    prefix: String,
}

impl Show {
    pub(super) fn new(report: Report, service: &str, has_tables: bool) -> Self {
        let prefix = if has_tables {
            format!("{service}  ")
        } else {
            String::new()
        };
        Self {
            report,
            service: service.to_owned(),
            prefix,
        }
    }

    /// Shows an event of the gateway.
    pub(super) fn show(&self, event: &GatewayEvent<'_>) {
        match *event {
            GatewayEvent::TurnedAway {
                peer,
                reason,
                since_last_line: Some(since_last_line),
                ..
            } => self.show_turned_away(peer, reason, since_last_line),
            GatewayEvent::ServerUp { server } => {
                let Self {
                    service, prefix, ..
                } = self;
                info!(target: report::CONNECTIONS, service, server, "{prefix}{server} takes clients again");
            }
            GatewayEvent::ServerDown { server, reason, .. } => {
                self.warn_of_server(server, reason, "gets no new clients");
            }
            GatewayEvent::ServerGivenUp { server, reason } => {
                self.warn_of_server(server, reason, "is given up, and its sessions end");
            }
            GatewayEvent::Closed(ref session) => self.show_closed(session),
            GatewayEvent::Summary {
                total,
                failed,
                turned_away,
                ref carried,
            } => self.show_summary(total, failed, turned_away, carried),
            // Only the JSON output reports these events.
            GatewayEvent::Opened { .. }
            | GatewayEvent::TurnedAway {
                since_last_line: None,
                ..
            }
            | GatewayEvent::Refused { .. }
            | GatewayEvent::Draining { .. } => {}
        }
        let service = &self.service;
        self.report.event(&OfService { event, service });
    }

    fn warn_of_server(&self, server: &str, reason: &str, what: &str) {
        let Self {
            service, prefix, ..
        } = self;
        warn!(target: report::CONNECTIONS, service, server, reason, "{prefix}{server} {what}: {reason}");
    }

    fn show_turned_away(&self, peer: SocketAddr, reason: &str, since: SinceLastLine) {
        let mut why = format!("turned away: {reason}");
        if since.times > 1 {
            let times = report::count(since.times);
            why += &format!(" ({times} times since the last line)");
        }
        if since.others > 0 {
            let others = report::plural(since.others, "other connection");
            why += &format!("; {others} had no line");
        }
        let Self {
            report,
            prefix,
            service,
        } = self;
        if report.is_journal() {
            warn!(target: report::CONNECTIONS, service, %peer, reason, "{prefix}{peer}  {why}");
        } else {
            let why = report.style.bad(&why);
            report.line(format_args!("{}  {prefix}{peer}  {why}", report::now()));
        }
    }

    fn show_closed(&self, session: &Closed<'_>) {
        let Self {
            report,
            prefix,
            service,
        } = self;
        let Closed {
            id,
            peer,
            seconds,
            negotiate_seconds,
            connect_seconds,
            ended,
            carried,
            ..
        } = *session;
        let carried_in = format!("{} in {}", in_words(&carried), time(seconds));
        if !report.is_journal() {
            let how = if session.ok {
                report.style.dim(ended)
            } else {
                report.style.bad(ended)
            };
            let (negotiate, connect) = (time(negotiate_seconds), time(connect_seconds));
            return report.line(format_args!(
                "{}  {prefix}#{id}  {peer}  {carried_in}  negotiate {negotiate}  connect {connect}  {how}",
                report::now(),
            ));
        }
        // In the journal the figures are fields.
        macro_rules! log {
            ($level:ident) => {
                $level!(
                    target: report::CONNECTIONS,
                    service,
                    session = id,
                    %peer,
                    server = session.server_name,
                    ended,
                    seconds,
                    negotiate_seconds,
                    connect_seconds,
                    messages_to_server = carried.messages_to_server,
                    bytes_to_server = carried.bytes_to_server,
                    messages_to_client = carried.messages_to_client,
                    bytes_to_client = carried.bytes_to_client,
                    bytes_read_by_rdma = carried.bytes_read_by_rdma,
                    bytes_written_by_rdma = carried.bytes_written_by_rdma,
                    "{prefix}#{id}  {peer}  {carried_in}  {ended}"
                )
            };
        }
        if session.ok {
            log!(info);
        } else {
            log!(warn);
        }
    }

    fn show_summary(&self, total: u64, failed: u64, turned_away: u64, carried: &Carried) {
        let Self { report, prefix, .. } = self;
        let failures = match failed {
            0 => "none failed".to_owned(),
            failed => report
                .style
                .bad(&format!("{} failed", report::count(failed))),
        };
        let away = match turned_away {
            0 => String::new(),
            clients => format!(", {} turned away", report::count(clients)),
        };
        report.line(format_args!(
            "\n{prefix}{}, {failures}{away}  {}",
            report::plural(total, "connection"),
            in_words(carried)
        ));
    }
}

fn time(seconds: f64) -> String {
    report::time(Duration::from_secs_f64(seconds))
}

/// Returns the traffic, as a part of a line.
fn in_words(carried: &Carried) -> String {
    let mut words = format!(
        "to server {}, {}  to client {}, {}",
        report::plural(carried.messages_to_server, "message"),
        report::bytes(carried.bytes_to_server),
        report::plural(carried.messages_to_client, "message"),
        report::bytes(carried.bytes_to_client),
    );
    if carried.reads_by_rdma + carried.writes_by_rdma > 0 {
        words += &format!(
            "  by RDMA {}, {}, and {}, {}",
            report::plural(carried.reads_by_rdma, "READ"),
            report::bytes(carried.bytes_read_by_rdma),
            report::plural(carried.writes_by_rdma, "WRITE"),
            report::bytes(carried.bytes_written_by_rdma),
        );
    }
    words
}
