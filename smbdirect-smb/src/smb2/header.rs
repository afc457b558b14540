//! The header of every SMB2 element ([MS-SMB2] 2.2.1), and what else a message can begin with.

use std::{fmt, ops::BitOr};

use bytes::BufMut;

use super::reader::{Malformed, Reader};

/// Status of an interim answer (STATUS_PENDING): the final one follows under the same MessageId.
pub const STATUS_PENDING: u32 = 0x0000_0103;
/// Status of a READ response that has the beginning of a longer message of a pipe
/// (STATUS_BUFFER_OVERFLOW): a warning, and still a READ response.
pub const STATUS_BUFFER_OVERFLOW: u32 = 0x8000_0005;

/// What an SMB message is, by its first four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// SMB2 in the clear, signed or not ([MS-SMB2] 2.2.1).
    Smb2,
    /// Encrypted, by SMB2 TRANSFORM_HEADER (2.2.41).
    Encrypted,
    /// Compressed, by SMB2 COMPRESSION_TRANSFORM_HEADER (2.2.42).
    Compressed,
    /// SMB1, as the first request of a client that offers it.
    Smb1,
    /// None of these.
    Unknown,
}

impl Protocol {
    /// Tells what a message with these first bytes is; `Unknown` below four bytes.
    pub fn of(message: &[u8]) -> Self {
        match message.first_chunk::<4>() {
            Some(b"\xfeSMB") => Self::Smb2,
            Some(b"\xfdSMB") => Self::Encrypted,
            Some(b"\xfcSMB") => Self::Compressed,
            Some(b"\xffSMB") => Self::Smb1,
            _ => Self::Unknown,
        }
    }
}

/// Command of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Command(pub u16);

impl Command {
    /// SMB2 NEGOTIATE.
    pub const NEGOTIATE: Self = Self(0x0000);
    /// SMB2 READ.
    pub const READ: Self = Self(0x0008);
    /// SMB2 WRITE.
    pub const WRITE: Self = Self(0x0009);
    /// SMB2 CANCEL. Its MessageId is that of the request to cancel.
    pub const CANCEL: Self = Self(0x000c);

    /// The name in the specification, if the number has one.
    pub fn name(self) -> Option<&'static str> {
        NAMES.get(usize::from(self.0)).copied()
    }
}

/// Names by number.
const NAMES: [&str; 20] = [
    "NEGOTIATE",
    "SESSION_SETUP",
    "LOGOFF",
    "TREE_CONNECT",
    "TREE_DISCONNECT",
    "CREATE",
    "CLOSE",
    "FLUSH",
    "READ",
    "WRITE",
    "LOCK",
    "IOCTL",
    "CANCEL",
    "ECHO",
    "QUERY_DIRECTORY",
    "CHANGE_NOTIFY",
    "QUERY_INFO",
    "SET_INFO",
    "OPLOCK_BREAK",
    "SERVER_TO_CLIENT_NOTIFICATION",
];

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "command 0x{:04x}", self.0),
        }
    }
}

/// Flags of an element.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u32);

impl Flags {
    /// SMB2_FLAGS_SERVER_TO_REDIR: an answer.
    pub const RESPONSE: Self = Self(0x0000_0001);
    /// SMB2_FLAGS_ASYNC_COMMAND: the header has an AsyncId in place of a TreeId.
    pub const ASYNC: Self = Self(0x0000_0002);
    /// SMB2_FLAGS_RELATED_OPERATIONS: goes on with what the element before it is about.
    pub const RELATED: Self = Self(0x0000_0004);
    /// SMB2_FLAGS_SIGNED: no byte of the element may change.
    pub const SIGNED: Self = Self(0x0000_0008);

    /// Whether all of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The header of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// CreditCharge.
    pub credit_charge: u16,
    /// Status of an answer; ChannelSequence and Reserved of a request.
    pub status: u32,
    /// Command.
    pub command: Command,
    /// CreditRequest or CreditResponse.
    pub credits: u16,
    /// Flags.
    pub flags: Flags,
    /// Bytes to the next header of a compound; 0 in the last element.
    pub next_command: u32,
    /// MessageId.
    pub message_id: u64,
    /// Reserved and TreeId, or AsyncId.
    pub tree_or_async_id: u64,
    /// SessionId.
    pub session_id: u64,
    /// Signature.
    pub signature: [u8; 16],
}

impl Header {
    /// Bytes on the wire.
    pub const LENGTH: usize = 64;

    const STRUCTURE: &str = "SMB2 header";

    /// Reads the header at the front of `element`.
    ///
    /// # Errors
    /// There are fewer than 64 bytes, or they are no SMB2 header.
    pub fn decode(element: &[u8]) -> Result<Self, Malformed> {
        if Protocol::of(element) != Protocol::Smb2 {
            return Err(Malformed::ProtocolId);
        }
        let mut reader = Reader::new(Self::STRUCTURE, element, 4, Self::LENGTH)?;
        let structure_size = reader.u16();
        if usize::from(structure_size) != Self::LENGTH {
            return Err(Malformed::StructureSize {
                structure: Self::STRUCTURE,
                expected: Self::LENGTH as u16,
                found: structure_size,
            });
        }
        Ok(Self {
            credit_charge: reader.u16(),
            status: reader.u32(),
            command: Command(reader.u16()),
            credits: reader.u16(),
            flags: Flags(reader.u32()),
            next_command: reader.u32(),
            message_id: reader.u64(),
            tree_or_async_id: reader.u64(),
            session_id: reader.u64(),
            signature: reader.take(),
        })
    }

    /// Appends the 64 bytes of the header.
    ///
    /// # Panics
    /// If `out` has no room for them.
    pub fn encode(&self, out: &mut impl BufMut) {
        out.put_slice(b"\xfeSMB");
        out.put_u16_le(Self::LENGTH as u16);
        out.put_u16_le(self.credit_charge);
        out.put_u32_le(self.status);
        out.put_u16_le(self.command.0);
        out.put_u16_le(self.credits);
        out.put_u32_le(self.flags.0);
        out.put_u32_le(self.next_command);
        out.put_u64_le(self.message_id);
        out.put_u64_le(self.tree_or_async_id);
        out.put_u64_le(self.session_id);
        out.put_slice(&self.signature);
    }

    /// Whether the element is a response.
    pub const fn is_response(&self) -> bool {
        self.flags.contains(Flags::RESPONSE)
    }

    /// Whether the element is signed.
    pub const fn is_signed(&self) -> bool {
        self.flags.contains(Flags::SIGNED)
    }

    /// Whether the element is an interim answer, which another one follows ([MS-SMB2] 3.3.4.2).
    pub const fn is_interim(&self) -> bool {
        self.is_response() && self.flags.contains(Flags::ASYNC) && self.status == STATUS_PENDING
    }

    /// Whether the body of a READ or WRITE answer is an ERROR response ([MS-SMB2] 3.3.4.4): Status
    /// is an error or a warning, other than STATUS_BUFFER_OVERFLOW.
    pub const fn is_error(&self) -> bool {
        self.status >> 31 == 1 && self.status != STATUS_BUFFER_OVERFLOW
    }
}
