//! A client with RDMA and a server without: the data of READ and WRITE.

use fastrand::Rng;
use smbdirect::{Config, Settings, Token};

use smbdirect_test::{
    messages::*,
    noise,
    peers::{
        End, SmbDirect, Tcp,
        rdma::{Memory, filled, patient, received, submit},
    },
};

use super::{event, through, through_with};

/// The longest message over TCP.
const LONGEST: usize = 0xff_ffff;
const MIB: usize = 1 << 20;

/// Boundary lengths of data: none, those of descriptors, and those of the gateway's chunks.
const SIZES: [usize; 12] = [
    0,
    1,
    15,
    79,
    4095,
    16_384,
    65_537,
    256 << 10,
    (512 << 10) + 1,
    MIB,
    8 * MIB,
    LONGEST - 112,
];

/// Returns the answer to a READ as the client receives it, with `length` bytes in its memory.
fn placed(message_id: u64, length: usize) -> Vec<u8> {
    read_answer(message_id, &[], length as u32)
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_fill_the_memory_that_the_client_describes() {
    let (mut gateway, client, mut server) = through_with(SmbDirect, Tcp, patient()).await;
    let connection = client.connection();
    let (mut reads, mut by_rdma, mut bytes) = (0, 0, 0);
    for channel in [V1, V1_INVALIDATE] {
        for (index, size) in SIZES.into_iter().chain([LONGEST - 80]).enumerate() {
            let id = (reads << 32) + 7;
            // Most READs return less than requested, and leave the rest of the memory unchanged.
            let described = size + 40 * index;
            let memory = Memory::to_fill(connection, described, 1 + (index + reads as usize) % 5);
            let length = (size + 20 * index) as u32;
            let request = read(id, 1 << 40, length, channel, &memory.descriptors());
            submit(connection, request);
            let inline = read(id, 1 << 40, length, 0, &[]);
            assert!(server.receive().await == Some(inline), "{size}");
            let data = noise(size, id);
            server.send(&read_answer(id, &data, 0)).await;
            let (answer, token) = received(connection).await;
            assert_eq!(answer, placed(id, size));
            assert_eq!(token, memory.invalidated_by(channel));
            assert!(
                memory.contents().await == filled(&data, described),
                "{size}"
            );
            reads += 1;
            by_rdma += u64::from(size > 0);
            bytes += size;
        }
    }
    client.close().await;
    let closed = event(&mut gateway, "closed");
    for event in [closed, gateway.terminate()] {
        assert_eq!(event["messages_to_server"], reads, "{event}");
        assert_eq!(event["bytes_to_server"], reads * 113, "{event}");
        assert_eq!(event["messages_to_client"], reads, "{event}");
        assert_eq!(
            event["bytes_to_client"],
            reads as usize * 80 + bytes,
            "{event}"
        );
        assert_eq!(event["reads_by_rdma"], by_rdma, "{event}");
        assert_eq!(event["bytes_read_by_rdma"], bytes, "{event}");
        assert_eq!(event["writes_by_rdma"], 0, "{event}");
        assert_eq!(event["bytes_written_by_rdma"], 0, "{event}");
        assert_eq!(event["requests_passed"], 0, "{event}");
        assert_eq!(event["requests_refused"], 0, "{event}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_take_their_data_from_the_clients_memory() {
    let (mut gateway, client, mut server) = through(SmbDirect, Tcp).await;
    let connection = client.connection();
    let (mut writes, mut by_rdma, mut bytes) = (0, 0, 0);
    for channel in [V1, V1_INVALIDATE] {
        for (index, size) in SIZES.into_iter().enumerate() {
            let id = (writes << 32) + 7;
            // Most descriptors have more bytes than the WRITE.
            let contents = noise(size + 20 * index, id);
            let data = &contents[..size];
            let memory = Memory::holding(connection, &contents, 1 + (index + writes as usize) % 5);
            let descriptors = memory.descriptors();
            let request = write_by_rdma(id, 1 << 40, size as u32, channel, &descriptors);
            submit(connection, request);
            assert!(
                server.receive().await == Some(write(id, 1 << 40, data)),
                "{size}"
            );
            let answer = write_answer(id, size as u32);
            server.send(&answer).await;
            let (received, token) = received(connection).await;
            assert_eq!(received, answer);
            assert_eq!(token, memory.invalidated_by(channel));
            writes += 1;
            by_rdma += u64::from(size > 0);
            bytes += size;
        }
    }
    client.close().await;
    let closed = event(&mut gateway, "closed");
    for event in [closed, gateway.terminate()] {
        assert_eq!(event["messages_to_server"], writes, "{event}");
        // A WRITE without data has one byte in its place.
        let to_server = writes as usize * 112 + 2 + bytes;
        assert_eq!(event["bytes_to_server"], to_server, "{event}");
        assert_eq!(event["messages_to_client"], writes, "{event}");
        assert_eq!(event["bytes_to_client"], writes * 81, "{event}");
        assert_eq!(event["writes_by_rdma"], by_rdma, "{event}");
        assert_eq!(event["bytes_written_by_rdma"], bytes, "{event}");
        assert_eq!(event["reads_by_rdma"], 0, "{event}");
        assert_eq!(event["bytes_read_by_rdma"], 0, "{event}");
        assert_eq!(event["requests_passed"], 0, "{event}");
        assert_eq!(event["requests_refused"], 0, "{event}");
    }
}

/// How a server answers a request of [`outstanding_requests_are_answered_in_any_order`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Whole,
    /// Fewer bytes than requested.
    Short,
    EndOfFile,
}

struct Asked {
    id: u64,
    is_read: bool,
    channel: u32,
    outcome: Outcome,
    interim: bool,
    data: Vec<u8>,
    memory: Memory,
}

impl Asked {
    fn new(client: &smbdirect::Connection, id: u64, random: &mut Rng) -> Self {
        let size = match random.u8(..8) {
            0 => 0,
            1 => random.usize(..MIB),
            _ => random.usize(..40_000),
        };
        let is_read = random.bool();
        let data = noise(size, id);
        let parts = random.usize(1..=5);
        let memory = if is_read {
            Memory::to_fill(client, size + 9, parts)
        } else {
            Memory::holding(client, &data, parts)
        };
        Self {
            id,
            is_read,
            channel: *random.choice(&[V1, V1_INVALIDATE]).unwrap(),
            outcome: *random
                .choice(&[Outcome::Whole, Outcome::Short, Outcome::EndOfFile])
                .unwrap(),
            interim: random.u8(..4) == 0,
            data,
            memory,
        }
    }

    fn request(&self) -> Vec<u8> {
        let (id, length) = (self.id, self.data.len() as u32);
        let descriptors = self.memory.descriptors();
        if self.is_read {
            read(id, id * 3, length, self.channel, &descriptors)
        } else {
            write_by_rdma(id, id * 3, length, self.channel, &descriptors)
        }
    }

    fn translated(&self) -> Vec<u8> {
        if self.is_read {
            read(self.id, self.id * 3, self.data.len() as u32, 0, &[])
        } else {
            write(self.id, self.id * 3, &self.data)
        }
    }

    fn command(&self) -> u16 {
        if self.is_read { READ } else { WRITE }
    }

    /// The part of the data that the server returns or receives.
    fn moved(&self) -> &[u8] {
        match self.outcome {
            Outcome::Whole => &self.data,
            Outcome::Short => &self.data[..self.data.len() / 3],
            Outcome::EndOfFile => &[],
        }
    }

    fn answer(&self) -> Vec<u8> {
        match (self.outcome, self.is_read) {
            (Outcome::EndOfFile, _) => error(self.command(), self.id, END_OF_FILE),
            (_, true) => read_answer(self.id, self.moved(), 0),
            (_, false) => write_answer(self.id, self.moved().len() as u32),
        }
    }

    /// Checks what the client finally receives.
    async fn check(self, answer: &[u8], token: Option<Token>) {
        if self.is_read && self.outcome != Outcome::EndOfFile {
            assert_eq!(answer, placed(self.id, self.moved().len()));
        } else {
            assert_eq!(answer, self.answer());
        }
        assert_eq!(token, self.memory.invalidated_by(self.channel));
        let expected = if self.is_read {
            filled(self.moved(), self.data.len() + 9)
        } else {
            self.data
        };
        assert!(self.memory.contents().await == expected, "{}", self.id);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn outstanding_requests_are_answered_in_any_order() {
    const REQUESTS: u64 = 600;
    let (mut gateway, client, mut server) = through_with(SmbDirect, Tcp, patient()).await;
    let connection = client.connection();
    let mut random = Rng::with_seed(1);
    let mut all: Vec<Option<Asked>> = (0..REQUESTS)
        .map(|id| Some(Asked::new(connection, id, &mut random)))
        .collect();
    for asked in all.iter().flatten() {
        submit(connection, asked.request());
    }
    let mut answers = Vec::new();
    for asked in all.iter().flatten() {
        assert!(
            server.receive().await == Some(asked.translated()),
            "{}",
            asked.id
        );
        if asked.interim {
            server.send(&interim(asked.command(), asked.id)).await;
        }
        answers.push(asked.answer());
    }
    random.shuffle(&mut answers);
    let answering = tokio::spawn(async move {
        for answer in answers {
            server.send(&answer).await;
        }
        server
    });
    let (mut interims, mut left) = (0, REQUESTS);
    while left > 0 {
        let (answer, token) = received(connection).await;
        let id = u64_at(&answer, 24);
        let asked = &mut all[id as usize];
        if u32_at(&answer, 8) == PENDING {
            let asked = asked.as_ref().expect("the final answer comes last");
            assert_eq!(answer, interim(asked.command(), id));
            assert_eq!(token, None);
            interims += u64::from(asked.interim);
            continue;
        }
        let asked = asked.take().expect("each request is answered once");
        asked.check(&answer, token).await;
        left -= 1;
    }
    drop(answering.await.unwrap());
    client.close().await;
    let closed = event(&mut gateway, "closed");
    assert!(interims > 0);
    assert_eq!(closed["messages_to_server"], REQUESTS);
    assert_eq!(closed["messages_to_client"], REQUESTS + interims);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_is_cancelled_by_the_client() {
    let (_gateway, client, mut server) = through(SmbDirect, Tcp).await;
    let connection = client.connection();
    for channel in [V1, V1_INVALIDATE] {
        let memory = Memory::to_fill(connection, 4096, 2);
        let request = read(9, 0, 4096, channel, &memory.descriptors());
        submit(connection, request);
        assert_eq!(server.receive().await, Some(read(9, 0, 4096, 0, &[])));
        server.send(&interim(READ, 9)).await;
        assert_eq!(received(connection).await, (interim(READ, 9), None));
        let cancel = other(flagged(header(CANCEL, 9), ASYNC), &[4, 0, 0, 0]);
        submit(connection, cancel.clone());
        assert_eq!(server.receive().await, Some(cancel));
        let cancelled = flagged(error(READ, 9, CANCELLED), ASYNC);
        server.send(&cancelled).await;
        let token = memory.invalidated_by(channel);
        assert_eq!(received(connection).await, (cancelled, token));
        assert!(memory.contents().await == filled(&[], 4096));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_data_at_any_offset_with_trailing_bytes() {
    let (_gateway, client, mut server) = through(SmbDirect, Tcp).await;
    let connection = client.connection();
    for (id, size, offset, behind) in [
        (1, 100_000, 81, 0),
        (2, 100_000, 255, 1),
        (3, 300_000, 80, 100_000),
        (4, 0, 96, 7),
        (5, 1, 200, 300_000),
    ] {
        let data = noise(size, id);
        let mut answer = with(read_answer(id, &[], 0), 66, &[offset]);
        put(&mut answer, 68, &(size as u32).to_le_bytes());
        answer.resize(offset.into(), 0x99);
        answer.extend_from_slice(&data);
        answer.resize(answer.len() + behind, 0x99);
        let memory = Memory::to_fill(connection, size + 50, 3);
        let descriptors = memory.descriptors();
        submit(
            connection,
            read(id, 0, size as u32, V1_INVALIDATE, &descriptors),
        );
        server.receive().await.unwrap();
        server.send(&answer).await;
        let token = memory.invalidated_by(V1_INVALIDATE);
        assert_eq!(received(connection).await, (placed(id, size), token));
        assert!(
            memory.contents().await == filled(&data, size + 50),
            "{offset}"
        );
    }
}

/// A pipe returns the beginning of a longer message in this way.
#[tokio::test(flavor = "multi_thread")]
async fn data_with_a_warning_reaches_the_client_with_the_warning() {
    let (_gateway, client, mut server) = through(SmbDirect, Tcp).await;
    let connection = client.connection();
    let memory = Memory::to_fill(connection, 1024, 1);
    let request = read(3, 0, 1024, V1_INVALIDATE, &memory.descriptors());
    submit(connection, request);
    server.receive().await.unwrap();
    let data = noise(1024, 3);
    let status = BUFFER_OVERFLOW.to_le_bytes();
    server
        .send(&with(read_answer(3, &data, 0), 8, &status))
        .await;
    let token = memory.invalidated_by(V1_INVALIDATE);
    let expected = with(placed(3, 1024), 8, &status);
    assert_eq!(received(connection).await, (expected, token));
    assert!(memory.contents().await == data);
}

#[tokio::test(flavor = "multi_thread")]
async fn compounds_are_translated_element_by_element() {
    let (mut gateway, client, mut server) = through(SmbDirect, Tcp).await;
    let connection = client.connection();
    let create = other(header(CREATE, 1), &noise(121, 1));
    let close = flagged(other(header(CLOSE, 3), &noise(24, 3)), RELATED);
    let created = other(answer(CREATE, 1, SUCCESS), &noise(88, 4));
    let closed = other(answer(CLOSE, 3, SUCCESS), &noise(60, 5));
    for size in [0, 1, 8, 50_001, 3 * MIB] {
        for channel in [V1, V1_INVALIDATE] {
            let data = noise(size, size as u64);
            // A READ between two others, and the data of the answer with them.
            let memory = Memory::to_fill(connection, size + 10, 2);
            let descriptors = memory.descriptors();
            let length = size as u32 + 5;
            let request = flagged(read(2, 5, length, channel, &descriptors), RELATED);
            submit(
                connection,
                compound(&[create.clone(), request, close.clone()]),
            );
            let inline = flagged(read(2, 5, length, 0, &[]), RELATED);
            let expected = compound(&[create.clone(), inline, close.clone()]);
            assert!(server.receive().await == Some(expected), "{size}");
            let elements = [created.clone(), read_answer(2, &data, 0), closed.clone()];
            server.send(&compound(&elements)).await;
            let expected = compound(&[created.clone(), placed(2, size), closed.clone()]);
            let token = memory.invalidated_by(channel);
            assert_eq!(received(connection).await, (expected, token));
            assert!(
                memory.contents().await == filled(&data, size + 10),
                "{size}"
            );
            // A WRITE between two others, answered by three messages.
            let memory = Memory::holding(connection, &data, 3);
            let descriptors = memory.descriptors();
            let length = size as u32;
            let request = flagged(write_by_rdma(2, 5, length, channel, &descriptors), RELATED);
            submit(
                connection,
                compound(&[create.clone(), request, close.clone()]),
            );
            let inline = flagged(write(2, 5, &data), RELATED);
            let expected = compound(&[create.clone(), inline, close.clone()]);
            assert!(server.receive().await == Some(expected), "{size}");
            let written = write_answer(2, length);
            for (message, token) in [
                (&created, None),
                (&written, memory.invalidated_by(channel)),
                (&closed, None),
            ] {
                server.send(message).await;
                assert_eq!(received(connection).await, (message.clone(), token));
            }
        }
    }
    client.close().await;
    let bytes = 2 * (1 + 8 + 50_001 + 3 * MIB);
    let event = event(&mut gateway, "closed");
    // Without data there is no RDMA.
    assert_eq!(event["reads_by_rdma"], 8, "{event}");
    assert_eq!(event["bytes_read_by_rdma"], bytes, "{event}");
    assert_eq!(event["writes_by_rdma"], 8, "{event}");
    assert_eq!(event["bytes_written_by_rdma"], bytes, "{event}");
    let compound = compound(&[created.clone(), placed(2, 0), closed.clone()]).len();
    let apart = created.len() + 81 + closed.len();
    let to_client = 10 * (compound + apart) + bytes;
    assert_eq!(event["bytes_to_client"], to_client, "{event}");
}

/// A message invalidates one token, so each element is sent separately.
#[tokio::test(flavor = "multi_thread")]
async fn a_compound_that_invalidates_two_tokens_is_answered_by_two_messages() {
    let (_gateway, client, mut server) = through(SmbDirect, Tcp).await;
    let connection = client.connection();
    let ids = [4, 5];
    let memories = ids.map(|_| Memory::to_fill(connection, 5000, 2));
    let requests = [0, 1].map(|index| {
        let descriptors = memories[index].descriptors();
        read(ids[index], 0, 5000, V1_INVALIDATE, &descriptors)
    });
    submit(connection, compound(&requests));
    let inline = ids.map(|id| read(id, 0, 5000, 0, &[]));
    assert_eq!(server.receive().await, Some(compound(&inline)));
    let answers = ids.map(|id| read_answer(id, &noise(5000, id), 0));
    server.send(&compound(&answers)).await;
    for (id, memory) in ids.into_iter().zip(memories) {
        let token = memory.invalidated_by(V1_INVALIDATE);
        assert_eq!(received(connection).await, (placed(id, 5000), token));
        assert!(memory.contents().await == noise(5000, id));
    }
}

/// Messages of a client that a gateway must not change.
fn untouchable_requests() -> Vec<Vec<u8>> {
    let mut inline = read(20, 0, 100_000, 0, &[]);
    // Without a channel its fields have no meaning.
    put(&mut inline, 104, &[0xff; 8]);
    put(&mut inline, 67, &[3]);
    vec![
        other(header(NEGOTIATE, 0), &noise(100, 1)),
        with(noise(90, 2), 0, b"\xffSMB"),
        flagged(read(21, 0, 1, 0, &[]), SIGNED),
        flagged(write(22, 0, &noise(300_000, 3)), SIGNED),
        write(23, 0, &noise(MIB, 4)),
        write(24, 0, &[]),
        inline,
        encrypted(52),
        encrypted(8 * MIB + 200),
        compressed(2 * MIB),
        compound(&[
            other(header(CREATE, 30), &noise(77, 5)),
            flagged(write(31, 0, &noise(100_001, 6)), RELATED | SIGNED),
            flagged(read(32, 0, 50_000, 0, &[]), RELATED),
            flagged(other(header(CLOSE, 33), &noise(24, 7)), RELATED),
        ]),
        other(header(ECHO, 40), &[4, 0, 0, 0]),
        b"\xfeSMB".to_vec(),
        noise(63, 8),
        noise(8 * MIB + (64 << 10), 9),
    ]
}

/// Messages of a server that a gateway must not change.
fn untouchable_answers() -> Vec<Vec<u8>> {
    let oplock_break = with(answer(0x12, 0, SUCCESS), 24, &[0xff; 8]);
    vec![
        negotiated(0x0311),
        flagged(read_answer(21, &noise(70_000, 1), 0), SIGNED),
        flagged(write_answer(22, 300_000), SIGNED),
        error(WRITE, 23, 0xc000_007f),
        read_answer(20, &noise(100_000, 2), 0),
        encrypted(8 * MIB + 200),
        compressed(2 * MIB),
        compound(&[
            answer(CREATE, 30, SUCCESS),
            write_answer(31, 100_001),
            flagged(read_answer(32, &noise(50_000, 3), 0), SIGNED),
            other(answer(CLOSE, 33, SUCCESS), &noise(60, 4)),
        ]),
        other(oplock_break, &noise(24, 5)),
        noise(3, 6),
        noise(8 * MIB + (64 << 10), 7),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn all_else_passes_byte_for_byte_while_a_read_waits() {
    for (from, to) in [(SmbDirect, Tcp), (SmbDirect, SmbDirect), (Tcp, SmbDirect)] {
        let (mut gateway, mut client, mut server) = through_with(from, to, patient()).await;
        let memory = match &client {
            End::SmbDirect(connection) => {
                let memory = Memory::to_fill(connection, 10_000, 2);
                let descriptors = memory.descriptors();
                submit(connection, read(100, 0, 10_000, V1, &descriptors));
                Some(memory)
            }
            End::Tcp(_) => {
                client.send(&read(100, 0, 10_000, 0, &[])).await;
                None
            }
        };
        assert_eq!(server.receive().await, Some(read(100, 0, 10_000, 0, &[])));
        let requests = untouchable_requests();
        for (index, request) in requests.iter().enumerate() {
            client.send(request).await;
            assert!(server.receive().await.as_ref() == Some(request), "{index}");
        }
        for (index, answer) in untouchable_answers().iter().enumerate() {
            server.send(answer).await;
            assert!(client.receive().await.as_ref() == Some(answer), "{index}");
        }
        let data = noise(10_000, 1);
        server.send(&read_answer(100, &data, 0)).await;
        match memory {
            Some(memory) => {
                assert_eq!(client.receive().await, Some(placed(100, 10_000)));
                assert!(memory.contents().await == data);
            }
            None => assert!(client.receive().await == Some(read_answer(100, &data, 0))),
        }
        client.close().await;
        let closed = event(&mut gateway, "closed");
        let passed = requests.len() + usize::from(from == Tcp);
        assert_eq!(closed["requests_passed"], passed, "{from:?} to {to:?}");
    }
}

/// The gateway's default sizes fit the messages of a default Samba.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_the_client_cannot_take_ends_its_connection() {
    let mut settings = Settings::default();
    settings.max_fragmented_receive_size = 131_072;
    let small = Config::new(settings);
    let (mut gateway, client, mut server) = through_with(SmbDirect, Tcp, small.unwrap()).await;
    let connection = client.connection();
    // By RDMA the same data is possible.
    let memory = Memory::to_fill(connection, 200_000, 1);
    let request = read(1, 0, 200_000, V1, &memory.descriptors());
    submit(connection, request);
    server.receive().await.unwrap();
    let data = noise(200_000, 1);
    server.send(&read_answer(1, &data, 0)).await;
    assert_eq!(received(connection).await, (placed(1, 200_000), None));
    assert!(memory.contents().await == data);
    submit(connection, read(2, 0, 200_000, 0, &[]));
    server.receive().await.unwrap();
    server.send(&read_answer(2, &data, 0)).await;
    let ended = super::ended(&mut gateway);
    let says = "server: a message of 200080 bytes is too long: the other side takes at most 131072; have the \
                client ask for less";
    assert!(ended.starts_with(says), "{ended}");
}
