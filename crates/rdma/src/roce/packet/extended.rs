//! The extended transport headers.
//!
//! ```text
//! RETH (16):        virtual address (8) | R_Key (4) | DMA length (4)
//! AETH (4):         syndrome (1) | MSN (3)
//! IETH (4):         R_Key (4)
//! ImmDt (4):        immediate data (4)
//! DETH (8):         Q_Key (4) | reserved (1) | source QP (3)
//! AtomicETH (28):   virtual address (8) | R_Key (4) | swap or add data (8) | compare data (8)
//! AtomicAckETH (8): original data (8)
//! ```

use super::{DecodeError, Layout};

/// The extended headers of a packet, which the [layout](Layout) of its opcode determines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extended {
    /// No extended header.
    Plain,
    /// The address of an RDMA Write or the request of an RDMA Read.
    Reth(Reth),
    /// The address of an RDMA Write, and immediate data.
    RethImmediate(Reth, ImmDt),
    /// An acknowledgement.
    Aeth(Aeth),
    /// The acknowledgement of an atomic operation.
    AethAtomicAck(Aeth, AtomicAckEth),
    /// An atomic operation.
    Atomic(AtomicEth),
    /// The R_Key to invalidate.
    Ieth(Ieth),
    /// Immediate data.
    Immediate(ImmDt),
    /// The sender of a datagram.
    Deth(Deth),
    /// The sender of a datagram, and immediate data.
    DethImmediate(Deth, ImmDt),
}

/// The RDMA Extended Transport Header (IBTA 9.3.3): memory of the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// The address of the first byte.
    pub virtual_address: u64,
    /// The R_Key, which names the memory.
    pub r_key: u32,
    /// DMA length: the number of bytes of the whole operation.
    pub length: u32,
}

/// The ACK Extended Transport Header (IBTA 9.3.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// The kind of acknowledgement.
    pub syndrome: Syndrome,
    /// MSN: the number of messages that the responder has completed, 24 bits.
    pub message_sequence_number: u32,
}

/// The syndrome of an AETH (IBTA 9.7.5.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// A positive acknowledgement.
    Ack {
        /// The code for the number of receives, 5 bits. [`Syndrome::NO_CREDIT`] means that the
        /// responder does not report it.
        credit: u8,
    },
    /// Receiver not ready: no receive was posted.
    RnrNak {
        /// The code of the time to wait, 5 bits.
        timer: u8,
    },
    /// A negative acknowledgement.
    Nak(NakCode),
}

/// The codes of negative acknowledgements (IBTA 9.7.5.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NakCode {
    /// A packet is missing before this one.
    PsnSequenceError,
    /// The request is not permitted at this place, or too long.
    InvalidRequest,
    /// The R_Key, the bounds or the rights of an RDMA operation are wrong.
    RemoteAccessError,
    /// The responder cannot complete the request.
    RemoteOperationalError,
    /// The request is not permitted on a reliable datagram.
    InvalidRdRequest,
    /// A code without a meaning, from 5 to 31.
    Reserved(u8),
}

impl NakCode {
    /// Returns the code with this number, of which the low five bits are used.
    pub const fn from_code(code: u8) -> Self {
        match code & SYNDROME_VALUE_MASK {
            0 => Self::PsnSequenceError,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccessError,
            3 => Self::RemoteOperationalError,
            4 => Self::InvalidRdRequest,
            reserved => Self::Reserved(reserved),
        }
    }

    /// Returns the number on the wire, from 0 to 31.
    pub const fn code(self) -> u8 {
        match self {
            Self::PsnSequenceError => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccessError => 2,
            Self::RemoteOperationalError => 3,
            Self::InvalidRdRequest => 4,
            Self::Reserved(code) => code & SYNDROME_VALUE_MASK,
        }
    }
}

/// The Invalidate Extended Transport Header (IBTA 9.3.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ieth {
    /// The R_Key that the responder invalidates.
    pub r_key: u32,
}

/// The Immediate Data Extended Transport Header (IBTA 9.3.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImmDt {
    /// The four bytes for the receiver.
    pub data: [u8; 4],
}

/// The Datagram Extended Transport Header (IBTA 9.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// The queue key, which the receiver compares with its own.
    pub q_key: u32,
    /// The number of the sending queue pair, 24 bits.
    pub source_qp: u32,
}

/// The Atomic Extended Transport Header (IBTA 9.3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// The address of the eight bytes.
    pub virtual_address: u64,
    /// The R_Key, which names the memory.
    pub r_key: u32,
    /// The value to store or to add.
    pub swap_or_add: u64,
    /// The value to compare with.
    pub compare: u64,
}

/// The Atomic ACK Extended Transport Header (IBTA 9.5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicAckEth {
    /// The value before the operation.
    pub original: u64,
}

const SYNDROME_KIND_MASK: u8 = 0xe0;
const SYNDROME_VALUE_MASK: u8 = 0x1f;
const SYNDROME_ACK: u8 = 0x00;
const SYNDROME_RNR_NAK: u8 = 0x20;
const SYNDROME_NAK: u8 = 0x60;

impl Extended {
    /// The greatest length of the extended headers of a packet, in bytes.
    pub const MAX_LENGTH: usize = AtomicEth::LENGTH;

    /// Returns the layout.
    pub const fn layout(&self) -> Layout {
        match self {
            Self::Plain => Layout::Plain,
            Self::Reth(_) => Layout::Reth,
            Self::RethImmediate(..) => Layout::RethImmediate,
            Self::Aeth(_) => Layout::Aeth,
            Self::AethAtomicAck(..) => Layout::AethAtomicAck,
            Self::Atomic(_) => Layout::Atomic,
            Self::Ieth(_) => Layout::Ieth,
            Self::Immediate(_) => Layout::Immediate,
            Self::Deth(_) => Layout::Deth,
            Self::DethImmediate(..) => Layout::DethImmediate,
        }
    }

    /// Returns the RETH, if there is one.
    pub const fn reth(&self) -> Option<Reth> {
        match *self {
            Self::Reth(reth) | Self::RethImmediate(reth, _) => Some(reth),
            _ => None,
        }
    }

    /// Returns the AETH, if there is one.
    pub const fn aeth(&self) -> Option<Aeth> {
        match *self {
            Self::Aeth(aeth) | Self::AethAtomicAck(aeth, _) => Some(aeth),
            _ => None,
        }
    }

    /// Returns the IETH, if there is one.
    pub const fn ieth(&self) -> Option<Ieth> {
        match *self {
            Self::Ieth(ieth) => Some(ieth),
            _ => None,
        }
    }

    /// Returns the DETH, if there is one.
    pub const fn deth(&self) -> Option<Deth> {
        match *self {
            Self::Deth(deth) | Self::DethImmediate(deth, _) => Some(deth),
            _ => None,
        }
    }

    /// Returns the immediate data, if there is any.
    pub const fn immediate(&self) -> Option<ImmDt> {
        match *self {
            Self::Immediate(immediate)
            | Self::RethImmediate(_, immediate)
            | Self::DethImmediate(_, immediate) => Some(immediate),
            _ => None,
        }
    }

    /// Decodes the headers of `layout` from exactly their bytes.
    pub(super) fn decode(layout: Layout, bytes: &[u8]) -> Result<Self, DecodeError> {
        let immediate = |at| ImmDt {
            data: chunk(bytes, at),
        };
        Ok(match layout {
            Layout::Plain => Self::Plain,
            Layout::Reth => Self::Reth(Reth::decode(bytes)),
            Layout::RethImmediate => {
                Self::RethImmediate(Reth::decode(bytes), immediate(Reth::LENGTH))
            }
            Layout::Aeth => Self::Aeth(Aeth::decode(bytes)?),
            Layout::AethAtomicAck => {
                let original = u64::from_be_bytes(chunk(bytes, Aeth::LENGTH));
                Self::AethAtomicAck(Aeth::decode(bytes)?, AtomicAckEth { original })
            }
            Layout::Atomic => Self::Atomic(AtomicEth {
                virtual_address: u64::from_be_bytes(chunk(bytes, 0)),
                r_key: u32::from_be_bytes(chunk(bytes, 8)),
                swap_or_add: u64::from_be_bytes(chunk(bytes, 12)),
                compare: u64::from_be_bytes(chunk(bytes, 20)),
            }),
            Layout::Ieth => Self::Ieth(Ieth {
                r_key: u32::from_be_bytes(chunk(bytes, 0)),
            }),
            Layout::Immediate => Self::Immediate(immediate(0)),
            Layout::Deth => Self::Deth(Deth::decode(bytes)),
            Layout::DethImmediate => {
                Self::DethImmediate(Deth::decode(bytes), immediate(Deth::LENGTH))
            }
        })
    }

    /// Writes the headers to the start of `out` and returns their length.
    ///
    /// # Panics
    /// Panics if `out` is too short, or if the value of a field of 24 bits has more bits.
    pub fn encode(&self, out: &mut [u8]) -> usize {
        match self {
            Self::Plain => {}
            Self::Reth(reth) => reth.encode(out),
            Self::RethImmediate(reth, immediate) => {
                reth.encode(out);
                out[Reth::LENGTH..][..4].copy_from_slice(&immediate.data);
            }
            Self::Aeth(aeth) => aeth.encode(out),
            Self::AethAtomicAck(aeth, ack) => {
                aeth.encode(out);
                out[Aeth::LENGTH..][..8].copy_from_slice(&ack.original.to_be_bytes());
            }
            Self::Atomic(atomic) => {
                out[..8].copy_from_slice(&atomic.virtual_address.to_be_bytes());
                out[8..12].copy_from_slice(&atomic.r_key.to_be_bytes());
                out[12..20].copy_from_slice(&atomic.swap_or_add.to_be_bytes());
                out[20..28].copy_from_slice(&atomic.compare.to_be_bytes());
            }
            Self::Ieth(ieth) => out[..4].copy_from_slice(&ieth.r_key.to_be_bytes()),
            Self::Immediate(immediate) => out[..4].copy_from_slice(&immediate.data),
            Self::Deth(deth) => deth.encode(out),
            Self::DethImmediate(deth, immediate) => {
                deth.encode(out);
                out[Deth::LENGTH..][..4].copy_from_slice(&immediate.data);
            }
        }
        self.layout().length()
    }
}

impl Reth {
    /// The length on the wire, in bytes.
    pub const LENGTH: usize = 16;

    fn decode(bytes: &[u8]) -> Self {
        Self {
            virtual_address: u64::from_be_bytes(chunk(bytes, 0)),
            r_key: u32::from_be_bytes(chunk(bytes, 8)),
            length: u32::from_be_bytes(chunk(bytes, 12)),
        }
    }

    fn encode(&self, out: &mut [u8]) {
        out[..8].copy_from_slice(&self.virtual_address.to_be_bytes());
        out[8..12].copy_from_slice(&self.r_key.to_be_bytes());
        out[12..16].copy_from_slice(&self.length.to_be_bytes());
    }
}

impl Aeth {
    /// The length on the wire, in bytes.
    pub const LENGTH: usize = 4;

    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let [syndrome, msn @ ..] = chunk::<4>(bytes, 0);
        Ok(Self {
            syndrome: Syndrome::decode(syndrome)?,
            message_sequence_number: u32::from_be_bytes([0, msn[0], msn[1], msn[2]]),
        })
    }

    fn encode(&self, out: &mut [u8]) {
        let [high, msn @ ..] = self.message_sequence_number.to_be_bytes();
        assert_eq!(high, 0, "a message sequence number has 24 bits");
        out[0] = self.syndrome.encode();
        out[1..4].copy_from_slice(&msn);
    }
}

impl Syndrome {
    /// The credit code of a responder that does not report its receives.
    pub const NO_CREDIT: u8 = 0x1f;

    /// Decodes the syndrome, which is the first byte of an AETH.
    ///
    /// # Errors
    /// Returns an error if the syndrome is of the reserved kind.
    pub const fn decode(byte: u8) -> Result<Self, DecodeError> {
        let value = byte & SYNDROME_VALUE_MASK;
        //= ROCE-9.7.5-01
        Ok(match (byte & SYNDROME_KIND_MASK, value) {
            (SYNDROME_ACK, _) => Self::Ack { credit: value },
            (SYNDROME_RNR_NAK, _) => Self::RnrNak { timer: value },
            (SYNDROME_NAK, _) => Self::Nak(NakCode::from_code(value)),
            _ => return Err(DecodeError::Syndrome(byte)),
        })
    }

    /// Encodes the syndrome, which is the first byte of an AETH. Only the low five bits of a credit or timer code
    /// are used.
    pub const fn encode(self) -> u8 {
        match self {
            Self::Ack { credit } => SYNDROME_ACK | credit & SYNDROME_VALUE_MASK,
            Self::RnrNak { timer } => SYNDROME_RNR_NAK | timer & SYNDROME_VALUE_MASK,
            Self::Nak(code) => SYNDROME_NAK | code.code(),
        }
    }
}

impl Deth {
    /// The length on the wire, in bytes.
    pub const LENGTH: usize = 8;

    fn decode(bytes: &[u8]) -> Self {
        let [_, qp @ ..] = chunk::<4>(bytes, 4);
        Self {
            q_key: u32::from_be_bytes(chunk(bytes, 0)),
            source_qp: u32::from_be_bytes([0, qp[0], qp[1], qp[2]]),
        }
    }

    fn encode(&self, out: &mut [u8]) {
        assert!(self.source_qp >> 24 == 0, "a queue pair number has 24 bits");
        out[..4].copy_from_slice(&self.q_key.to_be_bytes());
        out[4..8].copy_from_slice(&self.source_qp.to_be_bytes());
    }
}

impl AtomicEth {
    /// The length on the wire, in bytes.
    pub const LENGTH: usize = 28;
}

/// Returns the `N` bytes at offset `at`.
fn chunk<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    *bytes[at..].first_chunk().expect("the length was checked")
}

#[cfg(test)]
mod tests {
    use super::*;

    //= ROCE-9.7.5-01 test
    #[test]
    fn exactly_the_known_kinds_of_syndromes_are_decoded() {
        for byte in 0..=u8::MAX {
            let known = byte <= 0x3f || (0x60..=0x7f).contains(&byte);
            match Syndrome::decode(byte) {
                Ok(syndrome) => assert_eq!(syndrome.encode(), byte),
                Err(error) => assert_eq!(error, DecodeError::Syndrome(byte)),
            }
            assert_eq!(Syndrome::decode(byte).is_ok(), known, "0x{byte:02x}");
        }
    }
}
