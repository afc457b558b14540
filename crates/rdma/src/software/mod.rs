//! What the providers in software share: pools of blocks, the receive queue, the memory of received bytes, and errors
//! of the operating system.

pub(crate) mod arena;
pub mod direction;
#[cfg(feature = "tokio")]
pub(crate) mod os_error;
pub mod pool;
pub(crate) mod receive_queue;
