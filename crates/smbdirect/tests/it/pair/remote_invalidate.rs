//! Send with Invalidate: the token arrives with its message and is invalid afterwards.

use smbdirect::{Access, rdma::work::Token};

use super::fabric::{Active, Faults, Pair, Passive, content, same_credits};

fn rights() -> Access {
    Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE
}

//= SMBD-3.1.5.1-11 test
//= SMBD-3.1.5.4-09 test
//= SMBD-3.1.5.8-15 test
//= SMBD-3.1.5.8-17 test
#[test]
fn the_token_arrives_with_messages_of_any_length() {
    let settings = same_credits(3);
    let mut pair = Pair::established(1, settings.clone(), settings, Faults::default());
    let mut tokens = Vec::new();
    for length in [0, 1, 1340, 1341, 50_000, 0] {
        let memory = pair.register(Active, 1, 100, rights());
        let token = Token(memory.token);
        pair.read(Passive, &[memory], 0, content(1, 100));
        pair.drive();
        pair.send(Passive, 10);
        pair.send_invalidating(Passive, length, Some(token));
        pair.send(Passive, 10);
        tokens.push(token);
        pair.drive();
        assert!(pair.active.memory.deregister(token).is_ok());
    }
    assert_eq!(pair.active.invalidated, tokens);
    pair.finish(Passive);
}

#[test]
fn an_invalidated_token_cannot_be_used() {
    let settings = same_credits(3);
    let mut pair = Pair::established(1, settings.clone(), settings, Faults::default());
    let memory = pair.register(Active, 1, 100, rights());
    pair.send_invalidating(Passive, 10, Some(Token(memory.token)));
    pair.read(Passive, &[memory], 0, content(1, 100));
    pair.run();
    assert_eq!(pair.passive.transfers_done, 0);
    assert!(pair.active.closed.is_some() && pair.passive.closed.is_some());
    pair.assert_all_returned();
}

//= SMBD-3.1.5.1-12 test
#[test]
fn a_provider_without_support_does_not_invalidate_the_token() {
    let settings = same_credits(3);
    let faults = Faults {
        send_with_invalidate: false,
        ..Faults::default()
    };
    let mut pair = Pair::established(1, settings.clone(), settings, faults);
    let memory = pair.register(Active, 1, 100, rights());
    pair.send_invalidating(Passive, 10, Some(Token(memory.token)));
    pair.read(Passive, &[memory], 0, content(1, 100));
    pair.drive();
    assert_eq!(pair.passive.transfers_done, 1);
    assert!(pair.active.invalidated.is_empty());
}
