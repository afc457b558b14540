//! The decisions about sends and receives, and the values of requests, events and queries. Nothing
//! here has a clock, a task or a socket.

mod cause;
mod chained;
mod flags;
mod inbound;
mod outbound;
mod receive;
mod request;
mod send;
mod send_queue;
mod state;
mod statistics;
mod status;
mod tsdu;

pub use cause::Cause;
pub use chained::ChainedTsdu;
pub use flags::{DisconnectFlags, IndicationFlags, ReceiveFlags, SendFlags, ServiceFlags};
pub use inbound::Inbound;
pub use outbound::Outbound;
pub use receive::{
    Answer, Indication, ReceiveBuffer, ReceiveCompletion, ReceiveEvent, ReceiveRequest,
    ReceiveSettings, ReceiveTarget,
};
pub use request::RequestId;
pub use send::{
    Expedited, NoResponse, NonBlocking, OutboundTsdu, SendAvailability, SendCompletion, SendEvent,
    SendRequest, SendSettings, Submission,
};
pub use state::EndpointState;
pub(crate) use state::Request;
pub(crate) use statistics::Counters;
pub use statistics::{ConnectionInfo, ProviderInfo, ProviderStatistics, ResourceStatistics};
pub use status::{Severity, Status};
