//! Splits a compound message into elements, and joins elements to a compound.

use bytes::{Bytes, BytesMut};
use smbdirect::Token;

use crate::{
    fault::ServerFault,
    smb2::{Flags, Header, pad_to_element},
};

/// Replaces the header of `element` by `header`, with another NextCommand.
pub(super) fn set_next_command(header: &Header, next_command: usize, element: &mut BytesMut) {
    let header = Header {
        next_command: next_command as u32,
        ..*header
    };
    header.encode(&mut &mut element[..Header::LENGTH]);
}

/// Returns an element of a compound as a message of its own, without RELATED.
///
/// # Errors
/// The element is signed, so no byte may change.
pub(super) fn single_message(header: Header, element: Bytes) -> Result<Bytes, ServerFault> {
    if header.next_command == 0 && !header.flags.contains(Flags::RELATED) {
        return Ok(element);
    }
    if header.is_signed() {
        return Err(ServerFault::Signed);
    }
    let header = Header {
        flags: Flags(header.flags.0 & !Flags::RELATED.0),
        ..header
    };
    let mut bytes = BytesMut::from(element);
    set_next_command(&header, 0, &mut bytes);
    Ok(bytes.freeze())
}

/// Returns elements as one compound message.
pub(super) fn join_elements(answers: Vec<(Header, Bytes, Option<Token>)>) -> Bytes {
    let mut message = BytesMut::new();
    let last = answers.len() - 1;
    for (index, (header, bytes, _)) in answers.into_iter().enumerate() {
        let start = message.len();
        message.extend_from_slice(&bytes);
        if index < last {
            pad_to_element(&mut message);
            let next_command = message.len() - start;
            let mut element = message.split_off(start);
            if header.next_command as usize != next_command {
                set_next_command(&header, next_command, &mut element);
            }
            message.unsplit(element);
        }
    }
    message.freeze()
}
