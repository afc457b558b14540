//! `smbdirect bench`: how fast this is here, beside plain TCP and memory.

mod channel;
mod compare;
mod ends;
mod frames;
mod machine;
mod measure;
mod plan;
mod plot;
mod reach;
mod scale;
mod serve;
mod smb;
mod table;
mod tcp;
mod work;

use std::{
    fs,
    net::TcpListener,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;
use smbdirect::rdma::{
    iwarp::{IwarpConfig, MpaCrc},
    provider::Provider,
};
use tokio::sync::oneshot;

use crate::{
    options::{
        Address, CommonOptions, ConnectOptions, Transport, at_least_one, seconds, size, usage,
        with_profiles,
    },
    report::{self, Report},
    signals, transport,
};

use compare::Programs;
use ends::{Near, Setting};
use machine::{Awake, Cores};
use measure::{Effort, Measured, Summary};
use plan::{Choice, Row, What};
use work::{Over, Placement, Smb};

/// Measure bandwidth, message rate and round trips, beside plain TCP and memory
///
/// Without ADDR both ends are on this machine, each in a thread that is pinned to a core. With
/// ADDR the other end is a `smbdirect bench --serve` there. Everything that is compared is
/// measured by turns, in short bursts, on the same cores; what is printed are medians. Messages
/// are received whole, in as many parts as they came; writes count when the far end has seen what
/// was sent behind them.
#[derive(Debug, Args)]
#[command(after_help = with_profiles(EXAMPLES))]
pub(crate) struct Bench {
    /// The other end: HOST[:PORT], port 5446 if none is given; with --serve where to listen
    #[arg(value_name = "ADDR")]
    address: Option<Address>,

    /// Be the other end of a bench elsewhere
    #[arg(long, conflicts_with_all = ["what", "full", "reach", "compare", "svg"])]
    serve: bool,

    /// End after the first bench; with --serve
    #[arg(long, requires = "serve")]
    once: bool,

    /// What to measure [default: all but connections]
    #[arg(long, value_enum, value_name = "WHAT", value_delimiter = ',')]
    what: Vec<What>,

    /// Sizes of messages, up to 8M [default: 64,1K,8K,64K,1M]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = size)]
    sizes: Vec<u32>,

    /// Sizes of segments: MaxSendSize and MaxReceiveSize of both ends [default: 8136,1364]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = size)]
    segment: Vec<u32>,

    /// RDMA operations to have outstanding [default: 16]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=128))]
    outstanding: Vec<u32>,

    /// Move data both ways at once
    #[arg(long)]
    both: bool,

    /// Connections that work at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    connections: u32,

    /// Where the ends run [default: two-cores, or same-core where there is one; free with ADDR]
    #[arg(long, value_enum, value_name = "WHERE")]
    placement: Option<Placement>,

    /// Processes for the ends of this machine
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=2))]
    processes: u32,

    /// Congestion control of all TCP connections [default: the system's]
    #[arg(long, value_name = "NAME")]
    congestion_control: Option<String>,

    /// The ends never sleep
    #[arg(long)]
    busy_poll: bool,

    /// Keep the cores of the ends from halting, by work that gives way to all other
    #[arg(long)]
    keep_awake: bool,

    /// Only SMB Direct, nothing to compare it with
    #[arg(long)]
    alone: bool,

    /// Samples of each row
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one)]
    rounds: u64,

    /// Length of a burst [default: so that all of it ends in half a minute, up to 0.25]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    time: Option<Duration>,

    /// More sizes, both ways too, with CRC and without; takes minutes
    #[arg(long, conflicts_with_all = ["sizes", "both", "reach"])]
    full: bool,

    /// The goals that this project has set itself, and whether they are reached here; takes minutes
    #[arg(long, conflicts_with_all = ["what", "sizes", "segment", "outstanding", "placement", "both", "connections", "busy_poll", "alone", "svg"])]
    reach: bool,

    /// Also run iperf3, ucx_perftest and fi_pingpong, where they are installed
    #[arg(long)]
    compare: bool,

    /// Draw sizes against rates
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    #[command(flatten)]
    connect: ConnectOptions,

    #[command(flatten)]
    pub(crate) options: CommonOptions,
}

const EXAMPLES: &str = "\x1b[1m\x1b[4mExamples:\x1b[0m
  smbdirect bench
  smbdirect bench --what write,read --sizes 64K,1M --outstanding 1,8,32
  smbdirect bench --what send --segment 1364 --placement same-core --mpa-crc off
  smbdirect bench --svg rates.svg
  smbdirect bench --serve :5446            on one machine
  smbdirect bench HOST                     on another
  smbdirect bench --serve --transport verbs, and there
  smbdirect bench --transport verbs HOST   over RDMA adapters: HOST is an address of one

  Where the system's congestion control is bbr, which costs much on one machine:
  smbdirect bench --congestion-control reno

  Where to wake a core that has nothing to do takes long, as in many virtual machines:
  smbdirect bench --keep-awake

\x1b[1m\x1b[4mWith --json:\x1b[0m
  {\"event\":\"row\", name, kind, means, transport, size, segment, crc, outstanding, both, busy_poll,
   connections, placement, gib_per_second, gib_per_second_p25, gib_per_second_p75,
   cpu_seconds_per_gib, messages_per_second, ratio_to_tcp, ratio_to_tcp_batched, latency, samples,
   usual_distance}
  {\"event\":\"idle_connections\", connections, bytes_each, credit_bytes, beyond_credits}
  {\"event\":\"active_connections\", connections, fastest_to_slowest, together_to_one}
  {\"event\":\"reach\", work, measured, unit, at_least, must, stretch, ok, stretch_ok}
  {\"event\":\"skipped\", what, why}
  {\"event\":\"summary\", rows, samples, dropped, between_cores_seconds, core_share, load_before,
   load_after, spread, congestion_control, kept_awake, two_cores, interrupted}";

/// The longest message.
const LARGEST: u32 = 8 << 20;
/// Most connections of a link.
const MOST_CONNECTIONS: u32 = 16_384;
/// How long a default run, a full one and one for the goals may take to measure.
const DEFAULT_TOTAL: Duration = Duration::from_secs(20);
const FULL_TOTAL: Duration = Duration::from_secs(400);
const REACH_TOTAL: Duration = Duration::from_secs(400);

/// How it went, besides the rows.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Skipped {
        what: &'a str,
        why: &'a str,
    },
    Summary {
        rows: usize,
        samples: usize,
        dropped: usize,
        between_cores_seconds: Option<f64>,
        core_share: Option<f64>,
        load_before: Option<f64>,
        load_after: Option<f64>,
        spread: Option<f64>,
        congestion_control: Option<String>,
        kept_awake: bool,
        two_cores: bool,
        interrupted: bool,
    },
}

impl Bench {
    pub(crate) async fn run(self) -> Result<bool> {
        let cores = Cores::allowed();
        if self.serve {
            return serve::run(&self, &cores).await;
        }
        let choice = self.choice(&cores)?;
        let adapters = self.adapters()?;
        let (stop, mut interrupted) = (
            Arc::new(AtomicBool::new(false)),
            signals::Interrupted::new(),
        );
        let (sender, mut done) = oneshot::channel();
        let stopped = stop.clone();
        let worker = move || {
            // Nobody waits for it after a second signal.
            let _ = sender.send(self.measure(&cores, adapters, &choice, &stopped));
        };
        thread::Builder::new().name("bench".into()).spawn(worker)?;
        tokio::select! {
            result = &mut done => return result.map_err(|_| gone())?,
            () = interrupted.wait() => stop.store(true, Ordering::Relaxed),
        }
        // The burst that runs is the last; then there is something to print.
        tokio::select! {
            result = &mut done => result.map_err(|_| gone())?,
            () = interrupted.wait() => bail!("interrupted"),
        }
    }

    fn choice(&self, cores: &Cores) -> Result<Choice> {
        let config = self.options.config(Some(&self.connect), None)?;
        let over = match self.options.transport {
            Transport::Iwarp => Over::Iwarp,
            Transport::Loopback => Over::Loopback,
            Transport::Verbs => Over::Verbs,
        };
        if over == Over::Verbs && self.address.is_none() {
            return Err(usage(
                "--transport verbs needs ADDR: an address of an adapter, where \
                 `smbdirect bench --serve --transport verbs` runs, on this machine or another",
            ));
        }
        if over == Over::Verbs && (self.reach || self.compare) {
            return Err(usage(
                "--reach and --compare are about this machine alone, without --transport verbs",
            ));
        }
        if over == Over::Loopback && (self.address.is_some() || self.processes > 1) {
            return Err(usage("--transport loopback stays within one process"));
        }
        if self.address.is_some() && self.processes > 1 {
            return Err(usage("--processes goes without ADDR"));
        }
        if let Some(address) = &self.address {
            transport::check_connectable(address)?;
        }
        if self.options.pcap.is_some() {
            return Err(usage("--pcap is not for bench: writing would be measured"));
        }
        self.check_congestion_control()?;
        let placement = self.placement(cores)?;
        if self.keep_awake && placement == Placement::Free {
            return Err(usage(
                "--keep-awake is for ends that have their cores: --placement two-cores",
            ));
        }
        let sizes = self.sizes();
        if let Some(size) = sizes.iter().find(|&&size| size == 0 || size > LARGEST) {
            return Err(usage(format!("--sizes {size} is not within 1 to 8M")));
        }
        let segments = match &self.segment[..] {
            [] => vec![config.max_send_size.min(config.max_receive_size), 1364],
            segments => segments.to_vec(),
        };
        if let Some(segment) = segments.iter().find(|&&segment| segment < 128) {
            return Err(usage(format!(
                "--segment {segment} is too small, the least is 128"
            )));
        }
        if self.busy_poll && self.both {
            return Err(usage("--busy-poll does not go with --both"));
        }
        if self.busy_poll && placement == Placement::SameCore {
            return Err(usage(
                "--busy-poll does not go with --placement same-core: who spins keeps the other \
                 end from running",
            ));
        }
        let crcs = match (MpaCrc::from(self.options.mpa_crc), self.full) {
            _ if over == Over::Verbs => vec![false],
            (MpaCrc::Auto, true) => vec![true, false],
            (MpaCrc::Off, _) => vec![false],
            _ => vec![true],
        };
        Ok(Choice {
            smb: Smb {
                over,
                crc: true,
                segment: 0,
                send_credit_target: config.send_credit_target,
                receive_credit_max: config.receive_credit_max,
                max_read_write_size: config.max_read_write_size,
            },
            crcs,
            segments,
            sizes,
            what: self.what(),
            outstanding: match (&self.outstanding[..], self.full) {
                ([], false) => vec![16],
                ([], true) => vec![1, 4, 16, 32],
                (outstanding, _) => outstanding.to_vec(),
            },
            directions: match (self.full, self.both) {
                (true, _) => vec![false, true],
                (false, both) => vec![both],
            },
            busy: self.busy_poll,
            connections: self.connections,
            placement,
            alone: self.alone,
        })
    }

    /// Whether the system has it and lets this user have it.
    fn check_congestion_control(&self) -> Result<()> {
        let Some(algorithm) = &self.congestion_control else {
            return Ok(());
        };
        let socket = TcpListener::bind("127.0.0.1:0")?;
        machine::set_congestion_control((&socket).into(), algorithm).map_err(|error| {
            usage(format!(
                "--congestion-control {algorithm}: {}; see net.ipv4.tcp_allowed_congestion_control",
                report::plain(&error)
            ))
        })
    }

    fn placement(&self, cores: &Cores) -> Result<Placement> {
        let placement = match self.placement {
            Some(placement) => placement,
            None if self.address.is_some() || cores.near().is_none() => Placement::Free,
            None if cores.are_two() => Placement::TwoCores,
            None => Placement::SameCore,
        };
        if placement != Placement::Free && cores.near().is_none() {
            return Err(usage("--placement: this system pins no threads; use free"));
        }
        if placement == Placement::TwoCores && self.address.is_none() && !cores.are_two() {
            return Err(usage(
                "--placement two-cores: this process may use one core only; use same-core",
            ));
        }
        if placement == Placement::SameCore && self.address.is_some() {
            return Err(usage(
                "--placement same-core: the other end is not on this machine",
            ));
        }
        Ok(placement)
    }

    fn sizes(&self) -> Vec<u32> {
        match (&self.sizes[..], self.full) {
            ([], false) => vec![64, 1 << 10, 8 << 10, 64 << 10, 1 << 20],
            ([], true) => vec![
                64,
                256,
                1 << 10,
                4 << 10,
                16 << 10,
                64 << 10,
                256 << 10,
                1 << 20,
                2 << 20,
                8 << 20,
            ],
            (sizes, _) => sizes.to_vec(),
        }
    }

    fn what(&self) -> Vec<What> {
        match (&self.what[..], self.full) {
            ([], false) => vec![
                What::Send,
                What::Write,
                What::Read,
                What::Latency,
                What::Memory,
            ],
            ([], true) => vec![
                What::Send,
                What::Write,
                What::Read,
                What::Latency,
                What::Memory,
                What::Connections,
            ],
            (what, _) => what.to_vec(),
        }
    }

    /// The adapters of this machine, where they are what it is about.
    fn adapters(&self) -> Result<Option<Arc<dyn Provider>>> {
        if self.options.transport != Transport::Verbs {
            return Ok(None);
        }
        let adapters = transport::adapters(&self.options, &self.connect)?;
        Ok(Some(adapters))
    }

    fn setting(&self, cores: &Cores, adapters: Option<Arc<dyn Provider>>) -> Setting {
        Setting {
            cores: cores.clone(),
            iwarp: IwarpConfig {
                congestion_control: self.congestion_control.clone(),
                ..transport::iwarp_config(&self.options)
            },
            adapters,
            in_process: None,
            limits: (MOST_CONNECTIONS, LARGEST),
        }
    }

    /// Keeps the cores of `ends` awake as long as the result lives, if that is wanted.
    fn keep_awake(&self, cores: &Cores, ends: &[Option<usize>]) -> Result<Option<Awake>> {
        let awake = self.keep_awake.then(|| Awake::start(cores, ends));
        awake.transpose().context("--keep-awake")
    }

    /// Everything, in a thread of its own: it is the near end.
    fn measure(
        &self,
        cores: &Cores,
        adapters: Option<Arc<dyn Provider>>,
        choice: &Choice,
        stop: &AtomicBool,
    ) -> Result<bool> {
        let report = Report::new(self.options.json);
        let load_before = machine::load();
        let ends = match (choice.placement, &self.address) {
            (Placement::TwoCores, None) => &[cores.near(), cores.far()][..],
            _ => &[cores.near()],
        };
        let _awake = self.keep_awake(cores, ends)?;
        let setting = self.setting(cores, adapters);
        let mut far = serve::Far::start(self, &setting)?;
        let mut near = far.near(setting)?;
        if self.reach {
            let programs = Programs::new(cores.clone(), true, self.used_congestion_control());
            return reach::run(
                self,
                &report,
                &mut near,
                &programs,
                choice,
                stop,
                load_before,
            );
        }
        let pinned = choice.placement == Placement::TwoCores;
        let programs = Programs::new(cores.clone(), pinned, self.used_congestion_control());
        let mut rows = choice.rows();
        let mut measured = Measured::default();
        if self.compare {
            let (others, missing) = programs.rows(&choice.sizes);
            rows.extend(others);
            for why in missing {
                skipped(&report, "a comparison", &why);
            }
        }
        self.print_head(&report, choice);
        let connections = choice.what.contains(&What::Connections);
        if connections {
            scale::idle(&report, &mut near, choice)?;
        }
        if !rows.is_empty() {
            let total = if self.full { FULL_TOTAL } else { DEFAULT_TOTAL };
            let effort = self.effort(rows.len(), total);
            measured = self.by_turns(&report, &mut near, &programs, &rows, effort, stop)?;
        }
        let summary = measured.summarise();
        table::print(&report, &summary);
        for (row, why) in &measured.failed {
            skipped(&report, &row.name(), why);
        }
        if connections && !measured.interrupted {
            scale::active(&report, &mut near, choice, self.time, stop)?;
        }
        self.finish(&report, &measured, &summary, cores, load_before);
        if let Some(path) = &self.svg {
            let drawing = plot::draw(&summary)?;
            fs::write(path, drawing)
                .with_context(|| format!("cannot write {}", path.to_string_lossy()))?;
        }
        Ok(!measured.interrupted)
    }

    fn effort(&self, rows: usize, total: Duration) -> Effort {
        let rounds = self.rounds.min(1000) as u32;
        let time = self.time;
        Effort {
            rounds,
            time: time.unwrap_or_else(|| plan::time_of_a_burst(rows, rounds, total)),
            most: total,
        }
    }

    fn by_turns(
        &self,
        report: &Report,
        near: &mut Near,
        programs: &Programs,
        rows: &[Row],
        effort: Effort,
        stop: &AtomicBool,
    ) -> Result<Measured> {
        let bar = report.steps(rows.len() as u64);
        let mut progress = |done, all, what: &str| show(&bar, done, all, what);
        let measured = measure::measure(near, programs, rows, effort, stop, &mut progress);
        bar.finish_and_clear();
        measured
    }

    /// That of all rows.
    fn used_congestion_control(&self) -> Option<String> {
        let chosen = self.congestion_control.clone();
        chosen.or_else(machine::congestion_control)
    }

    fn print_head(&self, report: &Report, choice: &Choice) {
        let transport = choice.smb.over.name();
        let ends = match (&self.address, self.processes) {
            (Some(address), _) => format!("this machine and {address}"),
            (None, 1) => "both ends in this process".into(),
            (None, _) => "an end in each of two processes".into(),
        };
        let placement = match choice.placement {
            Placement::TwoCores => "each on a core of its own",
            Placement::SameCore => "on one core",
            Placement::Free => "on any core",
        };
        let awake = match self.keep_awake {
            true => ", kept awake",
            false => "",
        };
        let congestion = self.used_congestion_control();
        report.line(format_args!(
            "SMB Direct over {}, {ends}, {placement}{awake}; TCP congestion control of all: {}",
            report.style.bold(transport),
            congestion.unwrap_or_else(|| "unknown".into()),
        ));
    }

    fn finish(
        &self,
        report: &Report,
        measured: &Measured,
        summary: &Summary,
        cores: &Cores,
        load_before: Option<f64>,
    ) {
        let load_after = machine::load();
        let style = report.style;
        let mut noise = Vec::new();
        if let Some(spread) = summary.spread() {
            noise.push(format!(
                "half of a row's samples lie within {:.0} % of each other",
                spread * 100.0
            ));
        }
        if let Some(seconds) = summary.between_cores {
            noise.push(format!(
                "a cache line goes from core to core and back in {}",
                report::time(Duration::from_secs_f64(seconds))
            ));
        }
        if let Some(share) = summary.core_share {
            noise.push(format!(
                "where they shared a core, the ends had {:.0} % of it",
                share * 100.0
            ));
        }
        if summary.dropped > 0 {
            noise.push(format!(
                "{} of {} samples dropped: the cores were at another distance",
                summary.dropped,
                summary.dropped + summary.kept
            ));
        }
        let elsewhere = summary.results.iter().filter(|row| !row.usual_distance);
        let elsewhere: Vec<_> = elsewhere
            .map(|row| format!("{} {}", row.row.name(), table::size(row.row.size())))
            .collect();
        if !elsewhere.is_empty() {
            noise.push(format!(
                "measured at another distance than the others, and not comparable: {}",
                elsewhere.join(", ")
            ));
        }
        // Threads that keep cores awake are load as well.
        if let Some((before, after)) = load_before.zip(load_after)
            && !self.keep_awake
        {
            noise.push(format!("load {before:.1} before, {after:.1} after"));
        }
        report.line(style.dim(&format!("\nnoise: {}", noise.join("; "))));
        if measured.interrupted {
            report.line(style.bad("interrupted: what there was by then"));
        }
        report.event(&Event::Summary {
            rows: summary.results.len(),
            samples: summary.kept,
            dropped: summary.dropped,
            between_cores_seconds: summary.between_cores,
            core_share: summary.core_share,
            load_before,
            load_after,
            spread: summary.spread(),
            congestion_control: self.used_congestion_control(),
            kept_awake: self.keep_awake,
            two_cores: cores.are_two(),
            interrupted: measured.interrupted,
        });
    }
}

fn show(bar: &ProgressBar, done: u64, all: u64, what: &str) {
    bar.set_length(all);
    bar.set_message(what.to_owned());
    bar.set_position(done);
}

/// Something was asked for and is not done.
fn skipped(report: &Report, what: &str, why: &str) {
    report.line(report.style.dim(&format!("skipped: {what}: {why}")));
    report.event(&Event::Skipped { what, why });
}

fn gone() -> anyhow::Error {
    anyhow!("the measuring thread is gone")
}
