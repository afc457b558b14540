//! Random clients and servers on both ends of a gateway, or of two, by seed.
//!
//! All data that reaches the server and the client is compared, byte by byte, with a second translation:
//! requests, answers, the client's memory and the files. In some scenarios an end is hostile: its messages are
//! changed at random. Then the gateway may end the connection, but everything that it delivers must still be
//! equal to what the other end sent.
//!
//! A run tries a fixed set of seeds; `SMBDIRECT_SWARM_SEEDS=100000` tries more of them, and
//! `SMBDIRECT_SWARM_SEED=17` repeats the seed 17 alone.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    env, panic,
};

use fastrand::Rng;
use smbdirect_smb::client_channel::Part;
use smbdirect_test::messages::{self, *};

use self::{
    client::Client,
    hop::{End, Hop},
    meaning::{answer_meanings, command, elements, plain_request, request_meaning},
    memory::Memory,
    server::{Server, apply, written},
};

#[path = "swarm/client.rs"]
mod client;
#[path = "swarm/hop.rs"]
mod hop;
#[path = "swarm/meaning.rs"]
mod meaning;
#[path = "swarm/memory.rs"]
mod memory;
#[path = "swarm/server.rs"]
mod server;

const SEEDS: u64 = 5000;

#[test]
fn swarm() {
    let number = |name| env::var(name).ok().map(|value| value.parse().expect(name));
    let seeds = match number("SMBDIRECT_SWARM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SMBDIRECT_SWARM_SEEDS").unwrap_or(SEEDS),
    };
    let mut totals = Totals::default();
    for seed in seeds {
        let played = panic::catch_unwind(|| {
            let mut totals = Totals::default();
            Scenario::draw(seed).play(&mut totals);
            totals
        });
        match played {
            Ok(played) => totals.add(&played),
            Err(cause) => {
                eprintln!("seed={seed}");
                eprintln!(
                    "replay: SMBDIRECT_SWARM_SEED={seed} cargo test -p smbdirect-smb --test swarm"
                );
                panic::resume_unwind(cause);
            }
        }
    }
    println!("{totals:?}");
    assert!(totals.placed > 0 || totals.scenarios < 100);
}

/// Counters of the events in a run, which show that the run covered them.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    scenarios: usize,
    requests: usize,
    answers: usize,
    placed: usize,
    invalidations: usize,
    received: usize,
    ended: usize,
    lies: usize,
}

impl Totals {
    fn add(&mut self, other: &Self) {
        self.scenarios += other.scenarios;
        self.requests += other.requests;
        self.answers += other.answers;
        self.placed += other.placed;
        self.invalidations += other.invalidations;
        self.received += other.received;
        self.ended += other.ended;
        self.lies += other.lies;
    }
}

/// A message, and the token that goes with it by Send with Invalidate.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) bytes: Vec<u8>,
    pub(crate) invalidate: Option<u32>,
}

impl From<Vec<u8>> for Sent {
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            invalidate: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Liar {
    None,
    Client,
    Server,
}

/// The outcome of one seed.
struct Scenario {
    random: Rng,
    liar: Liar,
    client: Client,
    hops: Vec<Hop>,
    server: Server,
    memory: Memory,
    /// Requests on their way into each hop, and into the server.
    requests: Vec<VecDeque<Vec<Part>>>,
    /// Answers on their way out of the server, and out of each hop.
    answers: Vec<VecDeque<Sent>>,
    /// The messages that the server must receive, and how often.
    expected_requests: HashMap<Vec<u8>, usize>,
    /// The messages that the client must receive, and how often.
    expected_answers: HashMap<Vec<u8>, usize>,
    /// Files as the client has written them.
    files: Vec<Vec<u8>>,
    /// File, offset and data of the client's WRITEs.
    written: HashMap<u64, (usize, usize, Vec<u8>)>,
    /// MessageIds of requests that the first gateway has got.
    arrived: HashSet<u64>,
    /// Messages that the client is still to send.
    left: usize,
    earlier: Vec<Vec<u8>>,
}

impl Scenario {
    fn draw(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let liar = [Liar::None, Liar::None, Liar::Client, Liar::Server][random.usize(..4)];
        let (rdma, hops) = match random.u8(..4) {
            0 => (true, vec![Hop::client()]),
            1 => (false, vec![Hop::server(&mut random)]),
            2 => (true, vec![Hop::client(), Hop::server(&mut random)]),
            _ => (false, vec![Hop::server(&mut random), Hop::client()]),
        };
        let server_has_rdma = matches!(hops.last(), Some(Hop::Server(..)));
        let is_off_only = matches!(hops[..], [Hop::Client(_)]);
        let server = Server::new(&mut random, server_has_rdma, is_off_only);
        let links = hops.len() + 1;
        let left = random.usize(1..60);
        let mut scenario = Self {
            liar,
            client: Client::new(rdma, liar != Liar::Client),
            hops,
            files: server.files.clone(),
            server,
            memory: Memory::default(),
            requests: (0..links).map(|_| VecDeque::new()).collect(),
            answers: (0..links).map(|_| VecDeque::new()).collect(),
            expected_requests: HashMap::new(),
            expected_answers: HashMap::new(),
            written: HashMap::new(),
            arrived: HashSet::new(),
            left,
            earlier: Vec::new(),
            random,
        };
        scenario.negotiate();
        scenario
    }

    /// Each gateway learns the dialect from the server's answer.
    fn negotiate(&mut self) {
        let dialect = [0x0210, 0x0300, 0x0302, 0x0311][self.random.usize(..4)];
        let mut sent = vec![Sent::from(negotiated(dialect))];
        for hop in self.hops.iter_mut().rev() {
            let only = sent.pop().expect("one message");
            sent = hop
                .answer(only, &mut self.random, &mut self.memory)
                .expect("it passes");
        }
        assert_eq!(sent[0].bytes, negotiated(dialect));
    }

    fn play(mut self, totals: &mut Totals) {
        totals.scenarios += 1;
        loop {
            match self.step(totals) {
                Ok(true) => {}
                Ok(false) => break,
                Err(End(cause)) => {
                    assert_ne!(self.liar, Liar::None, "{cause}");
                    totals.ended += 1;
                    return;
                }
            }
        }
        if self.liar == Liar::None {
            self.check_end();
        }
    }

    fn check_end(&self) {
        for hop in &self.hops {
            assert_eq!(hop.pending(), 0);
        }
        assert!(self.client.waiting.is_empty(), "{:?}", self.client.waiting);
        assert!(self.expected_requests.is_empty());
        assert!(self.expected_answers.is_empty());
        assert_eq!(self.server.files, self.files);
        assert_eq!(self.memory.len(), 0, "memory that is still registered");
    }

    /// Has something happen. `false` if there is nothing left.
    fn step(&mut self, totals: &mut Totals) -> Result<bool, End> {
        let links = self.hops.len() + 1;
        for _ in 0..30 {
            let link = self.random.usize(..links);
            match self.random.u8(..5) {
                0 if self.left > 0 => {
                    self.client_asks(totals);
                    return Ok(true);
                }
                1 | 2 if !self.requests[link].is_empty() => {
                    self.request_moves(link, totals)?;
                    return Ok(true);
                }
                3 if !self.answers[link].is_empty() => {
                    self.answer_moves(link, totals)?;
                    return Ok(true);
                }
                4 if !self.server.is_idle() => {
                    self.server_says(totals)?;
                    return Ok(true);
                }
                _ => {}
            }
        }
        let queues_are_empty = self.requests.iter().all(VecDeque::is_empty)
            && self.answers.iter().all(VecDeque::is_empty);
        Ok(self.left > 0 || !queues_are_empty || !self.server.is_idle())
    }

    fn client_asks(&mut self, totals: &mut Totals) {
        self.left -= 1;
        let mut bytes = self.client.ask(&mut self.random, &mut self.memory);
        if self.liar == Liar::Client {
            self.lie(&mut bytes, totals);
        }
        if self.liar != Liar::Server {
            self.expect_request(&bytes);
        }
        self.client.sends(&bytes, &self.memory);
        totals.requests += 1;
        self.requests[0].push_back(vec![Part::Bytes(bytes.into())]);
    }

    fn expect_request(&mut self, bytes: &[u8]) {
        let plain = match self.liar {
            Liar::Client => request_meaning(bytes, &self.memory),
            _ => plain_request(bytes, &self.memory),
        };
        // If its memory cannot be read, the gateway does not read it either.
        let Ok(plain) = plain else { return };
        *self.expected_requests.entry(plain).or_default() += 1;
        if self.liar == Liar::None {
            for place in elements(bytes).unwrap_or_default() {
                let element = &bytes[place];
                if command(element) == WRITE {
                    let data = written(element, &self.memory).expect("its own memory");
                    let (file, offset) = (element[80].into(), u64_at(element, 72) as usize);
                    self.written
                        .insert(u64_at(element, 24), (file, offset, data));
                }
            }
        }
    }

    /// The next message on a link proceeds, or a message after those that wait for the client's memory.
    fn request_moves(&mut self, link: usize, totals: &mut Totals) -> Result<(), End> {
        let queue = &mut self.requests[link];
        let waits = |parts: &Vec<Part>| {
            let mut parts = parts.iter();
            parts.any(|part| matches!(part, Part::Remote { .. }))
        };
        let first_without = queue.iter().position(|parts| !waits(parts));
        let last = first_without.unwrap_or(queue.len() - 1);
        let parts = queue
            .remove(self.random.usize(..=last))
            .expect("it is in the queue");
        let mut bytes = Vec::new();
        for part in parts {
            match part {
                Part::Bytes(part) => bytes.extend_from_slice(&part),
                Part::Remote { from, length } => {
                    bytes.extend_from_slice(&self.memory.read(&from, length as usize)?);
                }
            }
        }
        if link == 0 {
            for place in elements(&bytes).unwrap_or_default() {
                let element = &bytes[place];
                if command(element) != CANCEL {
                    self.arrived.insert(u64_at(element, 24));
                }
            }
        }
        if let Some(hop) = self.hops.get_mut(link) {
            let parts = hop.request(bytes, &mut self.random, &mut self.memory)?;
            self.requests[link + 1].push_back(parts);
            return Ok(());
        }
        self.server_gets(&bytes, totals)
    }

    fn server_gets(&mut self, bytes: &[u8], totals: &mut Totals) -> Result<(), End> {
        let plain = match self.liar {
            Liar::Client => request_meaning(bytes, &self.memory)?,
            _ => plain_request(bytes, &self.memory)?,
        };
        if self.liar != Liar::Server {
            take(&mut self.expected_requests, plain, "a request");
        }
        totals.received += bytes.len();
        self.server.receives(bytes);
        Ok(())
    }

    fn server_says(&mut self, totals: &mut Totals) -> Result<(), End> {
        let Some(mut sent) = self.server.says(&mut self.random, &mut self.memory)? else {
            return Ok(());
        };
        if self.liar == Liar::None {
            self.write_model(&sent.bytes);
        }
        if self.liar == Liar::Server {
            let honest = sent.bytes.clone();
            self.lie(&mut sent.bytes, totals);
            // A gateway does not answer a request before it has arrived.
            let places = elements(&sent.bytes).unwrap_or_default();
            let mut ids = places
                .iter()
                .map(|place| u64_at(&sent.bytes, place.start + 24));
            if ids.any(|id| !self.arrived.contains(&id)) {
                sent.bytes = honest;
            }
            if self.server.rdma && self.random.u8(..20) == 0 {
                sent.invalidate = Some(self.random.u32(..));
            }
        }
        let last = self.answers.len() - 1;
        self.answers[last].push_back(sent);
        Ok(())
    }

    /// Records the meaning of an answer when the gateway next to the server receives it: a hostile server may
    /// answer before the request, or twice.
    fn expect_answers(&mut self, bytes: &[u8]) {
        // A server has the memory of the gateway before it, or none.
        let hop = self.hops.last().expect("there is one");
        for meaning in answer_meanings(bytes, &self.memory, |id| hop.described(id)) {
            *self.expected_answers.entry(meaning).or_default() += 1;
        }
    }

    /// Writes the client's data to the files when the server reports that it has written the data.
    fn write_model(&mut self, message: &[u8]) {
        for place in elements(message).unwrap_or_default() {
            let element = &message[place];
            if command(element) == WRITE && u32_at(element, 8) == SUCCESS {
                let id = u64_at(element, 24);
                let (file, offset, data) = &self.written[&id];
                assert_eq!(u32_at(element, 68) as usize, data.len());
                apply(&mut self.files[*file], *offset, data);
            }
        }
        assert_eq!(self.files, self.server.files);
    }

    fn answer_moves(&mut self, link: usize, totals: &mut Totals) -> Result<(), End> {
        let sent = self.answers[link].pop_front().expect("it is there");
        if link == self.hops.len() && self.liar != Liar::Client {
            self.expect_answers(&sent.bytes);
        }
        if link > 0 {
            let hop = &mut self.hops[link - 1];
            let sent = hop.answer(sent, &mut self.random, &mut self.memory)?;
            self.answers[link - 1].extend(sent);
            return Ok(());
        }
        if self.liar != Liar::Client {
            let waiting = &self.client.waiting;
            let described = |id| {
                let operation = waiting.get(&id);
                operation
                    .filter(|operation| operation.command == READ && operation.channel != 0)
                    .map(|operation| operation.descriptors.clone())
            };
            for meaning in answer_meanings(&sent.bytes, &self.memory, described) {
                take(&mut self.expected_answers, meaning, "an answer");
            }
        }
        let is_honest = self.liar != Liar::Server;
        self.client
            .receives(&sent, is_honest, &mut self.memory, totals);
        Ok(())
    }

    /// Changes a message now and then.
    fn lie(&mut self, bytes: &mut Vec<u8>, totals: &mut Totals) {
        let random = &mut self.random;
        self.earlier.push(bytes.clone());
        if random.u8(..8) > 0 {
            return;
        }
        totals.lies += 1;
        for _ in 0..random.usize(1..4) {
            let head = bytes.len().min(160);
            let at = random.usize(..head.max(1));
            match random.u8(..9) {
                0 | 1 if at < head => bytes[at] ^= 1 << random.u8(..8),
                2 if at < head => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.usize(..5)],
                3 => bytes.truncate(random.usize(..=bytes.len())),
                4 => {
                    let more = random.usize(..40);
                    bytes.resize(bytes.len() + more, random.u8(..));
                }
                5 => *bytes = self.earlier[random.usize(..self.earlier.len())].clone(),
                6 if bytes.len() >= 64 => {
                    let next = random.u32(..) % (bytes.len() as u32 + 16);
                    put(bytes, 20, &(next & !7).to_le_bytes());
                }
                7 if bytes.len() >= 116 => {
                    let field = [68, 72, 96, 100, 104, 108][random.usize(..6)];
                    let value = [0, 1, 2, 3, 112, random.u32(..)][random.usize(..6)];
                    put(bytes, field, &value.to_le_bytes());
                }
                8 if bytes.len() >= 80 && random.bool() => {
                    // One byte more of data.
                    let length = u32_at(bytes, 68).wrapping_add(1);
                    put(bytes, 68, &length.to_le_bytes());
                    bytes.push(0x99);
                }
                8 if bytes.len() >= 64 => {
                    let statuses = [SUCCESS, PENDING, BUFFER_OVERFLOW, END_OF_FILE, 0x8000_0011];
                    let status = statuses[random.usize(..5)];
                    put(bytes, 8, &status.to_le_bytes());
                }
                _ => {}
            }
        }
    }
}

/// Takes one of what is expected.
fn take(expected: &mut HashMap<Vec<u8>, usize>, found: Vec<u8>, what: &str) {
    match expected.get_mut(&found) {
        None => panic!("{what} that nobody sent: {found:02x?}"),
        Some(1) => drop(expected.remove(&found)),
        Some(count) => *count -= 1,
    }
}
