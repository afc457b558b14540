//! Established connections for the cases, and checks of one segment.

use smbdirect::wire::{DataTransfer, NegotiateRequest, NegotiateResponse};

use crate::{
    case::ClientTrial,
    outcome::Verdict,
    peer::{ClientAction, PeerSettings},
    script::{Script, acceptance, encoded, padded},
};

/// Takes a request and answers it with `response`.
pub(super) fn respond(
    script: &mut Script,
    response: &NegotiateResponse,
) -> Verdict<NegotiateRequest> {
    let request = script.expect_request()?;
    let bytes = encoded(|out| response.encode(out));
    script.respond_with(&request, response, &bytes)?;
    Ok(request)
}

/// Returns an established connection on which the client has sent its request.
pub(super) fn established(
    trial: &mut ClientTrial<'_>,
    action: ClientAction,
) -> Verdict<(Script, Vec<u8>)> {
    trial.accept_used(&PeerSettings::default(), action, |script| {
        respond(script, &acceptance())?;
        script.receive_request()
    })
}

/// Checks that a segment of `payload` bytes with a changed header ends the connection, whatever
/// the client was asked to do.
pub(super) fn header_is_refused(
    trial: &mut ClientTrial<'_>,
    payload: usize,
    change: impl Fn(&mut DataTransfer),
    reason: &str,
) -> Verdict {
    for action in [ClientAction::Send, ClientAction::Exchange(500)] {
        let (mut script, request) = established(trial, action)?;
        let mut content = script.reply_to(&request, payload)?;
        content.resize(payload, 0);
        let mut header = script.segment(payload, 0);
        change(&mut header);
        script.transfer(&header, &padded(&content))?;
        trial.terminated(script, reason)?;
        if !trial.facts().is_strict() {
            break;
        }
    }
    Ok(())
}

/// Checks that an answer in one segment with changed bytes is accepted.
pub(super) fn segment_is_taken(
    trial: &mut ClientTrial<'_>,
    change: impl FnOnce(&mut Vec<u8>),
) -> Verdict {
    let (mut script, request) = established(trial, ClientAction::Exchange(500))?;
    let reply = script.reply_to(&request, 500)?;
    let header = script.segment(reply.len(), 0);
    script.transfer_altered(&header, &reply, change)?;
    trial.ends_well(script)
}
