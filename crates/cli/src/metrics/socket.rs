//! The sockets of the HTTP server: TCP, and on Unix sockets with a path.

#[cfg(unix)]
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process,
};
use std::{io, net::SocketAddr};

#[cfg(unix)]
use tokio::net::{UnixListener, UnixStream};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
};

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
        _path: OwnedPath,
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

    /// Returns the address, if it has one that is not a path.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            #[cfg(unix)]
            Self::Unix { .. } => None,
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

/// Listens on a path, with these permissions. A socket that a process has left there is replaced.
///
/// # Errors
/// Another process serves there, or the folder cannot be written.
#[cfg(unix)]
pub(super) async fn listen_on_path(path: &Path, mode: u32) -> io::Result<Socket> {
    match UnixStream::connect(path).await {
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
    // Nobody can connect before the permissions are set, and a socket of another process is replaced at once.
    let mut hidden = path.as_os_str().to_owned();
    hidden.push(format!(".{}", process::id()));
    let hidden = PathBuf::from(hidden);
    let _ = fs::remove_file(&hidden);
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    socket.bind(&socket2::SockAddr::unix(&hidden)?)?;
    let place = || {
        fs::set_permissions(&hidden, fs::Permissions::from_mode(mode))?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        fs::rename(&hidden, path)?;
        fs::symlink_metadata(path)
    };
    let placed = place().inspect_err(|_| drop(fs::remove_file(&hidden)))?;
    let listener = std::os::unix::net::UnixListener::from(std::os::fd::OwnedFd::from(socket));
    let listener = UnixListener::from_std(listener)?;
    let owned = OwnedPath {
        path: path.to_owned(),
        inode: (placed.dev(), placed.ino()),
    };
    Ok(Socket::Unix {
        listener,
        _path: owned,
    })
}

/// The path of a socket, which is removed with it, unless another process has replaced it.
#[cfg(unix)]
pub(super) struct OwnedPath {
    path: PathBuf,
    inode: (u64, u64),
}

#[cfg(unix)]
impl Drop for OwnedPath {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.inode) {
            let _ = fs::remove_file(&self.path);
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
        let first = listen_on_path(&path, 0o600).await.unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let second = listen_on_path(&path, 0o600).await;
        assert_eq!(second.err().unwrap().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(!path.exists());
        // As a process leaves it that was killed.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let third = listen_on_path(&path, 0o600).await.unwrap();
        drop(third);
        fs::write(&path, "file").unwrap();
        assert!(listen_on_path(&path, 0o600).await.is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
