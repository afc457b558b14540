//! SmbdNegotiate: cases 1 to 18.

use smbdirect::wire::{NegotiateRequest, Status};

use crate::{
    case::{Case, Group, ServerTrial},
    outcome::{Verdict, require},
    peer::PeerSettings,
    script::{encoded, proposal, proposal_with},
};

pub(super) const CASES: &[Case] = &[
    Group::Microsoft.case(
        "m1",
        "BVT_SmbdNegotiate_Basic",
        "3.1.5.6",
        "negotiates with 10 credits and sizes of 1024 bytes; each field of the response is checked",
        basic,
    ),
    Group::Microsoft.case(
        "m2",
        "SmbdNegotiate_PreferredSendSizeWithZero",
        "3.1.5.6",
        "proposes PreferredSendSize 0; the response has MaxReceiveSize 128",
        preferred_send_size_with_zero,
    ),
    Group::Microsoft.case(
        "m3",
        "SmbdNegotiate_PreferredSendSizeLessThan128",
        "3.1.5.6",
        "proposes PreferredSendSize 127 and 128; the response has MaxReceiveSize 128",
        preferred_send_size_less_than_128,
    ),
    Group::Microsoft.case(
        "m4",
        "SmbdNegotiate_PreferredSendSizeMaxValue",
        "3.1.5.6",
        "proposes PreferredSendSize 8136 and 4294967295; the server negotiates",
        preferred_send_size_max_value,
    ),
    Group::Microsoft.case(
        "m5",
        "SmbdNegotiate_Redundancy",
        "3.1.5.6",
        "sends a request of 512 bytes; the bytes after the first 20 are ignored",
        redundancy,
    ),
    Group::Microsoft.case(
        "m6",
        "SmbdNegotiate_DisconnectAfterNegotiate",
        "3.1.7.1",
        "disconnects after the response; the server accepts the next connection",
        disconnect_after_negotiate,
    ),
    Group::Microsoft.case(
        "m7",
        "SmbdNegotiate_UncompletedMessage",
        "3.1.5.6",
        "sends a request of 19 bytes; the server terminates the connection",
        uncompleted_message,
    )
    .disruptive(),
    Group::Microsoft.case(
        "m8",
        "SmbdNegotiate_VersionRangeNotCover0x0100_LessThanMinVersion",
        "3.1.5.6",
        "offers versions 0x0101 to 0xFFFF; the server answers STATUS_NOT_SUPPORTED and terminates",
        version_range_less_than_min_version,
    )
    .disruptive(),
    Group::Microsoft.case(
        "m9",
        "SmbdNegotiate_VersionRangeNotCover0x0100_LargerThanMaxVersion",
        "3.1.5.6",
        "offers versions 0 to 0x00FF; the server answers STATUS_NOT_SUPPORTED and terminates",
        version_range_larger_than_max_version,
    )
    .disruptive(),
    Group::Microsoft.case(
        "m10",
        "SmbdNegotiate_VersionRangeCover0x0100_EqualMinVersion",
        "3.1.5.6",
        "offers versions 0x0100 to 0xFFFF; the server selects 0x0100",
        version_range_equal_min_version,
    ),
    Group::Microsoft.case(
        "m11",
        "SmbdNegotiate_VersionRangeCover0x0100_EqualMaxVersion",
        "3.1.5.6",
        "offers versions 0 to 0x0100; the server selects 0x0100",
        version_range_equal_max_version,
    ),
    Group::Microsoft.case(
        "m12",
        "SmbdNegotiate_VersionRangeCover0x0100_InMiddle",
        "3.1.5.6",
        "offers versions 0x00FF to 0x0101; the server selects 0x0100",
        version_range_in_middle,
    ),
    Group::Microsoft.case(
        "m13",
        "SmbdNegotiate_VersionRangeCover0x0100_EqualMinVersionAndMaxVersion",
        "3.1.5.6",
        "offers version 0x0100 only; the server selects it",
        version_range_equal_both,
    ),
    Group::Microsoft.case(
        "m14",
        "SmbdNegotiate_NegativeParameter_CreditsRequested",
        "3.1.5.6",
        "requests 0 credits; the server terminates the connection without a response",
        credits_requested,
    )
    .disruptive(),
    Group::Microsoft.case(
        "m14b",
        "SmbdNegotiate_NegativeParameter_CreditsRequested, accepted values",
        "3.1.5.6",
        "requests 1 and 65535 credits; the server grants at least one and at most as many as \
         requested",
        credits_requested_accepted,
    ),
    Group::Microsoft.case(
        "m15",
        "SmbdNegotiate_NegativeParameter_MaxReceiveSize",
        "3.1.5.6",
        "proposes MaxReceiveSize 127; the server terminates the connection without a response",
        max_receive_size,
    )
    .disruptive(),
    Group::Microsoft.case(
        "m15b",
        "SmbdNegotiate_NegativeParameter_MaxReceiveSize, accepted values",
        "3.1.5.6",
        "proposes MaxReceiveSize 128 and 4294967295; the server negotiates",
        max_receive_size_accepted,
    ),
    Group::Microsoft.case(
        "m16",
        "SmbdNegotiate_NegativeParameter_MaxFragmentedSize",
        "3.1.5.6",
        "proposes MaxFragmentedSize 131071; the server terminates without a response",
        max_fragmented_size,
    )
    .disruptive(),
    Group::Microsoft.case(
        "m16b",
        "SmbdNegotiate_NegativeParameter_MaxFragmentedSize, accepted values",
        "3.1.5.6",
        "proposes MaxFragmentedSize 131072 and 4294967295; the server negotiates",
        max_fragmented_size_accepted,
    ),
    Group::Microsoft.case(
        "m17",
        "SmbdNegotiate_NegotiationTimer",
        "3.1.6.1",
        "sends the request shortly before the Negotiation Timer expires; the server negotiates",
        negotiation_timer,
    ),
    Group::Microsoft.case(
        "m18",
        "SmbdNegotiate_NegotiationTimer_Timeout",
        "3.1.6.1",
        "sends no request; the server terminates the connection when its Negotiation Timer expires",
        negotiation_timer_timeout,
    )
    .disruptive(),
];

//= SMBD-3.1.5.3-01 test
//= SMBD-3.1.5.3-04 test
//= SMBD-3.1.5.6-09 test
//= SMBD-3.1.5.9-08 test
//= SMBD-2.2.2-03 test
fn basic(trial: &mut ServerTrial<'_>) -> Verdict {
    let request = NegotiateRequest {
        credits_requested: 10,
        preferred_send_size: 1024,
        max_receive_size: 1024,
        max_fragmented_size: 128 << 10,
        ..proposal()
    };
    let size = trial.negotiates(&request)?.max_read_write_size;
    require(
        size >= 1 << 20,
        "MaxReadWriteSize of at least 1048576",
        || format!("MaxReadWriteSize {size}"),
    )
}

/// Negotiates this PreferredSendSize and returns the server's MaxReceiveSize.
fn preferred_send_size(trial: &mut ServerTrial<'_>, size: u32) -> Verdict<u32> {
    let request = proposal_with(|request| request.preferred_send_size = size);
    Ok(trial.negotiates(&request)?.max_receive_size)
}

fn gives_128(trial: &mut ServerTrial<'_>, size: u32) -> Verdict {
    let answer = preferred_send_size(trial, size)?;
    require(answer == 128, "MaxReceiveSize 128", || {
        format!("MaxReceiveSize {answer}")
    })
}

//= SMBD-3.1.5.6-08 test
fn preferred_send_size_with_zero(trial: &mut ServerTrial<'_>) -> Verdict {
    gives_128(trial, 0)
}

//= SMBD-3.1.5.6-07 test
//= SMBD-3.1.5.6-08 test
fn preferred_send_size_less_than_128(trial: &mut ServerTrial<'_>) -> Verdict {
    gives_128(trial, 127)?;
    gives_128(trial, 128)
}

//= SMBD-3.1.5.6-07 test
fn preferred_send_size_max_value(trial: &mut ServerTrial<'_>) -> Verdict {
    for size in [8136, u32::MAX] {
        preferred_send_size(trial, size)?;
    }
    Ok(())
}

//= SMBD-3.1.5.6-01 test
//= SMBD-3.1.7.2-04 test
fn redundancy(trial: &mut ServerTrial<'_>) -> Verdict {
    let mut script = trial.connect()?;
    let mut message = encoded(|out| proposal().encode(out));
    message.resize(512, 0xa5);
    script.send_bytes(&message)?;
    script.expect_response(&proposal())?;
    script.works()?;
    script.done()
}

//= SMBD-3.1.7.1-01 test
fn disconnect_after_negotiate(trial: &mut ServerTrial<'_>) -> Verdict {
    trial.session()?.disconnect();
    trial.serves()
}

//= SMBD-3.1.5.6-01 test
fn uncompleted_message(trial: &mut ServerTrial<'_>) -> Verdict {
    let mut script = trial.connect()?;
    script.send_bytes(&encoded(|out| proposal().encode(out))[..19])?;
    trial.terminated(script, "Negotiate Request of 19 bytes")
}

fn versions(min_version: u16, max_version: u16) -> NegotiateRequest {
    NegotiateRequest {
        min_version,
        max_version,
        ..proposal()
    }
}

/// Checks that the version range is refused with STATUS_NOT_SUPPORTED and zeros in all other
/// fields, and that the connection then ends.
fn is_not_supported(trial: &mut ServerTrial<'_>, request: &NegotiateRequest) -> Verdict {
    let mut script = trial.connect()?;
    script.send_bytes(&encoded(|out| request.encode(out)))?;
    let mut expected = [0; 32];
    expected[..4].copy_from_slice(&[0, 1, 0, 1]);
    expected[12..16].copy_from_slice(&Status::NOT_SUPPORTED.0.to_le_bytes());
    let what = "a Negotiate Response with STATUS_NOT_SUPPORTED and zeros";
    let response = script.expect_message(what)?;
    require(response[..] == expected, what, || {
        format!("{:02x?}", &response[..])
    })?;
    trial.terminated(script, "refused with STATUS_NOT_SUPPORTED")
}

//= SMBD-3.1.5.6-02 test
//= SMBD-3.1.5.3-02 test
//= SMBD-3.1.5.3-03 test
fn version_range_less_than_min_version(trial: &mut ServerTrial<'_>) -> Verdict {
    is_not_supported(trial, &versions(0x0101, 0xffff))
}

//= SMBD-3.1.5.6-02 test
//= SMBD-3.1.5.3-02 test
//= SMBD-3.1.5.3-03 test
fn version_range_larger_than_max_version(trial: &mut ServerTrial<'_>) -> Verdict {
    is_not_supported(trial, &versions(0x0000, 0x00ff))
}

//= SMBD-3.1.5.6-03 test
fn version_range_equal_min_version(trial: &mut ServerTrial<'_>) -> Verdict {
    trial.negotiates(&versions(0x0100, 0xffff)).map(drop)
}

//= SMBD-3.1.5.6-03 test
fn version_range_equal_max_version(trial: &mut ServerTrial<'_>) -> Verdict {
    trial.negotiates(&versions(0x0000, 0x0100)).map(drop)
}

//= SMBD-3.1.5.6-03 test
fn version_range_in_middle(trial: &mut ServerTrial<'_>) -> Verdict {
    trial.negotiates(&versions(0x00ff, 0x0101)).map(drop)
}

//= SMBD-3.1.5.6-03 test
fn version_range_equal_both(trial: &mut ServerTrial<'_>) -> Verdict {
    trial.negotiates(&versions(0x0100, 0x0100)).map(drop)
}

fn credits(credits: u16) -> NegotiateRequest {
    proposal_with(|request| request.credits_requested = credits)
}

//= SMBD-3.1.5.6-04 test
fn credits_requested(trial: &mut ServerTrial<'_>) -> Verdict {
    trial.refuses(&credits(0), "CreditsRequested 0")
}

//= SMBD-3.1.5.6-04 test
//= SMBD-3.1.5.9-08 test
fn credits_requested_accepted(trial: &mut ServerTrial<'_>) -> Verdict {
    trial.negotiates(&credits(1))?;
    trial.negotiates(&credits(u16::MAX)).map(drop)
}

fn receive_size(size: u32) -> NegotiateRequest {
    proposal_with(|request| request.max_receive_size = size)
}

//= SMBD-3.1.5.6-05 test
fn max_receive_size(trial: &mut ServerTrial<'_>) -> Verdict {
    trial.refuses(&receive_size(127), "MaxReceiveSize 127")
}

//= SMBD-3.1.5.6-05 test
fn max_receive_size_accepted(trial: &mut ServerTrial<'_>) -> Verdict {
    trial.negotiates(&receive_size(128))?;
    trial.negotiates(&receive_size(u32::MAX)).map(drop)
}

fn fragmented_size(size: u32) -> NegotiateRequest {
    proposal_with(|request| request.max_fragmented_size = size)
}

//= SMBD-3.1.5.6-06 test
fn max_fragmented_size(trial: &mut ServerTrial<'_>) -> Verdict {
    trial.refuses(&fragmented_size(131_071), "MaxFragmentedSize 131071")
}

//= SMBD-3.1.5.6-06 test
fn max_fragmented_size_accepted(trial: &mut ServerTrial<'_>) -> Verdict {
    trial.negotiates(&fragmented_size(131_072))?;
    trial.negotiates(&fragmented_size(u32::MAX)).map(drop)
}

//= SMBD-3.1.6.1-01 test
//= SMBD-3.1.7.2-02 test
fn negotiation_timer(trial: &mut ServerTrial<'_>) -> Verdict {
    trial.prepare(&PeerSettings::short_timers())?;
    let facts = trial.facts();
    facts.allow(facts.timers.negotiation)?;
    let mut script = trial.connect()?;
    script.expect_silence(facts.almost(facts.timers.negotiation))?;
    script.negotiate(&proposal())?;
    script.works()?;
    script.done()
}

//= SMBD-3.1.6.1-01 test
//= SMBD-3.1.7.2-02 test
fn negotiation_timer_timeout(trial: &mut ServerTrial<'_>) -> Verdict {
    trial.prepare(&PeerSettings::short_timers())?;
    let facts = trial.facts();
    facts.allow(facts.timers.negotiation)?;
    let mut script = trial.connect()?;
    let since = script.connected();
    script.expect_terminated_after(since, facts.timers.negotiation)?;
    trial.ended_because(&["the Negotiation Timer"])?;
    trial.serves()
}
