//! The mirror image of [`cases`](crate::cases) for the connecting side: the acceptor is a script,
//! which breaks each rule of 3.1.5.7 and 3.1.5.8, or just keeps it.
//!
//! The initiator is that of `crate::backend`: the engine in virtual time, or a running `smbdirect
//! send` or `smbdirect ping --echo`. If a rule is broken, the RDMA connection ends without a
//! further message, and the error of the initiator names the rule. If it is kept, the message of
//! the initiator is echoed, and the initiator succeeds.

use std::time::Duration;

use bytes::Bytes;
use smbdirect::{
    Settings,
    wire::{DataTransfer, Flags, NegotiateResponse, Status},
};

use crate::{
    backend::{Errand, Initiator, PROMPT_TIMEOUT, almost, assert_took, timers},
    script::{Script, Transfer, acceptance, content, encoded, padded},
};

fn settings() -> Settings {
    Settings::default()
}

/// Asserts that the initiator fails with an error that names `rule`.
fn fails(initiator: Initiator, rule: &str) {
    fails_for_one_of(initiator, &[rule]);
}

fn fails_for_one_of(initiator: Initiator, rules: &[&str]) {
    let words = initiator.finish().expect_err("it fails");
    assert!(rules.iter().any(|rule| words.contains(rule)), "{words}");
}

/// Asserts that the initiator ends the connection immediately and fails because of `rule`.
fn terminated(mut script: Script, initiator: Initiator, rule: &str) {
    script.expect_terminated();
    fails(initiator, rule);
}

/// Asserts that the connection works: the message of the initiator is echoed, and the initiator
/// closes.
fn works(mut script: Script, initiator: Initiator) {
    let message = script.receive();
    let size = script.max_payload();
    script.send(&message, size);
    ends_well(script, initiator);
}

fn ends_well(mut script: Script, initiator: Initiator) {
    script.expect_end();
    assert_eq!(initiator.finish(), Ok(()));
}

// Negotiate Responses (3.1.5.7)

/// Asserts that a response with changed bytes ends the connection.
fn response_is_refused(change: impl FnOnce(&mut Vec<u8>), rule: &str) {
    let mut initiator = Initiator::start(settings(), Errand::Send);
    let mut script = Script::accept(&mut initiator);
    let request = script.expect_request(&initiator.settings);
    let response = acceptance();
    let mut bytes = encoded(|out| response.encode(out));
    change(&mut bytes);
    script.respond_with(&request, &response, &bytes);
    terminated(script, initiator, rule);
}

fn field_is_refused(change: impl FnOnce(&mut NegotiateResponse), rule: &str) {
    let mut response = acceptance();
    change(&mut response);
    let bytes = encoded(|out| response.encode(out));
    response_is_refused(|out| *out = bytes, rule);
}

/// Asserts that a response, whose bytes `change` may alter, is accepted and the connection works.
fn response_is_taken(response: &NegotiateResponse, change: impl FnOnce(&mut Vec<u8>)) {
    let mut initiator = Initiator::start(settings(), Errand::Echo(500));
    let mut script = Script::accept(&mut initiator);
    let request = script.expect_request(&initiator.settings);
    let mut bytes = encoded(|out| response.encode(out));
    change(&mut bytes);
    script.respond_with(&request, response, &bytes);
    works(script, initiator);
}

fn field_is_taken(change: impl FnOnce(&mut NegotiateResponse)) {
    let mut response = acceptance();
    change(&mut response);
    response_is_taken(&response, |_| {});
}

//= SMBD-3.1.5.7-01 test
//= SMBD-3.1.5.7-09 test
#[test]
fn response_of_31_bytes() {
    let rule = "Negotiate Response of 31 bytes, 32 are needed";
    response_is_refused(|bytes| bytes.truncate(31), rule);
    let rule = "Negotiate Response of 0 bytes, 32 are needed";
    response_is_refused(Vec::clear, rule);
}

/// Case 5 in the mirror: the receive has 512 bytes, and the bytes after the response are ignored.
//= SMBD-3.1.5.7-01 test
//= SMBD-3.1.4.1-07 test
#[test]
fn response_of_more_than_32_bytes() {
    for length in [33, 512] {
        response_is_taken(&acceptance(), |bytes| bytes.resize(length, 0xa5));
    }
}

//= SMBD-3.1.5.7-02 test
//= SMBD-3.1.5.7-09 test
#[test]
fn response_with_another_version() {
    for version in [0x0000, 0x00ff, 0x0101, 0xffff] {
        let change = |response: &mut NegotiateResponse| response.negotiated_version = version;
        field_is_refused(change, &format!("NegotiatedVersion 0x{version:04x}"));
    }
}

/// Only NegotiatedVersion is checked; the version range and the reserved field are ignored.
//= SMBD-3.1.5.7-02 test
//= SMBD-2.2-03 test
#[test]
fn response_with_another_range_and_reserved_bits() {
    field_is_taken(|response| (response.min_version, response.max_version) = (0, 0xffff));
    response_is_taken(&acceptance(), |bytes| bytes[6..8].fill(0xff));
}

//= SMBD-3.1.5.7-03 test
//= SMBD-3.1.5.7-09 test
//= SMBD-3.1.5.7-12 test
#[test]
fn response_with_small_max_receive_size() {
    for size in [0, 127] {
        let change = |response: &mut NegotiateResponse| response.max_receive_size = size;
        field_is_refused(change, &format!("MaxReceiveSize {size}, at least 128"));
    }
    for size in [128, u32::MAX] {
        field_is_taken(|response| response.max_receive_size = size);
    }
}

//= SMBD-3.1.5.7-04 test
//= SMBD-3.1.5.7-09 test
#[test]
fn response_with_small_max_fragmented_size() {
    for size in [0, 131_071] {
        let change = |response: &mut NegotiateResponse| response.max_fragmented_size = size;
        field_is_refused(
            change,
            &format!("MaxFragmentedSize {size}, at least 131072"),
        );
    }
    for size in [131_072, u32::MAX] {
        field_is_taken(|response| response.max_fragmented_size = size);
    }
}

//= SMBD-3.1.5.7-05 test
//= SMBD-3.1.5.7-09 test
//= SMBD-3.1.5.7-14 test
#[test]
fn response_that_grants_nothing() {
    let change = |response: &mut NegotiateResponse| response.credits_granted = 0;
    field_is_refused(change, "Negotiate Response with CreditsGranted 0");
    field_is_taken(|response| response.credits_granted = 1);
}

//= SMBD-3.1.5.7-06 test
//= SMBD-3.1.5.7-09 test
//= SMBD-3.1.5.7-10 test
#[test]
fn response_that_requests_nothing() {
    let change = |response: &mut NegotiateResponse| response.credits_requested = 0;
    field_is_refused(change, "Negotiate Response with CreditsRequested 0");
    for credits in [1, 65_535] {
        field_is_taken(|response| response.credits_requested = credits);
    }
}

//= SMBD-3.1.5.7-07 test
//= SMBD-3.1.5.7-09 test
//= SMBD-3.1.5.7-11 test
#[test]
fn response_with_preferred_send_size_above_ours() {
    for size in [8193, u32::MAX] {
        let change = |response: &mut NegotiateResponse| response.preferred_send_size = size;
        let rule = format!("PreferredSendSize {size}, above our MaxReceiveSize 8192");
        field_is_refused(change, &rule);
    }
    // A value below 128 still gives receives of 128 bytes.
    for size in [0, 127, 128, 8192] {
        field_is_taken(|response| response.preferred_send_size = size);
    }
}

//= SMBD-3.1.5.7-13 test
#[test]
fn response_with_any_max_read_write_size() {
    for size in [0, u32::MAX] {
        field_is_taken(|response| response.max_read_write_size = size);
    }
}

/// The initiator reports the status, whether the other fields are valid or zero.
//= SMBD-3.1.5.7-08 test
//= SMBD-3.1.5.7-09 test
#[test]
fn response_with_a_status() {
    for (status, words) in [
        (Status::NOT_SUPPORTED, "STATUS_NOT_SUPPORTED"),
        (
            Status::INSUFFICIENT_RESOURCES,
            "STATUS_INSUFFICIENT_RESOURCES",
        ),
        (Status(0xC000_0001), "NTSTATUS 0xC0000001"),
    ] {
        let rule = format!("refused the negotiation with {words}");
        field_is_refused(|response| response.status = status, &rule);
        let refusal = NegotiateResponse::refusal(status);
        field_is_refused(|response| *response = refusal, &rule);
    }
}

/// Case 6 in the mirror: the acceptor ends the connection instead of an answer.
//= SMBD-3.1.7.1-01 test
//= SMBD-3.1.4.1-08 test
#[test]
fn end_instead_of_a_response() {
    let mut initiator = Initiator::start(settings(), Errand::Send);
    let mut script = Script::accept(&mut initiator);
    script.expect_request(&initiator.settings);
    script.disconnect();
    // The command explains a possible cause to its user.
    let words = [
        "the peer closed the connection",
        "hung up during the negotiation",
    ];
    fails_for_one_of(initiator, &words);
}

/// Case 17 in the mirror: the answer arrives shortly before the timer expires.
//= SMBD-3.1.4.1-06 test
#[test]
fn response_that_is_late() {
    let mut initiator = Initiator::start(timers(settings()), Errand::Echo(500));
    let timeout = initiator.settings.active_negotiation_timeout;
    let mut script = Script::accept(&mut initiator);
    let request = script.expect_request(&initiator.settings);
    script.expect_silence(almost(timeout));
    let response = acceptance();
    let bytes = encoded(|out| response.encode(out));
    script.respond_with(&request, &response, &bytes);
    works(script, initiator);
}

/// Case 18 in the mirror: no answer arrives.
//= SMBD-3.1.4.1-06 test
//= SMBD-3.1.6.1-01 test
#[test]
fn no_response() {
    let mut initiator = Initiator::start(timers(settings()), Errand::Send);
    let timeout = initiator.settings.active_negotiation_timeout;
    let mut script = Script::accept(&mut initiator);
    script.expect_request(&initiator.settings);
    script.expect_terminated_after(script.connected(), timeout);
    let words = [
        "the Negotiation Timer",
        "did not negotiate SMB Direct within",
    ];
    fails_for_one_of(initiator, &words);
}

// Data Transfers (3.1.5.8)

/// Returns an established connection on which the initiator has sent its message.
fn session(errand: Errand) -> (Initiator, Script, Vec<u8>) {
    let mut initiator = Initiator::start(settings(), errand);
    let mut script = Script::accept(&mut initiator);
    script.respond(&initiator.settings, &acceptance());
    let message = script.receive();
    (initiator, script, message)
}

/// Asserts that a segment of `payload` bytes with a changed header ends the connection, whatever
/// the task of the initiator.
fn header_is_refused(payload: usize, change: impl Fn(&mut DataTransfer), rule: &str) {
    for errand in [Errand::Send, Errand::Echo(500)] {
        let (initiator, mut script, _) = session(errand);
        let mut header = script.segment(payload, 0);
        change(&mut header);
        script.transfer(&header, &padded(&content(payload)));
        terminated(script, initiator, rule);
    }
}

/// Asserts that an echo in one segment with changed bytes is accepted.
fn segment_is_taken(change: impl FnOnce(&mut Vec<u8>)) {
    let (initiator, mut script, message) = session(Errand::Echo(500));
    let header = script.segment(message.len(), 0);
    script.transfer_altered(&header, &message, change);
    ends_well(script, initiator);
}

/// Case 25 in the mirror.
//= SMBD-3.1.5.8-01 test
#[test]
fn data_transfer_of_19_bytes() {
    for length in [0, 19] {
        let (initiator, mut script, _) = session(Errand::Send);
        let header = script.empty(1);
        script.transfer_altered(&header, &[], |bytes| bytes.truncate(length));
        let rule = format!("Data Transfer of {length} bytes, 20 are needed");
        terminated(script, initiator, &rule);
    }
}

/// Case 42 in the mirror.
//= SMBD-3.1.5.8-02 test
#[test]
fn data_transfer_that_requests_nothing() {
    for payload in [0, 500] {
        let change = |header: &mut DataTransfer| header.credits_requested = 0;
        header_is_refused(payload, change, "Data Transfer with CreditsRequested 0");
    }
    // One credit is enough.
    segment_is_taken(|bytes| bytes[..2].copy_from_slice(&[1, 0]));
}

/// Case 26 in the mirror.
//= SMBD-3.1.5.8-03 test
#[test]
fn data_offset_that_is_not_aligned() {
    for offset in [23, 25] {
        let change = |header: &mut DataTransfer| {
            header.data_offset = offset;
            header.data_length = 499;
        };
        header_is_refused(500, change, &format!("DataOffset {offset}, not a multiple"));
    }
}

/// Case 27 in the mirror.
//= SMBD-3.1.5.8-04 test
#[test]
fn data_offset_beyond_the_message() {
    for offset in [32, 528, 0xffff_fff8] {
        let change = |header: &mut DataTransfer| header.data_offset = offset;
        let rule = format!("DataOffset {offset} and DataLength 500 in a message of 524 bytes");
        header_is_refused(500, change, &rule);
    }
    // The offset is checked even without a payload.
    let (initiator, mut script, _) = session(Errand::Send);
    let header = DataTransfer {
        data_offset: 24,
        ..script.empty(1)
    };
    script.transfer(&header, &[]);
    let rule = "DataOffset 24 and DataLength 0 in a message of 20 bytes";
    terminated(script, initiator, rule);
}

/// Case 28 in the mirror.
//= SMBD-3.1.5.8-04 test
#[test]
fn data_length_beyond_the_message() {
    for data_length in [501, 0xffff_ffff] {
        let change = |header: &mut DataTransfer| header.data_length = data_length;
        let rule = format!("DataLength {data_length} in a message of 524 bytes");
        header_is_refused(500, change, &rule);
    }
}

/// Case 29 in the mirror.
//= SMBD-3.1.5.7-11 test
//= SMBD-3.1.5.9-07 test
#[test]
fn message_longer_than_max_receive_size() {
    let (initiator, mut script, _) = session(Errand::Send);
    let most = script.max_payload();
    script.send(&content(most + 1), most + 1);
    terminated(script, initiator, "for a receive of 1364");
    let (initiator, mut script, message) = session(Errand::Echo(1340));
    script.send(&message, 1340);
    ends_well(script, initiator);
}

/// Returns settings with the smallest MaxFragmentedRecvSize.
fn least_fragmented() -> Settings {
    Settings {
        max_fragmented_receive_size: 131_072,
        ..settings()
    }
}

/// Cases 30 and 31 in the mirror.
//= SMBD-3.1.5.8-05 test
#[test]
fn more_than_max_fragmented_size() {
    for (payload, remaining) in [
        (0, 131_073),
        (0, 0xffff_ffff),
        (1000, 130_073),
        (1000, 0xffff_ffff),
    ] {
        let mut initiator = Initiator::start(least_fragmented(), Errand::Send);
        let mut script = Script::accept(&mut initiator);
        script.respond(&initiator.settings, &acceptance());
        script.receive();
        let header = script.segment(payload, remaining);
        script.transfer(&header, &padded(&content(payload)));
        let rule = format!(
            "DataLength {payload} and RemainingDataLength {remaining}, \
             above our MaxFragmentedSize 131072"
        );
        terminated(script, initiator, &rule);
    }
}

/// A message of exactly that length is accepted, even if its first segment is empty.
//= SMBD-3.1.5.8-05 test
//= SMBD-3.1.5.8-21 test
#[test]
fn exactly_max_fragmented_size() {
    let mut initiator = Initiator::start(least_fragmented(), Errand::Echo(131_072));
    let mut script = Script::accept(&mut initiator);
    script.respond(&initiator.settings, &acceptance());
    let message = script.receive();
    script.send_segment(&[], message.len());
    script.send(&message, 1340);
    ends_well(script, initiator);
}

/// Cases 32 and 33 in the mirror, and other segments that do not continue a message.
//= SMBD-3.1.5.8-14 test
//= SMBD-3.1.5.8-16 test
//= SMBD-3.1.5.8-18 test
//= SMBD-3.1.5.8-19 test
//= SMBD-3.1.5.8-20 test
//= SMBD-3.1.5.4-11 test
#[test]
fn segments_that_do_not_continue_the_message() {
    for (payload, remaining) in [
        // RemainingDataLength is 0, or one more or less than the correct value.
        (1000, 0),
        (1000, 8001),
        (1000, 7999),
        // The segment has more bytes than the message lacks.
        (1340, 8000),
        // The segment is repeated, or an empty message comes between.
        (1000, 9000),
        (0, 0),
    ] {
        let (initiator, mut script, _) = session(Errand::Send);
        script.send_segment(&content(1000), 9000);
        script.send_segment(&content(payload), remaining);
        let rule = format!(
            "DataLength {payload} and RemainingDataLength {remaining} \
             while 9000 bytes of the message remained"
        );
        terminated(script, initiator, &rule);
    }
    // A message begins with its first segment even if that has no payload.
    let (initiator, mut script, _) = session(Errand::Send);
    script.send_segment(&[], 9000);
    script.send_segment(&content(500), 0);
    terminated(
        script,
        initiator,
        "while 9000 bytes of the message remained",
    );
}

/// Cases 20 to 22 in the mirror.
//= SMBD-3.1.5.8-13 test
//= SMBD-3.1.5.8-21 test
#[test]
fn segments_of_all_lengths() {
    let (initiator, mut script, message) = session(Errand::Echo(65_536));
    script.send(&message, 1000);
    ends_well(script, initiator);

    let (initiator, mut script, message) = session(Errand::Echo(65_536));
    script.send(&message, 1);
    ends_well(script, initiator);

    let (initiator, mut script, message) = session(Errand::Echo(65_536));
    let mut rest = &message[..];
    let down_and_up = [0].into_iter().chain((1..=128).rev()).chain(0..=127);
    for length in down_and_up.cycle() {
        let (payload, left) = rest.split_at(length.min(rest.len()));
        rest = left;
        script.send_segment(payload, rest.len());
        if rest.is_empty() {
            break;
        }
    }
    ends_well(script, initiator);
}

/// Case 23 in the mirror.
//= SMBD-3.1.5.8-04 test
#[test]
fn bytes_after_the_data() {
    for length in [525, 1364] {
        segment_is_taken(|bytes| bytes.resize(length, 0xa5));
    }
}

//= SMBD-2.2-03 test
//= SMBD-2.2-05 test
//= SMBD-2.2.3-05 test
//= SMBD-2.2.3-06 test
#[test]
fn reserved_bits_and_unknown_flags() {
    segment_is_taken(|bytes| bytes[6..8].fill(0xff));
    segment_is_taken(|bytes| bytes[20..24].fill(0xff));
    segment_is_taken(|bytes| bytes[4..6].copy_from_slice(&0xfffe_u16.to_le_bytes()));
    // None of the undefined flags requests a response.
    let (initiator, mut script, message) = session(Errand::Echo(500));
    let header = DataTransfer {
        flags: Flags::from_bits_retain(0xfffe),
        ..script.empty(1)
    };
    script.transfer(&header, &[]);
    script.expect_nothing();
    script.send(&message, 500);
    ends_well(script, initiator);
}

/// Offsets other than 24 are accepted.
//= SMBD-3.1.5.8-03 test
#[test]
fn data_offset_of_32() {
    let (initiator, mut script, message) = session(Errand::Echo(500));
    let header = DataTransfer {
        data_offset: 32,
        ..script.segment(message.len(), 0)
    };
    script.transfer(&header, &[&[0xa5; 12], &message[..]].concat());
    ends_well(script, initiator);
}

/// Empty messages before the answer are not passed to the upper layer.
//= SMBD-3.1.5.8-22 test
#[test]
fn empty_messages_before_the_answer() {
    let (initiator, mut script, message) = session(Errand::Echo(500));
    for _ in 0..10 {
        let header = script.empty(1);
        script.transfer(&header, &[]);
        // An empty message of 24 bytes is legal too.
        let header = script.segment(0, 0);
        script.transfer(&header, &padded(&[]));
    }
    script.send(&message, message.len());
    ends_well(script, initiator);
}

// Credits (3.1.5.8, 3.1.5.9)

/// Credits that exceed 16 bits end the connection.
//= SMBD-3.1.5.8-10 test
//= SMBD-3.1.5.8-11 test
#[test]
fn credits_that_overflow() {
    let (initiator, mut script, _) = session(Errand::Send);
    // The script posts no receives for these credits, because the initiator ends the connection.
    script.overgrant(65_535);
    terminated(script, initiator, "CreditsGranted 65535 on top of");
}

/// One message more than the initiator has granted credits for. The initiator has no credit itself
/// to grant more. If it has not posted another receive yet, the RDMA provider detects the message.
//= SMBD-3.1.5.1-04 test
//= SMBD-3.1.5.8-06 test
#[test]
fn message_without_a_credit() {
    let mut initiator = Initiator::start(settings(), Errand::Send);
    let mut script = Script::accept(&mut initiator);
    let response = NegotiateResponse {
        credits_requested: 4,
        credits_granted: 1,
        ..acceptance()
    };
    script.respond(&initiator.settings, &response);
    script.next();
    for _ in 0..script.send_credits {
        let header = script.empty(0);
        script.transfer(&header, &[]);
    }
    script.expect_nothing();
    script.send_without_credit();
    script.expect_terminated();
    let rules = ["held no send credit", "a Send without a posted receive"];
    fails_for_one_of(initiator, &rules);
}

/// Case 37 in the mirror: one credit in each direction.
//= SMBD-3.1.5.9-03 test
#[test]
fn one_credit_each_way() {
    let settings = Settings {
        send_credit_target: 1,
        receive_credit_max: 1,
        ..settings()
    };
    let mut initiator = Initiator::start(settings, Errand::Echo(65_536));
    let mut script = Script::accept(&mut initiator);
    let response = NegotiateResponse {
        credits_requested: 1,
        credits_granted: 1,
        ..acceptance()
    };
    script.respond(&initiator.settings, &response);
    let message = script.receive();
    script.send(&message, 1000);
    ends_well(script, initiator);
}

/// Case 39 in the mirror: the acceptor spends all its credits.
//= SMBD-3.1.5.9-09 test
#[test]
fn all_credits_of_the_acceptor() {
    let mut initiator = Initiator::start(settings(), Errand::Echo(65_536));
    let mut script = Script::accept(&mut initiator);
    let response = NegotiateResponse {
        credits_requested: 10,
        ..acceptance()
    };
    script.respond(&initiator.settings, &response);
    let message = script.receive();
    let (first, rest) = message.split_at(script.send_credits as usize * 1000);
    for (at, payload) in first.chunks(1000).enumerate() {
        script.send_segment(payload, message.len() - (at + 1) * 1000);
    }
    let Transfer { header, .. } = script.next();
    assert!(header.credits_granted > 0 && header.data_length == 0);
    script.send(rest, 1000);
    ends_well(script, initiator);
}

/// Cases 40 and 41 in the mirror: the acceptor grants one credit and never another.
//= SMBD-3.1.5.1-04 test
//= SMBD-3.1.5.1-06 test
//= SMBD-WIN-CGT-01 test
#[test]
fn no_more_credits() {
    let mut initiator = Initiator::start(timers(settings()), Errand::Echo(65_536));
    let mut script = Script::accept(&mut initiator);
    let response = NegotiateResponse {
        credits_granted: 10,
        ..acceptance()
    };
    script.respond(&initiator.settings, &response);
    let since = script.now();
    for at in 1..=10 {
        let Transfer { header, .. } = script.next();
        assert_eq!(header.data_length, 1340, "segment {at}");
        if at == 10 {
            assert!(header.credits_granted > 0, "the last credit gives one");
        }
    }
    let timeout = initiator.settings.credit_grant_timeout.unwrap();
    script.expect_terminated_after(since, timeout);
    fails(initiator, "the Send Credit Grant Timer");
}

// Keepalives (3.1.6.2)

/// Case 34 in the mirror: the acceptor sends a keepalive.
//= SMBD-3.1.5.8-09 test
#[test]
fn keepalive_of_the_acceptor() {
    let (initiator, mut script, message) = session(Errand::Echo(500));
    script.ask();
    let Transfer { header, payload } = script.next();
    assert!(header.credits_granted > 0);
    assert_eq!(header.flags, Flags::empty());
    assert_eq!(payload, Bytes::new());
    script.expect_nothing();
    script.send(&message, 500);
    ends_well(script, initiator);
}

/// Case 35 in the mirror: the initiator sends a keepalive after each KeepaliveInterval of silence.
//= SMBD-3.1.6.2-02 test
//= SMBD-3.1.5.1-09 test
#[test]
fn keepalive_of_the_initiator() {
    let mut initiator = Initiator::start(timers(settings()), Errand::Echo(500));
    let interval = initiator.settings.keepalive_interval;
    let mut script = Script::accept(&mut initiator);
    let mut since = script.now();
    script.respond(&initiator.settings, &acceptance());
    let message = script.receive();
    for flagged in [true, false] {
        let Transfer { header, .. } = script.next_within(interval + PROMPT_TIMEOUT);
        assert_took(script.now() - since, interval);
        assert_eq!(header.flags, Flags::RESPONSE_REQUESTED);
        assert_eq!(header.data_length, 0);
        since = script.now();
        if flagged {
            script.ask();
            assert_eq!(script.next().header.flags, Flags::empty());
        } else {
            let header = script.empty(1);
            script.transfer(&header, &[]);
        }
    }
    script.send(&message, 500);
    ends_well(script, initiator);
}

/// Case 36 in the mirror: the acceptor does not answer a keepalive.
//= SMBD-3.1.6.2-01 test
//= SMBD-3.1.5.1-10 test
#[test]
fn unanswered_keepalive_of_the_initiator() {
    let mut initiator = Initiator::start(timers(settings()), Errand::Echo(500));
    let interval = initiator.settings.keepalive_interval;
    let mut script = Script::accept(&mut initiator);
    let since = script.now();
    script.respond(&initiator.settings, &acceptance());
    script.receive();
    let Transfer { header, .. } = script.next_within(interval + PROMPT_TIMEOUT);
    assert_eq!(header.flags, Flags::RESPONSE_REQUESTED);
    let all: Duration = interval + initiator.settings.keepalive_response_timeout;
    script.expect_terminated_after(since, all);
    fails(
        initiator,
        "the Idle Connection Timer, a keepalive was not answered",
    );
}
