//! The verdict about a capture, and the reports of its connections.

use std::collections::{BTreeMap, HashMap};

use super::{
    Connection,
    account::{Interval, Total},
    cause::{Cause, Limit, Phase},
    operations::{Kind, Sums},
    report::{
        CauseReport, ConnectionReport, Evidence, InMessages, PathReport, PhaseReport,
        RequestReport, SessionReport, Verdict,
    },
};
use crate::streams::PlainSmb;

/// Causes that a verdict names.
const MAX_CAUSES: usize = 3;
/// A cause with a smaller share of the time is not named: without it, little would change.
const MIN_SHARE: f64 = 0.10;
/// A larger share of the time that is not seen is said, because it can hide a cause.
const MAX_UNSEEN_SHARE: f64 = 0.05;
/// Part of the data of the largest connection that makes another connection part of the verdict.
const MIN_DATA: u64 = 10;
/// If pauses within messages take this part of the time in which an end is slow between messages, its processor is
/// the reason for both: a slow disk does not stop an end in the middle of a message.
const PAUSES_OF_BUSY_END: u64 = 8;

/// Returns what makes the connections with most of the data slow.
pub(super) fn verdict(connections: &BTreeMap<u32, Connection>) -> Verdict {
    let streams = main_streams(connections);
    let mains = || streams.iter().map(|stream| &connections[stream]);
    let accounts = || mains().map(|connection| &connection.timeline.account);
    let of = |phase: Phase| accounts().map(move |account| account.phases[phase as usize]);
    let idle = of(Phase::Idle)
        .chain(of(Phase::Setup))
        .chain(of(Phase::Unseen))
        .fold(0, u64::saturating_add);
    let all = accounts()
        .map(super::account::Account::total)
        .fold(0, u64::saturating_add);
    let active = all.saturating_sub(idle).max(1) as f64;
    let mut totals: HashMap<Cause, (u64, Vec<(u32, Interval)>)> = HashMap::new();
    for &stream in &streams {
        for (cause, total) in causes(&connections[&stream]) {
            let (time, evidence) = totals.entry(cause).or_default();
            *time = total.time.saturating_add(*time);
            evidence.extend(total.longest.into_iter().map(|interval| (stream, interval)));
        }
    }
    let mut named: Vec<_> = totals
        .into_iter()
        .filter(|(_, (time, _))| *time as f64 / active >= MIN_SHARE)
        .collect();
    named.sort_by_key(|&(cause, (time, _))| (std::cmp::Reverse(time), cause));
    named.truncate(MAX_CAUSES);
    let of_phases = |phases: &[Phase]| -> u64 {
        let usual = |phase: &Phase| {
            accounts()
                .map(|account| account.usual[*phase as usize])
                .fold(0, u64::saturating_add)
        };
        phases.iter().map(usual).fold(0, u64::saturating_add)
    };
    let in_losses = accounts().map(|account| {
        let loss = account.causes.get(&Cause::Loss);
        account.used_in_loss(loss.map_or(0, |total| total.time))
    });
    let wire = of_phases(&[Phase::Request, Phase::Data, Phase::Response, Phase::Path])
        .saturating_add(in_losses.fold(0, u64::saturating_add));
    let server = of_phases(&[Phase::Server]);
    let limit = if wire == 0 && server == 0 {
        Limit::Client
    } else if wire >= server {
        Limit::Wire
    } else {
        Limit::Server
    };
    let causes = named.into_iter().map(|(cause, (time, mut evidence))| {
        evidence.sort_by_key(|(_, interval)| std::cmp::Reverse(interval.time));
        evidence.truncate(MAX_CAUSES);
        CauseReport {
            cause,
            seconds: seconds(time),
            share: time as f64 / active,
            words: cause.words().into(),
            figures: figures(cause, &mains().collect::<Vec<_>>()),
            evidence: evidence.into_iter().map(evidence_of).collect(),
            cures: cause.cures().to_vec(),
        }
    });
    Verdict {
        seconds: seconds(all.saturating_sub(idle)),
        bytes: mains().map(Connection::bytes).sum(),
        causes: causes.collect(),
        limit,
        limit_share: (wire as f64 + server as f64) / active,
        streams,
    }
}

/// Returns the verdict about a capture that has SMB over TCP only.
pub(super) fn without_rdma(plain: PlainSmb) -> Verdict {
    let cause = Cause::RdmaNotUsed;
    let seconds = plain.last.seconds - plain.first.seconds;
    let (first, last) = (plain.first.frame, plain.last.frame);
    Verdict {
        seconds,
        bytes: plain.bytes,
        causes: vec![CauseReport {
            cause,
            seconds,
            share: 1.0,
            words: cause.words().into(),
            figures: format!(
                "{} bytes by TCP to and from port 445, frames {first} to {last}; none by SMB Direct",
                plain.bytes
            ),
            evidence: Vec::new(),
            cures: cause.cures().to_vec(),
        }],
        limit: Limit::Client,
        limit_share: 0.0,
        streams: Vec::new(),
    }
}

/// Returns the causes of a connection. A slow end that also pauses within messages has a busy processor, and losses cost
/// only the time in which less was sent than the path carries.
fn causes(connection: &Connection) -> HashMap<Cause, Total> {
    let mut causes = connection.timeline.account.causes.clone();
    let pairs = [
        (Cause::SlowServer, Cause::BusyServer),
        (Cause::Think, Cause::BusyClient),
    ];
    for (slow, busy) in pairs {
        let time = |cause| causes.get(&cause).map_or(0, |total: &Total| total.time);
        if time(busy) > 0
            && time(busy) * PAUSES_OF_BUSY_END >= time(slow)
            && let Some(total) = causes.remove(&slow)
        {
            let busy = causes.entry(busy).or_default();
            busy.time += total.time;
            busy.longest.extend(total.longest);
        }
    }
    if let Some(total) = causes.get_mut(&Cause::Loss) {
        total.time -= connection.timeline.account.used_in_loss(total.time);
    }
    causes
}

/// Returns the streams that move most of the data, or those with most requests if none moves data.
fn main_streams(connections: &BTreeMap<u32, Connection>) -> Vec<u32> {
    let moves_data = connections
        .values()
        .any(|connection| connection.bytes() > 0);
    let weight = |connection: &Connection| {
        if moves_data {
            connection.bytes()
        } else {
            connection.requests()
        }
    };
    let most = connections.values().map(weight).max().unwrap_or(0);
    let mains = connections
        .iter()
        .filter(|(_, connection)| weight(connection).saturating_mul(MIN_DATA) >= most);
    mains.map(|(&stream, _)| stream).collect()
}

fn evidence_of((stream, interval): (u32, Interval)) -> Evidence {
    Evidence {
        stream,
        frames: interval.frames,
        seconds: seconds(interval.time),
    }
}

/// Returns the figures that show a cause.
fn figures(cause: Cause, connections: &[&Connection]) -> String {
    let sum = |of: fn(&PathReport) -> u64| -> u64 {
        connections
            .iter()
            .map(|connection| of(&connection.path.report))
            .sum()
    };
    match cause {
        Cause::SendCredits => {
            let fewest = |end: usize| {
                let of_all = connections
                    .iter()
                    .filter_map(|connection| connection.fewest_send_credits[end]);
                of_all
                    .min()
                    .map_or_else(|| "?".into(), |fewest| fewest.to_string())
            };
            format!(
                "fewest send credits: client {}, server {}",
                fewest(0),
                fewest(1)
            )
        }
        Cause::Smb2Credits => {
            let lowest = connections
                .iter()
                .filter_map(|connection| connection.operations.smb2_lowest);
            format!("fewest SMB2 credits: {}", lowest.min().unwrap_or(0))
        }
        Cause::Threshold | Cause::Signing | Cause::Encryption => in_messages(connections),
        Cause::OneOutstanding => outstanding(connections),
        Cause::SmallRequests | Cause::Metadata => {
            let all = sums(connections, |_| true);
            let data = sums(connections, |kind| kind != Kind::Metadata);
            format!(
                "{} requests, {} READs and WRITEs of {} bytes on average",
                all.requests,
                data.requests,
                data.bytes / data.requests.max(1)
            )
        }
        Cause::Delay => {
            let longest = connections
                .iter()
                .flat_map(|connection| connection.path.shortest())
                .flatten();
            format!(
                "round trip {:.2} ms; {}",
                longest.fold(0.0, f64::max) * 1e3,
                outstanding(connections)
            )
        }
        Cause::Loss | Cause::MtuBlackHole => {
            let reduced = connections
                .iter()
                .map(|connection| &connection.timeline.account)
                .map(|account| account.phases[Phase::ReducedWindow as usize])
                .fold(0, u64::saturating_add);
            let mut figures = format!(
                "{} packets sent again, {} NAKs, {} repeated acknowledgements",
                sum(|path| path.sent_again),
                sum(|path| path.naks),
                sum(|path| path.duplicate_acks)
            );
            if reduced > 0 {
                let line = format!(
                    "; {:.2} s with a smaller congestion window after a loss",
                    seconds(reduced)
                );
                figures.push_str(&line);
            }
            figures
        }
        Cause::SlowServer | Cause::BusyServer => {
            let all = sums(connections, |_| true);
            let mean =
                (all.server_before as f64 + all.server_after as f64) / all.requests.max(1) as f64;
            format!("{:.2} ms in the server for each request", mean / 1e6)
        }
        Cause::Window => format!(
            "{} packets with a window of 0",
            sum(|path| path.zero_windows)
        ),
        Cause::RdmaNotUsed | Cause::BusyClient | Cause::DelayedAcknowledgement | Cause::Think => {
            outstanding(connections)
        }
    }
}

fn outstanding(connections: &[&Connection]) -> String {
    let accounts = || {
        connections
            .iter()
            .map(|connection| &connection.timeline.account)
    };
    let sum: f64 = accounts().map(|account| account.outstanding).sum();
    let time = accounts()
        .map(|account| account.outstanding_time)
        .fold(0, u64::saturating_add);
    let most = accounts().map(|account| account.most_outstanding).max();
    format!(
        "{:.1} requests outstanding on average, at most {}",
        sum / time.max(1) as f64,
        most.unwrap_or(0)
    )
}

fn in_messages(connections: &[&Connection]) -> String {
    let all = || {
        connections
            .iter()
            .flat_map(|connection| connection.operations.in_messages.values())
    };
    let bytes: u64 = all().map(|counts| counts.bytes).sum();
    let requests: u64 = all().map(|counts| counts.requests).sum();
    let rdma: u64 = connections
        .iter()
        .map(|connection| connection.operations.rdma_bytes)
        .sum();
    format!("{bytes} bytes in {requests} READs and WRITEs in messages, {rdma} bytes by RDMA")
}

/// Returns the sums over the requests of the kinds that are wanted.
fn sums(connections: &[&Connection], wanted: impl Fn(Kind) -> bool) -> Sums {
    let mut all = Sums::default();
    let kinds = connections
        .iter()
        .flat_map(|connection| &connection.operations.kinds);
    for (_, sums) in kinds.filter(|((kind, _), _)| wanted(*kind)) {
        all.requests += sums.requests;
        all.bytes += sums.bytes;
        all.server_before = all.server_before.saturating_add(sums.server_before);
        all.server_after = all.server_after.saturating_add(sums.server_after);
    }
    all
}

/// Returns the report of each connection.
pub(super) fn connections(connections: &BTreeMap<u32, Connection>) -> Vec<ConnectionReport> {
    let report = |(&stream, connection): (&u32, &Connection)| ConnectionReport {
        stream,
        ends: connection.ends,
        from_start: connection.from_start,
        seconds: seconds(connection.timeline.account.total()),
        phases: phases(connection),
        requests: requests(connection),
        outstanding: connection.timeline.account.outstanding
            / connection.timeline.account.outstanding_time.max(1) as f64,
        most_outstanding: connection.timeline.account.most_outstanding,
        rdma_bytes: connection.operations.rdma_bytes,
        in_messages: sorted_reasons(connection),
        fewest_smb2_credits: connection.operations.smb2_lowest,
        fewest_send_credits: connection.fewest_send_credits,
        round_trips: connection.path.shortest(),
        path: PathReport {
            gaps: connection.gaps,
            ..connection.path.report
        },
    };
    connections.iter().map(report).collect()
}

fn phases(connection: &Connection) -> Vec<PhaseReport> {
    let account = &connection.timeline.account;
    let total = account.total().max(1) as f64;
    let report = |phase: Phase| {
        let time = account.phases[phase as usize];
        PhaseReport {
            phase,
            seconds: seconds(time),
            share: time as f64 / total,
        }
    };
    Phase::ALL.into_iter().map(report).collect()
}

fn requests(connection: &Connection) -> Vec<RequestReport> {
    let mut kinds: Vec<_> = connection.operations.kinds.iter().collect();
    kinds.sort_by_key(|&(&key, _)| key);
    let report = |(&(kind, size), sums): (&(Kind, super::report::SizeClass), &Sums)| {
        let mean = |time: u64| seconds(time) / sums.requests.max(1) as f64;
        RequestReport {
            kind: match kind {
                Kind::Read => "READ",
                Kind::Write => "WRITE",
                Kind::Metadata => "metadata",
                Kind::Encrypted => "encrypted",
            },
            size: size.words(),
            requests: sums.requests,
            bytes: sums.bytes,
            rdma_bytes: sums.rdma_bytes,
            request: mean(sums.request),
            server_before: mean(sums.server_before),
            data: mean(sums.data),
            server_after: mean(sums.server_after),
            response: mean(sums.response),
        }
    };
    kinds.into_iter().map(report).collect()
}

fn sorted_reasons(connection: &Connection) -> Vec<InMessages> {
    let mut reasons: Vec<_> = connection
        .operations
        .in_messages
        .iter()
        .map(|(&reason, counts)| InMessages {
            reason: Some(reason),
            ..*counts
        })
        .collect();
    reasons.sort_by_key(|counts| counts.reason);
    reasons
}

/// Returns the sessions with several connections.
pub(super) fn sessions(connections: &BTreeMap<u32, Connection>) -> Vec<SessionReport> {
    let mut sessions: BTreeMap<u64, SessionReport> = BTreeMap::new();
    for (&stream, connection) in connections {
        let session = connection.operations.session;
        let report = sessions.entry(session).or_insert_with(|| SessionReport {
            session,
            streams: Vec::new(),
            bytes: Vec::new(),
        });
        report.streams.push(stream);
        report.bytes.push(connection.bytes());
    }
    sessions
        .into_values()
        .filter(|report| report.session != 0 && report.streams.len() > 1)
        .collect()
}

/// Returns what the capture does not show.
pub(super) fn unseen(connections: &BTreeMap<u32, Connection>) -> Vec<String> {
    let mut unseen = Vec::new();
    for (stream, connection) in connections {
        if !connection.from_start {
            unseen.push(format!(
                "Stream {stream} began before the capture, so its SMB2 credits and send credits are unknown."
            ));
        }
        if connection.gaps > 0 {
            unseen.push(format!(
                "Stream {stream} has {} gaps in the capture; {} requests around them are not counted.",
                connection.gaps, connection.operations.forgotten
            ));
        }
        let account = &connection.timeline.account;
        let share = account.phases[Phase::Unseen as usize] as f64 / account.total().max(1) as f64;
        if share > MAX_UNSEEN_SHARE {
            unseen.push(format!(
                "{:.0} % of the time of stream {stream} is not seen. The causes are those of the rest.",
                share * 100.0
            ));
        }
        let is_encrypted = connection
            .operations
            .kinds
            .keys()
            .any(|&(kind, _)| kind == Kind::Encrypted);
        if is_encrypted {
            unseen.push(format!(
                "Stream {stream} is encrypted: its requests are told apart by their order only."
            ));
        }
    }
    unseen
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}
