//! SMB Direct in user space.
#![forbid(unsafe_code)]

pub mod rdma;
pub mod wire;
