//! The kind of a failure, which --json prints for programs next to the message for people.

use std::{fmt, io};

use anyhow::{Error, Result};
use serde::Serialize;
use smbdirect_transport::{self as transport, Cause, ResolveError};
use thiserror::Error as ThisError;

use crate::signals::Interruption;

/// The kind of a failure. docs/events.md explains each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// The command line or the settings file asks for something impossible.
    Usage,
    /// A signal ended the command before it had done its work.
    Interrupted,
    /// A name has no address.
    Name,
    /// There is no connection.
    Connect,
    /// The command cannot listen.
    Listen,
    /// A connection ended before its time.
    Connection,
    /// The server refuses the login, or there are no credentials.
    Login,
    /// The server refuses the share.
    Share,
    /// The server refuses an operation on a file.
    Path,
    /// A file of this machine cannot be read or written.
    File,
    /// Every other failure.
    Other,
}

/// The command line asks for something impossible: exit status 2.
#[derive(Debug, ThisError)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

/// Returns a usage error, for `?`.
pub(crate) fn usage(what: impl Into<String>) -> Error {
    UsageError(what.into()).into()
}

/// An error with its kind. It shows the error as it is.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: Kind,
    pub(crate) error: Error,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.error)
    }
}

impl std::error::Error for Failure {}

/// Gives an error its kind.
pub(crate) fn of_kind(kind: Kind, error: impl Into<Error>) -> Error {
    let error = error.into();
    Failure { kind, error }.into()
}

/// Gives the error of a result its kind.
pub(crate) trait OfKind<T> {
    /// # Errors
    /// The error of the result, with the kind.
    fn of_kind(self, kind: Kind) -> Result<T>;
}

impl<T, E: Into<Error>> OfKind<T> for Result<T, E> {
    fn of_kind(self, kind: Kind) -> Result<T> {
        self.map_err(|error| of_kind(kind, error))
    }
}

/// Returns the kind of an error.
pub(crate) fn kind(error: &Error) -> Kind {
    if error.is::<UsageError>() {
        return Kind::Usage;
    }
    if error.is::<Interruption>() {
        return Kind::Interrupted;
    }
    let failure: Option<&Failure> = error.downcast_ref();
    let inner = failure.map_or(error, |failure| &failure.error);
    let of_name = |error: &transport::Error| error.cause() == Cause::Name;
    if inner.is::<ResolveError>() || inner.downcast_ref().is_some_and(of_name) {
        return Kind::Name;
    }
    if let Some(failure) = failure {
        return failure.kind;
    }
    let of_system = error.chain().find_map(|cause| cause.downcast_ref());
    of_system.map_or(Kind::Other, |error: &io::Error| match error.kind() {
        io::ErrorKind::ConnectionRefused
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::TimedOut => Kind::Connect,
        io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable => Kind::Listen,
        io::ErrorKind::NotFound
        | io::ErrorKind::PermissionDenied
        | io::ErrorKind::AlreadyExists
        | io::ErrorKind::StorageFull
        | io::ErrorKind::QuotaExceeded
        | io::ErrorKind::ReadOnlyFilesystem
        | io::ErrorKind::IsADirectory
        | io::ErrorKind::NotADirectory => Kind::File,
        // A pipe, memory or a socket can be the cause of others.
        _ => Kind::Other,
    })
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn the_kind_does_not_change_the_text() {
        let error = anyhow!("inside").context("outside");
        let text = format!("{error:#}");
        let error = of_kind(Kind::Share, error);
        assert_eq!(format!("{error:#}"), text);
        assert_eq!(kind(&error), Kind::Share);
    }

    #[test]
    fn kinds_follow_from_the_cause() {
        let because = |kind| {
            let failed = Err::<(), _>(io::Error::from(kind));
            failed.context("x cannot be read").unwrap_err()
        };
        for (error, expected) in [
            (usage("no such option"), Kind::Usage),
            (Interruption.into(), Kind::Interrupted),
            (because(io::ErrorKind::StorageFull), Kind::File),
            (because(io::ErrorKind::NotFound), Kind::File),
            (because(io::ErrorKind::OutOfMemory), Kind::Other),
            (because(io::ErrorKind::BrokenPipe), Kind::Other),
            (because(io::ErrorKind::TimedOut), Kind::Connect),
            (because(io::ErrorKind::AddrInUse), Kind::Listen),
            (anyhow!("something"), Kind::Other),
        ] {
            assert_eq!(kind(&error), expected, "{error:#}");
        }
    }
}
