//! Decides by its content alone whether a Send is a message of SMB Direct.
//!
//! The fields of a message depend on each other and on its length, so other protocols are not
//! mistaken for it.

use smbdirect::rdma::roce::packet::Extended;
use smbdirect_smb::smb2::{Flags, Header};

use super::{
    super::smb::Send,
    datagram::{Packet, Part, begins_send},
};

/// A message of SMB Direct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recognised {
    NegotiateRequest,
    NegotiateResponse,
    /// A Data Transfer; an SMB2 header in it shows whether it is from the client.
    DataTransfer {
        from_client: Option<bool>,
    },
}

const VERSION: u16 = 0x0100;
const REQUEST_LENGTH: u64 = 20;
const RESPONSE_LENGTH: u64 = 32;
const HEADER_LENGTH: u32 = 20;

/// Recognises a complete Send by its fields.
pub(super) fn recognise(send: &Send) -> Option<Recognised> {
    let head = &send.head;
    let short = |at: usize| {
        let field = head.get(at..)?.first_chunk::<2>()?;
        Some(u16::from_le_bytes(*field))
    };
    let long = |at: usize| {
        let field = head.get(at..)?.first_chunk::<4>()?;
        Some(u32::from_le_bytes(*field))
    };
    let has_versions = (short(0)?, short(2)?) == (VERSION, VERSION);
    if has_versions && send.length == REQUEST_LENGTH && short(4)? == 0 && short(6)? != 0 {
        return Some(Recognised::NegotiateRequest);
    }
    if has_versions && send.length == RESPONSE_LENGTH && short(6)? == 0 {
        return Some(Recognised::NegotiateResponse);
    }
    let (requested, flags, reserved) = (short(0)?, short(4)?, short(6)?);
    let (offset, length) = (long(12)?, long(16)?);
    let is_payload_at_end = match length {
        0 => offset == 0 && send.length == u64::from(HEADER_LENGTH),
        _ => {
            let end = u64::from(offset) + u64::from(length);
            offset > HEADER_LENGTH && offset.is_multiple_of(8) && end == send.length
        }
    };
    if requested == 0 || flags > 1 || reserved != 0 || !is_payload_at_end {
        return None;
    }
    let payload = head.get(offset as usize..).unwrap_or_default();
    let from_client = Header::command_and_flags(payload)
        .filter(|_| length > 0)
        .map(|(_, flags)| !flags.contains(Flags::RESPONSE));
    Some(Recognised::DataTransfer { from_client })
}

impl Recognised {
    /// Returns whether its sender is the initiator, if the message shows that.
    pub(super) const fn is_initiator(self) -> Option<bool> {
        match self {
            Self::NegotiateRequest => Some(true),
            Self::NegotiateResponse => Some(false),
            Self::DataTransfer { from_client } => from_client,
        }
    }
}

/// Recognises a packet that contains a complete Send.
pub(super) fn recognise_packet(packet: &Packet) -> Option<Recognised> {
    let opcode = packet.bth.opcode;
    if !begins_send(opcode) || !opcode.ends_message() {
        return None;
    }
    recognise(&Send {
        head: packet.head.clone(),
        length: packet.length.into(),
        ..Send::default()
    })
}

/// Returns whether a packet shows that its sender is the initiator, or is not, if the connection is
/// one of SMB Direct: only the server reads, writes and invalidates.
pub(super) fn is_initiator(packet: &Packet) -> Option<bool> {
    match (Part::of(packet.bth.opcode), &packet.extended) {
        (_, Extended::Reth(_) | Extended::RethImmediate(..) | Extended::Ieth(_)) => Some(false),
        (Part::Write, _) => Some(false),
        (Part::ReadResponse, _) => Some(true),
        _ => recognise_packet(packet)?.is_initiator(),
    }
}
