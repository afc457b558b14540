//! Checks of requests with a channel before they are translated.

use std::collections::HashSet;

use smbdirect::{BufferDescriptorV1, Token};

use crate::{
    fault::Refusal,
    smb2::{Channel, Command, Element, Header, Malformed},
};

/// Returns the refusal of a request that cannot be decoded.
pub(super) fn malformed(command: Command, fault: Malformed) -> Refusal {
    Refusal::Malformed { command, fault }
}

/// Returns the channel of an element. `head` has at least the fixed part of a READ or WRITE, if the
/// message has it.
///
/// # Errors
/// The channel cannot be translated, or the element is signed, so none of its bytes may change.
pub(super) fn channel(element: &Element, head: &[u8]) -> Result<Channel, Refusal> {
    let command = element.header.command;
    if !element.moves_data() {
        return Ok(Channel::None);
    }
    let channel = Channel::of_request(command, head).map_err(|fault| malformed(command, fault))?;
    if channel != Channel::None && element.header.is_signed() {
        return Err(Refusal::Signed { command, channel });
    }
    // Rejected before the descriptors are read: other channels have other channel information.
    if let Channel::Other(_) = channel {
        return Err(Refusal::Channel { command, channel });
    }
    Ok(channel)
}

/// Checks that no other request of a compound has the same MessageId. CANCEL is exempt, because it has
/// the MessageId of the request that it cancels.
pub(super) fn check_unique(header: &Header, message_ids: &mut HashSet<u64>) -> Result<(), Refusal> {
    if header.command != Command::CANCEL && !message_ids.insert(header.message_id) {
        return Err(Refusal::Repeated {
            command: header.command,
            message_id: header.message_id,
        });
    }
    Ok(())
}

/// Checks that the descriptors hold at least `length` bytes.
pub(super) fn check_length(
    command: Command,
    length: u32,
    descriptors: &[BufferDescriptorV1],
) -> Result<(), Refusal> {
    let described = descriptors
        .iter()
        .map(|descriptor| u64::from(descriptor.length))
        .sum();
    if u64::from(length) > described {
        return Err(Refusal::BeyondDescriptors {
            command,
            length,
            described,
        });
    }
    Ok(())
}

/// Returns the token that the final answer to a request invalidates.
pub(super) fn invalidated_token(
    channel: Channel,
    descriptors: &[BufferDescriptorV1],
) -> Option<Token> {
    match channel {
        Channel::RdmaV1Invalidate => descriptors.first(),
        _ => None,
    }
    .map(|descriptor| Token(descriptor.token))
}
