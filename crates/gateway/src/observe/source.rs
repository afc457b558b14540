//! The figures that the pages show.

use std::{collections::HashMap, sync::Arc, time::Instant};

use smbdirect::metrics::{Family, Kind, snapshot};

use super::{
    past::{self, Counters},
    status::Status,
    text,
};
use crate::Waited;

/// The figures of a program besides those of its SMB Direct connections.
pub trait Figures: Send + Sync + 'static {
    /// Returns the activity of the program, in one line, for `smbdirect top`.
    fn title(&self) -> String;

    /// Returns the figures for `/metrics`.
    fn families(&self) -> Vec<Family>;

    /// Returns what sessions have waited for, by the numbers of their SMB Direct connections.
    fn waited(&self) -> HashMap<u64, Waited> {
        HashMap::new()
    }

    /// Returns whether the program takes clients.
    fn is_ready(&self) -> bool {
        true
    }

    /// Answers a request of the control socket: to read, or to `change` what runs. `None` if there is no such path.
    fn control(&self, _change: bool, _path: &str) -> Option<Answer> {
        None
    }
}

/// The answer to a request of the control socket, or why it cannot be done.
pub type Answer = Result<serde_json::Value, String>;

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
        #[cfg(target_os = "linux")]
        families.extend(super::process::families());
        families.extend(own_families(&*self.figures));
        past::add_to(&mut families);
        text::encode(&families)
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
pub fn counters(figures: &dyn Figures) -> Counters {
    past::with_past(&own_families(figures))
}

/// Returns the figures of the program, without those that every process has.
fn own_families(figures: &dyn Figures) -> Vec<Family> {
    let mut families = snapshot().families();
    families.extend(figures.families());
    families
}
