//! `smbdirect get`, `put` and `ls`: files of an SMB server over SMB Direct.
//!
//! Each command has a file. They share [`place`] (`//SERVER/SHARE/PATH`), [`session`] (connecting,
//! logging in, and why a server refuses), [`pipeline`] (requests in
//! parallel) and [`outcome`] (the last line).

mod get;
mod list;
mod outcome;
mod pipeline;
mod place;
mod put;
mod session;

pub(crate) use get::Get;
pub(crate) use list::List;
pub(crate) use put::Put;
