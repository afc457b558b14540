//! The record of a case that has ended.

use std::time::Duration;

use smbdirect_conform::{Case, Outcome};

/// A case that has ended.
pub(super) struct Done {
    pub(super) case: &'static Case,
    pub(super) outcome: Outcome,
    pub(super) took: Duration,
}
