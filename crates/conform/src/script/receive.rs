//! Receiving: Data Transfers, and complete messages of the upper layer.

use std::time::Duration;

use super::{Script, Transfer};
use crate::{
    outcome::{Verdict, fail},
    peer::Next,
};

impl Script {
    /// Returns the next Data Transfer.
    pub(crate) fn next(&mut self) -> Verdict<Transfer> {
        self.next_within(self.facts.prompt)
    }

    /// Returns the next Data Transfer, which arrives within `limit`.
    pub(crate) fn next_within(&mut self, limit: Duration) -> Verdict<Transfer> {
        if self.arrived.is_empty() && !self.take(limit)? {
            return fail("a message", format!("nothing within {limit:?}"));
        }
        Ok(self.arrived.pop_front().expect("one was taken"))
    }

    /// Returns the next Data Transfer with payload.
    pub(crate) fn next_segment(&mut self) -> Verdict<Transfer> {
        loop {
            let transfer = self.next()?;
            if !transfer.is_empty() {
                return Ok(transfer);
            }
        }
    }

    /// Takes and drops an empty message, and returns whether one arrived within `limit`.
    pub(crate) fn arrives(&mut self, limit: Duration) -> Verdict<bool> {
        let arrived = self.take(limit)?;
        self.arrived.pop_back_if(|got| got.is_empty());
        Ok(arrived)
    }

    /// Receives a complete message and grants credits as needed.
    pub(crate) fn receive(&mut self) -> Verdict<Vec<u8>> {
        let mut message = Vec::new();
        loop {
            let Transfer { header, payload } = self.next()?;
            message.extend_from_slice(&payload);
            if header.data_length > 0 && header.remaining_data_length == 0 {
                return Ok(message);
            }
            if self.granted <= self.target / 4 && self.send_credits > 0 {
                self.grant(self.lacking())?;
            }
        }
    }

    /// Takes a Data Transfer, and returns whether one arrived.
    pub(super) fn take(&mut self, limit: Duration) -> Verdict<bool> {
        match self.link.next(limit) {
            Next::Message(message) => {
                let transfer = self.check(&message)?;
                self.arrived.push_back(transfer);
                Ok(true)
            }
            Next::Silence => Ok(false),
            Next::End => fail("a message", "the connection ended"),
        }
    }
}
