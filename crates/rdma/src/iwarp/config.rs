//! The outcome of the startup frames, which configures a stream.

use super::startup::Rtr;

/// The parameters of a stream, as the startup frames settled them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    /// Whether this end sent the MPA Request.
    pub initiator: bool,
    /// Whether this end computes and checks CRCs.
    pub crc: bool,
    /// The longest FPDU to send, in bytes; see [`max_fpdu`](super::mpa::max_fpdu).
    pub max_fpdu: usize,
    /// Whether [`transmit_slices`](super::Stream::transmit_slices) returns one FPDU at a time.
    pub one_fpdu_a_write: bool,
    /// The backlog, in bytes that wait for the socket, at which no more FPDUs are made; at least 1. It limits the
    /// bytes of one write, the bytes that precede a Terminate, and the time for which writing keeps this end from
    /// reading.
    pub max_backlog: usize,
    /// ORD: the most RDMA Reads that this end may have outstanding.
    pub max_outbound_reads: u32,
    /// IRD: the most RDMA Reads that the peer may have outstanding.
    pub max_inbound_reads: u32,
    /// The ready-to-receive frame that this end, as the initiator, has to send first.
    pub ready_to_receive: Option<Rtr>,
}
