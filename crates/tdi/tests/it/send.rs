//! Tests of `Outbound`: a table for each rule of TDI sends, and random sends compared with a model of
//! two FIFO queues.

mod buffer;
mod ending;
mod flags;
mod random;

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::Bytes;
use proptest::prelude::*;
use smbdirect::{Message, Token};
use smbdirect_tdi::{
    Expedited, NoResponse, NonBlocking, Outbound, OutboundTsdu, RequestId, SendAvailability,
    SendCompletion, SendEvent, SendFlags, SendRequest, SendSettings, Status, Submission,
};

const NONE: SendFlags = SendFlags::empty();
const E: SendFlags = SendFlags::EXPEDITED;
const P: SendFlags = SendFlags::PARTIAL;
const N: SendFlags = SendFlags::NO_RESPONSE_EXPECTED;
const B: SendFlags = SendFlags::NON_BLOCKING;

/// The sends of a connection, with the requests numbered from 1.
struct Sends {
    outbound: Outbound,
    now: Instant,
    last: u64,
}

/// A completion as request, status and information.
type Done = (u64, Status, usize);

impl Sends {
    /// Sends with TSDUs of at most 8 bytes, a send buffer of 16 bytes and a low mark of 4 bytes.
    fn new() -> Self {
        Self::with(settings())
    }

    fn with(settings: SendSettings) -> Self {
        Self {
            outbound: Outbound::new(settings).unwrap(),
            now: Instant::now(),
            last: 0,
        }
    }

    fn submit(&mut self, change: impl FnOnce(&mut SendRequest)) -> Option<SendCompletion> {
        self.last += 1;
        let mut request = SendRequest::write(RequestId(self.last), "");
        change(&mut request);
        match self.outbound.send(self.now, request) {
            Submission::Pending => None,
            Submission::Completed(completion) => Some(completion),
        }
    }

    /// Submits a request. Returns its status and information if it completes immediately.
    fn send(&mut self, data: &'static str, flags: SendFlags) -> Option<(Status, usize)> {
        let completion = self.submit(|request| {
            request.buffer = data.into();
            request.flags = flags;
        })?;
        assert_eq!(completion.id, RequestId(self.last));
        assert_eq!(completion.buffer.into_bytes(), data);
        Some((completion.status, completion.information))
    }

    fn next(&mut self) -> Option<OutboundTsdu> {
        self.outbound.poll_tsdu(SendAvailability::default())
    }

    /// Sends all complete TSDUs, and returns them.
    fn drain(&mut self) -> Vec<String> {
        let mut sent = Vec::new();
        while self.outbound.has_tsdu() {
            let tsdu = self.next().expect("there is a TSDU");
            sent.push(text(tsdu.message));
            self.outbound.tsdu_sent();
        }
        assert!(self.next().is_none());
        sent
    }

    /// Returns the events so far.
    fn events(&mut self) -> Vec<SendEvent> {
        std::iter::from_fn(|| self.outbound.poll_event()).collect()
    }

    /// Returns the events so far, which must all be completions.
    fn done(&mut self) -> Vec<Done> {
        let events = self.events().into_iter();
        events
            .map(|event| match event {
                SendEvent::Completed(SendCompletion {
                    id,
                    status,
                    information,
                    ..
                }) => (id.0, status, information),
                other => panic!("{other:?}"),
            })
            .collect()
    }
}

fn settings() -> SendSettings {
    SendSettings {
        high_water: 16,
        low_water: 4,
        ..SendSettings::new(8)
    }
}

fn text(message: Message) -> String {
    String::from_utf8(message.into_bytes().into()).unwrap()
}

const SUCCESS: Status = Status::SUCCESS;
const INVALID: Option<(Status, usize)> = Some((Status::INVALID_PARAMETER, 0));
const NOT_READY: Option<(Status, usize)> = Some((Status::DEVICE_NOT_READY, 0));
const fn taken(information: usize) -> Option<(Status, usize)> {
    Some((SUCCESS, information))
}
