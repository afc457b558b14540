//! The handle to an established SMB Direct connection, with its futures, memory regions and errors.

mod addresses;
mod end;
mod error;
mod establish;
mod handle;
mod memory;
mod memory_region;
mod receiving;
mod sending;
mod transfer;

pub(crate) use addresses::{Failure, look_up};
pub use error::{ConnectError, ConnectFault, ReadError, RegisterAllError, TrySendError};
pub(crate) use establish::{encoded, read_depths};
pub use handle::Connection;
pub use memory_region::MemoryRegion;
pub use sending::MessageOptions;
pub use transfer::{Reading, Sending, Writing};
