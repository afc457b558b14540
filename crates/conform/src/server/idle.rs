//! SmbdDataTransfer: cases 34 to 36, about the Idle Connection Timer.

use crate::{
    case::{Case, Group, ServerTrial},
    outcome::Verdict,
    peer::{PeerFacts, PeerSettings},
};

pub(super) const CASES: &[Case] = &[
    Group::Microsoft.case(
        "m34",
        "SmbdDataTransfer_IdleConnection_Client",
        "3.1.5.8",
        "asks for a response without a grant; an empty message without the flag answers, then \
         there is silence",
        idle_connection_client,
    ),
    Group::Microsoft.case(
        "m34b",
        "SmbdDataTransfer_IdleConnection_Client, shortly before the timer",
        "3.1.5.8",
        "asks for a response shortly before the server's KeepaliveInterval ends; it is answered",
        idle_connection_client_late,
    ),
    Group::Microsoft.case(
        "m35",
        "SmbdDataTransfer_IdleConnection_Server",
        "3.1.6.2",
        "is silent for three KeepaliveIntervals; after each the server sends a keepalive and takes the answer",
        idle_connection_server,
    ),
    Group::Microsoft.case(
        "m36",
        "SmbdDataTransfer_IdleConnection_Server_Timeout",
        "3.1.6.2",
        "does not answer the server's keepalive; the server terminates the connection",
        idle_connection_server_timeout,
    ),
];

/// Returns the facts about the server, if the case may wait for `intervals` keepalives.
fn patient(trial: &mut ServerTrial<'_>, intervals: u32) -> Verdict<PeerFacts> {
    trial.prepare(&PeerSettings::short_timers())?;
    let facts = trial.facts();
    facts.allow(facts.timers.keepalive_interval * intervals)?;
    Ok(facts)
}

/// Asks for a response, and checks the answer and the silence after it.
fn idle_connection_client(trial: &mut ServerTrial<'_>) -> Verdict {
    let mut script = trial.session()?;
    script.works()?;
    script.is_answered()?;
    script.works()?;
    script.done()
}

fn idle_connection_client_late(trial: &mut ServerTrial<'_>) -> Verdict {
    let facts = patient(trial, 1)?;
    let mut script = trial.session()?;
    script.works()?;
    script.expect_silence(facts.almost(facts.timers.keepalive_interval))?;
    script.is_answered()?;
    script.works()?;
    script.done()
}

//= SMBD-3.1.6.2-02 test
//= SMBD-3.1.5.1-09 test
//= SMBD-3.1.5.8-09 test
fn idle_connection_server(trial: &mut ServerTrial<'_>) -> Verdict {
    patient(trial, 3)?;
    let mut script = trial.session()?;
    let mut since = script.now();
    script.works()?;
    for _ in 0..2 {
        script.expect_keepalive(since)?;
        // The answer of the suite is a keepalive itself, as the specification literally requires.
        since = script.now();
        script.ask()?;
        script.expect_answer_to_keepalive()?;
    }
    // An answer without the flag is accepted too.
    script.expect_keepalive(since)?;
    script.grant(1)?;
    script.works()?;
    script.done()
}

//= SMBD-3.1.6.2-01 test
//= SMBD-3.1.5.1-10 test
fn idle_connection_server_timeout(trial: &mut ServerTrial<'_>) -> Verdict {
    let facts = patient(trial, 1)?;
    let timers = facts.timers;
    let mut script = trial.session()?;
    let since = script.now();
    script.works()?;
    script.expect_keepalive(since)?;
    let all = timers.keepalive_interval + timers.keepalive_response;
    script.expect_terminated_after(since, all)?;
    trial.ended_because(&["the Idle Connection Timer, a keepalive was not answered"])?;
    trial.serves()
}
