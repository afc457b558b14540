//! Errors of the operating system as errors of the provider.

use std::io;

use crate::{
    software::os_error::os_error,
    work::{ProviderError, ProviderErrorKind},
};

/// Converts an error of connecting TCP. If the listener is closed during the attempt, its system
/// resets the connection, which counts as a refusal.
pub(super) fn not_connected(error: &io::Error) -> ProviderError {
    let mut error = os_error("connecting", error);
    if error.kind == ProviderErrorKind::Reset {
        error.kind = ProviderErrorKind::Refused;
    }
    error
}

/// Returns the cure for an error that a limit of the process causes.
pub(super) fn cure(error: &io::Error) -> Option<&'static str> {
    // EMFILE has this number on every Unix.
    let is_emfile = cfg!(unix) && error.raw_os_error() == Some(24);
    is_emfile.then_some("raise RLIMIT_NOFILE (`ulimit -n`, LimitNOFILE= of a systemd unit)")
}

/// Returns whether an error of accepting concerns one connection only, which the peer has ended.
pub(super) fn is_of_one_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};

    [ConnectionAborted, ConnectionRefused, ConnectionReset].contains(&error.kind())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A peer that aborts its connections must not delay the connections of others.
    #[test]
    fn accepting_pauses_for_errors_of_this_end_only() {
        let of_one_peer = [
            io::ErrorKind::ConnectionAborted,
            io::ErrorKind::ConnectionRefused,
            io::ErrorKind::ConnectionReset,
        ];
        for kind in of_one_peer {
            let error = io::Error::from(kind);
            assert!(is_of_one_peer(&error) && cure(&error).is_none(), "{kind}");
        }
        for number in if cfg!(unix) { [24, 12] } else { [10024, 10055] } {
            let error = io::Error::from_raw_os_error(number);
            assert!(!is_of_one_peer(&error), "{error}");
        }
    }
}
