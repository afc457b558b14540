//! Keepalives (3.1.6.2).

use std::time::Instant;

use smbdirect::wire::Flags;

use super::session::{established, respond};
use crate::{
    case::{Case, ClientTrial},
    outcome::{Verdict, require},
    peer::{ClientAction, PeerSettings},
    script::{Script, acceptance},
};

pub(super) const CASES: &[Case] = &[
    Case::client(
        "c34",
        "keepalive of the acceptor",
        "3.1.5.8",
        "asks for a response; an empty message without the flag answers (case 34)",
        of_the_acceptor,
    ),
    Case::client(
        "c35",
        "keepalive of the client",
        "3.1.6.2",
        "is silent for two KeepaliveIntervals; after each the client asks, and takes the answer \
         (case 35)",
        of_the_client,
    ),
    Case::client(
        "c36",
        "unanswered keepalive of the client",
        "3.1.6.2",
        "does not answer the client's keepalive; the client terminates (case 36)",
        unanswered,
    ),
];

//= SMBD-3.1.5.8-09 test
fn of_the_acceptor(trial: &mut ClientTrial<'_>) -> Verdict {
    let (mut script, request) = established(trial, ClientAction::Exchange(500))?;
    let reply = script.reply_to(&request, 500)?;
    script.is_answered()?;
    script.send_whole(&reply)?;
    trial.ends_well(script)
}

/// Returns an established connection, the client's request, and the time of the last message to
/// it.
fn patient(
    trial: &mut ClientTrial<'_>,
    action: ClientAction,
    intervals: u32,
) -> Verdict<(Script, Vec<u8>, Instant)> {
    let (script, (since, request)) =
        trial.accept_used(&PeerSettings::short_timers(), action, |script| {
            let since = script.now();
            respond(script, &acceptance())?;
            Ok((since, script.receive_request()?))
        })?;
    let facts = trial.facts();
    facts.allow(facts.timers.keepalive_interval * intervals)?;
    Ok((script, request, since))
}

//= SMBD-3.1.6.2-02 test
//= SMBD-3.1.5.1-09 test
fn of_the_client(trial: &mut ClientTrial<'_>) -> Verdict {
    let (mut script, request, mut since) = patient(trial, ClientAction::Exchange(500), 2)?;
    for flagged in [true, false] {
        script.expect_keepalive(since)?;
        since = script.now();
        if flagged {
            script.ask()?;
            let answer = script.next()?.header;
            require(
                answer.flags == Flags::empty(),
                "an answer without SMB_DIRECT_RESPONSE_REQUESTED",
                || format!("{answer:?}"),
            )?;
        } else {
            script.grant(1)?;
        }
    }
    let reply = script.reply_to(&request, 500)?;
    script.send_whole(&reply)?;
    trial.ends_well(script)
}

//= SMBD-3.1.6.2-01 test
//= SMBD-3.1.5.1-10 test
fn unanswered(trial: &mut ClientTrial<'_>) -> Verdict {
    let (mut script, _, since) = patient(trial, ClientAction::Send, 1)?;
    let timers = trial.facts().timers;
    script.expect_keepalive(since)?;
    let all = timers.keepalive_interval + timers.keepalive_response;
    script.expect_terminated_after(since, all)?;
    drop(script);
    trial.fails(&["the Idle Connection Timer, a keepalive was not answered"])
}
