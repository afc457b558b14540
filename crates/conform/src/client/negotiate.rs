//! Negotiate Responses (3.1.5.7).

use smbdirect::wire::{NegotiateResponse, Status};

use crate::{
    case::{Case, ClientTrial},
    outcome::Verdict,
    peer::{ClientAction, PeerSettings},
    script::{Script, acceptance, acceptance_with, encoded},
};

pub(super) const CASES: &[Case] = &[
    Case::client(
        "c1",
        "response of fewer than 32 bytes",
        "3.1.5.7",
        "answers with 31 bytes, and with none; the client terminates the connection",
        short_response,
    ),
    Case::client(
        "c2",
        "response of more than 32 bytes",
        "3.1.5.7",
        "answers with 33 and with 512 bytes; the bytes after the first 32 are ignored",
        long_response,
    ),
    Case::client(
        "c3",
        "response with another version",
        "3.1.5.7",
        "answers with NegotiatedVersion 0, 0x00FF, 0x0101 and 0xFFFF; the client terminates the \
         connection",
        other_version,
    ),
    Case::client(
        "c4",
        "response with another range and reserved bits",
        "3.1.5.7",
        "answers with another MinVersion, MaxVersion and Reserved; they are ignored",
        other_range_and_reserved_bits,
    ),
    Case::client(
        "c5",
        "response with a small MaxReceiveSize",
        "3.1.5.7",
        "answers with MaxReceiveSize 0 and 127, which end the connection, and with 128 and \
         4294967295, which do not",
        small_max_receive_size,
    ),
    Case::client(
        "c6",
        "response with a small MaxFragmentedSize",
        "3.1.5.7",
        "answers with MaxFragmentedSize 0 and 131071, which end the connection, and with 131072 \
         and 4294967295, which do not",
        small_max_fragmented_size,
    ),
    Case::client(
        "c7",
        "response that grants nothing",
        "3.1.5.7",
        "answers with CreditsGranted 0, which ends the connection, and with 1, which does not",
        grants_nothing,
    ),
    Case::client(
        "c8",
        "response that requests nothing",
        "3.1.5.7",
        "answers with CreditsRequested 0, which ends the connection, and with 1 and 65535, which \
         do not",
        requests_nothing,
    ),
    Case::client(
        "c9",
        "response with a PreferredSendSize above the client's MaxReceiveSize",
        "3.1.5.7",
        "answers with a PreferredSendSize one byte above the client's MaxReceiveSize and with \
         4294967295, which end the connection, and with 0, 127, 128 and the largest permitted \
         value",
        preferred_send_size,
    ),
    Case::client(
        "c10",
        "response with a MaxReadWriteSize of 4294967295",
        "3.1.5.7",
        "answers with the largest MaxReadWriteSize; the connection works",
        max_read_write_size,
    ),
    Case::client(
        "c11",
        "response with a status",
        "3.1.5.7",
        "answers with three NTSTATUS values, with valid and with zero fields; the client \
         terminates the connection",
        status,
    ),
    Case::client(
        "c12",
        "end instead of a response",
        "3.1.4.1",
        "ends the connection instead of answering; the client gives up",
        end_instead_of_response,
    ),
    Case::client(
        "c13",
        "late response",
        "3.1.4.1",
        "answers shortly before the client's Negotiation Timer expires; the connection works",
        late_response,
    ),
    Case::client(
        "c14",
        "no response",
        "3.1.6.1",
        "does not answer; the client terminates when its Negotiation Timer expires",
        no_response,
    ),
];

/// Checks that a response with changed bytes ends the connection.
fn bytes_are_refused(
    trial: &mut ClientTrial<'_>,
    change: impl FnOnce(&mut Vec<u8>),
    reason: &str,
) -> Verdict {
    let (mut script, request) = trial.asked(ClientAction::Send)?;
    let response = acceptance();
    let mut bytes = encoded(|out| response.encode(out));
    change(&mut bytes);
    script.respond_with(&request, &response, &bytes)?;
    trial.terminated(script, reason)
}

/// Checks that a response with a changed field ends the connection.
fn is_refused(
    trial: &mut ClientTrial<'_>,
    change: impl FnOnce(&mut NegotiateResponse),
    reason: &str,
) -> Verdict {
    let mut response = acceptance();
    change(&mut response);
    let bytes = encoded(|out| response.encode(out));
    bytes_are_refused(trial, |out| *out = bytes, reason)
}

/// Checks that a response, whose bytes `change` may alter, is accepted and the connection works.
fn bytes_are_taken(
    trial: &mut ClientTrial<'_>,
    response: &NegotiateResponse,
    change: impl FnOnce(&mut Vec<u8>),
) -> Verdict {
    let (mut script, request) = trial.asked(ClientAction::Exchange(500))?;
    let mut bytes = encoded(|out| response.encode(out));
    change(&mut bytes);
    script.respond_with(&request, response, &bytes)?;
    trial.works(script)
}

/// Checks that a response with a changed field is accepted and the connection works.
fn is_taken(trial: &mut ClientTrial<'_>, change: impl FnOnce(&mut NegotiateResponse)) -> Verdict {
    let mut response = acceptance();
    change(&mut response);
    bytes_are_taken(trial, &response, |_| {})
}

//= SMBD-3.1.5.7-01 test
//= SMBD-3.1.5.7-09 test
fn short_response(trial: &mut ClientTrial<'_>) -> Verdict {
    let reason = "Negotiate Response of 31 bytes, 32 are needed";
    bytes_are_refused(trial, |bytes| bytes.truncate(31), reason)?;
    let reason = "Negotiate Response of 0 bytes, 32 are needed";
    bytes_are_refused(trial, Vec::clear, reason)
}

//= SMBD-3.1.5.7-01 test
//= SMBD-3.1.4.1-07 test
fn long_response(trial: &mut ClientTrial<'_>) -> Verdict {
    for length in [33, 512] {
        bytes_are_taken(trial, &acceptance(), |bytes| bytes.resize(length, 0xa5))?;
    }
    Ok(())
}

//= SMBD-3.1.5.7-02 test
//= SMBD-3.1.5.7-09 test
fn other_version(trial: &mut ClientTrial<'_>) -> Verdict {
    for version in [0x0000, 0x00ff, 0x0101, 0xffff] {
        let change = |response: &mut NegotiateResponse| response.negotiated_version = version;
        is_refused(trial, change, &format!("NegotiatedVersion 0x{version:04x}"))?;
    }
    Ok(())
}

//= SMBD-3.1.5.7-02 test
//= SMBD-2.2-03 test
fn other_range_and_reserved_bits(trial: &mut ClientTrial<'_>) -> Verdict {
    is_taken(trial, |response| {
        (response.min_version, response.max_version) = (0, 0xffff);
    })?;
    bytes_are_taken(trial, &acceptance(), |bytes| bytes[6..8].fill(0xff))
}

//= SMBD-3.1.5.7-03 test
//= SMBD-3.1.5.7-09 test
//= SMBD-3.1.5.7-12 test
fn small_max_receive_size(trial: &mut ClientTrial<'_>) -> Verdict {
    for size in [0, 127] {
        let change = |response: &mut NegotiateResponse| response.max_receive_size = size;
        is_refused(
            trial,
            change,
            &format!("MaxReceiveSize {size}, at least 128"),
        )?;
    }
    for size in [128, u32::MAX] {
        is_taken(trial, |response| response.max_receive_size = size)?;
    }
    Ok(())
}

//= SMBD-3.1.5.7-04 test
//= SMBD-3.1.5.7-09 test
fn small_max_fragmented_size(trial: &mut ClientTrial<'_>) -> Verdict {
    for size in [0, 131_071] {
        let change = |response: &mut NegotiateResponse| response.max_fragmented_size = size;
        let reason = format!("MaxFragmentedSize {size}, at least 131072");
        is_refused(trial, change, &reason)?;
    }
    for size in [131_072, u32::MAX] {
        is_taken(trial, |response| response.max_fragmented_size = size)?;
    }
    Ok(())
}

//= SMBD-3.1.5.7-05 test
//= SMBD-3.1.5.7-09 test
//= SMBD-3.1.5.7-14 test
fn grants_nothing(trial: &mut ClientTrial<'_>) -> Verdict {
    let change = |response: &mut NegotiateResponse| response.credits_granted = 0;
    is_refused(trial, change, "Negotiate Response with CreditsGranted 0")?;
    is_taken(trial, |response| response.credits_granted = 1)
}

//= SMBD-3.1.5.7-06 test
//= SMBD-3.1.5.7-09 test
//= SMBD-3.1.5.7-10 test
fn requests_nothing(trial: &mut ClientTrial<'_>) -> Verdict {
    let change = |response: &mut NegotiateResponse| response.credits_requested = 0;
    is_refused(trial, change, "Negotiate Response with CreditsRequested 0")?;
    for credits in [1, 65_535] {
        is_taken(trial, |response| response.credits_requested = credits)?;
    }
    Ok(())
}

/// Checks one PreferredSendSize, computed from the client's MaxReceiveSize.
fn one_preferred_send_size(trial: &mut ClientTrial<'_>, size: impl FnOnce(u32) -> u32) -> Verdict {
    let (mut script, request) = trial.asked(ClientAction::Exchange(500))?;
    let most = request.max_receive_size;
    let response = acceptance_with(|response| response.preferred_send_size = size(most));
    let bytes = encoded(|out| response.encode(out));
    script.respond_with(&request, &response, &bytes)?;
    let size = response.preferred_send_size;
    if size <= most {
        // A value below 128 still gives receives of 128 bytes.
        return trial.works(script);
    }
    let reason = format!("PreferredSendSize {size}, above our MaxReceiveSize {most}");
    trial.terminated(script, &reason)
}

//= SMBD-3.1.5.7-07 test
//= SMBD-3.1.5.7-09 test
//= SMBD-3.1.5.7-11 test
fn preferred_send_size(trial: &mut ClientTrial<'_>) -> Verdict {
    one_preferred_send_size(trial, |most| most.saturating_add(1))?;
    one_preferred_send_size(trial, |_| u32::MAX)?;
    for size in [0, 127, 128] {
        one_preferred_send_size(trial, |_| size)?;
    }
    one_preferred_send_size(trial, |most| most)
}

//= SMBD-3.1.5.7-13 test
fn max_read_write_size(trial: &mut ClientTrial<'_>) -> Verdict {
    is_taken(trial, |response| response.max_read_write_size = u32::MAX)?;
    // Linux needs a page. A value of 0 is legal, so a client that is known has to accept it.
    if trial.facts().is_strict() {
        is_taken(trial, |response| response.max_read_write_size = 0)?;
    }
    Ok(())
}

//= SMBD-3.1.5.7-08 test
//= SMBD-3.1.5.7-09 test
fn status(trial: &mut ClientTrial<'_>) -> Verdict {
    for (status, words) in [
        (Status::NOT_SUPPORTED, "STATUS_NOT_SUPPORTED"),
        (
            Status::INSUFFICIENT_RESOURCES,
            "STATUS_INSUFFICIENT_RESOURCES",
        ),
        (Status(0xC000_0001), "NTSTATUS 0xC0000001"),
    ] {
        let reason = format!("refused the negotiation with {words}");
        is_refused(trial, |response| response.status = status, &reason)?;
        let refusal = NegotiateResponse::refusal(status);
        is_refused(trial, |response| *response = refusal, &reason)?;
    }
    Ok(())
}

//= SMBD-3.1.7.1-01 test
//= SMBD-3.1.4.1-08 test
fn end_instead_of_response(trial: &mut ClientTrial<'_>) -> Verdict {
    let (script, _) = trial.asked(ClientAction::Send)?;
    script.disconnect();
    // A command may explain a possible cause to its user.
    trial.fails(&[
        "the peer closed the connection",
        "closed the connection during the negotiation",
    ])
}

//= SMBD-3.1.4.1-06 test
fn late_response(trial: &mut ClientTrial<'_>) -> Verdict {
    let (mut script, request) = trial.accept_used(
        &PeerSettings::short_timers(),
        ClientAction::Exchange(500),
        Script::expect_request,
    )?;
    let facts = trial.facts();
    let timeout = facts.timers.negotiation;
    facts.allow(timeout)?;
    script.expect_silence(facts.almost(timeout))?;
    let response = acceptance();
    let bytes = encoded(|out| response.encode(out));
    script.respond_with(&request, &response, &bytes)?;
    trial.works(script)
}

//= SMBD-3.1.4.1-06 test
//= SMBD-3.1.6.1-01 test
fn no_response(trial: &mut ClientTrial<'_>) -> Verdict {
    let (mut script, _) = trial.accept_used(
        &PeerSettings::short_timers(),
        ClientAction::Send,
        Script::expect_request,
    )?;
    let facts = trial.facts();
    let timeout = facts.timers.negotiation;
    facts.allow(timeout)?;
    let since = script.connected();
    script.expect_terminated_after(since, timeout)?;
    trial.fails(&[
        "the Negotiation Timer",
        "did not negotiate SMB Direct within",
    ])
}
