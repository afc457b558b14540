//! Shows a running program by HTTP: figures as Prometheus text, its state as JSON, and health pages. A control socket
//! also changes what runs.
//!
//! `GET /metrics` returns the figures, `GET /status` each connection, for `smbdirect top`. There is no authentication,
//! so an address should be one that only the monitoring can reach.

mod past;
#[cfg(target_os = "linux")]
mod process;
mod registry;
mod server;
mod socket;
mod source;
mod status;
mod text;

#[cfg(unix)]
use std::path::Path;
use std::{io, net, sync::Arc, time::Instant};

use socket2::SockRef;
use tokio::{net::TcpListener, task::JoinSet};

pub use past::{Counters, keep, restore};
pub use registry::Registry;
pub use source::{Answer, Figures, counters};
pub use status::{ConnectionStatus, Status, ThreadStatus, Traffic};

use socket::Socket;
use source::Source;

/// What the clients of a socket may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read. A path has the mode 0660.
    Read,
    /// Read, and change what runs. A path has the mode 0600.
    Control,
}

/// The HTTP server. Dropping the value ends it.
#[derive(Default)]
pub struct Server {
    sockets: Vec<(Access, Socket)>,
    /// Duplicates of the sockets that have no path.
    duplicates: Vec<net::TcpListener>,
    tasks: JoinSet<()>,
}

impl Server {
    /// Returns a server that listens nowhere yet.
    #[must_use]
    pub fn new() -> Self {
        #[cfg(target_os = "linux")]
        process::open();
        Self::default()
    }

    /// Serves on a TCP socket that listens.
    ///
    /// # Errors
    /// The system has too many open files for a duplicate of the socket.
    pub fn add_tcp(&mut self, listener: TcpListener) -> io::Result<()> {
        let duplicate = SockRef::from(&listener).try_clone()?;
        self.duplicates.push(duplicate.into());
        self.sockets.push((Access::Read, Socket::Tcp(listener)));
        Ok(())
    }

    /// Serves on the path of a Unix socket, which [`start`](Self::start) creates. It replaces a socket that a dead process
    /// has left there, or, if it `takes_over`, one of a process that still serves there.
    ///
    /// # Errors
    /// `AddrInUse` if another process serves there, `AlreadyExists` if the path is not a socket; otherwise the folder
    /// cannot be written.
    #[cfg(unix)]
    pub async fn add_path(
        &mut self,
        path: &Path,
        access: Access,
        takes_over: bool,
    ) -> io::Result<()> {
        let mode = match access {
            Access::Read => 0o660,
            Access::Control => 0o600,
        };
        let socket = socket::listen_on_path(path, mode, takes_over).await?;
        self.sockets.push((access, socket));
        Ok(())
    }

    /// Returns duplicates of the sockets that have no path, for a process that takes the place of this one.
    ///
    /// # Errors
    /// The system has too many open files.
    pub fn duplicates(&self) -> io::Result<Vec<net::TcpListener>> {
        self.duplicates
            .iter()
            .map(net::TcpListener::try_clone)
            .collect()
    }

    /// Serves `figures`. Returns the addresses and paths where they can be read.
    pub fn start(&mut self, figures: Arc<dyn Figures>) -> Vec<String> {
        let source = Arc::new(Source::new(Instant::now(), figures));
        let room = server::room();
        // A client that has read one address finds all of them.
        for (_, socket) in &mut self.sockets {
            socket.open();
        }
        let mut addresses = Vec::new();
        for (access, socket) in self.sockets.drain(..) {
            if access == Access::Read {
                addresses.push(socket.address());
            }
            let site = server::Site {
                source: source.clone(),
                has_control: access == Access::Control,
            };
            self.tasks.spawn(server::serve(socket, site, room.clone()));
        }
        addresses
    }

    /// Ends the server. The paths of its sockets are removed when this returns.
    pub async fn end(mut self) {
        self.tasks.shutdown().await;
    }
}
