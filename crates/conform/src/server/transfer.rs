//! SmbdDataTransfer: cases 19 to 33.

use smbdirect::wire::{DataTransfer, Flags};

use crate::{
    case::{Case, Group, ServerTrial},
    outcome::{Verdict, require},
    script::{Script, Transfer, padded, proposal, proposal_with},
};

/// Length in bytes of the suite's "file of moderate size".
pub(super) const MODERATE_BYTES: usize = 65_536;

pub(super) const CASES: &[Case] = &[
    Group::Microsoft.case(
        "m19",
        "BVT_SmbdDataTransfer_Basic_SendSmallBytesOfData",
        "3.1.5.8",
        "sends a request in one segment; the answer arrives, and nothing after it",
        small_bytes,
    ),
    Group::Microsoft.case(
        "m20",
        "BVT_SmbdDataTransfer_Basic_SendModerateBytesData",
        "3.1.5.8",
        "sends a request of 65536 bytes, or the longest one, in segments of 1000; it is answered",
        moderate_bytes,
    ),
    Group::Microsoft.case(
        "m21",
        "SmbdDataTransfer_VariableLengthSegment",
        "3.1.5.8",
        "sends 65536 bytes, or the longest request, in segments of 0 bytes, then of 128 down to \
         1, then of 0 up to 127, and so on; it is answered",
        variable_length_segment,
    ),
    Group::Microsoft.case(
        "m22",
        "SmbdDataTransfer_SmallLengthSegment",
        "3.1.5.8",
        "sends 65536 bytes, or the longest request, in segments of one byte; it is answered",
        small_length_segment,
    ),
    Group::Microsoft.case(
        "m23",
        "SmbdDataTransfer_Redundancy",
        "3.1.5.8",
        "sends bytes after the payload, up to the server's MaxReceiveSize; they are ignored",
        redundancy,
    ),
    Group::Microsoft.case(
        "m24",
        "SmbdDataTransfer_ReceiveMaxReceiveSize",
        "3.1.5.4",
        "negotiates three receive sizes; DataOffset and RemainingDataLength of each segment fit",
        receive_max_receive_size,
    ),
    Group::Microsoft.case(
        "m25",
        "SmbdDataTransfer_UncompletedMessage",
        "3.1.5.8",
        "sends a Data Transfer of 19 bytes; the server terminates the connection",
        uncompleted_message,
    ),
    Group::Microsoft.case(
        "m26",
        "SmbdDataTransfer_NegativeParameter_DataOffset_Against8ByteAligned",
        "3.1.5.8",
        "sends DataOffset 23 and 25; the server terminates the connection",
        data_offset_against_8_byte_aligned,
    ),
    Group::Microsoft.case(
        "m27",
        "SmbdDataTransfer_NegativeParameter_DataOffset_AgainstMessageLength",
        "3.1.5.8",
        "sends DataOffset 32, 4294967288 and 4294967295, with which the data ends beyond the \
         message; the server terminates the connection",
        data_offset_against_message_length,
    ),
    Group::Microsoft.case(
        "m28",
        "SmbdDataTransfer_NegativeParameter_DataLength_AgainstMessageLength",
        "3.1.5.8",
        "sends a DataLength of one byte more than the message has, and 4294967295; the server \
         terminates the connection",
        data_length_against_message_length,
    ),
    Group::Microsoft.case(
        "m29",
        "SmbdDataTransfer_NegativeParameter_DataLength_AgainstMaxReceiveSize",
        "3.1.5.9",
        "sends a message of exactly the server's MaxReceiveSize, which is answered, and one that \
         is a byte longer, for which the server terminates the connection",
        data_length_against_max_receive_size,
    ),
    Group::Microsoft.case(
        "m30",
        "SmbdDataTransfer_NegativeParameter_AgainstMaxFragmentedSize",
        "3.1.5.8",
        "sends a request of exactly the server's MaxFragmentedSize, if the upper layer has one, \
         and begins one that is a byte longer, for which the server terminates the connection",
        against_max_fragmented_size,
    ),
    Group::Microsoft.case(
        "m31",
        "SmbdDataTransfer_NegativeParameter_RemainingDataLength_AgainstMaxFragmentedSize",
        "3.1.5.8",
        "sends an empty message with a RemainingDataLength above the server's MaxFragmentedSize; \
         the server terminates the connection",
        remaining_data_length_against_max_fragmented_size,
    ),
    Group::Microsoft.case(
        "m32",
        "SmbdDataTransfer_NegativeParameter_RemainingDataLength_Zero",
        "3.1.5.8",
        "sends RemainingDataLength 0 in the second and in the ninth of ten segments; the server \
         terminates the connection",
        remaining_data_length_zero,
    ),
    Group::Microsoft.case(
        "m33",
        "SmbdDataTransfer_NegativeParameter_RemainingDataLength_AgainstFragmentReassemblyRemaining",
        "3.1.5.8",
        "sends a RemainingDataLength that is one byte too large in the second segment; the server \
         terminates the connection",
        remaining_data_length_against_reassembly,
    ),
];

//= SMBD-3.1.5.8-13 test
//= SMBD-3.1.5.8-17 test
//= SMBD-3.1.5.4-06 test
fn small_bytes(trial: &mut ServerTrial<'_>) -> Verdict {
    let mut script = trial.session()?;
    let request = script.request(500);
    script.send(&request, request.len())?;
    let Transfer { header, payload } = script.next_segment()?;
    require(header.flags == Flags::empty(), "Flags of 0", || {
        format!("Flags {}", header.flags.bits())
    })?;
    let remaining = header.remaining_data_length;
    require(remaining == 0, "the whole answer in one segment", || {
        format!("RemainingDataLength {remaining}")
    })?;
    script.check_answer(&request, &payload)?;
    script.expect_nothing()?;
    script.done()
}

//= SMBD-3.1.5.8-13 test
//= SMBD-3.1.5.8-14 test
//= SMBD-3.1.5.8-17 test
fn moderate_bytes(trial: &mut ServerTrial<'_>) -> Verdict {
    let mut script = trial.session()?;
    script.exchange(MODERATE_BYTES, 1000)?;
    script.done()
}

//= SMBD-3.1.5.8-21 test
fn variable_length_segment(trial: &mut ServerTrial<'_>) -> Verdict {
    let mut script = trial.session()?;
    let request = script.long_request(MODERATE_BYTES);
    script.send_in_all_lengths(&request)?;
    script.expect_answer(&request)?;
    script.done()
}

//= SMBD-3.1.5.8-21 test
fn small_length_segment(trial: &mut ServerTrial<'_>) -> Verdict {
    let mut script = trial.session()?;
    script.exchange(MODERATE_BYTES, 1)?;
    script.done()
}

//= SMBD-3.1.5.8-04 test
fn redundancy(trial: &mut ServerTrial<'_>) -> Verdict {
    let longest = trial.session()?.max_send_size as usize;
    for length in [525, longest - 1, longest] {
        let mut script = trial.session()?;
        let request = script.request(500);
        let header = script.segment(request.len(), 0);
        script.transfer_altered(&header, &request, |bytes| bytes.resize(length, 0xa5))?;
        script.expect_answer(&request)?;
        script.disconnect();
    }
    Ok(())
}

//= SMBD-3.1.5.4-05 test
//= SMBD-3.1.5.4-06 test
//= SMBD-3.1.5.4-07 test
fn receive_max_receive_size(trial: &mut ServerTrial<'_>) -> Verdict {
    for max_receive_size in [128, 1364, 8192] {
        let request = proposal_with(|request| request.max_receive_size = max_receive_size);
        let mut script = trial.connect()?;
        let response = script.negotiate(&request)?;
        let is_echo = script.is_echo();
        let message = script.request(if is_echo { 20_000 } else { 0 });
        script.send_whole(&message)?;
        let most = response.preferred_send_size.min(max_receive_size).max(128) - 24;
        let (mut answer, mut left) = (Vec::new(), None);
        while left != Some(0) {
            let Transfer { header, payload } = script.next_segment()?;
            answer.extend_from_slice(&payload);
            let length = header.data_length;
            let all = length + header.remaining_data_length;
            let expected = most.min(left.unwrap_or(all));
            // Segments shorter than possible are legal.
            let fills = !script.facts().is_strict() || length == expected;
            require(
                length <= expected && fills,
                format!("a segment of {expected} bytes"),
                || format!("DataLength {length}"),
            )?;
            left = Some(header.remaining_data_length);
        }
        script.check_answer(&message, &answer)?;
        script.disconnect();
    }
    Ok(())
}

//= SMBD-3.1.5.8-01 test
fn uncompleted_message(trial: &mut ServerTrial<'_>) -> Verdict {
    let mut script = trial.session()?;
    let header = script.empty(1);
    script.transfer_altered(&header, &[], |bytes| bytes.truncate(19))?;
    trial.terminated(script, "Data Transfer of 19 bytes")
}

/// Sends a request of `payload` bytes, or an empty message if that is 0, with a changed header,
/// and checks that this ends the connection.
pub(crate) fn header_is_refused(
    trial: &mut ServerTrial<'_>,
    payload: usize,
    change: impl FnOnce(&mut DataTransfer),
    reason: &str,
) -> Verdict {
    let mut script = trial.session()?;
    let body = match payload {
        0 => Vec::new(),
        length => padded(&script.request(length)),
    };
    let mut header = script.segment(payload, 0);
    if payload == 0 {
        header.data_offset = 0;
    }
    change(&mut header);
    script.transfer(&header, &body)?;
    trial.terminated(script, reason)
}

//= SMBD-3.1.5.8-03 test
fn data_offset_against_8_byte_aligned(trial: &mut ServerTrial<'_>) -> Verdict {
    for offset in [23, 25] {
        let mut script = trial.session()?;
        // A server that overlooks the offset finds a good request there, and answers it.
        let request = script.request(500);
        let mut header = script.segment(request.len(), 0);
        header.data_offset = offset;
        let body = [&vec![0; offset as usize - 20], &request[..]].concat();
        script.transfer(&header, &body)?;
        trial.terminated(script, &format!("DataOffset {offset}, not a multiple"))?;
    }
    Ok(())
}

//= SMBD-3.1.5.8-04 test
fn data_offset_against_message_length(trial: &mut ServerTrial<'_>) -> Verdict {
    for (offset, reason) in [
        (32, "DataOffset 32 and DataLength 500 in a message of 524"),
        (0xffff_ffff, "DataOffset 4294967295"),
        // The largest value of the suite is not a multiple of 8; this one is.
        (0xffff_fff8, "in a message of 524 bytes"),
    ] {
        header_is_refused(trial, 500, |header| header.data_offset = offset, reason)?;
    }
    Ok(())
}

//= SMBD-3.1.5.8-04 test
fn data_length_against_message_length(trial: &mut ServerTrial<'_>) -> Verdict {
    for (payload, data_length) in [(500, 501), (1340, 1341), (500, 0xffff_ffff)] {
        let reason = format!("DataLength {data_length} in a message of {}", payload + 24);
        let change = |header: &mut DataTransfer| header.data_length = data_length;
        header_is_refused(trial, payload, change, &reason)?;
    }
    Ok(())
}

//= SMBD-3.1.5.9-07 test
fn data_length_against_max_receive_size(trial: &mut ServerTrial<'_>) -> Verdict {
    let mut script = trial.session()?;
    let most = script.max_payload();
    script.exchange(most, most)?;
    script.disconnect();
    let mut script = trial.session()?;
    let longer = script.request(most + 1);
    script.send(&longer, most + 1)?;
    let reason = format!("for a receive of {}", most + 24);
    trial.terminated(script, &reason)
}

/// Returns the server's MaxFragmentedSize.
fn max_fragmented_size(trial: &mut ServerTrial<'_>) -> Verdict<u32> {
    let response = trial.negotiates(&proposal())?;
    Ok(response.max_fragmented_size)
}

//= SMBD-3.1.5.8-05 test
fn against_max_fragmented_size(trial: &mut ServerTrial<'_>) -> Verdict {
    let most = max_fragmented_size(trial)?;
    let request = proposal_with(|request| request.max_fragmented_size = most.max(131_072));
    let mut script = trial.negotiated(&request)?;
    let size = script.max_payload();
    if most as usize <= script.longest_request() {
        script.exchange(most as usize, size)?;
    }
    if script.is_echo() && most as usize / size > 2 * 255 {
        // There are more segments than credits, and the server cannot answer before the last.
        let empty = script.empty_messages;
        require(empty > 0, "grants in empty messages", || "none".into())?;
    }
    script.disconnect();
    // The first segment of a message already shows that it is too long.
    let mut script = trial.negotiated(&request)?;
    let remaining = most as usize + 1 - size;
    let content = script.request(size);
    let first = script.segment(size, remaining);
    script.transfer(&first, &padded(&content))?;
    let reason = format!("RemainingDataLength {remaining}, above our MaxFragmentedSize {most}");
    trial.terminated(script, &reason)
}

//= SMBD-3.1.5.8-05 test
fn remaining_data_length_against_max_fragmented_size(trial: &mut ServerTrial<'_>) -> Verdict {
    let most = max_fragmented_size(trial)?;
    for remaining in [most.saturating_add(1), 0xffff_ffff] {
        let change = |header: &mut DataTransfer| header.remaining_data_length = remaining;
        let reason = format!("above our MaxFragmentedSize {most}");
        header_is_refused(trial, 0, change, &reason)?;
    }
    Ok(())
}

/// Sends ten segments up to number `wrong`, whose header is changed, and checks that this ends the
/// connection.
fn segment_is_refused(
    trial: &mut ServerTrial<'_>,
    wrong: usize,
    change: impl Fn(&mut DataTransfer),
) -> Verdict {
    let mut script = trial.session()?;
    let request = script.request(10_000);
    for (at, payload) in request.chunks(1000).take(wrong + 1).enumerate() {
        let mut header = script.segment(1000, 9000 - at * 1000);
        if at == wrong {
            change(&mut header);
        }
        script.transfer(&header, &padded(payload))?;
    }
    let left = 10_000 - wrong * 1000;
    terminated_in_sequence(trial, script, left)
}

fn terminated_in_sequence(trial: &mut ServerTrial<'_>, script: Script, left: usize) -> Verdict {
    trial.terminated(
        script,
        &format!("while {left} bytes of the message remained"),
    )
}

//= SMBD-3.1.5.8-16 test
//= SMBD-3.1.5.8-19 test
//= SMBD-3.1.5.8-20 test
fn remaining_data_length_zero(trial: &mut ServerTrial<'_>) -> Verdict {
    for wrong in [1, 8] {
        segment_is_refused(trial, wrong, |header| header.remaining_data_length = 0)?;
    }
    Ok(())
}

//= SMBD-3.1.5.8-18 test
//= SMBD-3.1.5.8-20 test
fn remaining_data_length_against_reassembly(trial: &mut ServerTrial<'_>) -> Verdict {
    segment_is_refused(trial, 1, |header| header.remaining_data_length += 1)
}
