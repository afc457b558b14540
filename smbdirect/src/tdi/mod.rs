//! The face of TDI, Windows' Transport Driver Interface, for SMB Direct: its numbers.
//!
//! | TDI | here |
//! |---|---|
//! | NTSTATUS of a request | [`Status`] |
//! | `TDI_SEND_...` | [`SendFlags`] |
//! | `TDI_RECEIVE_...` | [`ReceiveFlags`] of a request, [`IndicationFlags`] of an indication |
//! | `TDI_DISCONNECT_...`, `TDI_SERVICE_...` | [`DisconnectFlags`], [`ServiceFlags`] |

mod flags;
mod status;

pub use flags::{DisconnectFlags, IndicationFlags, ReceiveFlags, SendFlags, ServiceFlags};
pub use status::{Severity, Status};
