//! Draws conclusions from facts, without I/O.

mod attempts;
mod dialects;
mod local;
mod mounts;
mod remote;
mod session;
mod settings;
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
    verdict::conclude(facts, sections)
}
