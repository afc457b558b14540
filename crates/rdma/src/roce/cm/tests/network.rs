//! Both ends of a communication over a network that loses, repeats and reorders messages.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use fastrand::Rng;

use super::{
    ACTIVE, CommunicationEvent, Mad, Message, Output, PASSIVE, PrivateData, RejectReason, active,
    passive, reply,
};

/// Both ends, and the messages in flight by their time of arrival.
struct Network {
    rng: Rng,
    loss: f64,
    flight: BTreeMap<(Duration, u32), (u32, Message)>,
    count: u32,
}

impl Network {
    fn send(&mut self, time: Duration, from: u32, output: Output) -> Option<CommunicationEvent> {
        let copies = if self.rng.u8(..10) == 0 { 2 } else { 1 };
        if let Some(mad) = output.message {
            let again = Mad::decode(&mad.encode()).unwrap();
            assert_eq!(again, mad);
            for _ in 0..copies {
                if self.rng.f64() < self.loss {
                    continue;
                }
                let delay = Duration::from_micros(self.rng.u64(10..400_000));
                self.count += 1;
                let message = mad.message.clone();
                self.flight
                    .insert((time + delay, self.count), (from, message));
            }
        }
        output.event
    }
}

/// Connects and disconnects once over a network that loses, repeats and reorders messages. Returns
/// whether both ends were connected.
fn connect_and_disconnect(seed: u64, loss: f64) -> bool {
    let start = Instant::now();
    let mut network = Network {
        rng: Rng::with_seed(seed),
        loss,
        flight: BTreeMap::new(),
        count: 0,
    };
    let (one, output) = active(start);
    let mut ends = BTreeMap::from([(ACTIVE, one)]);
    network.send(Duration::ZERO, ACTIVE, output);
    let (mut established, mut ended) = (Vec::new(), Vec::new());
    let accepts = network.rng.u8(..8) > 0;
    let mut plans: Vec<(Duration, u32)> = Vec::new();
    let mut events: Vec<(Duration, u32, CommunicationEvent)> = Vec::new();
    let mut time = Duration::ZERO;
    loop {
        for (time, id, event) in std::mem::take(&mut events) {
            let plan = time + Duration::from_millis(network.rng.u64(..3000));
            match event {
                CommunicationEvent::Accepted(_) => {
                    let output = ends.get_mut(&id).unwrap().confirm();
                    network.send(time, id, output);
                    established.push(id);
                    plans.push((plan, id));
                }
                CommunicationEvent::Established => {
                    established.push(id);
                    plans.push((plan, id));
                }
                CommunicationEvent::Failed(_)
                | CommunicationEvent::Disconnected(_)
                | CommunicationEvent::DisconnectFinished => ended.push(id),
            }
        }
        // The next step: the arrival of a message, a timer, or a planned action of an end.
        let arrival = network.flight.first_key_value().map(|(key, _)| key.0);
        let timer = ends
            .iter()
            .filter_map(|(id, end)| Some((end.poll_timeout()? - start, *id)))
            .min();
        let plan = plans.iter().min().copied();
        let next = [arrival, timer.map(|timer| timer.0), plan.map(|plan| plan.0)];
        let Some(next) = next.into_iter().flatten().min() else {
            break;
        };
        time = time.max(next);
        let now = start + time;
        let mut apply = |id: u32, output: Output, network: &mut Network| {
            let event = network.send(time, id, output);
            events.extend(event.map(|event| (time, id, event)));
        };
        if arrival == Some(next) {
            let (_, (from, message)) = network.flight.pop_first().unwrap();
            let to = if from == ACTIVE { PASSIVE } else { ACTIVE };
            match (ends.get_mut(&to), &message) {
                (Some(end), _) => apply(to, end.handle_message(now, message), &mut network),
                (None, Message::ConnectRequest(_)) => {
                    ends.insert(PASSIVE, passive());
                    let delay = Duration::from_millis(network.rng.u64(..2000));
                    plans.push((time + delay, PASSIVE));
                }
                _ => {}
            }
        } else if plan.is_some_and(|plan| plan.0 == next) {
            let at = plans.iter().position(|one| Some(*one) == plan).unwrap();
            let (_, id) = plans.swap_remove(at);
            let end = ends.get_mut(&id).unwrap();
            let output = match (end.awaits_answer(), accepts) {
                (true, true) => end.accept(now, reply()),
                (true, false) => {
                    let none = PrivateData::default();
                    end.reject(now, RejectReason::CONSUMER, &[], none)
                }
                _ => end.disconnect(now, PrivateData::default()),
            };
            apply(id, output, &mut network);
        } else if let Some((_, id)) = timer {
            let output = ends.get_mut(&id).unwrap().handle_timeout(now);
            apply(id, output, &mut network);
        }
        assert!(network.count < 2000, "seed {seed}: no end");
    }
    assert!(
        ends.values()
            .all(|end| end.is_closed() || end.awaits_answer()),
        "seed {seed}"
    );
    for id in [ACTIVE, PASSIVE] {
        let count = |ids: &[u32]| ids.iter().filter(|one| **one == id).count();
        assert!(
            count(&established) <= 1 && count(&ended) <= 1,
            "seed {seed}"
        );
        assert!(
            count(&established) <= count(&ended),
            "seed {seed}: {established:?} {ended:?}"
        );
    }
    assert!(accepts || established.is_empty(), "seed {seed}");
    !accepts || established.len() == 2
}

//= ROCE-12.9-01 test
#[test]
fn both_ends_agree_over_a_lossy_network() {
    // A DREQ can overtake the RTU, and then one end was never connected.
    for (loss, least) in [
        (0.0, 0.97),
        (0.05, 0.97),
        (0.2, 0.95),
        (0.5, 0.8),
        (0.9, 0.0),
    ] {
        let agreed = (0..400)
            .filter(|&seed| connect_and_disconnect(seed, loss))
            .count();
        assert!(
            agreed as f64 >= least * 400.0,
            "{agreed} of 400 with loss {loss}"
        );
    }
}
