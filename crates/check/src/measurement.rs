//! The rates that were measured to a server, and the conclusions from them.

use serde::{Serialize, Serializer};
pub use smbdirect_smb::slow::Cause;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// WRITE.
    Write,
    /// READ of data that was read for the first time.
    FirstRead,
    /// READ of data that was read or written before.
    Read,
}

impl Operation {
    /// Returns the name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::FirstRead => "first read",
            Self::Read => "read",
        }
    }
}

/// The rate of requests of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Rate {
    /// What the requests do.
    pub operation: Operation,
    /// Bytes of a request.
    pub request_bytes: u32,
    /// Requests outstanding at the same time.
    pub outstanding: u32,
    /// Seconds of the measurement.
    pub seconds: f64,
    /// Bytes that were moved.
    pub bytes: u64,
    /// How many of them moved by RDMA.
    pub bytes_by_rdma: u64,
    /// Bytes in a second.
    pub bytes_per_second: f64,
    /// Requests in a second.
    pub requests_per_second: f64,
    /// Processor time of this process in seconds, where the system tells it.
    pub cpu_seconds: Option<f64>,
    /// The part of the time for which the busiest thread of this process used a processor.
    pub busiest_thread: Option<f64>,
    /// The part of all processors of this machine that was in use, by any program.
    pub machine_busy: Option<f64>,
    /// The part of the time for which messages waited for a send credit of SMB Direct.
    pub credit_wait: Option<f64>,
    /// The longest time in seconds in which no request was answered.
    pub longest_wait: f64,
}

/// The conclusions from a measurement.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Speed {
    /// The conclusions in sentences, the most important one first.
    pub sentences: Vec<String>,
    /// Bytes in a second that the path carries without SMB, if it was measured.
    pub path: Option<f64>,
    /// The path in a sentence.
    pub path_sentence: String,
    /// The rates over each transport.
    pub transports: Vec<TransportSpeed>,
    /// SMB Direct compared with TCP.
    pub comparisons: Vec<Comparison>,
}

/// The rates over one transport, and what limits them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TransportSpeed {
    /// As in `TCP` or `SMB Direct by software iWARP`.
    pub name: String,
    /// The rates.
    pub rates: Vec<Rate>,
    /// What limits large requests.
    pub limits: Vec<Limited>,
    /// The reason why rates are missing.
    pub failure: Option<String>,
}

/// A rate of large requests, and what limits it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Limited {
    /// What the requests do.
    pub operation: Operation,
    /// Requests outstanding at the same time.
    pub outstanding: u32,
    /// What limits the rate.
    #[serde(serialize_with = "slug")]
    pub limit: Cause,
    /// The limit in words, as after "because of".
    pub because: String,
}

/// The rate of SMB Direct compared with that of TCP, for large requests with many outstanding.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Comparison {
    /// As in `SMB Direct by software iWARP`.
    pub transport: String,
    /// What the requests do.
    pub operation: Operation,
    /// The rate of SMB Direct divided by that of TCP.
    pub ratio: f64,
    /// The comparison in a sentence.
    pub sentence: String,
}

fn slug<S: Serializer>(cause: &Cause, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(cause.slug())
}
