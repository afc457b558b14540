//! Sending: segments, valid or not, within the credits of this end.

use smbdirect::wire::{DataTransfer, Flags};

use super::Script;
use crate::outcome::{Verdict, fail};

/// Encodes a Data Transfer, legal or not; `body` is everything after the 20 bytes of the header.
fn raw(header: &DataTransfer, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(DataTransfer::HEADER_LENGTH + body.len());
    bytes.extend(header.credits_requested.to_le_bytes());
    bytes.extend(header.credits_granted.to_le_bytes());
    bytes.extend(header.flags.bits().to_le_bytes());
    bytes.extend([0, 0]);
    bytes.extend(header.remaining_data_length.to_le_bytes());
    bytes.extend(header.data_offset.to_le_bytes());
    bytes.extend(header.data_length.to_le_bytes());
    bytes.extend(body);
    bytes
}

/// Returns the bytes after the header of a segment: 4 bytes of padding and the payload.
pub(crate) fn padded(payload: &[u8]) -> Vec<u8> {
    [&[0; 4], payload].concat()
}

impl Script {
    /// Sends these bytes as one message, valid or not.
    pub(crate) fn send_bytes(&mut self, message: &[u8]) -> Verdict {
        self.link.send(message)
    }

    /// Returns an empty Data Transfer with this grant.
    pub(crate) const fn empty(&self, credits_granted: u16) -> DataTransfer {
        DataTransfer::empty(self.credits_requested, credits_granted, Flags::empty())
    }

    /// Returns the header of a segment, which grants as many credits as the peer lacks. With the
    /// last send credit it grants at least one (3.1.5.1).
    pub(crate) const fn segment(&self, data_length: usize, remaining: usize) -> DataTransfer {
        DataTransfer {
            remaining_data_length: remaining as u32,
            data_offset: 24,
            data_length: data_length as u32,
            ..self.empty(self.due_grant())
        }
    }

    /// Sends a Data Transfer whose header is followed by `body`: padding, then payload.
    pub(crate) fn transfer(&mut self, header: &DataTransfer, body: &[u8]) -> Verdict {
        self.transfer_bytes(header.credits_granted, &raw(header, body))
    }

    /// Sends a Data Transfer whose bytes `change` has altered.
    pub(crate) fn transfer_altered(
        &mut self,
        header: &DataTransfer,
        payload: &[u8],
        change: impl FnOnce(&mut Vec<u8>),
    ) -> Verdict {
        let mut bytes = raw(header, &padded(payload));
        change(&mut bytes);
        self.transfer_bytes(header.credits_granted, &bytes)
    }

    fn transfer_bytes(&mut self, granted: u16, bytes: &[u8]) -> Verdict {
        self.await_credit()?;
        self.send_credits -= 1;
        self.link.post_receives(granted, self.max_receive_size);
        self.granted += u32::from(granted);
        self.send_bytes(bytes)
    }

    /// Waits until a message may be sent, and drops received messages that only grant credits.
    pub(crate) fn await_credit(&mut self) -> Verdict {
        while self.send_credits == 0 {
            let limit = self.facts.prompt;
            if !self.take(limit)? {
                return fail(
                    "a grant for an end that has no send credit (3.1.5.9)",
                    format!("no message within {limit:?}"),
                );
            }
            self.arrived.pop_back_if(|got| got.is_empty());
        }
        Ok(())
    }

    /// Sends one segment.
    pub(crate) fn send_segment(&mut self, payload: &[u8], remaining: usize) -> Verdict {
        // The wait may receive credits, which changes the grant of the segment.
        self.await_credit()?;
        let header = self.segment(payload.len(), remaining);
        self.transfer(&header, &padded(payload))
    }

    /// Sends a message in segments of `size` bytes.
    pub(crate) fn send(&mut self, message: &[u8], size: usize) -> Verdict {
        let mut remaining = message.len();
        for payload in message.chunks(size) {
            remaining -= payload.len();
            self.send_segment(payload, remaining)?;
        }
        Ok(())
    }

    /// Sends a message in the longest segments.
    pub(crate) fn send_whole(&mut self, message: &[u8]) -> Verdict {
        self.send(message, self.max_payload())
    }

    /// Sends a message in segments of 0 bytes, then of 128 down to 1, then of 0 up to 127, and so on.
    pub(crate) fn send_in_all_lengths(&mut self, message: &[u8]) -> Verdict {
        let mut rest = message;
        let down_and_up = [0].into_iter().chain((1..=128).rev()).chain(0..=127);
        for length in down_and_up.cycle() {
            let most = length.min(self.max_payload());
            let (payload, left) = rest.split_at(most.min(rest.len()));
            rest = left;
            self.send_segment(payload, rest.len())?;
            if rest.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Sends an empty message with this grant, for which receives are posted.
    pub(crate) fn grant(&mut self, credits: u16) -> Verdict {
        let header = self.empty(credits);
        self.transfer(&header, &[])
    }

    /// Sends an empty message without a credit for it.
    pub(crate) fn send_without_credit(&mut self) -> Verdict {
        self.send_bytes(&raw(&self.empty(0), &[]))
    }

    /// Grants credits for which no receives are posted.
    pub(crate) fn overgrant(&mut self, credits_granted: u16) -> Verdict {
        self.send_bytes(&raw(&self.empty(credits_granted), &[]))
    }

    /// Sends a keepalive without a grant.
    pub(crate) fn ask(&mut self) -> Verdict {
        let header = DataTransfer {
            flags: Flags::RESPONSE_REQUESTED,
            ..self.empty(0)
        };
        self.asked = true;
        self.transfer(&header, &[])
    }

    const fn due_grant(&self) -> u16 {
        match self.lacking() {
            0 if self.send_credits == 1 => 1,
            lacking => lacking,
        }
    }

    /// Returns the number of credits that the peer lacks.
    pub(crate) const fn lacking(&self) -> u16 {
        self.target.saturating_sub(self.granted) as u16
    }
}
