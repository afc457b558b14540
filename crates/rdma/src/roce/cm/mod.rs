//! The communication manager (CM): connecting and disconnecting queue pairs (IBTA volume 1,
//! chapter 12), and the RDMA CM on top of it (annex A11).
//!
//! A message of the CM is a management datagram (MAD) of 256 bytes, which queue pair 1 of one end
//! sends to queue pair 1 of the other. [`Mad`] converts it from and to bytes, so that programs can
//! decode captures. The state machine of one communication takes messages and time, and returns
//! messages, events and its next deadline.
//!
//! ```text
//!   active                             passive
//!     │ ConnectRequest (REQ)              │
//!     │──────────────────────────────────>│  the consumer decides; MessageReceiptAcknowledgment
//!     │              ConnectReply (REP)   │  (MRA) answers repeated requests meanwhile
//!     │<──────────────────────────────────│
//!     │ ReadyToUse (RTU)                  │
//!     │──────────────────────────────────>│  the first packet of data counts as RTU
//!     │            data                   │
//!     │ DisconnectRequest (DREQ)          │
//!     │──────────────────────────────────>│  either end may begin
//!     │         DisconnectReply (DREP)    │
//!     │<──────────────────────────────────│
//! ```

mod body;
mod communication;
mod fields;
mod mad;
mod messages;
mod private_data;
mod request;
#[cfg(test)]
mod tests;

pub use communication::{CmTiming, Communication, CommunicationEvent, Failure, Output};
pub use fields::{CmTimeout, MessageKind, PathMtu, RejectReason, ServiceId};
pub use mad::{Mad, MadError, Message};
pub use messages::{
    ConnectReply, DisconnectReply, DisconnectRequest, MessageReceiptAcknowledgment, ReadyToUse,
    Reject,
};
pub use private_data::{PrivateData, RdmaCmHeader, TooLong};
pub use request::{ConnectRequest, PathRecord};
