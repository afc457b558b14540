//! `--memory` limits the data in flight. When the limit is reached, clients wait and no request fails.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use smbdirect::Connection;
use tokio::{
    io::AsyncWriteExt,
    runtime,
    sync::{oneshot, watch},
    task::JoinSet,
    time::sleep,
};

use smbdirect_test::peers::rdma::{
    Memory, described, filled, negotiate, patient, received, submit,
};

use super::{
    End, Kind,
    Kind::{SmbDirect, Tcp},
    Server, event, gateway, iwarp, peak_memory, soon, through_with,
};
use crate::{
    messages::*,
    support::{Listening, noise, run},
};

const MIB: usize = 1 << 20;
/// The size of most requests here.
const SIZE: u32 = 8 << 20;
/// The least memory for one connection with SMB Direct on one side, and on both.
const LEAST: (&str, usize) = ("35M", 35 * MIB);
const LEAST_FOR_BOTH: (&str, usize) = ("68M", 68 * MIB);

/// Options of a gateway with this much memory and without timeouts for slow ends.
fn with_memory(bytes: &str) -> [&str; 6] {
    let [stall_limit, credits] = ["--stall-limit", "--credit-grant-timeout"];
    ["--memory", bytes, stall_limit, "600", credits, "600"]
}

/// The memory of a gateway before a test, and the limit of its growth.
struct Bound {
    before: Option<u64>,
    most: usize,
}

impl Bound {
    fn new(gateway: &Listening, most: usize) -> Self {
        let before = peak_memory(gateway);
        Self { before, most }
    }

    /// Checks the limit, where the system reports the peak memory of a process.
    #[track_caller]
    fn check(&self, gateway: &Listening) {
        if let (Some(before), Some(now)) = (self.before, peak_memory(gateway)) {
            let more = now.saturating_sub(before);
            assert!(
                more < self.most as u64,
                "{more} bytes, {} allowed",
                self.most
            );
        }
    }
}

/// Waits until a number is not zero and no longer changes. If the machine only pauses for a moment, the test is
/// weaker but does not fail.
async fn stands_still(number: impl Fn() -> u64) -> u64 {
    let mut last = 0;
    soon(async {
        loop {
            let now = number();
            if now == last && now > 0 {
                return now;
            }
            last = now;
            sleep(Duration::from_millis(300)).await;
        }
    })
    .await
}

/// Waits until the memory of a gateway grows no more, where the system reports it.
async fn is_full(gateway: &Listening) {
    stands_still(|| peak_memory(gateway).unwrap_or(1)).await;
}

/// Returns the answer to a READ whose data was moved by RDMA.
fn placed(message_id: u64, length: usize) -> Vec<u8> {
    read_answer(message_id, &[], length as u32)
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_reads_wait_for_a_server_that_answers_late() {
    const READS: u64 = 10_000;
    let data = noise(1000, 1);
    // The number that the server receives before it answers the first.
    for (to, first, (memory, most)) in [(Tcp, 8000, LEAST), (SmbDirect, 1, LEAST_FOR_BOTH)] {
        let (gateway, mut client, mut server) =
            through_with(SmbDirect, to, &with_memory(memory), patient()).await;
        negotiate(&mut client, &mut server, 0x0311).await;
        let bound = Bound::new(&gateway, most);
        let connection = client.connection();
        let memory = Memory::to_fill(connection, SIZE as usize, 1);
        let descriptors = memory.descriptors();
        for id in 0..READS {
            submit(connection, read(id, 0, SIZE, V1, &descriptors));
        }
        let answer = {
            let data = data.clone();
            async move |server: &mut End, request: &[u8]| {
                let id = u64_at(request, 24);
                let answer = match &*server {
                    End::SmbDirect(connection) => {
                        let (_, memory) = described(request);
                        drop(connection.write(&memory, 0, data.clone()));
                        placed(id, data.len())
                    }
                    End::Tcp(_) => read_answer(id, &data, 0),
                };
                server.send(&answer).await;
            }
        };
        let serving = tokio::spawn(async move {
            let mut waiting = VecDeque::new();
            for _ in 0..READS {
                waiting.push_back(server.receive().await.unwrap());
                if waiting.len() == first {
                    answer(&mut server, &waiting.pop_front().unwrap()).await;
                }
            }
            for request in &waiting {
                answer(&mut server, request).await;
            }
            server
        });
        for id in 0..READS {
            assert_eq!(received(connection).await, (placed(id, 1000), None));
        }
        drop(soon(serving).await.unwrap());
        bound.check(&gateway);
        assert!(memory.contents().await == filled(&data, SIZE as usize));
    }
}

/// Writes the data of each READ immediately, and answers when the test allows it.
async fn serve_reads(
    server: Connection,
    data: Bytes,
    waiting: Arc<AtomicUsize>,
    mut allowed: watch::Receiver<bool>,
) {
    let mut ids = Vec::new();
    loop {
        tokio::select! {
            request = server.recv() => {
                let Ok(request) = request else { return };
                let request = request.into_bytes();
                let (channel, memory) = described(&request);
                assert_eq!(channel, V1_INVALIDATE);
                drop(server.write(&memory, 0, data.clone()));
                ids.push(u64_at(&request, 24));
                waiting.fetch_add(1, Relaxed);
            }
            changed = allowed.changed() => changed.unwrap(),
        }
        if *allowed.borrow() {
            for id in ids.drain(..) {
                submit(&server, placed(id, data.len()));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_share_the_memory_for_reads() {
    const READS: u64 = 20;
    let mut listener = Server::bind(SmbDirect, patient()).await;
    let address = listener.address().to_string();
    let gateway = gateway(Tcp, SmbDirect, &address, &with_memory("256M"));
    let bound = Bound::new(&gateway, 128 * MIB);
    let data = Bytes::from(noise(SIZE as usize, 1));
    let waiting = Arc::new(AtomicUsize::new(0));
    let (allow, allowed) = watch::channel(false);
    let (mut clients, mut servers) = (JoinSet::new(), JoinSet::new());
    for _ in 0..3 {
        let mut client = End::connect(Tcp, &gateway.address).await;
        let mut server = listener.accept().await;
        negotiate(&mut client, &mut server, 0x0311).await;
        let server = server.connection().clone();
        servers.spawn(serve_reads(
            server,
            data.clone(),
            waiting.clone(),
            allowed.clone(),
        ));
        let data = data.clone();
        clients.spawn(async move {
            for id in 0..READS {
                client.send(&read(id, 0, SIZE, 0, &[])).await;
            }
            for id in 0..READS {
                assert!(client.receive().await == Some(read_answer(id, &data, 0)));
            }
        });
    }
    // A quarter of the memory is for requests, which is enough for eight of these requests. Each connection has
    // one or more.
    let number = stands_still(|| waiting.load(Relaxed) as u64).await;
    assert!((3..=8).contains(&number), "{number} READs at once");
    allow.send(true).unwrap();
    while let Some(client) = soon(clients.join_next()).await {
        client.unwrap();
    }
    bound.check(&gateway);
    drop(gateway);
    while let Some(server) = soon(servers.join_next()).await {
        server.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_writes_wait_for_stalled_servers() {
    let mut listener = Server::bind(Tcp, patient()).await;
    let address = listener.address().to_string();
    // For three connections; prefetched data of two could fill it.
    let mut gateway = gateway(SmbDirect, Tcp, &address, &with_memory("105M"));
    let bound = Bound::new(&gateway, 105 * MIB);
    let data = noise(SIZE as usize, 1);
    let mut ends = Vec::new();
    for _ in 0..3 {
        let client = End::connect_with(SmbDirect, &gateway.address, patient()).await;
        let connection = client.connection();
        let memory = Memory::holding(connection, &data, 3);
        let descriptors = memory.descriptors();
        for id in 0..10_000 {
            let request = write_by_rdma(id, id << 20, SIZE, V1, &descriptors);
            submit(connection, request);
        }
        ends.push((client, memory, listener.accept().await));
    }
    is_full(&gateway).await;
    bound.check(&gateway);
    for (client, memory, mut server) in ends {
        for id in 0..4 {
            assert!(server.receive().await == Some(write(id, id << 20, &data)));
        }
        client.connection().abort();
        // The answers that have arrived: each complete answer has the bytes of the client.
        for id in 4.. {
            match server.receive().await {
                Some(request) => assert!(request == write(id, id << 20, &data), "{id}"),
                None => break,
            }
        }
        event(&mut gateway, "closed");
        drop(memory);
    }
    bound.check(&gateway);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_writes_arrive_at_a_server_that_was_slow() {
    const WRITES: u64 = 30;
    for (to, (memory, most)) in [(Tcp, LEAST), (SmbDirect, LEAST_FOR_BOTH)] {
        let (gateway, mut client, mut server) =
            through_with(SmbDirect, to, &with_memory(memory), patient()).await;
        negotiate(&mut client, &mut server, 0x0311).await;
        let bound = Bound::new(&gateway, most);
        let connection = client.connection();
        let data = noise(SIZE as usize, 1);
        let memory = Memory::holding(connection, &data, 3);
        let descriptors = memory.descriptors();
        for id in 0..WRITES {
            submit(
                connection,
                write_by_rdma(id, id << 20, SIZE, V1, &descriptors),
            );
        }
        is_full(&gateway).await;
        for id in 0..WRITES {
            let request = server.receive().await.unwrap();
            if let End::SmbDirect(server) = &server {
                let (channel, memory) = described(&request);
                let expected = write_by_rdma(id, id << 20, SIZE, channel, &memory);
                assert_eq!(request, expected);
                let reading = server.read(&memory, 0, BytesMut::zeroed(SIZE as usize));
                assert!(soon(reading).await.unwrap() == data, "{id}");
            } else {
                assert!(request == write(id, id << 20, &data), "{id}");
            }
            server.send(&write_answer(id, SIZE)).await;
        }
        for id in 0..WRITES {
            let expected = (write_answer(id, SIZE), None);
            assert_eq!(received(connection).await, expected);
        }
        bound.check(&gateway);
    }
}

/// Performs a READ and a WRITE of 8 MiB each. The other end receives while this end sends.
async fn reads_and_writes(client: &mut End, server: &mut End, id: u64) {
    let data = noise(SIZE as usize, id);
    let (to_fill, request) = match &*client {
        End::SmbDirect(connection) => {
            let memory = Memory::to_fill(connection, SIZE as usize, 2);
            let request = read(id, 0, SIZE, V1, &memory.descriptors());
            (Some(memory), request)
        }
        End::Tcp(_) => (None, read(id, 0, SIZE, 0, &[])),
    };
    let ((), asked) = tokio::join!(client.send(&request), server.receive());
    let answer = match &*server {
        End::SmbDirect(connection) => {
            let (_, memory) = described(&asked.unwrap());
            drop(connection.write(&memory, 0, data.clone()));
            placed(id, SIZE as usize)
        }
        End::Tcp(_) => read_answer(id, &data, 0),
    };
    let ((), answered) = tokio::join!(server.send(&answer), client.receive());
    match to_fill {
        Some(memory) => {
            assert_eq!(answered, Some(placed(id, SIZE as usize)));
            assert!(memory.contents().await == data);
        }
        None => assert!(answered == Some(read_answer(id, &data, 0))),
    }
    let id = id + 1;
    let (_holding, request) = match &*client {
        End::SmbDirect(connection) => {
            let memory = Memory::holding(connection, &data, 2);
            let request = write_by_rdma(id, 0, SIZE, V1, &memory.descriptors());
            (Some(memory), request)
        }
        End::Tcp(_) => (None, write(id, 0, &data)),
    };
    let ((), asked) = tokio::join!(client.send(&request), server.receive());
    match &*server {
        End::SmbDirect(connection) => {
            let (_, memory) = described(&asked.unwrap());
            let reading = connection.read(&memory, 0, BytesMut::zeroed(SIZE as usize));
            assert!(soon(reading).await.unwrap() == data);
        }
        End::Tcp(_) => assert!(asked == Some(write(id, 0, &data))),
    }
    server.send(&write_answer(id, SIZE)).await;
    assert_eq!(client.receive().await, Some(write_answer(id, SIZE)));
}

#[tokio::test(flavor = "multi_thread")]
async fn announced_messages_that_do_not_come_cost_little_and_end() {
    for to in [Tcp, SmbDirect] {
        let mut listener = Server::bind(to, patient()).await;
        let address = listener.address().to_string();
        let mut arguments = with_memory("256M").to_vec();
        arguments[3] = "2";
        // More connections are allowed than can have an outstanding request.
        arguments.extend(["--max-fragmented-size", "1M"]);
        let mut gateway = gateway(Tcp, to, &address, &arguments);
        let bound = Bound::new(&gateway, 128 * MIB);
        let mut bystander = End::connect(Tcp, &gateway.address).await;
        let mut bystanders_server = listener.accept().await;
        negotiate(&mut bystander, &mut bystanders_server, 0x0311).await;
        // As many connections as the memory allows, and the size that each announces.
        let (number, length, head) = match to {
            Tcp => (100, 0xff_ffff, vec![7; 1000]),
            // They use all of the memory for requests.
            SmbDirect => (8, SIZE + 112, write(1, 0, &vec![7; SIZE as usize])),
        };
        let mut stalled = Vec::new();
        for _ in 0..number {
            let mut client = End::connect(Tcp, &gateway.address).await;
            let mut server = listener.accept().await;
            if to == SmbDirect {
                negotiate(&mut client, &mut server, 0x0311).await;
            }
            let stream = client.stream();
            stream.write_u32(length).await.unwrap();
            let head = &head[..head.len().min(100_000)];
            stream.write_all(head).await.unwrap();
            stalled.push((client, server));
        }
        reads_and_writes(&mut bystander, &mut bystanders_server, 1).await;
        for _ in 0..number {
            let closed = event(&mut gateway, "closed");
            assert_eq!(
                closed["ended"],
                "client: it has sent nothing for 2.00 s in the middle of a message"
            );
        }
        bound.check(&gateway);
        reads_and_writes(&mut bystander, &mut bystanders_server, 3).await;
    }
}

/// Reads until the end, on its own runtime: while that runtime is blocked, the connection receives
/// nothing, including RDMA.
fn client_that_stands_still(
    address: &str,
    reads: u64,
    data: Vec<u8>,
) -> (
    oneshot::Receiver<()>,
    mpsc::Sender<()>,
    thread::JoinHandle<()>,
) {
    let address = address.to_owned();
    let (asked, is_asked) = oneshot::channel();
    let (go_on, goes_on) = mpsc::channel();
    let thread = thread::spawn(move || {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let (connection, memories) = runtime.block_on(async {
            let provider = iwarp();
            let connecting = Connection::connect(&*provider, address, patient());
            let connection = soon(connecting).await.unwrap();
            let mut memories = Vec::new();
            for id in 0..reads {
                let memory = Memory::to_fill(&connection, data.len(), 1);
                let request = read(id, 0, SIZE, V1_INVALIDATE, &memory.descriptors());
                soon(connection.send(request).unwrap()).await.unwrap();
                memories.push(memory);
            }
            (connection, memories)
        });
        asked.send(()).unwrap();
        goes_on.recv().unwrap();
        runtime.block_on(async {
            for (memory, id) in memories.into_iter().zip(0..) {
                let token = memory.invalidated_by(V1_INVALIDATE);
                assert_eq!(received(&connection).await, (placed(id, data.len()), token));
                assert!(memory.contents().await == data, "{id}");
            }
            soon(connection.close()).await.unwrap();
        });
    });
    (is_asked, go_on, thread)
}

#[tokio::test(flavor = "multi_thread")]
async fn rdma_client_that_receives_nothing_does_not_block_others() {
    const READS: u64 = 12;
    let mut listener = Server::bind(Tcp, patient()).await;
    let address = listener.address().to_string();
    let gateway = gateway(SmbDirect, Tcp, &address, &with_memory("72M"));
    let bound = Bound::new(&gateway, 72 * MIB);
    let data = noise(SIZE as usize, 1);
    let (is_asked, go_on, thread) = client_that_stands_still(&gateway.address, READS, data.clone());
    let mut server = listener.accept().await;
    is_asked.await.unwrap();
    let sent = Arc::new(AtomicUsize::new(0));
    let serving = tokio::spawn({
        let (sent, data) = (sent.clone(), data.clone());
        async move {
            for id in 0..READS {
                assert_eq!(server.receive().await, Some(read(id, 0, SIZE, 0, &[])));
            }
            for id in 0..READS {
                server.send(&read_answer(id, &data, 0)).await;
                sent.fetch_add(1, Relaxed);
            }
            server
        }
    });
    let number = stands_still(|| 1 + sent.load(Relaxed) as u64).await;
    assert!(number <= READS, "the answers went nowhere");
    let mut bystander = End::connect_with(SmbDirect, &gateway.address, patient()).await;
    let mut bystanders_server = listener.accept().await;
    for id in 0..3 {
        reads_and_writes(&mut bystander, &mut bystanders_server, 2 * id).await;
    }
    bound.check(&gateway);
    go_on.send(()).unwrap();
    drop(soon(serving).await.unwrap());
    tokio::task::spawn_blocking(|| thread.join().unwrap())
        .await
        .unwrap();
    bound.check(&gateway);
}

#[tokio::test(flavor = "multi_thread")]
async fn tcp_client_that_receives_nothing_does_not_block_others() {
    const READS: u64 = 12;
    let mut listener = Server::bind(SmbDirect, patient()).await;
    let address = listener.address().to_string();
    let gateway = gateway(Tcp, SmbDirect, &address, &with_memory("72M"));
    let bound = Bound::new(&gateway, 72 * MIB);
    let data = Bytes::from(noise(SIZE as usize, 1));
    let mut client = End::connect(Tcp, &gateway.address).await;
    let mut server = listener.accept().await;
    negotiate(&mut client, &mut server, 0x0311).await;
    for id in 0..READS {
        client.send(&read(id, 0, SIZE, 0, &[])).await;
    }
    let waiting = Arc::new(AtomicUsize::new(0));
    let (_allow, allowed) = watch::channel(true);
    let server = server.connection().clone();
    let serving = tokio::spawn(serve_reads(server, data.clone(), waiting.clone(), allowed));
    let number = stands_still(|| waiting.load(Relaxed) as u64).await;
    assert!(number < READS, "the answers went nowhere");
    let mut bystander = End::connect(Tcp, &gateway.address).await;
    let mut bystanders_server = listener.accept().await;
    negotiate(&mut bystander, &mut bystanders_server, 0x0311).await;
    for id in 0..3 {
        reads_and_writes(&mut bystander, &mut bystanders_server, 2 * id).await;
    }
    bound.check(&gateway);
    for id in 0..READS {
        assert!(client.receive().await == Some(read_answer(id, &data, 0)));
    }
    client.close().await;
    soon(serving).await.unwrap();
    bound.check(&gateway);
}

/// Memory is kept for reuse, in sizes larger than the requests.
#[tokio::test(flavor = "multi_thread")]
async fn requests_of_every_size_together_cost_no_more() {
    let (gateway, mut client, mut server) =
        through_with(Tcp, SmbDirect, &with_memory("36M"), patient()).await;
    negotiate(&mut client, &mut server, 0x0311).await;
    let bound = Bound::new(&gateway, 36 * MIB);
    let mut id = 0;
    for round in 0..2 {
        for size in [
            16 << 10,
            65 << 10,
            129 << 10,
            257 << 10,
            513 << 10,
            MIB + 1,
            2 * MIB + 1,
            4 * MIB + 1,
        ] {
            // Many more than the memory allows.
            let number = (16 * MIB / size) as u64;
            for id in id..id + number {
                client.send(&read(id, 0, size as u32, 0, &[])).await;
            }
            let waiting = Arc::new(AtomicUsize::new(0));
            let (allow, allowed) = watch::channel(false);
            let data = Bytes::from(noise(size, id));
            let connection = server.connection().clone();
            let serving = tokio::spawn(serve_reads(
                connection,
                data.clone(),
                waiting.clone(),
                allowed,
            ));
            let at_once = stands_still(|| waiting.load(Relaxed) as u64).await;
            assert!(at_once < number, "{at_once} READs of {size} bytes at once");
            allow.send(true).unwrap();
            for id in id..id + number {
                let answer = client.receive().await;
                assert!(answer == Some(read_answer(id, &data, 0)), "{round} {size}");
            }
            // A receiver that still waits would share the next READs with the next one.
            serving.abort();
            assert!(serving.await.unwrap_err().is_cancelled());
            id += number;
            bound.check(&gateway);
        }
    }
}

#[test]
fn too_little_memory_is_a_usage_error_with_the_minimum() {
    for (from, to, more, least) in [
        ("smbdirect", "tcp", "", "34.8 MiB"),
        ("tcp", "smbdirect", "", "34.8 MiB"),
        ("smbdirect", "smbdirect", "", "67.6 MiB"),
        ("tcp", "tcp", "", "2.00 MiB"),
        (
            "smbdirect",
            "tcp",
            "--max-fragmented-size=131072",
            "18.6 MiB",
        ),
    ] {
        let arguments = [
            "gateway",
            "127.0.0.1:0",
            "127.0.0.1:1",
            "--from",
            from,
            "--to",
            to,
        ];
        let memory = ["--memory", "1M", more];
        let all: Vec<&str> = arguments.into_iter().chain(memory).collect();
        let all = all.strip_suffix(&[""]).unwrap_or(&all);
        let says = format!("--memory is too small: one connection needs {least}");
        run(all).failed(2, &says).one_line();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn more_connections_than_there_is_memory_for_are_turned_away() {
    for (from, to, memory, most) in [
        (SmbDirect, Tcp, "35M", 1),
        (SmbDirect, Tcp, "70M", 2),
        (SmbDirect, SmbDirect, "136M", 2),
        (Tcp, Tcp, "6M", 3),
    ] {
        turns_away_all_but(from, to, memory, most).await;
    }
}

async fn turns_away_all_but(from: Kind, to: Kind, memory: &str, most: usize) {
    let mut listener = Server::bind(to, patient()).await;
    let address = listener.address().to_string();
    let mut gateway = gateway(from, to, &address, &["--memory", memory]);
    let mut open = Vec::new();
    for _ in 0..most {
        let client = End::connect(from, &gateway.address).await;
        open.push((client, listener.accept().await));
    }
    match from {
        // The gateway may refuse it during the negotiation.
        SmbDirect => {
            let (provider, address) = (iwarp(), gateway.address.clone());
            let connecting = Connection::connect(&*provider, address, patient());
            if let Ok(connection) = soon(connecting).await {
                soon(connection.closed()).await;
            }
        }
        Tcp => {
            let mut client = End::connect(from, &gateway.address).await;
            assert_eq!(client.receive().await, None);
        }
    }
    assert_eq!(event(&mut gateway, "turned_away")["open"], most);
    for (client, server) in &mut open {
        client.send(b"hello").await;
        assert_eq!(server.receive().await.as_deref(), Some(&b"hello"[..]));
    }
}
