//! A peer of the cases: the engine in virtual time, on a queue pair of two lists in memory.
//!
//! The times are those of the specification: 5 s to negotiate, 120 s until a keepalive. A Send of
//! the engine that finds no receive, or one that is too short, fails the test; such a Send of the
//! case ends the connection.

use std::{
    cell::RefCell,
    collections::VecDeque,
    rc::Rc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use smbdirect::{
    Config, ConnectionError, Message, Settings,
    engine::{Connection, Event, MessageId},
    rdma::work::{
        Completion, Disconnect, Limits, ProviderError, ProviderErrorKind, Room, WorkId, WorkRequest,
    },
};
use smbdirect_conform::{
    Asking, Client, ClientAction, Echo, Link, Next, PeerFacts, PeerSettings, Server, Timers,
    Verdict, fail,
};

/// Returns the settings that a case wishes.
fn settings_for(requested: &PeerSettings) -> Settings {
    let mut settings = Settings::default();
    if let Some(credits) = requested.credits {
        settings.send_credit_target = credits;
        settings.receive_credit_max = credits;
    }
    if let Some(size) = requested.max_fragmented_receive_size {
        settings.max_fragmented_receive_size = size;
    }
    settings
}

/// Returns the facts of the engine for a case: all settings, with exact times.
fn facts(settings: &Settings, negotiation: Duration) -> PeerFacts {
    PeerFacts {
        settings: Some(settings.clone()),
        timers: Timers {
            negotiation,
            keepalive_interval: settings.keepalive_interval,
            keepalive_response: settings.keepalive_response_timeout,
            credit_grant: settings.credit_grant_timeout,
        },
        prompt: Duration::from_millis(100),
        silence: Duration::from_secs(1),
        // A second earlier, as in the suite.
        margin: Duration::from_secs(1),
        early: Duration::ZERO,
        late: Duration::ZERO,
        patience: Duration::MAX,
    }
}

/// The outcomes of connections.
#[derive(Clone, Default)]
struct Log(Rc<RefCell<Vec<String>>>);

/// The accepting side, whose upper layer echoes every message.
#[derive(Default)]
pub(crate) struct EngineServer {
    settings: Settings,
    log: Log,
}

impl Server for EngineServer {
    fn prepare(&mut self, requested: &PeerSettings) -> Verdict {
        self.settings = settings_for(requested);
        Ok(())
    }

    fn facts(&self) -> PeerFacts {
        facts(&self.settings, self.settings.passive_negotiation_timeout)
    }

    fn connect(&mut self) -> Verdict<Box<dyn Link>> {
        let config = Config::new(self.settings.clone()).unwrap();
        let peer = Peer::new(Connection::passive, config, Upper::Echo, self.log.clone());
        Ok(Box::new(peer))
    }

    fn ended_because(&mut self, reasons: &[String]) -> Verdict {
        let log = self.log.0.borrow();
        let last = log.last().expect("a connection has ended");
        if reasons.iter().any(|reason| last.contains(reason)) {
            return Ok(());
        }
        fail(format!("an error with one of {reasons:?}"), last)
    }
}

/// The connecting side.
#[derive(Default)]
pub(crate) struct EngineClient {
    settings: Settings,
    log: Log,
}

impl Client for EngineClient {
    fn accept(&mut self, requested: &PeerSettings, action: ClientAction) -> Verdict<Box<dyn Link>> {
        self.settings = settings_for(requested);
        let config = Config::new(self.settings.clone()).unwrap();
        let length = match action {
            ClientAction::Send => 30,
            ClientAction::Exchange(length) => length,
        };
        let upper = Upper::ClientAction(Echo.request(length).into());
        let peer = Peer::new(Connection::active, config, upper, self.log.clone());
        Ok(Box::new(peer))
    }

    fn facts(&self) -> PeerFacts {
        facts(&self.settings, self.settings.active_negotiation_timeout)
    }

    fn finish(&mut self) -> Verdict<Option<Result<(), String>>> {
        let words = self.log.0.borrow_mut().pop().expect("it has ended");
        Ok(Some(if words == DONE { Ok(()) } else { Err(words) }))
    }
}

/// The log entry of a task that succeeded.
const DONE: &str = "done";

/// The engine's upper layer.
enum Upper {
    Echo,
    ClientAction(Bytes),
}

/// The case's end of a connection, with the engine at the other.
struct Peer {
    engine: Connection,
    upper: Upper,
    /// The received part of the current message.
    gathered: Vec<u8>,
    next_message: u64,
    connected: Instant,
    now: Instant,
    /// The receives of the engine.
    receives: VecDeque<(WorkId, u32)>,
    /// The receives of the script.
    script_receives: VecDeque<u32>,
    arrived: VecDeque<Bytes>,
    ended: bool,
    log: Log,
}

/// Length in bytes of the receive that every end posts before connecting.
const FIRST_RECEIVE: u32 = 512;
const ROOM: Room = Room {
    sends: 64,
    receives: 300,
};

impl Link for Peer {
    fn connected(&self) -> Instant {
        self.connected
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn post_receives(&mut self, count: u16, length: u32) {
        self.script_receives.extend((0..count).map(|_| length));
    }

    fn send(&mut self, message: &[u8]) -> Verdict {
        if self.ended {
            return Ok(());
        }
        let length = self.receives.front().map(|&(_, length)| length as usize);
        let fault = match length {
            Some(length) if message.len() <= length => None,
            Some(length) => Some(format!(
                "a Send of {} for a receive of {length}",
                message.len()
            )),
            None => Some("a Send without a posted receive".into()),
        };
        if let Some(what) = fault {
            let error = ProviderError::new(ProviderErrorKind::Protocol, what);
            self.break_off(Disconnect::Broken(error));
        } else if let Some((id, _)) = self.receives.pop_front() {
            let received = Completion::Received {
                id,
                message: Bytes::copy_from_slice(message),
                invalidated: None,
            };
            self.engine.handle_completion(self.now, received);
        }
        self.drive();
        Ok(())
    }

    fn next(&mut self, limit: Duration) -> Next {
        let until = self.now + limit;
        loop {
            if let Some(message) = self.arrived.pop_front() {
                return Next::Message(message);
            }
            if self.ended {
                return Next::End;
            }
            match self.engine.poll_timeout() {
                Some(due) if due <= until => {
                    self.now = self.now.max(due);
                    self.engine.handle_timeout(self.now);
                    self.drive();
                }
                _ => {
                    self.now = until;
                    return Next::Silence;
                }
            }
        }
    }

    fn disconnect(&mut self) {
        self.break_off(Disconnect::Remote);
        self.drive();
    }
}

impl Peer {
    fn new(
        role: fn(Config, Instant) -> Connection,
        config: Config,
        upper: Upper,
        log: Log,
    ) -> Self {
        let now = Instant::now();
        let mut engine = role(config, now);
        let first = engine.negotiate_receive();
        engine.handle_connected(Limits {
            max_send_queue: ROOM.sends,
            max_receive_queue: ROOM.receives,
            max_outbound_reads: 1,
            max_inbound_reads: 1,
            max_transfer: 1 << 20,
            send_with_invalidate: true,
            packet_bytes: None,
        });
        let mut peer = Self {
            engine,
            upper,
            gathered: Vec::new(),
            next_message: 0,
            connected: now,
            now,
            receives: VecDeque::new(),
            script_receives: [FIRST_RECEIVE].into(),
            arrived: VecDeque::new(),
            ended: false,
            log,
        };
        peer.post(first);
        peer.drive();
        peer
    }

    /// Takes the events of the engine and posts its work until there is none.
    fn drive(&mut self) {
        loop {
            if let Some(event) = self.engine.poll_event() {
                self.handle(event);
            } else if let Some(work) = self.engine.poll_work(self.now, ROOM) {
                self.post(work);
            // Polling for work may have caused an event.
            } else if let Some(event) = self.engine.poll_event() {
                self.handle(event);
            } else {
                break;
            }
        }
        let statistics = self.engine.statistics();
        let posted = self.receives.len();
        assert_eq!(statistics.receives_outstanding, posted as u64);
        assert_eq!(statistics.work_outstanding, 0);
    }

    fn post(&mut self, work: WorkRequest) {
        match work {
            WorkRequest::Receive { id, length, count } => {
                self.receives.extend((0..count).map(|_| (id, length)));
            }
            WorkRequest::Send {
                id,
                header,
                payload,
                ..
            } => {
                let message = [header.as_slice(), &payload].concat();
                let receive = self.script_receives.pop_front();
                let length = receive.expect("the engine sends where a receive is posted");
                assert!(message.len() <= length as usize, "it is too long");
                self.arrived.push_back(message.into());
                self.engine
                    .handle_completion(self.now, Completion::Sent { id });
            }
            other => panic!("unexpected work: {other:?}"),
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Negotiated(_) => {
                if let Upper::ClientAction(message) = &self.upper {
                    let message = message.clone().into();
                    self.submit(message);
                }
            }
            Event::Segment {
                payload, remaining, ..
            } => {
                self.gathered.extend_from_slice(&payload);
                if remaining == 0 {
                    self.take_message();
                }
            }
            Event::Closed(error) => self.closed(&error),
            Event::MessageSent(_) | Event::KeepaliveAnswered => {}
            event => panic!("the script caused no such event: {event:?}"),
        }
    }

    fn take_message(&mut self) {
        let message = Bytes::from(std::mem::take(&mut self.gathered));
        match &self.upper {
            Upper::Echo => self.submit(message.into()),
            Upper::ClientAction(sent) => {
                assert!(message == *sent, "it comes back unchanged");
                self.log.0.borrow_mut().push(DONE.into());
                self.engine.close();
            }
        }
    }

    fn submit(&mut self, message: Message) {
        self.next_message += 1;
        let id = MessageId(self.next_message);
        self.engine.send(id, message, None).unwrap();
    }

    fn closed(&mut self, error: &ConnectionError) {
        let done = self.log.0.borrow().iter().any(|words| words == DONE);
        if !done {
            self.log.0.borrow_mut().push(error.to_string());
        }
        if !self.ended {
            self.break_off(Disconnect::Local);
        }
    }

    /// Ends the RDMA connection and flushes all posted work.
    fn break_off(&mut self, how: Disconnect) {
        self.ended = true;
        for (id, _) in std::mem::take(&mut self.receives) {
            let flushed = Completion::Flushed { id, buffer: None };
            self.engine.handle_completion(self.now, flushed);
        }
        let disconnected = Completion::Disconnected(how);
        self.engine.handle_completion(self.now, disconnected);
    }
}
