//! [`Direction`]: the direction in which bytes travelled, for observers of the wire.

/// The direction in which bytes travelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// To the peer.
    Sent,
    /// From the peer.
    Received,
}
