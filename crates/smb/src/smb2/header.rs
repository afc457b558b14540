//! The header of every SMB2 element ([MS-SMB2] 2.2.1), and the other protocols of an SMB connection.

use std::{fmt, ops::BitOr};

use bytes::BufMut;

use super::reader::{HEADER_LENGTH, Malformed, Reader};

/// STATUS_PENDING: the Status of an interim answer. The final answer has the same MessageId.
pub const STATUS_PENDING: u32 = 0x0000_0103;
/// STATUS_BUFFER_OVERFLOW: the Status of a READ response that has only the beginning of a longer pipe
/// message. It is a warning, and the body is a READ response.
pub const STATUS_BUFFER_OVERFLOW: u32 = 0x8000_0005;

/// The kind of an SMB message, which its first four bytes determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Unencrypted SMB2, signed or unsigned ([MS-SMB2] 2.2.1).
    Smb2,
    /// Encrypted SMB2, with an SMB2 TRANSFORM_HEADER (2.2.41).
    Encrypted,
    /// Compressed SMB2, with an SMB2 COMPRESSION_TRANSFORM_HEADER (2.2.42).
    Compressed,
    /// SMB1: the first request of a client that also offers SMB1.
    Smb1,
    /// None of these.
    Unknown,
}

impl Protocol {
    /// Returns the kind of a message with these first bytes; `Unknown` below four bytes.
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
    /// SMB2 SESSION_SETUP.
    pub const SESSION_SETUP: Self = Self(0x0001);
    /// SMB2 READ.
    pub const READ: Self = Self(0x0008);
    /// SMB2 WRITE.
    pub const WRITE: Self = Self(0x0009);
    /// SMB2 CANCEL. Its MessageId is the MessageId of the request to cancel.
    pub const CANCEL: Self = Self(0x000c);
    /// SMB2 CHANGE_NOTIFY.
    pub const CHANGE_NOTIFY: Self = Self(0x000f);
    /// SMB2 ECHO.
    pub const ECHO: Self = Self(0x000d);

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
    /// SMB2_FLAGS_SERVER_TO_REDIR: the element is an answer.
    pub const RESPONSE: Self = Self(0x0000_0001);
    /// SMB2_FLAGS_ASYNC_COMMAND: the header has an AsyncId in place of a TreeId.
    pub const ASYNC: Self = Self(0x0000_0002);
    /// SMB2_FLAGS_RELATED_OPERATIONS: the element uses the session, tree and file of the previous one.
    pub const RELATED: Self = Self(0x0000_0004);
    /// SMB2_FLAGS_SIGNED: the element is signed, so none of its bytes may change.
    pub const SIGNED: Self = Self(0x0000_0008);

    /// Returns whether all flags of `other` are set.
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
    /// NextCommand: the number of bytes to the next header of a compound; 0 in the last element.
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
    /// Length in bytes of the encoded header.
    pub const LENGTH: usize = HEADER_LENGTH;

    const STRUCTURE: &str = "SMB2 header";

    /// Returns the header of a request outside of a session, which asks for one credit.
    pub const fn request(command: Command, message_id: u64) -> Self {
        Self {
            credit_charge: 0,
            status: 0,
            command,
            credits: 1,
            flags: Flags(0),
            next_command: 0,
            message_id,
            tree_or_async_id: 0,
            session_id: 0,
            signature: [0; 16],
        }
    }

    /// Decodes the header at the front of `element`.
    ///
    /// # Errors
    /// There are fewer than 64 bytes, or they are not an SMB2 header.
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

    /// Reads Command and Flags from the first 20 bytes of a message. Returns `None` if there are fewer, or
    /// if the message is not SMB2.
    pub fn command_and_flags(message: &[u8]) -> Option<(Command, Flags)> {
        let start: &[u8; 20] = message.first_chunk()?;
        if Protocol::of(start) != Protocol::Smb2 {
            return None;
        }
        let mut reader = Reader::new(Self::STRUCTURE, start, 12, start.len()).ok()?;
        let command = Command(reader.u16());
        let _credits = reader.u16();
        Some((command, Flags(reader.u32())))
    }

    /// Appends the 64 bytes of the header.
    ///
    /// # Panics
    /// Panics if `out` has no room for them.
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

    /// Returns whether the element is a response.
    pub const fn is_response(&self) -> bool {
        self.flags.contains(Flags::RESPONSE)
    }

    /// Returns whether the element is signed.
    pub const fn is_signed(&self) -> bool {
        self.flags.contains(Flags::SIGNED)
    }

    /// Returns whether an answer is an interim answer, after which the final answer follows ([MS-SMB2]
    /// 3.2.5.1.5). Its flag SMB2_FLAGS_ASYNC_COMMAND is not required: no request ends with STATUS_PENDING, so the
    /// status alone decides it with certainty, and the connection of a server that omits the flag continues.
    pub const fn is_interim(&self) -> bool {
        self.status == STATUS_PENDING
    }

    /// Returns whether the body of an answer to READ or WRITE is an ERROR response ([MS-SMB2] 3.3.4.4): the
    /// Status is an error, or a warning other than STATUS_BUFFER_OVERFLOW.
    pub const fn is_error(&self) -> bool {
        self.status >> 31 == 1 && self.status != STATUS_BUFFER_OVERFLOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header in which every field differs, in the order of [MS-SMB2] 2.2.1.2.
    const BYTES: [u8; 64] = [
        0xfe, b'S', b'M', b'B', // ProtocolId
        0x40, 0x00, // StructureSize
        0x01, 0x02, // CreditCharge
        0x05, 0x00, 0x00, 0x80, // Status
        0x08, 0x00, // Command
        0x03, 0x04, // CreditResponse
        0x07, 0x00, 0x00, 0x10, // Flags
        0x10, 0x11, 0x12, 0x13, // NextCommand
        0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, // MessageId
        0x30, 0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, // AsyncId
        0x40, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, // SessionId
        0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, // Signature
        0x58, 0x59, 0x5a, 0x5b, 0x5c, 0x5d, 0x5e, 0x5f,
    ];

    const HEADER: Header = Header {
        credit_charge: 0x0201,
        status: 0x8000_0005,
        command: Command::READ,
        credits: 0x0403,
        flags: Flags(0x1000_0007),
        next_command: 0x1312_1110,
        message_id: 0x2726_2524_2322_2120,
        tree_or_async_id: 0x3736_3534_3332_3130,
        session_id: 0x4746_4544_4342_4140,
        signature: [
            0x50, 0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5a, 0x5b, 0x5c, 0x5d,
            0x5e, 0x5f,
        ],
    };

    #[test]
    fn header_is_the_same_in_both_directions() {
        assert_eq!(Header::decode(&BYTES), Ok(HEADER));
        assert_eq!(Header::decode(&[&BYTES[..], b"body"].concat()), Ok(HEADER));
        let mut bytes = Vec::new();
        HEADER.encode(&mut bytes);
        assert_eq!(bytes, BYTES);
    }

    #[test]
    fn every_truncation_is_too_short() {
        for length in 0..64 {
            let expected = match length {
                0..4 => Malformed::ProtocolId,
                _ => Malformed::TooShort {
                    structure: "SMB2 header",
                    minimum: 64,
                    length,
                },
            };
            assert_eq!(Header::decode(&BYTES[..length]), Err(expected));
        }
    }

    #[test]
    fn structure_size_is_64() {
        for found in [0, 63, 65, 0x4000] {
            let mut bytes = BYTES;
            bytes[4..6].copy_from_slice(&u16::to_le_bytes(found));
            let expected = Malformed::StructureSize {
                structure: "SMB2 header",
                expected: 64,
                found,
            };
            assert_eq!(Header::decode(&bytes), Err(expected));
        }
    }

    #[test]
    fn command_and_flags_need_20_bytes() {
        let expected = Some((HEADER.command, HEADER.flags));
        assert_eq!(Header::command_and_flags(&BYTES), expected);
        assert_eq!(Header::command_and_flags(&BYTES[..20]), expected);
        assert_eq!(Header::command_and_flags(&BYTES[..19]), None);
        assert_eq!(Header::command_and_flags(&BYTES[4..]), None);
    }

    #[test]
    fn protocols_are_told_by_four_bytes() {
        for (bytes, protocol) in [
            (&b"\xfeSMB"[..], Protocol::Smb2),
            (b"\xfdSMBx", Protocol::Encrypted),
            (b"\xfcSMB", Protocol::Compressed),
            (b"\xffSMB", Protocol::Smb1),
            (b"\xfeSM", Protocol::Unknown),
            (b"", Protocol::Unknown),
            (b"\xfbSMB", Protocol::Unknown),
            (b"\xfeSMb", Protocol::Unknown),
        ] {
            assert_eq!(Protocol::of(bytes), protocol);
        }
        let mut bytes = BYTES;
        bytes[0] = 0xfd;
        assert_eq!(Header::decode(&bytes), Err(Malformed::ProtocolId));
    }

    #[test]
    fn answers_with_status_pending_are_interim_with_and_without_the_async_flag() {
        for (flags, status, interim) in [
            (3, STATUS_PENDING, true),
            (1, STATUS_PENDING, true),
            (2, STATUS_PENDING, true),
            (3, 0, false),
            (0xf, STATUS_PENDING, true),
        ] {
            let flags = Flags(flags);
            let header = Header {
                flags,
                status,
                ..HEADER
            };
            assert_eq!(header.is_interim(), interim, "{flags:?} {status:x}");
        }
    }

    #[test]
    fn errors_and_warnings_but_for_buffer_overflow_are_errors() {
        for (status, error) in [
            (0, false),
            (STATUS_PENDING, false),
            (0x4000_0000, false),
            (STATUS_BUFFER_OVERFLOW, false),
            (0x8000_0006, true),
            (0xc000_0005, true),
            (0xffff_ffff, true),
        ] {
            assert_eq!(Header { status, ..HEADER }.is_error(), error, "{status:x}");
        }
    }

    #[test]
    fn flags_are_their_bits() {
        let flags = Flags::RESPONSE | Flags::SIGNED;
        assert_eq!(flags, Flags(9));
        assert!(flags.contains(Flags::SIGNED) && !flags.contains(Flags(3)));
        let header = Header { flags, ..HEADER };
        assert!(header.is_response() && header.is_signed());
        assert!(
            !Header {
                flags: Flags(6),
                ..HEADER
            }
            .is_signed()
        );
    }

    #[test]
    fn commands_have_their_names() {
        for (command, name) in [
            (Command::NEGOTIATE, "NEGOTIATE"),
            (Command::READ, "READ"),
            (Command::WRITE, "WRITE"),
            (Command::CANCEL, "CANCEL"),
            (Command(0x0012), "OPLOCK_BREAK"),
            (Command(0x0013), "SERVER_TO_CLIENT_NOTIFICATION"),
            (Command(0x0014), "command 0x0014"),
            (Command(0xffff), "command 0xffff"),
        ] {
            assert_eq!(command.to_string(), name);
        }
        assert_eq!(Command(0x0014).name(), None);
    }
}
