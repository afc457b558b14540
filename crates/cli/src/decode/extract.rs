//! `smbdirect decode --extract`: writes the files of a capture, and lists what is complete.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow};
use smbdirect_decode::{ExtractedFile, Extraction};

use crate::{
    failure::{Kind, OfKind},
    report::{Report, bytes, plain, plural, printable},
};

/// The files in a folder.
pub(super) struct Files {
    folder: PathBuf,
    /// The files that were written last.
    open: HashMap<PathBuf, File>,
    failure: Option<anyhow::Error>,
}

/// Maximum number of files that are open.
const MAX_OPEN: usize = 64;

impl Files {
    /// Creates the folder. It must be empty, so that no link in it leads elsewhere and no file is replaced.
    pub(super) fn create(folder: &Path) -> Result<Self> {
        let failed = || format!("cannot extract to {}", folder.display());
        let created = fs::create_dir_all(folder).and_then(|()| fs::read_dir(folder));
        let mut entries = created
            .map_err(|error| anyhow!(plain(&error)))
            .with_context(failed)
            .of_kind(Kind::File)?;
        if entries.next().is_some() {
            return Err(anyhow!("the folder is not empty; name a new one"))
                .with_context(failed)
                .of_kind(Kind::File);
        }
        Ok(Self {
            folder: folder.to_owned(),
            open: HashMap::new(),
            failure: None,
        })
    }

    /// Returns whether a file could not be written.
    pub(super) const fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Writes bytes of a file, which may be the first ones.
    pub(super) fn write(&mut self, path: &Path, offset: u64, bytes: &[u8]) {
        if self.failure.is_some() {
            return;
        }
        if let Err(error) = self.try_write(path, offset, bytes) {
            let error = anyhow!(plain(&error));
            self.failure = Some(error.context(format!("cannot write {}", path.display())));
        }
    }

    fn try_write(&mut self, path: &Path, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        if !self.open.contains_key(path) {
            if self.open.len() >= MAX_OPEN {
                self.open.clear();
            }
            let whole = self.folder.join(path);
            if let Some(parent) = whole.parent() {
                fs::create_dir_all(parent)?;
            }
            let mut options = OpenOptions::new();
            let file = options
                .write(true)
                .create(true)
                .truncate(false)
                .open(whole)?;
            self.open.insert(path.to_owned(), file);
        }
        if let Some(mut file) = self.open.get(path) {
            file.seek(SeekFrom::Start(offset))?;
            file.write_all(bytes)?;
        }
        Ok(())
    }

    /// Gives the files their sizes. Fails if a file could not be written.
    pub(super) fn finish(mut self, extraction: &Extraction) -> Result<()> {
        self.open.clear();
        for file in &extraction.files {
            if self.failure.is_some() {
                break;
            }
            let Some(size) = file.size else { continue };
            let opened = OpenOptions::new()
                .write(true)
                .open(self.folder.join(&file.path));
            // The rest of the file was not seen. It is sparse, and may be larger than a file can be here.
            if let Ok(opened) = opened
                && size <= smbdirect_decode::MAX_FILE_BYTES
            {
                drop(opened.set_len(size));
            }
        }
        match self.failure {
            Some(error) => Err(error).of_kind(Kind::File),
            None => Ok(()),
        }
    }
}

/// Prints what was extracted.
pub(super) fn text(report: &Report, extraction: &Extraction) {
    for file in &extraction.files {
        report.line(line(file));
    }
    let complete = extraction.files.iter().filter(|file| file.complete).count();
    let files = plural(extraction.files.len() as u64, "file");
    report.line(format_args!("{files}, {complete} of them complete"));
    if extraction.encrypted_bytes > 0 {
        let encrypted = bytes(extraction.encrypted_bytes);
        report.line(format_args!(
            "{encrypted} of encrypted or compressed messages, which cannot be read"
        ));
    }
    if extraction.left_out_bytes > 0 {
        let left_out = bytes(extraction.left_out_bytes);
        report.line(format_args!(
            "{left_out} left out: too many files, or too far into one"
        ));
    }
}

fn line(file: &ExtractedFile) -> String {
    let state = match file.size {
        _ if file.complete => "complete".to_owned(),
        Some(size) => format!("of {}", bytes(size)),
        None => "of an unknown size".to_owned(),
    };
    let name = printable(&file.path.to_string_lossy());
    format!("{:>12} {state:<20} {name}", bytes(file.bytes))
}
