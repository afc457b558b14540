//! `smbdirect decode --as-tcp`: writes a capture as SMB2 over TCP, and says what is in it.

use std::{
    fs::{self, File},
    io::{self, BufWriter, ErrorKind, Read, Write},
    path::Path,
};

use anyhow::{Context, Result, anyhow};
use smbdirect_decode::{AsTcp, AsTcpSummary, Packets};

use super::{Decode, in_words, is_stdin, nothing_found};
use crate::{
    failure::{Kind, OfKind},
    report::{Report, bytes, plain, plural},
    streams::{Lines, Stream},
};

impl Decode {
    /// Writes the capture as SMB2 over TCP. Returns whether the whole file was read.
    pub(super) fn as_tcp(
        &self,
        report: &Report,
        packets: &mut Packets<Box<dyn Read>>,
        name: &str,
        to: &Path,
    ) -> Result<bool> {
        let cannot_write = || format!("cannot write {}", to.display());
        let output = create(&self.file, to)
            .with_context(cannot_write)
            .of_kind(Kind::File)?;
        let failed = |error: io::Error| anyhow!(plain(&error)).context(cannot_write());
        let mut as_tcp = AsTcp::new(&self.port, &self.udp_port, BufWriter::new(output))
            .map_err(failed)
            .of_kind(Kind::File)?;
        let ended = loop {
            match packets.next_packet() {
                Ok(Some(packet)) => match as_tcp.packet(&packet) {
                    Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(true),
                    written => written.map_err(failed).of_kind(Kind::File)?,
                },
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        let counts = as_tcp.counts().clone();
        let summary = match as_tcp.finish() {
            // The reader of a pipe has seen enough.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(true),
            written => written.map_err(failed).of_kind(Kind::File)?,
        };
        if summary.messages == 0 && summary.copied_packets == 0 {
            let error = match summary.connections {
                0 => nothing_found(self, &counts),
                count => {
                    let connections = plural(count, "connection");
                    anyhow!("no message of SMB in {connections} of SMB Direct")
                }
            };
            return Err(error.context(format!("nothing in {name}")));
        }
        // What was written to stdout has to stay a capture.
        if !is_stdin(to) && !is_link_to(to, Path::new("/dev/stdout")) {
            text(report, &summary);
            report.event(&summary);
        }
        ended
            .map_err(|error| in_words(&error))
            .with_context(|| format!("cannot read the capture {name}"))
            .of_kind(Kind::File)?;
        Ok(true)
    }
}

/// Creates the output, which must not be the capture that is read.
fn create(capture: &Path, to: &Path) -> Result<Box<dyn Write>> {
    if is_stdin(to) {
        return Ok(Box::new(Lines(Stream::Stdout)));
    }
    let capture = match capture {
        capture if is_stdin(capture) => Path::new("/dev/stdin"),
        capture => capture,
    };
    let is_same = match (fs::canonicalize(capture), fs::canonicalize(to)) {
        (Ok(capture), Ok(to)) => capture == to || is_link_to(&capture, &to),
        _ => false,
    };
    if is_same {
        return Err(anyhow!("it is the capture itself; name another file"));
    }
    let file = File::create(to).map_err(|error| anyhow!(plain(&error)))?;
    Ok(Box::new(file))
}

/// Returns whether two names are of one file.
#[cfg(unix)]
fn is_link_to(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;

    let id = |path: &Path| {
        let metadata = path.metadata().ok()?;
        Some((metadata.dev(), metadata.ino()))
    };
    id(one).is_some_and(|known| id(other) == Some(known))
}

#[cfg(not(unix))]
const fn is_link_to(_one: &Path, _other: &Path) -> bool {
    false
}

/// Prints what was written.
fn text(report: &Report, summary: &AsTcpSummary) {
    let connections = plural(summary.connections, "connection");
    let messages = plural(summary.messages, "message");
    let moved = bytes(summary.put_back_bytes);
    report.line(format_args!(
        "{connections} of SMB Direct with {messages}, {moved} of data that RDMA moved"
    ));
    let lines = [
        (
            summary.copied_packets,
            "packet",
            "of SMB over TCP, copied as it is",
        ),
        (
            summary.without_data,
            "READ or WRITE",
            "whose data is not all in the capture: left without it",
        ),
        (summary.gaps, "gap", "in the capture"),
        (summary.not_smb, "message", "of another protocol: left out"),
    ];
    for (count, what, words) in lines {
        if count > 0 {
            let counted = plural(count, what);
            report.line(format_args!("{counted} {words}"));
        }
    }
}
