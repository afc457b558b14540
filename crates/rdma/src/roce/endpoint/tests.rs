//! Two endpoints over a simulated network.

mod congestion;
mod establishing;
mod fields;
mod hostile;
mod swarm;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use fastrand::Rng;

use super::*;
use crate::{
    roce::cm::PathMtu,
    work::{Inline, WorkId},
};

/// The port that the second endpoint listens on.
const PORT: u16 = 445;

/// A network with two endpoints. Time passes only when nothing else happens.
struct Network {
    rng: Rng,
    now: Instant,
    ends: [Endpoint; 2],
    addresses: [SocketAddr; 2],
    /// The datagrams in flight by their time of arrival: the receiver, its path, and the bytes.
    flight: BTreeMap<(Instant, u64), (usize, Path, Vec<u8>)>,
    sent: u64,
    /// The probability of the loss of a datagram.
    loss: f64,
    /// The longest delay of a datagram. If it is not zero, datagrams can overtake each other.
    jitter: Duration,
    /// The probability of the mark of congestion.
    marking: f64,
    /// The events of each endpoint that the test has not taken yet.
    events: [VecDeque<EndpointEvent>; 2],
}

impl Network {
    fn new(seed: u64) -> Self {
        Self::with(seed, EndpointSettings::default())
    }

    fn with(seed: u64, settings: EndpointSettings) -> Self {
        let addresses = match seed % 2 {
            0 => ["10.0.0.1:4791", "10.0.0.2:4791"],
            _ => ["[fd00::1]:4791", "[fd00::2]:50000"],
        };
        let mut ends = [Endpoint::new(settings.clone()), Endpoint::new(settings)];
        assert_eq!(ends[1].listen(PORT), Ok(PORT));
        Self {
            rng: Rng::with_seed(seed),
            now: Instant::now(),
            ends,
            addresses: addresses.map(|address| address.parse().unwrap()),
            flight: BTreeMap::new(),
            sent: 0,
            loss: 0.0,
            jitter: Duration::ZERO,
            marking: 0.0,
            events: Default::default(),
        }
    }

    /// Returns the path of an end to the other.
    fn path(&self, end: usize) -> Path {
        Path {
            local: self.addresses[end],
            remote: self.addresses[1 - end],
        }
    }

    /// Begins to connect from the first endpoint.
    fn connect(&mut self) -> ConnectionId {
        self.connect_with(PORT, PathMtu::Mtu1024, b"question")
    }

    fn connect_with(&mut self, port: u16, path_mtu: PathMtu, data: &'static [u8]) -> ConnectionId {
        let parameters = ConnectParameters {
            path: self.path(0),
            path_mtu,
            port,
            private_data: Bytes::from_static(data),
            receive: receive(1),
        };
        self.ends[0].connect(self.now, parameters).unwrap()
    }

    fn accept(&mut self, id: ConnectionId) {
        let parameters = AcceptParameters {
            private_data: Bytes::from_static(b"answer"),
            receive: receive(1),
            peer_serves_reads: None,
        };
        self.ends[1].accept(self.now, id, parameters).unwrap();
    }

    /// Returns an established connection: its identifier at each end.
    fn connected(&mut self) -> [ConnectionId; 2] {
        let active = self.connect();
        let passive = self.requested();
        self.accept(passive);
        let is_connected = |event: &EndpointEvent| matches!(event, EndpointEvent::Connected { .. });
        self.event(0, is_connected);
        self.event(1, is_connected);
        [active, passive]
    }

    /// Posts work and flushes it.
    fn post(&mut self, end: usize, id: ConnectionId, work: WorkRequest) {
        self.ends[end].post(id, work);
        self.ends[end].flush(id);
    }

    /// Returns the next request at the second endpoint.
    fn requested(&mut self) -> ConnectionId {
        let event = self.event(1, |event| matches!(event, EndpointEvent::Requested { .. }));
        let EndpointEvent::Requested { id, .. } = event else {
            unreachable!("the event is a request");
        };
        id
    }

    /// Lets time pass until an event of an endpoint is the wanted one.
    fn event(&mut self, end: usize, is_wanted: impl Fn(&EndpointEvent) -> bool) -> EndpointEvent {
        for _ in 0..100_000 {
            self.exchange();
            if let Some(at) = self.events[end].iter().position(&is_wanted) {
                return self.events[end].remove(at).unwrap();
            }
            assert!(self.step(), "nothing happens any more");
        }
        panic!("no such event");
    }

    /// Returns the completions of a connection until it has ended.
    fn until_ended(&mut self, end: usize, id: ConnectionId) -> Vec<Completion> {
        let mut completions = Vec::new();
        loop {
            match self.ends[end].poll_completion(id) {
                Some(Completion::Disconnected(how)) => {
                    completions.push(Completion::Disconnected(how));
                    return completions;
                }
                Some(completion) => completions.push(completion),
                None => assert!(self.step(), "nothing happens any more"),
            }
        }
    }

    /// Delivers the next datagram, or lets time pass until the next timeout. Returns false if there is neither.
    fn step(&mut self) -> bool {
        self.exchange();
        if let Some((time, _)) = self.flight.first_key_value().map(|(key, _)| *key) {
            let timer = self.ends.iter().filter_map(Endpoint::poll_timeout).min();
            if timer.is_none_or(|timer| time <= timer) {
                self.now = self.now.max(time);
                let (_, (end, path, datagram)) = self.flight.pop_first().unwrap();
                if self.marking > 0.0 && self.rng.f64() < self.marking {
                    self.ends[end].handle_marked_datagram(self.now, path, &datagram);
                } else {
                    self.ends[end].handle_datagram(self.now, path, &datagram);
                }
                return true;
            }
        }
        let Some(timer) = self.ends.iter().filter_map(Endpoint::poll_timeout).min() else {
            return false;
        };
        self.now = self.now.max(timer);
        for end in &mut self.ends {
            end.handle_timeout(self.now);
        }
        true
    }

    /// Sends what the endpoints have to send, and collects their events.
    fn exchange(&mut self) {
        let mut out = BytesMut::new();
        for end in 0..2 {
            loop {
                out.clear();
                let segments = self.rng.usize(1..64);
                let transmit = self.ends[end].poll_transmit(self.now, segments, &mut out);
                let Some(transmit) = transmit else { break };
                assert!(
                    out.len() <= 65_507 && out.len().div_ceil(transmit.segment_size) <= segments
                );
                for datagram in out.chunks(transmit.segment_size) {
                    self.send(1 - end, transmit.path, datagram);
                }
            }
            while let Some(event) = self.ends[end].poll_event() {
                self.events[end].push_back(event);
            }
        }
    }

    fn send(&mut self, to: usize, path: Path, datagram: &[u8]) {
        let copies = if self.jitter > Duration::ZERO && self.rng.u8(..50) == 0 {
            2
        } else {
            1
        };
        for _ in 0..copies {
            if self.rng.f64() < self.loss {
                continue;
            }
            self.sent += 1;
            let delay = self.jitter.mul_f64(self.rng.f64()) + Duration::from_micros(10);
            let path = Path {
                local: path.remote,
                remote: path.local,
            };
            let key = (self.now + delay, self.sent);
            self.flight.insert(key, (to, path, datagram.to_vec()));
        }
    }

    /// Lets time pass until both endpoints have forgotten every released connection.
    fn expect_unused(&mut self) {
        self.ends[1].unlisten(PORT);
        while self.step() {}
        for end in &self.ends {
            assert!(end.is_unused());
            assert!(end.timers.is_empty() && end.by_communication.is_empty());
            assert!(end.by_request.is_empty() && end.half_open == 0);
            assert!(end.by_remote.is_empty());
        }
    }
}

fn receive(count: u32) -> WorkRequest {
    WorkRequest::Receive {
        id: WorkId(0),
        length: 1 << 20,
        count,
    }
}

fn send(id: u64, payload: impl Into<Bytes>) -> WorkRequest {
    WorkRequest::Send {
        id: WorkId(id),
        header: Inline::new(),
        payload: payload.into(),
        invalidate: None,
    }
}

/// Returns how a connection ended, from its completions.
fn ending(completions: &[Completion]) -> Disconnect {
    match completions.last() {
        Some(Completion::Disconnected(how)) => how.clone(),
        other => panic!("{other:?}"),
    }
}
