//! The rules that hold for every Data Transfer, and descriptions of messages.

use std::time::Instant;

use bytes::Bytes;
use smbdirect::wire::{DataTransfer, Flags};

use super::{Script, Transfer};
use crate::outcome::{Verdict, fail, require};

/// Describes a message in the specification's words.
pub(crate) fn describe(bytes: &[u8]) -> String {
    match DataTransfer::decode(bytes) {
        Ok(header) => describe_header(&header),
        Err(_) => format!("a message of {} bytes", bytes.len()),
    }
}

/// Describes a Data Transfer in the specification's words.
pub(super) fn describe_header(header: &DataTransfer) -> String {
    let DataTransfer {
        credits_requested,
        credits_granted,
        flags,
        remaining_data_length,
        data_offset,
        data_length,
    } = header;
    format!(
        "a Data Transfer with CreditsRequested {credits_requested}, CreditsGranted \
         {credits_granted}, Flags {}, RemainingDataLength {remaining_data_length}, DataOffset \
         {data_offset}, DataLength {data_length}",
        flags.bits()
    )
}

impl Script {
    /// Checks the rules for every Data Transfer.
    //= SMBD-3.1.5.1-04 test
    //= SMBD-3.1.5.1-06 test
    //= SMBD-3.1.5.1-08 test
    //= SMBD-3.1.5.4-03 test
    //= SMBD-3.1.5.4-05 test
    //= SMBD-3.1.5.4-07 test
    //= SMBD-3.1.5.4-08 test
    //= SMBD-2.2-02 test
    //= SMBD-2.2.3-01 test
    //= SMBD-2.2.3-02 test
    //= SMBD-2.2.3-03 test
    //= SMBD-2.2.3-04 test
    pub(super) fn check(&mut self, bytes: &Bytes) -> Verdict<Transfer> {
        let header = match DataTransfer::decode(bytes) {
            Ok(header) => header,
            Err(error) => return fail("a legal Data Transfer", error.to_string()),
        };
        let seen = || describe_header(&header);
        self.check_credits(&header)?;
        require(header.flags.bits() <= 1, "Flags of 0 or 1", seen)?;
        require(bytes[6..8] == [0, 0], "Reserved of 0", || {
            format!("Reserved of {:02x?}", &bytes[6..8])
        })?;
        let most = self.max_receive_size as usize;
        require(
            bytes.len() <= most,
            format!("messages of at most {most} bytes"),
            || format!("a message of {} bytes", bytes.len()),
        )?;
        match header.data_length {
            0 => self.check_empty(&header, bytes.len())?,
            _ => self.check_segment(&header, bytes)?,
        }
        Ok(Transfer {
            payload: bytes.slice(header.payload()),
            header,
        })
    }

    fn check_credits(&mut self, header: &DataTransfer) -> Verdict {
        let seen = || describe_header(header);
        require(
            self.granted > 0,
            "no message without a send credit (3.1.5.1)",
            seen,
        )?;
        self.granted -= 1;
        require(
            self.granted > 0 || header.credits_granted > 0,
            "CreditsGranted above 0 in the message that spends the last send credit (3.1.5.1)",
            seen,
        )?;
        self.send_credits += u32::from(header.credits_granted);
        // The rules for the last credit allow two more than the target.
        let most = self.most_credits + 2;
        let held = self.send_credits;
        require(
            held <= most || !self.facts.is_strict(),
            format!("no more credits than were requested, {}", self.most_credits),
            || format!("{held} credits after {}", describe_header(header)),
        )?;
        require(
            header.credits_requested > 0,
            "CreditsRequested above 0",
            seen,
        )
    }

    fn check_empty(&mut self, header: &DataTransfer, length: usize) -> Verdict {
        let seen = || describe_header(header);
        self.empty_messages += 1;
        let remaining = self.remaining;
        require(
            remaining == 0,
            format!("the next segment of a message that lacks {remaining} bytes"),
            seen,
        )?;
        require(
            (header.data_offset, header.remaining_data_length) == (0, 0),
            "DataOffset 0 and RemainingDataLength 0 in an empty message",
            seen,
        )?;
        require(
            length == DataTransfer::HEADER_LENGTH,
            "an empty message of 20 bytes, without padding",
            || format!("{length} bytes"),
        )?;
        let asks = header.flags.contains(Flags::RESPONSE_REQUESTED);
        let says_something = header.credits_granted > 0 || asks;
        require(
            says_something || std::mem::take(&mut self.asked),
            "an empty message only to grant credits, or to send or answer a keepalive",
            seen,
        )
    }

    fn check_segment(&mut self, header: &DataTransfer, bytes: &Bytes) -> Verdict {
        self.asked = false;
        let offset = header.data_offset;
        let usual = offset == DataTransfer::PAYLOAD_OFFSET;
        require(usual || !self.facts.is_strict(), "DataOffset 24", || {
            format!("DataOffset {offset}")
        })?;
        let padding = bytes.get(DataTransfer::HEADER_LENGTH..offset as usize);
        require(
            padding.unwrap_or_default().iter().all(|&byte| byte == 0),
            "padding of zeros",
            || format!("{padding:02x?}"),
        )?;
        let end = header.payload().end;
        require(
            bytes.len() == end || !self.facts.is_strict(),
            "no bytes after the payload",
            || format!("{} bytes", bytes.len() - end),
        )?;
        let left = u64::from(header.data_length) + u64::from(header.remaining_data_length);
        let missing = self.remaining;
        require(
            missing == 0 || left == missing.into(),
            format!("DataLength and RemainingDataLength of {missing} together"),
            || describe_header(header),
        )?;
        self.remaining = header.remaining_data_length;
        Ok(())
    }

    /// Checks that a keepalive of this end is answered, and that nothing follows the answer.
    //= SMBD-3.1.5.8-09 test
    //= SMBD-3.1.5.5-02 test
    pub(crate) fn is_answered(&mut self) -> Verdict {
        let lacked = self.send_credits < u32::from(self.credits_requested);
        self.ask()?;
        let header = self.expect_answer_to_keepalive()?;
        require(
            header.credits_granted > 0 || !lacked,
            "CreditsGranted above 0 in the answer",
            || format!("{header:?}"),
        )?;
        self.expect_nothing()
    }

    /// Takes the answer to a keepalive of this end.
    pub(crate) fn expect_answer_to_keepalive(&mut self) -> Verdict<DataTransfer> {
        let Transfer { header, .. } = self.next()?;
        require(
            header.flags == Flags::empty() && header.data_length == 0,
            "an empty message without SMB_DIRECT_RESPONSE_REQUESTED",
            || format!("{header:?}"),
        )?;
        Ok(header)
    }

    /// Waits for the keepalive that is due since the time `since`.
    pub(crate) fn expect_keepalive(&mut self, since: Instant) -> Verdict {
        let facts = self.facts.clone();
        let interval = facts.timers.keepalive_interval;
        let Transfer { header, .. } = self.next_within(interval + facts.prompt)?;
        facts.check_took("a keepalive", self.now() - since, interval)?;
        require(
            header.flags == Flags::RESPONSE_REQUESTED && header.data_length == 0,
            "an empty message with SMB_DIRECT_RESPONSE_REQUESTED",
            || format!("{header:?}"),
        )
    }
}
