//! Requests that are given up, short transfers, small credit windows, and files that must not be left: a client with
//! a server whose every answer the test decides.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use smb2::{
    msg::tree_connect::{ShareType, TreeConnectResponse},
    types::flags::{ShareCapabilities, ShareFlags},
};
use tokio::{task::JoinHandle, time::timeout};

use super::*;
use crate::{Error, File};

/// Longest time of a test on a busy machine.
const TEST_LIMIT: Duration = Duration::from_secs(60);
/// A limit that no test reaches.
const NO_LIMIT: Duration = Duration::from_secs(600);
/// Bytes that move by RDMA, in one request.
const BYTES: usize = 9000;

/// A request, also one of several in a message.
#[derive(Clone)]
struct Request(Vec<u8>);

impl Request {
    fn command(&self) -> Command {
        let header = Header::unpack(&mut ReadCursor::new(&self.0)).unwrap();
        header.command
    }

    fn id(&self) -> u64 {
        u64::from_le_bytes(self.0[24..32].try_into().unwrap())
    }

    fn charge(&self) -> u64 {
        u16::from_le_bytes([self.0[6], self.0[7]]).into()
    }

    fn is_by_rdma(&self) -> bool {
        match self.command() {
            Command::Read => u32_at(&self.0, 100) != 0,
            Command::Write => u32_at(&self.0, 96) != 0,
            _ => false,
        }
    }

    fn offset(&self) -> usize {
        u32_at(&self.0, 72) as usize
    }

    /// Returns the number of bytes of a READ or WRITE.
    fn length(&self) -> usize {
        let at = match self.command() {
            Command::Write if self.is_by_rdma() => 100,
            _ => 68,
        };
        u32_at(&self.0, at) as usize
    }

    /// Returns FileInfoClass and the first byte of the buffer of a SET_INFO.
    fn information(&self) -> (u8, u8) {
        (self.0[67], self.0[96])
    }
}

/// A server that is controlled by the test.
struct Peer {
    connection: Connection,
    requests: VecDeque<Request>,
    file: Vec<u8>,
    /// Credits that the client may have at the same time.
    window: u64,
    /// MessageIds that the client may use, from 0, and how many of them were answered.
    granted: u64,
    consumed: u64,
    /// Commands, in their order.
    seen: Vec<Command>,
}

impl Peer {
    /// Returns the next request; `None` after the end of the connection.
    async fn next(&mut self) -> Option<Request> {
        while self.requests.is_empty() {
            let message = self.connection.recv().await.ok()?;
            let mut rest: Vec<u8> = message.into_bytes().into();
            loop {
                let next = u32_at(&rest, 20) as usize;
                let after = rest.split_off(if next == 0 { rest.len() } else { next });
                self.requests.push_back(Request(rest));
                if next == 0 {
                    break;
                }
                rest = after;
            }
        }
        let request = self.requests.pop_front()?;
        let (id, charge) = (request.id(), request.charge().max(1));
        assert!(
            id + charge <= self.granted,
            "{:?} {id} with {charge} credits in a window of {}",
            request.command(),
            self.window
        );
        self.seen.push(request.command());
        Some(request)
    }

    async fn expect(&mut self, command: Command) -> Request {
        let request = self.next().await.expect("a request");
        assert_eq!(request.command(), command);
        request
    }

    async fn answer(&mut self, request: &Request, status: NtStatus, body: &[u8]) {
        self.consumed += request.charge().max(1);
        let outstanding = self.granted - self.consumed;
        let credits = self.window.saturating_sub(outstanding);
        self.granted += credits;
        self.send(request, status, body, credits as u16).await;
    }

    async fn send(&self, request: &Request, status: NtStatus, body: &[u8], credits: u16) {
        let mut answer = Header::new_request(request.command());
        answer.flags.set_response();
        answer.credits = credits;
        answer.status = status;
        answer.message_id = smb2::types::MessageId(request.id());
        answer.session_id = SessionId(5);
        answer.tree_id = Some(TreeId(7));
        let mut message = packed(&answer);
        message.extend(body);
        let sending = self.connection.send(Bytes::from(message)).unwrap();
        // The client may have ended the connection.
        let _ = sending.await;
    }

    async fn refuse(&mut self, request: &Request, status: NtStatus) {
        self.answer(request, status, &error(status).1).await;
    }

    /// Does what was asked, with at most `most` bytes of data.
    async fn serve(&mut self, request: &Request, most: usize) {
        let body = match request.command() {
            Command::Negotiate => packed(&negotiate_response(Security::Nothing)),
            Command::TreeConnect => packed(&TreeConnectResponse {
                share_type: ShareType::Disk,
                share_flags: ShareFlags::new(0),
                capabilities: ShareCapabilities::new(0),
                maximal_access: u32::MAX,
            }),
            Command::Create => packed(&create_response(self.file.len() as u64)),
            Command::Close => packed(&close_response()),
            Command::SetInfo => vec![2, 0],
            Command::Read => match self.read(request, most).await {
                Some(body) => body,
                None => return self.refuse(request, NtStatus::END_OF_FILE).await,
            },
            Command::Write => self.write(request, most).await,
            command => panic!("{command:?}"),
        };
        self.answer(request, NtStatus::SUCCESS, &body).await;
    }

    async fn read(&self, request: &Request, most: usize) -> Option<Vec<u8>> {
        let rest = self
            .file
            .get(request.offset()..)
            .filter(|rest| !rest.is_empty())?;
        let data = &rest[..rest.len().min(request.length()).min(most)];
        let mut body = vec![0; 16];
        body[0] = 17;
        let count = (data.len() as u32).to_le_bytes();
        if request.is_by_rdma() {
            body[8..12].copy_from_slice(&count);
            let data = Bytes::copy_from_slice(data);
            let memory = descriptor(&request.0);
            self.connection.write(&[memory], 0, data).await.unwrap();
        } else {
            body[2] = 80;
            body[4..8].copy_from_slice(&count);
            body.extend(data);
        }
        Some(body)
    }

    async fn write(&mut self, request: &Request, most: usize) -> Vec<u8> {
        let count = request.length().min(most);
        let data = if request.is_by_rdma() {
            let into = BytesMut::zeroed(count);
            let memory = descriptor(&request.0);
            let read = self.connection.read(&[memory], 0, into).await;
            read.unwrap().to_vec()
        } else {
            request.0[112..][..count].to_vec()
        };
        let end = request.offset() + count;
        self.file.resize(self.file.len().max(end), 0);
        self.file[end - count..end].copy_from_slice(&data);
        let mut body = vec![0; 16];
        body[0] = 17;
        body[4..8].copy_from_slice(&(count as u32).to_le_bytes());
        body
    }

    /// Serves until the connection ends.
    fn run(mut self, most: usize) -> JoinHandle<Self> {
        tokio::spawn(async move {
            while let Some(request) = self.next().await {
                self.serve(&request, most).await;
            }
            self
        })
    }

    /// Serves the requests of `work` to its end.
    async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                request = self.next() => {
                    let request = request.expect("the connection lives");
                    self.serve(&request, usize::MAX).await;
                }
            }
        }
    }
}

/// Returns the share of a client, its connection, and the server, of which the client may have `window` credits.
async fn client(window: u64, limit: Duration, by_messages: bool) -> (Share, Connection, Peer) {
    let provider = Arc::new(Loopback::new());
    let address = "127.0.0.1:5445";
    let listener = Listener::bind(&*provider, address, Config::default());
    let mut listener = listener.await.unwrap();
    let connection = Connection::connect(&*provider, address, Config::default());
    let connection = connection.await.unwrap();
    let mut peer = Peer {
        connection: listener.accept().await.unwrap(),
        requests: VecDeque::new(),
        file: noise(),
        window,
        granted: 1,
        consumed: 0,
        seen: Vec::new(),
    };
    let transport = Transport::new(connection.clone()).answer_limit(limit);
    let login = async {
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
        let mut client = Client::with_session(transport.clone(), established);
        if by_messages {
            client.use_messages();
        }
        client.share("share").await.unwrap()
    };
    let share = peer.during(login).await;
    (share, connection, peer)
}

/// A READ or a WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

impl Direction {
    const fn command(self) -> Command {
        match self {
            Self::Read => Command::Read,
            Self::Write => Command::Write,
        }
    }

    fn begin(self, file: &File) -> JoinHandle<Result<(), Error>> {
        let file = file.clone();
        tokio::spawn(async move {
            match self {
                Self::Read => file.read(0, BytesMut::zeroed(BYTES)).await.map(drop),
                Self::Write => file.write(0, BytesMut::zeroed(BYTES)).await.map(drop),
            }
        })
    }
}

/// How a request is given up while the server has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GivingUp {
    Dropped,
    TimedOut,
    /// The file is closed with it.
    Closed,
    /// All handles of the file are dropped with it.
    FileDropped,
}

/// The memory of a request that the server has received stays registered until the answer, and the session
/// continues. CLOSE is sent after it.
#[tokio::test]
async fn a_request_that_is_given_up_keeps_its_memory_until_it_is_answered() {
    use GivingUp::{Closed, Dropped, FileDropped, TimedOut};
    for direction in [Direction::Read, Direction::Write] {
        for giving_up in [Dropped, TimedOut, Closed, FileDropped] {
            for by_messages in [false, true] {
                let case = give_up(direction, giving_up, by_messages);
                let done = timeout(TEST_LIMIT, case).await;
                done.unwrap_or_else(|_| panic!("{direction:?} {giving_up:?} {by_messages}"));
            }
        }
    }
}

async fn give_up(direction: Direction, giving_up: GivingUp, by_messages: bool) {
    let limit = match giving_up {
        GivingUp::TimedOut => Duration::from_millis(100),
        _ => NO_LIMIT,
    };
    let (share, connection, mut peer) = client(512, limit, by_messages).await;
    let file = peer.during(share.open("a", OpenMode::Scratch)).await;
    let mut file = Some(file.unwrap());
    let request = direction.begin(file.as_ref().unwrap());
    let sent = peer.expect(direction.command()).await;
    assert_eq!(sent.is_by_rdma(), !by_messages);
    let mut closing = None;
    match giving_up {
        GivingUp::TimedOut => {
            let error = request.await.unwrap().unwrap_err();
            let says = "the server has not answered for 0.1 s";
            assert_eq!(error.to_string(), says);
        }
        _ => {
            request.abort();
            assert!(request.await.unwrap_err().is_cancelled());
        }
    }
    match giving_up {
        GivingUp::Closed => closing = Some(tokio::spawn(file.take().unwrap().close())),
        GivingUp::FileDropped => drop(file.take()),
        _ => {}
    }
    // The server reads or writes the memory, which would end the connection if it were gone.
    peer.serve(&sent, usize::MAX).await;
    if file.is_none() {
        let close = peer.expect(Command::Close).await;
        peer.serve(&close, usize::MAX).await;
    }
    if let Some(closing) = closing {
        closing.await.unwrap().unwrap();
    }
    // The session and its credits live.
    let again = peer.during(share.open("b", OpenMode::Read)).await.unwrap();
    let reading = again.read(0, BytesMut::zeroed(BYTES));
    assert_eq!(peer.during(reading).await.unwrap().data.len(), BYTES);
    if let Some(file) = file {
        peer.during(file.close()).await.unwrap();
    }
    assert_eq!(connection.error(), None);
}

/// The registration of memory ends with the answer, also if no caller waits for it.
#[tokio::test]
async fn memory_of_a_dropped_request_goes_with_the_answer() {
    let (share, _connection, mut peer) = client(512, NO_LIMIT, false).await;
    let file = peer.during(share.open("a", OpenMode::Read)).await.unwrap();
    let request = Direction::Read.begin(&file);
    let sent = peer.expect(Command::Read).await;
    request.abort();
    peer.serve(&sent, usize::MAX).await;
    // CLOSE is sent after the registration has ended.
    drop(file);
    request.await.unwrap_err();
    peer.expect(Command::Close).await;
    let late = peer
        .connection
        .write(&[descriptor(&sent.0)], 0, Bytes::from_static(b"late"));
    late.await.unwrap_err();
}

/// A server that does not answer keeps no connection of a program that has dropped all of its handles.
#[tokio::test]
async fn a_session_without_handles_ends() {
    for by_messages in [false, true] {
        let limit = Duration::from_millis(50);
        let (share, connection, mut peer) = client(512, limit, by_messages).await;
        let file = peer.during(share.open("a", OpenMode::Read)).await.unwrap();
        let request = Direction::Read.begin(&file);
        peer.expect(Command::Read).await;
        request.abort();
        drop((share, file));
        let ended = timeout(TEST_LIMIT, peer.connection.closed()).await;
        ended.expect("the connection ends");
        drop(connection);
    }
}

/// An answer to a CREATE whose future was dropped closes the file again.
#[tokio::test]
async fn a_file_that_nobody_waits_for_is_closed() {
    for mode in [OpenMode::Read, OpenMode::New] {
        let (share, _connection, mut peer) = client(512, NO_LIMIT, false).await;
        let opening = tokio::spawn(async move { share.open("a", mode).await.map(drop) });
        let create = peer.expect(Command::Create).await;
        opening.abort();
        opening.await.unwrap_err();
        peer.serve(&create, usize::MAX).await;
        if mode == OpenMode::New {
            let mark = peer.expect(Command::SetInfo).await;
            peer.serve(&mark, usize::MAX).await;
        }
        peer.expect(Command::Close).await;
    }
}

/// Each command, READ and WRITE of several credits among them, keeps within windows of all sizes, and in one that
/// shrinks.
#[tokio::test]
async fn requests_fit_the_window() {
    for window in [1, 2, 3, 4, 8, 15, 16, 17, 33, 512] {
        for by_messages in [false, true] {
            let (share, connection, peer) = client(window, NO_LIMIT, by_messages).await;
            let server = peer.run(usize::MAX);
            timeout(TEST_LIMIT, exchange_in_parallel(&share))
                .await
                .unwrap_or_else(|_| panic!("a window of {window}"));
            connection.close().await.unwrap();
            server.await.unwrap();
        }
    }
}

#[tokio::test]
async fn requests_fit_a_window_that_shrinks() {
    for least in [1, 2, 3, 8] {
        let (share, connection, mut peer) = client(64, NO_LIMIT, false).await;
        let server = tokio::spawn(async move {
            while let Some(request) = peer.next().await {
                peer.window = peer.window.saturating_sub(3).max(least);
                peer.serve(&request, usize::MAX).await;
            }
        });
        let exchanged = timeout(TEST_LIMIT, exchange_in_parallel(&share)).await;
        exchanged.unwrap_or_else(|_| panic!("a window of {least}"));
        connection.close().await.unwrap();
        server.await.unwrap();
    }
}

/// Writes a file with several requests outstanding, reads it, and keeps it.
async fn exchange_in_parallel(share: &Share) {
    const PIECE: usize = 300_000;
    const PIECES: usize = 6;
    let file = share.open("a", OpenMode::New).await.unwrap();
    assert!(file.is_temporary());
    let piece = |index: usize| {
        let mut bytes = vec![0; PIECE];
        fastrand::Rng::with_seed(index as u64).fill(&mut bytes);
        bytes
    };
    let start = |index: usize| {
        let (file, data) = (file.clone(), BytesMut::from(&piece(index)[..]));
        tokio::spawn(async move { file.write((index * PIECE) as u64, data).await })
    };
    let writing: Vec<_> = (0..PIECES).map(start).collect();
    for writing in writing {
        assert_eq!(writing.await.unwrap().unwrap().data.len(), PIECE);
    }
    let start = |index: usize| {
        let file = file.clone();
        let reading = async move {
            let at = (index * PIECE) as u64;
            file.read(at, BytesMut::zeroed(PIECE)).await
        };
        tokio::spawn(reading)
    };
    let reading: Vec<_> = (0..PIECES).map(start).collect();
    for (index, reading) in reading.into_iter().enumerate() {
        assert!(reading.await.unwrap().unwrap().data == piece(index)[..]);
    }
    file.keep().await.unwrap();
    file.close().await.unwrap();
    share.stat("b").await.unwrap();
    share.rename("b", "c", true).await.unwrap();
    share.delete("c").await.unwrap();
}

/// Without credits and without an outstanding request none will come, and that is an error, not a wait.
#[tokio::test]
async fn a_server_that_leaves_no_credits_is_an_error() {
    let (share, _connection, mut peer) = client(1, NO_LIMIT, false).await;
    peer.window = 0;
    let file = peer.during(share.open("a", OpenMode::Read)).await.unwrap();
    let reading = file.read(0, BytesMut::zeroed(BYTES));
    let error = timeout(TEST_LIMIT, reading).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::NoCredits), "{error:?}");
}

/// A server may move fewer bytes than it was asked for ([MS-SMB2] 3.3.5.12, 3.3.5.13).
#[tokio::test]
async fn short_transfers_go_on_with_the_rest() {
    for most in [1000, 4096, 99_999] {
        for by_messages in [false, true] {
            let (share, connection, peer) = client(512, NO_LIMIT, by_messages).await;
            let server = peer.run(most);
            let file = share.open("a", OpenMode::Scratch).await.unwrap();
            let read = file.read(0, BytesMut::zeroed(LENGTH + 9000)).await.unwrap();
            assert!(read.data == noise(), "{most}");
            let mut changed = read.data;
            changed.reverse();
            let written = file.write(0, changed).await.unwrap();
            let expected: Vec<u8> = noise().into_iter().rev().collect();
            assert!(written.data == expected, "the buffer is unchanged");
            assert_eq!(written.by_rdma == 0, by_messages);
            connection.close().await.unwrap();
            assert!(server.await.unwrap().file == expected, "{most}");
        }
    }
}

#[tokio::test]
async fn a_transfer_without_progress_ends() {
    for by_messages in [false, true] {
        let (share, _connection, peer) = client(512, NO_LIMIT, by_messages).await;
        peer.run(0);
        let file = share.open("a", OpenMode::Scratch).await.unwrap();
        let read = file.read(0, BytesMut::zeroed(BYTES)).await.unwrap();
        assert!(read.data.is_empty(), "no bytes are the end");
        let writing = file.write(0, BytesMut::zeroed(BYTES)).await;
        let says = "the server's answer to Write is wrong: no byte was written";
        assert_eq!(writing.unwrap_err().to_string(), says);
    }
}

/// An interim answer is none, and neither is one to another request that was sent later.
#[tokio::test]
async fn a_server_that_is_always_busy_is_given_up() {
    let (share, _connection, mut peer) = client(512, Duration::from_millis(100), false).await;
    let file = peer.during(share.open("a", OpenMode::Read)).await.unwrap();
    let request = Direction::Read.begin(&file);
    let sent = peer.expect(Command::Read).await;
    let busy = async {
        loop {
            let status = NtStatus::PENDING;
            peer.send(&sent, status, &error(status).1, 0).await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let given_up = async {
        tokio::select! { ended = request => ended.unwrap(), () = busy => Ok(()) }
    };
    let ended = timeout(TEST_LIMIT, given_up).await.unwrap();
    assert!(matches!(ended, Err(Error::NoAnswer(_))), "{ended:?}");
}

/// A request waits longer than the limit while the server answers those before it.
#[tokio::test(start_paused = true)]
async fn a_slow_server_is_not_given_up() {
    let (share, _connection, mut peer) = client(512, Duration::from_secs(1), false).await;
    let file = peer.during(share.open("a", OpenMode::Read)).await.unwrap();
    let requests: Vec<_> = (0..4).map(|_| Direction::Read.begin(&file)).collect();
    for _ in 0..4 {
        let sent = peer.expect(Command::Read).await;
        tokio::time::sleep(Duration::from_millis(400)).await;
        peer.serve(&sent, usize::MAX).await;
    }
    for request in requests {
        request.await.unwrap().unwrap();
    }
}

/// One message creates and marks a file, so that no end of the connection leaves a part of it.
#[tokio::test]
async fn a_new_file_is_marked_with_its_creation_until_it_is_kept() {
    let (share, _connection, mut peer) = client(512, NO_LIMIT, false).await;
    let opening = share.open("a", OpenMode::New);
    let (file, ()) = tokio::join!(opening, async {
        let create = peer.expect(Command::Create).await;
        let access = u32_at(&create.0, 88);
        assert_eq!(access, 0x0011_0006, "DELETE, SYNCHRONIZE, APPEND, WRITE");
        assert_eq!(peer.requests.len(), 1, "in the same message");
        let mark = peer.expect(Command::SetInfo).await;
        assert_eq!(mark.information(), (13, 1));
        peer.serve(&create, usize::MAX).await;
        peer.serve(&mark, usize::MAX).await;
    });
    let file = file.unwrap();
    assert!(file.is_temporary());
    let (kept, ()) = tokio::join!(file.keep(), async {
        let unmark = peer.expect(Command::SetInfo).await;
        assert_eq!(unmark.information(), (13, 0));
        peer.serve(&unmark, usize::MAX).await;
    });
    kept.unwrap();
    assert!(!file.is_temporary());
}

/// A server without the mark has a file that stays, and the caller sees that.
#[tokio::test]
async fn a_server_that_refuses_the_mark_still_stores() {
    for window in [1, 512] {
        let (share, connection, mut peer) = client(window, NO_LIMIT, false).await;
        let server = tokio::spawn(async move {
            while let Some(request) = peer.next().await {
                match request.command() {
                    Command::SetInfo if request.information().0 == 13 => {
                        peer.refuse(&request, NtStatus::NOT_SUPPORTED).await;
                    }
                    _ => peer.serve(&request, usize::MAX).await,
                }
            }
        });
        let file = share.open("a", OpenMode::New).await.unwrap();
        assert!(!file.is_temporary());
        file.write(0, BytesMut::zeroed(BYTES)).await.unwrap();
        file.keep().await.unwrap();
        file.close().await.unwrap();
        connection.close().await.unwrap();
        server.await.unwrap();
    }
}

#[tokio::test]
async fn a_closed_file_takes_no_requests() {
    let (share, connection, peer) = client(512, NO_LIMIT, false).await;
    let server = peer.run(usize::MAX);
    let file = share.open("a", OpenMode::Read).await.unwrap();
    file.clone().close().await.unwrap();
    let error = file.read(0, BytesMut::zeroed(BYTES)).await.unwrap_err();
    assert_eq!(error.status(), Some(NtStatus::FILE_CLOSED));
    let error = file.close().await.unwrap_err();
    assert_eq!(error.status(), Some(NtStatus::FILE_CLOSED));
    connection.close().await.unwrap();
    let seen = server.await.unwrap().seen;
    assert_eq!(seen[2..], [Command::Create, Command::Close]);
}

/// A whole file moves both ways, with servers that move fewer bytes than they are asked for, and whatever length the
/// server gave.
#[tokio::test]
async fn whole_files_move_to_their_end() {
    for (most, by_messages) in [(usize::MAX, false), (usize::MAX, true), (99_999, false)] {
        for more in [0, 1, 5000, 3_000_000] {
            let (share, connection, mut peer) = client(512, NO_LIMIT, by_messages).await;
            let file = peer.during(share.open("a", OpenMode::Read)).await.unwrap();
            // The file has more than the answer to CREATE says, as files of /proc have.
            let mut expected = noise();
            expected.extend(std::iter::repeat_n(b'x', more));
            peer.file.clone_from(&expected);
            let server = peer.run(most);
            let mut bytes = Vec::new();
            let sink = |part: &[u8]| {
                bytes.extend(part);
                Ok(())
            };
            let moved = file.download(sink).await.unwrap();
            assert_eq!(
                moved.bytes,
                expected.len() as u64,
                "{most} {by_messages} {more}"
            );
            assert!(bytes == expected, "{most} {by_messages} {more}");
            assert_eq!(moved.by_rdma == 0, by_messages);

            // The source gives a little at a time.
            let mut source = bytes.chunks(70_000).flat_map(|part| [part, &[]]);
            let mut rest: &[u8] = &[];
            let read = |into: &mut [u8]| {
                if rest.is_empty() {
                    rest = source.find(|part| !part.is_empty()).unwrap_or_default();
                }
                std::io::Read::read(&mut rest, into)
            };
            let file = share.open("a", OpenMode::Write).await.unwrap();
            let moved = file.upload(read).await.unwrap();
            assert_eq!(moved.bytes, expected.len() as u64);
            connection.close().await.unwrap();
            assert!(
                server.await.unwrap().file == expected,
                "{most} {by_messages} {more}"
            );
        }
    }
}

/// A server that answers the request beyond the length of the file wrongly has given the whole file.
#[tokio::test]
async fn a_wrong_answer_at_the_end_of_a_file_is_its_end() {
    for length in [0, LENGTH] {
        let (share, _connection, mut peer) = client(512, NO_LIMIT, false).await;
        peer.file.truncate(length);
        let file = peer.during(share.open("a", OpenMode::Read)).await.unwrap();
        let server = tokio::spawn(async move {
            while let Some(request) = peer.next().await {
                if request.offset() >= length {
                    peer.refuse(&request, NtStatus::INVALID_PARAMETER).await;
                } else {
                    peer.serve(&request, usize::MAX).await;
                }
            }
        });
        let moved = file.download(|_| Ok(())).await.unwrap();
        assert_eq!(moved.bytes, length as u64);
        server.abort();
    }
}

#[tokio::test]
async fn a_source_or_sink_that_fails_ends_the_transfer() {
    let (share, _connection, peer) = client(512, NO_LIMIT, false).await;
    peer.run(usize::MAX);
    let file = share.open("a", OpenMode::Scratch).await.unwrap();
    let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);
    let failed = file.download(|_| Err(full())).await.unwrap_err();
    assert!(matches!(failed, Error::Local(_)), "{failed:?}");
    let failed = file.upload(|_| Err(full())).await.unwrap_err();
    assert!(matches!(failed, Error::Local(_)), "{failed:?}");
    file.close().await.unwrap();
}

/// The server says how much room there is; a server that does not is asked nothing more.
#[tokio::test]
async fn room_is_what_the_server_says() {
    let numbers = |all: u64, available: u64, sectors: u32, bytes: u32| {
        let mut body = vec![9, 0, 72, 0, 32, 0, 0, 0];
        body.extend([all, available, available].map(u64::to_le_bytes).concat());
        body.extend([sectors, bytes].map(u32::to_le_bytes).concat());
        body
    };
    let short = vec![9, 0, 72, 0, 8, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    for (body, room) in [
        (numbers(9, 3, 8, 512), Some(3 * 4096)),
        (numbers(9, 0, 8, 512), Some(0)),
        (numbers(9, u64::MAX, 8, 512), Some(u64::MAX)),
        (numbers(0, 0, 8, 512), None),
        (numbers(9, 3, 0, 0), None),
        (short, None),
    ] {
        let (share, _connection, mut peer) = client(512, NO_LIMIT, false).await;
        let file = peer.during(share.open("a", OpenMode::Write)).await.unwrap();
        let (found, ()) = tokio::join!(file.room(), async {
            let query = peer.expect(Command::QueryInfo).await;
            assert_eq!(query.0[66..68], [2, 7], "FileFsFullSizeInformation");
            peer.answer(&query, NtStatus::SUCCESS, &body).await;
        });
        let allocated = create_response(0).allocation_size;
        assert_eq!(
            found.unwrap(),
            room.map(|room| room.saturating_add(allocated))
        );
        let (found, ()) = tokio::join!(file.room(), async {
            let query = peer.expect(Command::QueryInfo).await;
            peer.refuse(&query, NtStatus::INVALID_INFO_CLASS).await;
        });
        assert_eq!(found.unwrap(), None);
    }
}

/// The lock of another client is found before a byte moves, and a server without locks has none.
#[tokio::test]
async fn a_lock_of_another_client_is_found() {
    let (share, _connection, mut peer) = client(512, NO_LIMIT, false).await;
    let file = peer.during(share.open("a", OpenMode::Write)).await.unwrap();
    for (status, is_locked) in [
        (NtStatus(0xc000_0055), true),
        (NtStatus::NOT_SUPPORTED, false),
    ] {
        let (found, ()) = tokio::join!(file.check_unlocked(), async {
            let lock = peer.expect(Command::Lock).await;
            peer.refuse(&lock, status).await;
        });
        assert_eq!(found.is_err(), is_locked);
    }
    let (found, ()) = tokio::join!(file.check_unlocked(), async {
        for flags in [0x12, 4] {
            let lock = peer.expect(Command::Lock).await;
            assert_eq!(u32_at(&lock.0, 64 + 24 + 16), flags);
            peer.answer(&lock, NtStatus::SUCCESS, &[4, 0, 0, 0]).await;
        }
    });
    found.unwrap();
}
