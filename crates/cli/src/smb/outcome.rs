//! The last line of `get` and `put`: the amount, the rate and the way of the transfer.

use std::{path::PathBuf, time::Duration};

use serde::Serialize;
use smbdirect_smb2::Transfer;

use crate::report::{self, Report};

use super::session::Moved;

/// A file that was moved.
pub(super) struct Outcome {
    pub(super) place: String,
    pub(super) file: PathBuf,
    pub(super) moved: Moved,
    pub(super) transfer: Transfer,
    /// What the server does to move bytes by RDMA: `RDMA Write` or `RDMA Read`.
    pub(super) operation: &'static str,
    pub(super) took: Duration,
    /// The SHA-256, if it was asked for.
    pub(super) sum: Option<String>,
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    File {
        place: &'a str,
        file: String,
        bytes: u64,
        bytes_by_rdma: u64,
        method: &'a str,
        reason: Option<String>,
        seconds: f64,
        bytes_per_second: Option<f64>,
        sha256: Option<&'a str>,
    },
}

impl Outcome {
    /// Prints the line, and the checksum as `sha256sum` does.
    pub(super) fn report(&self, report: &Report) {
        let Moved { bytes, by_rdma } = self.moved;
        let file = self.file.to_string_lossy();
        let shown = report::printable(&file);
        if let Some(sum) = &self.sum {
            report.line(format_args!("{sum}  {shown}"));
        }
        report.line(format_args!(
            "{}  {} in {}  {}  {}",
            report.style.bold(&shown),
            report::bytes(bytes),
            report::time(self.took),
            report::rate(bytes, self.took),
            self.moved.in_words(self.transfer, self.operation),
        ));
        let reason = self.moved.reason(self.transfer);
        let method = match (reason, self.operation) {
            (Some(_), _) => "messages",
            (None, "RDMA Write") => "rdma_write",
            (None, _) => "rdma_read",
        };
        report.event(&Event::File {
            place: &self.place,
            file: file.into_owned(),
            bytes,
            bytes_by_rdma: by_rdma,
            method,
            reason: reason.map(|reason| reason.to_string()),
            seconds: self.took.as_secs_f64(),
            bytes_per_second: report::per_second(bytes, self.took),
            sha256: self.sum.as_deref(),
        });
    }
}

/// Returns a digest in hexadecimal digits.
pub(super) fn hexadecimal(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
