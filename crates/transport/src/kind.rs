//! The kinds of RDMA.

use serde::{Deserialize, Serialize};

/// A kind of RDMA, by the provider that implements it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// iWARP in software, over TCP.
    #[default]
    Iwarp,
    /// RoCEv2 in software, over UDP.
    Roce,
    /// RDMA adapters, through rdma-core.
    Verbs,
    /// Memory of this process. Both ends are in the same process.
    Loopback,
}

impl Kind {
    /// Returns the name, as the serialisation and the command's `--transport` have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Iwarp => "iwarp",
            Self::Roce => "roce",
            Self::Verbs => "verbs",
            Self::Loopback => "loopback",
        }
    }
}
