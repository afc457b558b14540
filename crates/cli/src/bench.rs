//! `smbdirect bench`: bandwidth, message rate and round trips on this machine, compared with plain
//! TCP and with memory.
//!
//! [`options`] says what to measure, [`plan`] makes rows of it, [`measure`] takes their samples from
//! the two [`ends`], [`table`] and [`plot`] show them.

#[path = "../../bench/src/means/channel.rs"]
mod channel;
#[path = "../../bench/src/programs.rs"]
mod compare;
#[path = "../../bench/src/ends.rs"]
mod ends;
#[path = "../../bench/src/means/frames.rs"]
mod frames;
#[path = "../../bench/src/host.rs"]
mod machine;
#[path = "../../bench/src/connections/load.rs"]
mod many;
#[path = "../../bench/src/measure.rs"]
mod measure;
mod options;
mod output;
#[path = "../../bench/src/plan.rs"]
mod plan;
mod plot;
#[path = "../../bench/src/rows_file.rs"]
mod rows;
#[path = "../../bench/src/connections.rs"]
mod scale;
mod serve;
#[path = "../../bench/src/means/smb_direct.rs"]
mod smb;
mod table;
#[path = "../../bench/src/means/tcp.rs"]
mod tcp;
#[path = "../../bench/src/means/tcp_loop.rs"]
mod tcp_loop;
#[path = "../../bench/src/means/smb_direct/timed.rs"]
mod timed;
#[path = "../../bench/src/work.rs"]
mod work;

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use smbdirect::rdma::provider::Provider;
use tokio::sync::oneshot;

use crate::{report::Report, signals};

use compare::Programs;
use machine::Cores;
use measure::Measured;
pub(crate) use options::Bench;
use plan::{Choice, What};
use work::Placement;

/// How long a default run may measure.
const DEFAULT_TOTAL: Duration = Duration::from_secs(20);
/// How long a run with --full or --rows may measure.
const FULL_TOTAL: Duration = Duration::from_secs(400);

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
            // After a second signal the receiver is gone.
            let _ = sender.send(self.measure(&cores, adapters, &choice, &stopped));
        };
        thread::Builder::new().name("bench".into()).spawn(worker)?;
        tokio::select! {
            result = &mut done => return result.map_err(|_| gone())?,
            () = interrupted.wait() => stop.store(true, Ordering::Relaxed),
        }
        // The current burst is the last one, and its results are printed.
        tokio::select! {
            result = &mut done => result.map_err(|_| gone())?,
            () = interrupted.wait() => bail!("interrupted"),
        }
    }

    /// Runs the whole measurement as the near end, in a thread of its own.
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
        let pinned = choice.placement == Placement::TwoCores;
        let programs = Programs::new(cores.clone(), pinned, self.used_congestion_control());
        let mut rows = choice.rows();
        let mut measured = Measured::default();
        if self.compare {
            let (others, missing) = programs.rows(&choice.sizes);
            rows.extend(others);
            for why in missing {
                output::skipped(&report, "a comparison", &why);
            }
        }
        rows.retain(|row| match programs.obstacle(row) {
            Some(why) => {
                output::skipped(&report, &row.name(), &why);
                false
            }
            None => true,
        });
        output::print_head(self, &report, choice);
        let connections = choice.what.contains(&What::Connections);
        let (scale, many) = (connections && !choice.many, connections && choice.many);
        if scale {
            scale::idle(&report, &mut near, choice)?;
        }
        if !rows.is_empty() {
            let total = if self.full || choice.given.is_some() {
                FULL_TOTAL
            } else {
                DEFAULT_TOTAL
            };
            let effort = self.effort(rows.len(), total);
            measured = output::measure_rows(&report, &mut near, &programs, &rows, effort, stop)?;
        }
        let summary = measured.summarise();
        table::print(&report, &summary);
        for (row, why) in &measured.failed {
            output::skipped(&report, &row.name(), why);
        }
        if scale && !measured.interrupted {
            scale::active(&report, &mut near, choice, self.time, stop)?;
        }
        if many && !measured.interrupted {
            let effort = (self.rounds, self.time);
            measured.interrupted = many::measure(&report, &mut near, choice, effort, stop)?;
        }
        output::finish(self, &report, &measured, &summary, cores, load_before);
        if let Some(path) = &self.svg {
            let drawing = plot::draw(&summary)?;
            fs::write(path, drawing)
                .with_context(|| format!("cannot write {}", path.to_string_lossy()))?;
        }
        Ok(!measured.interrupted)
    }
}

fn gone() -> anyhow::Error {
    anyhow!("the measuring thread is gone")
}
