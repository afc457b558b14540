//! The data of sends: settings, requests, completions and events.

use std::time::{Duration, Instant};

use smbdirect::{Message, Token};

use super::{flags::SendFlags, request::RequestId, status::Status};

/// The settings of the sends of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendSettings {
    /// The largest TSDU in bytes: MaxFragmentedSendSize of the connection.
    pub max_tsdu: usize,
    /// Size of the send buffer in bytes. With 0 there is no send buffer, and `NON_BLOCKING` has no
    /// effect. Otherwise it must hold a TSDU of the largest size for each class, because an open
    /// TSDU could otherwise fill the room that it waits for.
    pub high_water: usize,
    /// The fill level in bytes to which the send buffer must drain after a refusal before the
    /// client is told that sends are possible.
    pub low_water: usize,
    /// The effect of `EXPEDITED`.
    pub expedited: Expedited,
    /// The effect of `NON_BLOCKING` when there is room for a part of the send.
    pub non_blocking: NonBlocking,
    /// The effect of `NO_RESPONSE_EXPECTED`.
    pub no_response: NoResponse,
    /// The time after which a send without a deadline is given up; `None` means never.
    pub send_timeout: Option<Duration>,
}

/// The effect of [`SendFlags::EXPEDITED`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Expedited {
    /// The TSDU overtakes normal TSDUs that were not passed to the connection yet. The peer cannot
    /// see this. A steady flow of expedited TSDUs keeps normal ones from being sent.
    #[default]
    LocalPriority,
    /// No effect.
    Ignore,
}

/// The effect of [`SendFlags::NON_BLOCKING`] when there is room for a part of the send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NonBlocking {
    /// The part is taken, as TDI specifies. The TSDU stays open for the rest.
    #[default]
    Partial,
    /// Nothing is taken, so that several threads can send without splitting each other's TSDUs.
    Atomic,
}

/// The effect of [`SendFlags::NO_RESPONSE_EXPECTED`].
///
/// SMB Direct has no acknowledgements. A peer returns only credits, and the only way to request
/// them is a keepalive, which costs one credit and starts a timer that ends the connection if the
/// peer does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NoResponse {
    /// No effect.
    Ignore,
    /// Credits are requested if few are left after this TSDU.
    #[default]
    WhenLowOnCredits,
    /// Credits are requested each time, unless a request is unanswered.
    Always,
}

impl SendSettings {
    /// Returns the defaults for TSDUs of at most `max_tsdu` bytes.
    pub const fn new(max_tsdu: usize) -> Self {
        Self {
            max_tsdu,
            high_water: 2 * max_tsdu,
            low_water: max_tsdu / 2,
            expedited: Expedited::LocalPriority,
            non_blocking: NonBlocking::Partial,
            no_response: NoResponse::WhenLowOnCredits,
            send_timeout: Some(Duration::from_secs(60)),
        }
    }

    pub(crate) const fn are_consistent(&self) -> bool {
        let open_tsdus = match self.expedited {
            Expedited::LocalPriority => 2,
            Expedited::Ignore => 1,
        };
        let holds_open_tsdus = self.high_water / open_tsdus >= self.max_tsdu;
        self.high_water == 0 || (holds_open_tsdus && self.low_water < self.high_water)
    }
}

/// A send.
#[derive(Clone, Debug)]
pub struct SendRequest {
    /// The id of the request, which its completion repeats.
    pub id: RequestId,
    /// The data, in one buffer or several. The completion returns it.
    pub buffer: Message,
    /// The TDI flags of the send.
    pub flags: SendFlags,
    /// The time at which the send is given up; `None` means after [`SendSettings::send_timeout`].
    pub deadline: Option<Instant>,
    /// A registration of the peer that the arrival of the TSDU invalidates. A token is only permitted in a send
    /// that ends its TSDU, which is a send without `PARTIAL`.
    pub invalidate: Option<Token>,
}

impl SendRequest {
    /// Returns a send without a deadline and without a token.
    pub fn new(id: RequestId, buffer: impl Into<Message>, flags: SendFlags) -> Self {
        Self {
            id,
            buffer: buffer.into(),
            flags,
            deadline: None,
            invalidate: None,
        }
    }

    /// Returns a send of the whole buffer as a normal TSDU or as the end of one.
    pub fn write(id: RequestId, buffer: impl Into<Message>) -> Self {
        //= TDI-SEND-32
        Self::new(id, buffer, SendFlags::empty())
    }
}

/// The completion of a send. Each send has exactly one.
#[derive(Clone, Debug)]
pub struct SendCompletion {
    /// The id of the request.
    pub id: RequestId,
    /// The result.
    pub status: Status,
    /// The number of bytes taken from the buffer.
    pub information: usize,
    /// The whole buffer.
    pub buffer: Message,
}

impl SendCompletion {
    /// Returns the completion of a send that was not submitted.
    pub(crate) const fn refused(status: Status, buffer: Message) -> Self {
        Self {
            id: RequestId(0),
            status,
            information: 0,
            buffer,
        }
    }

    /// Returns the number of bytes taken.
    ///
    /// # Errors
    /// Returns the status if it is an error.
    pub const fn result(&self) -> Result<usize, Status> {
        if self.status.is_error() {
            Err(self.status)
        } else {
            Ok(self.information)
        }
    }
}

/// The immediate result of [`Outbound::send`](super::Outbound::send).
#[derive(Clone, Debug)]
pub enum Submission {
    /// The request is pending, and its completion will be an event.
    Pending,
    /// The request has completed.
    Completed(SendCompletion),
}

/// An event of the sends.
#[derive(Clone, Debug)]
pub enum SendEvent {
    /// A pending request has completed.
    Completed(SendCompletion),
    /// The send buffer has room again after a refusal.
    SendPossible {
        /// The bytes that a non-blocking send would take now. They are not reserved.
        available: usize,
    },
    /// A TSDU reached its deadline after it was passed to the connection, or after its last request
    /// had completed. It cannot be withdrawn, so the connection must be aborted.
    Abort(Status),
    /// Everything was sent after [`Outbound::release`](super::Outbound::release).
    Drained,
}

/// The resources of the connection when a TSDU is passed to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendAvailability {
    /// The available send credits.
    pub send_credits: u16,
    /// The number of send credits at or below which credits are low.
    pub low_credits: u16,
    /// The largest payload of one segment in bytes.
    pub segment_payload: usize,
}

/// A TSDU that the connection must send.
#[derive(Clone, Debug)]
pub struct OutboundTsdu {
    /// The data.
    pub message: Message,
    /// A registration of the peer that the arrival invalidates.
    pub invalidate: Option<Token>,
    /// Whether to request a response from the peer after it.
    pub prompt: bool,
}
