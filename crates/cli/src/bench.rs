//! `smbdirect bench`: bandwidth, message rate and round trips on this machine, compared with plain
//! TCP and with memory.
//!
//! [`options`] selects the rows, `smbdirect_bench` measures it, [`table`] and [`connections`] show it.

mod connections;
mod options;
mod output;
mod serve;
mod table;

use std::{
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Result, anyhow};
use smbdirect::rdma::provider::Provider;
use smbdirect_bench::{
    Choice, Cores, Measured, Placement, Subject, load_average, measure_active, measure_idle,
    measure_loads,
};
use tokio::sync::oneshot;

use crate::{report::Report, signals};

pub(crate) use options::Bench;

/// How long a run may measure.
const TOTAL: Duration = Duration::from_secs(20);

impl Bench {
    pub(crate) async fn run(self) -> Result<bool> {
        let cores = Cores::allowed();
        if self.serve {
            return serve::run(&self, &cores).await;
        }
        let choice = self.choice(&cores)?;
        let adapters = self.adapters()?;
        let far = match &self.address {
            Some(address) => Some(signals::unless_interrupted(serve::connect(address)).await?),
            None => None,
        };
        let (stop, mut interrupted) = (
            Arc::new(AtomicBool::new(false)),
            signals::Interrupted::new(),
        );
        let (sender, mut done) = oneshot::channel();
        let stopped = stop.clone();
        let worker = move || {
            // After a second signal the receiver no longer exists.
            let _ = sender.send(self.measure(&cores, adapters, far, &choice, &stopped));
        };
        thread::Builder::new().name("bench".into()).spawn(worker)?;
        tokio::select! {
            result = &mut done => return result.map_err(|_| gone())?,
            () = interrupted.wait() => stop.store(true, Ordering::Relaxed),
        }
        // The current burst is the last one, and its results are printed.
        tokio::select! {
            result = &mut done => result.map_err(|_| gone())?,
            () = interrupted.wait() => Err(signals::Interruption.into()),
        }
    }

    /// Runs the whole measurement as the near end, in a thread of its own.
    fn measure(
        &self,
        cores: &Cores,
        adapters: Option<Arc<dyn Provider>>,
        far: Option<TcpStream>,
        choice: &Choice,
        stop: &AtomicBool,
    ) -> Result<bool> {
        let report = Report::new(self.options.json);
        let load_before = load_average();
        let ends = match (choice.placement, &self.address) {
            (Placement::TwoCores, None) => &[cores.near(), cores.far()][..],
            _ => &[cores.near()],
        };
        let _awake = self.keep_awake(cores, ends)?;
        let mut near = serve::near(far, self.setting(cores, adapters))?;
        let rows = choice.rows();
        let mut measured = Measured::default();
        output::print_head(self, &report, choice);
        let connections = choice.subjects.contains(&Subject::Connections);
        let idle_and_active = connections && !choice.with_loads;
        let loads = connections && choice.with_loads;
        if idle_and_active && let Some(idle) = measure_idle(&mut near, choice)? {
            connections::print_idle(&report, &idle);
        }
        if !rows.is_empty() {
            let effort = self.effort(rows.len(), TOTAL);
            measured = output::measure_rows(&report, &mut near, &rows, effort, stop)?;
        }
        let summary = measured.summarise();
        table::print(&report, &summary);
        if idle_and_active
            && !measured.interrupted
            && let Some(active) = measure_active(&mut near, choice, self.time, stop)?
        {
            connections::print_active(&report, &active);
        }
        if loads && !measured.interrupted {
            connections::print_head(&report);
            let effort = (self.rounds, self.time);
            let mut print = |load: &_| connections::print_load(&report, load);
            let memory = measure_loads(&mut near, choice, effort, stop, &mut print)?;
            connections::print_legend(&report);
            connections::print_memory(&report, &memory);
            measured.interrupted = stop.load(Ordering::Relaxed);
        }
        output::finish(self, &report, &measured, &summary, cores, load_before);
        Ok(!measured.interrupted)
    }
}

fn gone() -> anyhow::Error {
    anyhow!("the measuring thread is gone")
}
