//! The last line of `get` and `put`: the amount, the rate and the way of the transfer.

use std::{path::PathBuf, time::Duration};

use serde::Serialize;
use sha2::{Digest as _, Sha256};
use smbdirect_smb2::{Moved, Reason, Transfer};

use crate::report::{self, Report};

/// A file that was moved.
pub(super) struct Outcome {
    pub(super) place: String,
    pub(super) file: PathBuf,
    pub(super) moved: Moved,
    /// The length of the source when it was opened, if it grew afterwards.
    pub(super) grew_from: Option<u64>,
    pub(super) transfer: Transfer,
    /// What the server does to move bytes by RDMA: `RDMA Write` or `RDMA Read`.
    pub(super) operation: &'static str,
    pub(super) took: Duration,
    /// The SHA-256, if it was asked for.
    pub(super) sum: Option<Sha256>,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    File {
        place: &'a str,
        file: String,
        bytes: u64,
        grew_from: Option<u64>,
        bytes_by_rdma: u64,
        method: &'a str,
        reason: Option<String>,
        seconds: f64,
        bytes_per_second: Option<f64>,
        sha256: Option<String>,
    },
}

impl Outcome {
    /// Prints the line, and the checksum as `sha256sum` does.
    pub(super) fn report(self, report: &Report) {
        let reason = self.reason();
        let method = match (reason, self.operation) {
            (Some(_), _) => "messages",
            (None, "RDMA Write") => "rdma_write",
            (None, _) => "rdma_read",
        };
        let way = match reason {
            None => format!("by {}", self.operation),
            Some(reason) => format!("by messages because {reason}"),
        };
        let bytes = self.moved.bytes;
        let file = self.file.to_string_lossy();
        let shown = report::printable(&file);
        let sum = self.sum.map(|sum| hexadecimal(&sum.finalize()));
        if let Some(sum) = &sum {
            report.line(format_args!("{sum}  {shown}"));
        }
        report.line(format_args!(
            "{}  {} in {}  {}  {way}{}",
            report.style.bold(&shown),
            report::bytes(bytes),
            report::time(self.took),
            report::rate(bytes, self.took),
            match self.grew_from {
                None => String::new(),
                Some(length) => format!("; it grew from {}", report::bytes(length)),
            }
        ));
        report.event(&Event::File {
            place: &self.place,
            file: file.into_owned(),
            bytes,
            grew_from: self.grew_from,
            bytes_by_rdma: self.moved.by_rdma,
            method,
            reason: reason.map(|reason| reason.to_string()),
            seconds: self.took.as_secs_f64(),
            bytes_per_second: report::per_second(bytes, self.took),
            sha256: sum,
        });
    }

    /// Returns the reason for messages; `None` if RDMA moved the file. The last bytes of a file may be
    /// too few for RDMA, and move in a message.
    const fn reason(&self) -> Option<Reason> {
        match self.transfer {
            _ if self.moved.by_rdma > 0 => None,
            Transfer::Messages(reason) => Some(reason),
            Transfer::Rdma(_) => Some(Reason::Small),
        }
    }
}

fn hexadecimal(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
