//! `cargo xtask goals`: checks the speed goals of this project on this machine.
//!
//! [`rows`] lists what to measure, `smbdirect-bench` measures all of it alternately, [`programs`] runs iperf3 and UCX
//! between its rows, and [`judge`] compares the results with the goals, which docs/goals.md shows.

mod judge;
mod programs;
mod rows;

use std::{env, net::TcpStream, process::Command, sync::atomic::AtomicBool, time::Duration};

use anyhow::{Context, Result};
use clap::Args;
use smbdirect_bench::{
    Awake, Choice, Cores, Effort, EndSettings, Near, Placement, Program, Subject, Summary, measure,
    measure_active, measure_idle, measure_loads, start_far_thread,
};
use smbdirect_transport::Kind;

use judge::{Goal, Results};
use programs::Programs;

/// Check the speed goals of this project on this machine; takes minutes
///
/// The exit status is 0 only if every required figure is reached. docs/goals.md has the figures of two
/// machines, and the network namespace to run it in.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  cargo xtask goals --keep-awake --rounds 7 --time 0.06")]
pub(crate) struct Goals {
    /// Samples of each row
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Length of a burst of a row in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0.2)]
    time: f64,

    /// Keep the cores of the ends from halting, by idle-priority threads that spin
    #[arg(long)]
    keep_awake: bool,

    /// Print a JSON object for each goal
    #[arg(long)]
    json: bool,
}

/// Numbers of connections that move data while others send requests.
const CONNECTIONS: [u32; 4] = [1, 8, 64, 512];
/// Maximum number of connections of a link.
const MAX_CONNECTIONS: u32 = 16_384;
/// Extra rounds for samples at the usual core distance are added until this time.
const MAX_TIME: Duration = Duration::from_secs(400);

impl Goals {
    /// Measures, prints each goal, and returns whether every required figure is reached.
    pub(crate) fn run(&self) -> Result<bool> {
        if cfg!(debug_assertions) {
            return run_release_build();
        }
        let (results, summary) = self.measure()?;
        let goals = judge::judge(&results);
        self.print(&goals, &summary);
        Ok(goals.iter().all(|goal| goal.ok == Some(true)))
    }

    fn measure(&self) -> Result<(Results, Summary)> {
        let cores = Cores::allowed();
        let ends = [cores.near(), cores.far()];
        let awake = self.keep_awake.then(|| Awake::start(&cores, &ends));
        let _awake = awake.transpose().context("--keep-awake")?;
        let mut near = connect(&cores)?;
        let stop = AtomicBool::new(false);
        let choice = choice(&cores);
        let idle = measure_idle(&mut near, &choice)?;

        let programs = Programs::new(cores.clone());
        let mut rows = rows::all(cores.are_two());
        rows.retain(|row| match programs.obstacle(row) {
            Some(why) => {
                self.say(&format!("skipped: {why}"));
                false
            }
            None => true,
        });
        self.say(&format!(
            "measuring {} rows alternately; this takes minutes",
            rows.len()
        ));
        let effort = Effort {
            rounds: self.rounds,
            time: Duration::try_from_secs_f64(self.time).context("--time")?,
            most: MAX_TIME,
        };
        let run = |program: Program, size, count| programs.run(program, size, count);
        let measured = measure(
            &mut near,
            Some(&run),
            &rows,
            effort,
            &stop,
            &mut |_, _, _| (),
        )?;
        for (row, why) in &measured.failed {
            self.say(&format!("skipped: {}: {why}", row.name()));
        }
        let summary = measured.summarise();

        let active = measure_active(&mut near, &choice, None, &stop)?;
        self.say("measuring many connections");
        let mut loads = Vec::new();
        // A burst of a row is too short for hundreds of connections, which have the length that is usual for them.
        let effort = (u64::from(self.rounds), None);
        measure_loads(&mut near, &choice, effort, &stop, &mut |load| {
            loads.push(load.clone());
        })?;
        let results = Results {
            rows: summary.results.clone(),
            idle,
            active,
            loads,
        };
        Ok((results, summary))
    }

    fn say(&self, what: &str) {
        if !self.json {
            eprintln!("{what}");
        }
    }

    fn print(&self, goals: &[Goal], summary: &Summary) {
        if self.json {
            for goal in goals {
                println!("{}", serde_json::to_string(goal).expect("keys are strings"));
            }
            return;
        }
        println!(
            "{:<68}{:>12}{:>14}{:>14}   ok",
            "work", "measured", "must", "stretch"
        );
        for goal in goals {
            println!("{goal}");
        }
        print!(
            "\n{} samples, {} dropped because the cores were at another distance",
            summary.kept + summary.dropped,
            summary.dropped
        );
        if let Some(spread) = summary.spread() {
            print!(
                "; half of a row's samples lie within {:.0} %",
                spread * 100.0
            );
        }
        if let Some(seconds) = summary.between_cores {
            print!(
                "; a cache line takes {:.0} ns between the cores and back",
                seconds * 1e9
            );
        }
        println!();
    }
}

/// Runs the same command in a build with optimisation, and returns whether it succeeded.
fn run_release_build() -> Result<bool> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["run", "--quiet", "--release", "--package", "xtask", "--"])
        .args(env::args_os().skip(1))
        .status()
        .context("cannot start cargo")?;
    Ok(status.success())
}

/// Returns the near end of a pair of which both ends are threads of this process.
fn connect(cores: &Cores) -> Result<Near> {
    let settings = EndSettings {
        cores: cores.clone(),
        iwarp: Default::default(),
        roce: Default::default(),
        adapters: None,
        in_process: None,
        max_connections: MAX_CONNECTIONS,
    };
    let (address, shared) = start_far_thread(&settings)?;
    let settings = EndSettings {
        in_process: Some(shared),
        ..settings
    };
    Near::new(TcpStream::connect(address)?, settings)
}

/// Returns the settings of the measurements of many connections.
fn choice(cores: &Cores) -> Choice {
    Choice {
        smb: rows::smb(Kind::Iwarp, 0, true),
        crcs: vec![true],
        segments: vec![rows::LARGE_SEGMENT, rows::SMALL_SEGMENT],
        sizes: Vec::new(),
        subjects: vec![Subject::Connections],
        outstanding: vec![rows::OUTSTANDING],
        directions: vec![false],
        busy: false,
        connections: CONNECTIONS.to_vec(),
        with_loads: true,
        placement: if cores.are_two() {
            Placement::TwoCores
        } else {
            Placement::SameCore
        },
        alone: false,
    }
}
