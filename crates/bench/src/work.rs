//! The work that two ends agree on: links between them, and bursts of work on a link.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use smbdirect_transport::Kind;

/// Connections of one kind, which stay open from one burst to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Link {
    pub(crate) means: Means,
    pub(crate) connections: u32,
    /// Longest message in bytes.
    pub(crate) largest: u32,
    /// Whether each end registers memory for the other.
    pub(crate) rdma: bool,
    /// Slots of `largest` bytes in the memory that the peer writes to.
    pub(crate) slots: u32,
}

/// The means by which data moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Means {
    /// SMB Direct.
    SmbDirect(Smb),
    /// Plain TCP by blocking calls, or by spinning ones in a busy burst.
    Tcp,
    /// Plain TCP by non-blocking calls, with one thread for all connections of an end.
    TcpLoop,
    /// tokio with a length before each message (tokio-util).
    Frames,
    /// Pooled buffers through a channel, copied in and out, between threads of one process.
    Channel,
}

/// The settings of SMB Direct connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Smb {
    /// The kind of RDMA.
    pub over: Kind,
    /// Whether software iWARP uses CRC; false for other providers.
    pub crc: bool,
    /// MaxSendSize and MaxReceiveSize of both ends.
    pub segment: u32,
    /// The Send Credit Target of both ends.
    pub send_credit_target: u16,
    /// The Receive Credit Max of both ends.
    pub receive_credit_max: u16,
    /// MaxReadWriteSize of both ends.
    pub max_read_write_size: u32,
}

/// The work of the connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Messages, one per call.
    Send,
    /// Sends, several messages per call.
    Batch,
    /// RDMA Writes.
    Write,
    /// RDMA Writes, each to a slot of its own in the memory of the peer while it is outstanding. RDMA Reads always have
    /// memory of their own at this end.
    WriteApart,
    /// RDMA Reads.
    Read,
    /// Round trips of a message.
    Echo,
}

/// Where the ends run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Each end on a core of its own.
    TwoCores,
    /// Both ends on one core.
    SameCore,
    /// On the cores that the operating system chooses.
    Free,
}

/// A burst of work. The end that connects is active, the other takes part or waits.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Burst {
    pub(crate) kind: Operation,
    pub(crate) size: u32,
    /// Messages, operations or round trips of each connection.
    pub(crate) count: u64,
    /// Maximum number of operations that have been started and are not done.
    pub(crate) outstanding: u32,
    /// Whether both ends are active.
    pub(crate) both: bool,
    /// Whether the ends busy-poll.
    pub(crate) busy: bool,
    pub(crate) placement: Placement,
    /// Run for this many seconds instead of counting messages.
    pub(crate) seconds: Option<f64>,
    /// In a timed burst, the last connection of the link sends requests of this many bytes, one at a time,
    /// and the passive end returns each.
    pub(crate) request: Option<u32>,
}

impl Burst {
    /// Returns the bytes that each connection moves in one direction.
    pub(crate) fn bytes(&self) -> u64 {
        self.count.saturating_mul(self.size.into())
    }

    /// Returns the number of slots in the memory of the peer that are written to in turn.
    pub(crate) fn slots(&self) -> u32 {
        match self.kind {
            Operation::WriteApart => self.outstanding.max(1),
            _ => 1,
        }
    }
}

/// The result of one end in a burst.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Half {
    pub(crate) seconds: f64,
    /// CPU time in seconds; `None` where the system does not report it.
    pub(crate) cpu: Option<f64>,
    /// Messages, writes or reads of each connection in a timed burst, at the end that counts them.
    pub(crate) arrived: Vec<u64>,
    /// Each round trip in nanoseconds.
    #[serde(skip)]
    pub(crate) round_trips: Vec<u64>,
}

/// Returns the number of messages to keep outstanding: 1 MiB of them, and at least 16.
pub(crate) fn window(size: u32) -> usize {
    ((1 << 20) / size.max(1) as usize).clamp(16, 1024)
}

/// The result of one burst of one row of the table, both ends together.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Duration of the burst in seconds.
    pub seconds: f64,
    /// Bytes that were moved.
    pub bytes: u64,
    /// Messages that were moved.
    pub messages: u64,
    /// CPU time of both ends in seconds; `None` where the system does not report it.
    pub cpu: Option<f64>,
    /// Each round trip in nanoseconds.
    pub round_trips: Vec<u64>,
    /// Round trip of a cache line between the two cores, before and after the burst.
    pub(crate) between_cores: Option<(Duration, Duration)>,
}

impl Sample {
    /// Creates a sample of these three numbers, as another program reports them.
    pub const fn reported(seconds: f64, bytes: u64, messages: u64) -> Self {
        Self {
            seconds,
            bytes,
            messages,
            cpu: None,
            round_trips: Vec::new(),
            between_cores: None,
        }
    }

    /// Returns the rate in bytes per second.
    pub(crate) fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }
}

/// Longest message in bytes.
pub const MAX_MESSAGE_BYTES: u32 = 8 << 20;
/// Maximum number of operations of a connection that have been started and are not done.
pub(crate) const MAX_OUTSTANDING: u32 = 1024;
/// Longest request in bytes.
pub(crate) const MAX_REQUEST_BYTES: u32 = 64 << 10;
/// Maximum number of messages of a burst.
pub(crate) const MAX_BURST_MESSAGES: u64 = 1 << 32;
/// Maximum number of round trips of a burst; the duration of each one is kept.
pub(crate) const MAX_BURST_ROUND_TRIPS: u64 = 1 << 20;
