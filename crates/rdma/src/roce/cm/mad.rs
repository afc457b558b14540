//! The management datagram (MAD) that carries a CM message (13.4 and 12.6).

use thiserror::Error;

use super::{
    body::Body,
    messages::{
        ConnectReply, DisconnectReply, DisconnectRequest, MessageReceiptAcknowledgment, ReadyToUse,
        Reject,
    },
    request::ConnectRequest,
};

/// A management datagram of the CM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mad {
    /// The transaction ID. An answer repeats the ID of the message that it answers.
    pub transaction_id: u64,
    /// The message.
    pub message: Message,
}

/// A message of the CM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// REQ.
    ConnectRequest(Box<ConnectRequest>),
    /// MRA.
    MessageReceiptAcknowledgment(Box<MessageReceiptAcknowledgment>),
    /// REJ.
    Reject(Box<Reject>),
    /// REP.
    ConnectReply(Box<ConnectReply>),
    /// RTU.
    ReadyToUse(Box<ReadyToUse>),
    /// DREQ.
    DisconnectRequest(Box<DisconnectRequest>),
    /// DREP.
    DisconnectReply(Box<DisconnectReply>),
}

/// The reason why bytes are not a message of the CM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MadError {
    /// The datagram does not have 256 bytes.
    #[error("a MAD of {0} bytes instead of 256")]
    Length(usize),
    /// The base version is not 1.
    #[error("MAD base version {0}")]
    BaseVersion(u8),
    /// The management class is not the class of the CM.
    #[error("management class 0x{0:02x}")]
    Class(u8),
    /// The class version is not 2.
    #[error("CM class version {0}")]
    ClassVersion(u8),
    /// The method is not Send.
    #[error("MAD method 0x{0:02x}")]
    Method(u8),
    /// The attribute is not a message that this library knows.
    #[error("CM attribute 0x{0:04x}")]
    Attribute(u16),
}

/// The length of the MAD header in bytes.
const HEADER_LENGTH: usize = 24;
/// The management class of the CM.
const CLASS: u8 = 0x07;
const BASE_VERSION: u8 = 0x01;
const CLASS_VERSION: u8 = 0x02;
const METHOD_SEND: u8 = 0x03;

impl Message {
    const REQUEST: u16 = 0x0010;
    const MESSAGE_RECEIPT_ACKNOWLEDGMENT: u16 = 0x0011;
    const REJECT: u16 = 0x0012;
    const REPLY: u16 = 0x0013;
    const READY_TO_USE: u16 = 0x0014;
    const DISCONNECT_REQUEST: u16 = 0x0015;
    const DISCONNECT_REPLY: u16 = 0x0016;

    /// Returns the attribute ID.
    pub const fn attribute(&self) -> u16 {
        match self {
            Self::ConnectRequest(_) => Self::REQUEST,
            Self::MessageReceiptAcknowledgment(_) => Self::MESSAGE_RECEIPT_ACKNOWLEDGMENT,
            Self::Reject(_) => Self::REJECT,
            Self::ConnectReply(_) => Self::REPLY,
            Self::ReadyToUse(_) => Self::READY_TO_USE,
            Self::DisconnectRequest(_) => Self::DISCONNECT_REQUEST,
            Self::DisconnectReply(_) => Self::DISCONNECT_REPLY,
        }
    }

    /// Returns the name of the message in the specification: `REQ`, `REP` and so on.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::ConnectRequest(_) => "REQ",
            Self::MessageReceiptAcknowledgment(_) => "MRA",
            Self::Reject(_) => "REJ",
            Self::ConnectReply(_) => "REP",
            Self::ReadyToUse(_) => "RTU",
            Self::DisconnectRequest(_) => "DREQ",
            Self::DisconnectReply(_) => "DREP",
        }
    }

    /// Returns the communication ID of the sender.
    pub fn local_communication_id(&self) -> u32 {
        match self {
            Self::ConnectRequest(message) => message.local_communication_id,
            Self::MessageReceiptAcknowledgment(message) => message.local_communication_id,
            Self::Reject(message) => message.local_communication_id,
            Self::ConnectReply(message) => message.local_communication_id,
            Self::ReadyToUse(message) => message.local_communication_id,
            Self::DisconnectRequest(message) => message.local_communication_id,
            Self::DisconnectReply(message) => message.local_communication_id,
        }
    }

    /// Returns the communication ID of the receiver; `None` in a REQ.
    pub fn remote_communication_id(&self) -> Option<u32> {
        match self {
            Self::ConnectRequest(_) => None,
            Self::MessageReceiptAcknowledgment(message) => Some(message.remote_communication_id),
            Self::Reject(message) => Some(message.remote_communication_id),
            Self::ConnectReply(message) => Some(message.remote_communication_id),
            Self::ReadyToUse(message) => Some(message.remote_communication_id),
            Self::DisconnectRequest(message) => Some(message.remote_communication_id),
            Self::DisconnectReply(message) => Some(message.remote_communication_id),
        }
    }
}

impl Mad {
    /// The length in bytes.
    pub const LENGTH: usize = 256;

    /// Decodes a datagram.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a message of the CM.
    pub fn decode(bytes: &[u8]) -> Result<Self, MadError> {
        //= ROCE-12.6-01
        let mad: &[u8; Self::LENGTH] = bytes
            .try_into()
            .map_err(|_| MadError::Length(bytes.len()))?;
        match *mad {
            [base, ..] if base != BASE_VERSION => return Err(MadError::BaseVersion(base)),
            [_, class, ..] if class != CLASS => return Err(MadError::Class(class)),
            [_, _, version, ..] if version != CLASS_VERSION => {
                return Err(MadError::ClassVersion(version));
            }
            [_, _, _, method, ..] if method != METHOD_SEND => {
                return Err(MadError::Method(method));
            }
            _ => {}
        }
        let header = Body::new(mad);
        let body = &Body::new(&mad[HEADER_LENGTH..]);
        let message = match header.u16(16) {
            Message::REQUEST => Message::ConnectRequest(Box::new(ConnectRequest::decode(body))),
            Message::MESSAGE_RECEIPT_ACKNOWLEDGMENT => {
                let message = MessageReceiptAcknowledgment::decode(body);
                Message::MessageReceiptAcknowledgment(Box::new(message))
            }
            Message::REJECT => Message::Reject(Box::new(Reject::decode(body))),
            Message::REPLY => Message::ConnectReply(Box::new(ConnectReply::decode(body))),
            Message::READY_TO_USE => Message::ReadyToUse(Box::new(ReadyToUse::decode(body))),
            Message::DISCONNECT_REQUEST => {
                Message::DisconnectRequest(Box::new(DisconnectRequest::decode(body)))
            }
            Message::DISCONNECT_REPLY => {
                Message::DisconnectReply(Box::new(DisconnectReply::decode(body)))
            }
            attribute => return Err(MadError::Attribute(attribute)),
        };
        Ok(Self {
            transaction_id: u64::from_be_bytes(header.array(8)),
            message,
        })
    }

    /// Returns the bytes of the datagram. Fields with fewer bits than their type are cut to their
    /// bits.
    pub fn encode(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..4].copy_from_slice(&[BASE_VERSION, CLASS, CLASS_VERSION, METHOD_SEND]);
        bytes[8..16].copy_from_slice(&self.transaction_id.to_be_bytes());
        bytes[16..18].copy_from_slice(&self.message.attribute().to_be_bytes());
        let body = &mut bytes[HEADER_LENGTH..];
        match &self.message {
            Message::ConnectRequest(message) => message.encode(body),
            Message::MessageReceiptAcknowledgment(message) => message.encode(body),
            Message::Reject(message) => message.encode(body),
            Message::ConnectReply(message) => message.encode(body),
            Message::ReadyToUse(message) => message.encode(body),
            Message::DisconnectRequest(message) => message.encode(body),
            Message::DisconnectReply(message) => message.encode(body),
        }
        bytes
    }
}
