//! [`RequestId`]: the id of a request.

/// Identifies a request in its completion. The submitter chooses the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);
