//! SmbdDataTransfer: cases 34 to 36, about the Idle Connection Timer.

use smbdirect::wire::Flags;

use crate::{
    case::{Case, Group, ServerTrial},
    outcome::{Verdict, require},
    peer::{PeerFacts, PeerSettings},
    script::{Script, Transfer},
};

pub(super) const CASES: &[Case] = &[
    Case::server(
        ("m34", Group::Microsoft),
        "SmbdDataTransfer_IdleConnection_Client",
        "3.1.5.8",
        "asks for a response without a grant; an empty message without the flag answers, then \
         there is silence",
        idle_connection_client,
    ),
    Case::server(
        ("m34b", Group::Microsoft),
        "SmbdDataTransfer_IdleConnection_Client, shortly before the timer",
        "3.1.5.8",
        "asks for a response shortly before the server's KeepaliveInterval ends; it is answered",
        idle_connection_client_late,
    ),
    Case::server(
        ("m35", Group::Microsoft),
        "SmbdDataTransfer_IdleConnection_Server",
        "3.1.6.2",
        "is silent for three KeepaliveIntervals; after each the server sends a keepalive and takes the answer",
        idle_connection_server,
    ),
    Case::server(
        ("m36", Group::Microsoft),
        "SmbdDataTransfer_IdleConnection_Server_Timeout",
        "3.1.6.2",
        "does not answer the server's keepalive; the server terminates the connection",
        idle_connection_server_timeout,
    ),
];

fn short_timers() -> PeerSettings {
    PeerSettings {
        short_timers: true,
        ..PeerSettings::default()
    }
}

/// Returns the facts about the server, if the case may wait for `intervals` keepalives.
fn patient(trial: &mut ServerTrial<'_>, intervals: u32) -> Verdict<PeerFacts> {
    trial.prepare(&short_timers())?;
    let facts = trial.facts();
    facts.allow(facts.timers.keepalive_interval * intervals)?;
    Ok(facts)
}

/// Asks for a response, and checks the answer and the silence after it.
//= SMBD-3.1.5.8-09 test
//= SMBD-3.1.5.5-02 test
fn is_answered(script: &mut Script) -> Verdict {
    let lacked = script.send_credits < u32::from(script.credits_requested);
    script.ask()?;
    let Transfer { header, .. } = script.next()?;
    let seen = || format!("{header:?}");
    require(
        header.flags == Flags::empty() && header.data_length == 0,
        "an empty message without SMB_DIRECT_RESPONSE_REQUESTED",
        seen,
    )?;
    require(
        header.credits_granted > 0 || !lacked,
        "CreditsGranted above 0 in the answer",
        seen,
    )?;
    script.expect_nothing()
}

fn idle_connection_client(trial: &mut ServerTrial<'_>) -> Verdict {
    let mut script = trial.session()?;
    script.works()?;
    is_answered(&mut script)?;
    script.works()?;
    script.disconnect();
    Ok(())
}

fn idle_connection_client_late(trial: &mut ServerTrial<'_>) -> Verdict {
    let facts = patient(trial, 1)?;
    let mut script = trial.session()?;
    script.works()?;
    script.expect_silence(facts.almost(facts.timers.keepalive_interval))?;
    is_answered(&mut script)?;
    script.works()?;
    script.disconnect();
    Ok(())
}

/// Waits for the keepalive that is due since the time `since`.
fn keepalive(script: &mut Script, since: std::time::Instant) -> Verdict {
    let facts = script.facts().clone();
    let interval = facts.timers.keepalive_interval;
    let Transfer { header, .. } = script.next_within(interval + facts.prompt)?;
    facts.check_took("a keepalive", script.now() - since, interval)?;
    require(
        header.flags == Flags::RESPONSE_REQUESTED && header.data_length == 0,
        "an empty message with SMB_DIRECT_RESPONSE_REQUESTED",
        || format!("{header:?}"),
    )
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
        keepalive(&mut script, since)?;
        // The answer of the suite is a keepalive itself, as the specification literally requires.
        since = script.now();
        script.ask()?;
        let answer = script.next()?.header;
        require(
            answer.flags == Flags::empty() && answer.data_length == 0,
            "an empty message without SMB_DIRECT_RESPONSE_REQUESTED",
            || format!("{answer:?}"),
        )?;
    }
    // An answer without the flag is accepted too.
    keepalive(&mut script, since)?;
    script.grant(1)?;
    script.works()?;
    script.disconnect();
    Ok(())
}

//= SMBD-3.1.6.2-01 test
//= SMBD-3.1.5.1-10 test
fn idle_connection_server_timeout(trial: &mut ServerTrial<'_>) -> Verdict {
    let facts = patient(trial, 1)?;
    let timers = facts.timers;
    let mut script = trial.session()?;
    let since = script.now();
    script.works()?;
    keepalive(&mut script, since)?;
    let all = timers.keepalive_interval + timers.keepalive_response;
    script.expect_terminated_after(since, all)?;
    trial.ended_because(&["the Idle Connection Timer, a keepalive was not answered"])?;
    trial.serves()
}
