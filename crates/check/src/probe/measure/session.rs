//! A session with a share and an open file of it, over TCP and over SMB Direct.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, anyhow, ensure};
use bytes::BytesMut;
use smb2::{
    FileAttributes,
    client::{Session as Login, Tree, connection::Connection as Smb2},
    msg::{
        close::CloseRequest,
        create::{
            CreateDisposition, CreateRequest, CreateResponse, ImpersonationLevel, ShareAccess,
        },
    },
    pack::{Pack, ReadCursor, Unpack},
    types::{
        Command, CreditCharge, FileId, OplockLevel, TreeId, flags::FileAccessMask, status::NtStatus,
    },
};
use smbdirect::Connection;
use smbdirect_smb2::{
    Account as SmbAccount, Client, OpenMode, Reason, Share, Transfer,
    requests::{ReadAnswer, ReadRequest, Source, WriteRequest, written},
};

use crate::{
    facts::InMessages,
    probe::attempt::{self, Candidate},
    settings::Account,
};

/// Longest time for the server to answer a request.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// One SMB2 credit pays for this many bytes.
const BYTES_PER_CREDIT: u32 = 65_536;
/// FILE_NON_DIRECTORY_FILE and FILE_DELETE_ON_CLOSE ([MS-SMB2] 2.2.13).
const NON_DIRECTORY_FILE: u32 = 0x0000_0040;
const DELETE_ON_CLOSE: u32 = 0x0000_1000;

/// The transport to open.
pub(super) enum Over<'a> {
    Tcp(SocketAddr),
    Direct(&'a Candidate, SocketAddr),
}

impl From<SocketAddr> for Over<'_> {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl<'a> From<(&'a Candidate, SocketAddr)> for Over<'a> {
    fn from((candidate, address): (&'a Candidate, SocketAddr)) -> Self {
        Self::Direct(candidate, address)
    }
}

/// A session with one share.
pub(super) enum Session {
    Tcp(TcpSession),
    Direct(Direct),
}

/// A session over TCP, by the crate smb2 alone.
#[derive(Clone)]
pub(super) struct TcpSession {
    smb: Smb2,
    tree: TreeId,
    signs: bool,
}

/// A session over SMB Direct.
pub(super) struct Direct {
    connection: Connection,
    share: Share,
    signs: bool,
}

impl Session {
    pub(super) async fn open(
        over: Over<'_>,
        host: &str,
        share: &str,
        account: &Account,
    ) -> Result<Self> {
        match over {
            Over::Tcp(address) => TcpSession::open(address, host, share, account)
                .await
                .map(Self::Tcp),
            Over::Direct(candidate, address) => {
                let connection = attempt::open(candidate, address).await;
                let connection = connection.map_err(|fault| anyhow!("{fault}"))?;
                match Direct::open(&connection, host, share, account).await {
                    Ok(direct) => Ok(Self::Direct(direct)),
                    Err(error) => {
                        attempt::leave(&connection).await;
                        Err(error)
                    }
                }
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
        let file = match self {
            Self::Tcp(session) => session.create(&path, true).await,
            Self::Direct(session) => {
                let file = session.share.open(&path, OpenMode::Scratch).await;
                file.map(File::Direct).map_err(Into::into)
            }
        };
        if file.is_err() {
            *made = None;
        }
        file.with_context(|| {
            format!("the scratch file {path} cannot be created (--read-only FILE needs none)")
        })
    }

    /// Opens a file that exists, to read it.
    pub(super) async fn open_file(&self, path: &str) -> Result<File> {
        let file = match self {
            Self::Tcp(session) => session.create(path, false).await,
            Self::Direct(session) => {
                let file = session.share.open(path, OpenMode::Read).await;
                file.map(File::Direct).map_err(Into::into)
            }
        };
        file.with_context(|| format!("{path} cannot be opened"))
    }

    /// Returns the SMB2 credits that no request uses.
    pub(super) fn credits(&self) -> u16 {
        match self {
            Self::Tcp(session) => session.smb.credits(),
            Self::Direct(session) => session.share.smb2().credits(),
        }
    }

    pub(super) const fn signs(&self) -> bool {
        match self {
            Self::Tcp(session) => session.signs,
            Self::Direct(session) => session.signs,
        }
    }

    /// Returns why data moves in messages although the transport has RDMA.
    pub(super) fn in_messages(&self) -> Option<InMessages> {
        let Self::Direct(session) = self else {
            return None;
        };
        match session.share.transfer() {
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
        let most = match self {
            Self::Tcp(session) => {
                let params = session.smb.params().expect("NEGOTIATE succeeded");
                params.max_read_size.min(params.max_write_size)
            }
            Self::Direct(session) => u32::try_from(session.share.max_bytes()).unwrap_or(u32::MAX),
        };
        let paid = u32::from(self.credits() / 2).max(1) * BYTES_PER_CREDIT;
        wanted.min(most).min(paid)
    }

    /// Returns for how long messages have waited for a send credit of SMB Direct.
    pub(super) fn credit_stall_time(&self) -> Option<Duration> {
        match self {
            Self::Tcp(_) => None,
            Self::Direct(session) => Some(session.connection.stats().credit_stall_time),
        }
    }

    pub(super) async fn close(self) {
        // A connection over TCP closes when it is dropped.
        if let Self::Direct(session) = self {
            attempt::leave(&session.connection).await;
        }
    }
}

impl Direct {
    async fn open(
        connection: &Connection,
        host: &str,
        share: &str,
        account: &Account,
    ) -> Result<Self> {
        let mut client = match account {
            Account::Password { user, password } => {
                let (domain, name) = split(user);
                let mut account = SmbAccount::default();
                account.user = name.into();
                account.domain = domain.into();
                account.password.clone_from(password);
                Client::connect(connection.clone(), host, &account, ANSWER_LIMIT).await?
            }
            Account::Tickets(tickets) => {
                let connection = connection.clone();
                Client::connect_with_tickets(connection, host, tickets, ANSWER_LIMIT).await?
            }
        };
        Ok(Self {
            connection: connection.clone(),
            share: client.share(share).await?,
            signs: client.signs(),
        })
    }
}

fn split(user: &str) -> (&str, &str) {
    user.split_once(['\\', '/']).unwrap_or(("", user))
}

impl TcpSession {
    async fn open(address: SocketAddr, host: &str, share: &str, account: &Account) -> Result<Self> {
        let mut smb = Smb2::connect(&address.to_string(), ANSWER_LIMIT).await?;
        smb.negotiate().await.context("NEGOTIATE")?;
        let login = match account {
            Account::Password { user, password } => {
                let (domain, name) = split(user);
                Login::setup(&mut smb, name, password, domain).await?
            }
            Account::Tickets(tickets) => {
                let tickets = tickets.for_server(host).await?;
                tickets.log_in(&mut smb, host).await?
            }
        };
        let tree = Tree::connect(&mut smb, share).await?;
        ensure!(
            !tree.encrypt_data || login.should_encrypt,
            "the share demands encryption, which this command cannot measure over TCP"
        );
        Ok(Self {
            smb,
            tree: tree.tree_id,
            signs: login.should_sign,
        })
    }

    /// Creates a scratch file, or opens a file to read it.
    async fn create(&self, path: &str, is_scratch: bool) -> Result<File> {
        const READ: u32 = FileAccessMask::FILE_READ_DATA | FileAccessMask::FILE_READ_ATTRIBUTES;
        // A WRITE beyond the end of the file needs FILE_APPEND_DATA ([MS-SMB2] 3.3.5.13).
        const SCRATCH: u32 = READ
            | FileAccessMask::FILE_WRITE_DATA
            | FileAccessMask::FILE_APPEND_DATA
            | FileAccessMask::DELETE;
        const EVERYONE: u32 = ShareAccess::FILE_SHARE_READ
            | ShareAccess::FILE_SHARE_WRITE
            | ShareAccess::FILE_SHARE_DELETE;

        let (access, sharing, disposition, options) = if is_scratch {
            let options = NON_DIRECTORY_FILE | DELETE_ON_CLOSE;
            (SCRATCH, 0, CreateDisposition::FileCreate, options)
        } else {
            let disposition = CreateDisposition::FileOpen;
            (READ, EVERYONE, disposition, NON_DIRECTORY_FILE)
        };
        let request = CreateRequest {
            requested_oplock_level: OplockLevel::None,
            impersonation_level: ImpersonationLevel::Impersonation,
            desired_access: FileAccessMask::new(access | FileAccessMask::SYNCHRONIZE),
            file_attributes: FileAttributes::NORMAL,
            share_access: ShareAccess(sharing),
            create_disposition: disposition,
            create_options: options,
            name: smb2::encode_path(path),
            create_contexts: Vec::new(),
        };
        let body = self.execute(Command::Create, &request, 1).await?;
        let created = CreateResponse::unpack(&mut ReadCursor::new(&body))?;
        Ok(File::Tcp(TcpFile {
            session: self.clone(),
            id: created.file_id,
            length: created.end_of_file,
        }))
    }

    async fn execute(&self, command: Command, body: &dyn Pack, charge: u16) -> Result<Vec<u8>> {
        let charge = CreditCharge(charge);
        let tree = Some(self.tree);
        let executing = self.smb.execute_with_credits(command, body, tree, charge);
        let frame = executing.await?;
        let status = frame.header.status;
        ensure!(status == NtStatus::SUCCESS, "{command:?}: {status}");
        Ok(frame.body)
    }
}

/// An open file. Clones are handles on it.
#[derive(Clone)]
pub(super) enum File {
    Tcp(TcpFile),
    Direct(smbdirect_smb2::File),
}

/// An open file over TCP.
#[derive(Clone)]
pub(super) struct TcpFile {
    session: TcpSession,
    id: FileId,
    length: u64,
}

impl File {
    pub(super) fn length(&self) -> u64 {
        match self {
            Self::Tcp(file) => file.length,
            Self::Direct(file) => file.length(),
        }
    }

    /// Reads as many bytes as the buffer has. Returns it, and how many of them moved by RDMA.
    pub(super) async fn read(&self, offset: u64, buffer: BytesMut) -> Result<(BytesMut, usize)> {
        let wanted = buffer.len();
        let (buffer, by_rdma) = match self {
            Self::Tcp(file) => (file.read(offset, buffer).await?, 0),
            Self::Direct(file) => {
                let read = file.read(offset, buffer).await?;
                (read.data, read.by_rdma)
            }
        };
        ensure!(buffer.len() == wanted, "the file became shorter");
        Ok((buffer, by_rdma))
    }

    /// Writes all bytes. Returns the buffer, and how many of them moved by RDMA.
    pub(super) async fn write(&self, offset: u64, buffer: BytesMut) -> Result<(BytesMut, usize)> {
        match self {
            Self::Tcp(file) => Ok((file.write(offset, buffer).await?, 0)),
            Self::Direct(file) => {
                let written = file.write(offset, buffer).await?;
                Ok((written.data, written.by_rdma))
            }
        }
    }

    pub(super) async fn close(self) -> Result<()> {
        match self {
            Self::Tcp(TcpFile { session, id, .. }) => {
                let request = CloseRequest {
                    flags: 0,
                    file_id: id,
                };
                session.execute(Command::Close, &request, 1).await.map(drop)
            }
            Self::Direct(file) => Ok(file.close().await?),
        }
    }
}

impl TcpFile {
    async fn read(&self, offset: u64, mut buffer: BytesMut) -> Result<BytesMut> {
        let request = ReadRequest {
            file_id: self.id,
            offset,
            length: buffer.len() as u32,
            channel: None,
        };
        let charge = charge(buffer.len());
        let body = self
            .session
            .execute(Command::Read, &request, charge)
            .await?;
        let answer = ReadAnswer::decode(&body)?;
        let read = answer.inline.len().min(buffer.len());
        buffer.truncate(read);
        buffer.copy_from_slice(&answer.inline[..read]);
        Ok(buffer)
    }

    async fn write(&self, offset: u64, buffer: BytesMut) -> Result<BytesMut> {
        let request = WriteRequest {
            file_id: self.id,
            offset,
            source: Source::Inline(&buffer),
        };
        let charge = charge(buffer.len());
        let body = self
            .session
            .execute(Command::Write, &request, charge)
            .await?;
        ensure!(
            written(&body)? as usize == buffer.len(),
            "the server wrote only a part of the data"
        );
        Ok(buffer)
    }
}

/// Returns the credits of a request that moves these bytes.
fn charge(bytes: usize) -> u16 {
    let credits = bytes.div_ceil(BYTES_PER_CREDIT as usize).max(1);
    u16::try_from(credits).unwrap_or(u16::MAX)
}
