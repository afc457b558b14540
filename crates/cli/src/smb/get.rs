//! `smbdirect get`: fetches a file from an SMB server.

use std::{
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result, anyhow};
use bytes::BytesMut;
use clap::Args;
use indicatif::ProgressBar;
use sha2::{Digest, Sha256};
use smbdirect_smb2::{File, Read};
use tempfile::NamedTempFile;
use tokio::{task::block_in_place, time::timeout};

use crate::{
    failure::{Kind, of_kind},
    options::{usage, with_profiles},
    report::Report,
    signals::{Interrupted, unless, unless_urgent},
};

use super::{
    outcome::{Outcome, hexadecimal},
    pipeline::{GIVE_UP_TIMEOUT, Pipeline, Shape, end},
    place::Place,
    session::{Moved, Session, SmbOptions, explain},
};

/// Fetch a file from an SMB server over SMB Direct
///
/// The server writes the bytes into memory here by RDMA Write, where the session allows it: SMB 3.0 or
/// newer, no signing required, no encryption. Otherwise they come in messages, and the last line says
/// why. An existing FILE is never overwritten without --force, and a failed transfer leaves no file.
#[derive(Debug, Args)]
#[command(after_help = with_profiles(EXAMPLES))]
pub(crate) struct Get {
    /// The file to fetch: //SERVER[:PORT]/SHARE/PATH
    #[arg(value_name = "PLACE")]
    place: Place,

    /// Where to store it: a file, or a folder [default: its name, in the current folder]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    /// Replace an existing file
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
  {\"event\":\"file\", place, file, bytes, bytes_by_rdma, method (rdma_write, messages), reason,
   seconds, bytes_per_second, sha256}";

/// What the server does to move the bytes.
const OPERATION: &str = "RDMA Write";

impl Get {
    pub(crate) async fn run(self) -> Result<bool> {
        let report = Report::new(self.options.common.json);
        let target = self.target()?;
        let place = &self.place;
        let mut interrupted = Interrupted::new();
        let opening = self.options.open(place, self.messages, &report);
        let session = unless(&mut interrupted, opening).await?;
        let got = self.fetch(&session, &target, &report, &mut interrupted);
        let got = got.await;
        end(session, &mut interrupted).await;
        got?;
        Ok(true)
    }

    /// Returns the path of the file to store.
    fn target(&self) -> Result<PathBuf> {
        if self.place.is_directory {
            return Err(usage(format!(
                "{} is a folder; give the path of a file",
                self.place
            )));
        }
        let name = Path::new(self.place.name());
        let target = match &self.file {
            None => name.to_owned(),
            Some(folder) if folder.is_dir() => folder.join(name),
            Some(file) => file.clone(),
        };
        if !self.force && target.symlink_metadata().is_ok() {
            return Err(exists(&target));
        }
        // The file gets its name by a rename, which would take the place of a device such as /dev/null.
        if target.metadata().is_ok_and(|found| !found.is_file()) {
            let error = anyhow!(
                "{} is no regular file, and is not replaced; give the path of a file",
                target.display()
            );
            return Err(of_kind(Kind::File, error));
        }
        Ok(target)
    }

    async fn fetch(
        &self,
        session: &Session,
        target: &Path,
        report: &Report,
        interrupted: &mut Interrupted,
    ) -> Result<()> {
        let place = &self.place;
        let file = unless(interrupted, session.open(place)).await?;
        // If this fails, the local file is removed before the wait for the server.
        let fetched = unless(interrupted, self.store(session, &file, target, report)).await;
        if let Ok(outcome) = &fetched {
            // The file has its name, so no signal makes this a failure any more.
            outcome.report(report);
        }
        if !interrupted.is_urgent() {
            // The bytes are here, so a failure to close the file does not matter.
            let closing = async { Ok(timeout(GIVE_UP_TIMEOUT, file.close()).await) };
            let _ = unless_urgent(interrupted, closing).await;
        }
        fetched?;
        Ok(())
    }

    async fn store(
        &self,
        session: &Session,
        file: &File,
        target: &Path,
        report: &Report,
    ) -> Result<Outcome> {
        let place = &self.place;
        let mut stored =
            unnamed(target).with_context(|| format!("{} cannot be written", target.display()))?;
        let bar = report.progress(file.length(), place.name());
        let started = Instant::now();
        let mut sum = self.checksum.then(Sha256::new);
        let moved = self
            .receive(session, file, &mut stored, &mut sum, &bar)
            .await;
        bar.finish_and_clear();
        let moved = moved?;
        keep(stored, target, self.force)?;
        let took = started.elapsed();
        Ok(Outcome {
            place: place.to_string(),
            file: target.to_owned(),
            moved,
            transfer: session.share.transfer(),
            operation: OPERATION,
            took,
            sum: sum.map(|sum| hexadecimal(&sum.finalize())),
        })
    }

    /// Reads the file into `stored`, with several requests outstanding.
    async fn receive(
        &self,
        session: &Session,
        file: &File,
        stored: &mut NamedTempFile,
        sum: &mut Option<Sha256>,
        bar: &ProgressBar,
    ) -> Result<Moved> {
        let shape = Shape::of(&session.share);
        let mut pipeline = Pipeline::new();
        let mut moved = Moved {
            bytes: 0,
            by_rdma: 0,
        };
        let mut asked = 0;
        let mut spare: Vec<BytesMut> = Vec::new();
        while moved.bytes < file.length() {
            while asked < file.length() && pipeline.len() < shape.outstanding {
                let left = usize::try_from(file.length() - asked).unwrap_or(usize::MAX);
                let mut buffer = spare.pop().unwrap_or_default();
                buffer.resize(left.min(shape.request_bytes), 0);
                let (file, at, length) = (file.clone(), asked, buffer.len());
                asked += length as u64;
                pipeline.push(async move { Ok((file.read(at, buffer).await?, length)) });
            }
            let next = pipeline.next().await.expect("the file has more bytes");
            let (Read { data, by_rdma, .. }, length) =
                next.map_err(|error| explain(error, &self.place))?;
            if data.len() < length {
                let end = moved.bytes + data.len() as u64;
                let error = anyhow!(
                    "{} ended after {end} of {} bytes: it became shorter, or the server sends no more",
                    self.place,
                    file.length()
                );
                return Err(of_kind(Kind::Path, error));
            }
            block_in_place(|| {
                if let Some(sum) = sum {
                    sum.update(&data);
                }
                stored.write_all(&data)
            })
            .context("the file cannot be written")?;
            moved.bytes += length as u64;
            moved.by_rdma += by_rdma as u64;
            bar.set_position(moved.bytes);
            spare.push(data);
        }
        Ok(moved)
    }
}

/// Returns the error for a file that must not be replaced.
fn exists(target: &Path) -> anyhow::Error {
    let error = anyhow!("{} exists; --force replaces it", target.display());
    of_kind(Kind::File, error)
}

/// Creates a file next to `target` that is removed unless it is kept.
fn unnamed(target: &Path) -> io::Result<NamedTempFile> {
    let folder = match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".smbdirect-").suffix(".partial");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The process's umask applies, as for any new file.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
}

/// Gives a complete file its name.
fn keep(stored: NamedTempFile, target: &Path, force: bool) -> Result<()> {
    let kept = if force {
        stored.persist(target)
    } else {
        stored.persist_noclobber(target)
    };
    match kept {
        Ok(_) => Ok(()),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Err(exists(target)),
        Err(error) => {
            Err(error.error).with_context(|| format!("{} cannot be written", target.display()))
        }
    }
}
