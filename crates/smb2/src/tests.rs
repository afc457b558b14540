//! A client with a scripted server over the in-process provider: what is signed, what moves by RDMA, and
//! what happens with servers that do not take RDMA.

use std::sync::Arc;

use bytes::BytesMut;
use smb2::{
    client::Session,
    crypto::signing::SigningAlgorithm,
    msg::header::Header,
    pack::{ReadCursor, Unpack},
    types::{Command, SessionId, TreeId, status::NtStatus},
};
use smbdirect::{Config, Connection, Listener, rdma::loopback::Loopback};

use crate::{
    Channel, Client, Error, OpenMode, Reason, Share, Transfer, handshake::Established,
    transport::Transport,
};
use server::*;

mod faults;
mod server;
mod shares;

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
    let address = "127.0.0.1:5445";
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
    let file = share.open("a/b", OpenMode::Scratch).await.unwrap();
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

/// A request that is denied for another reason is denied without the channel too, and RDMA stays in use.
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
    let address = "127.0.0.1:1";
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

/// The limit ends a request that the server never answers while the connection lives, and the error has the
/// length of the wait.
#[tokio::test]
async fn a_request_without_an_answer_ends_at_the_limit() {
    let address = "127.0.0.1:1";
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
