//! The names of where time goes.

use serde::Serialize;
pub use smbdirect_smb::slow::Cause;

/// Where an instant of a connection went. Each instant has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Nothing was outstanding for a second or more.
    Idle,
    /// The client connected and logged in.
    Setup,
    /// Nothing was outstanding: the client did not ask.
    Think,
    /// The client had too few SMB2 credits for another request.
    Smb2Credits,
    /// An end had no SMB Direct send credit to spare.
    SendCredits,
    /// A request was on the wire.
    Request,
    /// RDMA Writes or Reads were moving data.
    Data,
    /// A response was on the wire.
    Response,
    /// Everything outstanding was in the server.
    Server,
    /// Everything outstanding was on its way, as far as the round trip of the path accounts for it.
    Path,
    /// Packets had been lost and were not replaced yet.
    Retransmission,
    /// The sender waited for an acknowledgement that its peer delayed.
    DelayedAcknowledgement,
    /// The sender waited for the window of its peer.
    Window,
    /// The server had announced that a request waits.
    Announced,
    /// A sender paused in the middle of a message, without a reason on the wire.
    Pause,
    /// The capture lacks packets, so it is unknown what happened.
    Unseen,
}

impl Phase {
    /// All phases, in the order in which they are shown.
    pub const ALL: [Self; 16] = [
        Self::Idle,
        Self::Setup,
        Self::Think,
        Self::Smb2Credits,
        Self::SendCredits,
        Self::Request,
        Self::Data,
        Self::Response,
        Self::Server,
        Self::Path,
        Self::Retransmission,
        Self::DelayedAcknowledgement,
        Self::Window,
        Self::Announced,
        Self::Pause,
        Self::Unseen,
    ];

    /// Returns what happens then, in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Idle => "idle for a second or more",
            Self::Setup => "connecting and logging in",
            Self::Think => "the client asks for nothing",
            Self::Smb2Credits => "waiting for SMB2 credits",
            Self::SendCredits => "waiting for SMB Direct send credits",
            Self::Request => "request on the wire",
            Self::Data => "data on the wire by RDMA",
            Self::Response => "response on the wire",
            Self::Server => "in the server",
            Self::Path => "delay of the path",
            Self::Retransmission => "lost packets",
            Self::DelayedAcknowledgement => "delayed acknowledgements",
            Self::Window => "window of the receiver",
            Self::Announced => "a wait that the server has announced",
            Self::Pause => "pauses of a sender",
            Self::Unseen => "not seen: the capture lacks packets",
        }
    }
}

/// What limits a connection when nothing is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Bytes move most of the time: the path, or the processors that fill it.
    Wire,
    /// The server works most of the time.
    Server,
    /// The connection was idle.
    Client,
}
