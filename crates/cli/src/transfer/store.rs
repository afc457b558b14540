//! Stores received files in a directory, without a name or under a temporary one until they are
//! complete and checked, and never over an existing file.
//!
//! On Linux, files without a name leave nothing however the receiver ends. Where they are not supported, a
//! temporary name is used, and the next receiver removes the files that killed receivers left.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use thiserror::Error;
use tracing::{debug, warn};

/// A destination for received files.
pub(crate) trait Store: Send + Sync {
    /// Starts a file. The name has been checked.
    fn create(&self, name: &str) -> io::Result<Box<dyn Target>>;
}

/// A file that is being received. Dropping it leaves nothing.
pub(crate) trait Target: Send {
    /// Appends bytes.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Gives the file its name.
    fn publish(self: Box<Self>) -> io::Result<()>;
}

/// A destination that stores nothing. The checksum is computed before the data is passed to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nowhere;

impl Store for Nowhere {
    fn create(&self, _name: &str) -> io::Result<Box<dyn Target>> {
        Ok(Box::new(Self))
    }
}

impl Target for Nowhere {
    fn write(&mut self, _bytes: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn publish(self: Box<Self>) -> io::Result<()> {
        Ok(())
    }
}

/// The reason why a name is not a plain file name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum NameFault {
    #[error("it is empty")]
    Empty,
    #[error("it is longer than {MAX_NAME_BYTES} bytes")]
    TooLong,
    #[error("it names a directory")]
    Directory,
    #[error("it has a path in it")]
    Path,
    #[error("it has a `\\`, which is a path on Windows")]
    Backslash,
    #[error("it has control characters in it")]
    Control,
    #[error("it is a device, a stream or a drive on Windows, or ends in a dot or a space")]
    NotOnWindows,
    #[error("names that begin with `{PREFIX}` are for files being received")]
    Reserved,
}

const MAX_NAME_BYTES: usize = 255;
/// Prefix of temporary file names.
const PREFIX: &str = ".smbdirect-";
/// Age up to which a temporary file without a lock is kept, because its receiver may not have
/// locked it yet.
const LOCK_GRACE_TIME: Duration = Duration::from_secs(10);

/// Checks that `name` is a plain file name: no path, nothing special.
///
/// # Errors
/// The reason why it is not.
pub(crate) fn check_name(name: &str) -> Result<(), NameFault> {
    if name.is_empty() {
        return Err(NameFault::Empty);
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(NameFault::TooLong);
    }
    if name == "." || name == ".." {
        return Err(NameFault::Directory);
    }
    if name.contains('/') {
        return Err(NameFault::Path);
    }
    // The backslash is a separator on other systems, to which the directory may be copied.
    if name.contains('\\') {
        return Err(NameFault::Backslash);
    }
    if name.contains(char::is_control) {
        return Err(NameFault::Control);
    }
    if name.starts_with(PREFIX) {
        return Err(NameFault::Reserved);
    }
    if cfg!(windows) && !is_file_name_on_windows(name) {
        return Err(NameFault::NotOnWindows);
    }
    Ok(())
}

/// Returns whether a name without separators names a file of that name on Windows. `C:a` names a file on
/// another drive, `a:b` a stream of the file `a`, and `nul.txt` a device.
fn is_file_name_on_windows(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or_default().trim_end();
    let is_device = ["con", "prn", "aux", "nul", "conin$", "conout$"]
        .iter()
        .any(|device| stem.eq_ignore_ascii_case(device));
    // The digits of ports can be superscript, too.
    let is_port = ["com", "lpt"].iter().any(|port| {
        let number = stem
            .get(..3)
            .filter(|start| start.eq_ignore_ascii_case(port))
            .map(|_| &stem[3..]);
        number.is_some_and(|number| {
            let mut digits = number.chars();
            let digit = digits.next();
            digit.is_some_and(|digit| "0123456789¹²³".contains(digit)) && digits.next().is_none()
        })
    });
    let has_special = name.contains(['<', '>', ':', '"', '|', '?', '*']);
    !is_device && !is_port && !has_special && !name.ends_with(['.', ' '])
}

/// A directory for received files.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Opens an existing directory, and removes the files of killed receivers.
    ///
    /// # Errors
    /// It does not exist, is not a directory, or cannot be written to.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        if !fs::metadata(path)?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let path = path.to_owned();
        for entry in fs::read_dir(&path)?.flatten() {
            if entry
                .file_name()
                .as_encoded_bytes()
                .starts_with(PREFIX.as_bytes())
            {
                remove_if_orphaned(&entry.path());
            }
        }
        let directory = Self { path };
        // The failure is reported now instead of with the first file.
        if nameless::create(&directory.path).is_none() {
            let (path, file) = directory.create_temporary()?;
            drop((Temporary(path), file));
        }
        Ok(directory)
    }
}

/// Removes temporary files without a lock: their receivers have ended.
fn remove_if_orphaned(path: &Path) {
    // Opening something that is not a regular file may block forever.
    if !fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file()) {
        return;
    }
    let Ok(file) = OpenOptions::new().write(true).open(path) else {
        return;
    };
    let young = file
        .metadata()
        .and_then(|metadata| metadata.modified())
        .map(|modified| modified.elapsed().unwrap_or_default() < LOCK_GRACE_TIME);
    if young.unwrap_or(true) || file.try_lock().is_err() {
        return;
    }
    debug!(path = %path.display(), "removing what a killed receiver left");
    remove(path);
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        warn!(path = %path.display(), %error, "a temporary file cannot be removed");
    }
}

impl Store for Directory {
    fn create(&self, name: &str) -> io::Result<Box<dyn Target>> {
        let destination = self.path.join(name);
        // This early check avoids a useless transfer; `publish` does the final check.
        if fs::symlink_metadata(&destination).is_ok() {
            return Err(exists());
        }
        if let Some(file) = nameless::create(&self.path) {
            return Ok(Box::new(Nameless { file, destination }));
        }
        let (temporary, file) = self.create_temporary()?;
        Ok(Box::new(Unfinished {
            file,
            temporary: Temporary(temporary),
            destination,
        }))
    }
}

impl Directory {
    fn create_temporary(&self) -> io::Result<(PathBuf, File)> {
        let mut attempt = 0_u32;
        loop {
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            let (process, nanoseconds) = (std::process::id(), now.as_nanos());
            let name = format!("{PREFIX}{process}-{nanoseconds:x}-{attempt}.part");
            let path = self.path.join(name);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => {
                    // On file systems without locks, files of killed receivers are not removed.
                    let _ = file.try_lock();
                    return Ok((path, file));
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && attempt < 100 => {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn exists() -> io::Error {
    io::Error::new(
        io::ErrorKind::AlreadyExists,
        "a file of this name is there already",
    )
}

/// A file without a name.
struct Nameless {
    file: File,
    destination: PathBuf,
}

impl Target for Nameless {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    fn publish(self: Box<Self>) -> io::Result<()> {
        match nameless::name(&self.file, &self.destination) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(exists()),
            result => result,
        }
    }
}

#[cfg(target_os = "linux")]
mod nameless {
    use std::{
        fs::{self, File},
        io,
        os::fd::AsRawFd,
        path::Path,
    };

    use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};

    /// The directory of open files of the process, by which an unnamed file can be linked.
    const OPEN_FILES: &str = "/proc/self/fd";

    /// Creates a file without a name in `directory`, if the file system supports it.
    pub(super) fn create(directory: &Path) -> Option<File> {
        if fs::metadata(OPEN_FILES).is_err() {
            return None;
        }
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        open(directory, flags, Mode::from_raw_mode(0o666))
            .ok()
            .map(File::from)
    }

    /// Gives the file its name if the name is free.
    pub(super) fn name(file: &File, name: &Path) -> io::Result<()> {
        let opened = format!("{OPEN_FILES}/{}", file.as_raw_fd());
        Ok(linkat(CWD, opened, CWD, name, AtFlags::SYMLINK_FOLLOW)?)
    }
}

#[cfg(not(target_os = "linux"))]
mod nameless {
    use std::{fs::File, io, path::Path};

    pub(super) fn create(_directory: &Path) -> Option<File> {
        None
    }

    pub(super) fn name(_file: &File, _name: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A file under its temporary name.
struct Unfinished {
    file: File,
    temporary: Temporary,
    destination: PathBuf,
}

/// The name, removed when it is dropped.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

impl Target for Unfinished {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    fn publish(self: Box<Self>) -> io::Result<()> {
        let Self {
            temporary,
            destination,
            ..
        } = &*self;
        // A second link to the file if the name is free; the first link goes with `temporary`.
        match fs::hard_link(&temporary.0, destination) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(exists()),
            Err(error) => {
                debug!(%error, "no hard links here");
                publish_by_placeholder(&temporary.0, destination)
            }
        }
    }
}

/// For file systems without hard links: takes the name with an empty file of our own, and then
/// replaces that file.
fn publish_by_placeholder(temporary: &Path, destination: &Path) -> io::Result<()> {
    let placeholder = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(destination);
    match placeholder {
        Ok(file) => {
            // Windows replaces no file that is open.
            drop(file);
            fs::rename(temporary, destination).inspect_err(|_| remove(destination))
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(exists()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for name in ["a", "a b", ".bashrc", "ü.txt", &"x".repeat(255)] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in ["...", "a:b"] {
            let expected = if cfg!(windows) {
                Err(NameFault::NotOnWindows)
            } else {
                Ok(())
            };
            assert_eq!(check_name(name), expected, "{name}");
        }
        for (name, fault) in [
            ("", NameFault::Empty),
            (".", NameFault::Directory),
            ("..", NameFault::Directory),
            ("/", NameFault::Path),
            ("/etc/passwd", NameFault::Path),
            ("../a", NameFault::Path),
            ("a/", NameFault::Path),
            ("a\\b", NameFault::Backslash),
            ("a\0b", NameFault::Control),
            ("a\nb", NameFault::Control),
            ("\x1b[2J", NameFault::Control),
            (".smbdirect-1", NameFault::Reserved),
            (&"x".repeat(256), NameFault::TooLong),
        ] {
            assert_eq!(check_name(name), Err(fault), "{name:?}");
        }
    }

    #[test]
    fn names_that_windows_takes_for_something_else_are_known() {
        for name in [
            "a", "a b", "console", "com10", "com", "lpt.", "nul1", "ü.txt", ".nul", "cöm1",
        ] {
            let expected = name != "lpt.";
            assert_eq!(is_file_name_on_windows(name), expected, "{name:?}");
        }
        for name in [
            "C:a", "a:b", "CON", "nul.txt", "Aux .x", "COM1", "lpt9.log", "com²", "CONOUT$", "a.",
            "a ", "a*", "what?", "<", "a|b", "\"",
        ] {
            assert!(!is_file_name_on_windows(name), "{name:?}");
        }
    }

    fn names_in(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_appears_when_it_is_complete() {
        let directory = tempfile::tempdir().unwrap();
        let store = Directory::open(directory.path()).unwrap();
        let mut target = store.create("a").unwrap();
        target.write(b"he").unwrap();
        target.write(b"llo").unwrap();
        assert!(
            names_in(directory.path())
                .iter()
                .all(|name| name.starts_with(PREFIX))
        );
        target.publish().unwrap();
        assert_eq!(names_in(directory.path()), ["a"]);
        assert_eq!(fs::read(directory.path().join("a")).unwrap(), b"hello");
    }

    #[test]
    fn temporary_names_are_used_without_unnamed_files() {
        let directory = tempfile::tempdir().unwrap();
        let store = Directory::open(directory.path()).unwrap();
        for publish in [false, true] {
            let (temporary, file) = store.create_temporary().unwrap();
            let destination = directory.path().join("a");
            let temporary = Temporary(temporary);
            let mut target: Box<dyn Target> = Box::new(Unfinished {
                file,
                temporary,
                destination,
            });
            target.write(b"hello").unwrap();
            assert!(names_in(directory.path())[0].starts_with(PREFIX));
            if publish {
                target.publish().unwrap();
            }
        }
        assert_eq!(names_in(directory.path()), ["a"]);
    }

    #[test]
    fn a_dropped_file_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let store = Directory::open(directory.path()).unwrap();
        let mut target = store.create("a").unwrap();
        target.write(b"hello").unwrap();
        drop(target);
        assert!(names_in(directory.path()).is_empty());
    }

    #[test]
    fn existing_files_are_never_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let store = Directory::open(directory.path()).unwrap();
        let early = store.create("a").unwrap();
        let raced = store.create("a").unwrap();
        early.publish().unwrap();
        let error = raced.publish().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        let error = store.create("a").err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(names_in(directory.path()), ["a"]);
        let error = publish_by_placeholder(Path::new("none"), &directory.path().join("a"));
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }

    #[cfg(unix)]
    #[test]
    fn a_dangling_link_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let store = Directory::open(directory.path()).unwrap();
        std::os::unix::fs::symlink("nowhere", directory.path().join("a")).unwrap();
        assert!(store.create("a").is_err());
        assert_eq!(names_in(directory.path()), ["a"]);
    }

    #[test]
    fn placeholders_are_replaced_or_removed() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("from"), directory.path().join("to"));
        fs::write(&from, "x").unwrap();
        publish_by_placeholder(&from, &to).unwrap();
        assert_eq!(names_in(directory.path()), ["to"]);
        let other = directory.path().join("other");
        assert!(publish_by_placeholder(&from, &other).is_err());
        assert_eq!(names_in(directory.path()), ["to"]);
    }

    #[test]
    fn files_of_killed_receivers_are_removed_and_of_running_ones_kept() {
        let directory = tempfile::tempdir().unwrap();
        let old = SystemTime::now() - Duration::from_secs(60);
        let orphan = directory.path().join(".smbdirect-1-2-0.part");
        File::create(&orphan).unwrap().set_modified(old).unwrap();
        let young = directory.path().join(".smbdirect-1-3-0.part");
        fs::write(&young, "x").unwrap();
        let locked = directory.path().join(".smbdirect-1-4-0.part");
        let receiver = File::create(&locked).unwrap();
        receiver.set_modified(old).unwrap();
        receiver.lock().unwrap();
        Directory::open(directory.path()).unwrap();
        assert!(!orphan.exists() && young.exists() && locked.exists());
    }

    #[test]
    fn a_directory_must_be_one() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = Directory::open(file.path()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
    }
}
