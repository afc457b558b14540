//! [`RequestId`]: what requests are known by.

/// Names a request in its completion; chosen by whoever submits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);
