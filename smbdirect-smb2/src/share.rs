//! A share, and the requests on its files.

use std::fmt;

use smb2::{
    DirectoryEntry, FileInfo, RenameOptions, Tree,
    client::connection,
    msg::create::{
        CreateDisposition, CreateRequest, CreateResponse, ImpersonationLevel, ShareAccess,
    },
    pack::{ReadCursor, Unpack},
    types::{
        Command, OplockLevel,
        flags::{FileAccessMask, FileAttributes},
    },
};

use crate::{error::Error, file::File, transfer::Transfer, tree::Requests};

/// FILE_NON_DIRECTORY_FILE ([MS-SMB2] 2.2.13).
const NON_DIRECTORY_FILE: u32 = 0x0000_0040;

/// How to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// An existing file, to read it. Others may read, write, rename and delete it meanwhile.
    Read,
    /// A new file, to write it. Fails if the name exists. No other client may open it meanwhile.
    CreateNew,
    /// A new or an existing file, to read and write it. An existing one becomes empty. No other client
    /// may open it meanwhile.
    Replace,
}

/// A share that is connected. Clones are cheap and share the connection.
#[derive(Clone)]
pub struct Share {
    requests: Requests,
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Share")
            .field("name", &self.tree().share_name)
            .field("transfer", &self.transfer())
            .finish_non_exhaustive()
    }
}

impl Share {
    pub(crate) const fn new(requests: Requests) -> Self {
        Self { requests }
    }

    /// Returns how files move their data.
    pub fn transfer(&self) -> Transfer {
        self.requests.transfer()
    }

    /// Returns the most bytes that one request moves. A call of [`File::read`] or [`File::write`] with
    /// more becomes several requests, one after the other.
    pub fn max_bytes(&self) -> usize {
        self.requests.max_bytes()
    }

    /// Opens a file. `path` has `/` between its parts.
    ///
    /// # Errors
    /// The server refuses it, or the connection ends.
    ///
    /// # Cancel safety
    /// The server may have opened the file when the future is dropped. It closes it with the session.
    pub async fn open(&self, path: &str, mode: OpenMode) -> Result<File, Error> {
        const EVERYONE: u32 = ShareAccess::FILE_SHARE_READ
            | ShareAccess::FILE_SHARE_WRITE
            | ShareAccess::FILE_SHARE_DELETE;
        const WRITE: u32 = FileAccessMask::FILE_WRITE_DATA | FileAccessMask::FILE_WRITE_ATTRIBUTES;
        const READ: u32 = FileAccessMask::FILE_READ_DATA | FileAccessMask::FILE_READ_ATTRIBUTES;

        let (access, share, disposition) = match mode {
            OpenMode::Read => (READ, EVERYONE, CreateDisposition::FileOpen),
            OpenMode::CreateNew => (WRITE, 0, CreateDisposition::FileCreate),
            OpenMode::Replace => (READ | WRITE, 0, CreateDisposition::FileOverwriteIf),
        };
        let request = CreateRequest {
            requested_oplock_level: OplockLevel::None,
            impersonation_level: ImpersonationLevel::Impersonation,
            desired_access: FileAccessMask::new(access | FileAccessMask::SYNCHRONIZE),
            file_attributes: FileAttributes::NORMAL,
            share_access: ShareAccess(share),
            create_disposition: disposition,
            create_options: NON_DIRECTORY_FILE,
            name: self.name(path),
            create_contexts: Vec::new(),
        };
        let answer = self.requests.execute(Command::Create, &request, 0).await?;
        let body = answer.success(Command::Create)?;
        let created = CreateResponse::unpack(&mut ReadCursor::new(&body));
        let created = created.map_err(Error::Smb2)?;
        Ok(File::new(
            self.requests.clone(),
            created.file_id,
            created.end_of_file,
        ))
    }

    /// Lists a directory; an empty path is the root of the share. The entries `.` and `..` are left out.
    ///
    /// # Errors
    /// The server refuses it, or the connection ends.
    pub async fn list(&self, path: &str) -> Result<Vec<DirectoryEntry>, Error> {
        let mut smb = self.smb2();
        let listing = self.tree().list_directory(&mut smb, path);
        let mut entries = self.requests.request(listing).await?;
        entries.retain(|entry| entry.name != "." && entry.name != "..");
        Ok(entries)
    }

    /// Returns size, times and attributes of a file or directory.
    ///
    /// # Errors
    /// The server refuses it, or the connection ends.
    pub async fn stat(&self, path: &str) -> Result<FileInfo, Error> {
        let mut smb = self.smb2();
        let asking = self.tree().stat(&mut smb, path);
        self.requests.request(asking).await
    }

    /// Deletes a file.
    ///
    /// # Errors
    /// The server refuses it, or the connection ends.
    pub async fn delete(&self, path: &str) -> Result<(), Error> {
        let mut smb = self.smb2();
        let deleting = self.tree().delete_file(&mut smb, path);
        self.requests.request(deleting).await
    }

    /// Renames a file within the share. With `replace` an existing file of the new name is replaced.
    ///
    /// # Errors
    /// The server refuses it, or the connection ends.
    pub async fn rename(&self, from: &str, to: &str, replace: bool) -> Result<(), Error> {
        let options = RenameOptions::new().replace_if_exists(replace);
        let mut smb = self.smb2();
        let renaming = self.tree().rename_with(&mut smb, from, to, options);
        self.requests.request(renaming).await
    }

    /// Returns the tree of the crate smb2, for everything that this package does not do.
    pub fn tree(&self) -> &Tree {
        self.requests.tree()
    }

    /// Returns a handle on the connection of the crate smb2.
    pub fn smb2(&self) -> connection::Connection {
        self.requests.smb2()
    }

    /// Returns the name of a file in a CREATE request: within DFS it begins with server and share.
    fn name(&self, path: &str) -> String {
        let Tree {
            server,
            share_name,
            is_dfs,
            ..
        } = self.tree();
        let path = smb2::encode_path(path);
        if *is_dfs {
            format!("{server}\\{share_name}\\{path}")
        } else {
            path
        }
    }
}
