//! Opcodes, and the extended headers that each implies.

use super::DecodeError;

/// The opcode of a packet: the transport service in the top three bits, the operation in the others
/// (IBTA 9.2.1).
///
/// The known opcodes are those of the reliable connection (RC) and the unreliable datagram (UD) services, and the
/// congestion notification packet of RoCEv2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// RC: the first packet of a Send of several packets.
    SendFirst = 0x00,
    /// RC: a packet of a Send that is neither the first nor the last.
    SendMiddle = 0x01,
    /// RC: the last packet of a Send.
    SendLast = 0x02,
    /// RC: the last packet of a Send with immediate data.
    SendLastImmediate = 0x03,
    /// RC: a Send of one packet.
    SendOnly = 0x04,
    /// RC: a Send of one packet with immediate data.
    SendOnlyImmediate = 0x05,
    /// RC: the first packet of an RDMA Write of several packets.
    WriteFirst = 0x06,
    /// RC: a packet of an RDMA Write that is neither the first nor the last.
    WriteMiddle = 0x07,
    /// RC: the last packet of an RDMA Write.
    WriteLast = 0x08,
    /// RC: the last packet of an RDMA Write with immediate data.
    WriteLastImmediate = 0x09,
    /// RC: an RDMA Write of one packet.
    WriteOnly = 0x0a,
    /// RC: an RDMA Write of one packet with immediate data.
    WriteOnlyImmediate = 0x0b,
    /// RC: an RDMA Read request.
    ReadRequest = 0x0c,
    /// RC: the first packet of an RDMA Read response of several packets.
    ReadResponseFirst = 0x0d,
    /// RC: a packet of an RDMA Read response that is neither the first nor the last.
    ReadResponseMiddle = 0x0e,
    /// RC: the last packet of an RDMA Read response.
    ReadResponseLast = 0x0f,
    /// RC: an RDMA Read response of one packet.
    ReadResponseOnly = 0x10,
    /// RC: an acknowledgement, positive or negative.
    Acknowledge = 0x11,
    /// RC: the acknowledgement of an atomic operation, with the original value.
    AtomicAcknowledge = 0x12,
    /// RC: a compare and swap.
    CompareSwap = 0x13,
    /// RC: a fetch and add.
    FetchAdd = 0x14,
    /// RC: the last packet of a Send with Invalidate.
    SendLastInvalidate = 0x16,
    /// RC: a Send with Invalidate of one packet.
    SendOnlyInvalidate = 0x17,
    /// UD: a datagram.
    UdSendOnly = 0x64,
    /// UD: a datagram with immediate data.
    UdSendOnlyImmediate = 0x65,
    /// The congestion notification packet of RoCEv2 (annex A17).
    CongestionNotification = 0x81,
}

/// The extended headers of an opcode, in their order on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// No extended header.
    Plain,
    /// RETH.
    Reth,
    /// RETH and ImmDt.
    RethImmediate,
    /// AETH.
    Aeth,
    /// AETH and AtomicAckETH.
    AethAtomicAck,
    /// AtomicETH.
    Atomic,
    /// IETH.
    Ieth,
    /// ImmDt.
    Immediate,
    /// DETH.
    Deth,
    /// DETH and ImmDt.
    DethImmediate,
}

impl Opcode {
    /// Every opcode, in numerical order.
    pub const ALL: [Self; 26] = [
        Self::SendFirst,
        Self::SendMiddle,
        Self::SendLast,
        Self::SendLastImmediate,
        Self::SendOnly,
        Self::SendOnlyImmediate,
        Self::WriteFirst,
        Self::WriteMiddle,
        Self::WriteLast,
        Self::WriteLastImmediate,
        Self::WriteOnly,
        Self::WriteOnlyImmediate,
        Self::ReadRequest,
        Self::ReadResponseFirst,
        Self::ReadResponseMiddle,
        Self::ReadResponseLast,
        Self::ReadResponseOnly,
        Self::Acknowledge,
        Self::AtomicAcknowledge,
        Self::CompareSwap,
        Self::FetchAdd,
        Self::SendLastInvalidate,
        Self::SendOnlyInvalidate,
        Self::UdSendOnly,
        Self::UdSendOnlyImmediate,
        Self::CongestionNotification,
    ];

    /// Decodes the byte of the BTH.
    ///
    /// # Errors
    /// Returns an error if the opcode is not one of [`ALL`](Self::ALL).
    pub const fn decode(byte: u8) -> Result<Self, DecodeError> {
        // Up to a gap in their numbers, the number of an opcode of RC is its index in `ALL`.
        if byte <= Self::FetchAdd as u8 {
            return Ok(Self::ALL[byte as usize]);
        }
        //= ROCE-9.2.1-01
        Ok(match byte {
            0x16 => Self::SendLastInvalidate,
            0x17 => Self::SendOnlyInvalidate,
            0x64 => Self::UdSendOnly,
            0x65 => Self::UdSendOnlyImmediate,
            0x81 => Self::CongestionNotification,
            _ => return Err(DecodeError::Opcode(byte)),
        })
    }

    /// Returns the extended headers that follow the BTH.
    pub const fn layout(self) -> Layout {
        match self {
            Self::WriteFirst | Self::WriteOnly | Self::ReadRequest => Layout::Reth,
            Self::WriteOnlyImmediate => Layout::RethImmediate,
            Self::ReadResponseFirst
            | Self::ReadResponseLast
            | Self::ReadResponseOnly
            | Self::Acknowledge => Layout::Aeth,
            Self::AtomicAcknowledge => Layout::AethAtomicAck,
            Self::CompareSwap | Self::FetchAdd => Layout::Atomic,
            Self::SendLastInvalidate | Self::SendOnlyInvalidate => Layout::Ieth,
            Self::SendLastImmediate | Self::SendOnlyImmediate | Self::WriteLastImmediate => {
                Layout::Immediate
            }
            Self::UdSendOnly => Layout::Deth,
            Self::UdSendOnlyImmediate => Layout::DethImmediate,
            Self::SendFirst
            | Self::SendMiddle
            | Self::SendLast
            | Self::SendOnly
            | Self::WriteMiddle
            | Self::WriteLast
            | Self::ReadResponseMiddle
            | Self::CongestionNotification => Layout::Plain,
        }
    }

    /// Returns whether the packet travels from the responder to the requester.
    pub const fn is_response(self) -> bool {
        matches!(
            self,
            Self::ReadResponseFirst
                | Self::ReadResponseMiddle
                | Self::ReadResponseLast
                | Self::ReadResponseOnly
                | Self::Acknowledge
                | Self::AtomicAcknowledge
        )
    }

    /// Returns whether the packet is the last of its message, or its only one.
    pub const fn ends_message(self) -> bool {
        !matches!(
            self,
            Self::SendFirst
                | Self::SendMiddle
                | Self::WriteFirst
                | Self::WriteMiddle
                | Self::ReadResponseFirst
                | Self::ReadResponseMiddle
        )
    }
}

impl Layout {
    /// Returns the length of the extended headers, in bytes.
    pub const fn length(self) -> usize {
        match self {
            Self::Plain => 0,
            Self::Aeth | Self::Ieth | Self::Immediate => 4,
            Self::Deth => 8,
            Self::AethAtomicAck | Self::DethImmediate => 12,
            Self::Reth => 16,
            Self::RethImmediate => 20,
            Self::Atomic => 28,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= ROCE-9.2.1-01 test
    #[test]
    fn exactly_the_known_opcodes_are_decoded() {
        for byte in 0..=u8::MAX {
            let known = Opcode::ALL.into_iter().find(|opcode| *opcode as u8 == byte);
            assert_eq!(Opcode::decode(byte), known.ok_or(DecodeError::Opcode(byte)));
        }
    }
}
