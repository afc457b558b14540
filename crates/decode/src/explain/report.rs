//! What an explanation says, for people and for programs.

use serde::Serialize;

use super::cause::{Cause, Limit, Phase};
use crate::event::End;

/// The explanation of a capture. It serialises to the object that `smbdirect decode --explain --json` prints.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename = "explanation")]
pub struct Explanation {
    /// What makes the connections with the data slow.
    pub verdict: Verdict,
    /// Each connection, in the order in which they begin.
    pub connections: Vec<ConnectionReport>,
    /// What the capture does not show.
    pub unseen: Vec<String>,
}

/// What makes connections slow, or that nothing is wrong.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The streams that it is about: those that move the data.
    pub streams: Vec<u32>,
    /// The time of those streams without idle time, in seconds.
    pub seconds: f64,
    /// Bytes of data that they moved, by RDMA and in messages.
    pub bytes: u64,
    /// The largest causes, the largest first; none if nothing is wrong.
    pub causes: Vec<CauseReport>,
    /// What limits the connections apart from that; `None` if the capture cannot tell.
    pub limit: Option<Limit>,
    /// The share of the time that belongs to no cause.
    pub limit_share: f64,
}

/// A cause, its share of the time, and where to see it.
#[derive(Clone, Debug, Serialize)]
pub struct CauseReport {
    /// The cause.
    #[serde(serialize_with = "slug")]
    pub cause: Cause,
    /// Seconds that it took.
    pub seconds: f64,
    /// The share of the cause in the time without idle time, from 0 to 1.
    pub share: f64,
    /// What is wrong, in words.
    pub words: String,
    /// The figures that show it.
    pub figures: String,
    /// The longest intervals of the cause.
    pub evidence: Vec<Evidence>,
    /// The cure for each system.
    pub cures: Vec<[&'static str; 2]>,
}

/// An interval that shows a cause.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Evidence {
    /// The stream.
    pub stream: u32,
    /// The frames before and after it.
    pub frames: [u64; 2],
    /// The duration of the interval.
    pub seconds: f64,
}

/// A connection.
#[derive(Clone, Debug, Serialize)]
pub struct ConnectionReport {
    /// The number of its stream.
    pub stream: u32,
    /// The client and the server, as far as that is known.
    #[serde(serialize_with = "ends")]
    pub ends: [End; 2],
    /// Whether its beginning is in the capture.
    pub from_start: bool,
    /// From its first to its last packet.
    pub seconds: f64,
    /// The seconds of each phase; they add up to `seconds`.
    pub phases: Vec<PhaseReport>,
    /// Each kind of request.
    pub requests: Vec<RequestReport>,
    /// Requests outstanding while there were any, on average, and at most.
    pub outstanding: f64,
    /// The most requests that were outstanding at the same time.
    pub most_outstanding: u32,
    /// Bytes that moved by RDMA.
    pub rdma_bytes: u64,
    /// READs and WRITEs that moved in messages.
    pub in_messages: InMessages,
    /// The fewest SMB2 credits that the client held after a request.
    pub fewest_smb2_credits: Option<i64>,
    /// The fewest send credits that the client and the server held.
    pub fewest_send_credits: [Option<u32>; 2],
    /// The shortest round trips from the capture to the client and to the server, in seconds.
    pub round_trips: [Option<f64>; 2],
    /// Signs of the path.
    pub path: PathReport,
}

/// The time of a phase.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PhaseReport {
    /// The phase.
    pub phase: Phase,
    /// The seconds of the phase.
    pub seconds: f64,
    /// The share of the phase in the connection's time.
    pub share: f64,
}

/// The requests of a kind. The times are means, in seconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RequestReport {
    /// READ, WRITE, `metadata` or `encrypted`.
    pub kind: &'static str,
    /// Bytes that one of them moved, on average.
    pub size: u64,
    /// How many.
    pub requests: u64,
    /// How many of them failed.
    pub failed: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// Bytes that moved by RDMA.
    pub rdma_bytes: u64,
    /// From the first to the last byte of the request.
    pub request: f64,
    /// From there to the first byte of data by RDMA, or of the response.
    pub server_before: f64,
    /// From the first to the last byte of data by RDMA.
    pub data: f64,
    /// From there to the first byte of the response.
    pub server_after: f64,
    /// From the first to the last byte of the response.
    pub response: f64,
}

/// READs and WRITEs that moved in messages.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct InMessages {
    /// How many.
    pub requests: u64,
    /// Bytes of data in them.
    pub bytes: u64,
}

/// Signs of the path in a connection.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PathReport {
    /// Packets that were sent again.
    pub sent_again: u64,
    /// Acknowledgements that repeat one.
    pub duplicate_acks: u64,
    /// Packets with a window of 0.
    pub zero_windows: u64,
    /// NAKs of RoCE.
    pub naks: u64,
    /// NAKs of RoCE for lack of a receive.
    pub rnr_naks: u64,
    /// Packets or pieces that the capture lacks.
    pub gaps: u64,
    /// The frame of the first packet that was sent again.
    pub first_sent_again: Option<u64>,
}

fn ends<S: serde::Serializer>(ends: &[End; 2], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(ends.iter().map(ToString::to_string))
}

fn slug<S: serde::Serializer>(cause: &Cause, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(cause.slug())
}
