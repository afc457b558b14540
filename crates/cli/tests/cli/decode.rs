//! `smbdirect decode`: captures of ours and of Linux, and what it prints. `crates/decode/tests/decode` has captures that
//! violate each rule.

mod as_tcp;
mod captures;
mod files;
mod roce;
mod smb2;
mod wrapped;

use std::{fs, path::Path};

use smbdirect_test::talk::Talk;

use crate::support::{Done, run};

fn decode(path: &Path, arguments: &[&str]) -> Done {
    run(&[&["decode", path.to_str().unwrap()], arguments].concat())
}

/// Decodes the capture of a connection that was made up.
trait Decode {
    fn decoded(&self, arguments: &[&str]) -> Done;
}

impl Decode for Vec<u8> {
    fn decoded(&self, arguments: &[&str]) -> Done {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made.pcap");
        fs::write(&path, self).unwrap();
        decode(&path, arguments)
    }
}

impl Decode for Talk {
    fn decoded(&self, arguments: &[&str]) -> Done {
        self.capture().decoded(arguments)
    }
}
