//! Why a client is turned away.

use smbdirect_transport::text;

/// The reason why a client is turned away.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// `allow` or `deny` excludes its address.
    Address,
    /// `max-connections` sessions are open.
    TooMany(u64),
    /// As many sessions are open as the memory is enough for.
    TooManyForMemory(u64),
    /// The client has `max-connections-per-client` places.
    TooManyOfClient(u64),
    /// The client is this gateway itself.
    Itself,
}

impl Refused {
    /// Returns the reason for the log.
    pub(crate) fn reason(&self) -> String {
        let are_open = |open: u64, of: &str| {
            let are = if open == 1 { "is" } else { "are" };
            format!("{}{of} {are} open", text::plural(open, "connection"))
        };
        match *self {
            Self::Address => "its address is not allowed".into(),
            Self::TooMany(open) => are_open(open, ""),
            Self::TooManyForMemory(open) => {
                format!(
                    "{}, and `memory` is not enough for more",
                    are_open(open, "")
                )
            }
            Self::TooManyOfClient(open) => are_open(open, " of its address"),
            Self::Itself => {
                "it is this gateway itself: the server that the gateway connects to leads \
                             back to it"
                    .into()
            }
        }
    }
}
