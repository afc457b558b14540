//! `smbdirect ls`: lists a folder of an SMB server.

use std::time::SystemTime;

use anyhow::Result;
use clap::Args;
use jiff::{Timestamp, tz::TimeZone};
use serde::Serialize;
use smb2::{DirectoryEntry, FileAttributes, pack::FileTime};

use crate::{
    options::with_profiles,
    report::{self, Report},
    signals,
};

use super::{
    place::Place,
    session::{Session, SmbOptions, explain},
};

/// List a folder, or show a file, of an SMB server over SMB Direct
///
/// Prints one line per entry, sorted by name: attributes, size in bytes, time of the last change of the
/// contents, and name. The attributes are d (folder) or l (link), r (read-only), h (hidden), s (system)
/// and a (archive).
#[derive(Debug, Args)]
#[command(after_help = with_profiles(EXAMPLES))]
pub(crate) struct List {
    /// The folder or file: //SERVER[:PORT]/SHARE[/PATH]
    #[arg(value_name = "PLACE")]
    place: Place,

    #[command(flatten)]
    pub(crate) options: SmbOptions,
}

const EXAMPLES: &str = "\x1b[1m\x1b[4mExamples:\x1b[0m
  smbdirect ls //fileserver/data --user me
  smbdirect ls //10.0.0.2:5445/data/images --user me --json

\x1b[1m\x1b[4mWith --json:\x1b[0m
  {\"event\":\"connected\", address, transport, negotiated, dialect, signs, rdma, reason}
  {\"event\":\"entry\", name, bytes, directory, link, read_only, hidden, system, archive, modified}";

/// A line of the listing.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename = "entry")]
struct Line {
    name: String,
    bytes: u64,
    directory: bool,
    link: bool,
    read_only: bool,
    hidden: bool,
    system: bool,
    archive: bool,
    /// RFC 3339; missing if the server knows none.
    modified: Option<String>,
    #[serde(skip)]
    local_time: String,
}

impl List {
    pub(crate) async fn run(self) -> Result<bool> {
        let report = Report::new(self.options.common.json);
        let listed = signals::unless_interrupted(async {
            let session = self.options.open(&self.place, false, &report).await?;
            let listed = self.list(&session).await;
            session.close().await;
            listed
        });
        let mut lines = listed.await?;
        lines.sort_by(|a, b| a.name.cmp(&b.name));
        let width = lines.iter().map(|line| line.bytes.to_string().len()).max();
        for line in &lines {
            report.line(line.in_words(width.unwrap_or(0)));
            report.event(line);
        }
        Ok(true)
    }

    async fn list(&self, session: &Session) -> Result<Vec<Line>> {
        let place = &self.place;
        let fail = |error| explain(error, place);
        let zone = TimeZone::system();
        if !place.path.is_empty() {
            let info = session.share.stat(&place.path).await.map_err(fail)?;
            if !info.is_directory {
                let name = place.name().to_owned();
                let is_link = info.is_link();
                let line = Line::new(
                    name,
                    info.size,
                    info.attributes,
                    is_link,
                    info.modified,
                    &zone,
                );
                return Ok(vec![line]);
            }
        }
        let entries = session.share.list(&place.path).await.map_err(fail)?;
        let line = |entry: DirectoryEntry| {
            let is_link = entry.is_link();
            let DirectoryEntry {
                name,
                size,
                attributes,
                modified,
                ..
            } = entry;
            Line::new(name, size, attributes, is_link, modified, &zone)
        };
        Ok(entries.into_iter().map(line).collect())
    }
}

impl Line {
    fn new(
        name: String,
        bytes: u64,
        attributes: FileAttributes,
        link: bool,
        modified: FileTime,
        zone: &TimeZone,
    ) -> Self {
        let time: Option<SystemTime> = modified.to_system_time();
        let time = time.and_then(|time| Timestamp::try_from(time).ok());
        let local = |time: Timestamp| {
            let zoned = time.to_zoned(zone.clone());
            zoned.strftime("%Y-%m-%d %H:%M").to_string()
        };
        Self {
            name,
            bytes,
            directory: attributes.contains(FileAttributes::DIRECTORY),
            link,
            read_only: attributes.contains(FileAttributes::READONLY),
            hidden: attributes.contains(FileAttributes::HIDDEN),
            system: attributes.contains(FileAttributes::SYSTEM),
            archive: attributes.contains(FileAttributes::ARCHIVE),
            modified: time.map(|time| time.to_string()),
            local_time: time.map_or_else(|| "-".into(), local),
        }
    }

    /// Returns the line for people; `width` is that of the longest size.
    fn in_words(&self, width: usize) -> String {
        let letter = |is: bool, letter| if is { letter } else { '-' };
        let kind = match self.link {
            true => 'l',
            false => letter(self.directory, 'd'),
        };
        let attributes: String = [
            kind,
            letter(self.read_only, 'r'),
            letter(self.hidden, 'h'),
            letter(self.system, 's'),
            letter(self.archive, 'a'),
        ]
        .into_iter()
        .collect();
        let Self {
            bytes, local_time, ..
        } = self;
        let name = report::printable(&self.name);
        format!("{attributes}  {bytes:>width$}  {local_time:<16}  {name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_attributes_size_time_and_name() {
        let line = |attributes, link, time| {
            let attributes = FileAttributes::new(attributes);
            let line = Line::new("a\nb".into(), 42, attributes, link, time, &TimeZone::UTC);
            line.in_words(5)
        };
        // 2025-11-24 14:00 UTC in 100 ns since 1601.
        let time = FileTime(134_084_664_000_000_000);
        assert_eq!(
            line(0x11, false, time),
            "dr---     42  2025-11-24 14:00  a\u{fffd}b"
        );
        assert_eq!(
            line(0x426, true, FileTime::ZERO),
            "l-hsa     42  -                 a\u{fffd}b"
        );
    }
}
