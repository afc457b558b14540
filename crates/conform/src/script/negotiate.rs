//! The negotiation, with this end as the initiator and as the acceptor.

use smbdirect::{
    Settings,
    wire::{NegotiateRequest, NegotiateResponse, Status},
};

use super::Script;
use crate::outcome::{Verdict, fail, require};

/// Returns the default proposal of the suite's client.
pub(crate) const fn proposal() -> NegotiateRequest {
    NegotiateRequest {
        min_version: 0x0100,
        max_version: 0x0100,
        credits_requested: 255,
        preferred_send_size: 1364,
        max_receive_size: 8192,
        max_fragmented_size: 131_072,
    }
}

/// Returns the default answer of the mirror's acceptor.
pub(crate) const fn acceptance() -> NegotiateResponse {
    NegotiateResponse {
        min_version: 0x0100,
        max_version: 0x0100,
        negotiated_version: 0x0100,
        credits_requested: 255,
        credits_granted: 255,
        status: Status::SUCCESS,
        max_read_write_size: 1 << 20,
        preferred_send_size: 1364,
        max_receive_size: 1364,
        max_fragmented_size: 131_072,
    }
}

/// Returns the default proposal with a change.
pub(crate) fn proposal_with(change: impl FnOnce(&mut NegotiateRequest)) -> NegotiateRequest {
    let mut request = proposal();
    change(&mut request);
    request
}

/// Returns the default answer with a change.
pub(crate) fn acceptance_with(change: impl FnOnce(&mut NegotiateResponse)) -> NegotiateResponse {
    let mut response = acceptance();
    change(&mut response);
    response
}

pub(crate) fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(&mut bytes);
    bytes
}

/// Returns the answer of a server with these settings.
fn answer_to(request: &NegotiateRequest, settings: &Settings) -> NegotiateResponse {
    let receive = settings.max_receive_size.min(request.preferred_send_size);
    NegotiateResponse {
        credits_requested: settings.send_credit_target,
        credits_granted: request.credits_requested.min(settings.receive_credit_max),
        max_read_write_size: settings.max_read_write_size,
        preferred_send_size: settings.max_send_size.min(request.max_receive_size),
        max_receive_size: receive.max(128),
        max_fragmented_size: settings.max_fragmented_receive_size,
        ..acceptance()
    }
}

impl Script {
    /// Sends a Negotiate Request and takes the response that accepts it.
    pub(crate) fn negotiate(&mut self, request: &NegotiateRequest) -> Verdict<NegotiateResponse> {
        self.send_bytes(&encoded(|out| request.encode(out)))?;
        self.expect_response(request)
    }

    /// Takes a Negotiate Response that accepts, and checks each of its fields.
    pub(crate) fn expect_response(
        &mut self,
        request: &NegotiateRequest,
    ) -> Verdict<NegotiateResponse> {
        let bytes = self.expect_message("a Negotiate Response that accepts")?;
        require(
            bytes.len() == NegotiateResponse::LENGTH,
            "a Negotiate Response of 32 bytes as the first message",
            || super::describe(&bytes),
        )?;
        require(bytes[6..8] == [0, 0], "Reserved of 0", || {
            format!("{:02x?}", &bytes[6..8])
        })?;
        let response = match NegotiateResponse::decode(&bytes) {
            Ok(response) => response,
            Err(error) => return fail("a Negotiate Response", error.to_string()),
        };
        check_fields(request, &response)?;
        if let Some(settings) = &self.facts.settings {
            let expected = answer_to(request, settings);
            require(response == expected, format!("{expected:?}"), || {
                format!("{response:?}")
            })?;
        }
        self.is_established = true;
        self.max_send_size = response.max_receive_size;
        self.max_receive_size = request
            .max_receive_size
            .min(response.preferred_send_size)
            .max(128);
        self.credits_requested = request.credits_requested;
        self.most_credits = request.credits_requested.into();
        self.send_credits = response.credits_granted.into();
        self.target = u32::from(response.credits_requested).min(self.receive_credit_max);
        Ok(response)
    }

    /// Takes a Negotiate Request and checks each of its fields.
    pub(crate) fn expect_request(&mut self) -> Verdict<NegotiateRequest> {
        let bytes = self.expect_use("a Negotiate Request")?;
        require(
            bytes.len() == NegotiateRequest::LENGTH,
            "a Negotiate Request of 20 bytes",
            || format!("{} bytes", bytes.len()),
        )?;
        require(bytes[4..6] == [0, 0], "Reserved of 0", || {
            format!("{:02x?}", &bytes[4..6])
        })?;
        let request = match NegotiateRequest::decode(&bytes) {
            Ok(request) => request,
            Err(error) => return fail("a Negotiate Request", error.to_string()),
        };
        let is_legal = (request.min_version, request.max_version) == (0x0100, 0x0100)
            && request.credits_requested > 0
            && request.max_receive_size >= 128
            && request.max_fragmented_size >= 131_072;
        require(
            is_legal,
            "versions of 0x0100, CreditsRequested above 0, MaxReceiveSize of at least 128, \
             MaxFragmentedSize of at least 131072",
            || format!("{request:?}"),
        )?;
        if let Some(settings) = &self.facts.settings {
            let expected = NegotiateRequest {
                min_version: 0x0100,
                max_version: 0x0100,
                credits_requested: settings.send_credit_target,
                preferred_send_size: settings.max_send_size,
                max_receive_size: settings.max_receive_size,
                max_fragmented_size: settings.max_fragmented_receive_size,
            };
            require(request == expected, format!("{expected:?}"), || {
                format!("{request:?}")
            })?;
        }
        Ok(request)
    }

    /// Answers with `response`, whose bytes on the wire are `bytes`.
    pub(crate) fn respond_with(
        &mut self,
        request: &NegotiateRequest,
        response: &NegotiateResponse,
        bytes: &[u8],
    ) -> Verdict {
        self.is_established = true;
        self.max_send_size = request
            .max_receive_size
            .min(response.preferred_send_size)
            .max(128);
        self.max_receive_size = response.max_receive_size;
        self.credits_requested = response.credits_requested;
        self.most_credits = response.credits_requested.into();
        self.granted = response.credits_granted.into();
        self.target = u32::from(request.credits_requested).min(self.granted);
        self.link
            .post_receives(response.credits_granted, response.max_receive_size);
        self.send_bytes(bytes)
    }
}

/// Checks the fields of a response that accepts, by the rules for every server.
fn check_fields(request: &NegotiateRequest, response: &NegotiateResponse) -> Verdict {
    let seen = || format!("{response:?}");
    let versions = (
        response.min_version,
        response.max_version,
        response.negotiated_version,
    );
    require(
        response.status == Status::SUCCESS,
        "a Negotiate Response that accepts, with Status 0",
        || format!("Status 0x{:08x}", response.status.0),
    )?;
    require(
        versions == (0x0100, 0x0100, 0x0100),
        "MinVersion, MaxVersion and NegotiatedVersion of 0x0100",
        seen,
    )?;
    let granted = response.credits_granted;
    require(
        (1..=request.credits_requested).contains(&granted),
        format!("CreditsGranted of 1 to {}", request.credits_requested),
        || format!("CreditsGranted {granted}"),
    )?;
    require(
        response.credits_requested > 0,
        "CreditsRequested above 0",
        seen,
    )?;
    let (send, receive) = (response.preferred_send_size, response.max_receive_size);
    require(
        (128..=request.max_receive_size.max(128)).contains(&send),
        format!("PreferredSendSize of 128 to {}", request.max_receive_size),
        || format!("PreferredSendSize {send}"),
    )?;
    let most = request.preferred_send_size.max(128);
    require(
        (128..=most).contains(&receive),
        format!("MaxReceiveSize of 128 to {most}"),
        || format!("MaxReceiveSize {receive}"),
    )?;
    let fragmented = response.max_fragmented_size;
    require(
        fragmented >= 131_072,
        "MaxFragmentedSize of at least 131072",
        || format!("MaxFragmentedSize {fragmented}"),
    )
}
