//! The Base Transport Header, the first 12 bytes of each packet.
//!
//! ```text
//! opcode (1) | SE M Pad(2) TVer(4) | P_Key (2) | F B rsvd(6) | DestQP (3) | A rsvd(7) | PSN (3)
//! ```

use super::{DecodeError, Opcode};
use crate::roce::Psn;

/// The Base Transport Header (IBTA 9.2), without the pad count, which follows from the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// The opcode.
    pub opcode: Opcode,
    /// SE: the receiver is asked to raise a solicited event.
    pub solicited_event: bool,
    /// M: the migration state.
    pub migration: bool,
    /// The partition key.
    pub p_key: u16,
    /// F: the packet met congestion on its way.
    pub fecn: bool,
    /// B: the sender of the packet received packets that met congestion.
    pub becn: bool,
    /// The number of the destination queue pair, 24 bits.
    pub destination_qp: u32,
    /// A: the requester asks for an acknowledgement.
    pub ack_request: bool,
    /// The packet sequence number.
    pub psn: Psn,
}

const SOLICITED_EVENT: u8 = 0x80;
const MIGRATION: u8 = 0x40;
const PAD_COUNT_SHIFT: u8 = 4;
const PAD_COUNT_MASK: u8 = 0x03;
const VERSION_MASK: u8 = 0x0f;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const ACK_REQUEST: u8 = 0x80;

impl Bth {
    /// The length on the wire, in bytes.
    pub const LENGTH: usize = 12;
    /// The partition key of the default partition with full membership, which RoCEv2 uses.
    pub const DEFAULT_P_KEY: u16 = 0xffff;

    /// Creates a header for the default partition, with every flag cleared.
    pub const fn new(opcode: Opcode, destination_qp: u32, psn: Psn) -> Self {
        Self {
            opcode,
            solicited_event: false,
            migration: false,
            p_key: Self::DEFAULT_P_KEY,
            fecn: false,
            becn: false,
            destination_qp,
            ack_request: false,
            psn,
        }
    }

    /// Decodes the header, and returns it with the pad count. Reserved bits are ignored.
    pub(super) fn decode(bytes: &[u8; Self::LENGTH]) -> Result<(Self, usize), DecodeError> {
        let [opcode, flags, p_key_high, p_key_low, congestion, ..] = *bytes;
        //= ROCE-9.2.1-02
        let version = flags & VERSION_MASK;
        if version != 0 {
            return Err(DecodeError::Version(version));
        }
        let bth = Self {
            opcode: Opcode::decode(opcode)?,
            solicited_event: flags & SOLICITED_EVENT != 0,
            migration: flags & MIGRATION != 0,
            p_key: u16::from_be_bytes([p_key_high, p_key_low]),
            fecn: congestion & FECN != 0,
            becn: congestion & BECN != 0,
            destination_qp: u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]]),
            ack_request: bytes[8] & ACK_REQUEST != 0,
            psn: Psn::new(u32::from_be_bytes([0, bytes[9], bytes[10], bytes[11]])),
        };
        let pad = flags >> PAD_COUNT_SHIFT & PAD_COUNT_MASK;
        Ok((bth, usize::from(pad)))
    }

    /// Encodes the header with a pad count from 0 to 3.
    ///
    /// # Panics
    /// Panics if the queue pair number has more than 24 bits, or if the pad count is above 3.
    pub fn encode(&self, pad_count: usize) -> [u8; Self::LENGTH] {
        assert!(pad_count <= 3, "a pad count of {pad_count}");
        let flag = |set, bit| if set { bit } else { 0 };
        let [high, qp @ ..] = self.destination_qp.to_be_bytes();
        assert_eq!(high, 0, "a queue pair number has 24 bits");
        let [_, psn @ ..] = self.psn.value().to_be_bytes();
        let [p_key_high, p_key_low] = self.p_key.to_be_bytes();
        [
            self.opcode as u8,
            flag(self.solicited_event, SOLICITED_EVENT)
                | flag(self.migration, MIGRATION)
                | (pad_count as u8) << PAD_COUNT_SHIFT,
            p_key_high,
            p_key_low,
            flag(self.fecn, FECN) | flag(self.becn, BECN),
            qp[0],
            qp[1],
            qp[2],
            flag(self.ack_request, ACK_REQUEST),
            psn[0],
            psn[1],
            psn[2],
        ]
    }
}
