//! `smbdirect ls`: lists a folder of an SMB server.

use anyhow::Result;
use clap::Args;
use jiff::{Timestamp, tz::TimeZone};
use serde::Serialize;
use smb2::{FileAttributes, pack::FileTime};
use smbdirect_smb2::{Entry, Listing, ShareEntry};
use tokio::task::block_in_place;

use crate::{
    options::with_profiles,
    report::{self, Report},
    signals,
};

use super::{
    place::{Place, PlaceParser},
    session::{Session, SmbOptions, explain, is_missing},
};

/// List shares, a folder or a file of an SMB server over SMB Direct
///
/// For a server it prints its shares, one a line: name and description. Shares whose names end with `$` are left out.
///
/// For a folder it prints one line per entry, in the server's order, as it comes: attributes, size in bytes, time of the last
/// change of the contents, and name. The attributes are d (folder) or l (link), r (read-only), h (hidden), s
/// (system) and a (archive). In a name, U+FFFD stands for a character that controls the terminal or
/// the direction of text, and for UTF-16 that is not well-formed.
#[derive(Debug, Args)]
#[command(after_help = with_profiles(EXAMPLES))]
pub(crate) struct List {
    /// The server, folder or file: //SERVER[:PORT][/SHARE[/PATH]]
    #[arg(value_name = "PLACE", value_parser = PlaceParser::OrServer)]
    place: Place,

    #[command(flatten)]
    pub(crate) options: SmbOptions,
}

const EXAMPLES: &str = "\x1b[1m\x1b[4mExamples:\x1b[0m
  smbdirect ls //fileserver --user me             its shares
  smbdirect ls //fileserver/data --user me
  smbdirect ls //10.0.0.2:5445/data/images --user me --json

\x1b[1m\x1b[4mWith --json:\x1b[0m
  {\"event\":\"connected\", address, transport, negotiated, dialect, signs, rdma, reason}
  {\"event\":\"share\", name, comment}
  {\"event\":\"entry\", name, utf16 (the units of a name that is not well-formed UTF-16), bytes, directory,
   link, read_only, hidden, system, archive, modified}";

/// A share of a server.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Share { name: &'a str, comment: String },
}

/// Maximum number of columns of the name of a share.
const MAX_NAME_WIDTH: usize = 80;
/// 1970 in a FILETIME.
const UNIX_EPOCH: u64 = 116_444_736_000_000_000;
/// Columns of the size: enough for 99 TB.
const SIZE_WIDTH: usize = 14;

/// A line of the listing.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename = "entry")]
struct Line {
    name: String,
    /// The exact units of a name that is not well-formed UTF-16, and so is not `name`.
    utf16: Option<Vec<u16>>,
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
    time: Option<Timestamp>,
}

impl List {
    pub(crate) async fn run(self) -> Result<bool> {
        let report = Report::new(self.options.common.json);
        let listed = signals::unless_interrupted(async {
            if self.place.share.is_empty() {
                return self.list_shares(&report).await;
            }
            let session = self.options.open(&self.place, false, &report).await?;
            let listed = self.list(&session, &report).await;
            session.close().await;
            listed
        });
        listed.await?;
        Ok(true)
    }

    async fn list_shares(&self, report: &Report) -> Result<()> {
        let shares = self.options.shares(&self.place, report).await?;
        let width = shares.iter().map(|share| share.name.chars().count()).max();
        // A server can give one share a long name, which must not pad the others.
        let width = width.unwrap_or_default().min(MAX_NAME_WIDTH);
        print_all(shares, |ShareEntry { name, comment, .. }| {
            let (shown, comment) = (report::printable(&name), report::printable(&comment));
            report.line(format!("{shown:<width$}  {comment}").trim_end());
            let name = &name;
            report.event(&Event::Share { name, comment });
        });
        Ok(())
    }

    async fn list(&self, session: &Session, report: &Report) -> Result<()> {
        let (place, share) = (&self.place, &session.share);
        let fail = |error| explain(error, place);
        if place.path.is_empty() {
            let listing = share.list("").await.map_err(fail)?;
            return self.print(listing, report).await;
        }
        match share.stat(&place.path).await {
            Ok(info) if info.is_directory => {
                let listing = share.list(&place.path).await.map_err(fail)?;
                self.print(listing, report).await
            }
            Ok(info) => {
                let (name, is_link) = (place.name().to_owned(), info.is_link());
                let line = Line::new(name, info.size, info.attributes, is_link, info.modified);
                line.print(report, &TimeZone::system());
                Ok(())
            }
            Err(error) if is_missing(&error) => {
                let found = share.find(&place.path).await;
                let (path, entry) = match found {
                    Err(other) if is_missing(&other) => return Err(fail(error)),
                    found => found.map_err(fail)?,
                };
                if entry.attributes.is_directory() {
                    let listing = share.list_exact(&path).await.map_err(fail)?;
                    return self.print(listing, report).await;
                }
                Line::of(entry).print(report, &TimeZone::system());
                Ok(())
            }
            Err(error) => Err(fail(error)),
        }
    }

    /// Prints the entries as they arrive, until the reader of stdout closes it.
    async fn print(&self, mut listing: Listing, report: &Report) -> Result<()> {
        let fail = |error| explain(error, &self.place);
        let zone = TimeZone::system();
        while let Some(entries) = listing.next().await.map_err(fail)? {
            print_all(entries, |entry| Line::of(entry).print(report, &zone));
            if report::is_unread() {
                break;
            }
        }
        // The entries are here, so a failure to close does not matter.
        let _ = listing.close().await;
        Ok(())
    }
}

/// Prints each of `items`, until the reader of stdout closes it. A reader that is slow, as a pager is, must not stop the
/// connection.
fn print_all<T>(items: impl IntoIterator<Item = T>, print: impl FnMut(T)) {
    let unread = |_: &T| !report::is_unread();
    block_in_place(|| items.into_iter().take_while(unread).for_each(print));
}

impl Line {
    fn of(entry: Entry) -> Self {
        let Entry {
            name,
            size,
            attributes,
            modified,
            is_link,
            ..
        } = entry;
        Self {
            utf16: (!name.is_well_formed()).then(|| name.units().to_vec()),
            ..Self::new(name.to_string(), size, attributes, is_link, modified)
        }
    }

    fn new(
        name: String,
        bytes: u64,
        attributes: FileAttributes,
        link: bool,
        modified: FileTime,
    ) -> Self {
        // In units of 100 ns since 1601. A server that knows no time says 0.
        let since_1970 = i128::from(modified.0) - i128::from(UNIX_EPOCH);
        let time = Timestamp::from_nanosecond(100 * since_1970).ok();
        let time = time.filter(|_| modified != FileTime::ZERO);
        Self {
            name,
            utf16: None,
            bytes,
            directory: attributes.contains(FileAttributes::DIRECTORY),
            link,
            read_only: attributes.contains(FileAttributes::READONLY),
            hidden: attributes.contains(FileAttributes::HIDDEN),
            system: attributes.contains(FileAttributes::SYSTEM),
            archive: attributes.contains(FileAttributes::ARCHIVE),
            modified: time.map(|time| time.to_string()),
            time,
        }
    }

    fn print(&self, report: &Report, zone: &TimeZone) {
        report.line(self.in_words(zone));
        report.event(self);
    }

    /// Returns the line for people.
    fn in_words(&self, zone: &TimeZone) -> String {
        let letter = |is: bool, letter| if is { letter } else { '-' };
        let kind = if self.link {
            'l'
        } else {
            letter(self.directory, 'd')
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
        let local = |time: Timestamp| {
            let zoned = time.to_zoned(zone.clone());
            zoned.strftime("%Y-%m-%d %H:%M").to_string()
        };
        let time = self.time.map_or_else(|| "-".into(), local);
        let (bytes, name) = (self.bytes, report::printable(&self.name));
        format!("{attributes}  {bytes:>SIZE_WIDTH$}  {time:<16}  {name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_attributes_size_time_and_name() {
        let line = |attributes, link, time| {
            let attributes = FileAttributes::new(attributes);
            let line = Line::new("a\nb".into(), 42, attributes, link, time);
            line.in_words(&TimeZone::UTC)
        };
        // 2025-11-24 14:00 UTC in 100 ns since 1601.
        let time = FileTime(134_084_664_000_000_000);
        assert_eq!(
            line(0x11, false, time),
            "dr---              42  2025-11-24 14:00  a\u{fffd}b"
        );
        // 1601-01-01 00:01 and 1969-12-31 23:59.
        for (time, shown) in [
            (600_000_000, "1601-01-01 00:01"),
            (UNIX_EPOCH - 600_000_000, "1969-12-31 23:59"),
        ] {
            let line = line(0x20, false, FileTime(time));
            assert!(line.contains(&format!("  {shown}  ")), "{line}");
        }
        assert_eq!(
            line(0x426, true, FileTime::ZERO),
            "l-hsa              42  -                 a\u{fffd}b"
        );
    }
}
