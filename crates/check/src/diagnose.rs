//! Draws conclusions from facts, without I/O.

#[path = "diagnose/attempts.rs"]
mod attempts;
#[path = "diagnose/dialects.rs"]
mod dialects;
#[path = "diagnose/local.rs"]
mod machine;
#[path = "diagnose/mounts.rs"]
mod mounts;
#[path = "diagnose/session.rs"]
mod session;
#[path = "diagnose/cures.rs"]
mod settings;
#[path = "diagnose/verdict.rs"]
mod verdict;
#[path = "diagnose/remote.rs"]
mod way;

#[cfg(test)]
#[path = "diagnose/tests.rs"]
mod tests;

use super::{answer::Answer, facts::Facts};

/// Returns what the facts mean.
pub(super) fn judge(facts: &Facts) -> Answer {
    let mut sections = Vec::new();
    if let Some(way) = &facts.way {
        sections.push(way::section(way, &facts.machine));
        sections.extend(session::section(way));
    }
    sections.extend(mounts::section(facts));
    sections.extend(machine::sections(facts));
    sections.retain(|section| !section.steps.is_empty());
    verdict::conclude(facts, sections)
}
