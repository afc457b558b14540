//! Where events go.

use super::event::Event;

/// Receives events.
pub type Sink<'a> = &'a mut dyn FnMut(Event);

/// Receives events, and numbers streams.
pub(super) struct Out<'a> {
    /// Number of streams so far.
    pub(super) streams: &'a mut u32,
    pub(super) sink: Sink<'a>,
}
