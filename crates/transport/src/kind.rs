//! The kinds of RDMA.

use serde::Serialize;

/// A kind of RDMA, by the provider that implements it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// iWARP in software, over TCP.
    #[default]
    Iwarp,
    /// RoCEv2 in software, over UDP.
    Roce,
    /// RDMA adapters, through rdma-core.
    Verbs,
    /// Memory of this process. Both ends are in it.
    Loopback,
}
