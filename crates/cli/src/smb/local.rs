//! Files of this machine: the one that `get` stores, and the one that `put` sends.
//!
//! A new file has no name until it is whole. Where the file system has no such files, it is created under its name,
//! and removed when the command ends before it is whole. A file that exists is written in place with `--force`, as cp
//! and curl do: links, permissions and the processes that have it open stay.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    path::{self, Path, PathBuf},
};

use anyhow::{Error, Result, anyhow};
use smbdirect_transport::text;

use crate::{
    failure::{Kind, of_kind},
    options::usage,
    report,
};

/// A place for a file. Everything was checked that can be without opening a file.
pub(super) struct Destination {
    path: PathBuf,
    exists: bool,
}

impl Destination {
    /// Checks that a file can be stored at `path`.
    pub(super) fn check(path: PathBuf, force: bool) -> Result<Self> {
        let exists = match path.symlink_metadata() {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(not_written(&path, &error)),
        };
        if path.metadata().is_ok_and(|found| !found.is_file()) {
            let shown = path.display();
            let error = anyhow!("{shown} is no regular file; give the path of a file");
            return Err(of_kind(Kind::File, error));
        }
        if exists && !force {
            return Err(self::exists(&path));
        }
        let is_folder = path.as_os_str().as_encoded_bytes().last();
        let is_folder = is_folder.is_some_and(|&last| path::is_separator(last.into()));
        if !exists && (is_folder || !folder(&path).is_dir()) {
            let error = anyhow!("{}: its folder does not exist", path.display());
            return Err(of_kind(Kind::File, error));
        }
        Ok(Self { path, exists })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file for `length` bytes.
    pub(super) fn open(&self, length: u64) -> Result<Target> {
        let path = &self.path;
        let (file, state) = self.create().map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => exists(path),
            _ => not_written(path, &error),
        })?;
        let target = Target {
            file: Some(file),
            path: path.clone(),
            state,
            written: 0,
        };
        target.check_room(length)?;
        Ok(target)
    }

    fn create(&self) -> io::Result<(File, State)> {
        if self.exists {
            let mut options = OpenOptions::new();
            let opened = options.write(true).open(&self.path);
            let file = match opened {
                // A link can lead to a file that does not exist yet. The system may refuse this for a file of another
                // user, so it is not tried first.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    options.create(true).truncate(false).open(&self.path)
                }
                opened => opened,
            };
            return Ok((file?, State::InPlace));
        }
        match nameless::create(folder(&self.path)) {
            Some(file) => Ok((file, State::Nameless)),
            None => Ok((File::create_new(&self.path)?, State::New)),
        }
    }
}

/// A file that is being stored. If it is dropped before [`finish`](Self::finish), a new file is removed, and a file that
/// was written in place is reported as incomplete.
pub(super) struct Target {
    /// `None` once it is whole.
    file: Option<File>,
    path: PathBuf,
    state: State,
    /// Bytes from the beginning of the file.
    written: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The file gets its name when it is whole.
    Nameless,
    /// The file is new, and has its name.
    New,
    /// The file existed before.
    InPlace,
}

impl Target {
    /// Appends bytes.
    pub(super) fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let mut file = self.file.as_ref().expect("it is not finished");
        // What was written before an error counts.
        while !bytes.is_empty() {
            match file.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.written += written as u64;
                    bytes = &bytes[written..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Gives the file its length, and its name if it has none yet.
    pub(super) fn finish(mut self) -> Result<()> {
        self.complete().map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => exists(&self.path),
            _ => not_written(&self.path, &error),
        })
    }

    fn complete(&mut self) -> io::Result<()> {
        let file = self.file.as_ref().expect("it is not finished");
        match self.state {
            State::Nameless => {
                nameless::name(file, &self.path)?;
                self.state = State::New;
            }
            State::New => {}
            State::InPlace => file.set_len(self.written)?,
        }
        let file = self.file.take().expect("it is not finished");
        close(file).inspect_err(|_| self.undo())
    }

    /// Fails if the file system has no room for `length` bytes, as far as it says.
    fn check_room(&self, length: u64) -> Result<()> {
        let file = self.file.as_ref().expect("it is not finished");
        match room(file) {
            Some(room) if length > room => {
                let shown = self.path.display();
                let (length, room) = (text::bytes(length), text::bytes(room));
                let error = anyhow!(
                    "{shown}: the file has {length}, and its file system has room for {room}"
                );
                Err(of_kind(Kind::File, error))
            }
            _ => Ok(()),
        }
    }

    /// Removes a new file, and reports one that was written in place.
    fn undo(&self) {
        match self.state {
            State::Nameless => {}
            State::New => {
                if let Err(error) = fs::remove_file(&self.path) {
                    report::error(&not_written(&self.path, &error));
                }
            }
            State::InPlace if self.written == 0 => {}
            State::InPlace => {
                let error = anyhow!(
                    "{} is now incomplete: its first {} are new, and the rest is the old file",
                    self.path.display(),
                    text::bytes(self.written)
                );
                report::error(&of_kind(Kind::File, error));
            }
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            self.undo();
        }
    }
}

/// Returns the folder that a path is in.
fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn exists(path: &Path) -> Error {
    let error = anyhow!("{} exists; --force overwrites it", path.display());
    of_kind(Kind::File, error)
}

/// Returns the error for a file that cannot be stored.
pub(super) fn not_written(path: &Path, error: &io::Error) -> Error {
    let (shown, error) = (path.display(), report::plain(error));
    of_kind(Kind::File, anyhow!("{shown} cannot be written: {error}"))
}

/// Closes a file. File systems of a network report here what they could not store.
#[cfg(target_os = "linux")]
fn close(file: File) -> io::Result<()> {
    Ok(nix::unistd::close(file)?)
}

#[cfg(not(target_os = "linux"))]
fn close(file: File) -> io::Result<()> {
    drop(file);
    Ok(())
}

/// Returns the greatest length for which the file system has room: what the file takes, and what is free. `None` if the
/// file system does not say.
#[cfg(target_os = "linux")]
fn room(file: &File) -> Option<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let system = rustix::fs::fstatvfs(file).ok()?;
    let taken = file.metadata().ok()?.blocks().saturating_mul(512);
    let free = system.f_bfree.saturating_mul(system.f_frsize);
    (system.f_blocks > 0).then(|| free.saturating_add(taken))
}

#[cfg(not(target_os = "linux"))]
const fn room(_: &File) -> Option<u64> {
    None
}

#[cfg(target_os = "linux")]
mod nameless {
    use std::{
        fs::{self, File},
        io::{self, Seek as _},
        os::fd::AsRawFd,
        path::Path,
    };

    use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};

    /// The folder of open files of the process, by which a file without a name can be linked.
    const OPEN_FILES: &str = "/proc/self/fd";

    /// Creates a file without a name in `folder`, if the file system supports it.
    pub(super) fn create(folder: &Path) -> Option<File> {
        if fs::metadata(OPEN_FILES).is_err() {
            return None;
        }
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        open(folder, flags, Mode::from_raw_mode(0o666))
            .ok()
            .map(File::from)
    }

    /// Gives the file its name if the name is free. On a file system without links it is copied.
    pub(super) fn name(mut file: &File, path: &Path) -> io::Result<()> {
        let opened = format!("{OPEN_FILES}/{}", file.as_raw_fd());
        let linked = linkat(CWD, opened, CWD, path, AtFlags::SYMLINK_FOLLOW);
        if linked.is_ok() {
            return Ok(());
        }
        let mut copy = File::create_new(path)?;
        let copied = file
            .rewind()
            .and_then(|()| io::copy(&mut file, &mut copy))
            .and_then(|_| super::close(copy));
        if copied.is_err() {
            fs::remove_file(path)?;
        }
        copied
    }
}

#[cfg(not(target_os = "linux"))]
mod nameless {
    use std::{fs::File, io, path::Path};

    pub(super) const fn create(_: &Path) -> Option<File> {
        None
    }

    pub(super) fn name(_: &File, _: &Path) -> io::Result<()> {
        Ok(())
    }
}

/// A file to send.
pub(super) struct Source {
    file: File,
    path: PathBuf,
    /// Length of the file when it was opened, as the file system gave it.
    pub(super) length: u64,
}

impl Source {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let shown = path.display();
        let fail = |what: &str, error: &io::Error| {
            let error = anyhow!("{shown} cannot be {what}: {}", report::plain(error));
            of_kind(Kind::File, error)
        };
        // A FIFO would wait for its writer when it is opened, and Windows does not open folders.
        let metadata = path.metadata().map_err(|error| fail("opened", &error))?;
        if !metadata.is_file() {
            return Err(usage(format!("{shown} is not a regular file")));
        }
        let file = File::open(path).map_err(|error| fail("opened", &error))?;
        let metadata = file.metadata().map_err(|error| fail("read", &error))?;
        Ok(Self {
            file,
            path: path.to_owned(),
            length: metadata.len(),
        })
    }

    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.file.read(into)
    }

    /// Returns the name for a file in a folder of a server.
    pub(super) fn name(&self) -> Result<&str> {
        let name = self.path.file_name().and_then(|name| name.to_str());
        name.ok_or_else(|| {
            let shown = self.path.display();
            usage(format!(
                "the name of {shown} is not UTF-8; name the file on the server, too"
            ))
        })
    }

    /// Fails if the file became shorter while its `read` bytes were read. Files of /proc and the like have another length
    /// than their file system says, and are whole.
    pub(super) fn check_end(&self, read: u64) -> Result<()> {
        let now = self
            .file
            .metadata()
            .map_err(|error| self.not_read(&error))?;
        if read >= self.length || now.len() >= self.length {
            return Ok(());
        }
        let error = anyhow!(
            "{} became shorter while it was read: {read} of {} bytes",
            self.path.display(),
            self.length
        );
        Err(of_kind(Kind::File, error))
    }

    /// Returns the length that the file had when it was opened, if it has grown to `read` bytes since.
    pub(super) fn grew_from(&self, read: u64) -> Option<u64> {
        let has_grown = self
            .file
            .metadata()
            .is_ok_and(|now| now.len() > self.length);
        (has_grown && read > self.length).then_some(self.length)
    }

    /// Returns the error for a file that cannot be read.
    pub(super) fn not_read(&self, error: &io::Error) -> Error {
        let (shown, error) = (self.path.display(), report::plain(error));
        of_kind(Kind::File, anyhow!("{shown} cannot be read: {error}"))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    /// A file in memory cannot be linked, like a file on a file system without links.
    #[test]
    fn a_file_that_cannot_be_linked_is_copied() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("copy");
        let nameless: OwnedFd = memfd_create("nameless", MemfdFlags::CLOEXEC).unwrap();
        let mut nameless = File::from(nameless);
        let bytes: Vec<u8> = (0..100_000_u32).map(|number| number as u8).collect();
        nameless.write_all(&bytes).unwrap();
        nameless::name(&nameless, &path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), bytes);

        fs::write(&path, "of another").unwrap();
        let error = nameless::name(&nameless, &path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"of another");
        // A copy that fails, here because no bytes come from a folder, leaves nothing.
        let path = folder.path().join("failed");
        let unreadable = File::open(folder.path()).unwrap();
        assert!(nameless::name(&unreadable, &path).is_err());
        assert!(!path.exists());
    }
}
