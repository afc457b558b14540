//! `smbdirect put`: stores a file on an SMB server.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result, anyhow};
use bytes::BytesMut;
use clap::Args;
use indicatif::ProgressBar;
use sha2::{Digest, Sha256};
use smb2::types::status::NtStatus;
use smbdirect_smb2::{File, OpenMode, Share};
use tokio::{task::block_in_place, time::timeout};

use crate::{
    failure::{Kind, OfKind, of_kind},
    options::{usage, with_profiles},
    report::{self, Report},
    signals::{Interrupted, Stopped, unless, unless_urgent},
};

use super::{
    outcome::{Outcome, hexadecimal},
    pipeline::{GIVE_UP_TIMEOUT, Pipeline, Shape, end, unless_late},
    place::Place,
    session::{Moved, Session, SmbOptions, explain},
};

/// Store a file on an SMB server over SMB Direct
///
/// The server reads the bytes from memory here by RDMA Read, where the session allows it: SMB 3.0 or
/// newer, no signing required, no encryption. Otherwise they go in messages, and the last line says why.
/// An existing file is never overwritten without --force. The file gets its name when it is complete, and
/// a failed transfer leaves no file.
#[derive(Debug, Args)]
#[command(after_help = with_profiles(EXAMPLES))]
pub(crate) struct Put {
    /// The file to store
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Where to store it: //SERVER[:PORT]/SHARE/PATH, a file or a folder
    #[arg(value_name = "PLACE")]
    place: Place,

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
  smbdirect put big.iso //fileserver/data --user me
  smbdirect put big.iso //10.0.0.2:5445/data/images/new.iso --user me --force --checksum

\x1b[1m\x1b[4mWith --json:\x1b[0m
  {\"event\":\"connected\", address, transport, negotiated, dialect, signs, rdma, reason}
  {\"event\":\"file\", place, file, bytes, bytes_by_rdma, method (rdma_read, messages), reason,
   seconds, bytes_per_second, sha256}";

/// What the server does to move the bytes.
const OPERATION: &str = "RDMA Read";

impl Put {
    pub(crate) async fn run(self) -> Result<bool> {
        let report = Report::new(self.options.common.json);
        let mut source = Source::open(&self.file)?;
        let mut interrupted = Interrupted::new();
        let opening = self.options.open(&self.place, self.messages, &report);
        let session = unless(&mut interrupted, opening).await?;
        let stored = self.store(&session, &mut source, &report, &mut interrupted);
        let stored = stored.await;
        end(session, &mut interrupted).await;
        stored?.report(&report);
        Ok(true)
    }

    async fn store(
        &self,
        session: &Session,
        source: &mut Source,
        report: &Report,
        interrupted: &mut Interrupted,
    ) -> Result<Outcome> {
        let share = &session.share;
        let place = unless(interrupted, self.target(share)).await?;
        let partial = place.sibling(&format!(".smbdirect-{:016x}.partial", fastrand::u64(..)));
        let unfinished = Unfinished {
            share,
            place: &place,
            partial: &partial,
        };
        let fail = |error| explain(error, &place);
        let opening = async {
            let opened = share.open(&partial, OpenMode::CreateTemporary).await;
            opened.map_err(fail)
        };
        // The server may have created the file already, so a signal does not end this immediately.
        let opened = unless_late(interrupted, opening).await;
        let file = opened.map_err(|stopped| match stopped {
            Stopped::Interrupted => unfinished.left(stopped),
            Stopped::Failed(error) => error,
        })?;
        let bar = report.progress(source.length, place.name());
        let started = Instant::now();
        let mut sum = self.checksum.then(Sha256::new);
        let sent = if interrupted.is_signalled() {
            Err(Stopped::Interrupted)
        } else {
            let sending = send(source, share, &file, &mut sum, &bar, &place);
            unless(interrupted, sending).await
        };
        bar.finish_and_clear();
        let moved = match sent {
            Ok(moved) => moved,
            Err(stopped) => return Err(unfinished.remove(file, stopped, interrupted).await),
        };
        // The file is complete, so a signal does not end this immediately.
        let is_temporary = file.is_temporary();
        let naming = async { Ok(unfinished.name(&file, self.force).await) };
        match unless_late(interrupted, naming).await {
            Ok(Ok(())) => Ok(Outcome {
                place: place.to_string(),
                file: self.file.clone(),
                moved,
                transfer: share.transfer(),
                operation: OPERATION,
                took: started.elapsed(),
                sum: sum.map(|sum| hexadecimal(&sum.finalize())),
            }),
            Ok(Err(error)) => {
                let is_refused = error.status().is_some();
                let stopped = Stopped::Failed(explain(error, &place));
                if is_refused {
                    return Err(unfinished.remove(file, stopped, interrupted).await);
                }
                Err(unfinished.unknown(is_temporary, stopped))
            }
            Err(stopped) => Err(unfinished.unknown(is_temporary, stopped)),
        }
    }

    /// Returns the place of the file to store: in a folder it gets the name of the source.
    async fn target(&self, share: &Share) -> Result<Place> {
        let name = self.file.file_name().unwrap_or_default();
        let name = name.to_string_lossy();
        let place = &self.place;
        if place.is_directory {
            let place = place.entry(&name);
            return self.check_free(share, place).await;
        }
        match share.stat(&place.path).await {
            Ok(info) if info.is_directory => self.check_free(share, place.entry(&name)).await,
            Ok(_) if !self.force => Err(exists(place)),
            Ok(_) => Ok(place.clone()),
            Err(error) if error.status() == Some(NtStatus::OBJECT_NAME_NOT_FOUND) => {
                Ok(place.clone())
            }
            Err(error) => Err(explain(error, place)),
        }
    }

    /// Fails if a file is at the place, and must not be replaced.
    async fn check_free(&self, share: &Share, place: Place) -> Result<Place> {
        match share.stat(&place.path).await {
            Ok(info) if info.is_directory => {
                let error = anyhow!("{place} is a folder; give the path of a file");
                Err(of_kind(Kind::Path, error))
            }
            Ok(_) if !self.force => Err(exists(&place)),
            Ok(_) => Ok(place),
            Err(error) if error.status() == Some(NtStatus::OBJECT_NAME_NOT_FOUND) => Ok(place),
            Err(error) => Err(explain(error, &place)),
        }
    }
}

/// Returns the error for a file that must not be replaced.
fn exists(place: &Place) -> anyhow::Error {
    let error = anyhow!("{place} exists; --force replaces it");
    of_kind(Kind::Path, error)
}

/// The file to store.
struct Source {
    file: fs::File,
    path: PathBuf,
    length: u64,
}

impl Source {
    fn open(path: &Path) -> Result<Self> {
        let shown = path.display();
        let not_a_file = || usage(format!("{shown} is not a regular file"));
        // Windows does not open directories, and its error names another reason.
        if path.is_dir() {
            return Err(not_a_file());
        }
        let file = fs::File::open(path)
            .map_err(|error| anyhow!("{shown} cannot be opened: {}", report::plain(&error)))
            .of_kind(Kind::File)?;
        let metadata = file.metadata();
        let metadata = metadata.with_context(|| format!("{shown} cannot be examined"))?;
        if !metadata.is_file() {
            return Err(not_a_file());
        }
        Ok(Self {
            file,
            path: path.to_owned(),
            length: metadata.len(),
        })
    }
}

/// Writes the source to `file`, with several requests outstanding.
async fn send(
    source: &mut Source,
    share: &Share,
    file: &File,
    sum: &mut Option<Sha256>,
    bar: &ProgressBar,
    place: &Place,
) -> Result<Moved> {
    let shape = Shape::of(share);
    let mut pipeline = Pipeline::new();
    let mut moved = Moved {
        bytes: 0,
        by_rdma: 0,
    };
    let mut asked = 0;
    let mut spare: Vec<BytesMut> = Vec::new();
    while moved.bytes < source.length {
        while asked < source.length && pipeline.len() < shape.outstanding {
            let left = usize::try_from(source.length - asked).unwrap_or(usize::MAX);
            let mut buffer = spare.pop().unwrap_or_default();
            buffer.resize(left.min(shape.request_bytes), 0);
            let read = block_in_place(|| {
                source.file.read_exact(&mut buffer)?;
                if let Some(sum) = sum {
                    sum.update(&buffer);
                }
                Ok::<_, std::io::Error>(())
            });
            // It became shorter, or the disk failed.
            read.with_context(|| format!("{} cannot be read", source.path.display()))?;
            let (file, at) = (file.clone(), asked);
            asked += buffer.len() as u64;
            pipeline.push(async move { file.write(at, buffer).await });
        }
        let next = pipeline.next().await.expect("the file has more bytes");
        let written = next.map_err(|error| explain(error, place))?;
        moved.bytes += written.data.len() as u64;
        moved.by_rdma += written.by_rdma as u64;
        bar.set_position(moved.bytes);
        spare.push(written.data);
    }
    Ok(moved)
}

/// A file on the server that does not have its name yet.
struct Unfinished<'a> {
    share: &'a Share,
    place: &'a Place,
    /// Its path.
    partial: &'a str,
}

impl Unfinished<'_> {
    /// Gives the complete file its name, and closes it.
    async fn name(&self, file: &File, force: bool) -> Result<(), smbdirect_smb2::Error> {
        file.keep_as(&self.place.path, force).await?;
        let closed = file.clone().close().await;
        if closed.as_ref().is_err_and(|error| error.status().is_some()) {
            // The server lost data, for example because its disk is full. This fails if the file is lost too.
            let _ = self.share.delete(&self.place.path).await;
        }
        closed
    }

    /// Reports the state of the file on the server if the server did not answer the request for the name. Returns
    /// the error to report. A file that `is_temporary` is complete, or the server deletes it.
    fn unknown(&self, is_temporary: bool, stopped: Stopped) -> anyhow::Error {
        let place = report::printable(&self.place.to_string());
        let notice = anyhow!(
            "the server did not confirm the file's name; if {place} exists, it is complete"
        );
        report::error(&of_kind(Kind::Path, notice));
        if is_temporary {
            stopped.into()
        } else {
            self.left(stopped)
        }
    }

    /// Removes the file, or reports that it may remain on the server. Returns the error that stopped the transfer.
    async fn remove(
        &self,
        file: File,
        stopped: Stopped,
        interrupted: &mut Interrupted,
    ) -> anyhow::Error {
        if interrupted.is_urgent() {
            return self.left(stopped);
        }
        let is_temporary = file.is_temporary();
        let removing = async {
            // The file may be closed already. Closing a temporary file also deletes it.
            let closed = file.close().await;
            if is_temporary {
                return closed;
            }
            match self.share.delete(self.partial).await {
                Err(error) if error.status() != Some(NtStatus::OBJECT_NAME_NOT_FOUND) => Err(error),
                _ => Ok(()),
            }
        };
        let removing = async { Ok(timeout(GIVE_UP_TIMEOUT, removing).await) };
        match unless_urgent(interrupted, removing).await {
            Ok(Ok(Ok(()))) => {}
            Ok(_) if is_temporary => {
                let notice = anyhow!(
                    "the server deletes the unfinished file `{}` when it notices the end of the connection",
                    self.shown()
                );
                report::error(&of_kind(Kind::Path, notice));
            }
            _ => return self.left(stopped),
        }
        stopped.into()
    }

    /// Reports that the unfinished file may be left on the server, and returns the error that stopped the transfer.
    fn left(&self, stopped: Stopped) -> anyhow::Error {
        let notice = anyhow!(
            "the unfinished file `{}` may be left on the server; delete it there",
            self.shown()
        );
        report::error(&of_kind(Kind::Path, notice));
        stopped.into()
    }

    /// Returns the path of the file in the share.
    fn shown(&self) -> String {
        report::printable(self.partial)
    }
}
