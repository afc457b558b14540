//! The means by which data moves: SMB Direct, and others to compare it with.

pub(crate) mod channel;
pub(crate) mod frames;
pub(crate) mod smb_direct;
pub(crate) mod tcp;
pub(crate) mod tcp_loop;
