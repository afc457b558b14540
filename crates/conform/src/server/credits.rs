//! SmbdCreditMgmt: cases 37 to 42.

use smbdirect::wire::DataTransfer;

use super::transfer::{MODERATE_BYTES, header_is_refused};
use crate::{
    case::{Case, Group, ServerTrial},
    outcome::{Stop, Verdict, require, skip},
    peer::PeerSettings,
    script::{Script, Transfer, padded, proposal_with},
};

pub(super) const CASES: &[Case] = &[
    Group::Microsoft.case(
        "m37",
        "BVT_SmbdCreditMgmt_OperationWithMinimumCredits",
        "3.1.5.9",
        "sends 65536 bytes with one credit in each direction; they are answered",
        minimum_credits,
    ),
    Group::Microsoft.case(
        "m38",
        "SmbdCreditMgmt_OperationWithLimitedCredits",
        "3.1.5.9",
        "sends 65536 bytes with ten credits in each direction; they are answered",
        limited_credits,
    ),
    Group::Microsoft.case(
        "m39",
        "SmbdCreditMgmt_ConsumeAllSendCredits",
        "3.1.5.8",
        "spends all credits on empty messages, and on segments; the server grants new ones by an \
         empty message",
        consume_all_send_credits,
    ),
    Group::Microsoft.case(
        "m40",
        "SmbdCreditMgmt_ConsumeAllReceiveCredits",
        "3.1.5.1",
        "grants fewer credits than the answer has segments; the server waits for more, and its \
         last credit carries a grant",
        consume_all_receive_credits,
    ),
    Group::Microsoft.case(
        "m41",
        "SmbdCreditMgmt_ConsumeAllCreditServer_Timeout",
        "3.1.6.2",
        "never grants the credits for the rest of the answer; the server terminates the connection",
        consume_all_credit_server_timeout,
    ),
    Group::Microsoft.case(
        "m42",
        "SmbdCreditMgmt_NegativeParameter_CreditRequested",
        "3.1.5.8",
        "sends Data Transfers with CreditsRequested 0; the server terminates the connection",
        credit_requested,
    ),
];

/// Returns a connection whose ends request and grant at most this number of credits.
fn with_credits(trial: &mut ServerTrial<'_>, credits: u16) -> Verdict<Script> {
    trial.prepare(&PeerSettings::credits(credits))?;
    let request = proposal_with(|request| request.credits_requested = credits);
    let mut script = trial.connect()?;
    script.receive_credit_max = credits.into();
    script.negotiate(&request)?;
    Ok(script)
}

fn operation(trial: &mut ServerTrial<'_>, credits: u16) -> Verdict {
    let mut script = with_credits(trial, credits)?;
    script.exchange(MODERATE_BYTES, 1000)?;
    script.done()
}

//= SMBD-3.1.5.9-03 test
fn minimum_credits(trial: &mut ServerTrial<'_>) -> Verdict {
    operation(trial, 1)
}

//= SMBD-3.1.5.9-04 test
fn limited_credits(trial: &mut ServerTrial<'_>) -> Verdict {
    operation(trial, 10)
}

/// Takes the message by which a server without anything to send grants credits.
//= SMBD-3.1.5.9-09 test
//= SMBD-3.1.5.8-07 test
fn expect_grant(script: &mut Script) -> Verdict {
    let Transfer { header, .. } = script.next()?;
    require(
        header.credits_granted > 0 && header.data_length == 0,
        "an empty message with CreditsGranted above 0",
        || format!("{header:?}"),
    )
}

fn consume_all_send_credits(trial: &mut ServerTrial<'_>) -> Verdict {
    let mut script = with_credits(trial, 10)?;
    while script.send_credits > 0 {
        script.grant(1)?;
    }
    expect_grant(&mut script)?;
    script.works()?;
    script.disconnect();

    let mut script = with_credits(trial, 10)?;
    let request = script.long_request(20_000);
    let mut left = request.len();
    let mut chunks = request.chunks(1000);
    while script.send_credits > 0 {
        let payload = chunks.next().expect("a server grants no more than ten");
        left -= payload.len();
        script.send_segment(payload, left)?;
    }
    expect_grant(&mut script)?;
    for payload in chunks {
        left -= payload.len();
        script.send_segment(payload, left)?;
    }
    script.expect_answer(&request)?;
    script.done()
}

/// Bytes of payload in a segment for a receive of 128 bytes.
const SMALL_PAYLOAD: usize = 104;

/// Returns a client whose receives hold 104 bytes of payload.
fn with_small_receives(trial: &mut ServerTrial<'_>) -> Verdict<Script> {
    let request = proposal_with(|request| request.max_receive_size = 128);
    trial.negotiated(&request)
}

/// Returns the length of the answer to a request of 1300 bytes, or to the shortest one.
fn answer_length(trial: &mut ServerTrial<'_>) -> Verdict<usize> {
    let mut script = with_small_receives(trial)?;
    let request = script.request(1300);
    script.send_whole(&request)?;
    let answer = script.receive()?;
    script.check_answer(&request, &answer)?;
    script.disconnect();
    Script::require_longer(answer.len(), SMALL_PAYLOAD)?;
    Ok(answer.len())
}

/// Sends a request with fewer credits than its answer of `length` bytes has segments, and receives
/// the segments that the server sends on them.
fn first_segments(script: &mut Script, request: &[u8], length: usize) -> Verdict<Vec<u8>> {
    let credits = (length.div_ceil(SMALL_PAYLOAD) - 1).min(10) as u16;
    let header = DataTransfer {
        data_offset: 24,
        data_length: request.len() as u32,
        ..script.empty(credits)
    };
    script.transfer(&header, &padded(request))?;
    let mut payloads = Vec::new();
    // Empty messages spend credits too. The check of every message includes the last credit.
    while script.granted > 0 {
        payloads.extend_from_slice(&script.next()?.payload);
    }
    Ok(payloads)
}

//= SMBD-3.1.5.1-04 test
//= SMBD-3.1.5.1-06 test
//= SMBD-3.1.5.9-10 test
fn consume_all_receive_credits(trial: &mut ServerTrial<'_>) -> Verdict {
    let length = answer_length(trial)?;
    let mut script = with_small_receives(trial)?;
    let request = script.request(1300);
    let mut answer = first_segments(&mut script, &request, length)?;
    script.expect_nothing()?;
    script.grant(10)?;
    answer.extend(script.receive()?);
    script.check_answer(&request, &answer)?;
    script.works()?;
    script.done()
}

//= SMBD-WIN-CGT-01 test
fn consume_all_credit_server_timeout(trial: &mut ServerTrial<'_>) -> Verdict {
    trial.prepare(&PeerSettings::short_timers())?;
    let facts = trial.facts();
    let length = answer_length(trial)?;
    let mut script = with_small_receives(trial)?;
    let request = script.request(1300);
    let since = script.now();
    first_segments(&mut script, &request, length)?;
    if let Some(timeout) = facts.timers.credit_grant {
        script.expect_terminated_after(since, timeout)?;
        trial.ended_because(&["the Send Credit Grant Timer"])?;
        return trial.serves();
    }
    // The specification has no such timer, but the Idle Connection Timer ends the connection:
    // the server cannot send its keepalive either.
    let most = facts.timers.keepalive_interval + facts.timers.keepalive_response;
    let timer = std::time::Duration::from_secs(5);
    let early = script.expect_terminated_after(since, timer);
    match (early, facts.allow(most)) {
        (Ok(()), _) => trial.serves(),
        (Err(Stop::Fail { .. }), Err(_)) => skip(format!(
            "the server has no Send Credit Grant Timer of 5 s, and the specification requires none; \
             its Idle Connection Timer ends the connection after {} s, longer than this run may wait",
            most.as_secs()
        )),
        (Err(Stop::Fail { .. }), Ok(())) => {
            let left = most.saturating_sub(script.now() - since);
            script.expect_terminated_within(left + facts.late)?;
            trial.serves()
        }
        (Err(stop), _) => Err(stop),
    }
}

//= SMBD-3.1.5.8-02 test
fn credit_requested(trial: &mut ServerTrial<'_>) -> Verdict {
    let change = |header: &mut DataTransfer| header.credits_requested = 0;
    let reason = "Data Transfer with CreditsRequested 0";
    header_is_refused(trial, 500, change, reason)?;
    header_is_refused(trial, 0, change, reason)
}
