//! The face of TDI, Windows' Transport Driver Interface, for SMB Direct: its numbers, and the
//! decisions behind its send and receive requests.
//!
//! | TDI | here |
//! |---|---|
//! | NTSTATUS of a request | [`Status`] |
//! | `TDI_SEND_...` | [`SendFlags`] |
//! | `TDI_RECEIVE_...` | [`ReceiveFlags`] of a request, [`IndicationFlags`] of an indication |
//! | `TDI_DISCONNECT_...`, `TDI_SERVICE_...` | [`DisconnectFlags`], [`ServiceFlags`] |
//! | `TdiBuildSend` and what a transport owes it | [`SendRequest`], [`Outbound`] |
//! | `TdiBuildReceive`, and when handlers are called | [`ReceiveRequest`], [`Inbound`] |
//! | what `ClientEventReceive` is told, and returns | [`Indication`], [`Answer`] |
//! | the chain of `ClientEventChainedReceive` | [`ChainedTsdu`] |
//!
//! "Client" means the user of the transport, as in TDI, whichever side of SMB that is. A TSDU is
//! one [`Message`](crate::Message). Nothing here has a clock, a task or a socket.

mod flags;
mod receive;
mod request;
mod send;
mod status;

pub use flags::{DisconnectFlags, IndicationFlags, ReceiveFlags, SendFlags, ServiceFlags};
pub use receive::{
    Answer, ChainedTsdu, Inbound, Indication, ReceiveCompletion, ReceiveEvent, ReceiveRequest,
    ReceiveSettings,
};
pub use request::RequestId;
pub use send::{
    Expedited, NoResponse, NonBlocking, Outbound, OutboundTsdu, Outlook, SendCompletion, SendEvent,
    SendRequest, SendSettings, Submission,
};
pub use status::{Severity, Status};
