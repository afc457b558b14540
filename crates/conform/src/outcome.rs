//! The outcome of a case, and the error type with which the steps of a case end it early.

use std::{fmt, time::Duration};

/// The outcome of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The peer did what the specification requires.
    Pass,
    /// The peer did not do what the specification requires.
    Fail {
        /// What the specification requires, as a sentence without a full stop.
        expected: String,
        /// What the peer did instead.
        seen: String,
    },
    /// The case did not run, or could not decide.
    Skipped {
        /// The reason.
        reason: SkipReason,
    },
}

/// Why a case did not run, or could not decide.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SkipReason {
    /// No client connected within this time.
    NoClient(Duration),
    /// The case sends bytes below RDMA, which is not possible with the transport.
    BelowRdma,
    /// Another reason, in words.
    Other(String),
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoClient(waited) => write!(f, "no client connected within {waited:?}"),
            Self::BelowRdma => f.write_str(
                "the case sends bytes below RDMA, which is not possible with this transport",
            ),
            Self::Other(reason) => f.write_str(reason),
        }
    }
}

impl From<String> for SkipReason {
    fn from(reason: String) -> Self {
        Self::Other(reason)
    }
}

impl From<&str> for SkipReason {
    fn from(reason: &str) -> Self {
        Self::Other(reason.into())
    }
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
    /// The client connected, and did not begin to use the connection.
    Unused {
        /// The message that was expected of the client.
        expected: &'static str,
        /// What the client did instead.
        seen: String,
    },
    /// The case cannot decide.
    Skip {
        /// The reason.
        reason: SkipReason,
    },
}

impl Stop {
    /// Replaces the description of the requirement, if the peer broke a rule.
    #[must_use]
    pub(crate) fn with_expected(self, change: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Fail { expected, seen } => Self::Fail {
                expected: change(expected),
                seen,
            },
            stop => stop,
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fail { expected, seen } => write!(f, "expected: {expected}; seen: {seen}"),
            Self::Unused { expected, seen } => write!(f, "expected: {expected}; seen: {seen}"),
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
            Err(Stop::Unused { expected, seen }) => Self::Fail {
                expected: expected.into(),
                seen,
            },
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
pub fn skip<T>(reason: impl Into<SkipReason>) -> Verdict<T> {
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
