//! The `smbdirect` command.

fn main() {}
