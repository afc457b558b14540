//! Listings of directories, in batches, with names of any UTF-16 units.
//!
//! A name on a server is a sequence of UTF-16 units, and NTFS does not ask for well-formed ones. The crate smb2
//! refuses a whole listing for one name with an unpaired surrogate, and its paths cannot name such a file. So this
//! module has its own QUERY_DIRECTORY and CREATE. It takes one answer of the server at a time, so the memory does not
//! grow with the directory.

use std::fmt;

use smb2::{
    msg::{
        create::CreateRequest,
        query_directory::{
            FileInformationClass, QueryDirectoryFlags, QueryDirectoryRequest,
            QueryDirectoryResponse,
        },
    },
    pack::{FileTime, Pack, ReadCursor, Unpack, WriteCursor},
    types::{
        Command,
        flags::{FileAccessMask, FileAttributes},
        reparse::ReparseTag,
        status::NtStatus,
    },
};
use smbdirect_smb::file_information::DirectoryEntry;

use crate::{
    error::Error,
    file::File,
    share::{Create, NON_DIRECTORY_FILE, Share},
    tree::Requests,
};

/// Bytes of entries in one answer: one credit, and a message that every server sends.
const BATCH_BYTES: u32 = 65_536;
/// FILE_DIRECTORY_FILE ([MS-SMB2] 2.2.13).
const DIRECTORY_FILE: u32 = 0x0000_0001;
/// Offset of the name in the body of CREATE.
const CREATE_NAME: usize = 56;

const NOT_FOUND: Error = Error::Status {
    command: Command::Create,
    status: NtStatus::OBJECT_NAME_NOT_FOUND,
};

/// A name of a file or directory, as the server has it.
///
/// `Display` shows U+FFFD in place of each unpaired surrogate, so two names can look the same. Like the crate smb2 it
/// also shows the characters that Windows does not allow in place of the private ones that stand for them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name(Vec<u16>);

impl Name {
    /// Returns the UTF-16 units.
    pub fn units(&self) -> &[u16] {
        &self.0
    }

    /// Returns whether the units are well-formed UTF-16.
    pub fn is_well_formed(&self) -> bool {
        char::decode_utf16(self.0.iter().copied()).all(|unit| unit.is_ok())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = String::from_utf16_lossy(&self.0);
        f.write_str(&smb2::decode_name(&shown))
    }
}

/// An entry of a directory.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Entry {
    /// Name of the entry.
    pub name: Name,
    /// Bytes of the file.
    pub size: u64,
    /// Attributes of the entry.
    pub attributes: FileAttributes,
    /// Time of the last change of the contents.
    pub modified: FileTime,
    /// Whether the entry is a link to another place.
    pub is_link: bool,
}

/// A directory that is being listed.
///
/// The directory is closed when it is dropped; [`close`](Self::close) also waits for this.
pub struct Listing {
    requests: Requests,
    directory: File,
    is_first: bool,
    is_at_end: bool,
}

impl fmt::Debug for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listing")
            .field("directory", &self.directory)
            .field("is_at_end", &self.is_at_end)
            .finish_non_exhaustive()
    }
}

impl Listing {
    /// Returns the next entries, as many as one answer of the server has, in its order; `None` at the end. The
    /// entries `.` and `..` are left out, so the list can be empty.
    ///
    /// # Errors
    /// The server refuses it, breaks the protocol or does not answer, or the connection ends.
    ///
    /// # Cancel safety
    /// Dropping the future loses the entries of the answer.
    pub async fn next(&mut self) -> Result<Option<Vec<Entry>>, Error> {
        const COMMAND: Command = Command::QueryDirectory;
        if self.is_at_end {
            return Ok(None);
        }
        let flags = if self.is_first {
            QueryDirectoryFlags::RESTART_SCANS
        } else {
            0
        };
        self.is_first = false;
        let request = QueryDirectoryRequest {
            file_information_class: FileInformationClass::FileBothDirectoryInformation,
            flags: QueryDirectoryFlags(flags),
            file_index: 0,
            file_id: self.directory.id(),
            output_buffer_length: BATCH_BYTES,
            file_name: "*".into(),
        };
        let answer = self.requests.execute(COMMAND, request).await?;
        // A server can report "no match" where it should report "no more files".
        if matches!(
            answer.status(),
            NtStatus::NO_MORE_FILES | NtStatus::NO_SUCH_FILE
        ) {
            self.is_at_end = true;
            return Ok(None);
        }
        let body = answer.success(COMMAND)?;
        let wrong = |fault| Error::Answer {
            command: COMMAND,
            fault,
        };
        let answer = QueryDirectoryResponse::unpack(&mut ReadCursor::new(&body))
            .map_err(|_| wrong("it is too short"))?;
        if answer.output_buffer.len() > BATCH_BYTES as usize {
            return Err(wrong("it has more bytes than were asked for"));
        }
        let mut entries = DirectoryEntry::decode_all(&answer.output_buffer).map_err(wrong)?;
        entries.retain(|entry| ![&[0x2e][..], &[0x2e, 0x2e]].contains(&&*entry.name));
        Ok(Some(entries.into_iter().map(Entry::from).collect()))
    }

    /// Closes the directory.
    ///
    /// # Errors
    /// The server reports an error or does not answer, or the connection ends.
    pub async fn close(self) -> Result<(), Error> {
        self.directory.close().await
    }
}

impl Share {
    /// Begins to list a directory; an empty path is the root of the share. `path` has `/` between its parts.
    ///
    /// # Errors
    /// The server refuses it or does not answer, or the connection ends.
    pub async fn list(&self, path: &str) -> Result<Listing, Error> {
        self.list_exact(&units(path)).await
    }

    /// Begins to list the directory with this path, as [`find`](Self::find) returns it.
    ///
    /// # Errors
    /// The server refuses it or does not answer, or the connection ends.
    pub async fn list_exact(&self, path: &[u16]) -> Result<Listing, Error> {
        Ok(Listing {
            requests: self.requests().clone(),
            directory: self.open_path(path, DIRECTORY_FILE).await?,
            is_first: true,
            is_at_end: false,
        })
    }

    /// Opens the file with this path to read it, as [`find`](Self::find) returns it.
    ///
    /// # Errors
    /// The server refuses it or does not answer, or the connection ends.
    pub async fn open_exact(&self, path: &[u16]) -> Result<File, Error> {
        self.open_path(path, NON_DIRECTORY_FILE).await
    }

    /// Finds the one file or directory that is shown as `path`, and returns its path in UTF-16 units and its entry. It
    /// lists each directory with a name that is shown in another form than it has: with U+FFFD in place of units that
    /// are not well formed, or with characters for which a path has private ones, as a space or a dot at its end.
    ///
    /// # Errors
    /// [`Error::Ambiguous`] if several names are shown alike, STATUS_OBJECT_NAME_NOT_FOUND if none is, or if no name of
    /// the path can have another form. The server refuses it or does not answer, or the connection ends.
    pub async fn find(&self, path: &str) -> Result<(Vec<u16>, Entry), Error> {
        let mut parts = path.split('/').filter(|part| !part.is_empty()).peekable();
        let mut found = Vec::new();
        let mut has_listed = false;
        while let Some(part) = parts.next() {
            let is_last = parts.peek().is_none();
            let directory = found.clone();
            if !found.is_empty() {
                found.push(u16::from(b'\\'));
            }
            if is_exact(part) && !(is_last && has_listed) {
                found.extend(units(part));
                continue;
            }
            has_listed = true;
            let entry = self.find_in(&directory, part).await?;
            found.extend(entry.name.units());
            if is_last {
                return Ok((found, entry));
            }
        }
        Err(NOT_FOUND)
    }

    async fn find_in(&self, directory: &[u16], name: &str) -> Result<Entry, Error> {
        let mut listing = self.list_exact(directory).await?;
        let mut found = None;
        while let Some(entries) = listing.next().await? {
            for entry in entries {
                if entry.name.to_string() == name && found.replace(entry).is_some() {
                    let _ = listing.close().await;
                    return Err(Error::Ambiguous(name.into()));
                }
            }
        }
        listing.close().await?;
        found.ok_or(NOT_FOUND)
    }

    async fn open_path(&self, path: &[u16], options: u32) -> Result<File, Error> {
        let access = FileAccessMask::FILE_READ_DATA | FileAccessMask::FILE_READ_ATTRIBUTES;
        let request = self.create("", access, options);
        // In a DFS namespace, the empty path already has a name.
        let mut name: Vec<u16> = request.name.encode_utf16().collect();
        name.extend(path);
        let request = CreateRequest {
            name: String::from_utf16_lossy(&name),
            ..request
        };
        let (file, _) = self.open_with(ExactCreate { request, name }).await?;
        Ok(file)
    }
}

/// A CREATE request with a name of any units. The buffer of `request` has the same size.
struct ExactCreate {
    request: CreateRequest,
    name: Vec<u16>,
}

impl Create for ExactCreate {
    fn name(&self) -> &str {
        &self.request.name
    }
}

impl Pack for ExactCreate {
    fn pack(&self, cursor: &mut WriteCursor) {
        let start = cursor.position() + CREATE_NAME;
        self.request.pack(cursor);
        for (index, unit) in self.name.iter().enumerate() {
            cursor.set_u16_le_at(start + 2 * index, *unit);
        }
    }
}

/// Returns whether only the name of these characters is shown as `name`.
fn is_exact(name: &str) -> bool {
    !name.contains(char::REPLACEMENT_CHARACTER) && smb2::encode_name(name) == name
}

/// Returns the UTF-16 units of a path, with `\` between its parts.
fn units(path: &str) -> Vec<u16> {
    smb2::encode_path(path).encode_utf16().collect()
}

impl From<DirectoryEntry> for Entry {
    fn from(entry: DirectoryEntry) -> Self {
        let attributes = FileAttributes::new(entry.attributes);
        let tag = ReparseTag(entry.ea_size);
        Self {
            name: Name(entry.name),
            size: entry.end_of_file,
            attributes,
            modified: FileTime(entry.last_write_time),
            is_link: attributes.is_reparse_point() && tag.is_name_surrogate(),
        }
    }
}

#[cfg(test)]
mod tests {
    use smb2::{
        msg::create::{CreateDisposition, ImpersonationLevel, ShareAccess},
        types::OplockLevel,
    };

    use super::*;

    const LONE: [u16; 3] = [0x61, 0xd800, 0x62];

    #[test]
    fn a_name_that_is_not_well_formed_is_shown_and_kept() {
        let name = Name(LONE.to_vec());
        assert_eq!(name.to_string(), "a\u{fffd}b");
        assert_eq!(name.units(), LONE);
        assert!(!name.is_well_formed() && Name(vec![0x7a]).is_well_formed());
        // A pair is one character, a pair in the wrong order is two that are wrong.
        assert_eq!(Name(vec![0xd83d, 0xde00]).to_string(), "\u{1f600}");
        assert_eq!(Name(vec![0xde00, 0xd83d]).to_string(), "\u{fffd}\u{fffd}");
        assert_eq!(Name(vec![0xf025]).to_string(), "?");
    }

    #[test]
    fn a_create_has_the_exact_name() {
        for name in [&[][..], &LONE, &[0xdc00], &[0xd83d, 0xde00, 0xd83d]] {
            let request = ExactCreate {
                request: CreateRequest {
                    requested_oplock_level: OplockLevel::None,
                    impersonation_level: ImpersonationLevel::Impersonation,
                    desired_access: FileAccessMask::new(1),
                    file_attributes: 0,
                    share_access: ShareAccess(7),
                    create_disposition: CreateDisposition::FileOpen,
                    create_options: 0,
                    name: String::from_utf16_lossy(name),
                    create_contexts: Vec::new(),
                },
                name: name.to_vec(),
            };
            let mut cursor = WriteCursor::new();
            request.pack(&mut cursor);
            let bytes = cursor.into_inner();
            assert_eq!(bytes[44..46], [120, 0], "NameOffset");
            assert_eq!(bytes[46], 2 * name.len() as u8, "NameLength");
            let wire: Vec<u8> = name.iter().flat_map(|unit| unit.to_le_bytes()).collect();
            assert_eq!(bytes[CREATE_NAME..][..wire.len()], wire);
        }
    }
}
