//! `smbdirect get`, `put` and `ls`: files of an SMB server over SMB Direct.
//!
//! Each command has a file. They share [`place`] (`//SERVER/SHARE/PATH`), [`session`] (connecting,
//! logging in, and why a server refuses), [`local`] (files of this
//! machine), [`ending`] (signals) and [`outcome`] (the last line).

mod ending;
mod get;
mod list;
mod local;
mod outcome;
mod place;
mod put;
mod session;

pub(crate) use get::Get;
pub(crate) use list::List;
pub(crate) use place::{Place, PlaceParser};
pub(crate) use put::Put;
