//! Credits (3.1.5.8, 3.1.5.9).

use smbdirect::wire::NegotiateResponse;

use super::session::{established, header_is_refused, respond, segment_is_taken};
use crate::{
    case::{Case, ClientTrial},
    outcome::{Verdict, require, skip},
    peer::{ClientAction, PeerSettings},
    script::{Transfer, acceptance, acceptance_with},
};

pub(super) const CASES: &[Case] = &[
    Case::client(
        "c42",
        "Data Transfer that requests nothing",
        "3.1.5.8",
        "sends CreditsRequested 0, which ends the connection, and 1, which does not (case 42)",
        requests_nothing,
    ),
    Case::client(
        "c43",
        "credits that overflow",
        "3.1.5.8",
        "grants 65535 credits on top of those that the client holds; it ends at most the connection",
        overflow,
    ),
    Case::client(
        "c44",
        "message without a credit",
        "3.1.5.1",
        "sends one message more than the client has granted; it ends at most the connection",
        without_credit,
    ),
    Case::client(
        "c37",
        "one credit each way",
        "3.1.5.9",
        "answers with one credit in each direction; the answer is taken (case 37)",
        one_credit,
    ),
    Case::client(
        "c39",
        "all credits of the acceptor",
        "3.1.5.8",
        "spends all credits on segments of the answer; the client grants new ones by an empty \
         message (case 39)",
        all_credits,
    ),
    Case::client(
        "c40",
        "no more credits",
        "3.1.5.1",
        "grants fewer credits than the request has segments, and none after them; the last credit \
         carries a grant, and the client terminates (cases 40, 41)",
        no_more_credits,
    ),
];

//= SMBD-3.1.5.8-02 test
fn requests_nothing(trial: &mut ClientTrial<'_>) -> Verdict {
    for payload in [0, 500] {
        let reason = "Data Transfer with CreditsRequested 0";
        header_is_refused(
            trial,
            payload,
            |header| header.credits_requested = 0,
            reason,
        )?;
    }
    // One credit is enough.
    segment_is_taken(trial, |bytes| bytes[..2].copy_from_slice(&[1, 0]))
}

//= SMBD-3.1.5.8-10 test
//= SMBD-3.1.5.8-11 test
fn overflow(trial: &mut ClientTrial<'_>) -> Verdict {
    let (mut script, _) = established(trial, ClientAction::Send)?;
    // No receives are posted for these credits, because the client ends the connection.
    script.overgrant(65_535)?;
    if !trial.facts().is_strict() {
        // The specification does not say that a receiver detects it.
        return script.drain();
    }
    trial.terminated(script, "CreditsGranted 65535 on top of")
}

/// The client has no credit itself to grant more. If it has not posted another receive yet, the
/// RDMA provider detects the message.
//= SMBD-3.1.5.1-04 test
//= SMBD-3.1.5.8-06 test
fn without_credit(trial: &mut ClientTrial<'_>) -> Verdict {
    let response = NegotiateResponse {
        credits_requested: 4,
        credits_granted: 1,
        ..acceptance()
    };
    let (mut script, _) =
        trial.accept_used(&PeerSettings::default(), ClientAction::Send, |script| {
            respond(script, &response)
        })?;
    script.next()?;
    while script.send_credits > 0 {
        script.grant(0)?;
    }
    script.expect_nothing()?;
    script.send_without_credit()?;
    if !trial.facts().is_strict() {
        return script.drain();
    }
    script.expect_terminated()?;
    drop(script);
    trial.fails(&["held no send credit", "a Send without a posted receive"])
}

//= SMBD-3.1.5.9-03 test
fn one_credit(trial: &mut ClientTrial<'_>) -> Verdict {
    let requested = PeerSettings::credits(1);
    let response = NegotiateResponse {
        credits_requested: 1,
        credits_granted: 1,
        ..acceptance()
    };
    let (mut script, request) =
        trial.accept_used(&requested, ClientAction::Exchange(65_536), |script| {
            script.receive_credit_max = 1;
            respond(script, &response)?;
            script.receive_request()
        })?;
    let reply = script.reply_to(&request, 65_536)?;
    script.send(&reply, 1000)?;
    trial.ends_well(script)
}

//= SMBD-3.1.5.9-09 test
fn all_credits(trial: &mut ClientTrial<'_>) -> Verdict {
    let response = acceptance_with(|response| response.credits_requested = 10);
    let (mut script, request) = trial.accept_used(
        &PeerSettings::default(),
        ClientAction::Exchange(65_536),
        |script| {
            respond(script, &response)?;
            script.receive_request()
        },
    )?;
    let credits = script.send_credits as usize;
    let reply = script.long_reply_to(&request, credits + 1)?;
    // The last byte of the answer has to wait for a credit.
    let size = ((reply.len() - 1) / credits).min(1000);
    let (first, rest) = reply.split_at(credits * size);
    let mut left = reply.len();
    for payload in first.chunks(size) {
        left -= payload.len();
        script.send_segment(payload, left)?;
    }
    let Transfer { header, .. } = script.next()?;
    require(
        header.credits_granted > 0 && header.data_length == 0,
        "an empty message with CreditsGranted above 0",
        || format!("{header:?}"),
    )?;
    script.send(rest, 1000)?;
    trial.ends_well(script)
}

//= SMBD-3.1.5.1-04 test
//= SMBD-3.1.5.1-06 test
//= SMBD-WIN-CGT-01 test
fn no_more_credits(trial: &mut ClientTrial<'_>) -> Verdict {
    let requested = PeerSettings::short_timers();
    let is_strict = trial.facts().is_strict();
    // The shortest receives, so that a short request has several segments too.
    let response = NegotiateResponse {
        credits_granted: if is_strict { 10 } else { 1 },
        max_receive_size: 128,
        ..acceptance()
    };
    let (mut script, since) =
        trial.accept_used(&requested, ClientAction::Exchange(65_536), |script| {
            respond(script, &response)?;
            Ok(script.now())
        })?;
    let facts = trial.facts();
    let mut left = None;
    while script.granted > 0 {
        left = Some(script.next()?.header.remaining_data_length);
    }
    if left == Some(0) {
        return skip("the client's request fits into one segment of 104 bytes");
    }
    if let Some(timeout) = facts.timers.credit_grant {
        script.expect_terminated_after(since, timeout)?;
        drop(script);
        return trial.fails(&["the Send Credit Grant Timer"]);
    }
    script.expect_nothing()?;
    let most = facts.timers.keepalive_interval + facts.timers.keepalive_response;
    facts.allow(most)?;
    script.expect_terminated_within(most + facts.late)
}
