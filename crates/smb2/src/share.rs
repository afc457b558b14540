//! A share, and the requests on its files.

use std::fmt;

use smb2::{
    FileAttributes, FileInfo, Tree,
    client::connection,
    msg::create::{
        CreateDisposition, CreateRequest, CreateResponse, ImpersonationLevel, ShareAccess,
    },
    pack::{Pack, ReadCursor, Unpack},
    types::{Command, FileId, OplockLevel, flags::FileAccessMask, status::NtStatus},
};

use crate::{
    dfs,
    error::Error,
    file::File,
    requests::{self, disposition},
    transfer::{BYTES_PER_CREDIT, Transfer},
    tree::{Answer, Requests, detached},
};

/// FILE_NON_DIRECTORY_FILE ([MS-SMB2] 2.2.13).
pub(crate) const NON_DIRECTORY_FILE: u32 = 0x0000_0040;
/// FILE_DELETE_ON_CLOSE.
const DELETE_ON_CLOSE: u32 = 0x0000_1000;
/// FILE_OPEN_REPARSE_POINT: a link itself, in place of its target.
const OPEN_REPARSE_POINT: u32 = 0x0020_0000;
const EVERYONE: u32 =
    ShareAccess::FILE_SHARE_READ | ShareAccess::FILE_SHARE_WRITE | ShareAccess::FILE_SHARE_DELETE;
const CREATE: Command = Command::Create;

/// How to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpenMode {
    /// An existing file, to read it. Others may read, write, rename and delete it meanwhile.
    Read,
    /// An existing file, to write it in place. It keeps its length, its permissions and its streams, and others that
    /// have it open keep it open.
    Write,
    /// A new file, to write it. Fails if the name exists. No other client may open it meanwhile. The server deletes the
    /// file when it is closed, also by the end of the connection, until [`File::keep`] ends that. If the server does
    /// not take this, the file stays, and [`File::is_temporary`] is false.
    New,
    /// A new file, to write and read it. The server deletes it when it is closed, also by the end of the connection.
    /// No other client may open it meanwhile.
    Scratch,
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

    pub(crate) const fn requests(&self) -> &Requests {
        &self.requests
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
    /// The server refuses it or does not answer, or the connection ends.
    ///
    /// # Cancel safety
    /// If the future is dropped, a file that the server has opened is closed when the server has answered.
    pub async fn open(&self, path: &str, mode: OpenMode) -> Result<File, Error> {
        // A WRITE beyond the end of the file needs FILE_APPEND_DATA ([MS-SMB2] 3.3.5.13).
        const WRITE: u32 = FileAccessMask::FILE_WRITE_DATA | FileAccessMask::FILE_APPEND_DATA;
        const READ: u32 = FileAccessMask::FILE_READ_DATA | FileAccessMask::FILE_READ_ATTRIBUTES;

        let (access, share, disposition) = match mode {
            OpenMode::Read => (READ, EVERYONE, CreateDisposition::FileOpen),
            OpenMode::Write => (WRITE, EVERYONE, CreateDisposition::FileOpen),
            OpenMode::New => (
                WRITE | FileAccessMask::DELETE,
                0,
                CreateDisposition::FileCreate,
            ),
            OpenMode::Scratch => (
                READ | WRITE | FileAccessMask::DELETE,
                0,
                CreateDisposition::FileCreate,
            ),
        };
        let options = match mode {
            OpenMode::Scratch => NON_DIRECTORY_FILE | DELETE_ON_CLOSE,
            _ => NON_DIRECTORY_FILE,
        };
        let create = CreateRequest {
            create_disposition: disposition,
            file_attributes: FileAttributes::NORMAL,
            share_access: ShareAccess(share),
            ..self.create(path, access, options)
        };
        match mode {
            OpenMode::New => self.open_temporary(create).await,
            _ => self.open_with(create).await.map(|(file, _)| file),
        }
    }

    /// Returns size, times and attributes of a file or directory.
    ///
    /// # Errors
    /// The server refuses it or does not answer, or the connection ends.
    pub async fn stat(&self, path: &str) -> Result<FileInfo, Error> {
        let access = FileAccessMask::FILE_READ_ATTRIBUTES;
        let create = self.create(path, access, OPEN_REPARSE_POINT);
        let (file, created) = self.open_with(create).await?;
        let mut info = FileInfo::default();
        info.size = created.end_of_file;
        info.attributes = FileAttributes(created.file_attributes);
        info.is_directory = info.attributes.is_directory();
        info.created = created.creation_time;
        info.modified = created.last_write_time;
        info.accessed = created.last_access_time;
        info.changed = created.change_time;
        if info.attributes.is_reparse_point() {
            info.reparse_tag = file.reparse_tag().await?;
        }
        // The answer is here, so a failure to close does not matter.
        let _ = file.close().await;
        Ok(info)
    }

    /// Deletes a file.
    ///
    /// # Errors
    /// The server refuses it or does not answer, or the connection ends.
    pub async fn delete(&self, path: &str) -> Result<(), Error> {
        let options = NON_DIRECTORY_FILE | OPEN_REPARSE_POINT | DELETE_ON_CLOSE;
        let create = self.create(path, FileAccessMask::DELETE, options);
        let (file, _) = self.open_with(create).await?;
        file.close().await
    }

    /// Renames a file within the share. With `replace` an existing file of the new name is replaced.
    ///
    /// # Errors
    /// The server refuses it or does not answer, or the connection ends.
    pub async fn rename(&self, from: &str, to: &str, replace: bool) -> Result<(), Error> {
        const COMMAND: Command = Command::SetInfo;
        let access = FileAccessMask::DELETE | FileAccessMask::FILE_READ_ATTRIBUTES;
        let create = self.create(from, access, OPEN_REPARSE_POINT);
        let (file, _) = self.open_with(create).await?;
        let request = requests::rename(file.id(), &smb2::encode_path(to), replace);
        let answer = self.requests.execute(COMMAND, request).await?;
        answer.success(COMMAND)?;
        file.close().await
    }

    /// Returns a CREATE request that opens a file or directory that exists, for others too.
    pub(crate) fn create(&self, path: &str, access: u32, options: u32) -> CreateRequest {
        CreateRequest {
            requested_oplock_level: OplockLevel::None,
            impersonation_level: ImpersonationLevel::Impersonation,
            desired_access: FileAccessMask::new(access | FileAccessMask::SYNCHRONIZE),
            file_attributes: 0,
            share_access: ShareAccess(EVERYONE),
            create_disposition: CreateDisposition::FileOpen,
            create_options: options,
            name: self.name(path),
            create_contexts: Vec::new(),
        }
    }

    /// Opens a file, which is closed if the future is dropped.
    pub(crate) async fn open_with(
        &self,
        create: impl Create,
    ) -> Result<(File, CreateResponse), Error> {
        let requests = self.requests.clone();
        let name = create.name().to_owned();
        let opening = async {
            let turn = requests.turn(1).await;
            let requests = requests.for_task();
            detached(async move {
                let answer = requests.send(turn, CREATE, &create).await?;
                opened(requests, answer)
            })
            .await
        };
        let opened = requests.within_limit(opening).await;
        self.with_target(&name, opened).await
    }

    /// Names the place where a link of DFS leads, if that is why a CREATE of `name` failed.
    async fn with_target<T>(&self, name: &str, opened: Result<T, Error>) -> Result<T, Error> {
        let Err(Error::Status { status, .. }) = &opened else {
            return opened;
        };
        if *status != NtStatus::PATH_NOT_COVERED {
            return opened;
        }
        Err(Error::DfsLink(dfs::target(&self.requests, name).await))
    }

    /// Opens a file, and marks it temporary in the same message if the server supports that.
    async fn open_temporary(&self, create: CreateRequest) -> Result<File, Error> {
        const COMMAND: Command = Command::SetInfo;
        let requests = self.requests.clone();
        let name = create.name.clone();
        let opening = async {
            let turn = requests.turn(2 * BYTES_PER_CREDIT).await;
            let requests = requests.for_task();
            detached(async move {
                // The file of the request before.
                let mark = disposition(FileId::SENTINEL, true);
                let both = requests.send_both(turn, (CREATE, &create), (COMMAND, &mark));
                let (created, marked) = both.await?;
                let (file, _) = opened(requests, created)?;
                match marked.map(|marked| marked.status()) {
                    Some(NtStatus::SUCCESS) => file.is_now_temporary(true),
                    // It was not sent, or not taken from a message with two requests. A server that refuses it alone
                    // leaves the file as it is.
                    _ => match file.set_temporary(true).await {
                        Ok(()) | Err(Error::Status { .. }) => {}
                        Err(error) => return Err(error),
                    },
                }
                Ok(file)
            })
            .await
        };
        let opened = requests.within_limit(opening).await;
        self.with_target(&name, opened).await
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

/// A CREATE request.
pub(crate) trait Create: Pack + 'static {
    /// Returns the name that it opens.
    fn name(&self) -> &str;
}

impl Create for CreateRequest {
    fn name(&self) -> &str {
        &self.name
    }
}

/// Returns the file of a successful answer to CREATE.
fn opened(requests: Requests, answer: Answer) -> Result<(File, CreateResponse), Error> {
    let body = answer.success(CREATE)?;
    let created = CreateResponse::unpack(&mut ReadCursor::new(&body)).map_err(Error::Smb2)?;
    let requests = requests.for_file();
    let file = File::new(requests, &created);
    Ok((file, created))
}
