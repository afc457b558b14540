//! Short queues, late completions and slow consumers delay messages and have no other effect.

use std::time::Duration;

use super::fabric::{Active, Faults, Pair, Passive, Random, Who, same_credits};

fn flood(seed: u64, number: u16, faults: Faults) {
    let settings = same_credits(number);
    let mut pair = Pair::established(seed, settings.clone(), settings, faults);
    for length in [1, 3000, 1340, 0, 10_000, 7] {
        for who in Who::BOTH {
            pair.send(who, length);
        }
    }
    pair.drive();
    for who in Who::BOTH {
        assert_eq!(pair.end(who).messages_received, 5);
        assert_eq!(pair.end(who).messages_sent, 6);
    }
    pair.finish(Passive);
}

#[test]
fn a_send_queue_of_one_delivers_all_messages() {
    for number in [1, 2, 20] {
        let faults = Faults {
            send_queue: 1,
            completion_delay: [500, 0, 0, 0],
            ..Faults::default()
        };
        flood(1, number, faults);
    }
}

/// Linux granted credits for receives whose completions it had not seen yet.
#[test]
fn completions_of_different_queues_may_be_reordered() {
    for seed in 0..60 {
        for delays in [[0, 500, 0, 0], [500, 0, 0, 0], [300; 4]] {
            let faults = Faults {
                completion_delay: delays,
                lazy: seed % 2 == 0,
                ..Faults::default()
            };
            flood(seed, 1 + (seed % 4) as u16, faults);
        }
    }
}

#[test]
fn changing_room_delivers_all_messages() {
    for seed in 0..60 {
        let faults = Faults {
            lean_rooms: true,
            lazy: true,
            completion_delay: [50; 4],
            ..Faults::default()
        };
        flood(seed, 1 + (seed % 5) as u16, faults);
    }
}

#[test]
fn fewer_receives_than_requested_credits_deliver_all_messages() {
    for receive_queue in 2..=6 {
        let faults = Faults {
            receive_queue,
            ..Faults::default()
        };
        flood(1, 255, faults.clone());
        flood(1, receive_queue as u16, faults);
    }
}

//= SMBD-3.1.5.9-09 test
#[test]
fn messages_wait_for_a_slow_consumer() {
    for number in [1, 2, 3, 10] {
        for stalled in Who::BOTH {
            let settings = same_credits(number);
            let mut pair = Pair::established(1, settings.clone(), settings, Faults::default());
            pair.fill_buffer(stalled, Duration::from_secs(4));
            for _ in 0..30 {
                pair.send(Active, 2000);
                pair.send(Passive, 2000);
            }
            pair.drive();
            assert_eq!(pair.active.messages_received, 30);
            assert_eq!(pair.passive.messages_received, 30);
        }
    }
}

/// Applications pause for a minute, at one end or at both, while senders submit each message when they are ready.
//= SMBD-3.1.5.9-11 test
//= SMBD-3.1.5.1-15 test
#[test]
fn a_sender_that_waits_until_it_is_ready_loses_nothing_to_a_pause() {
    const MINUTE: Duration = Duration::from_secs(60);
    const MESSAGES: usize = 12;
    for seed in 0..150 {
        let mut random = Random::new(seed);
        let settings = same_credits(random.pick(&[1, 2, 3, 10, 255]));
        let faults = Faults {
            lazy: random.one_in(2),
            completion_delay: [random.up_to(100); 4],
            ..Faults::default()
        };
        let mut pair = Pair::established(seed, settings.clone(), settings.clone(), faults);
        let paused = [&Who::BOTH[..], &[Active], &[Passive]][(seed % 3) as usize];
        let begin = random.up_to(2000);
        let (mut submitted, mut before) = ([0; 2], [0; 2]);
        for step in 0.. {
            if step == begin {
                for &who in paused {
                    pair.fill_buffer(who, MINUTE);
                    let granted = usize::from(pair.end(who).engine.credits().granted);
                    let expected = granted * settings.max_receive_size as usize;
                    before[who as usize] = pair.end(who).bytes_received + expected;
                }
            }
            for who in Who::BOTH {
                if submitted[who as usize] < MESSAGES && pair.end(who).engine.is_ready() {
                    submitted[who as usize] += 1;
                    let lengths = [1, 1340, 1341, 5000, 100_000, 400_000, 1 << 20];
                    pair.send(who, random.pick(&lengths));
                }
                if step > begin && pair.now - pair.start < MINUTE && paused.contains(&who) {
                    let limit =
                        before[who as usize] + settings.max_fragmented_receive_size as usize;
                    assert!(pair.end(who).bytes_received <= limit, "seed {seed}");
                }
            }
            if submitted == [MESSAGES; 2] && step > begin {
                break;
            }
            pair.step();
            assert!(pair.is_open(), "seed {seed}: {pair:?}");
        }
        pair.drive();
        assert!(pair.is_open(), "seed {seed}");
        for who in Who::BOTH {
            assert_eq!(pair.end(who).messages_received, MESSAGES, "seed {seed}");
        }
    }
}

#[test]
fn two_slow_consumers_do_not_block_each_other() {
    for number in [1, 2, 3, 10] {
        let settings = same_credits(number);
        let mut pair = Pair::established(1, settings.clone(), settings, Faults::default());
        pair.fill_buffer(Active, Duration::from_secs(2));
        pair.fill_buffer(Passive, Duration::from_secs(4));
        for _ in 0..30 {
            pair.send(Active, 2000);
            pair.send(Passive, 2000);
        }
        pair.drive();
    }
}
