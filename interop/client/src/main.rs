//! A test client for cases 3 and 5: logs in to an SMB server over SMB Direct, and has it write to and
//! read from memory that was registered here.
//!
//! ```text
//!   smbdirect-interop [--verbs | --roce] ADDRESS SHARE USER PASSWORD
//! ```
//!
//! With `--verbs` by an RDMA adapter, with `--roce` by software RoCEv2, else by software iWARP.
//!
//! Prints a line for each thing that was tried, `ok: ...` or `FAILED: ...`, and for each file that
//! is left on the share `file NAME SHA-256`. The status is 0 only if nothing failed.
#![forbid(unsafe_code)]

use std::{
    net::SocketAddr,
    process::ExitCode,
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use bytes::BytesMut;
use sha2::{Digest, Sha256};
use smb2::{
    client::{Session, Tree, connection},
    msg::{
        close::CloseRequest,
        create::{
            CreateDisposition, CreateRequest, CreateResponse, ImpersonationLevel, ShareAccess,
        },
    },
    pack::{ReadCursor, Unpack},
    types::{Command, CreditCharge, FileId, OplockLevel, flags::FileAccessMask, status::NtStatus},
};
use smbdirect::{
    Access, BufferDescriptorV1, Config, Connection, ConnectionError, MemoryRegion, Settings, Token,
    rdma::{
        iwarp::{Iwarp, IwarpConfig},
        provider::Provider,
        roce::Roce,
    },
};
use smbdirect_smb2::{
    Channel, Transport,
    requests::{ReadAnswer, ReadRequest, Source, WriteRequest, written},
};
use smbdirect_verbs::{Verbs, VerbsConfig};
use tokio::time::timeout;

/// Lengths near the size of one operation of the kernel, and one byte more than a MiB.
const SIZES: [usize; 7] = [
    1,
    4096,
    127 << 10,
    128 << 10,
    129 << 10,
    1 << 20,
    (1 << 20) + 1,
];
/// Descriptors that the bytes are spread over.
const PARTS: [usize; 3] = [1, 2, 5];
/// No step takes longer.
const PATIENCE: Duration = Duration::from_secs(20);
/// More than the 5 seconds after which ksmbd gives up a first connection that siw overlooked: if we
/// give up first, its kernel panics.
const NEGOTIATION: Duration = Duration::from_secs(8);
/// For such a first connection.
const TRIES: usize = 5;

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let by_adapter = arguments.first().is_some_and(|first| first == "--verbs");
    let by_roce = arguments.first().is_some_and(|first| first == "--roce");
    if by_adapter || by_roce {
        arguments.remove(0);
    }
    let [address, share, user, password] = &arguments[..] else {
        eprintln!("smbdirect-interop [--verbs | --roce] ADDRESS SHARE USER PASSWORD");
        return ExitCode::from(2);
    };
    let Ok(address) = address.parse() else {
        eprintln!("{address} is no IP address with a port");
        return ExitCode::from(2);
    };
    let provider: Box<dyn Provider> = if by_adapter {
        match Verbs::new(VerbsConfig::default()) {
            Ok(verbs) => Box::new(verbs),
            Err(why) => {
                eprintln!("{why}");
                return ExitCode::from(2);
            }
        }
    } else if by_roce {
        Box::new(Roce::default())
    } else {
        Box::new(Iwarp::new(IwarpConfig::default()))
    };
    let login = Login {
        invalidation_is_told: !by_adapter || provider.attributes().negotiates_read_depths,
        provider: &*provider,
        address,
        share,
        user,
        password,
    };
    let mut failures = 0;
    let mut report = |what: &str, result: Result<()>| match result {
        Ok(()) => println!("ok: {what}"),
        Err(error) => {
            failures += 1;
            println!("FAILED: {what}: {error:#}");
        }
    };
    report(
        "every size, channel and number of descriptors",
        everything(&login).await,
    );
    report("one registration for many requests", kept(&login).await);
    for channel in [Channel::RdmaV1, Channel::RdmaV1Invalidate] {
        let what = format!("READ into memory that was deregistered, {channel:?}");
        report(
            &what,
            too_early(&login, channel, Access::REMOTE_WRITE).await,
        );
        let what = format!("WRITE from memory that was deregistered, {channel:?}");
        report(&what, too_early(&login, channel, Access::REMOTE_READ).await);
    }
    let what = "READ into memory that may only be read";
    report(what, not_allowed(&login).await);
    report("the next connection works", everything_small(&login).await);
    ExitCode::from(u8::from(failures > 0))
}

/// The server to connect to, and the account.
struct Login<'a> {
    provider: &'a dyn Provider,
    /// The library of Linux' software iWARP does not pass it on.
    invalidation_is_told: bool,
    address: SocketAddr,
    share: &'a str,
    user: &'a str,
    password: &'a str,
}

/// A share that is connected to.
struct Client {
    connection: Connection,
    smb: connection::Connection,
    tree: Tree,
    invalidated: Invalidated,
    invalidation_is_told: bool,
}

/// Tokens that the server has invalidated, in order.
type Invalidated = Arc<Mutex<Vec<Token>>>;

impl Client {
    async fn connect(login: &Login<'_>) -> Result<Self> {
        let mut settings = Settings::default();
        settings.active_negotiation_timeout = NEGOTIATION;
        let config = Config::new(settings)?;
        let mut tries = 0;
        let connection = loop {
            match Connection::connect(login.provider, login.address, config.clone()).await {
                Ok(connection) => break connection,
                Err(error) if tries == TRIES => return Err(error).context("connecting"),
                Err(_) => tries += 1,
            }
        };
        let invalidated = Invalidated::default();
        let told = invalidated.clone();
        let transport = Transport::new(connection.clone()).on_invalidated(move |token| {
            told.lock().expect("no panic under it").push(token);
        });
        let mut smb = transport.smb2(&login.address.ip().to_string());
        let tree = timeout(PATIENCE, async {
            smb.negotiate().await?;
            Session::setup(&mut smb, login.user, login.password, "").await?;
            Tree::connect(&mut smb, login.share).await
        });
        let tree = tree.await.context("logging in takes too long")?;
        Ok(Self {
            connection,
            smb,
            tree: tree.context("logging in")?,
            invalidated,
            invalidation_is_told: login.invalidation_is_told,
        })
    }

    async fn create(&self, name: &str) -> Result<FileId> {
        let request = CreateRequest {
            requested_oplock_level: OplockLevel::None,
            impersonation_level: ImpersonationLevel::Impersonation,
            desired_access: FileAccessMask::new(
                FileAccessMask::FILE_READ_DATA | FileAccessMask::FILE_WRITE_DATA,
            ),
            file_attributes: 0,
            share_access: ShareAccess(0),
            create_disposition: CreateDisposition::FileOverwriteIf,
            create_options: 0,
            name: name.into(),
            create_contexts: Vec::new(),
        };
        let body = self.execute(Command::Create, &request, 1).await?;
        let response = CreateResponse::unpack(&mut ReadCursor::new(&body))?;
        Ok(response.file_id)
    }

    async fn close(&self, file_id: FileId) -> Result<()> {
        let request = CloseRequest { flags: 0, file_id };
        self.execute(Command::Close, &request, 1).await?;
        Ok(())
    }

    /// Writes `data` to the file: the server reads it out of our memory.
    async fn write(
        &self,
        file_id: FileId,
        channel: Channel,
        data: &[u8],
        parts: usize,
    ) -> Result<()> {
        let regions = self.register(data, parts, Access::REMOTE_READ)?;
        let request = write_request(file_id, channel, data.len(), descriptors(&regions));
        let before = self.invalidations();
        let body = self.execute(Command::Write, &request, data.len()).await?;
        let written = written(&body).context("the answer to WRITE is too short")?;
        ensure!(written as usize == data.len(), "{written} bytes written");
        self.check_invalidated(before, channel, &regions)?;
        ensure!(take_back(regions).await? == data, "the memory changed");
        Ok(())
    }

    /// Reads the file: the server writes it into our memory.
    async fn read(
        &self,
        file_id: FileId,
        channel: Channel,
        length: usize,
        parts: usize,
    ) -> Result<Vec<u8>> {
        let access = Access::REMOTE_WRITE;
        let regions = self.register(&vec![0xa5; length], parts, access)?;
        let request = read_request(file_id, channel, length, descriptors(&regions));
        let before = self.invalidations();
        let body = self.execute(Command::Read, &request, length).await?;
        let answer = ReadAnswer::decode(&body).context("the answer to READ is too short")?;
        let (inline, by_rdma) = (answer.inline.len(), answer.by_rdma);
        ensure!(
            (inline, by_rdma) == (0, length as u32),
            "{inline} bytes came in the message, {by_rdma} by RDMA"
        );
        self.check_invalidated(before, channel, &regions)?;
        take_back(regions).await
    }

    /// Copies `data` to `parts` registered buffers of different lengths.
    fn register(&self, data: &[u8], parts: usize, access: Access) -> Result<Vec<MemoryRegion>> {
        let mut rest = data;
        let mut buffers = Vec::new();
        for left in (1..=parts).rev() {
            let length = if left == 1 {
                rest.len()
            } else {
                (rest.len() / left / 2).max(1)
            };
            let (part, behind) = rest.split_at(length);
            buffers.push(BytesMut::from(part));
            rest = behind;
        }
        Ok(self
            .connection
            .register_all(buffers, access | Access::REMOTE_INVALIDATE)?)
    }

    fn invalidations(&self) -> usize {
        self.invalidated.lock().expect("no panic under it").len()
    }

    /// The token of the first descriptor, and no other, is invalidated where that was asked for.
    fn check_invalidated(
        &self,
        before: usize,
        channel: Channel,
        regions: &[MemoryRegion],
    ) -> Result<()> {
        let expected = match channel {
            Channel::RdmaV1Invalidate if self.invalidation_is_told => Some(regions[0].token()),
            _ => None,
        };
        let invalidated = self.invalidated.lock().expect("no panic under it");
        let expected: Vec<Token> = expected.into_iter().collect();
        ensure!(
            invalidated[before..] == expected,
            "invalidated are {:?}, not {expected:?}",
            &invalidated[before..]
        );
        Ok(())
    }

    async fn execute(
        &self,
        command: Command,
        body: &dyn smb2::pack::Pack,
        bytes: usize,
    ) -> Result<Vec<u8>> {
        let charge = CreditCharge(bytes.div_ceil(65_536).max(1) as u16);
        let tree = Some(self.tree.tree_id);
        let answer = self.smb.execute_with_credits(command, body, tree, charge);
        let answer = timeout(PATIENCE, answer).await.context("no answer")??;
        ensure!(
            answer.header.status == NtStatus::SUCCESS,
            "{command:?}: {:?}",
            answer.header.status
        );
        Ok(answer.body)
    }

    async fn disconnect(self) -> Result<()> {
        let closing = self.connection.close();
        timeout(PATIENCE, closing).await.context("closing")??;
        Ok(())
    }
}

fn descriptors(regions: &[MemoryRegion]) -> Vec<BufferDescriptorV1> {
    regions.iter().map(MemoryRegion::descriptor).collect()
}

fn read_request(
    file_id: FileId,
    channel: Channel,
    length: usize,
    descriptors: Vec<BufferDescriptorV1>,
) -> ReadRequest {
    ReadRequest {
        file_id,
        offset: 0,
        length: length as u32,
        channel: Some((channel, descriptors)),
    }
}

fn write_request(
    file_id: FileId,
    channel: Channel,
    length: usize,
    descriptors: Vec<BufferDescriptorV1>,
) -> WriteRequest<'static> {
    WriteRequest {
        file_id,
        offset: 0,
        source: Source::Memory {
            length: length as u32,
            channel,
            descriptors,
        },
    }
}

async fn take_back(regions: Vec<MemoryRegion>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for region in regions {
        bytes.extend_from_slice(&region.deregister().await?);
    }
    Ok(bytes)
}

fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(length as u64).fill(&mut bytes);
    bytes
}

async fn everything(login: &Login<'_>) -> Result<()> {
    let client = Client::connect(login).await?;
    for channel in [Channel::RdmaV1, Channel::RdmaV1Invalidate] {
        for size in SIZES {
            for parts in PARTS.into_iter().filter(|&parts| parts <= size) {
                let what = format!("{channel:?}, {size} bytes, descriptors: {parts}");
                let result = one(&client, channel, size, parts).await;
                result.with_context(|| what.clone())?;
                println!("ok: {what}");
            }
        }
    }
    client.disconnect().await
}

async fn everything_small(login: &Login<'_>) -> Result<()> {
    let client = Client::connect(login).await?;
    one(&client, Channel::RdmaV1Invalidate, 4096, 1).await?;
    client.disconnect().await
}

async fn one(client: &Client, channel: Channel, size: usize, parts: usize) -> Result<()> {
    let name = format!("{channel:?}-{size}-{parts}");
    let data = noise(size);
    let file = client.create(&name).await?;
    client
        .write(file, channel, &data, parts)
        .await
        .context("WRITE")?;
    let back = client
        .read(file, channel, size, parts)
        .await
        .context("READ")?;
    ensure!(back == data, "the file came back another");
    client.close(file).await?;
    let sum: String = Sha256::digest(&data)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    println!("file {name} {sum}");
    Ok(())
}

/// With `RdmaV1` nothing is invalidated, so a registration serves request after request.
async fn kept(login: &Login<'_>) -> Result<()> {
    const LENGTH: usize = 200_000;
    let client = Client::connect(login).await?;
    let file = client.create("kept").await?;
    let data = noise(LENGTH);
    client.write(file, Channel::RdmaV1, &data, 1).await?;
    let regions = client.register(&vec![0; LENGTH], 1, Access::REMOTE_WRITE)?;
    let request = read_request(file, Channel::RdmaV1, LENGTH, descriptors(&regions));
    for _ in 0..50 {
        client.execute(Command::Read, &request, LENGTH).await?;
    }
    ensure!(client.invalidations() == 0, "something was invalidated");
    ensure!(
        take_back(regions).await? == data,
        "the file came back another"
    );
    client.close(file).await?;
    client.disconnect().await
}

/// A request whose memory is out of reach before the server gets to it: ends the connection, with
/// the reason, at both ends, and nothing is left waiting.
async fn too_early(login: &Login<'_>, channel: Channel, access: Access) -> Result<()> {
    const LENGTH: usize = 100_000;
    let client = Client::connect(login).await?;
    let file = client.create("too-early").await?;
    client
        .write(file, Channel::RdmaV1, &noise(LENGTH), 1)
        .await?;
    let regions = client.register(&vec![0; LENGTH], 1, access)?;
    let described = descriptors(&regions);
    take_back(regions).await?;
    let answer = client
        .request(file, channel, access, LENGTH, described)
        .await;
    client.ended(answer).await
}

/// Memory that the server may only read is not written to.
async fn not_allowed(login: &Login<'_>) -> Result<()> {
    const LENGTH: usize = 5000;
    let client = Client::connect(login).await?;
    let file = client.create("not-allowed").await?;
    client
        .write(file, Channel::RdmaV1, &noise(LENGTH), 1)
        .await?;
    let regions = client.register(&vec![0; LENGTH], 1, Access::REMOTE_READ)?;
    let described = descriptors(&regions);
    let into = Access::REMOTE_WRITE;
    let answer = client
        .request(file, Channel::RdmaV1, into, LENGTH, described)
        .await;
    ensure!(
        take_back(regions).await? == [0; LENGTH],
        "the memory changed"
    );
    client.ended(answer).await
}

impl Client {
    /// A READ if the server is to write to our memory, else a WRITE.
    async fn request(
        &self,
        file_id: FileId,
        channel: Channel,
        access: Access,
        length: usize,
        descriptors: Vec<BufferDescriptorV1>,
    ) -> Result<Vec<u8>> {
        if access == Access::REMOTE_WRITE {
            let request = read_request(file_id, channel, length, descriptors);
            self.execute(Command::Read, &request, length).await
        } else {
            let request = write_request(file_id, channel, length, descriptors);
            self.execute(Command::Write, &request, length).await
        }
    }

    /// The request failed and the connection is over, and the output has the reason.
    async fn ended(&self, answer: Result<Vec<u8>>) -> Result<()> {
        let Err(error) = answer else {
            bail!("the request succeeded");
        };
        let reason = timeout(PATIENCE, self.connection.closed());
        let reason = reason.await.context("the connection goes on")?;
        println!("the request: {error:#}; the connection: {reason}");
        ensure!(
            !matches!(reason, ConnectionError::TimedOut(_)),
            "it took a timer: {reason}"
        );
        Ok(())
    }
}
