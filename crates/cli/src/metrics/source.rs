//! Everything that `--metrics` serves.

use std::{collections::HashMap, sync::Arc, time::Instant};

use smbdirect::metrics::{Family, Kind, snapshot};

use crate::{panics, streams};

use super::{
    past::{self, Counters},
    process,
    status::{Status, Waited},
    text,
};

/// The figures of a command besides the figures of its SMB Direct connections.
pub(crate) trait Figures: Send + Sync + 'static {
    /// Returns the activity of the command, in one line, for `top`.
    fn title(&self) -> String;

    fn families(&self) -> Vec<Family>;

    /// Returns what sessions have waited for, by the numbers of their SMB Direct connections.
    fn waited(&self) -> HashMap<u64, Waited> {
        HashMap::new()
    }

    /// Returns whether it takes clients.
    fn is_ready(&self) -> bool {
        true
    }

    /// Answers a request of the control socket: to read, or to `change` what runs. `None` if there is no such path.
    fn control(&self, _change: bool, _path: &str) -> Option<Answer> {
        None
    }
}

/// The answer to a request of the control socket, or why it cannot be done.
pub(crate) type Answer = Result<serde_json::Value, String>;

/// All that is served.
pub(super) struct Source {
    started: Instant,
    figures: Arc<dyn Figures>,
}

impl Source {
    pub(super) const fn new(started: Instant, figures: Arc<dyn Figures>) -> Self {
        Self { started, figures }
    }

    /// Returns the figures as Prometheus text.
    pub(super) fn text(&self) -> String {
        let build = vec![("version", env!("CARGO_PKG_VERSION"))];
        let mut families = vec![Family::labelled(
            "smbdirect_build_info",
            "The version of the program; the value is always 1.",
            Kind::Gauge,
            [(build, 1.0)],
        )];
        families.extend(process::families());
        families.extend(own_families(&*self.figures));
        past::add_to(&mut families);
        text::encode(families)
    }

    pub(super) fn figures(&self) -> &dyn Figures {
        &*self.figures
    }

    pub(super) fn status(&self) -> Status {
        let figures = &self.figures;
        let uptime = self.started.elapsed();
        Status::of(&snapshot(), figures.title(), uptime, &figures.waited())
    }
}

/// Returns the counters of this process and of what it has succeeded, for the process that takes its place.
pub(crate) fn counters(figures: &dyn Figures) -> Counters {
    past::with_past(&own_families(figures))
}

/// Returns the figures of this program.
fn own_families(figures: &dyn Figures) -> Vec<Family> {
    let mut families = vec![
        Family::single(
            "smbdirect_panics_total",
            "Faults of the program that ended a task; please report them.",
            Kind::Counter,
            panics::count() as f64,
        ),
        Family::single(
            "smbdirect_log_lines_lost_total",
            "Lines of the output and the log that were lost, because nothing read them in time.",
            Kind::Counter,
            streams::lost() as f64,
        ),
    ];
    families.extend(snapshot().families());
    families.extend(figures.families());
    families
}
