//! The verdict about a capture, and the reports of its connections.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
};

use smbdirect_smb::smb2::Command;

use super::{
    Connection,
    account::{Account, Interval, Total},
    cause::{Cause, Limit, Phase},
    operations::{Kind, Sums, nanos},
    report::{
        CauseReport, ConnectionReport, Evidence, PathReport, PhaseReport, RequestReport, Verdict,
    },
};
use crate::{event::End, per_end::Role, streams::PlainSmb};

/// Causes that a verdict names.
const MAX_CAUSES: usize = 3;
/// A cause with a smaller share of the time is not named: without it, little would change.
const MIN_SHARE: f64 = 0.10;
/// A larger share of the time that is not seen is said, because it can hide a cause.
const MAX_UNSEEN_SHARE: f64 = 0.05;
/// Part of the data of the largest connection that makes another connection part of the verdict.
const MIN_DATA: u64 = 10;
/// Connecting and logging in is slow from here on.
const SLOW_LOGIN: u64 = 1_000_000_000;
/// A connection of the same ends that begins after another one has ended, this often, is a cause.
const MIN_RECONNECTS: usize = 2;
/// A connection that is much slower than another one has at least this many requests, and is slow for this share of its
/// time.
const MIN_REQUESTS: u64 = 8;
const SLOW_SHARE: f64 = 0.5;

/// A cause, its time, and its longest intervals with their streams.
struct Named {
    cause: Cause,
    time: u64,
    evidence: Vec<(u32, Interval)>,
    figures: String,
}

/// Returns the causes of slowness of the connections with most of the data, and of much slower ones. Without a clock that
/// `is_usable`, no cause is named.
pub(super) fn verdict(connections: &BTreeMap<u32, Connection>, is_usable: bool) -> Verdict {
    let streams = main_streams(connections);
    let mains: Vec<_> = streams.iter().map(|stream| &connections[stream]).collect();
    let of = |phase: Phase| sum_of(&mains, |account| account.phases[phase as usize]);
    let unseen = of(Phase::Unseen);
    let all = sum_of(&mains, Account::total);
    let mut named = causes_of(&streams, connections);
    let login = if named.iter().any(|one| one.cause == Cause::Login) {
        0
    } else {
        of(Phase::Setup)
    };
    let mut active = all.saturating_sub(of(Phase::Idle) + login + unseen);
    if let Some(reconnects) = reconnects(connections) {
        named.retain(|one| one.cause != Cause::Login);
        active = active.saturating_add(reconnects.time);
        named.push(reconnects);
    }
    named.extend(slow_connection(&streams, connections));
    let share = |time: u64| (time as f64 / active.max(1) as f64).min(1.0);
    // What is not seen can be of any cause, so that only a larger one is certain.
    named.retain(|one| is_usable && share(one.time) >= MIN_SHARE && one.time > unseen);
    named.sort_by_key(|one| (std::cmp::Reverse(one.time), one.cause));
    named.truncate(MAX_CAUSES);
    let usual = |phases: &[Phase]| -> u64 {
        let of = |phase: &Phase| sum_of(&mains, |account| account.usual[*phase as usize]);
        phases.iter().map(of).fold(0, u64::saturating_add)
    };
    let in_losses = sum_of(&mains, |account| {
        let loss = account.causes.get(&Cause::Loss);
        account.used_in_loss(loss.map_or(0, |total| total.time))
    });
    let wire = usual(&[Phase::Request, Phase::Data, Phase::Response, Phase::Path])
        .saturating_add(in_losses);
    let server = usual(&[Phase::Server]);
    let limit = if wire == 0 && server == 0 {
        Limit::Client
    } else if wire >= server {
        Limit::Wire
    } else {
        Limit::Server
    };
    let is_certain = is_usable && !mains.is_empty() && (!named.is_empty() || unseen <= active / 2);
    let report = |one: Named| report(&one, share(one.time));
    Verdict {
        seconds: seconds(active),
        bytes: mains.iter().map(|connection| connection.bytes()).sum(),
        causes: named.into_iter().map(report).collect(),
        limit: is_certain.then_some(limit),
        limit_share: share(wire.saturating_add(server)),
        streams,
    }
}

fn sum_of(connections: &[&Connection], of: impl Fn(&Account) -> u64) -> u64 {
    let accounts = connections.iter().map(|one| &one.timeline.account);
    accounts.map(of).fold(0, u64::saturating_add)
}

fn report(named: &Named, share: f64) -> CauseReport {
    let mut evidence = named.evidence.clone();
    evidence.sort_by_key(|(_, interval)| std::cmp::Reverse(interval.time));
    evidence.truncate(MAX_CAUSES);
    CauseReport {
        cause: named.cause,
        seconds: seconds(named.time),
        share,
        words: named.cause.sentence().into(),
        figures: named.figures.clone(),
        evidence: evidence.into_iter().map(evidence_of).collect(),
        cures: named.cause.cures().to_vec(),
    }
}

/// Returns the causes of some connections together.
fn causes_of(streams: &[u32], connections: &BTreeMap<u32, Connection>) -> Vec<Named> {
    let mains: Vec<_> = streams.iter().map(|stream| &connections[stream]).collect();
    let mut totals: BTreeMap<Cause, (u64, Vec<(u32, Interval)>)> = BTreeMap::new();
    for &stream in streams {
        for (cause, total) in causes(&connections[&stream]) {
            let (time, evidence) = totals.entry(cause).or_default();
            *time = total.time.saturating_add(*time);
            evidence.extend(total.longest.into_iter().map(|interval| (stream, interval)));
        }
    }
    let named = totals.into_iter().map(|(cause, (time, evidence))| Named {
        cause,
        time,
        evidence,
        figures: figures(cause, &mains),
    });
    named
        .filter(|one| one.cause != Cause::Login || one.time >= SLOW_LOGIN)
        .collect()
}

/// Returns the time that connections of the same ends cost which end and begin again.
fn reconnects(connections: &BTreeMap<u32, Connection>) -> Option<Named> {
    let mut ends: BTreeMap<_, Vec<_>> = BTreeMap::new();
    let seen = connections
        .iter()
        .filter(|(_, one)| !one.path.lacks_an_end());
    for (&stream, connection) in seen {
        if let [Some(client), Some(server)] = connection.ends.map(address) {
            let pair = (client.ip(), server);
            ends.entry(pair).or_default().push((stream, connection));
        }
    }
    let mut evidence = Vec::new();
    let (mut time, mut count) = (0_u64, 0);
    for (_, mut all) in ends {
        all.sort_by_key(|(_, connection)| connection.first.time);
        let after = |pair: &&[(u32, &Connection)]| {
            pair[0].1.has_ended
                && pair[1].1.from_start
                && pair[0].1.last.time <= pair[1].1.first.time
        };
        let pairs: Vec<_> = all.windows(2).filter(after).collect();
        if pairs.len() < MIN_RECONNECTS {
            continue;
        }
        count += pairs.len();
        for pair in pairs {
            let [(_, before), (stream, next)] = [pair[0], pair[1]];
            let setup = next.timeline.account.phases[Phase::Setup as usize];
            let apart = nanos(next.first).saturating_sub(nanos(before.last));
            let lost = setup.saturating_add(apart);
            time = time.saturating_add(lost);
            let frames = [before.last.frame, next.first.frame];
            evidence.push((stream, Interval { time: lost, frames }));
        }
    }
    (count > 0).then(|| Named {
        cause: Cause::Reconnects,
        time,
        evidence,
        figures: format!(
            "{count} connections begin after another one of the same ends has ended; without one or logged in: {:.2} s",
            seconds(time)
        ),
    })
}

fn address(end: End) -> Option<SocketAddr> {
    match end {
        End::Tcp(address) => Some(address),
        End::Roce { address, port, .. } => Some(SocketAddr::new(address, port.unwrap_or(0))),
    }
}

/// Returns the slowest of the connections with little data, if an end or the path is the cause.
fn slow_connection(mains: &[u32], connections: &BTreeMap<u32, Connection>) -> Option<Named> {
    let others = connections.iter().filter(|(stream, connection)| {
        !mains.contains(stream)
            && connection.requests() >= MIN_REQUESTS
            && !connection.path.lacks_an_end()
    });
    let slow = others.filter_map(|(&stream, connection)| {
        let account = &connection.timeline.account;
        let apart = [Phase::Idle, Phase::Setup].map(|phase| account.phases[phase as usize]);
        let active = account.total().saturating_sub(apart.iter().sum());
        let causes = causes_of(&[stream], connections).into_iter();
        let first = causes.max_by_key(|one| one.time)?;
        let is_slow = first.time as f64 >= SLOW_SHARE * active as f64;
        // A client that asks for little is no slow connection.
        let is_of_client = matches!(
            first.cause,
            Cause::Think | Cause::OneOutstanding | Cause::SmallRequests | Cause::Metadata
        );
        (is_slow && !is_of_client).then_some((stream, first))
    });
    let (stream, slow) = slow.max_by_key(|(_, slow)| slow.time)?;
    let [client, server] = connections[&stream].ends.0;
    Some(Named {
        cause: Cause::SlowConnection,
        figures: format!(
            "stream {stream}, {client} and {server}: {} ({})",
            slow.cause.sentence(),
            slow.figures
        ),
        ..slow
    })
}

/// Returns the verdict about a capture that has SMB over TCP only.
pub(super) fn without_rdma(plain: PlainSmb) -> Verdict {
    let cause = Cause::RdmaNotUsed;
    // The clock may have been set back.
    let seconds = plain
        .last
        .time
        .saturating_sub(plain.first.time)
        .as_secs_f64();
    let (first, last) = (plain.first.frame, plain.last.frame);
    Verdict {
        seconds,
        bytes: plain.bytes,
        causes: vec![CauseReport {
            cause,
            seconds,
            share: 1.0,
            words: cause.sentence().into(),
            figures: format!(
                "{} bytes by TCP to and from port 445, frames {first} to {last}; none by SMB Direct",
                plain.bytes
            ),
            evidence: Vec::new(),
            cures: cause.cures().to_vec(),
        }],
        limit: None,
        limit_share: 0.0,
        streams: Vec::new(),
    }
}

/// Returns the causes of a connection. Losses cost only the time in which less was sent than the path carries.
fn causes(connection: &Connection) -> HashMap<Cause, Total> {
    let mut causes = connection.timeline.account.causes.clone();
    if let Some(total) = causes.get_mut(&Cause::Loss) {
        total.time -= connection.timeline.account.used_in_loss(total.time);
    }
    // A READ for much may get little, which needs no RDMA.
    let operations = &connection.operations;
    causes.retain(|cause, _| {
        let moved = operations.in_messages.get(cause);
        let moved = moved.map_or(0, |moved| moved.requests);
        let tagged = operations.tagged.get(cause).copied().unwrap_or(0);
        moved * 2 >= tagged || *cause == Cause::Encryption
    });
    causes
}

/// Returns the streams that move most of the data, or those with most requests if none moves data.
fn main_streams(connections: &BTreeMap<u32, Connection>) -> Vec<u32> {
    let moves_data = connections
        .values()
        .any(|connection| connection.bytes() > 0 && !connection.path.lacks_an_end());
    let weight = |connection: &Connection| {
        if moves_data {
            connection.bytes()
        } else {
            connection.requests()
        }
    };
    let seen = connections.values().filter(|one| !one.path.lacks_an_end());
    let most = seen.map(weight).max().unwrap_or(0);
    let mains = connections.iter().filter(|(_, connection)| {
        !connection.path.lacks_an_end() && weight(connection).saturating_mul(MIN_DATA) >= most
    });
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
            let fewest = |end: Role| {
                let of_all = connections
                    .iter()
                    .filter_map(|connection| connection.fewest_send_credits[end]);
                of_all
                    .min()
                    .map_or_else(|| "?".into(), |fewest| fewest.to_string())
            };
            format!(
                "fewest send credits: client {}, server {}",
                fewest(Role::Client),
                fewest(Role::Server)
            )
        }
        Cause::Smb2Credits => {
            let lowest = connections
                .iter()
                .filter_map(|connection| connection.operations.fewest_credits());
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
                "round trip {:.2} ms; {}; {} packets sent again",
                longest.fold(0.0, f64::max) * 1e3,
                outstanding(connections),
                sum(|path| path.sent_again)
            )
        }
        Cause::Loss | Cause::MtuBlackHole => {
            format!(
                "{} packets sent again, {} NAKs, {} repeated acknowledgements",
                sum(|path| path.sent_again),
                sum(|path| path.naks),
                sum(|path| path.duplicate_acks)
            )
        }
        Cause::SlowServer | Cause::BusyServer => {
            let all = sums(connections, |_| true);
            let mean =
                (all.server_before as f64 + all.server_after as f64) / all.requests.max(1) as f64;
            format!("{:.2} ms in the server for each request", mean / 1e6)
        }
        Cause::SlowReceiver => format!(
            "{} packets with a window of 0",
            sum(|path| path.zero_windows)
        ),
        Cause::Window => buffers(connections),
        Cause::AnnouncedWait => {
            let mut commands: BTreeMap<u16, u64> = BTreeMap::new();
            for one in connections {
                for (&command, &count) in &one.operations.announced {
                    *commands.entry(command).or_default() += count;
                }
            }
            let words = |(command, count)| format!("{count} {}", Command(command));
            let words: Vec<_> = commands.into_iter().map(words).collect();
            format!("{} with STATUS_PENDING", words.join(", "))
        }
        Cause::NoAnswer => {
            let unanswered: u64 = connections
                .iter()
                .map(|one| one.operations.unanswered)
                .sum();
            format!(
                "{unanswered} requests without an answer when the connection or the capture ended"
            )
        }
        Cause::Login => {
            let setup = sum_of(connections, |account| account.phases[Phase::Setup as usize]);
            format!(
                "{:.2} s in {} connections",
                seconds(setup),
                connections.len()
            )
        }
        _ => outstanding(connections),
    }
}

/// Returns the largest windows that were offered, and the round trip.
fn buffers(connections: &[&Connection]) -> String {
    let longest = connections
        .iter()
        .flat_map(|one| one.path.shortest())
        .flatten();
    let longest = longest.fold(0.0, f64::max);
    let window = |end: Role| {
        let windows = connections
            .iter()
            .filter_map(|one| one.path.largest_window(end));
        windows
            .max()
            .map_or_else(|| "unknown".into(), |bytes| format!("{bytes} bytes"))
    };
    format!(
        "round trip {:.2} ms; largest window of the client {}, of the server {}",
        longest * 1e3,
        window(Role::Client),
        window(Role::Server)
    )
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
    let all = connections.iter().map(|one| &one.operations);
    let (mut requests, mut bytes, mut rdma) = (0, 0, 0);
    for operations in all {
        let moved = operations.all_in_messages();
        requests += moved.requests;
        bytes += moved.bytes;
        rdma += operations.rdma_bytes;
    }
    format!("{bytes} bytes in {requests} READs and WRITEs in messages, {rdma} bytes by RDMA")
}

/// Returns the sums over the requests of the kinds that are wanted.
fn sums(connections: &[&Connection], wanted: impl Fn(Kind) -> bool) -> Sums {
    let mut all = Sums::default();
    let kinds = connections
        .iter()
        .flat_map(|connection| &connection.operations.kinds);
    for (_, sums) in kinds.filter(|(kind, _)| wanted(**kind)) {
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
        ends: connection.ends.0,
        from_start: connection.from_start,
        seconds: seconds(connection.timeline.account.total()),
        phases: phases(connection),
        requests: requests(connection),
        outstanding: connection.timeline.account.outstanding
            / connection.timeline.account.outstanding_time.max(1) as f64,
        most_outstanding: connection.timeline.account.most_outstanding,
        rdma_bytes: connection.operations.rdma_bytes,
        in_messages: connection.operations.all_in_messages(),
        fewest_smb2_credits: connection.operations.fewest_credits(),
        fewest_send_credits: connection.fewest_send_credits.0,
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
    let report = |(kind, sums): (&Kind, &Sums)| {
        let mean = |time: u64| seconds(time) / sums.requests.max(1) as f64;
        RequestReport {
            kind: match kind {
                Kind::Read => "READ",
                Kind::Write => "WRITE",
                Kind::Metadata => "metadata",
                Kind::Encrypted => "encrypted",
            },
            size: sums.bytes / sums.requests.max(1),
            requests: sums.requests,
            failed: sums.failed,
            bytes: sums.bytes,
            rdma_bytes: sums.rdma_bytes,
            request: mean(sums.request),
            server_before: mean(sums.server_before),
            data: mean(sums.data),
            server_after: mean(sums.server_after),
            response: mean(sums.response),
        }
    };
    connection.operations.kinds.iter().map(report).collect()
}

/// Returns what the capture does not show.
pub(super) fn unseen(connections: &BTreeMap<u32, Connection>) -> Vec<String> {
    let mut unseen = Vec::new();
    for (stream, connection) in connections {
        if connection.path.lacks_an_end() {
            unseen.push(format!(
                "Stream {stream} has packets of one end only, so nothing can be said about it: capture both directions (a mirrored port needs both)."
            ));
            continue;
        }
        if connection.path.is_merged() {
            unseen.push(format!(
                "Each packet of stream {stream} is in the capture twice, {:.2} ms apart, as in merged captures of both ends: the first copy counts, and the times of the path are unknown. Explain the capture of one end.",
                connection.path.copied_after() as f64 / 1e6
            ));
        }
        if !connection.from_start {
            unseen.push(format!(
                "Stream {stream} began before the capture, so its SMB2 credits and send credits are unknown."
            ));
        }
        if connection.gaps > 0 {
            unseen.push(format!(
                "Stream {stream} has {} gaps in the capture; {} requests around them are not counted.",
                connection.gaps, connection.operations.hidden
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
        let is_encrypted = connection.operations.kinds.contains_key(&Kind::Encrypted);
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
