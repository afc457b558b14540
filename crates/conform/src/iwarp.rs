//! Malformed MPA, DDP and RDMAP beneath SMB Direct: one broken rule a case. The connection ends, another one goes on to
//! work, and a Terminate before the end names the rule that was broken.

use smbdirect::rdma::iwarp::{
    ddp::{Tagged, Untagged},
    mpa::{FrameKind, StartupFrame},
    rdmap::{Opcode, ReadRequest, TerminateCode},
};

use crate::{
    case::{Case, Group, ServerTrial},
    hostile::{attack, negotiated},
    outcome::{Verdict, fail, require, skip},
    raw::Raw,
};

/// The cases.
pub(crate) const CASES: &[Case] = &[
    Group::Iwarp.case(
        "i1",
        "MPA Request of revision 255",
        "RFC 5044, 7.1.1",
        "sends an MPA Request of revision 255; the server refuses it",
        |trial| startup(trial, |frame| frame[17] = 255),
    ),
    Group::Iwarp.case(
        "i2",
        "MPA Reply in place of a Request",
        "RFC 5044, 7.1.1",
        "sends a Reply as the first frame; the server ends that connection",
        |trial| startup(trial, |frame| frame[..16].copy_from_slice(b"MPA ID Rep Frame")),
    ),
    Group::Iwarp.case(
        "i3",
        "more private data than 512 bytes",
        "RFC 5044, 7.1.1",
        "sends an MPA Request with 513 bytes of private data; the server refuses it",
        |trial| startup(trial, |frame| private_data(frame, 513)),
    ),
    Group::Iwarp.case(
        "i4",
        "enhanced MPA Request without its depths",
        "RFC 6581, 6",
        "sets S with 3 bytes of private data, which are too few for IRD and ORD; the server refuses it",
        |trial| {
            startup(trial, |frame| {
                (frame[16], frame[17]) = (0x10, 2);
                private_data(frame, 3);
            })
        },
    ),
    Group::Iwarp.case(
        "i5",
        "DDP version of a tagged segment",
        "RFC 5041, 7.1",
        "sends an RDMA Write of DDP version 2",
        |trial| ends(trial, &[(1, 1, 4)], |raw| write(raw, |header| header[0] ^= 0x03)),
    ),
    Group::Iwarp.case(
        "i6",
        "DDP version of an untagged segment",
        "RFC 5041, 7.1",
        "sends a Send of DDP version 2",
        |trial| ends(trial, &[(1, 2, 6)], |raw| send(raw, |header| header[0] ^= 0x03)),
    ),
    Group::Iwarp.case(
        "i7",
        "RDMAP version",
        "RFC 5040, 7.2",
        "sends a Send of RDMAP version 3",
        |trial| ends(trial, &[(0, 2, 5)], |raw| send(raw, |header| header[1] |= 0xc0)),
    ),
    Group::Iwarp.case(
        "i8",
        "reserved opcode",
        "RFC 5040, 7.2",
        "sends a message of opcode 15, which does not exist",
        |trial| ends(trial, &[(0, 2, 6)], |raw| send(raw, |header| header[1] |= 0x0f)),
    ),
    Group::Iwarp.case(
        "i9",
        "Send with the T bit",
        "RFC 5040, 7.2",
        "sends a Send that says it is tagged",
        |trial| ends(trial, &[(0, 2, 6)], |raw| send(raw, |header| header[0] |= 0x80)),
    ),
    Group::Iwarp.case(
        "i10",
        "queue that does not exist",
        "RFC 5041, 7.1",
        "sends a Send to queue 5",
        |trial| ends(trial, &[(1, 2, 1)], |raw| send(raw, |header| header[9] = 5)),
    ),
    Group::Iwarp.case(
        "i11",
        "message sequence number that skips one",
        "RFC 5041, 7.1",
        "sends a Send whose number is one too high",
        |trial| ends(trial, &[(1, 2, 3)], |raw| send(raw, |header| header[13] += 1)),
    ),
    Group::Iwarp.case(
        "i12",
        "message sequence number that was used",
        "RFC 5041, 7.1",
        "sends a Send with the number of the Negotiate Request",
        |trial| ends(trial, &[(1, 2, 3)], |raw| send(raw, |header| header[13] = 1)),
    ),
    Group::Iwarp.case(
        "i13",
        "offset beyond the message",
        "RFC 5041, 7.1",
        "sends a Send that begins at an offset of 2 GiB",
        |trial| ends(trial, &[(1, 2, 4)], |raw| send(raw, |header| header[14] = 0x7f)),
    ),
    Group::Iwarp.case(
        "i14",
        "Send that is longer than its receive",
        "RFC 5041, 7.1",
        "sends a Send of 20000 bytes",
        |trial| ends(trial, &[(1, 2, 5)], |raw| raw.send(Opcode::Send, 0, &[0; 20_000])),
    ),
    Group::Iwarp.case(
        "i15",
        "segment that is shorter than its header",
        "RFC 5041, 7.1",
        "sends an FPDU of one byte, and FPDUs of 17 bytes of a header of 18",
        |trial| {
            // A receiver may wait for as many bytes as a header has, so more FPDUs follow.
            ends(trial, &[], |raw| raw.fpdu(&[&[0x41]]).repeat(8))?;
            ends(trial, &[], |raw| {
                let header = raw.next_header(Opcode::Send, 0).encode();
                raw.fpdu(&[&header[..Untagged::LENGTH - 1]]).repeat(8)
            })
        },
    ),
    Group::Iwarp.case(
        "i16",
        "RDMA Read Request for the queue of Sends",
        "RFC 5041, 7.1",
        "sends an empty RDMA Read Request to queue 0",
        |trial| ends(trial, &[(1, 2, 1)], |raw| read(raw, 0, |header| header.queue_number = 0)),
    ),
    Group::Iwarp.case(
        "i17",
        "RDMA Read Request out of order",
        "RFC 5041, 7.1",
        "sends an empty RDMA Read Request whose number is 2",
        |trial| ends(trial, &[(1, 2, 3)], |raw| read(raw, 0, |header| header.message_sequence_number = 2)),
    ),
    Group::Iwarp.case(
        "i18",
        "RDMA Read Request with an offset",
        "RFC 5041, 7.1",
        "sends an empty RDMA Read Request at offset 1 of its message",
        |trial| ends(trial, &[(1, 2, 4)], |raw| read(raw, 0, |header| header.message_offset = 1)),
    ),
    Group::Iwarp.case(
        "i19",
        "RDMA Read Response without a Request",
        "RFC 5040, 7.2",
        "sends an RDMA Read Response that the server has not asked for",
        |trial| {
            ends(trial, &[(0, 2, 6), (1, 1, 0)], |raw| {
                raw.fpdu(&[&tagged(Opcode::RdmaReadResponse).encode(), &[0xa5; 64]])
            })
        },
    ),
    Group::Iwarp.case(
        "i20",
        "codes of protection errors",
        "RFC 5040, 7.2; RFC 5041, 7.1",
        "writes, reads and invalidates by an STag that the server never gave",
        |trial| {
            ends(trial, &[(1, 1, 0)], |raw| write(raw, |_| ()))?;
            ends(trial, &[(0, 1, 0)], |raw| read(raw, 4096, |_| ()))?;
            ends(trial, &[(0, 1, 9), (0, 2, 9)], |raw| {
                raw.send(Opcode::SendInvalidate, UNKNOWN_STAG, &EMPTY)
            })
        },
    ),
    Group::Iwarp.case(
        "i21",
        "Terminate",
        "RFC 5040, 7.1",
        "sends a Terminate; the server ends the connection without one of its own",
        |trial| {
            attack(trial, |trial| {
                let mut raw = negotiated(trial)?;
                let header = Untagged { queue_number: 2, message_sequence_number: 1, ..raw.next_header(Opcode::Terminate, 0) };
                let bytes = raw.fpdu(&[&header.encode(), &[0x02, 0xff, 0, 0]]);
                raw.send_bytes(&bytes);
                match raw.hear_end()? {
                    None => Ok(()),
                    Some(terminate) => fail("no answer to a Terminate", terminate.to_string()),
                }
            })
        },
    ),
    Group::Iwarp.case(
        "i22",
        "bit order of the Terminate",
        "RFC 5040, 4.8",
        "reads by an STag that the server never gave; a Terminate has the layer in the high bits of its first byte",
        bit_order,
    ),
    Group::Iwarp
        .case(
            "i23",
            "broken first FPDU",
            "RFC 5040, 7.2",
            "sends a message of opcode 15 before anything else; Linux with CVE-2026-23242 stops there",
            |trial| {
                attack(trial, |trial| {
                    let mut raw = trial.connect_tcp()?;
                    raw.start()?;
                    let bytes = send(&mut raw, |header| header[1] |= 0x0f);
                    raw.send_bytes(&bytes);
                    // A responder sends nothing, and so no Terminate, before the first valid FPDU.
                    raw.expect_end()
                })
            },
        )
        .disruptive(),
];

/// An STag that a server is unlikely to have issued.
const UNKNOWN_STAG: u32 = 0x1234_5601;

/// An empty message of SMB Direct, which requests and grants ten credits.
const EMPTY: [u8; 20] = [10, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The layer, the error type and the error code of a Terminate.
type Code = (u8, u8, u8);

/// Sends a changed MPA Request, and checks that the server refuses it and serves others.
fn startup(trial: &mut ServerTrial<'_>, change: fn(&mut Vec<u8>)) -> Verdict {
    attack(trial, |trial| {
        let mut frame = Vec::new();
        StartupFrame::new(FrameKind::Request, 1).encode(&mut frame);
        change(&mut frame);
        let mut raw = trial.connect_tcp()?;
        raw.send_bytes(&frame);
        raw.expect_refusal()
    })
}

/// Appends private data to an MPA Request without any.
fn private_data(frame: &mut Vec<u8>, length: u16) {
    frame[18..20].copy_from_slice(&length.to_be_bytes());
    frame.resize(20 + usize::from(length), 0xa5);
}

/// Checks that the bytes end a negotiated connection and nothing else, and that a Terminate has one of the codes.
fn ends(trial: &mut ServerTrial<'_>, codes: &[Code], broken: fn(&mut Raw) -> Vec<u8>) -> Verdict {
    attack(trial, |trial| {
        let mut raw = negotiated(trial)?;
        let bytes = broken(&mut raw);
        raw.send_bytes(&bytes);
        judge(trial, &mut raw, codes)
    })
}

/// Waits for the end, and checks the Terminate before it. An end without room for a Terminate closes
/// the connection without it, so the Terminate is required only of a server whose settings are known. Both orders of its bits count, because
/// [`bit_order`] judges them.
fn judge(trial: &ServerTrial<'_>, raw: &mut Raw, codes: &[Code]) -> Verdict {
    let Some(terminate) = raw.hear_end()? else {
        return require(
            !trial.facts().is_strict(),
            "a Terminate before the end",
            || "none".into(),
        );
    };
    let is_right = |&(layer, error_type, error_code): &Code| {
        let code = TerminateCode::new(layer, error_type, error_code);
        terminate.code() == code || terminate.code_of_siw() == code
    };
    let expected = || {
        let codes = codes
            .iter()
            .map(|&(a, b, c)| TerminateCode::new(a, b, c).to_string());
        format!("a Terminate {}", codes.collect::<Vec<_>>().join(" or "))
    };
    require(
        codes.is_empty() || codes.iter().any(is_right),
        expected(),
        || terminate.to_string(),
    )
}

fn bit_order(trial: &mut ServerTrial<'_>) -> Verdict {
    let mut raw = negotiated(trial)?;
    let bytes = read(&raw, 4096, |_| ());
    raw.send_bytes(&bytes);
    let Some(terminate) = raw.hear_end()? else {
        return skip("the server sent no Terminate");
    };
    let code = TerminateCode::new(0, 1, 0);
    require(
        terminate.code() == code,
        format!("a Terminate {code}"),
        || terminate.to_string(),
    )
}

/// Returns the FPDU of a legal Send whose encoded header is changed: DDP control, RDMAP control, 4 bytes for invalidation,
/// queue number, message sequence number, message offset.
fn send(raw: &mut Raw, change: fn(&mut [u8])) -> Vec<u8> {
    let mut header = raw.next_header(Opcode::Send, 0).encode();
    change(&mut header);
    raw.fpdu(&[&header, &EMPTY])
}

fn tagged(opcode: Opcode) -> Tagged {
    Tagged {
        last: true,
        rdmap_control: opcode.control(),
        stag: UNKNOWN_STAG,
        tagged_offset: 0,
    }
}

/// Returns the FPDU of an RDMA Write whose encoded header is changed.
fn write(raw: &Raw, change: fn(&mut [u8])) -> Vec<u8> {
    let mut header = tagged(Opcode::RdmaWrite).encode();
    change(&mut header);
    raw.fpdu(&[&header, &[0xa5; 64]])
}

/// Returns the FPDU of an RDMA Read Request whose header is changed. The STag of an empty one does not count.
fn read(raw: &Raw, size: u32, change: fn(&mut Untagged)) -> Vec<u8> {
    let mut header = Untagged {
        last: true,
        rdmap_control: Opcode::RdmaReadRequest.control(),
        rsvd_ulp: 0,
        queue_number: 1,
        message_sequence_number: 1,
        message_offset: 0,
    };
    change(&mut header);
    let request = ReadRequest {
        sink_stag: 1,
        sink_tagged_offset: 0,
        read_message_size: size,
        source_stag: UNKNOWN_STAG,
        source_tagged_offset: 0,
    };
    raw.fpdu(&[&header.encode(), &request.encode()])
}
