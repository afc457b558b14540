//! The scripted server: it answers as a server with the given behaviour and security does, and records the requests.

use bytes::{Bytes, BytesMut};
use smb2::{
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
use smbdirect::{BufferDescriptorV1, Connection, Token};
use smbdirect_test::messages::directory_entry;

pub(super) const KEY: [u8; 16] = *b"0123456789abcdef";
/// A name with an unpaired surrogate.
pub(super) const LONE: &[u16] = &[0x61, 0xd800, 0x62];
pub(super) const CIPHER: Cipher = Cipher::Aes128Ccm;
/// An offset at which the server denies every READ.
pub(super) const DENIED: u64 = 3 << 20;
pub(super) const TRANSFORM_BYTES: usize = 52;
/// The share that requires encryption.
pub(super) const SEALED: TreeId = TreeId(8);
pub(super) const FILE: FileId = FileId {
    persistent: 1,
    volatile: 2,
};
/// Bytes of the server's file: several requests by message, and by RDMA one.
pub(super) const LENGTH: usize = 700_001;

/// The behaviour of the server with an RDMA channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behaviour {
    Takes,
    Refuses,
    /// As Samba does: it never looks at the channel.
    Ignores,
    /// The server requires signing of this session, although NEGOTIATE did not announce it.
    DeniesUnsigned,
}

/// The security of messages that the server requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Security {
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
pub(super) struct Seen {
    pub(super) command: Command,
    pub(super) signed: bool,
    pub(super) encrypted: bool,
    pub(super) channel: u32,
    pub(super) length: u32,
}

pub(super) struct Server {
    pub(super) connection: Connection,
    pub(super) behaviour: Behaviour,
    pub(super) security: Security,
    pub(super) file: Vec<u8>,
    pub(super) seen: Vec<Seen>,
    /// The directory that was opened last has no end.
    pub(super) is_endless: bool,
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

pub(super) fn packed(body: &dyn Pack) -> Vec<u8> {
    let mut cursor = WriteCursor::new();
    body.pack(&mut cursor);
    cursor.into_inner()
}

pub(super) fn descriptor(request: &[u8]) -> BufferDescriptorV1 {
    BufferDescriptorV1 {
        offset: u64::from_le_bytes(request[112..120].try_into().unwrap()),
        token: u32_at(request, 120),
        length: u32_at(request, 124),
    }
}

impl Server {
    /// Answers until the client closes the connection. Returns what it has seen.
    pub(super) async fn run(mut self) -> (Vec<Seen>, Vec<u8>) {
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
            // A name that is not well-formed UTF-16 differs from the name that is shown.
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
pub(super) fn error(status: NtStatus) -> (NtStatus, Vec<u8>, Option<u32>) {
    (status, vec![9, 0, 0, 0, 0, 0, 0, 0, 0], None)
}

/// Returns whether a TREE_CONNECT names the share that requires encryption.
pub(super) fn is_sealed(request: &[u8]) -> bool {
    is_share(request, "sealed")
}

pub(super) fn is_share(request: &[u8], name: &str) -> bool {
    let name: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
    request.ends_with(&name)
}

/// Returns whether an interim answer comes before the answer: for each READ, and for the share `late`.
pub(super) fn answers_late(header: &Header, request: &[u8]) -> bool {
    match header.command {
        Command::Read => true,
        Command::TreeConnect => is_share(request, "late"),
        _ => false,
    }
}

pub(super) fn negotiate_response(security: Security) -> NegotiateResponse {
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

pub(super) fn create_response(length: u64) -> CreateResponse {
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
pub(super) fn is_named(request: &[u8], name: &[u16]) -> bool {
    let length = usize::from(request[64 + 46]);
    let name = name.iter().flat_map(|unit| unit.to_le_bytes());
    request[120..][..length].iter().copied().eq(name)
}

/// Returns a batch of directory entries: two names look the same, and one name is not well-formed UTF-16.
pub(super) fn directory_response() -> Vec<u8> {
    let names = [&[0x2e][..], LONE, &[0xd801, 0x32], &[0xd802, 0x32], &[0x7a]];
    let entries = names
        .map(|name| directory_entry(name, 5, name == [0x7a]))
        .concat();
    let length = (entries.len() as u32).to_le_bytes();
    [&[9, 0, 72, 0][..], &length, &entries].concat()
}

pub(super) fn close_response() -> CloseResponse {
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
