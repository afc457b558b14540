//! The mirror image of Microsoft's cases for the connecting side: this end accepts, and breaks each
//! rule of 3.1.5.7 and 3.1.5.8, or just keeps it.
//!
//! If a rule is broken, the client ends the RDMA connection without a further message. If it is
//! kept, the client's request is answered, and the client takes the answer: it sends its next
//! message, or ends the connection and reports success.

mod credits;
mod keepalive;
mod negotiate;
mod session;
mod transfer;

use crate::case::Case;

/// Returns the cases.
pub(crate) fn cases() -> impl Iterator<Item = &'static Case> {
    negotiate::CASES
        .iter()
        .chain(transfer::CASES)
        .chain(credits::CASES)
        .chain(keepalive::CASES)
}
