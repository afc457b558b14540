//! [`Log`]: the log lines of a connection, in its span.

use tracing::{
    Level, Span, debug,
    level_filters::{LevelFilter, STATIC_MAX_LEVEL},
    trace,
};

use super::{ConnectionError, Negotiated};
use crate::{
    rdma::work::Token,
    wire::{DataTransfer, NegotiateRequest, NegotiateResponse, Status},
};

/// The log of one connection. Each line is in the span that was current when the connection was
/// created, not in that of the caller.
///
/// Entering a span takes time even if no line is logged. Methods off the hot path always enter it;
/// callers on the hot path check [`traces`](Self::traces) first.
#[derive(Clone, Debug)]
pub(super) struct Log {
    span: Span,
}

impl Log {
    /// Creates a log in the current span.
    pub(super) fn new() -> Self {
        Self {
            span: Span::current(),
        }
    }

    #[cfg(feature = "tokio")]
    pub(super) const fn span(&self) -> &Span {
        &self.span
    }

    /// Returns whether a subscriber may want a line for each message. It costs a load and a
    /// comparison.
    pub(super) fn traces() -> bool {
        Level::TRACE <= STATIC_MAX_LEVEL && Level::TRACE <= LevelFilter::current()
    }

    // The arguments are passed by value, so that the caller can keep them in registers.
    #[cold]
    pub(super) fn sending(
        &self,
        header: DataTransfer,
        invalidate: Option<Token>,
        send_credits: u16,
    ) {
        self.span
            .in_scope(|| trace!(?header, ?invalidate, send_credits, "sending Data Transfer"));
    }

    #[cold]
    pub(super) fn received(&self, header: DataTransfer, invalidated: Option<Token>) {
        self.span
            .in_scope(|| trace!(?header, ?invalidated, "received Data Transfer"));
    }

    #[cold]
    pub(super) fn proposing(&self, request: &NegotiateRequest) {
        self.span.in_scope(|| debug!(?request, "proposing"));
    }

    #[cold]
    pub(super) fn accepting(&self, response: &NegotiateResponse) {
        self.span
            .in_scope(|| debug!(?response, "accepting the negotiation"));
    }

    #[cold]
    pub(super) fn refusing(&self, status: Status) {
        self.span
            .in_scope(|| debug!(%status, "refusing the negotiation"));
    }

    #[cold]
    pub(super) fn established(&self, negotiated: &Negotiated) {
        self.span.in_scope(|| debug!(?negotiated, "established"));
    }

    #[cold]
    pub(super) fn ended(&self, error: &ConnectionError) {
        self.span
            .in_scope(|| debug!(%error, "the connection is over"));
    }
}
