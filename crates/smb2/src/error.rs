//! Why an operation on a server failed.

use std::{io, time::Duration};

use smb2::types::{Command, status::NtStatus};
use smbdirect::ConnectionError;
use thiserror::Error;

use crate::kerberos::KerberosError;

/// Why an operation on a server failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The server refused a request.
    #[error("{command:?}: {status}")]
    Status {
        /// The request.
        command: Command,
        /// The server's answer.
        status: NtStatus,
    },
    /// The SMB Direct connection ended.
    #[error("the connection ended: {0}")]
    Connection(#[source] ConnectionError),
    /// The server did not answer a request within the limit that the caller has set.
    #[error("the server has not answered for {} s", .0.as_secs_f64())]
    NoAnswer(Duration),
    /// The server has granted no SMB2 credits, and has no request whose answer could bring some.
    #[error("the server leaves no SMB2 credits for another request")]
    NoCredits,
    /// The server broke the protocol.
    #[error("the server's answer to {command:?} is wrong: {fault}")]
    Answer {
        /// The request.
        command: Command,
        /// The fault of the answer.
        fault: &'static str,
    },
    /// The server or the share asks for encryption, and the session has no key for it: it is a guest's or
    /// anonymous, or the dialect is older than SMB 3.0.
    #[error("it asks for encryption, and this session has no key")]
    NoKey,
    /// The path is below a link of DFS, which leads to another place.
    #[error("it is behind a DFS link, which leads to {}", .0.as_deref().unwrap_or("a target that the server does not name"))]
    DfsLink(
        /// `//SERVER/SHARE/PATH`, if the server names it.
        Option<String>,
    ),
    /// `Display` shows several names of a directory as this name.
    #[error("several names are shown as `{0}`")]
    Ambiguous(String),
    /// The provider refused to register memory.
    #[error("memory cannot be registered for RDMA: {0}")]
    Register(String),
    /// The program's own source or sink of a file failed.
    #[error(transparent)]
    Local(io::Error),
    /// A login by Kerberos is not possible.
    #[error(transparent)]
    Kerberos(#[from] KerberosError),
    /// Another fault of the SMB2 client.
    #[error(transparent)]
    Smb2(smb2::Error),
}

impl Error {
    /// Returns the status, if the server refused the request.
    pub const fn status(&self) -> Option<NtStatus> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }
}

impl From<smb2::Error> for Error {
    fn from(error: smb2::Error) -> Self {
        match error {
            smb2::Error::Protocol { status, command } => Self::Status { command, status },
            smb2::Error::CreditStarvation { .. } => Self::NoCredits,
            error => Self::Smb2(error),
        }
    }
}
