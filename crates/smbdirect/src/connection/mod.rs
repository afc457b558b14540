//! The handle to an established SMB Direct connection, with its futures, memory regions and errors.

mod addresses;
mod end;
mod error;
mod establish;
mod handle;
mod memory_region;
mod transfer;

pub(crate) use addresses::{Failure, look_up};
pub use error::{ConnectError, ReadError, RegisterAllError, TrySendError};
pub(crate) use establish::{encoded, read_depths};
pub use handle::{Connection, MessageOptions};
pub use memory_region::MemoryRegion;
pub use transfer::{Reading, Sending, Writing};
