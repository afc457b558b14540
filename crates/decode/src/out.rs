//! Where events go.

use super::{counts::RoceCounts, event::Event, tcp::Position};

/// Receives events.
pub type Sink<'a> = &'a mut dyn FnMut(Event);

/// What the packets of RoCE add to: the events, the number of streams, and the counts.
pub(super) struct Out<'a> {
    /// Number of streams so far.
    pub(super) streams: &'a mut u32,
    pub(super) counts: &'a mut RoceCounts,
    /// The ports of SMB Direct.
    pub(super) ports: &'a [u16],
    pub(super) sink: Sink<'a>,
    /// The packet that events are about.
    pub(super) position: Position,
}

impl Out<'_> {
    /// Returns the same for another packet.
    pub(super) fn at(&mut self, position: Position) -> Out<'_> {
        Out {
            streams: self.streams,
            counts: self.counts,
            ports: self.ports,
            sink: self.sink,
            position,
        }
    }
}
