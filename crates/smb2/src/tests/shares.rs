//! Lists of shares, also of servers that count what they do not send.

use std::time::Duration;

use bytes::Bytes;
use smb2::{
    msg::tree_connect::{ShareType, TreeConnectResponse},
    rpc::srvsvc::{STYPE_DISKTREE, STYPE_IPC, STYPE_SPECIAL},
    types::flags::{ShareCapabilities, ShareFlags},
};
use tokio::time::timeout;

use super::*;
use crate::ShareEntry;

/// Longest time of a list on a busy machine.
const TEST_LIMIT: Duration = Duration::from_secs(60);
const LAST: u8 = 2;

/// Returns what a client makes of the fragments of an answer. The last one is repeated for ever.
async fn listed(fragments: Vec<Vec<u8>>) -> Result<Vec<ShareEntry>, Error> {
    let provider = Arc::new(Loopback::new());
    let address = "127.0.0.1:5445";
    let listener = Listener::bind(&*provider, address, Config::default());
    let mut listener = listener.await.unwrap();
    let connection = Connection::connect(&*provider, address, Config::default());
    let connection = connection.await.unwrap();
    let server = tokio::spawn(serve(listener.accept().await.unwrap(), fragments));
    let transport = Transport::new(connection.clone());
    let mut smb = transport.smb2("server");
    smb.negotiate().await.unwrap();
    smb.set_session_id(SessionId(5));
    let session = Session {
        session_id: SessionId(5),
        signing_key: Vec::new(),
        encryption_key: None,
        decryption_key: None,
        signing_algorithm: SigningAlgorithm::AesCmac,
        should_sign: false,
        should_encrypt: false,
    };
    let established = Established {
        smb,
        session,
        signing_required: false,
        is_guest: false,
    };
    let mut client = Client::with_session(transport, established);
    let shares = timeout(TEST_LIMIT, client.shares()).await;
    connection.close().await.unwrap();
    let seen = server.await.unwrap();
    let ends = [Command::Close, Command::TreeDisconnect];
    assert!(seen.ends_with(&ends), "{seen:?}");
    shares.expect("the list ends")
}

/// Answers until the connection ends. Returns the commands of the requests.
async fn serve(connection: Connection, fragments: Vec<Vec<u8>>) -> Vec<Command> {
    let (mut seen, mut reads) = (Vec::new(), 0);
    while let Ok(message) = connection.recv().await {
        let request: Vec<u8> = message.into_bytes().into();
        let header = Header::unpack(&mut ReadCursor::new(&request)).unwrap();
        let body = match header.command {
            Command::Negotiate => packed(&negotiate_response(Security::Nothing)),
            Command::TreeConnect => packed(&TreeConnectResponse {
                share_type: ShareType::Pipe,
                share_flags: ShareFlags::new(0),
                capabilities: ShareCapabilities::new(0),
                maximal_access: u32::MAX,
            }),
            Command::Create => packed(&create_response(0)),
            Command::Close => packed(&close_response()),
            Command::TreeDisconnect => vec![4, 0, 0, 0],
            Command::Write => {
                let count = u32_at(&request, 68).to_le_bytes();
                [&[17, 0, 0, 0][..], &count, &[0; 8]].concat()
            }
            Command::Read => {
                let data = match reads {
                    0 => bind_ack(),
                    read => fragments[fragments.len().min(read) - 1].clone(),
                };
                reads += 1;
                let count = (data.len() as u32).to_le_bytes();
                [&[17, 0, 80, 0][..], &count, &[0; 8], &data].concat()
            }
            command => panic!("{command:?}"),
        };
        seen.push(header.command);
        let mut answer = Header::new_request(header.command);
        answer.flags.set_response();
        answer.credits = 1;
        answer.message_id = header.message_id;
        answer.session_id = SessionId(5);
        answer.tree_id = Some(TreeId(7));
        let message = [packed(&answer), body].concat();
        connection
            .send(Bytes::from(message))
            .unwrap()
            .await
            .unwrap();
    }
    seen
}

/// The common header of a PDU, with the bytes after it.
fn pdu(kind: u8, flags: u8, rest: &[u8]) -> Vec<u8> {
    let length = (16 + rest.len() as u16).to_le_bytes();
    let head = [5, 0, kind, flags, 0x10, 0, 0, 0, length[0], length[1]];
    [&head[..], &[0, 0, 2, 0, 0, 0], rest].concat()
}

fn bind_ack() -> Vec<u8> {
    pdu(12, 3, &[&[0; 12][..], &[1, 0, 0, 0], &[0; 24]].concat())
}

/// A fragment of the response with a part of the stub.
fn fragment(flags: u8, part: &[u8]) -> Vec<u8> {
    pdu(2, flags, &[&[0; 8], part].concat())
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn string(text: &str) -> Vec<u8> {
    let mut units: Vec<u16> = text.encode_utf16().chain([0]).collect();
    let count = units.len() as u32;
    units.resize(units.len().next_multiple_of(2), 0);
    let units = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
    [words(&[count, 0, count]), units].concat()
}

fn stub(shares: &[(&str, u32, &str)]) -> Vec<u8> {
    let count = shares.len() as u32;
    let mut stub = words(&[1, 1, 4, count, 8, count]);
    for (_, share_type, _) in shares {
        stub.extend(words(&[12, *share_type, 16]));
    }
    for (name, _, comment) in shares {
        stub.extend([string(name), string(comment)].concat());
    }
    stub.extend(words(&[count, 0, 0]));
    stub
}

#[tokio::test]
async fn shares_for_files_are_listed() {
    let stub = stub(&[
        ("data", STYPE_DISKTREE, "What everybody needs"),
        ("IPC$", STYPE_IPC | STYPE_SPECIAL, ""),
        ("öff", STYPE_DISKTREE, ""),
        ("C$", STYPE_DISKTREE | STYPE_SPECIAL, ""),
    ]);
    let (first, second) = stub.split_at(70);
    for fragments in [
        vec![fragment(LAST, &stub)],
        vec![fragment(0, first), fragment(LAST, second)],
    ] {
        let shares = listed(fragments).await.unwrap();
        let shares = shares.iter().map(|share| (&*share.name, &*share.comment));
        assert!(shares.eq([("data", "What everybody needs"), ("öff", "")]));
    }
    let none = listed(vec![fragment(LAST, &words(&[1, 1, 0]))]).await;
    assert_eq!(none.unwrap(), []);
}

/// Counts and lengths of a server reserve no memory, and its fragments end.
#[tokio::test]
async fn a_server_that_lies_about_its_list_gets_an_error() {
    let whole = stub(&[("data", STYPE_DISKTREE, "")]);
    let with = |word: usize, value: u32| {
        let mut stub = whole.clone();
        stub[4 * word..][..4].copy_from_slice(&value.to_le_bytes());
        vec![fragment(LAST, &stub)]
    };
    for (what, fragments) in [
        ("24 bytes that count 2^32 - 1 shares", {
            let stub = words(&[1, 1, 4, u32::MAX, 8, u32::MAX]);
            vec![fragment(LAST, &stub)]
        }),
        ("more entries than bytes", {
            let stub = words(&[1, 1, 4, 2, 8, 2, 0, 0, 0, 0, 0]);
            vec![fragment(LAST, &stub)]
        }),
        ("a count above the maximum", with(5, 0)),
        ("another level", with(0, 2)),
        ("another discriminant", with(1, 2)),
        ("a name of 2^32 - 1 units", with(11, u32::MAX)),
        ("a name longer than its array", with(9, 4)),
        ("a name that begins later", with(10, 1)),
        ("fragments without an end", vec![fragment(0, &[0; 4000])]),
        ("empty fragments without an end", vec![fragment(0, &[])]),
        ("no response", vec![pdu(3, 3, &[0; 16])]),
    ] {
        let error = listed(fragments).await.expect_err(what);
        assert!(
            matches!(error, Error::Answer { .. } | Error::Smb2(_)),
            "{what}: {error}"
        );
    }
    // The last words, and the padding of the last string, do not matter.
    for length in 0..whole.len() - 14 {
        let cut = listed(vec![fragment(LAST, &whole[..length])]).await;
        assert!(cut.is_err(), "{length}");
    }
}
