//! The settings of an examination, and the names of its stages.

use std::{fmt, path::PathBuf, sync::Arc};

use smbdirect::rdma::{iwarp::Tap, roce::DatagramTap};
use smbdirect_smb2::Login;

/// The settings of an examination.
pub struct Settings {
    /// The directory below which the files of this machine are read: `/` for the running system.
    pub root: PathBuf,
    /// The server to probe. Without one, only this machine is examined.
    pub target: Option<Target>,
}

/// A server to probe.
pub struct Target {
    /// The name or the address of the server.
    pub host: String,
    /// A port to try in addition to those that clients use.
    pub port: Option<u16>,
    /// The share that the account uses.
    pub share: Option<String>,
    /// What to log in with. Without it, nothing is asked that needs a session.
    pub login: Option<Login>,
    /// Whether rates are measured, which needs the share and the account.
    pub measure: Option<Measure>,
    /// Observes the bytes of software iWARP.
    pub iwarp_tap: Option<Arc<dyn Tap>>,
    /// Observes the datagrams of software RoCE.
    pub roce_tap: Option<Arc<dyn DatagramTap>>,
}

/// What the rates are measured with.
#[derive(Clone, Debug)]
pub struct Measure {
    /// Bytes of the scratch file, or of the part of the file that is read.
    pub size: u64,
    /// The folder of the share for the scratch file, with `/` between its parts; empty for the share itself.
    pub folder: String,
    /// A file of the share to read. Then nothing is written.
    pub read_only: Option<String>,
}

/// A stage of the examination. Stages that do not disturb each other run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stage {
    /// The files of this machine are read.
    Machine,
    /// The kernel's SMB server of this machine is tried.
    Ksmbd,
    /// The name of the server is resolved.
    Name,
    /// The port of SMB over TCP is tried.
    Tcp,
    /// SMB Direct is tried.
    Attempt {
        /// The protocol of RDMA.
        fabric: &'static str,
        /// The port.
        port: u16,
    },
    /// The account is used.
    Session,
    /// Rates are measured.
    Measurement {
        /// The transport, or `path`.
        transport: &'static str,
    },
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine => f.write_str("this machine"),
            Self::Ksmbd => f.write_str("ksmbd of this machine"),
            Self::Name => f.write_str("name"),
            Self::Tcp => f.write_str("TCP on port 445"),
            Self::Attempt { fabric, port } => write!(f, "{fabric} on port {port}"),
            Self::Session => f.write_str("session"),
            Self::Measurement { transport } => write!(f, "speed: {transport}"),
        }
    }
}
