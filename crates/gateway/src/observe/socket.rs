//! The sockets of the HTTP server: TCP, and on Unix sockets with a path.

use std::io;
#[cfg(unix)]
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

#[cfg(unix)]
use tokio::net::{UnixListener, UnixStream};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
};
#[cfg(unix)]
use tracing::warn;

/// A connection of a client.
pub(super) trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// A socket that listens.
pub(super) enum Socket {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix {
        listener: UnixListener,
        /// Removed with the socket.
        path: OwnedPath,
    },
}

impl Socket {
    /// Returns the next client. Cancel-safe.
    pub(super) async fn accept(&self) -> io::Result<Box<dyn Connection>> {
        match self {
            Self::Tcp(listener) => Ok(Box::new(listener.accept().await?.0)),
            #[cfg(unix)]
            Self::Unix { listener, .. } => Ok(Box::new(listener.accept().await?.0)),
        }
    }

    /// Lets clients connect to a path. A socket that another process has there is replaced.
    pub(super) fn open(&mut self) {
        #[cfg(unix)]
        if let Self::Unix { path, .. } = self
            && let Err(error) = path.take()
        {
            let path = path.wanted.display();
            warn!(%error, "no client can connect to {path}");
        }
    }

    /// Returns a file descriptor that can be released when another one is needed.
    pub(super) fn reserve(&self) -> Option<OwnedHandle> {
        #[cfg(unix)]
        use std::os::fd::AsFd as _;
        #[cfg(windows)]
        use std::os::windows::io::AsSocket as _;
        let own = match self {
            #[cfg(unix)]
            Self::Tcp(listener) => listener.as_fd().try_clone_to_owned(),
            #[cfg(unix)]
            Self::Unix { listener, .. } => listener.as_fd().try_clone_to_owned(),
            #[cfg(windows)]
            Self::Tcp(listener) => listener.as_socket().try_clone_to_owned(),
        };
        own.ok()
    }

    /// Returns the address or the path.
    pub(super) fn address(&self) -> String {
        match self {
            Self::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|error| error.to_string(), |address| address.to_string()),
            #[cfg(unix)]
            Self::Unix { path, .. } => path.wanted.display().to_string(),
        }
    }
}

#[cfg(unix)]
pub(super) type OwnedHandle = std::os::fd::OwnedFd;
#[cfg(windows)]
pub(super) type OwnedHandle = std::os::windows::io::OwnedSocket;

/// Maximum number of connections to a path that wait to be accepted.
#[cfg(unix)]
const BACKLOG: i32 = 128;

/// Listens on a path, with these permissions, so that [`Socket::open`] can replace a socket that a process has left there,
/// or one of a process that serves there, if `takes_over`.
///
/// # Errors
/// Another process serves there, or the folder cannot be written.
#[cfg(unix)]
pub(super) async fn listen_on_path(path: &Path, mode: u32, takes_over: bool) -> io::Result<Socket> {
    match UnixStream::connect(path).await {
        _ if takes_over => {}
        // Its queue is full.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        Ok(_) => return Err(io::ErrorKind::AddrInUse.into()),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {}
            _ => return Err(error),
        },
    }
    let is_other =
        |found: fs::Metadata| !std::os::unix::fs::FileTypeExt::is_socket(&found.file_type());
    if fs::symlink_metadata(path).is_ok_and(is_other) {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    // Nobody can connect before the permissions are set, and a socket of another process is replaced at once. The name is
    // short, because the path of a socket may not be long.
    static HIDDEN: AtomicU32 = AtomicU32::new(0);
    let number = HIDDEN.fetch_add(1, Relaxed);
    let hidden = path.with_file_name(format!(".{:x}-{number}", process::id()));
    let _ = fs::remove_file(&hidden);
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    socket.bind(&socket2::SockAddr::unix(&hidden)?)?;
    let place = || {
        fs::set_permissions(&hidden, fs::Permissions::from_mode(mode))?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        fs::symlink_metadata(&hidden)
    };
    let placed = place().inspect_err(|_| drop(fs::remove_file(&hidden)))?;
    let listener = std::os::unix::net::UnixListener::from(std::os::fd::OwnedFd::from(socket));
    let listener = UnixListener::from_std(listener)?;
    let owned = OwnedPath {
        now: hidden,
        wanted: path.to_owned(),
        inode: (placed.dev(), placed.ino()),
    };
    Ok(Socket::Unix {
        listener,
        path: owned,
    })
}

/// The path of a socket, which is removed with it, unless another process has replaced it.
#[cfg(unix)]
pub(super) struct OwnedPath {
    /// The path that the socket has.
    now: PathBuf,
    /// The path that clients connect to.
    wanted: PathBuf,
    inode: (u64, u64),
}

#[cfg(unix)]
impl OwnedPath {
    /// Gives the socket the path that clients connect to.
    fn take(&mut self) -> io::Result<()> {
        fs::rename(&self.now, &self.wanted)?;
        self.now.clone_from(&self.wanted);
        Ok(())
    }
}

#[cfg(unix)]
impl Drop for OwnedPath {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.now);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.inode) {
            let _ = fs::remove_file(&self.now);
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_path_is_private_and_is_taken_over_from_the_dead_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let mut first = listen_on_path(&path, 0o600, false).await.unwrap();
        assert!(!path.exists());
        first.open();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let second = listen_on_path(&path, 0o600, false).await;
        assert_eq!(second.err().unwrap().kind(), io::ErrorKind::AddrInUse);
        let mut successor = listen_on_path(&path, 0o600, true).await.unwrap();
        successor.open();
        drop(first);
        assert!(path.exists(), "it is of another one");
        drop(successor);
        assert!(!path.exists());
        // As a process leaves it that was killed.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let mut third = listen_on_path(&path, 0o600, false).await.unwrap();
        third.open();
        drop(third);
        fs::write(&path, "file").unwrap();
        assert!(listen_on_path(&path, 0o600, true).await.is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        // The longest path that the system permits.
        let length = 107 - folder.path().as_os_str().len() - 1;
        let long = folder.path().join("s".repeat(length));
        listen_on_path(&long, 0o600, false).await.unwrap().open();
    }
}
