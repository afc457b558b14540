//! Each rule that is checked in captures, violated once.

use std::collections::BTreeSet;

use smbdirect::rdma::iwarp::{
    ddp::Untagged,
    mpa::{Enhanced, Fpdu, FrameKind, StartupFrame},
    rdmap::{Opcode, TerminateCode},
};

use smbdirect_test::{
    decoded::{broken, events},
    talk::{FIN, I, R, REQUEST, RESPONSE, Talk, Transfer, request, response},
};

use super::Decode;

/// A rule, and a connection that violates it and no other rule but those named.
type Case = (&'static str, fn() -> Talk);

/// A request or response with some fields changed.
fn with_request(change: fn(&mut ([u16; 4], [u32; 3]))) -> Talk {
    let mut fields = REQUEST;
    change(&mut fields);
    let mut talk = Talk::started();
    talk.send(I, &request(fields.0, fields.1));
    talk
}

fn with_response(change: fn(&mut ([u16; 6], [u32; 5]))) -> Talk {
    let mut fields = RESPONSE;
    change(&mut fields);
    let mut talk = Talk::started();
    talk.send(I, &request(REQUEST.0, REQUEST.1));
    talk.send(R, &response(fields.0, fields.1));
    talk
}

/// A Data Transfer of the initiator with some fields changed.
fn with_transfer(change: fn(&mut Transfer)) -> Talk {
    let mut talk = Talk::established();
    let mut transfer = Transfer::default();
    change(&mut transfer);
    talk.transfer(I, &transfer);
    talk
}

/// A message of two segments.
fn with_segments(first: Transfer, second: Transfer) -> Talk {
    let mut talk = Talk::established();
    talk.transfer(I, &first);
    talk.transfer(I, &second);
    talk
}

/// A startup with some of its frames changed.
fn with_startup(change: fn(&mut Talk)) -> Talk {
    let mut talk = Talk::new();
    change(&mut talk);
    talk.start();
    talk
}

/// The next FPDU of the initiator, with bytes changed after the header of 20.
fn with_fpdu(change: fn(&mut Vec<u8>)) -> Talk {
    let mut talk = Talk::established();
    let header = talk.header(I, Opcode::Send);
    let mut ulpdu = header.encode().to_vec();
    ulpdu.extend(Transfer::default().bytes());
    let mut bytes = Vec::new();
    Fpdu::encode(&[&ulpdu], talk.crc, &mut bytes);
    change(&mut bytes);
    talk.say(I, &bytes);
    talk
}

/// Startup frames whose block requests a ready-to-receive frame, and selects the Write.
fn peer_to_peer(talk: &mut Talk) {
    let block = Enhanced {
        peer_to_peer: true,
        rtr_write: true,
        ird: 2,
        ord: 2,
        ..Enhanced::default()
    };
    talk.request.enhanced = Some(block);
    talk.reply.enhanced = Some(block);
}

const SMB_DIRECT: &[Case] = &[
    ("SMBD-2.2-04", || with_transfer(|t| t.reserved = 1)),
    ("SMBD-2.2.1-01", || {
        with_request(|r| r.0[..2].copy_from_slice(&[0x200, 0x100]))
    }),
    ("SMBD-2.2.2-01", || {
        let mut talk = Talk::started();
        // Its offer is invalid too, and reported.
        talk.send(I, &request([0x200, 0x300, 0, 10], REQUEST.1));
        talk.send(R, &response(RESPONSE.0, RESPONSE.1));
        talk
    }),
    ("SMBD-2.2.3-01", || with_transfer(|t| t.flags = 0x8001)),
    ("SMBD-2.2.3-02", || {
        with_transfer(|t| {
            *t = Transfer {
                offset: 24,
                rest: vec![0; 4],
                ..Transfer::empty(1)
            }
        })
    }),
    ("SMBD-3.1.5.1-01", || {
        let mut talk = Talk::started();
        talk.send(I, &request(REQUEST.0, REQUEST.1));
        talk.transfer(I, &Transfer::default());
        talk
    }),
    ("SMBD-3.1.5.1-04", || {
        let mut talk = Talk::established();
        talk.transfer(R, &Transfer::default());
        talk
    }),
    ("SMBD-3.1.5.1-06", || {
        let mut talk = Talk::established();
        let silent = Transfer {
            granted: 0,
            ..Transfer::default()
        };
        for _ in 0..10 {
            talk.transfer(I, &silent);
        }
        talk
    }),
    ("SMBD-3.1.5.2-01", || with_request(|r| r.0[1] = 0xffff)),
    ("SMBD-3.1.5.2-01", || with_request(|r| r.0[2] = 1)),
    ("SMBD-3.1.5.3-01", || with_response(|r| r.0[0] = 0)),
    ("SMBD-3.1.5.3-01", || with_response(|r| r.0[3] = 1)),
    ("SMBD-3.1.5.3-02", || {
        with_response(|r| r.1[0] = 0xc000_009a)
    }),
    ("SMBD-3.1.5.4-03", || {
        with_transfer(|t| {
            *t = Transfer {
                rest: vec![0; 4],
                ..Transfer::empty(1)
            }
        })
    }),
    ("SMBD-3.1.5.4-05", || {
        with_transfer(|t| *t = Transfer::of(1341, 0))
    }),
    ("SMBD-3.1.5.4-08", || with_transfer(|t| t.rest[2] = 1)),
    ("SMBD-3.1.5.4-09", || {
        let mut talk = Talk::established();
        talk.transfer(I, &Transfer::empty(5));
        talk.invalidate(R, &Transfer::of(10, 10), 1);
        talk.invalidate(R, &Transfer::of(10, 0), 2);
        talk
    }),
    ("SMBD-3.1.5.6-01", || {
        let mut talk = Talk::started();
        talk.send(I, &request(REQUEST.0, REQUEST.1)[..19]);
        talk
    }),
    ("SMBD-3.1.5.6-04", || with_request(|r| r.0[3] = 0)),
    ("SMBD-3.1.5.6-05", || with_request(|r| r.1[1] = 127)),
    ("SMBD-3.1.5.6-06", || with_request(|r| r.1[2] = 131_071)),
    ("SMBD-3.1.5.7-01", || {
        let mut talk = Talk::started();
        talk.send(I, &request(REQUEST.0, REQUEST.1));
        talk.send(R, &response(RESPONSE.0, RESPONSE.1)[..31]);
        talk
    }),
    ("SMBD-3.1.5.7-02", || with_response(|r| r.0[2] = 0x101)),
    ("SMBD-3.1.5.7-03", || with_response(|r| r.1[3] = 127)),
    ("SMBD-3.1.5.7-04", || with_response(|r| r.1[4] = 131_071)),
    ("SMBD-3.1.5.7-05", || with_response(|r| r.0[5] = 0)),
    ("SMBD-3.1.5.7-06", || with_response(|r| r.0[4] = 0)),
    ("SMBD-3.1.5.7-07", || with_response(|r| r.1[2] = 8193)),
    ("SMBD-3.1.5.8-01", || {
        let mut talk = Talk::established();
        talk.send(I, &[0; 19]);
        talk
    }),
    ("SMBD-3.1.5.8-02", || with_transfer(|t| t.requested = 0)),
    ("SMBD-3.1.5.8-03", || {
        with_transfer(|t| {
            t.offset = 20;
            t.rest = vec![7];
        })
    }),
    ("SMBD-3.1.5.8-04", || with_transfer(|t| t.length = 2)),
    ("SMBD-3.1.5.8-05", || {
        with_transfer(|t| t.remaining = 1 << 20)
    }),
    ("SMBD-3.1.5.8-11", || {
        let mut talk = with_transfer(|t| t.granted = 65_535);
        talk.transfer(I, &Transfer::empty(65_535));
        talk
    }),
    ("SMBD-3.1.5.8-16", || {
        with_segments(Transfer::of(10, 10), Transfer::of(9, 0))
    }),
    ("SMBD-3.1.5.8-18", || {
        with_segments(Transfer::of(10, 10), Transfer::of(9, 2))
    }),
    ("SMBD-3.1.5.8-19", || {
        with_segments(Transfer::of(10, 10), Transfer::of(11, 0))
    }),
    ("SMBD-3.1.5.8-20", || {
        with_segments(Transfer::of(10, 10), Transfer::of(5, 4))
    }),
    ("SMBD-3.1.5.9-08", || with_response(|r| r.0[5] = 11)),
];

const MPA: &[Case] = &[
    ("MPA-03", || {
        let mut talk = Talk::new();
        let frame = [
            &b"MPA ID Req Frame\0\x02"[..],
            &513_u16.to_be_bytes(),
            &[0; 513],
        ]
        .concat();
        talk.say(I, &frame);
        talk
    }),
    ("MPA-06", || {
        let mut talk = Talk::new();
        let frame = talk.request.clone();
        talk.startup(I, &frame);
        talk.send(I, &request(REQUEST.0, REQUEST.1));
        talk
    }),
    ("MPA-07", || {
        let mut talk = Talk::started();
        talk.send(R, &response(RESPONSE.0, RESPONSE.1));
        talk
    }),
    ("MPA-09", || {
        let mut talk = Talk::new();
        talk.say(I, b"GET / HTTP/1.1\r\n\r\n");
        talk
    }),
    ("MPA-10", || {
        let mut talk = Talk::new();
        talk.say(I, b"MPA ID Req Frame\0\x03\0\0");
        talk
    }),
    ("MPA-11", || {
        with_startup(|t| t.reply = StartupFrame::new(FrameKind::Reply, 1))
    }),
    ("MPA-11", || with_startup(|t| t.reply.enhanced = None)),
    ("MPA-13", || {
        let mut talk = Talk::new();
        talk.say(I, b"MPA ID Req Frame\x10\x02\0\x03abc");
        talk
    }),
    ("MPA-19", || {
        let mut talk = with_startup(|t| t.request.crc = true);
        talk.crc = false;
        talk.send(I, &request(REQUEST.0, REQUEST.1));
        talk
    }),
    ("MPA-20", || {
        let mut talk = Talk::started();
        talk.crc = true;
        talk.send(I, &request(REQUEST.0, REQUEST.1));
        talk
    }),
    ("MPA-21", || {
        let mut talk = with_startup(|t| t.reply.crc = true);
        talk.negotiate();
        let header = talk.header(I, Opcode::Send);
        let mut bytes = Vec::new();
        let message = Transfer::default().bytes();
        Fpdu::encode(&[&header.encode(), &message], true, &mut bytes);
        *bytes.last_mut().unwrap() ^= 1;
        talk.say(I, &bytes);
        talk
    }),
    ("MPA-23", || {
        with_fpdu(|bytes| {
            let padding = bytes.len() - 5;
            bytes[padding] = 1;
        })
    }),
    ("MPA-25", || {
        let mut talk = Talk::established();
        talk.fpdu(I, &[0x41, 0x43], &[]);
        talk
    }),
    ("MPA-25", || {
        let mut talk = Talk::established();
        let header = Untagged {
            message_sequence_number: 1,
            ..talk.header(I, Opcode::RdmaReadRequest)
        };
        talk.fpdu(I, &header.encode(), &[0; 27]);
        talk
    }),
    ("MPA-29", || {
        let mut talk = with_startup(|t| t.reply.rejected = true);
        talk.send(I, &request(REQUEST.0, REQUEST.1));
        talk
    }),
    ("MPA-33", || {
        let mut talk = Talk::new();
        talk.say(I, b"MPA ID Req Frame\x01\x02\0\0");
        talk
    }),
    ("MPA-34", || {
        let mut talk = Talk::established();
        talk.say(I, &[0, 18, 0x41]);
        talk.packet(I, FIN, &[]);
        talk
    }),
    ("EST-03", || {
        let mut talk = with_startup(peer_to_peer);
        talk.negotiate();
        talk
    }),
    ("EST-04", || {
        with_startup(|talk| {
            let block = talk.reply.enhanced;
            peer_to_peer(talk);
            talk.reply.enhanced = block;
        })
    }),
    ("EST-05", || {
        with_startup(|talk| {
            let block = talk.request.enhanced;
            peer_to_peer(talk);
            talk.request.enhanced = block;
        })
    }),
];

const RDMA: &[Case] = &[
    ("DDP-01", || with_fpdu(|bytes| bytes[2] = 0x42)),
    ("DDP-02", || with_fpdu(|bytes| bytes[2] |= 0x04)),
    ("DDP-03", || with_fpdu(|bytes| bytes[3] = 0x40)),
    ("DDP-04", || {
        let mut talk = Talk::established();
        talk.number[I] += 1;
        talk.transfer(I, &Transfer::default());
        talk
    }),
    ("DDP-05", || with_fpdu(|bytes| bytes[19] = 4)),
    ("DDP-06", || with_fpdu(|bytes| bytes[11] = 3)),
    ("DDP-09", || {
        let mut talk = Talk::established();
        talk.tagged(I, Opcode::RdmaWrite, false, (5, 0), &[0; 8]);
        talk.packet(I, FIN, &[]);
        talk
    }),
    ("DDP-10", || {
        let mut talk = Talk::established();
        talk.tagged(I, Opcode::RdmaWrite, false, (5, 0), &[0; 8]);
        talk.transfer(I, &Transfer::default());
        talk
    }),
    ("DDP-10", || {
        let mut talk = Talk::established();
        talk.tagged(I, Opcode::RdmaWrite, false, (5, 0), &[0; 8]);
        talk.tagged(I, Opcode::RdmaWrite, true, (6, 8), &[0; 8]);
        talk
    }),
    ("DDP-10", || {
        let mut talk = Talk::established();
        let header = Untagged {
            last: false,
            ..talk.header(I, Opcode::Send)
        };
        talk.fpdu(I, &header.encode(), &Transfer::default().bytes());
        talk.transfer(I, &Transfer::default());
        talk
    }),
    ("DDP-11", || {
        let mut talk = Talk::established();
        talk.tagged(I, Opcode::RdmaWrite, false, (5, 0), &[0; 8]);
        talk.tagged(I, Opcode::RdmaWrite, true, (5, 16), &[0; 8]);
        talk
    }),
    ("DDP-14", || {
        let mut talk = Talk::established();
        talk.tagged(I, Opcode::RdmaWrite, true, (5, u64::MAX - 6), &[0; 8]);
        talk
    }),
    ("RDMAP-01", || with_fpdu(|bytes| bytes[3] = 0x83)),
    ("RDMAP-02", || with_fpdu(|bytes| bytes[3] = 0x48)),
    ("RDMAP-03", || {
        let mut talk = Talk::established();
        talk.read(I, 1, 8);
        // Its L flag.
        talk.packets.last_mut().unwrap().payload[2] = 0x01;
        talk
    }),
    ("RDMAP-05", || {
        let mut talk = Talk::established();
        for number in 1..=3 {
            talk.read(I, number, 8);
        }
        talk
    }),
    ("RDMAP-06", || {
        let mut talk = Talk::established();
        talk.read(I, 1, 8);
        talk.tagged(R, Opcode::RdmaReadResponse, true, (5, 0x100), &[0; 9]);
        talk
    }),
    ("RDMAP-08", || {
        let mut talk = Talk::established();
        talk.read(I, 1, 8);
        talk.tagged(R, Opcode::RdmaReadResponse, true, (5, 0), &[0; 8]);
        talk
    }),
    ("RDMAP-09", || {
        let mut talk = Talk::established();
        talk.tagged(R, Opcode::RdmaReadResponse, true, (5, 0), &[0; 8]);
        talk
    }),
    ("RDMAP-18", || {
        let mut talk = Talk::established();
        talk.terminate(I, TerminateCode::new(2, 0, 2));
        talk.transfer(I, &Transfer::default());
        talk
    }),
    ("RDMAP-19", || {
        let mut talk = Talk::established();
        // As Linux siw writes that a CRC was wrong.
        talk.terminate(I, TerminateCode::new(0, 2, 2));
        talk
    }),
];

/// The rules that a connection necessarily violates as well.
fn besides(rule: &str) -> &'static [&'static str] {
    match rule {
        "SMBD-2.2.2-01" => &["SMBD-3.1.5.2-01"],
        _ => &[],
    }
}

#[test]
fn each_rule_is_found_with_its_id_and_no_other() {
    let mut tested = BTreeSet::new();
    for (index, (rule, talk)) in [SMB_DIRECT, MPA, RDMA].concat().into_iter().enumerate() {
        let done = talk().decoded();
        let mut expected = vec![rule];
        expected.extend(besides(rule));
        assert_eq!(broken(&done), expected, "case {index}: {done:?}");
        tested.insert(rule);
    }
    let rules = include_str!("../../src/rules.txt").lines();
    let ids = rules.filter_map(|line| line.split(' ').next());
    let known: BTreeSet<_> = ids.filter(|id| is_rule(id)).collect();
    assert_eq!(tested, known, "tested, and known");
}

/// Returns whether a rule is one of SMB Direct or iWARP.
fn is_rule(id: &str) -> bool {
    let layers = ["SMBD-", "MPA-", "EST-", "DDP-", "RDMAP-"];
    layers.iter().any(|layer| id.starts_with(layer))
}

/// Unusual traffic that violates no rule.
#[test]
fn nothing_else_is_found() {
    let cases: &[Case] = &[
        ("segments of no bytes", || {
            let nothing = |remaining| Transfer {
                remaining,
                ..Transfer::empty(1)
            };
            let mut talk = with_segments(nothing(20), Transfer::of(10, 10));
            talk.transfer(I, &nothing(10));
            talk.transfer(I, &Transfer::of(10, 0));
            talk
        }),
        ("a refusal", || {
            with_response(|r| *r = ([0x100, 0x100, 0, 0, 0, 0], [0xc000_00bb, 0, 0, 0, 0]))
        }),
        ("a request with more behind it", || {
            let mut talk = Talk::started();
            let mut message = request(REQUEST.0, REQUEST.1);
            message.resize(512, 0);
            talk.send(I, &message);
            talk
        }),
        ("the last credit with a grant", || {
            let mut talk = Talk::established();
            for _ in 0..10 {
                talk.transfer(I, &Transfer::default());
            }
            talk
        }),
        ("a ready-to-receive Write, and Reads", || {
            let mut talk = with_startup(peer_to_peer);
            talk.tagged(I, Opcode::RdmaWrite, true, (1, 0), &[]);
            talk.negotiate();
            for number in 1..=3 {
                talk.read(I, number, 16);
                talk.tagged(R, Opcode::RdmaReadResponse, false, (5, 0x100), &[0; 8]);
                talk.tagged(R, Opcode::RdmaReadResponse, true, (5, 0x108), &[0; 8]);
            }
            talk
        }),
        ("a Read of nothing", || {
            let mut talk = Talk::established();
            talk.read(I, 1, 0);
            talk.tagged(R, Opcode::RdmaReadResponse, true, (0, 0), &[]);
            talk
        }),
        ("a Terminate and the end", || {
            let mut talk = Talk::established();
            talk.terminate(R, TerminateCode::new(2, 0, 2));
            talk.packet(R, FIN, &[]);
            talk.packet(I, FIN, &[]);
            talk
        }),
        ("revision 1", || {
            let mut talk = with_startup(|talk| {
                talk.request = StartupFrame::new(FrameKind::Request, 1);
                talk.reply = StartupFrame::new(FrameKind::Reply, 1);
            });
            talk.negotiate();
            talk
        }),
    ];
    for (name, talk) in cases {
        let done = talk().decoded().succeeded();
        assert_eq!(broken(&done), [""; 0], "{name}: {done:?}");
        assert!(!events(&done, "message").is_empty(), "{name}");
    }
}
