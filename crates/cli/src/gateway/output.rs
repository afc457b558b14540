//! Shows the events of a gateway: as lines, as log lines with fields in the journal, and as JSON.

use std::{net::SocketAddr, time::Duration};

use serde::Serialize;
use smbdirect_gateway::{Carried, Event as GatewayEvent};
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
    },
    Reloaded {
        changed: &'a [String],
        needs_restart: &'a [String],
    },
}

/// Shows an event of the gateway.
pub(super) fn show(report: Report, event: &GatewayEvent<'_>) {
    match *event {
        GatewayEvent::TurnedAway {
            peer,
            reason,
            times: Some(times),
            ..
        } => show_turned_away(report, peer, reason, times),
        GatewayEvent::ServerUp { server } => info!(server, "the server takes clients again"),
        GatewayEvent::ServerDown { server, reason } => {
            warn!(
                server,
                reason, "the server takes no clients, because its checks fail"
            );
        }
        GatewayEvent::Closed {
            peer,
            seconds,
            ok,
            ended,
            ref carried,
            ..
        } => {
            let took = Duration::from_secs_f64(seconds);
            show_closed(report, peer, took, ok, ended, carried);
        }
        GatewayEvent::Summary {
            total,
            failed,
            turned_away,
            ref carried,
        } => show_summary(report, total, failed, turned_away, carried),
        // Only the JSON output reports these events.
        GatewayEvent::Opened { .. }
        | GatewayEvent::TurnedAway { times: None, .. }
        | GatewayEvent::Refused { .. }
        | GatewayEvent::Draining { .. } => {}
    }
    report.event(event);
}

fn show_turned_away(report: Report, peer: SocketAddr, reason: &str, times: u64) {
    let times = match times {
        1 => String::new(),
        times => format!(" ({times} times since the last line)"),
    };
    let why = format!("turned away: {reason}{times}");
    if report.is_journal() {
        warn!(target: report::CONNECTIONS, %peer, reason, "{peer}  {why}");
    } else {
        let why = report.style.bad(&why);
        report.line(format_args!("{peer}  {why}"));
    }
}

fn show_closed(
    report: Report,
    peer: SocketAddr,
    took: Duration,
    ok: bool,
    ended: &str,
    carried: &Carried,
) {
    if report.is_journal() {
        return log_closed(peer, took, ok, ended, carried);
    }
    let style = report.style;
    let how = if ok {
        style.dim(ended)
    } else {
        style.bad(ended)
    };
    report.line(format_args!(
        "{peer}  {} in {}  {how}",
        in_words(carried),
        report::time(took)
    ));
}

/// Logs the end of the connection to `peer`, with its figures as fields.
fn log_closed(peer: SocketAddr, took: Duration, ok: bool, ended: &str, carried: &Carried) {
    macro_rules! log {
        ($level:ident) => {
            $level!(
                target: report::CONNECTIONS,
                %peer,
                ended,
                seconds = took.as_secs_f64(),
                messages_to_server = carried.messages_to_server,
                bytes_to_server = carried.bytes_to_server,
                messages_to_client = carried.messages_to_client,
                bytes_to_client = carried.bytes_to_client,
                bytes_read_by_rdma = carried.bytes_read_by_rdma,
                bytes_written_by_rdma = carried.bytes_written_by_rdma,
                "{peer}  {} in {}  {ended}",
                in_words(carried),
                report::time(took)
            )
        };
    }
    if ok {
        log!(info);
    } else {
        log!(warn);
    }
}

fn show_summary(report: Report, total: u64, failed: u64, turned_away: u64, carried: &Carried) {
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
        "\n{}, {failures}{away}  {}",
        report::plural(total, "connection"),
        in_words(carried)
    ));
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
