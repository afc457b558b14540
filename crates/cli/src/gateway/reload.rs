//! Reads the settings file again while the gateway runs.

use std::sync::Arc;

use anyhow::Result;
use smbdirect_gateway::{Live, Service, Settings};
use tracing::warn;

use super::{
    Gateway,
    file::{Given, SettingsFile},
    output::Event,
};
use crate::{options, report::Report};

/// The keys of the file that can change while the gateway runs: the keys of [`Live`], and the key of the log.
const LIVE_KEYS: [&str; 6] = [
    "allow",
    "drain-timeout",
    "max-connections",
    "stall-limit",
    "upstream",
    "verbose",
];

/// The settings file, and the settings that are in force.
#[derive(Debug)]
pub(super) struct Reloading {
    file: SettingsFile,
    /// The settings of the file that are in force: those that need a restart as they were at the start, the others as
    /// they were last changed.
    in_force: Given,
    /// The settings that do not change while the gateway runs.
    settings: Settings,
}

/// The result of reading the file again.
#[derive(Debug)]
struct Change {
    changed: Vec<String>,
    needs_restart: Vec<String>,
    in_force: Given,
    live: Live,
    verbose: u8,
}

impl Reloading {
    /// Takes the file, its settings, and what the gateway was started with.
    pub(super) const fn new(file: SettingsFile, in_force: Given, settings: Settings) -> Self {
        Self {
            file,
            in_force,
            settings,
        }
    }

    /// Reads the settings again. A file with a fault changes nothing. Settings that can change take effect in sessions
    /// that begin later, and a setting that needs a restart has no effect until then.
    pub(super) fn reload(&mut self, service: &Arc<Service>, report: Report) {
        let change = match self.read() {
            Ok(change) => change,
            Err(error) => {
                warn!("the settings were not changed: {error:#}");
                return;
            }
        };
        service.set_live(change.live);
        options::set_verbosity(change.verbose);
        self.in_force = change.in_force;
        let names = if change.changed.is_empty() {
            "nothing has changed".to_owned()
        } else {
            format!("changed {}", change.changed.join(", "))
        };
        report.line(format_args!("{} read again: {names}", self.file.name()));
        if !change.needs_restart.is_empty() {
            warn!(
                "these settings need a restart to change: {}",
                change.needs_restart.join(", ")
            );
        }
        report.event(&Event::Reloaded {
            changed: &change.changed,
            needs_restart: &change.needs_restart,
        });
    }

    /// Returns what is different from the settings in force.
    fn read(&self) -> Result<Change> {
        let loaded = self.file.load::<Gateway>()?;
        let checked = loaded.options.check();
        checked.map_err(|error| loaded.locate(error))?;
        let mut in_force = self.in_force.clone();
        let (mut changed, mut needs_restart) = (Vec::new(), Vec::new());
        let before = self.meaning(&self.in_force)?;
        let mut keys: Vec<_> = loaded.given.keys().chain(self.in_force.keys()).collect();
        keys.sort();
        keys.dedup();
        for key in keys {
            let new = loaded.given.get(key);
            let mut with = self.in_force.clone();
            set(&mut with, key, new);
            // A value in other words, or the default in words, is the same setting.
            if self.meaning(&with).is_ok_and(|meaning| meaning == before) {
                continue;
            }
            if LIVE_KEYS.contains(&key.as_str()) {
                changed.push(key.clone());
                set(&mut in_force, key, new);
            } else {
                needs_restart.push(key.clone());
            }
        }
        let gateway: Gateway = self.file.options(&in_force)?;
        Ok(Change {
            changed,
            needs_restart,
            live: gateway.live(&self.settings)?,
            verbose: gateway.options.verbose,
            in_force,
        })
    }

    /// Returns all options with these settings, in a form that can be compared.
    fn meaning(&self, given: &Given) -> Result<String> {
        let options: Gateway = self.file.options(given)?;
        Ok(format!("{options:?}"))
    }
}

/// Sets a key, or removes it.
fn set(given: &mut Given, key: &str, values: Option<&Vec<String>>) {
    match values {
        Some(values) => given.insert(key.to_owned(), values.clone()),
        None => given.remove(key),
    };
}
