//! `smbdirect get`: fetches a file from an SMB server.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Result, anyhow};
use clap::Args;
use sha2::{Digest, Sha256};
use smbdirect_smb2::{Error, File};
use tokio::{task::block_in_place, time::timeout};

use crate::{
    failure::{Kind, of_kind},
    options::{usage, with_profiles},
    report::Report,
    signals::{Interrupted, unless, unless_urgent},
};

use super::{
    ending::{GIVE_UP_TIMEOUT, end},
    local::{Destination, not_written},
    outcome::Outcome,
    place::Place,
    session::{Session, SmbOptions, explain},
};

/// Fetch a file from an SMB server over SMB Direct
///
/// The server writes the bytes into memory here by RDMA Write, where the session allows it: SMB 3.0 or
/// newer, no signing required, no encryption. Otherwise they come in messages, and the last line says
/// why. An existing FILE is never overwritten without --force. A new one has its name when it is whole, and a failed
/// transfer leaves none.
#[derive(Debug, Args)]
#[command(after_help = with_profiles(EXAMPLES))]
pub(crate) struct Get {
    /// The file to fetch: //SERVER[:PORT]/SHARE/PATH
    #[arg(value_name = "PLACE")]
    place: Place,

    /// Where to store it: a file, or a folder [default: its name, in the current folder]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    /// Overwrite an existing file, in place: its links, its permissions and the programs that have it open stay
    #[arg(short, long)]
    force: bool,

    /// Print the SHA-256 of what was moved
    #[arg(long)]
    checksum: bool,

    /// Move the data in messages, signed if the session has a key
    #[arg(long)]
    messages: bool,

    #[command(flatten)]
    pub(crate) options: SmbOptions,
}

const EXAMPLES: &str = "\x1b[1m\x1b[4mExamples:\x1b[0m
  smbdirect get //fileserver/data/big.iso --user me
  smbdirect get //10.0.0.2:5445/data/logs/today.txt /tmp --user 'CORP\\me' --checksum
  smbdirect get //fileserver/public/readme.txt --password-fd 3 --user me 3<password

\x1b[1m\x1b[4mWith --json:\x1b[0m
  {\"event\":\"connected\", address, transport, negotiated, dialect, signs, rdma, reason}
  {\"event\":\"file\", place, file, bytes, grew_from, bytes_by_rdma, method (rdma_write,
   messages), reason, seconds, bytes_per_second, sha256}";

/// What the server does to move the bytes.
const OPERATION: &str = "RDMA Write";

impl Get {
    pub(crate) async fn run(self) -> Result<bool> {
        let report = Report::new(self.options.common.json);
        let destination = self.destination()?;
        let place = &self.place;
        let mut interrupted = Interrupted::new();
        let opening = self.options.open(place, self.messages, &report);
        let session = unless(&mut interrupted, opening).await?;
        let got = self.fetch(&session, &destination, &report, &mut interrupted);
        let got = got.await;
        end(session, &mut interrupted).await;
        got?;
        Ok(true)
    }

    /// Returns where to store the file.
    fn destination(&self) -> Result<Destination> {
        if self.place.is_directory {
            return Err(usage(format!(
                "{} is a folder; give the path of a file",
                self.place
            )));
        }
        let name = Path::new(self.place.name());
        let path = match &self.file {
            None => name.to_owned(),
            Some(folder) if folder.is_dir() => folder.join(name),
            Some(file) => file.clone(),
        };
        Destination::check(path, self.force)
    }

    async fn fetch(
        &self,
        session: &Session,
        destination: &Destination,
        report: &Report,
        interrupted: &mut Interrupted,
    ) -> Result<()> {
        let place = &self.place;
        let file = unless(interrupted, session.open(place)).await?;
        // If this fails, the local file is removed before the wait for the server.
        let storing = self.store(session, &file, destination, report);
        let fetched = unless(interrupted, storing).await;
        // The file is whole, so no signal makes this a failure any more.
        let fetched = fetched.map(|outcome| outcome.report(report));
        if !interrupted.is_urgent() {
            // The bytes are here, so a failure to close the file does not matter.
            let closing = async { Ok(timeout(GIVE_UP_TIMEOUT, file.close()).await) };
            let _ = unless_urgent(interrupted, closing).await;
        }
        Ok(fetched?)
    }

    async fn store(
        &self,
        session: &Session,
        file: &File,
        destination: &Destination,
        report: &Report,
    ) -> Result<Outcome> {
        let place = &self.place;
        let mut target = destination.open(file.length())?;
        let bar = report.progress(file.length(), place.name());
        let started = Instant::now();
        let mut sum = self.checksum.then(Sha256::new);
        let sink = |bytes: &[u8]| {
            block_in_place(|| {
                if let Some(sum) = &mut sum {
                    sum.update(bytes);
                }
                target.write(bytes)
            })?;
            bar.inc(bytes.len() as u64);
            Ok(())
        };
        let moved = file.download(sink).await.map_err(|error| match error {
            Error::Local(error) => not_written(destination.path(), &error),
            error => explain(error, place),
        })?;
        bar.finish_and_clear();
        let (length, bytes) = (file.length(), moved.bytes);
        if bytes < length {
            let error = anyhow!(
                "{place} ended after {bytes} of {length} bytes: it became shorter, or the server sends no more"
            );
            return Err(of_kind(Kind::Path, error));
        }
        target.finish()?;
        let took = started.elapsed();
        let grew_from = if bytes > length {
            // Files of /proc and the like have more bytes than the server says, and do not grow.
            let now = session.share.stat(&place.path).await;
            now.is_ok_and(|now| now.size > length).then_some(length)
        } else {
            None
        };
        Ok(Outcome {
            place: place.to_string(),
            file: destination.path().to_owned(),
            moved,
            grew_from,
            transfer: session.share.transfer(),
            operation: OPERATION,
            took,
            sum,
        })
    }
}
