//! Cases 1 to 42 of Microsoft's suite for SMB Direct servers (WindowsProtocolTestSuites, MS-SMBD),
//! with the numbers and names of the suite. The parts of the cases that test SMB2 are left out.
//!
//! Where the suite writes a file and reads it back over SMB2, these cases send a request of the upper
//! layer and check its answer. Where the suite opens an SMB2 session to test a connection, they send
//! a short request and check its answer. Every message of the server is checked for the rules that always apply: credits,
//! flags, reserved fields, padding, lengths and order.
//!
//! A connection is "terminated" if it ends without a further message, and the server accepts the
//! next connection.
//!
//! Three things differ from the suite. It runs cases 32 and 33 only if its setting
//! CheckDataLengthRemainingDataLength is on, because Windows does not check these; here they always
//! run. In case 41 the suite's document names the 5 s of the Send Credit Grant Timer, and its code
//! waits for the 120 s of the keepalive; here the case passes with either. A case
//! of the suite that has both values to refuse and values to accept is two cases here: 14 and 14b.

mod credits;
mod idle;
mod negotiate;
mod transfer;

use crate::case::Case;

/// Returns the cases, in the order of the suite.
pub(crate) fn cases() -> impl Iterator<Item = &'static Case> {
    negotiate::CASES
        .iter()
        .chain(transfer::CASES)
        .chain(idle::CASES)
        .chain(credits::CASES)
}
