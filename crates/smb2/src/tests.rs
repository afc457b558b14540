//! A client with a scripted server over the in-process provider: what is signed, what moves by RDMA, and
//! what happens with servers that do not take RDMA.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use smb2::{
    client::Session,
    crypto::{
        encryption::{self, Cipher},
        signing::{self, SigningAlgorithm},
    },
    msg::{
        close::CloseResponse,
        create::{CreateAction, CreateResponse},
        header::Header,
        negotiate::NegotiateResponse,
        tree_connect::{ShareType, TreeConnectResponse},
    },
    pack::{FileTime, Guid, Pack, ReadCursor, Unpack, WriteCursor},
    types::{
        Command, Dialect, FileId, OplockLevel, SessionId, TreeId,
        flags::{Capabilities, SecurityMode, ShareCapabilities, ShareFlags},
        status::NtStatus,
    },
};
use smbdirect::{
    BufferDescriptorV1, Config, Connection, Listener, Token, rdma::loopback::Loopback,
};

use crate::{
    Channel, Client, Error, OpenMode, Reason, Share, Transfer, handshake::Established,
    transport::Transport,
};
use smbdirect_test::messages::directory_entry;

mod faults;

const KEY: [u8; 16] = *b"0123456789abcdef";
/// A name with an unpaired surrogate.
const LONE: &[u16] = &[0x61, 0xd800, 0x62];
const CIPHER: Cipher = Cipher::Aes128Ccm;
/// An offset at which the server denies every READ.
const DENIED: u64 = 3 << 20;
const TRANSFORM_BYTES: usize = 52;
/// The share that requires encryption.
const SEALED: TreeId = TreeId(8);
const FILE: FileId = FileId {
    persistent: 1,
    volatile: 2,
};
/// Bytes of the server's file: several requests by message, and by RDMA one.
const LENGTH: usize = 700_001;

/// What the server does with an RDMA channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behaviour {
    Takes,
    Refuses,
    /// As Samba does: it never looks at the channel.
    Ignores,
    /// It requires signing of this session, which NEGOTIATE does not say.
    DeniesUnsigned,
}

/// What the server requires for the security of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Security {
    Nothing,
    /// NEGOTIATE requires signing.
    Signing,
    /// The session encrypts from its setup on.
    EncryptedSession,
    /// The share named `sealed` requires encryption.
    EncryptedShare,
}

/// A request that the server received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    command: Command,
    signed: bool,
    encrypted: bool,
    channel: u32,
    length: u32,
}

struct Server {
    connection: Connection,
    behaviour: Behaviour,
    security: Security,
    file: Vec<u8>,
    seen: Vec<Seen>,
    /// The directory that was opened last has no end.
    is_endless: bool,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn packed(body: &dyn Pack) -> Vec<u8> {
    let mut cursor = WriteCursor::new();
    body.pack(&mut cursor);
    cursor.into_inner()
}

fn descriptor(request: &[u8]) -> BufferDescriptorV1 {
    BufferDescriptorV1 {
        offset: u64::from_le_bytes(request[112..120].try_into().unwrap()),
        token: u32_at(request, 120),
        length: u32_at(request, 124),
    }
}

impl Server {
    /// Answers until the client closes the connection. Returns what it has seen.
    async fn run(mut self) -> (Vec<Seen>, Vec<u8>) {
        while let Ok(message) = self.connection.recv().await {
            let mut request: Vec<u8> = message.into_bytes().into();
            let encrypted = request.starts_with(b"\xfdSMB");
            if encrypted {
                let (transform, sealed) = request.split_at(TRANSFORM_BYTES);
                request = encryption::decrypt_message(transform, sealed, &KEY, CIPHER).unwrap();
            }
            let header = Header::unpack(&mut ReadCursor::new(&request)).unwrap();
            let signed = header.flags.is_signed();
            if signed {
                let mut again = request.clone();
                let id = header.message_id.0;
                signing::sign_message(&mut again, &KEY, SigningAlgorithm::AesCmac, id, false)
                    .unwrap();
                assert_eq!(again, request, "the signature is correct");
            }
            let denied = self.denies(&header, encrypted, &request);
            let (status, body, invalidate) = if denied {
                error(NtStatus::ACCESS_DENIED)
            } else {
                self.answer(header.command, &request).await
            };
            let channel = match header.command {
                Command::Read => u32_at(&request, 100),
                Command::Write => u32_at(&request, 96),
                _ => 0,
            };
            self.seen.push(Seen {
                command: header.command,
                signed,
                encrypted,
                channel,
                length: u32_at(&request, 68),
            });
            let mut answer = Header::new_request(header.command);
            answer.flags.set_response();
            answer.credits = 64;
            answer.status = status;
            answer.message_id = header.message_id;
            answer.session_id = SessionId(5);
            answer.tree_id = Some(match header.command {
                Command::TreeConnect if is_sealed(&request) => SEALED,
                _ => TreeId(7),
            });
            if !encrypted && answers_late(&header, &request) {
                // The interim answer of READ has no ASYNC flag; it is one by its status.
                let mut interim = answer.clone();
                interim.status = NtStatus::PENDING;
                if header.command == Command::TreeConnect {
                    answer.flags.set_async();
                    (answer.tree_id, answer.async_id) = (None, Some(9));
                    interim.flags.set_async();
                    (interim.tree_id, interim.async_id) = (None, Some(9));
                }
                let body = error(NtStatus::PENDING).1;
                let interim = [packed(&interim), body].concat();
                self.connection
                    .send(Bytes::from(interim))
                    .unwrap()
                    .await
                    .unwrap();
            }
            if signed {
                answer.flags.set_signed();
            }
            let mut message = packed(&answer);
            message.extend(body);
            if signed {
                let id = header.message_id.0;
                signing::sign_message(&mut message, &KEY, SigningAlgorithm::AesCmac, id, false)
                    .unwrap();
            }
            if encrypted {
                let nonce = [self.seen.len() as u8; 16];
                let sealed = encryption::encrypt_message(&message, &KEY, CIPHER, &nonce, 5);
                let (transform, sealed) = sealed.unwrap();
                message = [transform, sealed].concat();
            }
            let message = Bytes::from(message);
            let sending = match invalidate {
                Some(token) => self.connection.send_and_invalidate(message, Token(token)),
                None => self.connection.send(message),
            };
            sending.unwrap().await.unwrap();
        }
        (self.seen, self.file)
    }

    /// Returns whether the request has less security than is required ([MS-SMB2] 3.3.5.2.4, 3.3.5.2.11).
    fn denies(&self, header: &Header, encrypted: bool, request: &[u8]) -> bool {
        if matches!(header.command, Command::Negotiate | Command::TreeConnect) {
            return false;
        }
        let signed = header.flags.is_signed();
        match self.security {
            Security::Nothing if self.behaviour == Behaviour::DeniesUnsigned => !signed,
            Security::Nothing => false,
            Security::Signing => !signed,
            Security::EncryptedSession => !encrypted,
            Security::EncryptedShare => u32_at(request, 36) == SEALED.0 && !encrypted,
        }
    }

    async fn answer(
        &mut self,
        command: Command,
        request: &[u8],
    ) -> (NtStatus, Vec<u8>, Option<u32>) {
        let body = match command {
            Command::Negotiate => packed(&negotiate_response(self.security)),
            Command::TreeConnect => packed(&TreeConnectResponse {
                share_type: ShareType::Disk,
                share_flags: ShareFlags::new(if is_sealed(request) {
                    ShareFlags::ENCRYPT_DATA
                } else {
                    0
                }),
                capabilities: ShareCapabilities::new(0),
                maximal_access: u32::MAX,
            }),
            // A name that is not well-formed UTF-16 is another than the one that is shown.
            Command::Create if is_named(request, &[0x61, 0xfffd, 0x62]) => {
                return error(NtStatus::OBJECT_NAME_NOT_FOUND);
            }
            Command::Create => {
                self.is_endless = is_named(request, &[0x65]);
                packed(&create_response(self.file.len() as u64))
            }
            Command::QueryDirectory if request[67] == 0 && !self.is_endless => {
                return error(NtStatus::NO_MORE_FILES);
            }
            Command::QueryDirectory => directory_response(),
            Command::Close => packed(&close_response()),
            Command::Read => return self.read(request).await,
            Command::Write => return self.write(request).await,
            command => panic!("{command:?}"),
        };
        (NtStatus::SUCCESS, body, None)
    }

    async fn read(&self, request: &[u8]) -> (NtStatus, Vec<u8>, Option<u32>) {
        let length = u32_at(request, 68) as usize;
        let offset = u32_at(request, 72) as usize;
        let has_channel = u32_at(request, 100) != 0;
        let mut body = vec![0; 16];
        body[0] = 17;
        if has_channel && self.behaviour == Behaviour::Refuses {
            return error(NtStatus::INVALID_PARAMETER);
        }
        if offset == DENIED as usize {
            return error(NtStatus::ACCESS_DENIED);
        }
        if offset >= self.file.len() {
            return error(NtStatus::END_OF_FILE);
        }
        let data = &self.file[offset..self.file.len().min(offset + length)];
        if has_channel && self.behaviour == Behaviour::Takes {
            let memory = descriptor(request);
            let data = Bytes::copy_from_slice(data);
            body[8..12].copy_from_slice(&(data.len() as u32).to_le_bytes());
            self.connection.write(&[memory], 0, data).await.unwrap();
            return (NtStatus::SUCCESS, body, Some(memory.token));
        }
        body[2] = 80;
        body[4..8].copy_from_slice(&(data.len() as u32).to_le_bytes());
        body.extend(data);
        (NtStatus::SUCCESS, body, None)
    }

    async fn write(&mut self, request: &[u8]) -> (NtStatus, Vec<u8>, Option<u32>) {
        let offset = u32_at(request, 72) as usize;
        let has_channel = u32_at(request, 96) != 0;
        let (data, token) = match (has_channel, self.behaviour) {
            (true, Behaviour::Refuses) => return error(NtStatus::INVALID_PARAMETER),
            (true, Behaviour::Takes) => {
                let memory = descriptor(request);
                let into = BytesMut::zeroed(u32_at(request, 100) as usize);
                let read = self.connection.read(&[memory], 0, into).await.unwrap();
                (read.to_vec(), Some(memory.token))
            }
            _ => {
                let length = u32_at(request, 68) as usize;
                (request[112..][..length].to_vec(), None)
            }
        };
        let end = offset + data.len();
        self.file.resize(self.file.len().max(end), 0);
        self.file[offset..end].copy_from_slice(&data);
        let mut body = vec![0; 16];
        body[0] = 17;
        body[4..8].copy_from_slice(&(data.len() as u32).to_le_bytes());
        (NtStatus::SUCCESS, body, token)
    }
}

/// Returns an answer with an error.
fn error(status: NtStatus) -> (NtStatus, Vec<u8>, Option<u32>) {
    (status, vec![9, 0, 0, 0, 0, 0, 0, 0, 0], None)
}

/// Returns whether a TREE_CONNECT names the share that requires encryption.
fn is_sealed(request: &[u8]) -> bool {
    is_share(request, "sealed")
}

fn is_share(request: &[u8], name: &str) -> bool {
    let name: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
    request.ends_with(&name)
}

/// Returns whether an interim answer comes before the answer: for each READ, and for the share `late`.
fn answers_late(header: &Header, request: &[u8]) -> bool {
    match header.command {
        Command::Read => true,
        Command::TreeConnect => is_share(request, "late"),
        _ => false,
    }
}

fn negotiate_response(security: Security) -> NegotiateResponse {
    let required = match security {
        Security::Signing => SecurityMode::SIGNING_REQUIRED,
        _ => 0,
    };
    NegotiateResponse {
        security_mode: SecurityMode::new(SecurityMode::SIGNING_ENABLED | required),
        dialect_revision: Dialect::Smb3_0_2,
        server_guid: Guid::default(),
        capabilities: Capabilities::new(Capabilities::LARGE_MTU),
        max_transact_size: 1 << 20,
        max_read_size: 8 << 20,
        max_write_size: 8 << 20,
        system_time: 0,
        server_start_time: 0,
        security_buffer: Vec::new(),
        negotiate_contexts: Vec::new(),
    }
}

fn create_response(length: u64) -> CreateResponse {
    CreateResponse {
        oplock_level: OplockLevel::None,
        flags: 0,
        create_action: CreateAction::FileOpened,
        creation_time: FileTime::ZERO,
        last_access_time: FileTime::ZERO,
        last_write_time: FileTime::ZERO,
        change_time: FileTime::ZERO,
        allocation_size: 0,
        end_of_file: length,
        file_attributes: 0,
        file_id: FILE,
        create_contexts: Vec::new(),
    }
}

/// Returns whether a CREATE has this name.
fn is_named(request: &[u8], name: &[u16]) -> bool {
    let length = usize::from(request[64 + 46]);
    let name = name.iter().flat_map(|unit| unit.to_le_bytes());
    request[120..][..length].iter().copied().eq(name)
}

/// Returns a batch of a directory in which two names look the same, and another has one that is not well-formed.
fn directory_response() -> Vec<u8> {
    let names = [&[0x2e][..], LONE, &[0xd801, 0x32], &[0xd802, 0x32], &[0x7a]];
    let entries = names
        .map(|name| directory_entry(name, 5, name == [0x7a]))
        .concat();
    let length = (entries.len() as u32).to_le_bytes();
    [&[9, 0, 72, 0][..], &length, &entries].concat()
}

fn close_response() -> CloseResponse {
    CloseResponse {
        flags: 0,
        creation_time: FileTime::ZERO,
        last_access_time: FileTime::ZERO,
        last_write_time: FileTime::ZERO,
        change_time: FileTime::ZERO,
        allocation_size: 0,
        end_of_file: 0,
        file_attributes: 0,
    }
}

fn noise() -> Vec<u8> {
    let mut bytes = vec![0; LENGTH];
    fastrand::Rng::with_seed(7).fill(&mut bytes);
    bytes
}

/// Returns a client with a signed session, and the server's task.
async fn connect(
    behaviour: Behaviour,
    security: Security,
) -> (
    Client,
    Connection,
    tokio::task::JoinHandle<(Vec<Seen>, Vec<u8>)>,
) {
    connect_as(behaviour, security, false).await
}

/// Returns a client with a signed session, or one that the server calls a guest's.
async fn connect_as(
    behaviour: Behaviour,
    security: Security,
    is_guest: bool,
) -> (
    Client,
    Connection,
    tokio::task::JoinHandle<(Vec<Seen>, Vec<u8>)>,
) {
    let provider = Arc::new(Loopback::new());
    let address = "127.0.0.1:5445".parse().unwrap();
    let listener = Listener::bind(&*provider, address, Config::default());
    let mut listener = listener.await.unwrap();
    let connection = Connection::connect(&*provider, address, Config::default());
    let connection = connection.await.unwrap();
    let server = Server {
        connection: listener.accept().await.unwrap(),
        behaviour,
        security,
        file: noise(),
        seen: Vec::new(),
        is_endless: false,
    };
    let server = tokio::spawn(server.run());
    let transport = Transport::new(connection.clone());
    let mut smb = transport.smb2("server");
    smb.negotiate().await.unwrap();
    smb.set_session_id(SessionId(5));
    smb.activate_signing(KEY.to_vec(), SigningAlgorithm::AesCmac);
    let should_encrypt = security == Security::EncryptedSession;
    if should_encrypt {
        smb.activate_encryption(KEY.to_vec(), KEY.to_vec(), CIPHER);
    }
    let session = Session {
        session_id: SessionId(5),
        signing_key: KEY.to_vec(),
        encryption_key: Some(KEY.to_vec()),
        decryption_key: Some(KEY.to_vec()),
        signing_algorithm: SigningAlgorithm::AesCmac,
        should_sign: true,
        should_encrypt,
    };
    (
        Client::with_session(
            transport,
            Established {
                smb,
                session,
                signing_required: security == Security::Signing,
                is_guest,
            },
        ),
        connection,
        server,
    )
}

/// Reads the file, writes it changed, and reads it again. Returns the bytes that RDMA moved.
async fn exchange(share: &Share) -> (usize, usize) {
    let file = share.open("a/b", OpenMode::Replace).await.unwrap();
    assert_eq!(file.length(), LENGTH as u64);
    let read = file.read(0, BytesMut::zeroed(LENGTH + 9000)).await.unwrap();
    assert_eq!(read.data.len(), LENGTH, "to the end of the file");
    assert!(read.data == noise(), "the bytes of the file");
    let at_end = file
        .read(LENGTH as u64, BytesMut::zeroed(5000))
        .await
        .unwrap();
    assert!(at_end.data.is_empty());
    let mut changed = read.data;
    changed.reverse();
    let written = file.write(0, changed).await.unwrap();
    let expected: Vec<u8> = noise().into_iter().rev().collect();
    assert!(written.data == expected, "the buffer is unchanged");
    file.close().await.unwrap();
    (read.by_rdma, written.by_rdma)
}

#[tokio::test]
async fn rdma_moves_the_data_and_only_those_requests_are_unsigned() {
    let (mut client, connection, server) = connect(Behaviour::Takes, Security::Nothing).await;
    let share = client.share("share").await.unwrap();
    assert_eq!(share.transfer(), Transfer::Rdma(Channel::RdmaV1Invalidate));
    assert_eq!(exchange(&share).await, (LENGTH, LENGTH));
    connection.close().await.unwrap();
    let (seen, file) = server.await.unwrap();
    assert!(file.iter().eq(noise().iter().rev()));
    for seen in seen
        .iter()
        .filter(|seen| seen.command != Command::Negotiate)
    {
        assert_eq!(seen.signed, seen.channel == 0, "{seen:?}");
    }
    // Two reads, of which the first ends with a third at the end of the file, and a write.
    assert_eq!(seen.iter().filter(|seen| seen.channel == 2).count(), 4);
}

#[tokio::test]
async fn a_server_that_does_not_take_rdma_gets_messages() {
    let behaviours = [
        Behaviour::Refuses,
        Behaviour::Ignores,
        Behaviour::DeniesUnsigned,
    ];
    for behaviour in behaviours {
        let (mut client, connection, server) = connect(behaviour, Security::Nothing).await;
        let share = client.share("share").await.unwrap();
        assert_eq!(exchange(&share).await, (0, 0), "{behaviour:?}");
        assert_eq!(share.transfer(), Transfer::Messages(Reason::Refused));
        connection.close().await.unwrap();
        let (seen, file) = server.await.unwrap();
        assert!(file.iter().eq(noise().iter().rev()), "{behaviour:?}");
        let by_rdma = seen.iter().filter(|seen| seen.channel != 0).count();
        assert_eq!(by_rdma, 1, "it is asked once");
    }
}

#[tokio::test]
async fn messages_are_signed_and_fit() {
    let (mut client, connection, server) = connect(Behaviour::Takes, Security::Nothing).await;
    client.use_messages();
    let share = client.share("share").await.unwrap();
    assert_eq!(share.transfer(), Transfer::Messages(Reason::Asked));
    let room = connection.negotiated().max_fragmented_send_size as usize;
    assert!(share.max_bytes() < room);
    assert_eq!(exchange(&share).await, (0, 0));
    connection.close().await.unwrap();
    let (seen, file) = server.await.unwrap();
    assert!(file.iter().eq(noise().iter().rev()));
    let data = |seen: &&Seen| matches!(seen.command, Command::Read | Command::Write);
    for seen in seen.iter().filter(data) {
        assert!(seen.signed && seen.channel == 0, "{seen:?}");
        assert!((seen.length as usize) < room, "{seen:?}");
    }
}

/// [MS-SMB2] 3.2.4.1.1, 3.3.5.2.4: where signing is required, no request is without a signature. Where the
/// session encrypts, all data is in encrypted messages. In both cases none of it moves by RDMA.
#[tokio::test]
async fn nothing_is_unprotected_where_the_session_protects() {
    for (security, reason) in [
        (Security::Signing, Reason::Signing),
        (Security::EncryptedSession, Reason::Encryption),
    ] {
        let (mut client, connection, server) = connect(Behaviour::Takes, security).await;
        assert_eq!(client.transfer(), Transfer::Messages(reason));
        let share = client.share("share").await.unwrap();
        assert_eq!(exchange(&share).await, (0, 0));
        connection.close().await.unwrap();
        let (seen, file) = server.await.unwrap();
        assert!(file.iter().eq(noise().iter().rev()));
        let after = |seen: &&Seen| seen.command != Command::Negotiate;
        for seen in seen.iter().filter(after) {
            let is_protected = match reason {
                Reason::Encryption => seen.encrypted,
                _ => seen.signed,
            };
            assert!(is_protected && seen.channel == 0, "{seen:?}");
        }
    }
}

/// A share that encrypts makes the session encrypt. The data of a share that was connected before moves by
/// RDMA until then, and in encrypted messages afterwards.
#[tokio::test]
async fn a_share_that_encrypts_ends_rdma() {
    let (mut client, connection, server) =
        connect(Behaviour::Takes, Security::EncryptedShare).await;
    let open = client.share("share").await.unwrap();
    let file = open.open("a/b", OpenMode::Read).await.unwrap();
    let read = file.read(0, BytesMut::zeroed(LENGTH)).await.unwrap();
    assert_eq!(read.by_rdma, LENGTH);
    let sealed = client.share("sealed").await.unwrap();
    for share in [&open, &sealed] {
        assert_eq!(share.transfer(), Transfer::Messages(Reason::Encryption));
    }
    let read = file.read(0, BytesMut::zeroed(LENGTH)).await.unwrap();
    assert!(read.data == noise() && read.by_rdma == 0);
    assert_eq!(exchange(&sealed).await, (0, 0));
    connection.close().await.unwrap();
    let (seen, file) = server.await.unwrap();
    assert!(file.iter().eq(noise().iter().rev()));
    let connects = |seen: &Seen| seen.command == Command::TreeConnect;
    let begin = seen.iter().rposition(connects).unwrap();
    assert!(seen[..begin].iter().any(|seen| seen.channel != 0));
    for seen in &seen[begin + 1..] {
        assert!(seen.encrypted && seen.channel == 0, "{seen:?}");
    }
}

/// The server has no key for a guest, so the guest sends nothing, encrypted or not, to a share that asks for it.
#[tokio::test]
async fn a_guest_does_not_use_a_share_that_encrypts() {
    let behaviour = Behaviour::Takes;
    let (mut client, connection, server) =
        connect_as(behaviour, Security::EncryptedShare, true).await;
    assert!(!client.can_encrypt());
    let refused = client.share("sealed").await.unwrap_err();
    assert!(matches!(refused, Error::NoKey), "{refused}");
    let share = client.share("share").await.unwrap();
    assert_eq!(exchange(&share).await, (LENGTH, LENGTH));
    connection.close().await.unwrap();
    let (seen, _) = server.await.unwrap();
    assert!(seen.iter().all(|seen| !seen.encrypted), "{seen:?}");
}

#[tokio::test]
async fn a_name_that_is_not_well_formed_is_listed_and_opened() {
    let (mut client, connection, server) = connect(Behaviour::Takes, Security::Nothing).await;
    let share = client.share("share").await.unwrap();
    let mut listing = share.list("").await.unwrap();
    let entries = listing.next().await.unwrap().unwrap();
    let names: Vec<_> = entries.iter().map(|entry| entry.name.to_string()).collect();
    assert_eq!(names, ["a\u{fffd}b", "\u{fffd}2", "\u{fffd}2", "z"]);
    assert_eq!(entries[0].name.units(), LONE);
    assert!(listing.next().await.unwrap().is_none());
    assert!(listing.next().await.unwrap().is_none());
    listing.close().await.unwrap();
    let shown = share.open("a\u{fffd}b", OpenMode::Read).await.unwrap_err();
    assert_eq!(shown.status(), Some(NtStatus::OBJECT_NAME_NOT_FOUND));
    let (path, entry) = share.find("a\u{fffd}b").await.unwrap();
    assert_eq!((&*path, entry.size), (LONE, 5));
    let file = share.open_exact(&path).await.unwrap();
    let read = file.read(0, BytesMut::zeroed(9000)).await.unwrap();
    assert!(read.data == noise()[..9000]);
    let alike = share.find("\u{fffd}2").await.unwrap_err();
    assert!(matches!(alike, Error::Ambiguous(_)), "{alike}");
    let missing = share.find("\u{fffd}3").await.unwrap_err();
    assert_eq!(missing.status(), Some(NtStatus::OBJECT_NAME_NOT_FOUND));
    let (path, _) = share.find("a\u{fffd}b/z").await.unwrap();
    assert_eq!(path, [LONE, &[0x5c, 0x7a]].concat());
    connection.close().await.unwrap();
    server.await.unwrap();
}

/// An asynchronous answer has an AsyncId in place of the TreeId. The share is lost, the session is not.
#[tokio::test]
async fn a_share_that_is_connected_asynchronously_leaves_the_session() {
    let (mut client, connection, server) = connect(Behaviour::Takes, Security::Nothing).await;
    let refused = client.share("late").await.unwrap_err();
    assert!(matches!(refused, Error::Answer { .. }), "{refused}");
    let share = client.share("share").await.unwrap();
    assert_eq!(exchange(&share).await, (LENGTH, LENGTH));
    connection.close().await.unwrap();
    server.await.unwrap();
}

/// The entries come in batches, so a directory without an end is listed until the caller stops.
#[tokio::test]
async fn an_endless_directory_comes_in_batches() {
    let (mut client, connection, server) = connect(Behaviour::Takes, Security::Nothing).await;
    let share = client.share("share").await.unwrap();
    let mut listing = share.list("e").await.unwrap();
    for _ in 0..100 {
        assert_eq!(listing.next().await.unwrap().unwrap().len(), 4);
    }
    listing.close().await.unwrap();
    connection.close().await.unwrap();
    server.await.unwrap();
}

/// A request that is denied for another reason is denied without the channel too, and RDMA goes on.
#[tokio::test]
async fn a_denied_access_leaves_rdma_on() {
    let (mut client, connection, server) = connect(Behaviour::Takes, Security::Nothing).await;
    let share = client.share("share").await.unwrap();
    let file = share.open("denied", OpenMode::Read).await.unwrap();
    let error = file.read(DENIED, BytesMut::zeroed(9000)).await.unwrap_err();
    assert_eq!(error.status(), Some(NtStatus::ACCESS_DENIED));
    assert_eq!(share.transfer(), Transfer::Rdma(Channel::RdmaV1Invalidate));
    let read = file.read(0, BytesMut::zeroed(9000)).await.unwrap();
    assert_eq!(read.by_rdma, 9000);
    connection.close().await.unwrap();
    server.await.unwrap();
}

/// A transport leaves no request unsigned for a session that requires or encrypts.
#[tokio::test]
async fn a_transport_checks_the_session() {
    for security in [Security::Signing, Security::EncryptedSession] {
        let (mut client, connection, server) = connect(Behaviour::Takes, security).await;
        let params = client.smb2().params().unwrap();
        let transport = Transport::new(connection.clone());
        assert!(!transport.leave_rdma_unsigned(client.session(), &params));
        connection.close().await.unwrap();
        server.await.unwrap();
    }
}

/// The crate smb2 can miss the end of its connection, and then a request never completes by itself.
#[tokio::test]
async fn a_request_ends_with_the_connection() {
    let address = "127.0.0.1:1".parse().unwrap();
    let provider = Loopback::new();
    let mut listener = Listener::bind(&provider, address, Config::default())
        .await
        .unwrap();
    let connecting = Connection::connect(&provider, address, Config::default());
    let (connection, server) = tokio::join!(connecting, listener.accept());
    let transport = Transport::new(connection.unwrap());
    let waiting = transport.request(std::future::pending::<Result<(), smb2::Error>>());
    let (ended, ()) = tokio::join!(waiting, async { drop(server.unwrap()) });
    assert!(matches!(ended, Err(Error::Connection(_))), "{ended:?}");
}

/// The limit ends a request that the server never answers, while the connection lives, and the error says how long that
/// was.
#[tokio::test]
async fn a_request_without_an_answer_ends_at_the_limit() {
    let address = "127.0.0.1:1".parse().unwrap();
    let provider = Loopback::new();
    let mut listener = Listener::bind(&provider, address, Config::default())
        .await
        .unwrap();
    let connecting = Connection::connect(&provider, address, Config::default());
    let (connection, server) = tokio::join!(connecting, listener.accept());
    let limit = std::time::Duration::from_millis(20);
    let transport = Transport::new(connection.unwrap()).answer_limit(limit);
    let waiting = transport.request(std::future::pending::<Result<(), smb2::Error>>());
    let error = waiting.await.unwrap_err();
    assert_eq!(error.to_string(), "the server has not answered for 0.02 s");
    drop(server);
}
