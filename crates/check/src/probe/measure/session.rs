//! A session with a share, over TCP and over SMB Direct.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, anyhow};
use smbdirect::Connection;
use smbdirect_smb2::{File, Login, OpenMode, Reason, Share, Transfer};

use crate::{
    facts::InMessages,
    probe::{
        attempt::{self, Candidate},
        session::Over,
    },
};

/// One SMB2 credit pays for this many bytes.
const BYTES_PER_CREDIT: u32 = 65_536;

/// A session with one share.
pub(super) struct Session {
    share: Share,
    pub(super) signs: bool,
    /// The connection of SMB Direct; `None` over TCP.
    connection: Option<Connection>,
}

impl Session {
    /// Opens a session by SMB Direct with `candidate`, or by TCP.
    pub(super) async fn open(
        candidate: Option<&Candidate>,
        address: SocketAddr,
        host: &str,
        share: &str,
        login: &Login,
    ) -> Result<Self> {
        let (over, connection) = match candidate {
            None => (Over::Tcp(address), None),
            Some(candidate) => {
                let connection = attempt::open(candidate, address).await;
                let connection = connection.map_err(|fault| anyhow!("{fault}"))?;
                (Over::SmbDirect(connection.clone()), Some(connection))
            }
        };
        let opening = async {
            let mut client = over.log_in(host, login).await?;
            let share = client.share(share).await?;
            Ok((share, client.signs()))
        };
        match opening.await {
            Ok((share, signs)) => Ok(Self {
                share,
                signs,
                connection,
            }),
            Err(error) => {
                leave(connection).await;
                Err(error)
            }
        }
    }

    /// Creates a file with a random name, which the server deletes when it is closed. Its path is in `made`, unless the
    /// server refuses it.
    pub(super) async fn scratch_file(
        &self,
        folder: &str,
        made: &mut Option<String>,
    ) -> Result<File> {
        let name = format!(".smbdirect-check-{:016x}", fastrand::u64(..));
        let path = match folder {
            "" => name,
            folder => format!("{folder}/{name}"),
        };
        *made = Some(path.clone());
        let file = self.share.open(&path, OpenMode::Scratch).await;
        if file.is_err() {
            *made = None;
        }
        file.with_context(|| {
            format!("the scratch file {path} cannot be created (--read-only FILE needs none)")
        })
    }

    /// Opens a file that exists, to read it.
    pub(super) async fn open_file(&self, path: &str) -> Result<File> {
        let file = self.share.open(path, OpenMode::Read).await;
        file.with_context(|| format!("{path} cannot be opened"))
    }

    /// Returns the SMB2 credits that no request uses.
    pub(super) fn credits(&self) -> u16 {
        self.share.smb2().credits()
    }

    /// Returns why data moves in messages although the transport has RDMA.
    pub(super) fn in_messages(&self) -> Option<InMessages> {
        self.connection.as_ref()?;
        match self.share.transfer() {
            Transfer::Rdma(_) => None,
            Transfer::Messages(reason @ (Reason::Signing | Reason::Encryption)) => {
                Some(InMessages::Protected(reason.to_string()))
            }
            Transfer::Messages(reason) => Some(InMessages::Other(reason.to_string())),
        }
    }

    /// Returns the bytes of a request, at most `wanted`. While no request is outstanding, half of the credits have to
    /// pay for it, so that there are two.
    pub(super) fn request_bytes(&self, wanted: u32) -> u32 {
        let most = u32::try_from(self.share.max_bytes()).unwrap_or(u32::MAX);
        let paid = u32::from(self.credits() / 2).max(1) * BYTES_PER_CREDIT;
        wanted.min(most).min(paid)
    }

    /// Returns for how long messages have waited for a send credit of SMB Direct.
    pub(super) fn credit_stall_time(&self) -> Option<Duration> {
        let connection = self.connection.as_ref()?;
        Some(connection.stats().credit_stall_time)
    }

    pub(super) async fn close(self) {
        leave(self.connection).await;
    }
}

/// Ends a connection of SMB Direct. One over TCP closes when its session is dropped.
async fn leave(connection: Option<Connection>) {
    if let Some(connection) = connection {
        attempt::leave(&connection).await;
    }
}
