//! Draws conclusions from facts, without I/O.

mod attempts;
mod dialects;
mod machine;
mod mounts;
mod session;
mod settings;
mod verdict;
mod way;

#[cfg(test)]
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
