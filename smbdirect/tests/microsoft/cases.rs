//! Cases 1 to 42 of Microsoft's suite for SMB Direct servers (WindowsProtocolTestSuites, MS-SMBD),
//! with the numbers and names of the suite, as far as they are below SMB2.
//!
//! The client is a script ([`Script`]). The server is that of `crate::backend`: the engine in
//! virtual time, or a running `smbdirect listen --echo`. Where the suite writes a file and reads it
//! back over SMB2, the script sends a message that the server echoes. Where the suite opens an SMB2
//! session to test a connection, the script calls [`Script::works`]. `Script::check` checks every
//! message of the server for the rules that always apply: credits, flags, reserved fields, padding,
//! lengths and order.
//!
//! A connection is "terminated" if it ends without a further message, the server names the broken
//! rule, and the server accepts the next connection.
//!
//! Two things differ from the suite. It runs cases 32 and 33 only if its setting
//! CheckDataLengthRemainingDataLength is on, because Windows does not check these; here they always
//! run. In case 41 the connection ends after the 5 s of the Send Credit Grant Timer, as the
//! document of the suite says, while its code waits for the 120 s of the keepalive.

use smbdirect::{
    Settings,
    wire::{DataTransfer, Flags, NegotiateRequest, NegotiateResponse, Status},
};

use crate::{
    backend::{PROMPT_TIMEOUT, Server, almost, assert_took, timers},
    script::{Script, Transfer, content, encoded, padded, proposal},
};

/// Length in bytes of what the suite calls a file of moderate size.
const MODERATE_BYTES: usize = 65_536;

fn server() -> Server {
    Server::start(Settings::default())
}

/// Returns a connection that negotiated the proposal of the suite's client.
fn session(server: &Server) -> Script {
    Script::negotiate(server, &proposal())
}

/// Asserts that the server accepts the next connection and that it works.
fn serves(server: &Server) {
    let mut script = session(server);
    script.works();
    script.disconnect();
}

/// Asserts that the server ends the connection immediately because of `rule`.
fn terminated(mut script: Script, server: &Server, rule: &str) {
    script.expect_terminated();
    server.expect_said(rule);
    serves(server);
}

/// Asserts that the request is accepted and that the connection works.
fn negotiates(server: &Server, request: &NegotiateRequest) -> NegotiateResponse {
    let mut script = Script::connect(server);
    script.say(&encoded(|out| request.encode(out)));
    let response = script.expect_response(request);
    script.works();
    script.disconnect();
    response
}

/// Asserts that the request ends the connection without an answer.
fn is_terminated(server: &Server, request: &NegotiateRequest, rule: &str) {
    let mut script = Script::connect(server);
    script.say(&encoded(|out| request.encode(out)));
    terminated(script, server, rule);
}

/// Asserts that the version range is refused with STATUS_NOT_SUPPORTED and zeros in all other
/// fields, and that the connection then ends.
fn is_not_supported(min_version: u16, max_version: u16) {
    let server = server();
    let request = NegotiateRequest {
        min_version,
        max_version,
        ..proposal()
    };
    let mut script = Script::connect(&server);
    script.say(&encoded(|out| request.encode(out)));
    let mut expected = [0; 32];
    expected[..4].copy_from_slice(&[0, 1, 0, 1]);
    expected[12..16].copy_from_slice(&Status::NOT_SUPPORTED.0.to_le_bytes());
    assert_eq!(script.expect_message()[..], expected);
    terminated(script, &server, "refused with STATUS_NOT_SUPPORTED");
}

fn is_supported(min_version: u16, max_version: u16) {
    let request = NegotiateRequest {
        min_version,
        max_version,
        ..proposal()
    };
    negotiates(&server(), &request);
}

// SmbdNegotiate

/// 1. BVT_SmbdNegotiate_Basic
//= SMBD-3.1.5.3-01 test
//= SMBD-3.1.5.3-04 test
//= SMBD-3.1.5.6-09 test
//= SMBD-3.1.5.9-08 test
//= SMBD-2.2.2-03 test
#[test]
fn bvt_smbd_negotiate_basic() {
    let request = NegotiateRequest {
        credits_requested: 10,
        preferred_send_size: 1024,
        max_receive_size: 1024,
        max_fragmented_size: 128 << 10,
        ..proposal()
    };
    let response = negotiates(&server(), &request);
    let expected = NegotiateResponse {
        min_version: 0x0100,
        max_version: 0x0100,
        negotiated_version: 0x0100,
        credits_requested: 255,
        credits_granted: 10,
        status: Status::SUCCESS,
        max_read_write_size: 8 << 20,
        preferred_send_size: 1024,
        max_receive_size: 1024,
        max_fragmented_size: 1 << 20,
    };
    assert_eq!(response, expected);
}

fn preferred_send_size(preferred_send_size: u32) -> u32 {
    let request = NegotiateRequest {
        preferred_send_size,
        ..proposal()
    };
    negotiates(&server(), &request).max_receive_size
}

/// 2. SmbdNegotiate_PreferredSendSizeWithZero
//= SMBD-3.1.5.6-08 test
#[test]
fn smbd_negotiate_preferred_send_size_with_zero() {
    assert_eq!(preferred_send_size(0), 128);
}

/// 3. SmbdNegotiate_PreferredSendSizeLessThan128
//= SMBD-3.1.5.6-07 test
//= SMBD-3.1.5.6-08 test
#[test]
fn smbd_negotiate_preferred_send_size_less_than_128() {
    for size in [127, 128] {
        assert_eq!(preferred_send_size(size), 128);
    }
}

/// 4. SmbdNegotiate_PreferredSendSizeMaxValue
//= SMBD-3.1.5.6-07 test
#[test]
fn smbd_negotiate_preferred_send_size_max_value() {
    for size in [8136, u32::MAX] {
        assert_eq!(preferred_send_size(size), size.min(8192));
    }
}

/// 5. SmbdNegotiate_Redundancy
//= SMBD-3.1.5.6-01 test
//= SMBD-3.1.7.2-04 test
#[test]
fn smbd_negotiate_redundancy() {
    let server = server();
    let mut script = Script::connect(&server);
    let mut message = encoded(|out| proposal().encode(out));
    message.resize(512, 0xa5);
    script.say(&message);
    script.expect_response(&proposal());
    script.works();
}

/// 6. SmbdNegotiate_DisconnectAfterNegotiate
//= SMBD-3.1.7.1-01 test
#[test]
fn smbd_negotiate_disconnect_after_negotiate() {
    let server = server();
    session(&server).disconnect();
    serves(&server);
}

/// 7. SmbdNegotiate_UncompletedMessage
//= SMBD-3.1.5.6-01 test
#[test]
fn smbd_negotiate_uncompleted_message() {
    let server = server();
    let mut script = Script::connect(&server);
    script.say(&encoded(|out| proposal().encode(out))[..19]);
    terminated(script, &server, "Negotiate Request of 19 bytes");
    negotiates(&server, &proposal());
}

/// 8. SmbdNegotiate_VersionRangeNotCover0x0100_LessThanMinVersion
//= SMBD-3.1.5.6-02 test
//= SMBD-3.1.5.3-02 test
//= SMBD-3.1.5.3-03 test
#[test]
fn smbd_negotiate_version_range_not_cover_0x0100_less_than_min_version() {
    is_not_supported(0x0101, 0xffff);
}

/// 9. SmbdNegotiate_VersionRangeNotCover0x0100_LargerThanMaxVersion
//= SMBD-3.1.5.6-02 test
//= SMBD-3.1.5.3-02 test
//= SMBD-3.1.5.3-03 test
#[test]
fn smbd_negotiate_version_range_not_cover_0x0100_larger_than_max_version() {
    is_not_supported(0x0000, 0x00ff);
}

/// 10. SmbdNegotiate_VersionRangeCover0x0100_EqualMinVersion
//= SMBD-3.1.5.6-03 test
#[test]
fn smbd_negotiate_version_range_cover_0x0100_equal_min_version() {
    is_supported(0x0100, 0xffff);
}

/// 11. SmbdNegotiate_VersionRangeCover0x0100_EqualMaxVersion
//= SMBD-3.1.5.6-03 test
#[test]
fn smbd_negotiate_version_range_cover_0x0100_equal_max_version() {
    is_supported(0x0000, 0x0100);
}

/// 12. SmbdNegotiate_VersionRangeCover0x0100_InMiddle
//= SMBD-3.1.5.6-03 test
#[test]
fn smbd_negotiate_version_range_cover_0x0100_in_middle() {
    is_supported(0x00ff, 0x0101);
}

/// 13. SmbdNegotiate_VersionRangeCover0x0100_EqualMinVersionAndMaxVersion
//= SMBD-3.1.5.6-03 test
#[test]
fn smbd_negotiate_version_range_cover_0x0100_equal_min_version_and_max_version() {
    is_supported(0x0100, 0x0100);
}

/// 14. SmbdNegotiate_NegativeParameter_CreditsRequested
//= SMBD-3.1.5.6-04 test
//= SMBD-3.1.5.9-08 test
#[test]
fn smbd_negotiate_negative_parameter_credits_requested() {
    let server = server();
    let request = |credits_requested| NegotiateRequest {
        credits_requested,
        ..proposal()
    };
    is_terminated(&server, &request(0), "CreditsRequested 0");
    for (requested, granted) in [(1, 1), (65_535, 255)] {
        let response = negotiates(&server, &request(requested));
        assert_eq!(response.credits_granted, granted);
    }
}

/// 15. SmbdNegotiate_NegativeParameter_MaxReceiveSize
//= SMBD-3.1.5.6-05 test
#[test]
fn smbd_negotiate_negative_parameter_max_receive_size() {
    let server = server();
    let request = |max_receive_size| NegotiateRequest {
        max_receive_size,
        ..proposal()
    };
    is_terminated(&server, &request(127), "MaxReceiveSize 127");
    for (size, answer) in [(128, 128), (u32::MAX, 8136)] {
        let response = negotiates(&server, &request(size));
        assert_eq!(response.preferred_send_size, answer);
    }
}

/// 16. SmbdNegotiate_NegativeParameter_MaxFragmentedSize
//= SMBD-3.1.5.6-06 test
#[test]
fn smbd_negotiate_negative_parameter_max_fragmented_size() {
    let server = server();
    let request = |max_fragmented_size| NegotiateRequest {
        max_fragmented_size,
        ..proposal()
    };
    is_terminated(&server, &request(131_071), "MaxFragmentedSize 131071");
    for size in [131_072, u32::MAX] {
        negotiates(&server, &request(size));
    }
}

/// 17. SmbdNegotiate_NegotiationTimer
//= SMBD-3.1.6.1-01 test
//= SMBD-3.1.7.2-02 test
#[test]
fn smbd_negotiate_negotiation_timer() {
    let server = Server::start(timers(Settings::default()));
    let mut script = Script::connect(&server);
    script.expect_silence(almost(server.settings.passive_negotiation_timeout));
    script.say(&encoded(|out| proposal().encode(out)));
    script.expect_response(&proposal());
    script.works();
}

/// 18. SmbdNegotiate_NegotiationTimer_Timeout
//= SMBD-3.1.6.1-01 test
//= SMBD-3.1.7.2-02 test
#[test]
fn smbd_negotiate_negotiation_timer_timeout() {
    let server = Server::start(timers(Settings::default()));
    let mut script = Script::connect(&server);
    let since = script.connected();
    script.expect_terminated_after(since, server.settings.passive_negotiation_timeout);
    server.expect_said("the Negotiation Timer");
    serves(&server);
}

// SmbdDataTransfer

/// 19. BVT_SmbdDataTransfer_Basic_SendSmallBytesOfData
//= SMBD-3.1.5.8-13 test
//= SMBD-3.1.5.8-17 test
//= SMBD-3.1.5.4-06 test
#[test]
fn bvt_smbd_data_transfer_basic_send_small_bytes_of_data() {
    let server = server();
    let mut script = session(&server);
    let message = content(500);
    script.send(&message, message.len());
    let Transfer { header, payload } = script.next();
    assert!(header.credits_requested > 0);
    assert_eq!(header.flags, Flags::empty());
    assert_eq!(header.remaining_data_length, 0);
    assert_eq!(header.data_offset % 8, 0);
    assert_eq!(header.data_length, 500);
    assert_eq!(payload, message);
    script.expect_nothing();
}

/// 20. BVT_SmbdDataTransfer_Basic_SendModerateBytesData
//= SMBD-3.1.5.8-13 test
//= SMBD-3.1.5.8-14 test
//= SMBD-3.1.5.8-17 test
#[test]
fn bvt_smbd_data_transfer_basic_send_moderate_bytes_data() {
    let server = server();
    session(&server).echo(&content(MODERATE_BYTES), 1000);
}

/// 21. SmbdDataTransfer_VariableLengthSegment: 0, 128, 127 and so on to 1, 0, 1, 2 and so on.
//= SMBD-3.1.5.8-21 test
#[test]
fn smbd_data_transfer_variable_length_segment() {
    let server = server();
    let mut script = session(&server);
    let message = content(MODERATE_BYTES);
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
    assert!(script.receive() == message);
}

/// 22. SmbdDataTransfer_SmallLengthSegment: 65,536 segments of one byte.
//= SMBD-3.1.5.8-21 test
#[test]
fn smbd_data_transfer_small_length_segment() {
    let server = server();
    session(&server).echo(&content(MODERATE_BYTES), 1);
}

/// 23. SmbdDataTransfer_Redundancy: any bytes may follow the data.
//= SMBD-3.1.5.8-04 test
#[test]
fn smbd_data_transfer_redundancy() {
    let server = server();
    let mut script = session(&server);
    let longest = script.max_send_size as usize;
    for length in [525, longest - 1, longest] {
        let message = content(500);
        let header = script.segment(message.len(), 0);
        script.transfer_altered(&header, &message, |bytes| bytes.resize(length, 0xa5));
        assert!(script.receive() == message);
    }
}

/// 24. SmbdDataTransfer_ReceiveMaxReceiveSize
//= SMBD-3.1.5.4-05 test
//= SMBD-3.1.5.4-06 test
//= SMBD-3.1.5.4-07 test
#[test]
fn smbd_data_transfer_receive_max_receive_size() {
    for max_receive_size in [128, 1364, 8192] {
        let request = NegotiateRequest {
            max_receive_size,
            ..proposal()
        };
        let server = server();
        let mut script = Script::negotiate(&server, &request);
        let message = content(20_000);
        script.send(&message, script.max_payload());
        let payload = max_receive_size.min(8136) as usize - 24;
        let mut left = message.len();
        while left > 0 {
            let Transfer { header, .. } = script.next();
            if header.data_length == 0 {
                continue;
            }
            assert_eq!(header.data_offset % 8, 0);
            let (length, remaining) = (header.data_length, header.remaining_data_length);
            assert_eq!(length as usize + remaining as usize, left);
            assert_eq!(length as usize, payload.min(left), "as much as fits");
            left = remaining as usize;
        }
    }
}

/// 25. SmbdDataTransfer_UncompletedMessage
//= SMBD-3.1.5.8-01 test
#[test]
fn smbd_data_transfer_uncompleted_message() {
    let server = server();
    let mut script = session(&server);
    let header = script.empty(1);
    script.transfer_altered(&header, &[], |bytes| bytes.truncate(19));
    terminated(script, &server, "Data Transfer of 19 bytes");
}

/// Asserts that a segment of `payload` bytes with a changed header ends the connection.
fn header_is_refused(payload: usize, change: impl FnOnce(&mut DataTransfer), rule: &str) {
    let server = server();
    let mut script = session(&server);
    let mut header = script.segment(payload, 0);
    change(&mut header);
    script.transfer(&header, &padded(&content(payload)));
    terminated(script, &server, rule);
}

/// 26. SmbdDataTransfer_NegativeParameter_DataOffset_Against8ByteAligned
//= SMBD-3.1.5.8-03 test
#[test]
fn smbd_data_transfer_negative_parameter_data_offset_against_8_byte_aligned() {
    for offset in [23, 25] {
        // The payload stays inside the message.
        let change = |header: &mut DataTransfer| {
            header.data_offset = offset;
            header.data_length = 499;
        };
        header_is_refused(500, change, &format!("DataOffset {offset}, not a multiple"));
    }
}

/// 27. SmbdDataTransfer_NegativeParameter_DataOffset_AgainstMessageLength
//= SMBD-3.1.5.8-04 test
#[test]
fn smbd_data_transfer_negative_parameter_data_offset_against_message_length() {
    for (offset, rule) in [
        (32, "DataOffset 32 and DataLength 500 in a message of 524"),
        (0xffff_ffff, "DataOffset 4294967295"),
        // The largest value of the suite is not a multiple of 8; this one is.
        (0xffff_fff8, "in a message of 524 bytes"),
    ] {
        header_is_refused(500, |header| header.data_offset = offset, rule);
    }
}

/// 28. SmbdDataTransfer_NegativeParameter_DataLength_AgainstMessageLength
//= SMBD-3.1.5.8-04 test
#[test]
fn smbd_data_transfer_negative_parameter_data_length_against_message_length() {
    for (payload, data_length) in [(500, 501), (1340, 1341), (500, 0xffff_ffff)] {
        let rule = format!("DataLength {data_length} in a message of {}", payload + 24);
        header_is_refused(payload, |header| header.data_length = data_length, &rule);
    }
}

/// 29. SmbdDataTransfer_NegativeParameter_DataLength_AgainstMaxReceiveSize
//= SMBD-3.1.5.9-07 test
#[test]
fn smbd_data_transfer_negative_parameter_data_length_against_max_receive_size() {
    let server = server();
    let mut script = session(&server);
    let most = script.max_payload();
    script.echo(&content(most), most);
    script.send(&content(most + 1), most + 1);
    terminated(script, &server, "for a receive of 1364");
}

/// 30. SmbdDataTransfer_NegativeParameter_AgainstMaxFragmentedSize
//= SMBD-3.1.5.8-05 test
#[test]
fn smbd_data_transfer_negative_parameter_against_max_fragmented_size() {
    let server = server();
    let most = server.settings.max_fragmented_receive_size;
    let request = NegotiateRequest {
        max_fragmented_size: most,
        ..proposal()
    };
    let mut script = Script::negotiate(&server, &request);
    let size = script.max_payload();
    script.echo(&content(most as usize), size);
    // There are more segments than credits; the server grants more in empty messages.
    assert!(script.empty_messages > 0);
    // The first segment of the next message already shows that it is too long.
    let first = script.segment(size, most as usize + 1 - size);
    script.transfer(&first, &padded(&content(size)));
    terminated(
        script,
        &server,
        "RemainingDataLength 1047237, above our MaxFragmentedSize 1048576",
    );
}

/// 31. SmbdDataTransfer_NegativeParameter_RemainingDataLength_AgainstMaxFragmentedSize
//= SMBD-3.1.5.8-05 test
#[test]
fn smbd_data_transfer_negative_parameter_remaining_data_length_against_max_fragmented_size() {
    for remaining in [(1 << 20) + 1, 0xffff_ffff] {
        let change = |header: &mut DataTransfer| header.remaining_data_length = remaining;
        header_is_refused(0, change, "above our MaxFragmentedSize 1048576");
    }
}

/// Asserts that a changed header in segment number `wrong` of ten ends the connection.
fn segment_is_refused(wrong: usize, change: impl Fn(&mut DataTransfer)) {
    let server = server();
    let mut script = session(&server);
    let message = content(10_000);
    for (at, payload) in message.chunks(1000).enumerate() {
        let mut header = script.segment(1000, 9000 - at * 1000);
        if at == wrong {
            change(&mut header);
        }
        script.transfer(&header, &padded(payload));
        if at == wrong {
            break;
        }
    }
    let rule = format!(
        "while {} bytes of the message remained",
        10_000 - wrong * 1000
    );
    terminated(script, &server, &rule);
}

/// 32. SmbdDataTransfer_NegativeParameter_RemainingDataLength_Zero
//= SMBD-3.1.5.8-16 test
//= SMBD-3.1.5.8-19 test
//= SMBD-3.1.5.8-20 test
#[test]
fn smbd_data_transfer_negative_parameter_remaining_data_length_zero() {
    for wrong in [1, 8] {
        segment_is_refused(wrong, |header| header.remaining_data_length = 0);
    }
}

/// 33. SmbdDataTransfer_NegativeParameter_RemainingDataLength_AgainstFragmentReassemblyRemaining
//= SMBD-3.1.5.8-18 test
//= SMBD-3.1.5.8-20 test
#[test]
fn smbd_data_transfer_negative_parameter_remaining_data_length_against_fragment_reassembly_remaining()
 {
    segment_is_refused(1, |header| header.remaining_data_length += 1);
}

/// Asserts that a message answers a keepalive: it grants credits, requests no response, and is 20
/// bytes long.
fn is_answer(Transfer { header, .. }: &Transfer) {
    assert!(header.credits_granted > 0, "{header:?}");
    assert_eq!(header.flags, Flags::empty());
    let lengths = (
        header.remaining_data_length,
        header.data_offset,
        header.data_length,
    );
    assert_eq!(lengths, (0, 0, 0));
}

/// 34. SmbdDataTransfer_IdleConnection_Client
//= SMBD-3.1.5.8-09 test
//= SMBD-3.1.5.5-02 test
#[test]
fn smbd_data_transfer_idle_connection_client() {
    let server = Server::start(timers(Settings::default()));
    let mut script = session(&server);
    script.works();
    script.expect_silence(almost(server.settings.keepalive_interval));
    script.ask();
    is_answer(&script.next());
    script.expect_nothing();
    script.works();
}

/// 35. SmbdDataTransfer_IdleConnection_Server
//= SMBD-3.1.6.2-02 test
//= SMBD-3.1.5.1-09 test
//= SMBD-3.1.5.8-09 test
#[test]
fn smbd_data_transfer_idle_connection_server() {
    let server = Server::start(timers(Settings::default()));
    let interval = server.settings.keepalive_interval;
    let mut script = session(&server);
    let mut since = script.now();
    script.works();
    for _ in 0..2 {
        let Transfer { header, .. } = script.next_within(interval + PROMPT_TIMEOUT);
        assert_took(script.now() - since, interval);
        assert_eq!(header.flags, Flags::RESPONSE_REQUESTED);
        assert_eq!(header.data_length, 0);
        assert!(header.credits_requested > 0);
        // The answer of the suite is a keepalive itself, as the specification says literally.
        since = script.now();
        script.ask();
        let answer = script.next();
        assert_eq!(answer.header.flags, Flags::empty());
        assert_eq!(answer.header.data_length, 0);
    }
    // An answer without the flag is accepted too.
    script.next_within(interval + PROMPT_TIMEOUT);
    assert_took(script.now() - since, interval);
    let header = script.empty(1);
    script.transfer(&header, &[]);
    script.works();
}

/// 36. SmbdDataTransfer_IdleConnection_Server_Timeout
//= SMBD-3.1.6.2-01 test
//= SMBD-3.1.5.1-10 test
#[test]
fn smbd_data_transfer_idle_connection_server_timeout() {
    let server = Server::start(timers(Settings::default()));
    let interval = server.settings.keepalive_interval;
    let mut script = session(&server);
    let since = script.now();
    script.works();
    let Transfer { header, .. } = script.next_within(interval + PROMPT_TIMEOUT);
    assert_eq!(header.flags, Flags::RESPONSE_REQUESTED);
    let all = interval + server.settings.keepalive_response_timeout;
    script.expect_terminated_after(since, all);
    server.expect_said("the Idle Connection Timer, a keepalive was not answered");
    serves(&server);
}

// SmbdCreditMgmt

/// Returns a server and a client that request and grant at most this number of credits.
fn with_credits(credits: u16) -> (Server, Script) {
    let server = Server::start(Settings {
        send_credit_target: credits,
        receive_credit_max: credits,
        ..Settings::default()
    });
    let request = NegotiateRequest {
        credits_requested: credits,
        ..proposal()
    };
    let script = Script::negotiate(&server, &request);
    assert_eq!(script.send_credits, credits.into());
    (server, script)
}

/// 37. BVT_SmbdCreditMgmt_OperationWithMinimumCredits
//= SMBD-3.1.5.9-03 test
#[test]
fn bvt_smbd_credit_mgmt_operation_with_minimum_credits() {
    let (_server, mut script) = with_credits(1);
    script.echo(&content(MODERATE_BYTES), 1000);
}

/// 38. SmbdCreditMgmt_OperationWithLimitedCredits
//= SMBD-3.1.5.9-04 test
#[test]
fn smbd_credit_mgmt_operation_with_limited_credits() {
    let (_server, mut script) = with_credits(10);
    script.echo(&content(MODERATE_BYTES), 1000);
}

fn is_grant(Transfer { header, .. }: &Transfer) {
    assert!(header.credits_granted > 0, "{header:?}");
    assert!(header.credits_requested > 0, "{header:?}");
    let lengths = (
        header.data_offset,
        header.data_length,
        header.remaining_data_length,
    );
    assert_eq!(lengths, (0, 0, 0));
}

/// 39. SmbdCreditMgmt_ConsumeAllSendCredits
///
/// Spends them on empty messages, and on segments of an incomplete message.
//= SMBD-3.1.5.9-09 test
//= SMBD-3.1.5.8-07 test
#[test]
fn smbd_credit_mgmt_consume_all_send_credits() {
    let (_server, mut script) = with_credits(10);
    for _ in 0..10 {
        let header = script.empty(1);
        script.transfer(&header, &[]);
    }
    is_grant(&script.next());
    script.works();

    let (_server, mut script) = with_credits(10);
    let message = content(20_000);
    for (at, payload) in message[..10_000].chunks(1000).enumerate() {
        script.send_segment(payload, 19_000 - at * 1000);
    }
    is_grant(&script.next());
    for (at, payload) in message[10_000..].chunks(1000).enumerate() {
        script.send_segment(payload, 9000 - at * 1000);
    }
    assert!(script.receive() == message);
}

/// Returns a client whose receives hold 104 bytes of payload.
fn with_small_receives(server: &Server) -> Script {
    let request = NegotiateRequest {
        max_receive_size: 128,
        ..proposal()
    };
    Script::negotiate(server, &request)
}

/// Receives the first ten segments of a message, for which the server spends its ten credits.
fn ten_segments(script: &mut Script, message: &[u8]) -> Vec<u8> {
    let header = DataTransfer {
        data_offset: 24,
        data_length: message.len() as u32,
        ..script.empty(10)
    };
    script.transfer(&header, &padded(message));
    let mut payloads = Vec::new();
    for at in 1..=10 {
        let Transfer { header, payload } = script.next();
        assert_eq!(header.data_length, 104, "segment {at}");
        payloads.extend_from_slice(&payload);
        if at == 10 {
            assert!(header.credits_granted > 0, "the last credit gives one");
        }
    }
    payloads
}

/// 40. SmbdCreditMgmt_ConsumeAllReceiveCredits
//= SMBD-3.1.5.1-04 test
//= SMBD-3.1.5.1-06 test
//= SMBD-3.1.5.9-10 test
#[test]
fn smbd_credit_mgmt_consume_all_receive_credits() {
    let server = server();
    let mut script = with_small_receives(&server);
    let message = content(1300);
    let mut received = ten_segments(&mut script, &message);
    script.expect_nothing();
    let header = script.empty(10);
    script.transfer(&header, &[]);
    received.extend(script.receive());
    assert!(received == message);
    script.works();
}

/// 41. SmbdCreditMgmt_ConsumeAllCreditServer_Timeout
//= SMBD-WIN-CGT-01 test
#[test]
fn smbd_credit_mgmt_consume_all_credit_server_timeout() {
    let server = Server::start(timers(Settings::default()));
    let mut script = with_small_receives(&server);
    let since = script.now();
    ten_segments(&mut script, &content(1300));
    let timeout = server.settings.credit_grant_timeout.unwrap();
    script.expect_terminated_after(since, timeout);
    server.expect_said("the Send Credit Grant Timer");
    serves(&server);
}

/// 42. SmbdCreditMgmt_NegativeParameter_CreditRequested
//= SMBD-3.1.5.8-02 test
#[test]
fn smbd_credit_mgmt_negative_parameter_credit_requested() {
    let change = |header: &mut DataTransfer| header.credits_requested = 0;
    header_is_refused(500, change, "Data Transfer with CreditsRequested 0");
    header_is_refused(0, change, "Data Transfer with CreditsRequested 0");
}
