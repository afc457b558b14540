//! `smbdirect put`: stores a file on an SMB server.

use std::{path::PathBuf, time::Instant};

use anyhow::{Result, anyhow};
use clap::Args;
use sha2::{Digest, Sha256};
use smb2::types::status::NtStatus;
use smbdirect_smb2::{Error, File, Moved, OpenMode, Share};
use smbdirect_transport::text;
use tokio::{task::block_in_place, time::timeout};

use crate::{
    failure::{Kind, of_kind},
    options::with_profiles,
    report::{self, Report},
    signals::{Interrupted, Stopped, unless, unless_urgent},
};

use super::{
    ending::{GIVE_UP_TIMEOUT, end, unless_late},
    local::Source,
    outcome::Outcome,
    place::Place,
    session::{Session, SmbOptions, explain},
};

/// Store a file on an SMB server over SMB Direct
///
/// The server reads the bytes from memory here by RDMA Read, where the session allows it: SMB 3.0 or
/// newer, no signing required, no encryption. Otherwise they go in messages, and the last line says why.
/// An existing file is never overwritten without --force. A new file is temporary until it is whole: the server deletes
/// it if the transfer fails or the connection ends.
#[derive(Debug, Args)]
#[command(after_help = with_profiles(EXAMPLES))]
pub(crate) struct Put {
    /// The file to store
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Where to store it: //SERVER[:PORT]/SHARE/PATH, a file or a folder
    #[arg(value_name = "PLACE")]
    place: Place,

    /// Overwrite an existing file, in place: its permissions, its streams and those who have it open stay
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
  {\"event\":\"file\", place, file, bytes, grew_from, bytes_by_rdma, method (rdma_read,
   messages), reason, seconds, bytes_per_second, sha256}";

/// What the server does to move the bytes.
const OPERATION: &str = "RDMA Read";

impl Put {
    pub(crate) async fn run(self) -> Result<bool> {
        let report = Report::new(self.options.common.json);
        let mut source = Source::open(&self.file)?;
        if self.place.is_directory {
            source.name()?;
        }
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
        // The server may have created the file already, so a signal does not end this immediately.
        let opened = unless_late(interrupted, self.open(share, source)).await;
        let mut target = opened.map_err(|stopped| match stopped {
            Stopped::Interrupted => {
                let place = report::printable(&self.place.to_string());
                let notice = format!(
                    "the server has not answered: an old file at {place} is unchanged, and a new file there is empty, or \
                     the server deletes it"
                );
                after(notice, stopped)
            }
            Stopped::Failed(error) => error,
        })?;
        let started = Instant::now();
        let mut sum = self.checksum.then(Sha256::new);
        let sent = if interrupted.is_signalled() {
            Err(Stopped::Interrupted)
        } else {
            let sending = target.send(source, &mut sum, report);
            unless(interrupted, sending).await
        };
        let moved = match sent {
            Ok(moved) => moved,
            Err(stopped) => return Err(target.give_up(stopped, share, interrupted).await),
        };
        // The bytes are there, so a signal does not end this immediately.
        let finishing = async { Ok(target.finish(moved.bytes).await) };
        let stopped = match unless_late(interrupted, finishing).await {
            Ok(Ok(())) => {
                return Ok(Outcome {
                    place: target.place.to_string(),
                    file: self.file.clone(),
                    moved,
                    grew_from: source.grew_from(moved.bytes),
                    transfer: share.transfer(),
                    operation: OPERATION,
                    took: started.elapsed(),
                    sum,
                });
            }
            Ok(Err(error)) if error.status().is_some() => {
                let stopped = Stopped::Failed(explain(error, &target.place));
                return Err(target.give_up(stopped, share, interrupted).await);
            }
            Ok(Err(error)) => Stopped::Failed(explain(error, &target.place)),
            Err(stopped) => stopped,
        };
        let place = report::printable(&target.place.to_string());
        let known = if target.is_new {
            format!("if {place} exists, it is complete")
        } else {
            format!("{place} has all new bytes; bytes of the old file may follow them")
        };
        let notice = format!("the server did not confirm the end; {known}");
        Err(after(notice, stopped))
    }

    /// Opens the file to store. In a folder it gets the name of the source.
    async fn open(&self, share: &Share, source: &Source) -> Result<Target> {
        let mut place = self.place.clone();
        if place.is_directory {
            place = place.entry(source.name()?);
        }
        let mut opened = self.open_at(share, &place).await;
        let is_folder = |error: &Error| error.status() == Some(NtStatus::FILE_IS_A_DIRECTORY);
        if !self.place.is_directory && opened.as_ref().is_err_and(is_folder) {
            place = place.entry(source.name()?);
            opened = self.open_at(share, &place).await;
        }
        let (file, is_new) = opened.map_err(|error| match error.status() {
            // The answer to the creation: some servers say so of the folder, and Samba of names that `veto files` hides.
            Some(NtStatus::OBJECT_NAME_NOT_FOUND) => {
                let error = anyhow!(
                    "{place}: its folder does not exist, or the server lets no file have this name"
                );
                of_kind(Kind::Path, error)
            }
            _ => explain(error, &place),
        })?;
        Ok(Target {
            file,
            place,
            is_new,
            sent: 0,
        })
    }

    /// Opens the file of `place`, and returns whether it is new.
    async fn open_at(&self, share: &Share, place: &Place) -> Result<(File, bool), Error> {
        let path = &place.path;
        if self.force {
            match share.open(path, OpenMode::Write).await {
                Err(error) if error.status() == Some(NtStatus::OBJECT_NAME_NOT_FOUND) => {}
                opened => return Ok((opened?, false)),
            }
        }
        let error = match share.open(path, OpenMode::New).await {
            Err(error) => error,
            Ok(file) => return Ok((file, true)),
        };
        let Error::Status { command, status } = error else {
            return Err(error);
        };
        let status = match status {
            // The status is the same for a folder, and for a file that is not finished.
            NtStatus::OBJECT_NAME_COLLISION => match share.stat(path).await {
                Ok(info) if info.is_directory => NtStatus::FILE_IS_A_DIRECTORY,
                Err(error) if error.status() == Some(NtStatus::DELETE_PENDING) => {
                    NtStatus::DELETE_PENDING
                }
                _ => status,
            },
            status => status,
        };
        Err(Error::Status { command, status })
    }
}

/// The file on the server. A new one is temporary, and one that exists is written in place.
struct Target {
    file: File,
    place: Place,
    is_new: bool,
    /// Bytes of the source that were read to be sent.
    sent: u64,
}

impl Target {
    /// Writes the source to the file, after a check of the room for it, and of locks.
    async fn send(
        &mut self,
        source: &mut Source,
        sum: &mut Option<Sha256>,
        report: &Report,
    ) -> Result<Moved> {
        let Self {
            file, place, sent, ..
        } = self;
        let fail = |error| explain(error, place);
        if !self.is_new {
            file.check_unlocked().await.map_err(fail)?;
        }
        if let Some(room) = file.room().await.map_err(fail)?
            && source.length > room
        {
            let (length, room) = (text::bytes(source.length), text::bytes(room));
            let error =
                anyhow!("{place}: the file has {length}, and the server has room for {room}");
            return Err(of_kind(Kind::Path, error));
        }
        let bar = report.progress(source.length, place.name());
        let read = |into: &mut [u8]| {
            let bytes = block_in_place(|| {
                let bytes = source.read(into)?;
                if let Some(sum) = sum {
                    sum.update(&into[..bytes]);
                }
                Ok::<_, std::io::Error>(bytes)
            })?;
            *sent += bytes as u64;
            bar.set_position(*sent);
            Ok(bytes)
        };
        let moved = file.upload(read).await;
        bar.finish_and_clear();
        let moved = moved.map_err(|error| match error {
            Error::Local(error) => source.not_read(&error),
            error => fail(error),
        })?;
        source.check_end(moved.bytes)?;
        Ok(moved)
    }

    /// Gives the file its length, keeps it, and closes it.
    async fn finish(&self, length: u64) -> Result<(), Error> {
        if self.is_new {
            self.file.keep().await?;
        } else if self.file.length() > length {
            self.file.set_length(length).await?;
        }
        self.file.clone().close().await
    }

    /// Removes a new file, or reports what is left. Returns the error that stopped the transfer.
    async fn give_up(
        &self,
        stopped: Stopped,
        share: &Share,
        interrupted: &mut Interrupted,
    ) -> anyhow::Error {
        let place = report::printable(&self.place.to_string());
        if !self.is_new {
            if self.sent == 0 {
                return stopped.into();
            }
            let notice = format!(
                "{place} is now incomplete: a part of it is new, and the rest is the old file"
            );
            return after(notice, stopped);
        }
        let is_temporary = self.file.is_temporary();
        let removing = async {
            // The file may be closed already, with an error: the server lost data. Closing a temporary file deletes it.
            let closed = self.file.clone().close().await;
            if is_temporary {
                return closed;
            }
            match share.delete(&self.place.path).await {
                Err(error) if error.status() != Some(NtStatus::OBJECT_NAME_NOT_FOUND) => Err(error),
                _ => Ok(()),
            }
        };
        let removing = async { Ok(timeout(GIVE_UP_TIMEOUT, removing).await) };
        match unless_urgent(interrupted, removing).await {
            Ok(Ok(Ok(()))) => stopped.into(),
            _ if is_temporary => {
                let notice = format!(
                    "the server deletes the unfinished {place} when it notices the end of the connection"
                );
                after(notice, stopped)
            }
            _ => {
                let notice =
                    format!("the unfinished {place} may be left on the server; delete it there");
                after(notice, stopped)
            }
        }
    }
}

/// Reports what the end of a transfer leaves, and returns the error that ended it.
fn after(notice: String, stopped: Stopped) -> anyhow::Error {
    report::error(&of_kind(Kind::Path, anyhow!(notice)));
    stopped.into()
}
