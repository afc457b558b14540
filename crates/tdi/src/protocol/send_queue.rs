//! [`Class`]: the TSDUs of one class of sends, complete and open.

use std::{collections::VecDeque, time::Instant};

use bytes::{Buf, Bytes};
use smbdirect::{Message, Token};

use super::request::RequestId;

/// The TSDUs of one class, normal or expedited.
#[derive(Debug, Default)]
pub(crate) struct Class {
    /// Complete TSDUs, in order.
    pub(crate) ready: VecDeque<Tsdu>,
    /// The TSDU that the next send continues.
    pub(crate) open: Slot,
}

#[derive(Debug, Default)]
pub(crate) enum Slot {
    #[default]
    Empty,
    Open(Tsdu),
    /// A part of the TSDU was withdrawn. The sends up to its end are refused.
    Withdrawn,
}

#[derive(Debug, Default)]
pub(crate) struct Tsdu {
    pub(crate) parts: Vec<Part>,
    pub(crate) length: usize,
    /// The bytes of this TSDU that are in the send buffer.
    pub(crate) buffered: usize,
    pub(crate) complete: bool,
    pub(crate) no_response_expected: bool,
    pub(crate) invalidate: Option<Token>,
    /// The time by which the TSDU must be sent, if its last request has completed.
    pub(crate) deadline: Option<(Instant, u64)>,
}

#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) data: Message,
    pub(crate) pending: Option<Pending>,
}

/// A request that has not completed.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) id: RequestId,
    pub(crate) order: u64,
    pub(crate) deadline: Option<Instant>,
}

impl Class {
    /// Returns the open TSDU.
    pub(crate) const fn open(&self) -> Option<&Tsdu> {
        match &self.open {
            Slot::Open(tsdu) => Some(tsdu),
            Slot::Empty | Slot::Withdrawn => None,
        }
    }

    /// Adds a part to the open TSDU, or starts one with it.
    pub(crate) fn append(&mut self, part: Part) {
        if matches!(self.open, Slot::Empty) {
            self.open = Slot::Open(Tsdu::default());
        }
        let Slot::Open(tsdu) = &mut self.open else {
            unreachable!("`check` refuses a send that continues a withdrawn TSDU")
        };
        tsdu.length += part.data.len();
        if part.pending.is_none() {
            tsdu.buffered += part.data.len();
        }
        tsdu.parts.push(part);
    }

    /// Completes the open TSDU.
    pub(crate) fn close(
        &mut self,
        no_response_expected: bool,
        invalidate: Option<Token>,
        deadline: Option<(Instant, u64)>,
    ) {
        //= TDI-SEND-08
        //= TDI-SEND-09
        if let Slot::Open(tsdu) = std::mem::take(&mut self.open) {
            //= TDI-SEND-02
            //= TDI-SEND-05
            //= TDI-SEND-07
            self.ready.push_back(Tsdu {
                complete: true,
                no_response_expected,
                invalidate,
                deadline,
                ..tsdu
            });
        }
    }
}

impl Tsdu {
    pub(crate) fn pending(&self) -> impl Iterator<Item = &Pending> {
        self.parts.iter().filter_map(|part| part.pending.as_ref())
    }

    /// Returns whether the TSDU is complete and its last request has completed. The client relies
    /// on such a TSDU being sent, so it cannot be withdrawn.
    pub(crate) fn is_promised(&self) -> bool {
        self.complete && self.parts.last().is_some_and(|part| part.pending.is_none())
    }

    pub(crate) fn message(&self) -> Message {
        self.parts
            .iter()
            .flat_map(|part| slices(part.data.clone()))
            .collect()
    }
}

/// Returns the buffers of a message without copying them.
fn slices(mut message: Message) -> impl Iterator<Item = Bytes> {
    std::iter::from_fn(move || {
        let length = message.chunk().len();
        (length > 0).then(|| message.copy_to_bytes(length))
    })
}
