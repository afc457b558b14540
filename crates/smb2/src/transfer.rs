//! Decides how READ and WRITE move their data: by RDMA, or in messages and for which reason.

use std::fmt;

use smb2::types::Dialect;
use smbdirect_smb::smb2::Channel;

/// How READ and WRITE move their data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// The server writes to and reads from registered memory.
    Rdma(Channel),
    /// The data is in the SMB2 messages.
    Messages(Reason),
}

/// Why data moves in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The dialect has no RDMA channel: it is older than SMB 3.0.
    Dialect(Dialect),
    /// The server requires signed requests. The data that RDMA moves has no signature.
    Signing,
    /// The session or the share encrypts. The data that RDMA moves would not be encrypted.
    Encryption,
    /// The caller asked for messages.
    Asked,
    /// The server refused a request with a channel, or ignored the channel.
    Refused,
    /// The data is shorter than [`MIN_RDMA_BYTES`](crate::Transfer::MIN_RDMA_BYTES).
    Small,
}

/// The requirements of the server and the session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) dialect: Dialect,
    pub(crate) signing_required: bool,
    pub(crate) encrypts: bool,
    pub(crate) asked_for_messages: bool,
}

impl Transfer {
    /// Shortest data that moves by RDMA, in bytes. Linux' client has the same threshold: for less, the
    /// registration costs more than the copy.
    pub const MIN_RDMA_BYTES: usize = 4096;

    /// Returns how data moves under `terms` ([MS-SMB2] 3.2.4.6, 3.2.4.7).
    pub(crate) fn decide(terms: Terms) -> Self {
        if terms.asked_for_messages {
            return Self::Messages(Reason::Asked);
        }
        if terms.encrypts {
            return Self::Messages(Reason::Encryption);
        }
        if terms.signing_required {
            return Self::Messages(Reason::Signing);
        }
        match terms.dialect {
            Dialect::Smb2_0_2 | Dialect::Smb2_1 => Self::Messages(Reason::Dialect(terms.dialect)),
            Dialect::Smb3_0 => Self::Rdma(Channel::RdmaV1),
            Dialect::Smb3_0_2 | Dialect::Smb3_1_1 => Self::Rdma(Channel::RdmaV1Invalidate),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dialect(dialect) => write!(f, "the server speaks {dialect}"),
            Self::Signing => f.write_str("the server requires signing"),
            Self::Encryption => f.write_str("the session encrypts"),
            Self::Asked => f.write_str("that was asked for"),
            Self::Refused => f.write_str("the server does not take RDMA"),
            Self::Small => f.write_str("the data is short"),
        }
    }
}

/// Bytes of a message around the data of a READ or WRITE, rounded up: the transform header of encryption
/// (52), the header (64) and the fixed part (48).
const MESSAGE_OVERHEAD: u32 = 256;
/// One SMB2 credit pays for this many bytes.
pub(crate) const BYTES_PER_CREDIT: usize = 65_536;

/// Returns the most data bytes in a message that both ends reassemble.
pub(crate) fn message_bytes(fragmented_send: u32, fragmented_receive: u32) -> usize {
    let room = fragmented_send.min(fragmented_receive);
    let room = room.saturating_sub(MESSAGE_OVERHEAD) as usize;
    // Whole credits and pages, where they fit.
    [BYTES_PER_CREDIT, 4096, 1]
        .into_iter()
        .map(|unit| room - room % unit)
        .find(|&bytes| bytes > 0)
        .unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rdma_is_used_only_where_no_key_is_needed() {
        let open = Terms {
            dialect: Dialect::Smb3_1_1,
            signing_required: false,
            encrypts: false,
            asked_for_messages: false,
        };
        let with = |change: fn(&mut Terms)| {
            let mut terms = open;
            change(&mut terms);
            Transfer::decide(terms)
        };
        assert_eq!(with(|_| ()), Transfer::Rdma(Channel::RdmaV1Invalidate));
        let v1 = with(|terms| terms.dialect = Dialect::Smb3_0);
        assert_eq!(v1, Transfer::Rdma(Channel::RdmaV1));
        let v1 = with(|terms| terms.dialect = Dialect::Smb2_1);
        assert_eq!(v1, Transfer::Messages(Reason::Dialect(Dialect::Smb2_1)));
        let signed = with(|terms| terms.signing_required = true);
        assert_eq!(signed, Transfer::Messages(Reason::Signing));
        let sealed = with(|terms| terms.encrypts = true);
        assert_eq!(sealed, Transfer::Messages(Reason::Encryption));
        let asked = with(|terms| terms.asked_for_messages = true);
        assert_eq!(asked, Transfer::Messages(Reason::Asked));
    }

    #[test]
    fn messages_fit_what_both_ends_reassemble() {
        assert_eq!(message_bytes(173_910, 1 << 20), 131_072, "ksmbd");
        assert_eq!(message_bytes(131_072, 131_072), 65_536, "the least");
        assert_eq!(message_bytes(1 << 20, 1 << 20), 15 * 65_536);
        assert_eq!(message_bytes(9000, 9000), 8192);
        assert_eq!(message_bytes(300, 300), 44);
        assert_eq!(message_bytes(0, 0), 1);
    }
}
