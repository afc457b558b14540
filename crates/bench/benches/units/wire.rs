//! The codecs of the wire formats: each message, encoded and decoded.

use std::hint::black_box;

use bytes::Bytes;
use smbdirect::{
    rdma::iwarp::{
        ddp::{Header, Tagged, Untagged},
        mpa::{Enhanced, Fpdu, FrameKind, StartupFrame},
        rdmap::{Opcode, QUEUE_SEND, ReadRequest, Terminate, TerminateCode},
    },
    wire::{
        BufferDescriptorV1, DataTransfer, Flags, IrdOrd, NegotiateRequest, NegotiateResponse,
        Status, VERSION_1_0,
    },
};

use super::{Case, Done, Unit, content};

/// Messages in a batch.
const BATCH: u64 = 256;

/// One function, called repeatedly.
struct Repeat<F>(F);

impl<F: FnMut()> Unit for Repeat<F> {
    fn feed(&mut self) {}

    fn run(&mut self) -> Done {
        for _ in 0..BATCH {
            (self.0)();
        }
        Done {
            items: BATCH,
            bytes: 0,
        }
    }
}

fn case<F: FnMut() + 'static>(name: &str, build: impl Fn() -> F + 'static) -> Case {
    Case::new(format!("wire/{name}"), "message", move || Repeat(build()))
}

/// The two cases of a message that has `encode` into a buffer and `decode` from one.
macro_rules! both_ways {
    ($name:literal, $value:expr, $decode:path) => {
        [
            case(concat!("encode/", $name), || {
                let (value, mut out) = ($value, Vec::with_capacity(256));
                move || {
                    out.clear();
                    black_box(&value).encode(&mut out);
                    black_box(&out);
                }
            }),
            case(concat!("decode/", $name), || {
                let mut bytes = Vec::new();
                $value.encode(&mut bytes);
                // For the payload that a Data Transfer names.
                bytes.resize(2048, 0);
                move || {
                    black_box($decode(black_box(&bytes))).expect("it was encoded");
                }
            }),
        ]
    };
}

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(both_ways!(
        "negotiate-request",
        NEGOTIATE_REQUEST,
        NegotiateRequest::decode
    ));
    cases.extend(both_ways!(
        "negotiate-response",
        NEGOTIATE_RESPONSE,
        NegotiateResponse::decode
    ));
    cases.extend(both_ways!(
        "data-transfer",
        DATA_TRANSFER,
        DataTransfer::decode
    ));
    cases.extend(both_ways!(
        "buffer-descriptor",
        DESCRIPTOR,
        BufferDescriptorV1::from_bytes
    ));
    cases.extend(both_ways!("ird-ord", IRD_ORD, IrdOrd::decode));
    cases.extend(startup_frames());
    cases.extend(fpdus());
    cases.extend(headers());
    cases.extend(rdmap_messages());
    cases
}

const NEGOTIATE_REQUEST: NegotiateRequest = NegotiateRequest {
    min_version: VERSION_1_0,
    max_version: VERSION_1_0,
    credits_requested: 255,
    preferred_send_size: 1364,
    max_receive_size: 8192,
    max_fragmented_size: 1 << 20,
};

const NEGOTIATE_RESPONSE: NegotiateResponse = NegotiateResponse {
    min_version: VERSION_1_0,
    max_version: VERSION_1_0,
    negotiated_version: VERSION_1_0,
    credits_requested: 255,
    credits_granted: 255,
    status: Status::SUCCESS,
    max_read_write_size: 8 << 20,
    preferred_send_size: 1364,
    max_receive_size: 8192,
    max_fragmented_size: 1 << 20,
};

const DATA_TRANSFER: DataTransfer = DataTransfer {
    credits_requested: 255,
    credits_granted: 32,
    flags: Flags::empty(),
    remaining_data_length: 64196,
    data_offset: DataTransfer::PAYLOAD_OFFSET,
    data_length: 1340,
};

const DESCRIPTOR: BufferDescriptorV1 = BufferDescriptorV1 {
    offset: 0x1_0000,
    token: 0x1234_5678,
    length: 1 << 20,
};

const IRD_ORD: IrdOrd = IrdOrd { ird: 32, ord: 32 };

const UNTAGGED: Untagged = Untagged {
    last: true,
    rdmap_control: Opcode::Send.control(),
    rsvd_ulp: 0,
    queue_number: QUEUE_SEND,
    message_sequence_number: 17,
    message_offset: 0,
};

const TAGGED: Tagged = Tagged {
    last: true,
    rdmap_control: Opcode::RdmaWrite.control(),
    stag: 0x1234_5678,
    tagged_offset: 0x1_0000,
};

const READ_REQUEST: ReadRequest = ReadRequest {
    sink_stag: 5,
    sink_tagged_offset: 0,
    read_message_size: 1 << 16,
    source_stag: 0x1234_5678,
    source_tagged_offset: 0x1_0000,
};

fn startup_frame() -> StartupFrame {
    StartupFrame {
        crc: true,
        enhanced: Some(Enhanced {
            peer_to_peer: true,
            rtr_write: true,
            ird: 32,
            ord: 32,
            ..Enhanced::default()
        }),
        private_data: Bytes::from_static(&[0, 0, 0, 32, 0, 0, 0, 32]),
        ..StartupFrame::new(FrameKind::Request, 2)
    }
}

fn startup_frames() -> [Case; 2] {
    [
        case("encode/startup-frame", || {
            let (frame, mut out) = (startup_frame(), Vec::with_capacity(256));
            move || {
                out.clear();
                black_box(&frame).encode(&mut out);
                black_box(&out);
            }
        }),
        case("decode/startup-frame", || {
            let mut bytes = Vec::new();
            startup_frame().encode(&mut bytes);
            move || {
                let frame = StartupFrame::decode(FrameKind::Request, black_box(&bytes));
                black_box(frame).expect("it was encoded");
            }
        }),
    ]
}

fn fpdus() -> Vec<Case> {
    let mut cases = Vec::new();
    for length in [64, 1364, 8192] {
        cases.push(case(&format!("encode/fpdu-{length}"), move || {
            let (payload, header) = (content(length), UNTAGGED.encode());
            let mut out = Vec::with_capacity(length + 64);
            move || {
                out.clear();
                Fpdu::encode(&[&header, black_box(&payload)], true, &mut out);
                black_box(&out);
            }
        }));
        cases.push(case(&format!("decode/fpdu-{length}"), move || {
            let mut bytes = Vec::new();
            Fpdu::encode(&[&UNTAGGED.encode(), &content(length)], true, &mut bytes);
            move || {
                let fpdu = Fpdu::decode(black_box(&bytes), true);
                black_box(fpdu).expect("the CRC is right").expect("whole");
            }
        }));
    }
    cases
}

fn headers() -> [Case; 4] {
    [
        case("encode/untagged", || {
            || {
                black_box(black_box(&UNTAGGED).encode());
            }
        }),
        case("decode/untagged", || decode_header(&UNTAGGED.encode())),
        case("encode/tagged", || {
            || {
                black_box(black_box(&TAGGED).encode());
            }
        }),
        case("decode/tagged", || decode_header(&TAGGED.encode())),
    ]
}

/// The decoding of every segment: its header, and the opcode in it.
fn decode_header(header: &[u8]) -> impl FnMut() + use<> {
    let ulpdu = [header, &[0; 64]].concat();
    move || {
        let (header, payload) = Header::decode(black_box(&ulpdu)).expect("it was encoded");
        black_box(payload);
        black_box(Opcode::of(&header)).expect("it was encoded");
    }
}

fn rdmap_messages() -> [Case; 4] {
    [
        case("encode/read-request", || {
            || {
                black_box(black_box(&READ_REQUEST).encode());
            }
        }),
        case("decode/read-request", || {
            let bytes = READ_REQUEST.encode();
            move || {
                black_box(ReadRequest::decode(black_box(&bytes))).expect("it was encoded");
            }
        }),
        case("encode/terminate", || {
            let (terminate, mut out) = (terminate(), Vec::with_capacity(256));
            move || {
                out.clear();
                black_box(&terminate).encode(&mut out);
                black_box(&out);
            }
        }),
        case("decode/terminate", || {
            let mut bytes = Vec::new();
            terminate().encode(&mut bytes);
            move || {
                black_box(Terminate::decode(black_box(&bytes)));
            }
        }),
    ]
}

fn terminate() -> Terminate {
    let code = TerminateCode {
        layer: 1,
        error_type: 1,
        error_code: 0,
    };
    Terminate::new(code, Some((64, &TAGGED.encode())))
}
