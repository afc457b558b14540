//! `cargo xtask goals`: checks the speed goals of this project on this machine.
//!
//! [`rows`] lists what to measure. `smbdirect bench --rows` measures all rows alternately. [`judge`] compares
//! the results with the goals, which docs/goals.md shows.

mod judge;
mod rows;

use std::{
    env,
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Deserialize;

use judge::{Goal, Results};
use rows::Row;

/// Check the speed goals of this project on this machine; takes minutes
///
/// The exit status is 0 only if every required figure is reached. docs/goals.md has the figures of two
/// machines, and the network namespace to run it in.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  cargo xtask goals -- --keep-awake --rounds 7 --time 0.06")]
pub(crate) struct Goals {
    /// Print JSON objects: those of `smbdirect bench --json`, then one with the event `goal` for each goal
    #[arg(long)]
    json: bool,

    /// Use this `smbdirect` command instead of building one
    #[arg(long, value_name = "FILE", env = "SMBDIRECT_BIN")]
    command: Option<PathBuf>,

    /// Further options of `smbdirect bench`
    #[arg(last = true, value_name = "BENCH OPTIONS")]
    options: Vec<String>,
}

/// An event of `smbdirect bench --json`.
#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event {
    Row(Box<judge::Result>),
    IdleConnections(judge::Idle),
    ActiveConnections(judge::Active),
    Load(judge::Load),
    Skipped {
        what: String,
        why: String,
    },
    Summary(Summary),
    #[serde(other)]
    Other,
}

/// The event that describes the measurement.
#[derive(Debug, Deserialize)]
struct Summary {
    samples: usize,
    dropped: usize,
    between_cores_seconds: Option<f64>,
    spread: Option<f64>,
    interrupted: bool,
}

impl Goals {
    /// Measures, prints each goal, and returns whether every required figure is reached.
    pub(crate) fn run(&self) -> Result<bool> {
        let two_cores = thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
        let rows = rows::all(two_cores);
        let (mut results, summary) = self.measure(&rows)?;
        if !summary.interrupted {
            results.loads = self.measure_loads()?;
        }
        let goals = judge::judge(&results);
        self.print(&goals, &summary);
        Ok(!summary.interrupted && goals.iter().all(|goal| goal.ok == Some(true)))
    }

    /// Measures `rows`, and returns the results.
    fn measure(&self, rows: &[Row]) -> Result<(Results, Summary)> {
        let mut file = tempfile::NamedTempFile::new()?;
        for row in rows {
            serde_json::to_writer(&mut file, row)?;
            file.write_all(b"\n")?;
        }
        let mut command = self.command();
        command
            .args(["bench", "--json", "--what", "connections", "--rows"])
            .arg(file.path());
        if !self
            .options
            .iter()
            .any(|option| option.starts_with("--time"))
        {
            command.args(["--time", BURST_SECONDS]);
        }
        command
            .args(&self.options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        if !self.json {
            eprintln!(
                "measuring {} rows alternately; this takes minutes",
                rows.len()
            );
        }
        self.results_of(command)
    }

    /// Runs the bench with many connections, and returns the results.
    fn measure_loads(&self) -> Result<Vec<judge::Load>> {
        let mut command = self.command();
        command
            .args(["bench", "--json", "--what", "connections", "--connections"])
            .arg(CONNECTIONS);
        // A burst of a row is too short for hundreds of connections.
        let mut options = self.options.iter();
        while let Some(option) = options.next() {
            match option.as_str() {
                "--time" => drop(options.next()),
                time if time.starts_with("--time=") => {}
                option => drop(command.arg(option)),
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let (results, _) = self.results_of(command)?;
        Ok(results.loads)
    }

    /// Runs the bench and returns its results.
    fn results_of(&self, mut command: Command) -> Result<(Results, Summary)> {
        let mut bench = command.spawn().context("cannot start the bench")?;
        let read = self.read(&mut bench);
        let status = bench.wait()?;
        let (results, summary) = read?;
        let summary = summary.with_context(|| format!("the bench ended early: {status}"))?;
        ensure!(
            status.success() || summary.interrupted,
            "the bench failed: {status}"
        );
        Ok((results, summary))
    }

    /// Returns `smbdirect` as a command, which is built first unless it is given.
    fn command(&self) -> Command {
        if let Some(path) = &self.command {
            return Command::new(path);
        }
        let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.args([
            "run",
            "--quiet",
            "--release",
            "--package",
            "smbdirect-cli",
            "--",
        ]);
        command
    }

    /// Reads the events until the bench ends.
    fn read(&self, bench: &mut Child) -> Result<(Results, Option<Summary>)> {
        let (mut results, mut summary) = (Results::default(), None);
        let output = bench.stdout.take().context("the bench has no output")?;
        for line in BufReader::new(output).lines() {
            let line = line?;
            if self.json {
                println!("{line}");
            }
            let event = serde_json::from_str(&line)
                .with_context(|| format!("the bench printed {line:?}"))?;
            match event {
                Event::Row(result) => results.rows.push(*result),
                Event::IdleConnections(idle) => results.idle = Some(idle),
                Event::ActiveConnections(active) => results.active = Some(active),
                Event::Load(load) => results.loads.push(load),
                Event::Skipped { what, why } if !self.json => println!("skipped: {what}: {why}"),
                Event::Summary(found) => summary = Some(found),
                Event::Skipped { .. } | Event::Other => {}
            }
        }
        Ok((results, summary))
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
        let Summary {
            samples, dropped, ..
        } = summary;
        print!("\n{samples} samples, {dropped} dropped because the cores were at another distance");
        if let Some(spread) = summary.spread {
            print!(
                "; half of a row's samples lie within {:.0} %",
                spread * 100.0
            );
        }
        if let Some(seconds) = summary.between_cores_seconds {
            print!(
                "; a cache line takes {:.0} ns between the cores and back",
                seconds * 1e9
            );
        }
        println!();
    }
}

/// Numbers of connections that move data while others send requests.
const CONNECTIONS: &str = "1,8,64,512";

/// Length of a burst without --time, in seconds.
const BURST_SECONDS: &str = "0.2";
