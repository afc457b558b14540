//! `smbdirect decode`: captures of ours, of Linux, and built ones, which violate each rule.

mod broken;
mod captures;
mod files;
mod formats;
mod roce;
mod smb2;
mod strays;
mod talk;
mod wrapped;
