//! `smbdirect decode --explain`: where the time of a capture went, in one screen.

use std::time::Duration;

use smbdirect_decode::{CauseReport, ConnectionReport, Explanation, Limit, RequestReport, Verdict};

use crate::report::{Report, bytes, count, plural, rate, time};

/// Connections of which the table is printed.
const MAX_TABLES: usize = 3;
/// Lines about what the capture does not show.
const MAX_UNSEEN: usize = 5;
/// A phase with a smaller share of the time is not printed.
const MIN_SHARE: f64 = 0.005;

/// Prints an explanation.
pub(super) fn text(report: &Report, explanation: &Explanation) {
    let has_requests = explanation
        .connections
        .iter()
        .any(|connection| !connection.requests.is_empty());
    if has_requests || !explanation.verdict.causes.is_empty() {
        verdict(report, &explanation.verdict);
    } else {
        report.line(
            "No SMB2 request and response is in the capture, so nothing can be said about them.",
        );
    }
    let mains = &explanation.verdict.streams;
    let (main, other): (Vec<_>, Vec<_>) = explanation
        .connections
        .iter()
        .partition(|connection| mains.contains(&connection.stream));
    for connection in main.iter().take(MAX_TABLES) {
        self::connection(report, connection);
    }
    let more = other.len() + main.len().saturating_sub(MAX_TABLES);
    if more > 0 {
        report.line("");
        report.line(format_args!(
            "{} with less data: --json prints all",
            plural(more as u64, "more connection")
        ));
    }
    if !explanation.unseen.is_empty() {
        report.line("");
        for line in explanation.unseen.iter().take(MAX_UNSEEN) {
            report.line(format_args!("not seen: {line}"));
        }
    }
}

fn verdict(report: &Report, verdict: &Verdict) {
    let style = report.style;
    let seconds = Duration::from_secs_f64(verdict.seconds);
    report.line(format_args!(
        "{} in {}: {}",
        bytes(verdict.bytes),
        time(seconds),
        rate(verdict.bytes, seconds)
    ));
    if verdict.causes.is_empty() {
        let limit = verdict.limit.map(|limit| match limit {
            Limit::Wire => {
                "the path, or the processors that fill it: bytes were on the wire, or data was being placed"
            }
            Limit::Server => "the server, which is not slower than one with a fast disk",
            Limit::Client => "the client, which asks for nothing",
        });
        report.line("");
        report.line(match limit {
            Some(limit) => style.good(&format!(
                "Nothing is wrong. The limit is {limit} ({} of the time).",
                percent(verdict.limit_share)
            )),
            None => style.bold("The capture cannot tell what is slow."),
        });
    }
    for (index, cause) in verdict.causes.iter().enumerate() {
        self::cause(report, index + 1, cause);
    }
}

fn cause(report: &Report, number: usize, cause: &CauseReport) {
    let style = report.style;
    report.line("");
    let head = format!("{number}. {}  {}", percent(cause.share), cause.words);
    report.line(style.bold(&head));
    report.line(format_args!("   {}", cause.figures));
    let evidence: Vec<_> = cause
        .evidence
        .iter()
        .map(|evidence| {
            let [from, to] = evidence.frames;
            let seconds = Duration::from_secs_f64(evidence.seconds);
            format!("{from} to {to} ({})", time(seconds))
        })
        .collect();
    if !evidence.is_empty() {
        report.line(format_args!("   longest: frames {}", evidence.join(", ")));
    }
    for [system, cure] in &cause.cures {
        report.line(format_args!("   {system:<13} {cure}"));
    }
}

fn connection(report: &Report, connection: &ConnectionReport) {
    report.line("");
    let [client, server] = connection.ends.map(|end| end.to_string());
    report.line(report.style.bold(&format!(
        "stream {}: {client} (client) and {server} (server), {}",
        connection.stream,
        time(Duration::from_secs_f64(connection.seconds))
    )));
    for phase in &connection.phases {
        if phase.share >= MIN_SHARE {
            let seconds = time(Duration::from_secs_f64(phase.seconds));
            report.line(format_args!(
                "{:>6} {seconds:>10}  {}",
                percent(phase.share),
                phase.phase.words()
            ));
        }
    }
    report.line(format_args!(
        "requests outstanding: {:.1} on average, at most {}",
        connection.outstanding, connection.most_outstanding
    ));
    let head = format!(
        "{:<28}{:>9}{:>12}{:>10}{:>10}{:>10}{:>10}{:>10}",
        "on average", "requests", "bytes", "request", "server", "RDMA", "server", "response"
    );
    report.line(report.style.dim(&head));
    for request in &connection.requests {
        report.line(self::request(request));
        if request.failed > 0 {
            report.line(format_args!("{} of them failed", request.failed));
        }
    }
    let in_messages = connection.in_messages;
    if in_messages.requests > 0 {
        report.line(format_args!(
            "in messages: {} in {}",
            bytes(in_messages.bytes),
            plural(in_messages.requests, "READ or WRITE")
        ));
    }
}

fn request(request: &RequestReport) -> String {
    let time = |seconds: f64| {
        if seconds == 0.0 {
            "-".to_owned()
        } else {
            time(Duration::from_secs_f64(seconds))
        }
    };
    format!(
        "{:<28}{:>9}{:>12}{:>10}{:>10}{:>10}{:>10}{:>10}",
        request.kind,
        count(request.requests),
        bytes(request.bytes),
        time(request.request),
        time(request.server_before),
        time(request.data),
        time(request.server_after),
        time(request.response)
    )
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
