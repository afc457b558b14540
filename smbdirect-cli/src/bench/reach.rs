//! The goals of this project for its speed, measured on this machine: `bench --reach`.

use std::sync::atomic::AtomicBool;

use anyhow::Result;
use serde::Serialize;

use super::{
    compare::Programs,
    ends::Near,
    measure::{GIB, RowResult, Summary},
    options::Bench,
    output,
    plan::{Choice, Other, RATE_BYTES, Row, Work},
    scale, table,
    work::{Kind, Means, Over, Placement, Smb},
};
use crate::report::Report;

/// One goal: a number to reach, or to stay below.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename = "reach")]
struct Goal {
    work: String,
    /// `None` if it could not be measured here.
    measured: Option<f64>,
    unit: &'static str,
    /// Whether more is better.
    at_least: bool,
    must: f64,
    stretch: f64,
    /// Whether the must is met.
    ok: Option<bool>,
    /// Whether the stretch goal is met.
    stretch_ok: Option<bool>,
}

impl Goal {
    fn new(
        work: impl Into<String>,
        measured: Option<f64>,
        unit: &'static str,
        at_least: bool,
        [must, stretch]: [f64; 2],
    ) -> Self {
        let reaches = |goal: f64| {
            measured.map(|number| {
                if at_least {
                    number >= goal
                } else {
                    number <= goal
                }
            })
        };
        Self {
            work: work.into(),
            measured,
            unit,
            at_least,
            must,
            stretch,
            ok: reaches(must),
            stretch_ok: reaches(stretch),
        }
    }

    fn print(&self, report: &Report) {
        let sign = if self.at_least { "≥" } else { "≤" };
        let number = |number: f64| format!("{}{}", table::digits(number), self.unit);
        let goal = |goal: f64| match goal.is_finite() {
            true => format!("{sign} {}", number(goal)),
            false => "-".into(),
        };
        let ok = match (self.ok, self.stretch_ok) {
            (Some(false), _) => report.style.bad("no"),
            (Some(true), Some(true)) => report.style.good("stretch"),
            (Some(true), _) => report.style.good("yes"),
            (None, _) => "not measured".into(),
        };
        report.line(format_args!(
            "{:<66}{:>12}{:>14}{:>14}   {ok}",
            self.work,
            self.measured.map_or_else(|| "-".into(), number),
            goal(self.must),
            goal(self.stretch),
        ));
        report.event(self);
    }
}

/// Makes the rows that the goals compare.
struct Rows {
    smb: Smb,
}

impl Rows {
    fn work(&self, means: Means, kind: Kind, size: u32, placement: Placement) -> Row {
        Row::Work(Work {
            means,
            kind,
            size,
            outstanding: 0,
            both: false,
            busy: false,
            connections: 1,
            placement,
        })
    }

    fn smb(&self, segment: u32, crc: bool) -> Means {
        Means::SmbDirect(Smb {
            segment,
            crc,
            over: Over::Iwarp,
            ..self.smb
        })
    }

    fn send(&self, segment: u32, crc: bool, size: u32, placement: Placement) -> Row {
        self.work(self.smb(segment, crc), Kind::Send, size, placement)
    }

    /// 64-byte messages, several by one call.
    fn rate(&self, placement: Placement) -> Row {
        self.work(
            self.smb(LARGE_SEGMENT, true),
            Kind::Batch,
            RATE_BYTES,
            placement,
        )
    }

    fn rdma(&self, kind: Kind, crc: bool, size: u32, placement: Placement) -> Row {
        let means = self.smb(LARGE_SEGMENT, crc);
        match self.work(means, kind, size, placement) {
            Row::Work(work) => Row::Work(Work {
                outstanding: OUTSTANDING,
                ..work
            }),
            row => row,
        }
    }

    fn tcp(&self, size: u32, placement: Placement) -> Row {
        self.work(Means::Tcp, Kind::Send, size, placement)
    }

    fn echo(&self, means: Means, busy: bool) -> Row {
        match self.work(means, Kind::Echo, RATE_BYTES, Placement::TwoCores) {
            Row::Work(work) => Row::Work(Work { busy, ..work }),
            row => row,
        }
    }

    fn in_process(&self, kind: Kind, size: u32) -> Row {
        let means = Means::SmbDirect(Smb {
            segment: LARGE_SEGMENT,
            crc: false,
            over: Over::Loopback,
            ..self.smb
        });
        self.work(means, kind, size, Placement::TwoCores)
    }

    fn channel(&self, size: u32) -> Row {
        self.work(Means::Channel, Kind::Send, size, Placement::TwoCores)
    }

    fn all(&self, two_cores: bool, one_process: bool) -> Vec<Row> {
        let mut rows = Vec::new();
        let mut placements = vec![Placement::SameCore];
        if two_cores {
            placements.insert(0, Placement::TwoCores);
        }
        for &placement in &placements {
            let crcs = match placement {
                Placement::SameCore => &[true, false][..],
                _ => &[true],
            };
            for &crc in crcs {
                for segment in [SMALL_SEGMENT, LARGE_SEGMENT] {
                    for size in SIZES {
                        rows.push(self.send(segment, crc, size, placement));
                    }
                }
                rows.push(self.rdma(Kind::Write, crc, SIZES[0], placement));
            }
            for crc in [true, false] {
                rows.push(self.rdma(Kind::Write, crc, SIZES[1], placement));
            }
            rows.push(self.rate(placement));
            rows.push(self.send(LARGE_SEGMENT, true, RATE_BYTES, placement));
            for size in [RATE_BYTES, SMALL_SEGMENT, 8 << 10, SIZES[0], SIZES[1]] {
                rows.push(self.tcp(size, placement));
            }
        }
        if two_cores {
            for kind in [Kind::WriteApart, Kind::Read] {
                rows.extend(SIZES.map(|size| self.rdma(kind, true, size, Placement::TwoCores)));
            }
            rows.push(self.work(
                Means::Frames,
                Kind::Send,
                SMALL_SEGMENT,
                Placement::TwoCores,
            ));
            for busy in [false, true] {
                rows.push(self.echo(self.smb(LARGE_SEGMENT, true), busy));
                rows.push(self.echo(Means::Tcp, busy));
            }
            if one_process {
                for size in [ONE_SEGMENT, RATE_BYTES] {
                    rows.extend([Kind::Batch, Kind::Send].map(|kind| self.in_process(kind, size)));
                    rows.push(self.channel(size));
                }
            }
        }
        rows
    }
}

/// Segment size in bytes that Windows and Linux use by default.
const SMALL_SEGMENT: u32 = 1364;
/// Largest segment size in bytes that Windows accepts.
const LARGE_SEGMENT: u32 = 8136;
/// Size in bytes of a message that fills a large segment.
const ONE_SEGMENT: u32 = LARGE_SEGMENT - 24;
/// Message sizes in bytes; for Sends the worse rate of the two counts.
const SIZES: [u32; 2] = [64 << 10, 1 << 20];
/// RDMA operations outstanding.
const OUTSTANDING: u32 = 16;

/// Measures, judges, and returns whether every must is met.
///
/// # Errors
/// The ends cannot work together.
pub(crate) fn run(
    bench: &Bench,
    report: &Report,
    near: &mut Near,
    programs: &Programs,
    choice: &Choice,
    stop: &AtomicBool,
    load_before: Option<f64>,
) -> Result<bool> {
    let rows = Rows { smb: choice.smb };
    let two_cores = near.cores().are_two();
    let mut all = rows.all(two_cores, near.is_one_process());
    let (others, missing) = programs.rows(&[SIZES[1]]);
    // The goals need iperf3; the other programs run only with --compare.
    let wanted = |row: &Row| bench.compare || matches!(row, Row::Other(Other::Iperf3, _));
    if two_cores {
        all.extend(others.into_iter().filter(wanted));
        if near.is_one_process() {
            all.extend(Programs::shared_memory(8 << 10));
        }
    }
    output::print_head(bench, report, choice);
    let idle = scale::idle(report, near, choice)?;
    let mut effort = bench.effort(all.len(), MAX_TOTAL);
    effort.time = bench.time.unwrap_or(BURST);
    let measured = output::measure_rows(report, near, programs, &all, effort, stop)?;
    let summary = measured.summarise();
    table::print(report, &summary);
    for why in missing
        .into_iter()
        .filter(|why| bench.compare || why.contains("iperf3"))
    {
        output::skipped(report, "a comparison", &why);
    }
    for (row, why) in &measured.failed {
        output::skipped(report, &row.name(), why);
    }
    let mut goals = judge(&rows, &summary);
    goals.extend(idle.map(|idle| {
        Goal::new(
            format!(
                "each of {} idle connections beyond its credits",
                idle.connections
            ),
            Some(idle.beyond_credits / 1024.0),
            " KiB",
            false,
            [32.0; 2],
        )
    }));
    if !measured.interrupted {
        let active = scale::active(report, near, choice, bench.time, stop)?;
        goals.extend(active.iter().flat_map(active_goals));
    }
    report.line(report.style.dim(&format!(
        "\n{:<66}{:>12}{:>14}{:>14}   ok",
        "work", "measured", "must", "stretch"
    )));
    for goal in &goals {
        goal.print(report);
    }
    output::finish(
        bench,
        report,
        &measured,
        &summary,
        near.cores(),
        load_before,
    );
    Ok(!measured.interrupted && goals.iter().all(|goal| goal.ok == Some(true)))
}

/// How long all goals may be measured.
const MAX_TOTAL: std::time::Duration = std::time::Duration::from_secs(400);
/// Duration of a burst without --time.
const BURST: std::time::Duration = std::time::Duration::from_millis(200);

fn active_goals(active: &scale::Active) -> [Goal; 2] {
    let connections = active.connections;
    [
        Goal::new(
            format!("{connections} active connections: the fastest beside the slowest"),
            Some(active.fastest_to_slowest),
            " x",
            false,
            [2.0; 2],
        ),
        Goal::new(
            format!("{connections} active connections together beside one"),
            Some(active.together_to_one),
            " x",
            true,
            [0.85; 2],
        ),
    ]
}

/// Returns all goals, each with what was measured.
fn judge(rows: &Rows, summary: &Summary) -> Vec<Goal> {
    let rates = Rates { rows, summary };
    let mut goals = rates.send_goals();
    goals.extend(rates.rdma_goals());
    goals.extend(absolute_goals(rows, summary));
    goals.extend(at_most_goals(rows, summary));
    goals
}

/// Goals for one rate as a multiple of another.
struct Rates<'a> {
    rows: &'a Rows,
    summary: &'a Summary,
}

impl Rates<'_> {
    /// Returns the rate of a row in bytes per second.
    fn of(&self, row: Row) -> Option<f64> {
        self.summary.result(&row).map(|result| result.rate[1])
    }

    /// Returns the smaller rate of the two rows that `row` makes for [`SIZES`].
    fn worse(&self, row: impl Fn(u32) -> Row) -> Option<f64> {
        let [one, other] = SIZES.map(|size| self.of(row(size)));
        Some(one?.min(other?))
    }

    /// Returns the goal that `ours` is at least `[must, stretch]` times `theirs`.
    fn at_least(
        work: impl Into<String>,
        ours: Option<f64>,
        theirs: Option<f64>,
        goal: [f64; 2],
    ) -> Goal {
        let ratio = ours.zip(theirs).map(|(ours, theirs)| ours / theirs);
        Goal::new(work, ratio, " x", true, goal)
    }

    fn send_goals(&self) -> Vec<Goal> {
        let rows = self.rows;
        let (two, one) = (Placement::TwoCores, Placement::SameCore);
        let small = |placement| self.worse(|size| rows.send(SMALL_SEGMENT, true, size, placement));
        let large = |placement| self.worse(|size| rows.send(LARGE_SEGMENT, true, size, placement));
        let tcp = |size, placement| self.of(rows.tcp(size, placement));
        let frames = self.of(rows.work(Means::Frames, Kind::Send, SMALL_SEGMENT, two));
        vec![
            Self::at_least(
                "Send, 1364 B segments, CRC, two cores / TCP, writes of 1364 B",
                small(two),
                tcp(SMALL_SEGMENT, two),
                [9.0; 2],
            ),
            Self::at_least(
                "Send, 1364 B segments, CRC, two cores / tokio frames of 1364 B",
                small(two),
                frames,
                [0.6, 0.75],
            ),
            Self::at_least(
                "Send, 1364 B segments, CRC, one core / TCP, writes of 1364 B",
                small(one),
                tcp(SMALL_SEGMENT, one),
                [3.3, 4.0],
            ),
            Self::at_least(
                "Send, 8136 B segments, CRC, two cores / TCP, writes of 8 KiB",
                large(two),
                tcp(8 << 10, two),
                [3.7, 4.8],
            ),
            Self::at_least(
                "Send, 8136 B segments, CRC, one core / TCP, writes of 8 KiB",
                large(one),
                tcp(8 << 10, one),
                [2.3, 2.8],
            ),
        ]
    }

    fn rdma_goals(&self) -> Vec<Goal> {
        let rows = self.rows;
        let (two, one) = (Placement::TwoCores, Placement::SameCore);
        let rdma = |kind, crc, size, placement| self.of(rows.rdma(kind, crc, size, placement));
        let iperf3 = self.of(Row::Other(Other::Iperf3, SIZES[1]));
        let mut goals = vec![Self::at_least(
            "Write 64 KiB, 16 at once, CRC, two cores / TCP, writes of 64 KiB",
            rdma(Kind::Write, true, SIZES[0], two),
            self.of(rows.tcp(SIZES[0], two)),
            [1.4, 2.0],
        )];
        for (crc, name, goal) in [(false, "no CRC", [1.0, 1.3]), (true, "CRC", [0.9, 1.1])] {
            goals.push(Self::at_least(
                format!("Write 1 MiB, {name}, two cores / iperf3 -l 1M"),
                rdma(Kind::Write, crc, SIZES[1], two),
                iperf3,
                goal,
            ));
        }
        for (crc, name, goal) in [(false, "no CRC", [0.65, 0.75]), (true, "CRC", [0.52, 0.62])] {
            goals.push(Self::at_least(
                format!("Write 1 MiB, {name}, one core / TCP, writes of 1 MiB"),
                rdma(Kind::Write, crc, SIZES[1], one),
                self.of(rows.tcp(SIZES[1], one)),
                goal,
            ));
        }
        for (size, name) in SIZES.into_iter().zip(["64 KiB", "1 MiB"]) {
            goals.push(Self::at_least(
                format!("Read {name}, 16 at once, two cores / our Write, apart"),
                rdma(Kind::Read, true, size, two),
                rdma(Kind::WriteApart, true, size, two),
                [0.85, 0.95],
            ));
        }
        goals.push(Self::at_least(
            "Send 64 B, many a call, two cores / TCP, writes of 64 B",
            self.of(rows.rate(two)),
            self.of(rows.tcp(RATE_BYTES, two)),
            [6.0, 10.0],
        ));
        goals
    }
}

/// Returns the goals that name an absolute number, for the machine that they were set on.
fn absolute_goals(rows: &Rows, summary: &Summary) -> Vec<Goal> {
    let result = |row: Row| summary.result(&row);
    let millions = |row: Row| result(row).map(|result| result.messages / 1e6);
    let one = Placement::SameCore;
    let stretch = |row: Row, number: fn(&RowResult) -> f64| {
        result(row).map_or(f64::INFINITY, |result| number(result) * 0.6)
    };
    // The goal is three times UCX 1.22, which was 10 GiB/s on the machine that it was set on.
    let in_process =
        result(rows.in_process(Kind::Batch, ONE_SEGMENT)).map(|result| result.rate[1] / GIB);
    let ucx = result(Row::Other(Other::UcxMemory, 8 << 10)).map(|result| result.rate[1] / GIB);
    let channel = stretch(rows.channel(ONE_SEGMENT), |result| result.rate[1] / GIB);
    let in_process = match ucx {
        Some(ucx) => Goal::new(
            format!(
                "in process: full 8136 B segments, many a call / UCX{}, shm",
                Programs::ucx_version().map_or_else(String::new, |version| format!(" {version}"))
            ),
            in_process.map(|ours| ours / ucx),
            " x",
            true,
            [3.0, channel / ucx],
        ),
        None => Goal::new(
            "in process: full 8136 B segments, many a call",
            in_process,
            " GiB/s",
            true,
            [10.0, channel],
        ),
    };
    vec![
        Goal::new(
            "Send 64 B, many a call, one core",
            millions(rows.rate(one)),
            " M/s",
            true,
            [2.5, 3.8],
        ),
        in_process,
        Goal::new(
            "in process: Send 64 B, many a call",
            millions(rows.in_process(Kind::Batch, RATE_BYTES)),
            " M/s",
            true,
            [
                2.5,
                stretch(rows.channel(RATE_BYTES), |result| result.messages / 1e6),
            ],
        ),
    ]
}

/// Returns the goals with an upper limit: CPU time and round trips.
fn at_most_goals(rows: &Rows, summary: &Summary) -> Vec<Goal> {
    let one = Placement::SameCore;
    let cpu = |row: Row| summary.result(&row)?.cpu;
    let worst = SIZES.map(|size| cpu(rows.send(SMALL_SEGMENT, true, size, one)));
    let worst = worst[0].zip(worst[1]).map(|(one, other)| one.max(other));
    let mut goals = vec![Goal::new(
        "Send, 1364 B segments, CRC, one core: CPU for a GiB",
        worst,
        " s",
        false,
        [0.52, 0.43],
    )];
    for (name, row) in [
        (
            "Send, 1364 B segments",
            &(|crc| rows.send(SMALL_SEGMENT, crc, SIZES[0], one)) as &dyn Fn(bool) -> Row,
        ),
        ("Send, 8136 B segments", &|crc| {
            rows.send(LARGE_SEGMENT, crc, SIZES[0], one)
        }),
        ("Write 64 KiB", &|crc| {
            rows.rdma(Kind::Write, crc, SIZES[0], one)
        }),
    ] {
        let ratio = cpu(row(true)).zip(cpu(row(false)));
        goals.push(Goal::new(
            format!("{name}, one core: CPU with CRC / without"),
            ratio.map(|(with, without)| with / without),
            " x",
            false,
            [1.25, 1.18],
        ));
    }
    let trips = |row: Row| summary.result(&row)?.round_trips.as_ref();
    let ours = |busy| trips(rows.echo(rows.smb(LARGE_SEGMENT, true), busy));
    let theirs = |busy| trips(rows.echo(Means::Tcp, busy));
    let sleeping = ours(false).zip(theirs(false));
    let busy = ours(true).zip(theirs(true));
    for (work, measured, goal) in [
        (
            "64 B echo, sleeping, median / TCP",
            sleeping.map(|(ours, theirs)| ours.median / theirs.median),
            [1.15, 1.05],
        ),
        (
            "64 B echo, sleeping, p99 / TCP",
            sleeping.and_then(|(ours, theirs)| Some(ours.p99? / theirs.p99?)),
            [1.4, 1.15],
        ),
        (
            "64 B echo, busy-polling, median / TCP busy-polling",
            busy.map(|(ours, theirs)| ours.median / theirs.median),
            [1.2, 1.1],
        ),
    ] {
        goals.push(Goal::new(work, measured, " x", false, goal));
    }
    goals
}
