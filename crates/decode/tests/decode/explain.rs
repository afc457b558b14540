//! What makes a connection slow: each cause alone, mixtures of two, and nothing.

mod captures;
mod clocks;
mod model;
mod partial;
mod waits;

use std::time::Duration;

use fastrand::Rng;
use smbdirect_decode::{Cause, Explain, Explanation, Limit, Packets, Phase};

use self::model::{HEALTHY, Model, Run};

fn explain(capture: &[u8]) -> Explanation {
    let mut packets = Packets::new(capture).unwrap();
    let mut explain = Explain::new(&[], &[]);
    while let Some(packet) = packets.next_packet().unwrap() {
        explain.packet(&packet);
    }
    explain.finish()
}

/// Returns the seconds of a phase.
fn seconds(explanation: &Explanation, connection: usize, wanted: Phase) -> f64 {
    let phases = &explanation.connections[connection].phases;
    let wanted = phases.iter().filter(|phase| phase.phase == wanted);
    wanted.map(|phase| phase.seconds).sum()
}

fn explained(run: &Run) -> Explanation {
    let mut model = Model::new(run);
    model.add(run);
    explain(&model.capture())
}

/// Returns the causes of a verdict, the largest first.
fn causes(explanation: &Explanation) -> Vec<Cause> {
    let causes = explanation.verdict.causes.iter();
    causes.map(|report| report.cause).collect()
}

/// Each cause, and a run that has it.
fn cases() -> Vec<(Cause, Run)> {
    let milliseconds = Duration::from_millis;
    let alone = Run {
        outstanding: 1,
        ..HEALTHY
    };
    vec![
        (
            Cause::SendCredits,
            Run {
                send_credits: 2,
                ..alone
            },
        ),
        (
            Cause::Smb2Credits,
            Run {
                smb2_credits: 4,
                ..alone
            },
        ),
        (
            Cause::Threshold,
            Run {
                in_messages: true,
                ..HEALTHY
            },
        ),
        (
            Cause::Signing,
            Run {
                in_messages: true,
                signed: true,
                ..HEALTHY
            },
        ),
        (
            Cause::OneOutstanding,
            Run {
                server: Duration::from_micros(300),
                ..alone
            },
        ),
        (
            Cause::SmallRequests,
            Run {
                bytes: 4096,
                ..HEALTHY
            },
        ),
        (
            Cause::Metadata,
            Run {
                is_metadata: true,
                ..alone
            },
        ),
        (
            Cause::Delay,
            Run {
                path: milliseconds(1),
                ..alone
            },
        ),
        (
            Cause::Loss,
            Run {
                lost: (20, milliseconds(20)),
                ..HEALTHY
            },
        ),
        (
            Cause::MtuBlackHole,
            Run {
                requests: 1,
                lost: (60, milliseconds(200)),
                black_holes: 3,
                ..HEALTHY
            },
        ),
        (
            Cause::SlowServer,
            Run {
                server: milliseconds(10),
                ..HEALTHY
            },
        ),
        (
            Cause::BusyServer,
            Run {
                server: milliseconds(2),
                pause: milliseconds(5),
                ..HEALTHY
            },
        ),
        (
            Cause::Think,
            Run {
                thought: milliseconds(4),
                ..alone
            },
        ),
    ]
}

#[test]
fn each_cause_is_named_first() {
    for (cause, run) in cases() {
        let explanation = explained(&run);
        let named = causes(&explanation);
        let phases = &explanation.connections[0].phases;
        assert_eq!(
            named.first(),
            Some(&cause),
            "{named:?}: {phases:#?} {run:?}"
        );
    }
}

#[test]
fn a_healthy_run_has_no_cause() {
    for run in [
        HEALTHY,
        Run {
            bytes: 1 << 20,
            requests: 20,
            ..HEALTHY
        },
        Run {
            outstanding: 16,
            ..HEALTHY
        },
    ] {
        let explanation = explained(&run);
        assert_eq!(causes(&explanation), [], "{explanation:#?}");
        assert_eq!(
            explanation.verdict.limit,
            Some(Limit::Wire),
            "{explanation:#?}"
        );
    }
}

#[test]
fn the_times_add_up_to_the_wall_clock() {
    for (cause, run) in cases() {
        let mut model = Model::new(&run);
        model.add(&run);
        let explanation = explain(&model.capture());
        let connection = &explanation.connections[0];
        let sum: f64 = connection.phases.iter().map(|phase| phase.seconds).sum();
        assert!((sum - connection.seconds).abs() < 1e-6, "{cause:?}");
        assert_eq!(seconds(&explanation, 0, Phase::Unseen), 0.0, "{cause:?}");
        let elapsed = model.elapsed() as f64 / 1e9;
        assert!(
            (sum / elapsed - 1.0).abs() < 0.05,
            "{cause:?}: {sum} of {elapsed}"
        );
    }
}

#[test]
fn the_phases_have_the_times_of_the_model() {
    let run = Run {
        outstanding: 1,
        server: Duration::from_millis(10),
        thought: Duration::from_millis(3),
        ..HEALTHY
    };
    let explanation = explained(&run);
    let seconds = |wanted| seconds(&explanation, 0, wanted);
    let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 0.05;
    assert!(near(seconds(Phase::Server), 0.6), "{explanation:#?}");
    assert!(near(seconds(Phase::Think), 0.18), "{explanation:#?}");
    // 60 times 240 KiB at 2 GB/s: the first packet of 16 KiB ends the wait for the server.
    assert!(
        near(seconds(Phase::Data), 60.0 * 0.000_123),
        "{explanation:#?}"
    );
}

/// A path with a round trip of 10 ms. 32 KiB pass in each, and 960 KiB before: without a loss because the send buffer has
/// no more, with a loss because that has reduced the congestion window.
#[test]
fn of_two_causes_the_larger_is_named_first() {
    // Those that depend on the requests, not on the connection as a whole.
    let of_requests = [
        Cause::Threshold,
        Cause::Signing,
        Cause::OneOutstanding,
        Cause::SmallRequests,
        Cause::Metadata,
        Cause::Loss,
        Cause::SlowServer,
        Cause::BusyServer,
        Cause::Think,
    ];
    let cases: Vec<_> = cases()
        .into_iter()
        .filter(|(cause, _)| of_requests.contains(cause))
        .collect();
    let pairs = cases.iter().flat_map(|larger| {
        let others = cases.iter().filter(|smaller| smaller.0 != larger.0);
        others.map(move |smaller| [larger, smaller])
    });
    // A server that is slow and also stops within messages has one cause: it is busy.
    let of_server = [Cause::SlowServer, Cause::BusyServer];
    let is_one = |pair: &[&(Cause, Run); 2]| pair.iter().all(|case| of_server.contains(&case.0));
    let mut pairs: Vec<_> = pairs.filter(|pair| !is_one(pair)).collect();
    let mut rng = Rng::with_seed(1);
    rng.shuffle(&mut pairs);
    for [larger, smaller] in pairs.into_iter().take(20) {
        let both = [larger.0, smaller.0];
        let part = 0.25 + 0.4 * rng.f64();
        let mut model = Model::new(&HEALTHY);
        let mut times = [0.0; 2];
        // Both are repeated until they have the wanted times.
        while times[0] < 0.06e9 || times[1] > times[0] * 0.7 {
            times[0] += length(&mut model, &larger.1);
            while times[1] < times[0] * part {
                times[1] += length(&mut model, &smaller.1);
            }
        }
        let explanation = explain(&model.capture());
        assert_eq!(
            causes(&explanation).get(..2),
            Some(&both[..]),
            "{times:?}: {:#?}",
            explanation.verdict
        );
    }
}

/// Adds a few requests of a run. Returns how long they take, in nanoseconds.
fn length(model: &mut Model, run: &Run) -> f64 {
    let before = model.elapsed();
    model.add(&Run {
        requests: 4,
        ..*run
    });
    (model.elapsed() - before) as f64
}
