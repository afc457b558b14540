//! The dialects of SMB.

use super::settings;
use crate::{
    diagnosis::{RunOn, Step},
    fault::Fault,
};

/// Returns `3.1.1` for 0x0311.
pub(super) fn name(number: u16) -> String {
    match number {
        0x0202 => "2.0.2".into(),
        0x0210 => "2.1".into(),
        0x0300 => "3.0".into(),
        0x0302 => "3.0.2".into(),
        0x0311 => "3.1.1".into(),
        other => format!("{other:#06x}"),
    }
}

/// Returns the step for a server that has no SMB 3.
pub(super) fn too_old(name: String, number: u16) -> Step {
    let cause = "SMB Direct needs SMB 3.0 or later, but the server offers no more than this";
    Step::fault(
        name,
        format!("SMB {}", self::name(number)),
        Fault::DialectBelow3,
        cause,
    )
    .cure(
        RunOn::Ksmbd,
        settings::ksmbd("server max protocol", "SMB3_11"),
    )
    .cure(RunOn::Samba, settings::samba("server max protocol", "SMB3"))
}
