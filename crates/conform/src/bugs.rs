//! Bugs that other implementations have had, as far as they show on the wire without a session of
//! the upper layer. The numbers are those of `docs/bugs.md`.

use smbdirect::{
    rdma::iwarp::mpa::{Enhanced, FrameKind, StartupFrame},
    wire::{DataTransfer, NegotiateRequest},
};

use crate::{
    case::{Case, Group, ServerTrial},
    outcome::{Verdict, require},
    peer::PeerSettings,
    script::{Script, Transfer, padded, proposal, proposal_with},
};

pub(crate) const CASES: &[Case] = &[
    Group::Bugs.case(
        "b1",
        "the last send credit without a grant",
        "3.1.5.1",
        "requests and is given 1, 2, 3 and 4 credits, and exchanges 5000 bytes three times",
        few_credits,
    ),
    Group::Bugs.case(
        "b2",
        "credits without receives",
        "3.1.5.9",
        "spends all credits but one without a pause, three times; each message is received",
        bursts,
    ),
    Group::Bugs.case(
        "b3",
        "an empty message between two segments",
        "3.1.5.4",
        "asks for responses during an answer of several segments; no empty message is between them",
        empty_between_segments,
    ),
    Group::Bugs.case(
        "b6",
        "eight concurrent requests",
        "3.1.7.2",
        "makes eight connections, and negotiates on all of them; each is answered",
        burst_of_connections,
    ),
    Group::Bugs.case(
        "b7",
        "segments that hold all receives",
        "3.1.5.9",
        "sends a request of up to the server's MaxFragmentedSize with 4 credits; it is answered",
        longest_message_with_few_credits,
    ),
    Group::Bugs.case(
        "b9",
        "payload outside the message",
        "3.1.5.8",
        "sends offsets and lengths that end beyond the message, also such whose sum overflows; \
         the server terminates the connection",
        payload_outside,
    ),
    Group::Bugs.case(
        "b10",
        "remaining length beyond the limit",
        "3.1.5.8",
        "sends lengths whose sum is one byte above the server's MaxFragmentedSize, and lengths \
         whose sum overflows; the server terminates the connection",
        remaining_beyond_limit,
    ),
    Group::Bugs.case(
        "b11",
        "short messages",
        "3.1.5.8",
        "sends Data Transfers of 0, 1, 4, 8, 12 and 19 bytes, also within a message; the server \
         terminates the connection",
        short_messages,
    ),
    Group::Bugs.case(
        "b18",
        "peers that vanish",
        "3.1.7.1",
        "ends a connection after each byte of the MPA Request and of the Negotiate Request; the \
         server accepts the next connection",
        vanishing_peers,
    )
    .disruptive(),
    Group::Bugs.case(
        "b20",
        "read depths in the private data",
        "6.1",
        "sends the read depths in both byte orders, with more bytes after them, cut short and not \
         at all, with MPA revisions 1 and 2; the server negotiates",
        read_depths,
    ),
    Group::Bugs.case(
        "b23",
        "half-open connections",
        "3.1.7.2",
        "keeps 32 silent TCP connections open; the server serves others",
        half_open_connections,
    )
    .disruptive(),
    Group::Bugs.case(
        "b25",
        "keepalives without end",
        "3.1.5.8",
        "asks for a response once; at most three messages come back, then there is silence",
        keepalive_ping_pong,
    ),
    Group::Bugs.case(
        "b26",
        "grants without end",
        "3.1.5.9",
        "sends one empty message that grants a credit; at most two messages come back",
        grant_ping_pong,
    ),
];

/// Returns a connection whose ends request and grant at most this number of credits.
fn with_credits(trial: &mut ServerTrial<'_>, credits: u16) -> Verdict<Script> {
    trial.prepare(&PeerSettings::credits(credits))?;
    let request = NegotiateRequest {
        credits_requested: credits,
        // The server may answer with a message as long as the longest one that it reassembles.
        max_fragmented_size: 16 << 20,
        ..proposal()
    };
    let mut script = trial.connect()?;
    script.receive_credit_max = credits.into();
    script.negotiate(&request)?;
    Ok(script)
}

fn few_credits(trial: &mut ServerTrial<'_>) -> Verdict {
    for credits in 1..=4 {
        let mut script = with_credits(trial, credits)?;
        for _ in 0..3 {
            script.exchange(5000, 1000)?;
        }
        script.disconnect();
    }
    Ok(())
}

fn bursts(trial: &mut ServerTrial<'_>) -> Verdict {
    let mut script = trial.session()?;
    script.works()?;
    for _ in 0..3 {
        while script.send_credits > 1 {
            let header = script.empty(1);
            script.transfer(&header, &[])?;
        }
        script.works()?;
    }
    script.done()
}

fn empty_between_segments(trial: &mut ServerTrial<'_>) -> Verdict {
    let request = proposal_with(|request| request.max_receive_size = 128);
    let mut script = trial.negotiated(&request)?;
    let length = if script.is_echo() { 20_000 } else { 0 };
    let message = script.request(length);
    script.send_whole(&message)?;
    let mut answer = Vec::new();
    loop {
        let Transfer { header, payload } = script.next()?;
        answer.extend_from_slice(&payload);
        if header.data_length > 0 && header.remaining_data_length == 0 {
            break;
        }
        if script.send_credits > 2 {
            script.ask()?;
        }
        if script.granted <= script.target / 4 && script.send_credits > 0 {
            script.grant(script.lacking())?;
        }
    }
    script.check_answer(&message, &answer)?;
    script.done()
}

fn burst_of_connections(trial: &mut ServerTrial<'_>) -> Verdict {
    let mut scripts = Vec::new();
    for _ in 0..8 {
        scripts.push(trial.connect()?);
    }
    let bytes = crate::script::encoded(|out| proposal().encode(out));
    for script in &mut scripts {
        script.send_bytes(&bytes)?;
        // Sends what was posted.
        script.flush();
    }
    for mut script in scripts {
        script.expect_response(&proposal())?;
        script.disconnect();
    }
    trial.serves()
}

fn longest_message_with_few_credits(trial: &mut ServerTrial<'_>) -> Verdict {
    let most = trial.negotiates(&proposal())?.max_fragmented_size;
    let mut script = with_credits(trial, 4)?;
    let size = script.max_payload();
    script.exchange(most as usize, size)?;
    script.done()
}

fn payload_outside(trial: &mut ServerTrial<'_>) -> Verdict {
    for (offset, length) in [
        (24, 501),
        (528, 0),
        (0xffff_fff8, 16),
        (8, 0xffff_ffff),
        (0x8000_0000, 0x8000_0000),
    ] {
        let mut script = trial.session()?;
        let content = script.request(500);
        let mut header = script.segment(500, 0);
        (header.data_offset, header.data_length) = (offset, length);
        script.transfer(&header, &padded(&content))?;
        trial.terminated(script, "in a message of 524 bytes")?;
    }
    Ok(())
}

fn remaining_beyond_limit(trial: &mut ServerTrial<'_>) -> Verdict {
    let most = trial.negotiates(&proposal())?.max_fragmented_size;
    for (length, remaining) in [
        (500, most.saturating_sub(499)),
        (500, u32::MAX - 499),
        (500, u32::MAX),
    ] {
        let mut script = trial.session()?;
        let content = script.request(500);
        let header = DataTransfer {
            remaining_data_length: remaining,
            ..script.segment(length, 0)
        };
        script.transfer(&header, &padded(&content))?;
        trial.terminated(script, "above our MaxFragmentedSize")?;
    }
    Ok(())
}

fn short_messages(trial: &mut ServerTrial<'_>) -> Verdict {
    for length in [0, 1, 4, 8, 12, 19] {
        for in_sequence in [false, true] {
            let mut script = trial.session()?;
            if in_sequence {
                let content = script.request(500);
                script.send_segment(&content, 500)?;
            }
            let header = script.empty(1);
            script.transfer_altered(&header, &[], |bytes| bytes.truncate(length))?;
            trial.terminated(script, &format!("Data Transfer of {length} bytes"))?;
        }
    }
    Ok(())
}

fn vanishing_peers(trial: &mut ServerTrial<'_>) -> Verdict {
    let mut request = Vec::new();
    StartupFrame::new(FrameKind::Request, 1).encode(&mut request);
    for length in 0..request.len() {
        trial.connect_tcp()?.send_bytes(&request[..length]);
    }
    for length in 0.. {
        let mut raw = trial.connect_tcp()?;
        raw.start()?;
        let fpdu = raw.negotiate_request(&proposal());
        raw.send_bytes(&fpdu[..length]);
        if length == fpdu.len() {
            break;
        }
    }
    trial.serves()
}

fn read_depths(trial: &mut ServerTrial<'_>) -> Verdict {
    let depths = |bytes: [u8; 8]| bytes.to_vec();
    let big = depths([0, 0, 0, 8, 0, 0, 0, 1]);
    let little = depths([8, 0, 0, 0, 1, 0, 0, 0]);
    let longer = [&big[..], b"and more"].concat();
    for revision in [1, 2] {
        for private_data in [&big[..], &little, &longer, &big[..7], &[]] {
            let mut request = StartupFrame::new(FrameKind::Request, revision);
            request.private_data = bytes::Bytes::copy_from_slice(private_data);
            if revision == 2 {
                request.enhanced = Some(Enhanced {
                    peer_to_peer: false,
                    rtr_send: false,
                    rtr_write: false,
                    rtr_read: false,
                    ird: 8,
                    ord: 1,
                });
            }
            let mut raw = trial.connect_tcp()?;
            raw.greet(&request)?;
            raw.negotiate(&proposal())?;
        }
    }
    trial.serves()
}

fn half_open_connections(trial: &mut ServerTrial<'_>) -> Verdict {
    let mut silent = Vec::new();
    for _ in 0..32 {
        silent.push(trial.connect_tcp()?);
    }
    trial.serves()?;
    drop(silent);
    trial.serves()
}

/// Counts the messages of the server until it is silent.
fn count(script: &mut Script, most: usize) -> Verdict {
    let silence = script.facts().silence;
    let before = script.empty_messages;
    let mut count = 0;
    while count <= most && script.arrives(silence)? {
        count = script.empty_messages - before;
    }
    require(
        count <= most,
        format!("at most {most} messages, then silence"),
        || format!("{count} messages and more"),
    )
}

fn keepalive_ping_pong(trial: &mut ServerTrial<'_>) -> Verdict {
    for credits in [255, 10, 2] {
        let mut script = with_credits(trial, credits)?;
        script.works()?;
        script.ask()?;
        count(&mut script, 3)?;
        script.works()?;
        script.disconnect();
    }
    Ok(())
}

fn grant_ping_pong(trial: &mut ServerTrial<'_>) -> Verdict {
    for credits in [255, 10, 2] {
        let mut script = with_credits(trial, credits)?;
        script.works()?;
        script.grant(1)?;
        count(&mut script, 2)?;
        script.works()?;
        script.disconnect();
    }
    Ok(())
}
