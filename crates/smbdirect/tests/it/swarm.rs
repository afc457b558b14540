//! Two engines with random settings, faults of the fabric, commands of the upper layers, and
//! endings. The checks of `pair.rs` run after every step.
//!
//! A run uses a fixed set of seeds. `SMBDIRECT_SWARM_SEEDS=100000` uses more of them, and
//! `SMBDIRECT_SWARM_SEED=17` repeats one that failed.

use std::{env, panic, time::Duration};

use bytes::Bytes;
use smbdirect::{
    Access, BufferDescriptorV1, Settings,
    engine::{Policy, Revision},
    rdma::work::Token,
};

use crate::pair::fabric::{Active, Faults, Pair, Passive, Random, Who, content, same_credits};

/// Number of seeds that a run uses by default.
const SEEDS: u64 = 3000;

#[test]
fn random_scenarios_keep_every_rule() {
    let number = |name| env::var(name).ok().map(|value| value.parse().expect(name));
    let seeds = match number("SMBDIRECT_SWARM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SMBDIRECT_SWARM_SEEDS").unwrap_or(SEEDS),
    };
    let mut totals = Totals::default();
    for seed in seeds {
        match panic::catch_unwind(|| Scenario::draw(seed).play()) {
            Ok(pair) => totals.add(&pair),
            Err(cause) => {
                eprintln!("seed={seed}");
                eprintln!(
                    "replay: SMBDIRECT_SWARM_SEED={seed} cargo test -p smbdirect --test it swarm"
                );
                panic::resume_unwind(cause);
            }
        }
    }
    println!("{totals:?}");
}

/// The fabric follows each engine by the relation of `proofs/`. It is not told of the prompt here, so the message is no step.
#[test]
#[should_panic(expected = "an end sends, which is no step of the proof")]
fn a_step_that_is_not_proved_is_noticed() {
    let settings = same_credits(10);
    let mut pair = Pair::established(1, settings.clone(), settings, Faults::default());
    pair.active.engine.prompt();
    pair.prompt(Passive);
    pair.run();
}

/// The traffic of all scenarios, printed to show that the scenarios do work.
#[derive(Debug, Default)]
struct Totals {
    messages: usize,
    data_transfers: usize,
    transfers: usize,
    keepalives: usize,
    tokens: usize,
    hours: u64,
}

impl Totals {
    fn add(&mut self, pair: &Pair) {
        for end in Who::BOTH.map(|who| pair.end(who)) {
            self.messages += end.messages_received;
            self.data_transfers += end.data_transfers;
            self.transfers += end.transfers_done;
            self.keepalives += end.keepalives_answered;
            self.tokens += end.invalidated.len();
        }
        self.hours += (pair.now - pair.start).as_secs() / 3600;
    }
}

/// The scenario of one seed.
struct Scenario {
    random: Random,
    pair: Pair,
    ending: Ending,
    /// Largest length of a long message in bytes.
    longest: u64,
    /// A slow consumer may cause a time-out of the peer.
    may_time_out: bool,
    /// The connection breaks during the scenario.
    is_killed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Ending {
    Close(Who),
    CloseBoth,
    Kill,
    Vanish,
    /// An end receives a message that no engine sends.
    Garbage(Who),
}

fn draw_policy(random: &mut Random) -> Policy {
    let mut policy = Policy::default();
    policy.revision = random.pick(&[Revision::Current, Revision::V2014]);
    policy.tolerate_empty_in_sequence = random.one_in(4);
    policy
}

fn draw_settings(random: &mut Random) -> Settings {
    let mut number = || {
        let few = random.between(1, 4);
        let some = random.between(1, 255);
        random.pick(&[few, few, some, 255]) as u16
    };
    let (send_credit_target, receive_credit_max) = (number(), number());
    let size = |random: &mut Random| {
        let odd = random.between(128, 4000) as u32;
        random.pick(&[128, 129, 1364, 8192, odd])
    };
    let mut settings = Settings::windows();
    settings.send_credit_target = send_credit_target;
    settings.receive_credit_max = receive_credit_max;
    settings.max_send_size = size(random);
    settings.max_receive_size = size(random);
    settings.max_fragmented_receive_size = random.pick(&[131_072, 131_073, 173_910, 1 << 20]);
    settings.max_read_write_size = random.pick(&[65_536, 1 << 20]);
    settings.credit_grant_timeout = random.pick(&[None, Some(Duration::from_secs(5))]);
    settings.policy = draw_policy(random);
    settings
}

fn draw_faults(random: &mut Random) -> Faults {
    let mut delay = || {
        let some = random.up_to(1000);
        random.pick(&[0, 0, 20, some])
    };
    let completion_delay = [delay(), delay(), delay(), delay()];
    Faults {
        latency: random.pick(&[0, 10, 10, 300]),
        completion_delay,
        send_queue: random.pick(&[1, 2, 5, 64]),
        receive_queue: random.pick(&[3, 5, 300, 300]),
        lean_rooms: random.one_in(3),
        lazy: random.one_in(3),
        kill_at: None,
        outbound_reads: random.pick(&[1, 2, 16]),
        max_transfer: random.pick(&[100, 4096, 1 << 20]),
        send_with_invalidate: !random.one_in(4),
        ..Faults::default()
    }
}

impl Scenario {
    fn draw(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let (mut active, passive) = (draw_settings(&mut random), draw_settings(&mut random));
        // One end may follow the lenient rule of Linux; two of them can block each other.
        active.policy.strict_last_credit = !random.one_in(5);
        let mut faults = draw_faults(&mut random);
        // An end with the lenient rule relies on a posted receive for each credit.
        if !active.policy.strict_last_credit {
            faults.lean_rooms = false;
            faults.receive_queue = 300;
        }
        let mut ending = random.pick(&[
            Ending::Close(Active),
            Ending::Close(Passive),
            Ending::CloseBoth,
            Ending::Kill,
            Ending::Vanish,
            Ending::Garbage(Active),
            Ending::Garbage(Passive),
        ]);
        let is_killed = random.one_in(4);
        if is_killed {
            faults.kill_at = Some(random.between(1, 600));
            ending = Ending::Kill;
        }
        let longest = random.pick(&[10, 2000, 20_000, 131_072]);
        let pair = Pair::new(random.next(), active, passive, faults);
        Self {
            random,
            pair,
            ending,
            longest,
            may_time_out: false,
            is_killed,
        }
    }

    fn play(mut self) -> Pair {
        // Commands before and during the negotiation must not do any harm.
        for _ in 0..self.random.up_to(8) {
            self.act();
            self.pair.step();
        }
        self.pair.drive();
        self.assert_open();
        for _ in 0..self.random.between(1, 4) {
            self.burst();
            // Some bursts overlap with the next one or with the end.
            match self.random.up_to(3) {
                0 => {}
                1 => self.pair.run(),
                _ if self.may_time_out => self.pair.run(),
                _ => self.pair.drive(),
            }
            if self.random.one_in(4) {
                self.rest();
            }
            self.assert_open();
        }
        self.end();
        self.pair
    }

    /// Asserts that the connection is open, unless the scenario may have ended it.
    fn assert_open(&self) {
        let open = self.pair.is_open() || self.may_time_out || self.is_killed;
        assert!(open, "the connection ended\n{:?}", self.pair);
    }

    fn burst(&mut self) {
        for _ in 0..self.random.between(1, 40) {
            self.act();
            for _ in 0..self.random.up_to(6) {
                self.pair.step();
            }
        }
    }

    fn act(&mut self) {
        let who = self.random.pick(&Who::BOTH);
        match self.random.up_to(15) {
            0..=5 => {
                let length = self.length();
                self.pair.send(who, length);
            }
            6..=7 => self.invalidate(who),
            8..=9 => self.read(who),
            10..=11 => self.write(who),
            12 => self.pair.keepalive(who),
            13 => self.pair.prompt(who),
            14 => {
                for _ in 0..self.random.up_to(20) {
                    self.pair.send(who, 1);
                }
            }
            _ => self.be_slow(who),
        }
    }

    fn length(&mut self) -> usize {
        let any = self.random.up_to(self.longest);
        let few = self.random.up_to(300);
        self.random.pick(&[0, 1, few, few, any]) as usize
    }

    /// Registers memory of `owner` in up to three regions, and returns its content.
    fn memory(&mut self, owner: Who, access: Access) -> (Vec<BufferDescriptorV1>, Vec<u8>) {
        let mut bytes = Vec::new();
        let mut descriptors = Vec::new();
        for _ in 0..self.random.between(1, 3) {
            let (id, length) = (self.random.next(), self.random.up_to(9000) as usize);
            bytes.extend_from_slice(&content(id, length));
            descriptors.push(self.pair.register(owner, id, length, access));
        }
        (descriptors, bytes)
    }

    fn read(&mut self, who: Who) {
        let (descriptors, bytes) = self.memory(who.peer(), Access::REMOTE_READ);
        let offset = self.random.up_to(bytes.len() as u64) as usize;
        let end = self.random.between(offset as u64, bytes.len() as u64) as usize;
        let expected = Bytes::copy_from_slice(&bytes[offset..end]);
        self.pair.read(who, &descriptors, offset as u64, expected);
    }

    fn write(&mut self, who: Who) {
        let (descriptors, bytes) = self.memory(who.peer(), Access::REMOTE_WRITE);
        let offset = self.random.up_to(bytes.len() as u64);
        let length = self.random.up_to(bytes.len() as u64 - offset) as usize;
        let data = content(self.random.next(), length);
        self.pair.write(who, &descriptors, offset, data);
    }

    fn invalidate(&mut self, who: Who) {
        let access = Access::REMOTE_READ | Access::REMOTE_INVALIDATE;
        let memory = self.pair.register(who.peer(), 1, 10, access);
        let length = self.length();
        let token = Some(Token(memory.token));
        self.pair.send_invalidating(who, length, token);
    }

    fn be_slow(&mut self, who: Who) {
        let short = Duration::from_micros(self.random.up_to(5000));
        let long = Duration::from_secs(self.random.up_to(8));
        let duration = self.random.pick(&[short, short, long]);
        self.may_time_out |= duration >= Duration::from_secs(2);
        self.pair.fill_buffer(who, duration);
    }

    /// Returns bytes that resemble a Data Transfer enough to pass some of its checks.
    fn garbage(&mut self) -> Bytes {
        let length = self.random.pick(&[0, 19, 20, 24, 32, 100]);
        let mut bytes = content(self.random.next(), length).to_vec();
        for byte in &mut bytes {
            *byte = self.random.pick(&[0, 0, 1, 8, *byte]);
        }
        bytes.into()
    }

    /// Lets both ends be idle for a while, in which they may send only a few messages.
    fn rest(&mut self) {
        self.pair.run();
        let said = |pair: &Pair| pair.active.data_transfers + pair.passive.data_transfers;
        let before = said(&self.pair);
        let intervals = self.random.between(1, 60) as usize;
        self.pair
            .advance(Duration::from_secs(120) * intervals as u32);
        let said = said(&self.pair) - before;
        // Each interval allows two keepalives, two answers, and grants for them.
        assert!(said <= 6 * (intervals + 1), "{said} messages by idle ends");
    }

    fn end(&mut self) {
        match self.ending {
            Ending::Close(who) => self.pair.close(who),
            Ending::CloseBoth => Who::BOTH
                .map(|who| self.pair.close(who))
                .into_iter()
                .collect(),
            Ending::Kill => self.pair.kill(),
            Ending::Vanish => self.pair.fall_silent(),
            Ending::Garbage(who) => {
                let message = self.garbage();
                self.pair.inject(who, message);
            }
        }
        self.pair.run();
        self.pair.advance(Duration::from_secs(600));
        self.pair.assert_all_returned();
    }
}
