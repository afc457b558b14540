//! Data Transfers (3.1.5.8).

use smbdirect::wire::{DataTransfer, Flags};

use super::session::{established, header_is_refused, respond, segment_is_taken};
use crate::{
    case::{Case, ClientTrial},
    outcome::Verdict,
    peer::{ClientAction, PeerSettings},
    script::{Script, acceptance, padded},
};

pub(super) const CASES: &[Case] = &[
    Case::client(
        "c25",
        "Data Transfer of fewer than 20 bytes",
        "3.1.5.8",
        "sends 0 and 19 bytes; the client terminates the connection (case 25)",
        short_transfer,
    ),
    Case::client(
        "c26",
        "DataOffset that is not aligned",
        "3.1.5.8",
        "sends DataOffset 23 and 25; the client terminates the connection (case 26)",
        unaligned_offset,
    ),
    Case::client(
        "c27",
        "DataOffset beyond the message",
        "3.1.5.8",
        "sends DataOffset 32, 528 and 4294967288, and 24 in an empty message; the client \
         terminates the connection (case 27)",
        offset_beyond_message,
    ),
    Case::client(
        "c28",
        "DataLength beyond the message",
        "3.1.5.8",
        "sends a DataLength of one byte more than the message has, and 4294967295; the client \
         terminates the connection (case 28)",
        length_beyond_message,
    ),
    Case::client(
        "c29",
        "message longer than MaxReceiveSize",
        "3.1.5.9",
        "sends a message one byte longer than the client's receives, for which the client \
         terminates the connection, and one of exactly their length, which is taken (case 29)",
        longer_than_max_receive_size,
    ),
    Case::client(
        "c30",
        "more than MaxFragmentedSize",
        "3.1.5.8",
        "announces a message longer than the client's MaxFragmentedSize; the client terminates \
         the connection (cases 30, 31)",
        more_than_max_fragmented_size,
    ),
    Case::client(
        "c31",
        "exactly MaxFragmentedSize",
        "3.1.5.8",
        "answers with exactly as many bytes as the client's MaxFragmentedSize, after an empty \
         first segment; the answer is taken",
        exactly_max_fragmented_size,
    ),
    Case::client(
        "c32",
        "segments that do not continue the message",
        "3.1.5.8",
        "sends second segments whose lengths do not fit the first; the client terminates the \
         connection (cases 32, 33)",
        wrong_sequence,
    ),
    Case::client(
        "c20",
        "answer in segments of 1000 bytes, of one byte, and of all lengths",
        "3.1.5.8",
        "sends the answer in segments of different lengths, also of 0; it is taken (cases 20 to \
         22)",
        segments_of_all_lengths,
    ),
    Case::client(
        "c23",
        "bytes after the data",
        "3.1.5.8",
        "sends bytes after the payload; they are ignored (case 23)",
        bytes_after_data,
    ),
    Case::client(
        "c24",
        "reserved bits and unknown flags",
        "2.2",
        "sets Reserved, padding and undefined flags; they are ignored",
        reserved_bits_and_unknown_flags,
    ),
    Case::client(
        "c24b",
        "DataOffset of 32",
        "3.1.5.8",
        "sends the answer at DataOffset 32, which is legal; it is taken",
        offset_of_32,
    ),
    Case::client(
        "c24c",
        "empty messages before the answer",
        "3.1.5.8",
        "sends empty messages of 20 and 24 bytes before the answer; only the answer is delivered",
        empty_messages,
    ),
];

//= SMBD-3.1.5.8-01 test
fn short_transfer(trial: &mut ClientTrial<'_>) -> Verdict {
    for length in [0, 19] {
        let (mut script, _) = established(trial, ClientAction::Send)?;
        let header = script.empty(1);
        script.transfer_altered(&header, &[], |bytes| bytes.truncate(length))?;
        let reason = format!("Data Transfer of {length} bytes, 20 are needed");
        trial.terminated(script, &reason)?;
    }
    Ok(())
}

//= SMBD-3.1.5.8-03 test
fn unaligned_offset(trial: &mut ClientTrial<'_>) -> Verdict {
    for offset in [23, 25] {
        let (mut script, request) = established(trial, ClientAction::Exchange(500))?;
        let reply = script.reply_to(&request, 500)?;
        let mut header = script.segment(reply.len(), 0);
        header.data_offset = offset;
        let body = [&vec![0; offset as usize - 20], &reply[..]].concat();
        script.transfer(&header, &body)?;
        trial.terminated(script, &format!("DataOffset {offset}, not a multiple"))?;
    }
    Ok(())
}

//= SMBD-3.1.5.8-04 test
fn offset_beyond_message(trial: &mut ClientTrial<'_>) -> Verdict {
    for offset in [32, 528, 0xffff_fff8] {
        let change = |header: &mut DataTransfer| header.data_offset = offset;
        let reason = format!("DataOffset {offset} and DataLength 500 in a message of 524 bytes");
        header_is_refused(trial, 500, change, &reason)?;
    }
    // The offset is checked even without a payload.
    let (mut script, _) = established(trial, ClientAction::Send)?;
    let header = DataTransfer {
        data_offset: 24,
        ..script.empty(1)
    };
    script.transfer(&header, &[])?;
    let reason = "DataOffset 24 and DataLength 0 in a message of 20 bytes";
    trial.terminated(script, reason)
}

//= SMBD-3.1.5.8-04 test
fn length_beyond_message(trial: &mut ClientTrial<'_>) -> Verdict {
    for data_length in [501, 0xffff_ffff] {
        let change = |header: &mut DataTransfer| header.data_length = data_length;
        let reason = format!("DataLength {data_length} in a message of 524 bytes");
        header_is_refused(trial, 500, change, &reason)?;
    }
    Ok(())
}

//= SMBD-3.1.5.7-11 test
//= SMBD-3.1.5.9-07 test
fn longer_than_max_receive_size(trial: &mut ClientTrial<'_>) -> Verdict {
    let (mut script, request) = established(trial, ClientAction::Send)?;
    let most = script.max_payload();
    let mut content = script.reply_to(&request, most + 1)?;
    content.resize(most + 1, 0);
    script.send(&content, most + 1)?;
    trial.terminated(script, &format!("for a receive of {}", most + 24))?;
    let (mut script, request) = established(trial, ClientAction::Exchange(1340))?;
    let reply = script.reply_to(&request, most)?;
    script.send(&reply, most)?;
    trial.ends_well(script)
}

/// The smallest MaxFragmentedRecvSize.
fn least_fragmented() -> PeerSettings {
    PeerSettings {
        max_fragmented_receive_size: Some(131_072),
        ..PeerSettings::default()
    }
}

/// Accepts the negotiation and takes the client's request. Returns the client's MaxFragmentedSize.
fn asked(script: &mut Script) -> Verdict<u32> {
    let most = respond(script, &acceptance())?.max_fragmented_size;
    script.receive_request()?;
    Ok(most)
}

//= SMBD-3.1.5.8-05 test
fn more_than_max_fragmented_size(trial: &mut ClientTrial<'_>) -> Verdict {
    for (payload, beyond) in [(0, Some(1)), (0, None), (1000, Some(1)), (1000, None)] {
        let (mut script, most) =
            trial.accept_used(&least_fragmented(), ClientAction::Send, asked)?;
        let remaining = match beyond {
            Some(more) => (most - payload).saturating_add(more),
            None => u32::MAX,
        };
        let header = script.segment(payload as usize, remaining as usize);
        script.transfer(&header, &padded(&vec![0; payload as usize]))?;
        let reason = format!(
            "DataLength {payload} and RemainingDataLength {remaining}, \
             above our MaxFragmentedSize {most}"
        );
        trial.terminated(script, &reason)?;
    }
    Ok(())
}

//= SMBD-3.1.5.8-05 test
//= SMBD-3.1.5.8-21 test
fn exactly_max_fragmented_size(trial: &mut ClientTrial<'_>) -> Verdict {
    let (mut script, (most, request)) = trial.accept_used(
        &least_fragmented(),
        ClientAction::Exchange(131_072),
        |script| {
            let most = respond(script, &acceptance())?.max_fragmented_size;
            Ok((most as usize, script.receive_request()?))
        },
    )?;
    let reply = script.long_reply_to(&request, most)?;
    script.send_segment(&[], reply.len())?;
    script.send_whole(&reply)?;
    trial.ends_well(script)
}

//= SMBD-3.1.5.8-14 test
//= SMBD-3.1.5.8-16 test
//= SMBD-3.1.5.8-18 test
//= SMBD-3.1.5.8-19 test
//= SMBD-3.1.5.8-20 test
//= SMBD-3.1.5.4-11 test
fn wrong_sequence(trial: &mut ClientTrial<'_>) -> Verdict {
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
        let (mut script, request) = established(trial, ClientAction::Send)?;
        let mut content = script.reply_to(&request, 10_000)?;
        content.resize(10_000, 0);
        script.send_segment(&content[..1000], 9000)?;
        script.send_segment(&content[1000..1000 + payload], remaining)?;
        let reason = format!(
            "DataLength {payload} and RemainingDataLength {remaining} \
             while 9000 bytes of the message remained"
        );
        trial.terminated(script, &reason)?;
    }
    // A message begins with its first segment even if that has no payload.
    let (mut script, request) = established(trial, ClientAction::Send)?;
    let content = script.reply_to(&request, 500)?;
    script.send_segment(&[], 9000)?;
    script.send_segment(&content, 0)?;
    trial.terminated(script, "while 9000 bytes of the message remained")
}

/// Returns an established connection and the answer to the client's request.
fn answered(trial: &mut ClientTrial<'_>, length: usize) -> Verdict<(Script, Vec<u8>)> {
    let (mut script, request) = established(trial, ClientAction::Exchange(length))?;
    let reply = script.reply_to(&request, length)?;
    Ok((script, reply))
}

//= SMBD-3.1.5.8-13 test
//= SMBD-3.1.5.8-21 test
fn segments_of_all_lengths(trial: &mut ClientTrial<'_>) -> Verdict {
    let (mut script, reply) = answered(trial, 65_536)?;
    script.send(&reply, 1000)?;
    trial.ends_well(script)?;

    let (mut script, reply) = answered(trial, 65_536)?;
    script.send(&reply, 1)?;
    trial.ends_well(script)?;

    let (mut script, reply) = answered(trial, 65_536)?;
    script.send_in_all_lengths(&reply)?;
    trial.ends_well(script)
}

//= SMBD-3.1.5.8-04 test
fn bytes_after_data(trial: &mut ClientTrial<'_>) -> Verdict {
    segment_is_taken(trial, |bytes| bytes.resize(bytes.len() + 1, 0xa5))?;
    segment_is_taken(trial, |bytes| bytes.resize(1364.max(bytes.len()), 0xa5))
}

//= SMBD-2.2-03 test
//= SMBD-2.2-05 test
//= SMBD-2.2.3-05 test
//= SMBD-2.2.3-06 test
fn reserved_bits_and_unknown_flags(trial: &mut ClientTrial<'_>) -> Verdict {
    segment_is_taken(trial, |bytes| bytes[6..8].fill(0xff))?;
    segment_is_taken(trial, |bytes| bytes[20..24].fill(0xff))?;
    segment_is_taken(trial, |bytes| {
        bytes[4..6].copy_from_slice(&0xfffe_u16.to_le_bytes());
    })?;
    // None of the undefined flags requests a response.
    let (mut script, reply) = answered(trial, 500)?;
    let header = DataTransfer {
        flags: Flags::from_bits_retain(0xfffe),
        ..script.empty(1)
    };
    script.transfer(&header, &[])?;
    script.expect_nothing()?;
    script.send_whole(&reply)?;
    trial.ends_well(script)
}

//= SMBD-3.1.5.8-03 test
fn offset_of_32(trial: &mut ClientTrial<'_>) -> Verdict {
    let (mut script, reply) = answered(trial, 500)?;
    let header = DataTransfer {
        data_offset: 32,
        ..script.segment(reply.len(), 0)
    };
    script.transfer(&header, &[&[0xa5; 12], &reply[..]].concat())?;
    trial.ends_well(script)
}

//= SMBD-3.1.5.8-22 test
fn empty_messages(trial: &mut ClientTrial<'_>) -> Verdict {
    let (mut script, reply) = answered(trial, 500)?;
    for _ in 0..10 {
        script.grant(1)?;
        // An empty message of 24 bytes is legal too.
        script.await_credit()?;
        let header = script.segment(0, 0);
        script.transfer(&header, &padded(&[]))?;
    }
    script.send_whole(&reply)?;
    trial.ends_well(script)
}
