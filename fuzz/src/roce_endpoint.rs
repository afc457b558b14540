//! Two RoCE endpoints that connect, send and disconnect, over a network that loses, repeats, reorders and damages
//! datagrams, and an attacker who changes packets and recomputes their ICRC.
//!
//! The target asserts that damaged packets are dropped, that every datagram to send is well-formed, that
//! no more requests are open than permitted, that the end of a connection is its last completion, and
//! that nothing is left after both ends have given all connections up.

use std::{
    net::{Ipv6Addr, SocketAddr},
    time::{Duration, Instant},
};

use bytes::BytesMut;
use smbdirect::rdma::{
    roce::{
        AcceptParameters, ConnectParameters, ConnectionId, Endpoint, EndpointEvent,
        EndpointSettings, Path, Rejection,
        cm::PathMtu,
        icrc::{self, DatagramHeader},
        packet::{ICRC_LENGTH, Packet},
    },
    work::{Completion, Inline, Teardown, WorkId, WorkRequest},
};

use crate::input::Input;

/// The port that both endpoints listen on.
const PORT: u16 = 445;
/// Maximum number of datagrams that are kept, of connections that one end begins, and of datagrams of one call.
/// More would only be slower.
const MAX_KEPT: usize = 48;
const MAX_BEGUN: usize = 6;
const MAX_SEGMENTS: usize = 4;
const MAX_HALF_OPEN: usize = 4;
/// Maximum number of steps until nothing is left at the end.
const MAX_LAST_STEPS: usize = 4000;

/// Runs the operations that `data` encodes.
pub fn roce_endpoint(data: &[u8]) {
    let mut input = Input::new(data);
    let mut network = Network::new();
    while !input.is_empty() {
        network.step(&mut input);
    }
    network.finish();
}

struct Network {
    now: Instant,
    ends: [End; 2],
    /// Datagrams with the end that sent them, oldest first.
    datagrams: Vec<(usize, Vec<u8>)>,
}

struct End {
    endpoint: Endpoint,
    address: SocketAddr,
    begun: usize,
    requests: Vec<ConnectionId>,
    connections: Vec<Owned>,
}

struct Owned {
    id: ConnectionId,
    has_ended: bool,
}

impl Network {
    fn new() -> Self {
        let end = |number: u16| {
            let settings = EndpointSettings {
                max_half_open: MAX_HALF_OPEN,
                ..EndpointSettings::default()
            };
            let mut endpoint = Endpoint::new(settings);
            assert_eq!(endpoint.listen(PORT), Ok(PORT));
            // The ICRC of IPv6 has no unknown part, so every damage is found.
            let ip = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number);
            End {
                endpoint,
                address: SocketAddr::new(ip.into(), 4791),
                begun: 0,
                requests: Vec::new(),
                connections: Vec::new(),
            }
        };
        Self {
            now: Instant::now(),
            ends: [end(1), end(2)],
            datagrams: Vec::new(),
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let end = input.up_to(1);
        match input.up_to(15) {
            0 => self.connect(end),
            1 | 2 => self.answer(end, input),
            3..=7 => self.deliver(input),
            8 => self.deliver_damaged(input),
            9 | 10 => self.forge(input),
            11 => self.post(end, input),
            12 => self.disconnect(end, input),
            13 => self.release(end, input),
            14 => self.wait(input),
            _ => self.unreachable(end),
        }
        self.settle();
    }

    /// Returns the path from an end to the other.
    fn path(&self, from: usize) -> Path {
        Path {
            local: self.ends[from].address,
            remote: self.ends[1 - from].address,
        }
    }

    fn connect(&mut self, end: usize) {
        if self.ends[end].begun >= MAX_BEGUN {
            return;
        }
        let parameters = ConnectParameters {
            path: self.path(end),
            path_mtu: PathMtu::Mtu256,
            port: PORT,
            private_data: vec![1; 20].into(),
            receive: receive(),
        };
        let id = self.ends[end].endpoint.connect(self.now, parameters);
        self.ends[end].begun += 1;
        self.ends[end].own(id.expect("there is room for it"));
    }

    /// Accepts or rejects a request of the peer.
    fn answer(&mut self, end: usize, input: &mut Input<'_>) {
        let now = self.now;
        let end = &mut self.ends[end];
        let Some(id) = end.requests.pop() else { return };
        match input.up_to(7) {
            0 => end.endpoint.reject(now, id, Rejection::Consumer),
            1 => {
                let rejection = Rejection::PathMtu(PathMtu::Mtu256);
                end.endpoint.reject(now, id, rejection);
            }
            _ => {
                let parameters = AcceptParameters {
                    private_data: vec![2; 20].into(),
                    receive: receive(),
                    peer_serves_reads: None,
                };
                // The request may have expired.
                if end.endpoint.accept(now, id, parameters).is_ok() {
                    end.own(id);
                }
            }
        }
    }

    /// Passes a datagram on. It may stay, so that it is repeated later, or be dropped.
    fn deliver(&mut self, input: &mut Input<'_>) {
        let Some(at) = self.choose(input) else { return };
        let (from, datagram) = match input.up_to(7) {
            0 => {
                self.datagrams.remove(at);
                return;
            }
            1 => self.datagrams[at].clone(),
            _ => self.datagrams.remove(at),
        };
        self.handle(from, &datagram);
    }

    /// Returns the place of a datagram, mostly of the oldest.
    fn choose(&self, input: &mut Input<'_>) -> Option<usize> {
        let at = usize::from(input.byte().saturating_sub(200));
        (!self.datagrams.is_empty()).then(|| at % self.datagrams.len())
    }

    fn deliver_damaged(&mut self, input: &mut Input<'_>) {
        let Some(at) = self.choose(input) else { return };
        let (from, mut datagram) = self.datagrams[at].clone();
        let place = usize::from(input.any::<u16>()) % datagram.len();
        datagram[place] ^= input.byte() | 1;
        // The one byte that the ICRC does not cover.
        if place != 4 {
            assert_eq!(self.handle(from, &datagram), None);
        }
    }

    /// Changes bytes of a datagram, and gives it a right ICRC.
    fn forge(&mut self, input: &mut Input<'_>) {
        let Some(at) = self.choose(input) else { return };
        let (from, datagram) = self.datagrams[at].clone();
        let mut forged = BytesMut::from(&datagram[..datagram.len() - ICRC_LENGTH]);
        for _ in 0..=input.up_to(3) {
            let place = usize::from(input.any::<u16>()) % forged.len();
            forged[place] = input.byte();
        }
        icrc::append(&self.header(from), &mut forged, 0);
        self.handle(from, &forged);
    }

    fn header(&self, from: usize) -> DatagramHeader {
        let Path { local, remote } = self.path(from);
        DatagramHeader::between(local, remote).expect("both are IPv6")
    }

    fn handle(&mut self, from: usize, datagram: &[u8]) -> Option<u16> {
        let path = self.path(1 - from);
        let endpoint = &mut self.ends[1 - from].endpoint;
        endpoint.handle_datagram(self.now, path, datagram)
    }

    fn post(&mut self, end: usize, input: &mut Input<'_>) {
        let end = &mut self.ends[end];
        let length = input.length(1000);
        let Some(owned) = end.connections.get(input.up_to(5)) else {
            return;
        };
        let header = Inline::build(|_| {});
        let send = WorkRequest::Send {
            id: WorkId(1),
            header,
            payload: vec![3; length].into(),
            invalidate: None,
        };
        if end.endpoint.room(owned.id).sends > 0 {
            end.endpoint.post(owned.id, send);
            end.endpoint.flush(owned.id);
        }
    }

    fn disconnect(&mut self, end: usize, input: &mut Input<'_>) {
        let end = &mut self.ends[end];
        let how = if input.is_odd() {
            Teardown::Abort
        } else {
            Teardown::Graceful
        };
        if let Some(owned) = end.connections.get(input.up_to(5)) {
            end.endpoint.disconnect(self.now, owned.id, how);
        }
    }

    fn release(&mut self, end: usize, input: &mut Input<'_>) {
        let end = &mut self.ends[end];
        let at = input.up_to(5);
        if at < end.connections.len() {
            let owned = end.connections.remove(at);
            end.endpoint.release(self.now, owned.id);
        }
    }

    fn wait(&mut self, input: &mut Input<'_>) {
        if input.is_odd() {
            self.now += input.milliseconds();
        } else {
            self.wait_for_timer();
        }
    }

    fn wait_for_timer(&mut self) {
        let timers = self
            .ends
            .iter()
            .filter_map(|end| end.endpoint.poll_timeout());
        self.now = self.now.max(timers.min().unwrap_or(self.now));
    }

    fn unreachable(&mut self, end: usize) {
        let peer = self.ends[1 - end].address.ip();
        self.ends[end].endpoint.handle_unreachable(self.now, peer);
    }

    /// Runs timers, takes what the ends send, and checks what they report.
    fn settle(&mut self) {
        for from in 0..2 {
            self.ends[from].endpoint.handle_timeout(self.now);
            let header = self.header(from);
            let end = &mut self.ends[from];
            let mut out = BytesMut::new();
            while let Some(sent) = end.endpoint.poll_transmit(self.now, MAX_SEGMENTS, &mut out) {
                assert_eq!(sent.path.local, end.address);
                assert!(out.len().div_ceil(sent.segment_size) <= MAX_SEGMENTS);
                for datagram in out.chunks(sent.segment_size) {
                    assert!(icrc::verify(&header, datagram));
                    assert!(Packet::split(datagram).is_ok());
                    self.datagrams.push((from, datagram.to_vec()));
                }
                out.clear();
            }
            end.check();
        }
        let surplus = self.datagrams.len().saturating_sub(MAX_KEPT);
        self.datagrams.drain(..surplus);
    }

    /// Gives everything up, after which nothing is left.
    fn finish(&mut self) {
        for end in &mut self.ends {
            for id in end.requests.drain(..) {
                end.endpoint.release(self.now, id);
            }
            for owned in end.connections.drain(..) {
                end.endpoint.release(self.now, owned.id);
            }
            end.endpoint.unlisten(PORT);
        }
        for _ in 0..MAX_LAST_STEPS {
            self.settle();
            if self.ends.iter().all(|end| end.endpoint.is_unused()) {
                return;
            }
            if self.datagrams.is_empty() {
                self.wait_for_timer();
            } else {
                let (from, datagram) = self.datagrams.remove(0);
                self.handle(from, &datagram);
                self.now += Duration::from_micros(10);
            }
        }
        panic!("a connection is left");
    }
}

impl End {
    fn own(&mut self, id: ConnectionId) {
        self.connections.push(Owned {
            id,
            has_ended: false,
        });
    }

    fn check(&mut self) {
        while let Some(event) = self.endpoint.poll_event() {
            match event {
                EndpointEvent::Requested { id, port, .. } => {
                    assert_eq!(port, PORT);
                    self.requests.push(id);
                }
                EndpointEvent::Failed { id, .. } => {
                    self.connections.retain(|owned| owned.id != id);
                    self.requests.retain(|request| *request != id);
                }
                EndpointEvent::Connected { .. } | EndpointEvent::Ready { .. } => {}
            }
        }
        assert!(self.requests.len() <= MAX_HALF_OPEN);
        for owned in &mut self.connections {
            while let Some(completion) = self.endpoint.poll_completion(owned.id) {
                assert!(!owned.has_ended, "{completion:?} after the end");
                owned.has_ended = matches!(completion, Completion::Disconnected(_));
            }
        }
    }
}

/// Returns the receives to post before the peer can send.
fn receive() -> WorkRequest {
    WorkRequest::Receive {
        id: WorkId(1),
        length: 1000,
        count: 8,
    }
}
