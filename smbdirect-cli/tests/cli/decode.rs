//! `smbdirect decode`: captures of ours, of Linux, and made by hand, each broken rule among them.

#[path = "decode/broken.rs"]
mod broken;
#[path = "decode/captures.rs"]
mod captures;
#[path = "decode/files.rs"]
mod files;
#[path = "decode/smb2.rs"]
mod smb2;
#[path = "decode/talk.rs"]
mod talk;
