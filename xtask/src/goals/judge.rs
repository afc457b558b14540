//! The goals, and whether results reach them.

use std::fmt;

use serde::Serialize;
use smbdirect_bench::{Active, GIB, Idle, Load, Operation, Placement, Range, Row, RowResult};

use super::rows::{self, LARGE_SEGMENT, ONE_SEGMENT, RATE_BYTES, SIZES, SMALL_SEGMENT};

/// Everything that was measured.
#[derive(Debug, Default)]
pub(super) struct Results {
    pub(super) rows: Vec<RowResult>,
    pub(super) idle: Option<Idle>,
    pub(super) active: Option<Active>,
    /// One load after the other, each with several numbers of connections.
    pub(super) loads: Vec<Load>,
}

/// One goal: a number to reach, or to stay below.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename = "goal")]
pub(super) struct Goal {
    work: String,
    /// `None` if it could not be measured here.
    measured: Option<f64>,
    unit: &'static str,
    /// Whether more is better.
    at_least: bool,
    must: f64,
    stretch: f64,
    /// Whether the required figure is reached.
    pub(super) ok: Option<bool>,
    /// Whether the stretch goal is reached.
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

    fn at_least(
        work: impl Into<String>,
        measured: Option<f64>,
        unit: &'static str,
        goal: [f64; 2],
    ) -> Self {
        Self::new(work, measured, unit, true, goal)
    }

    fn at_most(
        work: impl Into<String>,
        measured: Option<f64>,
        unit: &'static str,
        goal: [f64; 2],
    ) -> Self {
        Self::new(work, measured, unit, false, goal)
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.at_least { "≥" } else { "≤" };
        let number = |number: f64| format!("{}{}", digits(number), self.unit);
        let goal = |goal: f64| {
            if goal.is_finite() {
                format!("{sign} {}", number(goal))
            } else {
                "-".into()
            }
        };
        let ok = match (self.ok, self.stretch_ok) {
            (Some(false), _) => "no",
            (Some(true), Some(true)) => "stretch",
            (Some(true), _) => "yes",
            (None, _) => "not measured",
        };
        write!(
            f,
            "{:<68}{:>12}{:>14}{:>14}   {ok}",
            self.work,
            self.measured.map_or_else(|| "-".into(), number),
            goal(self.must),
            goal(self.stretch),
        )
    }
}

/// Returns a number with three significant digits.
fn digits(number: f64) -> String {
    match number.abs() {
        size if size >= 100.0 => format!("{number:.0}"),
        size if size >= 10.0 => format!("{number:.1}"),
        _ => format!("{number:.2}"),
    }
}

/// Returns all goals, each with what was measured.
pub(super) fn judge(results: &Results) -> Vec<Goal> {
    let mut goals = results.send_goals();
    goals.extend(results.rdma_goals());
    goals.extend(results.absolute_goals());
    goals.extend(results.cpu_goals());
    goals.extend(results.latency_goals());
    goals.extend(results.connection_goals());
    goals.extend(load_goals(&results.loads));
    goals
}

impl Results {
    fn of(&self, row: &Row) -> Option<&RowResult> {
        self.rows.iter().find(|result| result.row == *row)
    }

    /// Returns the rate of a row in GiB per second.
    fn rate(&self, row: &Row) -> Option<f64> {
        self.of(row).map(|result| result.rate[1] / GIB)
    }

    /// Returns the rate of a row in millions of messages per second.
    fn millions(&self, row: &Row) -> Option<f64> {
        self.of(row).map(|result| result.messages / 1e6)
    }

    fn cpu(&self, row: &Row) -> Option<f64> {
        self.of(row)?.cpu
    }

    /// Returns the lower rate of the two rows that `row` makes for [`SIZES`].
    fn lower(&self, row: impl Fn(u32) -> Row) -> Option<f64> {
        let [one, other] = SIZES.map(|size| self.rate(&row(size)));
        Some(one?.min(other?))
    }

    fn send_goals(&self) -> Vec<Goal> {
        let (two, one) = (Placement::TwoCores, Placement::SameCore);
        let small = |placement| self.lower(|size| rows::send(SMALL_SEGMENT, true, size, placement));
        let large = |placement| self.lower(|size| rows::send(LARGE_SEGMENT, true, size, placement));
        let tcp = |size, placement| self.rate(&rows::tcp(size, placement));
        [
            (
                "Send, 1364 B segments, CRC, two cores / TCP, writes of 1364 B",
                ratio(small(two), tcp(SMALL_SEGMENT, two)),
                [9.0; 2],
            ),
            (
                "Send, 1364 B segments, CRC, two cores / tokio frames of 1364 B",
                ratio(small(two), self.rate(&rows::frames())),
                [0.6, 0.75],
            ),
            (
                "Send, 1364 B segments, CRC, one core / TCP, writes of 1364 B",
                ratio(small(one), tcp(SMALL_SEGMENT, one)),
                [3.3, 4.0],
            ),
            (
                "Send, 8136 B segments, CRC, two cores / TCP, writes of 8 KiB",
                ratio(large(two), tcp(8 << 10, two)),
                [3.7, 4.8],
            ),
            (
                "Send, 8136 B segments, CRC, one core / TCP, writes of 8 KiB",
                ratio(large(one), tcp(8 << 10, one)),
                [2.3, 2.8],
            ),
        ]
        .map(|(work, measured, goal)| Goal::at_least(work, measured, " x", goal))
        .into()
    }

    fn rdma_goals(&self) -> Vec<Goal> {
        let (two, one) = (Placement::TwoCores, Placement::SameCore);
        let write =
            |crc, size, placement| self.rate(&rows::rdma(Operation::Write, crc, size, placement));
        let tcp = |size, placement| self.rate(&rows::tcp(size, placement));
        let mut goals = vec![Goal::at_least(
            "Write 64 KiB, 16 outstanding, CRC, two cores / TCP, writes of 64 KiB",
            ratio(write(true, SIZES[0], two), tcp(SIZES[0], two)),
            " x",
            [1.4, 2.0],
        )];
        for (crc, name, goal) in [(false, "no CRC", [1.0, 1.3]), (true, "CRC", [0.9, 1.1])] {
            goals.push(Goal::at_least(
                format!("Write 1 MiB, {name}, two cores / iperf3 -l 1M"),
                ratio(write(crc, SIZES[1], two), self.rate(&rows::iperf3())),
                " x",
                goal,
            ));
        }
        for (crc, name, goal) in [(false, "no CRC", [0.65, 0.75]), (true, "CRC", [0.52, 0.62])] {
            goals.push(Goal::at_least(
                format!("Write 1 MiB, {name}, one core / TCP, writes of 1 MiB"),
                ratio(write(crc, SIZES[1], one), tcp(SIZES[1], one)),
                " x",
                goal,
            ));
        }
        for (size, name) in SIZES.into_iter().zip(["64 KiB", "1 MiB"]) {
            let read = self.rate(&rows::rdma(Operation::Read, true, size, two));
            goals.push(Goal::at_least(
                format!("Read {name}, 16 outstanding, two cores / our Write"),
                ratio(read, self.rate(&rows::write_apart(size))),
                " x",
                [0.85, 0.95],
            ));
        }
        goals.push(Goal::at_least(
            "Send 64 B, batched, two cores / TCP, writes of 64 B",
            ratio(self.rate(&rows::rate(two)), tcp(RATE_BYTES, two)),
            " x",
            [6.0, 10.0],
        ));
        goals
    }

    /// Returns the goals that name an absolute number, for the machine that they were set on.
    fn absolute_goals(&self) -> Vec<Goal> {
        // The stretch goals are a part of what a channel without a protocol reaches.
        let stretch = |rate: Option<f64>| rate.map_or(f64::INFINITY, |rate| rate * 0.6);
        // The goal is three times UCX 1.22, which was 10 GiB/s on the machine that it was set on.
        let segments = self.rate(&rows::in_process(ONE_SEGMENT));
        let channel = stretch(self.rate(&rows::channel(ONE_SEGMENT)));
        let in_process = match self.rate(&rows::ucx()) {
            Some(ucx) => Goal::at_least(
                "in process: full 8136 B segments, batched / UCX, shared memory",
                segments.map(|ours| ours / ucx),
                " x",
                [3.0, channel / ucx],
            ),
            None => Goal::at_least(
                "in process: full 8136 B segments, batched",
                segments,
                " GiB/s",
                [10.0, channel],
            ),
        };
        vec![
            Goal::at_least(
                "Send 64 B, batched, one core",
                self.millions(&rows::rate(Placement::SameCore)),
                " M/s",
                [2.5, 3.8],
            ),
            in_process,
            Goal::at_least(
                "in process: Send 64 B, batched",
                self.millions(&rows::in_process(RATE_BYTES)),
                " M/s",
                [2.5, stretch(self.millions(&rows::channel(RATE_BYTES)))],
            ),
        ]
    }

    fn cpu_goals(&self) -> Vec<Goal> {
        let one = Placement::SameCore;
        let higher = SIZES.map(|size| self.cpu(&rows::send(SMALL_SEGMENT, true, size, one)));
        let higher = higher[0].zip(higher[1]).map(|(one, other)| one.max(other));
        let mut goals = vec![Goal::at_most(
            "Send, 1364 B segments, CRC, one core: CPU for a GiB",
            higher,
            " s",
            [0.52, 0.43],
        )];
        for (name, rows) in [
            (
                "Send, 1364 B segments",
                [true, false].map(|crc| rows::send(SMALL_SEGMENT, crc, SIZES[0], one)),
            ),
            (
                "Send, 8136 B segments",
                [true, false].map(|crc| rows::send(LARGE_SEGMENT, crc, SIZES[0], one)),
            ),
            (
                "Write 64 KiB",
                [true, false].map(|crc| rows::rdma(Operation::Write, crc, SIZES[0], one)),
            ),
        ] {
            let [with, without] = rows.map(|row| self.cpu(&row));
            goals.push(Goal::at_most(
                format!("{name}, one core: CPU with CRC / without"),
                ratio(with, without),
                " x",
                [1.25, 1.18],
            ));
        }
        goals
    }

    fn latency_goals(&self) -> Vec<Goal> {
        let trips = |row: Row| self.of(&row)?.round_trips.as_ref();
        let pair = |busy| trips(rows::echo(busy)).zip(trips(rows::tcp_echo(busy)));
        let median = |busy| pair(busy).map(|(ours, theirs)| ours.median / theirs.median);
        let p99 = pair(false).and_then(|(ours, theirs)| ratio(ours.p99, theirs.p99));
        [
            (
                "64 B echo, sleeping, median / TCP",
                median(false),
                [1.15, 1.05],
            ),
            ("64 B echo, sleeping, p99 / TCP", p99, [1.4, 1.15]),
            (
                "64 B echo, busy-polling, median / TCP busy-polling",
                median(true),
                [1.2, 1.1],
            ),
        ]
        .map(|(work, measured, goal)| Goal::at_most(work, measured, " x", goal))
        .into()
    }

    fn connection_goals(&self) -> Vec<Goal> {
        let mut goals = Vec::new();
        if let Some(idle) = &self.idle {
            goals.push(Goal::at_most(
                format!(
                    "each of {} idle connections beyond its credits",
                    idle.connections
                ),
                Some(idle.beyond_credits / 1024.0),
                " KiB",
                [32.0; 2],
            ));
        }
        if let Some(active) = &self.active {
            goals.push(Goal::at_most(
                format!(
                    "{} active connections: fastest / slowest",
                    active.connections
                ),
                Some(active.fastest_to_slowest),
                " x",
                [2.0; 2],
            ));
            goals.push(Goal::at_least(
                format!("{} active connections together / one", active.connections),
                Some(active.together_to_one),
                " x",
                [0.85; 2],
            ));
        }
        goals
    }
}

/// Returns the goals of many connections: for each load the worst figure of all numbers of connections.
fn load_goals(loads: &[Load]) -> Vec<Goal> {
    let mut goals = Vec::new();
    for (kind, size, name) in [
        ("write", 64 << 10, "Write 64 KiB"),
        ("read", 64 << 10, "Read 64 KiB"),
        ("send", 4 << 10, "Send 4 KiB"),
    ] {
        let figures = |of: fn(&Load) -> Option<Range>| {
            let loads = loads.iter();
            let ours = loads.filter(move |load| {
                (load.kind == kind, load.size) == (true, size) && load.rate_to_tcp.is_some()
            });
            ours.filter_map(of).map(|range| range.median)
        };
        goals.push(Goal::at_least(
            format!("{name}, 1 to 512 connections / TCP, one thread per end"),
            figures(|load| load.rate_to_tcp).reduce(f64::min),
            " x",
            [1.0; 2],
        ));
        goals.push(Goal::at_most(
            format!("p99 of a 4 KiB request beside {name} / TCP"),
            figures(|load| load.p99_to_tcp).reduce(f64::max),
            " x",
            [1.5, 1.0],
        ));
        goals.push(Goal::at_least(
            format!("{name}, 1 to 512 connections: slowest / fastest"),
            figures(|load| Some(load.least_to_most)).reduce(f64::min),
            " x",
            [0.5; 2],
        ));
    }
    goals
}

fn ratio(ours: Option<f64>, theirs: Option<f64>) -> Option<f64> {
    ours.zip(theirs).map(|(ours, theirs)| ours / theirs)
}

#[cfg(test)]
mod tests {
    use smbdirect_bench::Sample;

    use super::*;

    /// Returns results in which every row has the same rate, CPU time and round trips.
    fn alike(two_cores: bool) -> Results {
        let mut sample = Sample::reported(1.0, 1 << 30, 1_000_000);
        sample.cpu = Some(1.0);
        sample.round_trips = vec![1000, 2000];
        let range = |median| Range {
            median,
            least: median,
            most: median,
        };
        Results {
            rows: rows::all(two_cores)
                .into_iter()
                .map(|row| RowResult::of(row, &[&sample]))
                .collect(),
            idle: Some(Idle {
                connections: 1000,
                bytes_each: 131_072.0,
                credit_bytes: 65_536,
                beyond_credits: 65_536.0,
            }),
            active: Some(Active {
                connections: 64,
                fastest_to_slowest: 1.5,
                together_to_one: 0.5,
            }),
            loads: ["write", "read", "send"]
                .map(|kind| Load {
                    kind,
                    means: "smbdirect",
                    size: if kind == "send" { 4 << 10 } else { 64 << 10 },
                    connections: 64,
                    gib_per_second: range(1.0),
                    cpu_seconds_per_gib: None,
                    least_to_most: range(0.9),
                    requests: 1,
                    p50_seconds: 1e-3,
                    p99_seconds: 1e-3,
                    p999_seconds: 1e-3,
                    rate_to_tcp: Some(range(1.1)),
                    p99_to_tcp: Some(range(1.2)),
                    rounds: 1,
                })
                .into(),
        }
    }

    #[test]
    fn every_row_is_in_a_goal_and_every_goal_is_measured() {
        let results = alike(true);
        assert_eq!(judge(&results).len(), 35);
        for goal in judge(&results) {
            assert!(goal.ok.is_some(), "{goal}");
        }
        let lines = |results: &Results| -> Vec<_> {
            judge(results).iter().map(ToString::to_string).collect()
        };
        for without in 0..results.rows.len() {
            let mut rows = results.rows.clone();
            let removed = rows.remove(without);
            let fewer = Results {
                rows,
                ..alike(true)
            };
            assert_ne!(
                lines(&fewer),
                lines(&results),
                "no goal needs {:?}",
                removed.row
            );
        }
    }

    #[test]
    fn goals_of_two_cores_are_not_measured_on_one() {
        let goals = judge(&alike(false));
        let unmeasured = goals.iter().filter(|goal| goal.ok.is_none()).count();
        assert_eq!(unmeasured, 14);
        assert!(
            goals
                .iter()
                .any(|goal| goal.to_string().ends_with("not measured"))
        );
    }

    #[test]
    fn a_goal_is_judged_by_its_direction() {
        for (at_least, measured, expected) in [
            (true, 0.9, [false, false]),
            (true, 1.0, [true, false]),
            (true, 2.0, [true, true]),
            (false, 2.1, [false, false]),
            (false, 2.0, [true, false]),
            (false, 1.0, [true, true]),
        ] {
            let figures = if at_least { [1.0, 2.0] } else { [2.0, 1.0] };
            let goal = Goal::new("work", Some(measured), " x", at_least, figures);
            assert_eq!([goal.ok, goal.stretch_ok], expected.map(Some), "{goal}");
        }
    }
}
