//! The two sides and directions of a session, and the reasons why it ends.

use std::fmt;

use smbdirect::{ConnectionError, SendError, TransferFault};
use smbdirect_smb::{Refusal, ServerFault};
use smbdirect_transport as transport;

use crate::admission::refused::Refused;

/// The two sides of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Server => "server",
        })
    }
}

/// The two directions of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToServer,
    ToClient,
}

impl Direction {
    /// Returns the side that sends and the side that receives.
    pub(crate) const fn ends(self) -> (Side, Side) {
        match self {
            Self::ToServer => (Side::Client, Side::Server),
            Self::ToClient => (Side::Server, Side::Client),
        }
    }
}

/// The reason for the end of a session, or of one direction of it.
#[derive(Debug)]
pub(crate) enum Stop {
    /// This side closed its connection gracefully.
    Closed(Side),
    /// This side failed, with the reason.
    Failed(Side, String),
    /// There is no connection to the server, with the reason.
    Unreachable(String),
    /// The client sent a request that cannot be translated.
    Refused(Refusal),
    /// A signal told this process to end.
    Here,
    /// An administrator ended the session.
    Ended,
    /// The client of a proxy is not admitted.
    NotAdmitted(Refused),
    /// The code of this program has panicked.
    Fault(String),
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(side) => write!(f, "closed by the {side}"),
            Self::Failed(side, what) => write!(f, "{side}: {what}"),
            Self::Unreachable(what) => write!(f, "{}: {what}", Side::Server),
            Self::Refused(refusal) => {
                write!(f, "refused: {refusal}; to cure it: {}", refusal.cure())
            }
            Self::Here => f.write_str("closed here"),
            Self::Ended => f.write_str("ended by an administrator"),
            Self::NotAdmitted(why) => write!(f, "turned away: {}", why.reason()),
            Self::Fault(what) => write!(f, "a fault of smbdirect: {what}; please report it"),
        }
    }
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<ServerFault> for Stop {
    fn from(fault: ServerFault) -> Self {
        Self::Failed(Side::Server, fault.to_string())
    }
}

impl Stop {
    /// Returns the reason for the end of an SMB Direct connection.
    pub(crate) fn of(side: Side, error: &ConnectionError) -> Self {
        match error {
            ConnectionError::Closed | ConnectionError::ClosedHere => Self::Closed(side),
            error => Self::Failed(side, transport::explain_end(error)),
        }
    }

    /// Returns the reason after a failed send from `from` to `to`. If the message is too long, `from`
    /// is the side at fault.
    pub(crate) fn of_send(from: Side, to: Side, error: SendError) -> Self {
        match error {
            SendError::Connection(error) => Self::of(to, &error),
            SendError::TooLong { length, max } => Self::too_long(from, length, max),
            error => Self::Failed(to, error.to_string()),
        }
    }

    /// Returns the reason for a message of `from` that the other side does not accept.
    pub(crate) fn too_long(from: Side, length: usize, most: u32) -> Self {
        let cure = match from {
            Side::Client => "have the server offer less (ksmbd: `smb2 max write` = 65536)",
            Side::Server => "have the client ask for less (Linux: rsize=65536)",
        };
        let text = format!(
            "a message of {length} bytes is too long: the other side takes at most {most}; {cure}"
        );
        Self::Failed(from, text)
    }

    /// Returns the reason after a failed access to the memory of the client.
    pub(crate) fn of_transfer(fault: &TransferFault) -> Self {
        match fault {
            TransferFault::Connection(error) => Self::of(Side::Client, error),
            fault => Self::Failed(Side::Client, fault.to_string()),
        }
    }
}
