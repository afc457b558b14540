//! This end of a connection, which has no engine: it sends any message that a case tells it to
//! send, valid or not, and checks every received message against the specification.

mod checks;
mod negotiate;
mod receive;
mod send;
mod upper;

pub(crate) use checks::describe;
pub(crate) use negotiate::{acceptance, acceptance_with, encoded, proposal, proposal_with};
pub(crate) use send::padded;

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use bytes::Bytes;
use smbdirect::wire::DataTransfer;

use crate::{
    outcome::{Stop, Verdict, fail, require},
    peer::{Link, Next, PeerFacts},
    upper::{Answering, Asking, UpperLayer},
};

/// A received Data Transfer that passed all checks.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) header: DataTransfer,
    pub(crate) payload: Bytes,
}

impl Transfer {
    /// Returns whether the message has neither payload nor a part in a longer message.
    pub(crate) const fn is_empty(&self) -> bool {
        self.header.data_length == 0
    }
}

/// This end of a connection.
pub(crate) struct Script {
    link: Box<dyn Link>,
    facts: PeerFacts,
    connected: Instant,
    is_established: bool,
    /// Largest message that may be sent, in bytes.
    pub(crate) max_send_size: u32,
    /// Largest message that may be received, in bytes.
    max_receive_size: u32,
    /// CreditsRequested of each Data Transfer.
    pub(crate) credits_requested: u16,
    /// Number of Data Transfers that may be sent.
    pub(crate) send_credits: u32,
    /// Number of Data Transfers that may be received.
    pub(crate) granted: u32,
    /// Number of credits that the peer shall hold, for messages without an explicit grant.
    pub(crate) target: u32,
    arrived: VecDeque<Transfer>,
    /// Bytes that are missing from the current message of the peer.
    remaining: u32,
    /// Maximum number of credits that the peer is given.
    pub(crate) receive_credit_max: u32,
    /// Maximum number of credits that the peer may give, apart from the rules for the last credit.
    pub(crate) most_credits: u32,
    /// A keepalive is unanswered; its answer may be an empty message without a grant.
    asked: bool,
    /// Number of empty messages received.
    pub(crate) empty_messages: usize,
    asking: Box<dyn Asking>,
    answering: Box<dyn Answering>,
}

/// Maximum number of messages that a peer may send after an attack.
const MAX_DRAINED: usize = 1000;

impl Script {
    /// Creates a script before the first message.
    pub(crate) fn new(link: Box<dyn Link>, facts: PeerFacts, upper: &dyn UpperLayer) -> Self {
        Self {
            connected: link.connected(),
            link,
            facts,
            is_established: false,
            max_send_size: 0,
            max_receive_size: 0,
            credits_requested: 0,
            send_credits: 0,
            granted: 0,
            target: 0,
            arrived: VecDeque::new(),
            remaining: 0,
            asked: false,
            receive_credit_max: 255,
            most_credits: 0,
            empty_messages: 0,
            asking: upper.ask(),
            answering: upper.answer(),
        }
    }

    /// Returns when this end began to connect or to accept.
    pub(crate) const fn connected(&self) -> Instant {
        self.connected
    }

    pub(crate) fn now(&self) -> Instant {
        self.link.now()
    }

    /// Ends the RDMA connection at this end.
    pub(crate) fn disconnect(mut self) {
        self.link.disconnect();
    }

    /// Ends the RDMA connection at this end, and passes the case.
    pub(crate) fn done(self) -> Verdict {
        self.disconnect();
        Ok(())
    }

    /// Hands posted messages to the wire, without waiting for the peer.
    pub(crate) fn flush(&mut self) {
        self.link.flush();
    }

    /// Returns the largest payload of a segment in bytes.
    pub(crate) const fn max_payload(&self) -> usize {
        self.max_send_size as usize - DataTransfer::PAYLOAD_OFFSET as usize
    }

    /// Waits for a message.
    pub(crate) fn expect_message(&mut self, what: &str) -> Verdict<Bytes> {
        let limit = self.facts.prompt;
        match self.link.next(limit) {
            Next::Message(message) => Ok(message),
            Next::End => fail(what, "the connection ended"),
            Next::Silence => fail(what, format!("nothing within {limit:?}")),
        }
    }

    /// Waits for the message with which a client begins to use a connection. A client whose user has given up may
    /// connect once more and send nothing.
    pub(crate) fn expect_use(&mut self, expected: &'static str) -> Verdict<Bytes> {
        self.expect_message(expected).map_err(|stop| match stop {
            Stop::Fail { seen, .. } => Stop::Unused { expected, seen },
            stop => stop,
        })
    }

    /// Checks that no message arrives for `duration`. A peer whose settings are not known may
    /// grant credits by empty messages.
    pub(crate) fn expect_silence(&mut self, duration: Duration) -> Verdict {
        let expected = format!("no message for {duration:?}");
        if let Some(transfer) = self.arrived.front() {
            return fail(expected, describe_header(&transfer.header));
        }
        let until = self.now() + duration;
        loop {
            let left = until.saturating_duration_since(self.now());
            match self.link.next(left) {
                Next::Silence => return Ok(()),
                Next::End => return fail(expected, "the connection ended"),
                Next::Message(message) => {
                    require(self.is_established, expected.as_str(), || {
                        describe(&message)
                    })?;
                    let transfer = self.check(&message)?;
                    let is_grant = transfer.is_empty() && transfer.header.flags.is_empty();
                    let tolerated = is_grant && !self.facts.is_strict();
                    require(tolerated, expected.as_str(), || describe(&message))?;
                }
            }
        }
    }

    /// Checks that no message arrives for a while.
    pub(crate) fn expect_nothing(&mut self) -> Verdict {
        self.expect_silence(self.facts.silence)
    }

    /// Checks that the peer ends the RDMA connection without a further message.
    pub(crate) fn expect_terminated(&mut self) -> Verdict {
        let now = self.now();
        self.expect_terminated_after(now, Duration::ZERO)
    }

    /// Checks that the peer ends the RDMA connection without a further message, and that it does so
    /// `after` the time `since`, not earlier.
    pub(crate) fn expect_terminated_after(&mut self, since: Instant, after: Duration) -> Verdict {
        let expected = if after.is_zero() {
            "the connection ends without a further message".to_owned()
        } else {
            format!("the connection ends {after:?} later, without a further message")
        };
        if let Some(transfer) = self.arrived.iter().find(|transfer| !transfer.is_empty()) {
            return fail(expected, describe_header(&transfer.header));
        }
        let mut limit = after + self.facts.prompt;
        loop {
            match self.link.next(limit) {
                Next::End => break,
                Next::Silence => {
                    let waited = self.now() - since;
                    return fail(expected, format!("it continued for {waited:?}"));
                }
                Next::Message(message) => {
                    // A grant may have been sent before the broken message arrived.
                    let grants = DataTransfer::decode(&message)
                        .is_ok_and(|header| header.data_length == 0 && header.flags.is_empty());
                    let tolerated = self.is_established && grants && !self.facts.is_strict();
                    require(tolerated, expected.as_str(), || describe(&message))?;
                    limit = self.facts.prompt.max(since + limit - self.now());
                }
            }
        }
        if after.is_zero() {
            Ok(())
        } else {
            let took = self.now() - since;
            self.facts.check_took("the connection ends", took, after)
        }
    }

    /// Checks that the peer ends the RDMA connection within `limit`, possibly after keepalives.
    pub(crate) fn expect_terminated_within(&mut self, limit: Duration) -> Verdict {
        match self.link.next(limit) {
            Next::End => Ok(()),
            Next::Silence => fail(
                format!("the connection ends within {limit:?}"),
                "it continued",
            ),
            Next::Message(message) => fail("no message without a send credit", describe(&message)),
        }
    }

    /// Checks that the peer ends the RDMA connection, possibly after further messages.
    pub(crate) fn expect_end(&mut self) -> Verdict {
        loop {
            match self.link.next(self.facts.prompt) {
                Next::Message(message) => drop(self.check(&message)?),
                Next::End => return Ok(()),
                Next::Silence => return fail("the client ends the connection", "it continued"),
            }
        }
    }

    /// Takes whatever arrives, until the connection ends or the peer is silent.
    pub(crate) fn drain(&mut self) -> Verdict {
        for _ in 0..MAX_DRAINED {
            match self.link.next(self.facts.silence) {
                Next::Message(_) => {}
                Next::End | Next::Silence => return Ok(()),
            }
        }
        fail("silence", format!("{MAX_DRAINED} messages and more"))
    }

    /// Returns what is known about the peer.
    pub(crate) const fn facts(&self) -> &PeerFacts {
        &self.facts
    }
}

fn describe_header(header: &DataTransfer) -> String {
    checks::describe_header(header)
}
