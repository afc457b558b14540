//! SMB Direct: decodes a Send by its place in the connection, and checks the rules.
//!
//! Credits are counted from the negotiation on. Over TCP, a count is never lower than the credits that the
//! sender held, because every grant that it can have received was counted before. A report that it
//! spent its last credit, or had none, is therefore certain. Over RoCE it is not, and is not made.

use smbdirect::wire::{NegotiateRequest, NegotiateResponse, Status, VERSION_1_0};
use smbdirect_smb::smb2::{Channel, Command, Flags, Header, Protocol};

use super::{
    event::{Broken, ByRdma, DataTransfer, EventKind, Payload, broken},
    per_end::{PerEnd, Side},
};

/// A complete Send, or the part in the capture.
#[derive(Debug, Default)]
pub(super) struct Send {
    /// The first bytes of the message; all of them if it is short.
    pub(super) head: Vec<u8>,
    pub(super) length: u64,
    /// Whether the capture has it from its first packet on, so that its head and length are certain.
    pub(super) whole: bool,
    pub(super) message_sequence_number: u32,
    pub(super) invalidated: Option<u32>,
}

/// The state of a connection.
#[derive(Debug, Default)]
pub(super) struct SmbDirect {
    request: Option<NegotiateRequest>,
    response: Option<NegotiateResponse>,
    senders: PerEnd<SenderState>,
}

/// The state of an end, as a sender.
#[derive(Debug, Default)]
struct SenderState {
    /// Whether its first Send was captured, which negotiates.
    has_negotiated: bool,
    /// The credits it holds, if everything that they depend on was captured.
    credits: Option<u32>,
    /// Bytes that the current message lacks, if that is known.
    remaining: Option<u32>,
    /// The current message has carried a token.
    invalidates: bool,
}

/// The expectations against which a Send is checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context {
    pub(super) side: Side,
    /// The direction of the end that connected.
    pub(super) initiator: Option<Side>,
    /// Whether each direction was captured completely.
    pub(super) whole: PerEnd<bool>,
    /// Whether the order of the directions is known. Each packet of TCP says what its sender had received; over RoCE, there
    /// is only the order of the file.
    pub(super) is_ordered: bool,
}

const MIN_MAX_RECEIVE_SIZE: u32 = 128;
const MIN_MAX_FRAGMENTED_SIZE: u32 = 131_072;
const RESPONSE_REQUESTED: u16 = 1;
const HEADER_LENGTH: usize = 20;

impl SmbDirect {
    /// Returns the send credits of both ends.
    pub(super) fn credits(&self) -> PerEnd<Option<u32>> {
        PerEnd(self.senders.each_ref().map(|sender| sender.credits))
    }

    /// Handles a loss in a direction.
    pub(super) fn lost(&mut self, side: Side) {
        for side in self.senders.iter_mut() {
            side.credits = None;
        }
        self.senders[side].remaining = None;
        self.senders[side].invalidates = false;
    }

    /// Handles the next Send, and returns the direction of the initiator if it reveals it.
    pub(super) fn message(
        &mut self,
        send: &Send,
        context: &mut Context,
        faults: &mut Vec<Broken>,
    ) -> EventKind {
        let mut found = Vec::new();
        let kind = self.checked(send, context, &mut found);
        if send.whole {
            faults.append(&mut found);
        }
        kind
    }

    fn checked(
        &mut self,
        send: &Send,
        context: &mut Context,
        faults: &mut Vec<Broken>,
    ) -> EventKind {
        let side = context.side;
        // Without the beginning of the stream, the capture may begin before this message or after it.
        let begins = context.whole[side] || send.message_sequence_number == 1;
        let is_first = begins && !self.senders[side].has_negotiated;
        if !is_first {
            return self.data_transfer(send, context, faults);
        }
        self.senders[side].has_negotiated = true;
        let is_response = send.length >= NegotiateResponse::LENGTH as u64;
        let initiator = *context
            .initiator
            .get_or_insert(if is_response { !side } else { side });
        if initiator == side {
            self.negotiate_request(send, faults)
        } else {
            self.negotiate_response(send, context, faults)
        }
    }

    fn negotiate_request(&mut self, send: &Send, faults: &mut Vec<Broken>) -> EventKind {
        let Ok(request) = NegotiateRequest::decode(&send.head) else {
            let name = "Negotiate Request";
            return too_short(name, send, "SMBD-3.1.5.6-01", 20, faults);
        };
        let mut fault = |rule, how| faults.push(broken(rule, how));
        let (min, max) = (request.min_version, request.max_version);
        if min > max {
            fault(
                "SMBD-2.2.1-01",
                format!("MinVersion 0x{min:04x} is above MaxVersion 0x{max:04x}"),
            );
        } else if (min, max) != (VERSION_1_0, VERSION_1_0) {
            fault(
                "SMBD-3.1.5.2-01",
                format!("MinVersion 0x{min:04x}, MaxVersion 0x{max:04x}"),
            );
        }
        if let reserved @ 1.. = short(&send.head, 4) {
            fault("SMBD-3.1.5.2-01", format!("Reserved 0x{reserved:04x}"));
        }
        if request.credits_requested == 0 {
            fault("SMBD-3.1.5.6-04", "CreditsRequested 0".into());
        }
        if request.max_receive_size < MIN_MAX_RECEIVE_SIZE {
            let size = request.max_receive_size;
            fault("SMBD-3.1.5.6-05", format!("MaxReceiveSize {size}"));
        }
        if request.max_fragmented_size < MIN_MAX_FRAGMENTED_SIZE {
            let size = request.max_fragmented_size;
            fault("SMBD-3.1.5.6-06", format!("MaxFragmentedSize {size}"));
        }
        self.request = Some(request);
        EventKind::NegotiateRequest(request)
    }

    fn negotiate_response(
        &mut self,
        send: &Send,
        context: &Context,
        faults: &mut Vec<Broken>,
    ) -> EventKind {
        let Ok(response) = NegotiateResponse::decode(&send.head) else {
            let name = "Negotiate Response";
            return too_short(name, send, "SMBD-3.1.5.7-01", 32, faults);
        };
        let mut fault = |rule, how| faults.push(broken(rule, how));
        let (min, max) = (response.min_version, response.max_version);
        if (min, max) != (VERSION_1_0, VERSION_1_0) {
            fault(
                "SMBD-3.1.5.3-01",
                format!("MinVersion 0x{min:04x}, MaxVersion 0x{max:04x}"),
            );
        }
        if let reserved @ 1.. = short(&send.head, 6) {
            fault("SMBD-3.1.5.3-01", format!("Reserved 0x{reserved:04x}"));
        }
        self.response = Some(response);
        if response.status != Status::SUCCESS {
            let refusal = NegotiateResponse {
                min_version: min,
                max_version: max,
                ..NegotiateResponse::refusal(response.status)
            };
            if response != refusal {
                let how = "a refusal with more in it than versions and Status";
                fault("SMBD-3.1.5.3-02", how.into());
            }
            return EventKind::NegotiateResponse(response);
        }
        if response.negotiated_version != VERSION_1_0 {
            let version = response.negotiated_version;
            fault(
                "SMBD-3.1.5.7-02",
                format!("NegotiatedVersion 0x{version:04x}"),
            );
        }
        if response.max_receive_size < MIN_MAX_RECEIVE_SIZE {
            let size = response.max_receive_size;
            fault("SMBD-3.1.5.7-03", format!("MaxReceiveSize {size}"));
        }
        if response.max_fragmented_size < MIN_MAX_FRAGMENTED_SIZE {
            let size = response.max_fragmented_size;
            fault("SMBD-3.1.5.7-04", format!("MaxFragmentedSize {size}"));
        }
        if response.credits_granted == 0 {
            fault("SMBD-3.1.5.7-05", "CreditsGranted 0".into());
        }
        if response.credits_requested == 0 {
            fault("SMBD-3.1.5.7-06", "CreditsRequested 0".into());
        }
        if let Some(request) = &self.request {
            against_request(request, &response, faults);
        }
        if *context.whole == [true; 2] && self.request.is_some() {
            let side = context.side;
            self.senders[!side].credits = Some(response.credits_granted.into());
            self.senders[side].credits = Some(0);
            self.senders[Side::A].remaining = Some(0);
            self.senders[Side::B].remaining = Some(0);
        }
        EventKind::NegotiateResponse(response)
    }

    fn data_transfer(
        &mut self,
        send: &Send,
        context: &Context,
        faults: &mut Vec<Broken>,
    ) -> EventKind {
        let side = context.side;
        self.check_established(context, faults);
        let Some(message) = send.head.get(..HEADER_LENGTH) else {
            self.lost(side);
            return too_short("Data Transfer", send, "SMBD-3.1.5.8-01", 20, faults);
        };
        let mut transfer = DataTransfer {
            credits_requested: short(message, 0),
            credits_granted: short(message, 2),
            flags: short(message, 4),
            reserved: short(message, 6),
            remaining_data_length: long(message, 8),
            data_offset: long(message, 12),
            data_length: long(message, 16),
            payload: Payload::None,
            invalidated: send.invalidated,
        };
        transfer.payload = payload(&send.head, &transfer, self.senders[side].remaining);
        check_fields(&transfer, faults);
        check_payload_position(send, &transfer, faults);
        self.check_sizes(send, context, &transfer, faults);
        let mut unpaid = Vec::new();
        self.spend(side, transfer.credits_granted, &mut unpaid);
        if context.is_ordered {
            faults.append(&mut unpaid);
        }
        self.reassemble(side, &transfer, faults);
        self.check_token(side, &transfer, faults);
        EventKind::DataTransfer(transfer)
    }

    /// Checks that a Data Transfer comes after the negotiation.
    fn check_established(&self, context: &Context, faults: &mut Vec<Broken>) {
        let refused = self
            .response
            .filter(|response| response.status != Status::SUCCESS);
        if let Some(response) = refused {
            let how = format!("a message after a refusal with {}", response.status);
            faults.push(broken("SMBD-3.1.5.1-01", how));
        } else if context.is_ordered
            && *context.whole == [true; 2]
            && self.senders.iter().any(|sender| !sender.has_negotiated)
        {
            let how = "a message before the negotiation was over";
            faults.push(broken("SMBD-3.1.5.1-01", how));
        }
    }

    /// Checks the negotiated sizes.
    fn check_sizes(
        &self,
        send: &Send,
        context: &Context,
        transfer: &DataTransfer,
        faults: &mut Vec<Broken>,
    ) {
        let (Some(initiator), Some(request), Some(response)) =
            (context.initiator, &self.request, &self.response)
        else {
            return;
        };
        let (preferred, max_receive, max_fragmented) = if initiator == context.side {
            (
                request.preferred_send_size,
                response.max_receive_size,
                response.max_fragmented_size,
            )
        } else {
            (
                response.preferred_send_size,
                request.max_receive_size,
                request.max_fragmented_size,
            )
        };
        if transfer.claimed() > max_fragmented.into() {
            faults.push(broken(
                "SMBD-3.1.5.8-05",
                format!(
                    "DataLength {}, RemainingDataLength {}, MaxFragmentedSize {max_fragmented}",
                    transfer.data_length, transfer.remaining_data_length
                ),
            ));
        }
        // Messages of 128 bytes are always accepted.
        let max_send = preferred.min(max_receive).max(MIN_MAX_RECEIVE_SIZE);
        if send.length > max_send.into() {
            faults.push(broken(
                "SMBD-3.1.5.4-05",
                format!("{} bytes, MaxSendSize {max_send}", send.length),
            ));
        }
    }

    /// Charges the sender a credit, and adds the granted ones to the other end.
    fn spend(&mut self, side: Side, credits_granted: u16, faults: &mut Vec<Broken>) {
        let mut fault = |rule, how| faults.push(broken(rule, how));
        if let Some(credits) = &mut self.senders[side].credits {
            match *credits {
                0 => fault("SMBD-3.1.5.1-04", "sent without a send credit".into()),
                1 if credits_granted == 0 => fault(
                    "SMBD-3.1.5.1-06",
                    "the last send credit, with CreditsGranted 0".into(),
                ),
                _ => {}
            }
            *credits = credits.saturating_sub(1);
        }
        if let Some(credits) = &mut self.senders[!side].credits {
            let held = *credits;
            *credits += u32::from(credits_granted);
            if *credits > u16::MAX.into() {
                fault(
                    "SMBD-3.1.5.8-11",
                    format!("CreditsGranted {credits_granted} on top of {held}"),
                );
                *credits = u16::MAX.into();
            }
        }
    }

    /// Checks that the segments of a message follow each other.
    fn reassemble(&mut self, side: Side, transfer: &DataTransfer, faults: &mut Vec<Broken>) {
        let remaining = &mut self.senders[side].remaining;
        let expected = remaining.replace(transfer.remaining_data_length);
        let Some(expected @ 1..) = expected else {
            return;
        };
        if transfer.claimed() == u64::from(expected) {
            return;
        }
        let is_last = transfer.remaining_data_length == 0;
        let rule = match (transfer.claimed() > expected.into(), is_last) {
            (true, true) => "SMBD-3.1.5.8-19",
            (true, false) => "SMBD-3.1.5.8-18",
            (false, true) => "SMBD-3.1.5.8-16",
            (false, false) => "SMBD-3.1.5.8-20",
        };
        faults.push(broken(
            rule,
            format!(
                "DataLength {}, RemainingDataLength {}, while {expected} bytes were missing",
                transfer.data_length, transfer.remaining_data_length
            ),
        ));
    }

    fn check_token(&mut self, side: Side, transfer: &DataTransfer, faults: &mut Vec<Broken>) {
        let this = &mut self.senders[side];
        let has_token = transfer.invalidated.is_some();
        if has_token && this.invalidates {
            let how = "a second segment of the message with a token";
            faults.push(broken("SMBD-3.1.5.4-09", how));
        }
        let is_last = transfer.remaining_data_length == 0;
        this.invalidates = !is_last && (this.invalidates || has_token);
    }
}

impl DataTransfer {
    /// Returns where the payload ends.
    fn end(&self) -> u64 {
        u64::from(self.data_offset) + u64::from(self.data_length)
    }

    /// Returns the bytes that the message lacks before this segment.
    fn claimed(&self) -> u64 {
        u64::from(self.data_length) + u64::from(self.remaining_data_length)
    }
}

/// Checks the fields that are the same on every connection.
fn check_fields(transfer: &DataTransfer, faults: &mut Vec<Broken>) {
    let mut fault = |rule, how| faults.push(broken(rule, how));
    if transfer.credits_requested == 0 {
        fault("SMBD-3.1.5.8-02", "CreditsRequested 0".into());
    }
    let flags = transfer.flags;
    if flags & !RESPONSE_REQUESTED != 0 {
        fault("SMBD-2.2.3-01", format!("Flags 0x{flags:04x}"));
    }
    if let reserved @ 1.. = transfer.reserved {
        fault("SMBD-2.2-04", format!("Reserved 0x{reserved:04x}"));
    }
}

/// Checks DataOffset and DataLength against the length of the message.
fn check_payload_position(send: &Send, transfer: &DataTransfer, faults: &mut Vec<Broken>) {
    let mut fault = |rule, how| faults.push(broken(rule, how));
    let (data_offset, data_length) = (transfer.data_offset, transfer.data_length);
    let fields = format!("DataOffset {data_offset}, DataLength {data_length}");
    let length = send.length;
    if !data_offset.is_multiple_of(8) {
        fault("SMBD-3.1.5.8-03", format!("DataOffset {data_offset}"));
    }
    if transfer.end() > length {
        let how = format!("{fields} in a message of {length} bytes");
        fault("SMBD-3.1.5.8-04", how);
    } else if data_length == 0 {
        let is_empty = transfer.remaining_data_length == 0;
        if data_offset != 0 {
            fault("SMBD-2.2.3-02", fields);
        } else if is_empty && length != HEADER_LENGTH as u64 {
            let how = format!("an empty message of {length} bytes");
            fault("SMBD-3.1.5.4-03", how);
        }
    } else {
        let padding = send.head.get(HEADER_LENGTH..data_offset as usize);
        if padding.is_some_and(|padding| padding.iter().any(|&byte| byte != 0)) {
            let how = "between header and payload there are other bytes than 0";
            fault("SMBD-3.1.5.4-08", how.into());
        }
    }
}

/// Checks a response against its request.
fn against_request(
    request: &NegotiateRequest,
    response: &NegotiateResponse,
    faults: &mut Vec<Broken>,
) {
    let mut fault = |rule, how| faults.push(broken(rule, how));
    let range = request.min_version..=request.max_version;
    if !range.contains(&response.negotiated_version) && response.negotiated_version == VERSION_1_0 {
        let how = "a NegotiatedVersion that was not offered";
        fault("SMBD-2.2.2-01", how.into());
    }
    if response.preferred_send_size > request.max_receive_size {
        fault(
            "SMBD-3.1.5.7-07",
            format!(
                "PreferredSendSize {}, the request has MaxReceiveSize {}",
                response.preferred_send_size, request.max_receive_size
            ),
        );
    }
    if response.credits_granted > request.credits_requested {
        fault(
            "SMBD-3.1.5.9-08",
            format!(
                "CreditsGranted {}, the request has CreditsRequested {}",
                response.credits_granted, request.credits_requested
            ),
        );
    }
}

/// Handles a message without its fields: the fault of its sender, unless the capture lacks them.
fn too_short(
    name: &'static str,
    send: &Send,
    rule: &'static str,
    minimum: u64,
    faults: &mut Vec<Broken>,
) -> EventKind {
    let length = send.length;
    if length < minimum {
        faults.push(broken(rule, format!("{length} bytes")));
    }
    EventKind::Headless { name, length }
}

/// Returns the kind of a payload; `missing` are the bytes that its message lacked before.
fn payload(head: &[u8], transfer: &DataTransfer, missing: Option<u32>) -> Payload {
    if transfer.data_length == 0 {
        return Payload::None;
    }
    if missing.is_some_and(|missing| missing > 0) {
        return Payload::Continued;
    }
    let start = transfer.data_offset as usize;
    let end = start.saturating_add(transfer.data_length as usize);
    let payload = head.get(start..end.min(head.len())).unwrap_or_default();
    match Protocol::of(payload) {
        Protocol::Smb2 => match Header::command_and_flags(payload) {
            Some((command, flags)) => {
                let response = flags.contains(Flags::RESPONSE);
                Payload::Smb2 {
                    command,
                    response,
                    by_rdma: by_rdma(command, response, payload),
                }
            }
            None => Payload::Smb2Headless,
        },
        Protocol::Encrypted => Payload::Encrypted,
        Protocol::Compressed => Payload::Compressed,
        Protocol::Smb1 => Payload::Smb1,
        Protocol::Unknown if missing.is_none() => Payload::None,
        Protocol::Unknown => Payload::Other,
    }
}

/// Returns the channel of a READ or WRITE request, if its fixed part is in the capture.
fn by_rdma(command: Command, response: bool, message: &[u8]) -> Option<ByRdma> {
    if response || !matches!(command, Command::READ | Command::WRITE) {
        return None;
    }
    let channel = Channel::of_request(command, message).ok()?;
    let length = Channel::length_of_request(command, message).ok()?;
    (channel != Channel::None).then_some(ByRdma { channel, length })
}

/// Reads a little-endian field; 0 beyond the end of the bytes.
fn short(bytes: &[u8], at: usize) -> u16 {
    let field = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    field.map_or(0, |&field| u16::from_le_bytes(field))
}

fn long(bytes: &[u8], at: usize) -> u32 {
    let field = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
    field.map_or(0, |&field| u32::from_le_bytes(field))
}
