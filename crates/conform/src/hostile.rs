//! Peers that break RDMA or SMB Direct on purpose. At most the attacked connection ends; the server continues to
//! serve others, and accepts the next connection.

use smbdirect::rdma::iwarp::{
    ddp::Tagged,
    mpa::{FrameKind, StartupFrame},
    rdmap::Opcode,
};

use crate::{
    case::{Case, Group, ServerTrial},
    outcome::{Verdict, skip},
    raw::Raw,
    script::{Script, proposal, proposal_with},
};

pub(crate) const CASES: &[Case] = &[
    Group::Hostile.case(
        "h1",
        "bytes that are not MPA",
        "RFC 5044, 7.1.1",
        "sends HTTP in place of an MPA Request; the server ends that connection only",
        not_mpa,
    ),
    Group::Hostile.case(
        "h2",
        "half an MPA Request",
        "RFC 5044, 7.1.1",
        "sends half an MPA Request and is silent; the server serves others meanwhile",
        half_a_request,
    ),
    Group::Hostile
        .case(
            "h3",
            "half an FPDU",
            "RFC 5044, 4",
            "sends half an FPDU and is silent; the server serves others meanwhile",
            half_an_fpdu,
        )
        .disruptive(),
    Group::Hostile.case(
        "h4",
        "RDMA Write to memory that is not registered",
        "RFC 5041, 7.1",
        "writes to STags that the server never gave; it ends that connection only",
        write_to_unknown_memory,
    ),
    Group::Hostile.case(
        "h5",
        "RDMA Read of memory that is not registered",
        "RFC 5040, 5.2.1",
        "reads 4 GiB from STags that the server never gave; it ends that connection only",
        read_of_unknown_memory,
    ),
    Group::Hostile.case(
        "h6",
        "Send with Invalidate of memory that is not registered",
        "RFC 5040, 5.3",
        "invalidates an STag that the server never gave; it ends that connection only",
        invalidate_unknown_memory,
    ),
    Group::Hostile.case(
        "h8",
        "FPDU with a wrong CRC",
        "RFC 5044, 4.4",
        "sends a message whose CRC is wrong; the server ends that connection only",
        wrong_crc,
    ),
    Group::Hostile.case(
        "h9",
        "credits that overflow",
        "3.1.5.8",
        "grants 131070 credits; the server ends at most that connection",
        credits_that_overflow,
    ),
    Group::Hostile.case(
        "h10",
        "message without a credit",
        "3.1.5.1",
        "sends one message more than the server has granted; it ends at most that connection",
        message_without_a_credit,
    ),
    Group::Hostile.case(
        "h11",
        "flood of messages without credits",
        "3.1.5.1",
        "sends 600 messages at once, whatever was granted; the server ends at most that connection",
        flood,
    ),
    Group::Hostile.case(
        "h12",
        "requested credits that swing",
        "3.1.5.8",
        "requests 1 and 65535 credits alternately, in a long request; it is answered",
        swinging_credits,
    ),
    Group::Hostile.case(
        "h13",
        "peer that receives nothing",
        "3.1.5.1",
        "sends requests and takes no answer; the server serves others meanwhile",
        takes_nothing,
    ),
    Group::Hostile
        .case(
            "h14",
            "sixteen negotiations that fail",
            "3.1.5.6",
            "sends sixteen requests of 19 bytes; the server accepts the next connection",
            failed_negotiations,
        )
        .disruptive(),
];

/// Runs an attack below RDMA while another connection is open, and checks that the other works
/// afterwards and that the server accepts the next connection.
pub(crate) fn attack(
    trial: &mut ServerTrial<'_>,
    run: impl FnOnce(&mut ServerTrial<'_>) -> Verdict,
) -> Verdict {
    let mut other = trial.session()?;
    other.works()?;
    run(trial)?;
    other.works().map_err(|stop| {
        stop.with_expected(|expected| format!("another connection goes on to work: {expected}"))
    })?;
    other.disconnect();
    trial.serves()
}

/// Returns an SMB Direct connection below RDMA.
pub(crate) fn negotiated(trial: &mut ServerTrial<'_>) -> Verdict<Raw> {
    let mut raw = trial.connect_tcp()?;
    raw.start()?;
    raw.negotiate(&proposal())?;
    Ok(raw)
}

/// Checks that bytes end a negotiated connection and nothing else.
fn ends(trial: &mut ServerTrial<'_>, attack: impl FnOnce(&mut Raw) -> Vec<u8>) -> Verdict {
    let mut raw = negotiated(trial)?;
    let bytes = attack(&mut raw);
    raw.send_bytes(&bytes);
    raw.expect_end()
}

fn not_mpa(trial: &mut ServerTrial<'_>) -> Verdict {
    attack(trial, |trial| {
        let mut raw = trial.connect_tcp()?;
        raw.send_bytes(&b"GET / HTTP/1.1\r\n\r\n".repeat(1000));
        raw.expect_end()
    })
}

fn half_a_request(trial: &mut ServerTrial<'_>) -> Verdict {
    let mut raw = trial.connect_tcp()?;
    raw.send_bytes(b"MPA ID Re");
    attack(trial, |_| Ok(()))
}

fn half_an_fpdu(trial: &mut ServerTrial<'_>) -> Verdict {
    let mut raw = trial.connect_tcp()?;
    raw.start()?;
    let fpdu = raw.negotiate_request(&proposal());
    raw.send_bytes(&fpdu[..fpdu.len() / 2]);
    attack(trial, |_| Ok(()))
}

/// STags that a server is unlikely to have issued: in verbs, 0 means no memory.
const UNKNOWN_STAGS: [u32; 3] = [0x1234_5601, 0xffff_ffff, 0x0000_0100];

fn write_to_unknown_memory(trial: &mut ServerTrial<'_>) -> Verdict {
    attack(trial, |trial| {
        for stag in UNKNOWN_STAGS {
            ends(trial, |raw| {
                let header = Tagged {
                    last: true,
                    rdmap_control: Opcode::RdmaWrite.control(),
                    stag,
                    tagged_offset: 0,
                };
                raw.fpdu(&[&header.encode(), &[0xa5; 64]])
            })?;
        }
        Ok(())
    })
}

fn read_of_unknown_memory(trial: &mut ServerTrial<'_>) -> Verdict {
    attack(trial, |trial| {
        for stag in UNKNOWN_STAGS {
            ends(trial, |raw| raw.read_request(stag, 0, u32::MAX))?;
        }
        Ok(())
    })
}

fn invalidate_unknown_memory(trial: &mut ServerTrial<'_>) -> Verdict {
    attack(trial, |trial| {
        ends(trial, |raw| {
            // A legal empty message, which requests and grants ten credits.
            let mut message = [0; 20];
            (message[0], message[2]) = (10, 10);
            raw.send(Opcode::SendInvalidate, UNKNOWN_STAGS[0], &message)
        })
    })
}

fn wrong_crc(trial: &mut ServerTrial<'_>) -> Verdict {
    attack(trial, |trial| {
        let mut raw = trial.connect_tcp()?;
        raw.greet(&StartupFrame {
            crc: true,
            ..StartupFrame::new(FrameKind::Request, 1)
        })?;
        if !raw.has_crc() {
            return skip("the server computes no CRC");
        }
        raw.negotiate(&proposal())?;
        let mut fpdu = raw.send(Opcode::Send, 0, &[10, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        let last = fpdu.len() - 1;
        fpdu[last] ^= 0xff;
        raw.send_bytes(&fpdu);
        raw.expect_end()
    })
}

//= SMBD-3.1.5.8-11 test
fn credits_that_overflow(trial: &mut ServerTrial<'_>) -> Verdict {
    let mut script = trial.session()?;
    // No receives are posted for these credits, because the server ends the connection.
    script.overgrant(65_535)?;
    script.overgrant(65_535)?;
    ends_at_most(trial, script, &["CreditsGranted 65535 on top of"])
}

/// Checks that an attack ends its connection, or does nothing. The specification does not say that
/// a receiver detects these attacks, so only a server whose settings are known must detect them.
fn ends_at_most(trial: &mut ServerTrial<'_>, mut script: Script, reasons: &[&str]) -> Verdict {
    if trial.facts().is_strict() {
        return trial.terminated_for_one_of(script, reasons);
    }
    script.drain()?;
    drop(script);
    trial.serves()
}

/// Returns a connection with few credits for this end, on which the server holds none and so
/// cannot grant more.
fn without_more_credits(trial: &mut ServerTrial<'_>) -> Verdict<Script> {
    let request = proposal_with(|request| request.credits_requested = 4);
    let mut script = trial.negotiated(&request)?;
    while script.send_credits > 0 {
        script.grant(0)?;
    }
    Ok(script)
}

//= SMBD-3.1.5.8-06 test
fn message_without_a_credit(trial: &mut ServerTrial<'_>) -> Verdict {
    let mut script = without_more_credits(trial)?;
    script.expect_nothing()?;
    script.send_without_credit()?;
    ends_at_most(trial, script, &WITHOUT_CREDIT)
}

/// The words with which an end describes a message without a credit.
const WITHOUT_CREDIT: [&str; 2] = ["held no send credit", "a Send without a posted receive"];

fn flood(trial: &mut ServerTrial<'_>) -> Verdict {
    let mut script = without_more_credits(trial)?;
    for _ in 0..600 {
        script.send_without_credit()?;
    }
    ends_at_most(trial, script, &WITHOUT_CREDIT)
}

fn swinging_credits(trial: &mut ServerTrial<'_>) -> Verdict {
    let mut script = trial.session()?;
    script.most_credits = u16::MAX.into();
    let request = script.long_request(40_000);
    let mut left = request.len();
    for (at, payload) in request.chunks(1000).enumerate() {
        left -= payload.len();
        script.credits_requested = if at % 2 == 0 { u16::MAX } else { 1 };
        script.send_segment(payload, left)?;
    }
    script.credits_requested = 255;
    script.expect_answer(&request)?;
    script.works()?;
    script.done()
}

fn takes_nothing(trial: &mut ServerTrial<'_>) -> Verdict {
    let mut script = trial.session()?;
    for _ in 0..script.send_credits.min(30) {
        let request = script.request(1000);
        // The grants of these messages are more than the server needs, and are never taken back.
        let header = script.segment(request.len(), 0);
        script.transfer(&header, &crate::script::padded(&request))?;
    }
    attack(trial, |_| Ok(()))
}

fn failed_negotiations(trial: &mut ServerTrial<'_>) -> Verdict {
    for _ in 0..16 {
        let mut script = trial.connect()?;
        script.send_bytes(&[0; 19])?;
        script.expect_terminated()?;
    }
    trial.serves()
}
