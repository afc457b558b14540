//! The outcome of a case, and the error type with which the steps of a case end it early.

use std::fmt;

/// The outcome of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The peer did what the specification requires.
    Pass,
    /// The peer did something else.
    Fail {
        /// What the specification requires, as a sentence without a full stop.
        expected: String,
        /// What the peer did instead.
        seen: String,
    },
    /// The case did not run, or could not decide.
    Skipped {
        /// The reason.
        reason: String,
    },
}

impl Outcome {
    /// Returns the name for reports: `pass`, `fail` or `skip`.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail { .. } => "fail",
            Self::Skipped { .. } => "skip",
        }
    }
}

/// Why a case ended before its last step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The peer broke a rule.
    Fail {
        /// What the specification requires.
        expected: String,
        /// What the peer did instead.
        seen: String,
    },
    /// The case cannot decide.
    Skip {
        /// The reason.
        reason: String,
    },
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fail { expected, seen } => write!(f, "expected: {expected}; seen: {seen}"),
            Self::Skip { reason } => write!(f, "skipped: {reason}"),
        }
    }
}

impl std::error::Error for Stop {}

/// The result of a step of a case.
pub type Verdict<T = ()> = Result<T, Stop>;

impl From<Verdict> for Outcome {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Ok(()) => Self::Pass,
            Err(Stop::Fail { expected, seen }) => Self::Fail { expected, seen },
            Err(Stop::Skip { reason }) => Self::Skipped { reason },
        }
    }
}

/// Ends a case: the peer broke a rule.
///
/// # Errors
/// Always.
pub fn fail<T>(expected: impl Into<String>, seen: impl Into<String>) -> Verdict<T> {
    Err(Stop::Fail {
        expected: expected.into(),
        seen: seen.into(),
    })
}

/// Ends a case that cannot decide.
///
/// # Errors
/// Always.
pub fn skip<T>(reason: impl Into<String>) -> Verdict<T> {
    Err(Stop::Skip {
        reason: reason.into(),
    })
}

/// Ends a case unless `holds`.
///
/// # Errors
/// [`Stop::Fail`] with the two texts.
pub fn require(holds: bool, expected: impl Into<String>, seen: impl FnOnce() -> String) -> Verdict {
    if holds {
        Ok(())
    } else {
        fail(expected, seen())
    }
}
