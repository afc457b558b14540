//! Draws conclusions from facts, without I/O.

mod attempts;
mod dialects;
mod local;
mod mounts;
mod remote;
mod session;
mod settings;
mod speed;
mod verdict;

#[cfg(test)]
mod tests;

use crate::{diagnosis::Diagnosis, facts::Facts};

/// Draws conclusions from facts.
pub fn diagnose(facts: &Facts) -> Diagnosis {
    let mut sections = Vec::new();
    if let Some(remote) = &facts.remote {
        sections.push(remote::section(remote, &facts.machine));
        sections.extend(session::section(remote));
    }
    sections.extend(mounts::section(facts));
    sections.extend(local::sections(facts));
    sections.retain(|section| !section.steps.is_empty());
    let measurement = facts
        .remote
        .as_ref()
        .and_then(|remote| remote.measurement.as_ref());
    Diagnosis {
        speed: measurement.map(speed::explain),
        ..verdict::conclude(facts, sections)
    }
}
