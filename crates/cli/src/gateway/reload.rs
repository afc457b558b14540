//! Compares the settings file with what runs.

use std::collections::BTreeSet;

use anyhow::Result;

use super::{
    Gateway, Planned,
    file::{Given, SettingsFile},
};

/// The keys of the file that can change while the gateway runs: those of `Live`, and the key of the log.
const LIVE_KEYS: [&str; 14] = [
    "allow",
    "balance",
    "check-fall",
    "check-interval",
    "check-rise",
    "deny",
    "drain-timeout",
    "max-connections",
    "max-connections-per-client",
    "slow-start",
    "stall-limit",
    "trusted-proxies",
    "upstream",
    "verbose",
];

/// The difference of the settings of a service from those in force.
#[derive(Debug, Default)]
pub(super) struct Difference {
    /// Keys that change.
    pub(super) changed: Vec<String>,
    /// Keys that keep their values until a restart.
    pub(super) needs_restart: Vec<String>,
    /// The settings that are in force after the change.
    pub(super) in_force: Given,
}

/// Reads and checks the file. Returns whether it has tables, and the services.
///
/// # Errors
/// The file has a fault.
pub(super) fn plan(file: &SettingsFile) -> Result<(bool, Vec<Planned>)> {
    let loaded = file.load::<Gateway>()?;
    let has_tables = loaded.has_tables;
    let mut planned = Vec::new();
    for mut service in loaded.services {
        let checked = service.options.check();
        checked.map_err(|error| service.locate(error))?;
        if has_tables && service.options.options.pcap.is_some() {
            let what = crate::options::usage("--pcap is for a file without tables `[[service]]`");
            return Err(service.locate(what));
        }
        service.options.config = None;
        planned.push(Planned {
            name: service.name,
            options: service.options,
            given: service.given,
        });
    }
    Ok((has_tables, planned))
}

/// Compares the settings of a service with those in force, by what they mean: a value in other words, or the default in
/// words, is the same setting.
///
/// # Errors
/// The settings in force are not those of this command line.
pub(super) fn difference(file: &SettingsFile, in_force: &Given, new: &Given) -> Result<Difference> {
    let meaning = |given: &Given| {
        let options: Gateway = file.options(given)?;
        Ok::<_, anyhow::Error>(format!("{options:?}"))
    };
    let before = meaning(in_force)?;
    let mut difference = Difference {
        in_force: in_force.clone(),
        ..Difference::default()
    };
    let keys: BTreeSet<_> = in_force.keys().chain(new.keys()).collect();
    for key in keys {
        let values = new.get(key);
        let mut with = in_force.clone();
        set(&mut with, key, values);
        if meaning(&with).is_ok_and(|meaning| meaning == before) {
            continue;
        }
        if LIVE_KEYS.contains(&key.as_str()) {
            difference.changed.push(key.clone());
            set(&mut difference.in_force, key, values);
        } else {
            difference.needs_restart.push(key.clone());
        }
    }
    Ok(difference)
}

/// Sets a key, or removes it.
fn set(given: &mut Given, key: &str, values: Option<&Vec<String>>) {
    match values {
        Some(values) => given.insert(key.to_owned(), values.clone()),
        None => given.remove(key),
    };
}
