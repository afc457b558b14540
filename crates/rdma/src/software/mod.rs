//! What the providers in software share: pools of blocks, the receive queue, and the memory of received bytes.

pub(crate) mod arena;
pub mod direction;
pub mod pool;
pub(crate) mod receive_queue;
