//! Tests of `Inbound`: the matrix of handler answers, a table for each rule of TDI receives, and
//! random clients that must get each byte once.

mod chained;
mod ending;
mod indications;
mod random;
mod requests;

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Wake, Waker},
};

use bytes::{Buf, Bytes, BytesMut};
use proptest::prelude::*;
use smbdirect::Token;
use smbdirect_tdi::{
    Answer, ChainedTsdu, Inbound, Indication, IndicationFlags, ReceiveCompletion, ReceiveEvent,
    ReceiveFlags, ReceiveRequest, ReceiveSettings, RequestId, Status,
};

const NORMAL: ReceiveFlags = ReceiveFlags::NORMAL;
const PEEK: ReceiveFlags = ReceiveFlags::PEEK;
const ENTIRE: IndicationFlags = IndicationFlags::ENTIRE_MESSAGE;
const LOOKAHEAD: IndicationFlags = IndicationFlags::COPY_LOOKAHEAD;
const UNFINISHED: IndicationFlags = IndicationFlags::PEEK;

/// Settings with indications of 4 to 8 bytes.
fn settings() -> ReceiveSettings {
    ReceiveSettings {
        minimum_lookahead: 4,
        maximum_lookahead: 8,
        receive_buffer: 1000,
        lendable: 0,
    }
}

fn inbound(settings: ReceiveSettings) -> Inbound {
    Inbound::new(settings).unwrap()
}

fn request(id: u64, length: usize, flags: ReceiveFlags) -> ReceiveRequest {
    ReceiveRequest {
        id: RequestId(id),
        buffer: BytesMut::zeroed(length).into(),
        flags,
    }
}

fn arrive(inbound: &mut Inbound, data: &'static str, remaining: usize) {
    inbound.handle_segment(Bytes::from(data), remaining, None);
}

fn indication(inbound: &mut Inbound) -> Indication {
    match inbound.poll_event() {
        Some(ReceiveEvent::Indicate(indication)) => indication,
        other => panic!("{other:?}"),
    }
}

/// Returns a short text of the next event.
fn next(inbound: &mut Inbound) -> String {
    match inbound.poll_event() {
        None => "-".to_owned(),
        Some(ReceiveEvent::Indicate(seen)) => {
            format!("{}/{}", String::from_utf8_lossy(&seen.data), seen.available)
        }
        Some(ReceiveEvent::Chained(tsdu)) => format!("chained {}", tsdu.len()),
        Some(ReceiveEvent::Completed(done)) => {
            let ReceiveCompletion {
                id,
                status,
                information,
                buffer,
                ..
            } = done;
            let data = String::from_utf8_lossy(&buffer[..information]).into_owned();
            let status = status.name().unwrap();
            format!("{} {status} {data}", id.0)
        }
        Some(ReceiveEvent::Invalidated(token)) => format!("token {token}"),
    }
}

/// Returns an `Inbound` that lends at most `lendable` bytes to the client.
fn lending(lendable: usize) -> Inbound {
    inbound(ReceiveSettings {
        lendable,
        ..settings()
    })
}
