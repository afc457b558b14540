#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod requests;

mod account;
mod client;
mod credits;
mod dfs;
mod directory;
mod error;
mod file;
mod handshake;
mod kerberos;
mod share;
mod shares;
mod transfer;
mod transport;
mod tree;
mod unsigned;
mod whole;

pub use account::{Account, Login};
pub use client::Client;
pub use directory::{Entry, Listing, Name};
pub use error::Error;
pub use file::{File, Read, Written};
pub use kerberos::{KerberosError, Tickets};
pub use share::{OpenMode, Share};
pub use shares::ShareEntry;
pub use smbdirect_smb::smb2::Channel;
pub use transfer::{Reason, Transfer};
pub use transport::Transport;
pub use whole::Moved;

#[cfg(test)]
mod tests;
