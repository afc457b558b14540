//! `smbdirect decode`: captures of ours, of Linux, and made by hand, each broken rule among them.

mod broken;
mod captures;
mod files;
mod smb2;
mod talk;
