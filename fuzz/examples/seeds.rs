//! Writes seeds into the corpora: what Linux said in the captures that stand beside the tests.
//!
//! `cargo run -p smbdirect-fuzz --example seeds`; `cargo fuzz cmin` then drops what adds nothing.

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
};

use smbdirect::rdma::iwarp::mpa::FrameKind;

use self::reader::{Found, is_last};

#[allow(dead_code, reason = "what only the tests look at")]
#[path = "../../smbdirect/tests/captures/reader.rs"]
mod reader;

/// Bytes of a stream that are worth having as a seed; the rest says nothing new.
const STREAM: usize = 1500;
/// The longest seed for the decoders.
const MESSAGE: usize = 200;
/// The longest capture that is a seed itself.
const CAPTURE: usize = 2000;

fn main() -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../smbdirect/tests/captures");
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "pcap")
        {
            seeds_of(&path)?;
        }
    }
    Ok(())
}

fn seeds_of(path: &Path) -> io::Result<()> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let file = fs::read(path)?;
    if file.len() <= CAPTURE {
        fs::write(corpus("capture_reader")?.join(&*name), &file)?;
        fs::write(corpus("decode")?.join(&*name), &file)?;
    }
    let (mut streams, mut parts) = (Vec::new(), HashSet::new());
    let read = reader::read(&file, true, &mut |found| match found {
        Found::Connection => {}
        Found::Startup { frame, bytes } => {
            parts.insert(bytes.to_vec());
            // Which frame, that it is there, no framing, no CRC, no Read and no cut.
            let is_request = u8::from(frame.kind == FrameKind::Request);
            streams.push([&[is_request, 1, 0, 0, 0, 0][..], bytes].concat());
        }
        Found::Fpdu {
            header,
            opcode,
            payload,
            bytes,
            ..
        } => {
            let stream = streams.last_mut().expect("a stream starts up first");
            stream.extend_from_slice(bytes);
            if is_last(&header) && opcode as u8 != 0 {
                parts.insert(payload.to_vec());
            }
            parts.insert(bytes[2..].to_vec());
        }
        Found::Message { bytes, .. } => drop(parts.insert(bytes.to_vec())),
    });
    read.map_err(io::Error::other)?;
    for (index, stream) in streams.iter().enumerate() {
        let start = &stream[..stream.len().min(STREAM)];
        fs::write(corpus("mpa_stream")?.join(format!("{name}-{index}")), start)?;
    }
    let short = parts.iter().filter(|part| part.len() <= MESSAGE);
    for (index, part) in short.enumerate() {
        fs::write(corpus("wire_decode")?.join(format!("{name}-{index}")), part)?;
    }
    Ok(())
}

fn corpus(target: &str) -> io::Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}
