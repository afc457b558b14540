//! The meaning of messages, independent of the way in which their data moves: a second translation, by offsets,
//! with which the gateway's translation is compared.

use std::ops::Range;

use smbdirect::BufferDescriptorV1;

use crate::{
    memory::{AccessFault, Memory},
    messages::*,
};

/// Where the elements of a well-formed SMB2 message are.
pub(crate) fn elements(message: &[u8]) -> Option<Vec<Range<usize>>> {
    let mut elements = Vec::new();
    let mut start = 0;
    loop {
        let rest = &message[start..];
        if rest.len() < 64 || rest[..6] != *b"\xfeSMB\x40\0" {
            return None;
        }
        let next = u32_at(rest, 20) as usize;
        if next == 0 {
            elements.push(start..message.len());
            return Some(elements);
        }
        if !next.is_multiple_of(8) || next < 64 || next >= rest.len() {
            return None;
        }
        elements.push(start..start + next);
        start += next;
    }
}

/// The command of an element.
pub(crate) fn command(element: &[u8]) -> u16 {
    u16_at(element, 12)
}

/// Channel, length and descriptors of a READ or WRITE that has a channel.
pub(crate) fn channel(element: &[u8]) -> Option<(u32, u32, Vec<BufferDescriptorV1>)> {
    let (channel, length, info) = match command(element) {
        READ if element.len() >= 112 => (100, 68, 108),
        WRITE if element.len() >= 112 => (96, 100, 104),
        _ => return None,
    };
    let channel = u32_at(element, channel);
    if channel == 0 {
        return None;
    }
    let (start, size) = (u16_at(element, info), u16_at(element, info + 2));
    let info = element.get(start.into()..usize::from(start) + usize::from(size))?;
    let descriptors = info.chunks_exact(16).map(|bytes| BufferDescriptorV1 {
        offset: u64_at(bytes, 0),
        token: u32_at(bytes, 8),
        length: u32_at(bytes, 12),
    });
    Some((channel, u32_at(element, length), descriptors.collect()))
}

/// The message with the same meaning without RDMA; a message without a channel is returned unchanged.
pub(crate) fn plain_request(message: &[u8], memory: &Memory) -> Result<Vec<u8>, AccessFault> {
    let Some(places) = elements(message) else {
        return Ok(message.to_vec());
    };
    let mut plain = Vec::new();
    let last = places.len() - 1;
    for (index, place) in places.into_iter().enumerate() {
        let element = &message[place];
        let Some((_, length, descriptors)) = channel(element) else {
            plain.extend_from_slice(element);
            continue;
        };
        let start = plain.len();
        plain.extend_from_slice(&element[..112]);
        match command(element) {
            READ => {
                put(&mut plain, start + 100, &[0; 12]);
                plain.push(0);
            }
            _ => {
                put(&mut plain, start + 66, &112_u16.to_le_bytes());
                put(&mut plain, start + 68, &length.to_le_bytes());
                put(&mut plain, start + 96, &[0; 12]);
                plain.extend_from_slice(&memory.read(&descriptors, length as usize)?);
                if length == 0 {
                    plain.push(0);
                }
            }
        }
        if index < last {
            plain.resize(plain.len().next_multiple_of(8), 0);
            let next = (plain.len() - start) as u32;
            put(&mut plain, start + 20, &next.to_le_bytes());
        }
    }
    Ok(plain)
}

/// The meaning of a message to the server: all that matters of each element, independent of its encoding.
/// Messages that mean the same may differ in padding and in fields without a meaning.
pub(crate) fn request_meaning(message: &[u8], memory: &Memory) -> Result<Vec<u8>, AccessFault> {
    let plain = plain_request(message, memory)?;
    let Some(places) = elements(&plain) else {
        return Ok(plain);
    };
    let mut meaning = Vec::new();
    for place in places {
        let element = &plain[place];
        meaning.extend_from_slice(&with(element[..64].to_vec(), 20, &[0; 4]));
        match command(element) {
            READ if element.len() >= 112 => {
                // All but the request for a compressed answer and RemainingBytes.
                meaning.extend_from_slice(&with(element[64..100].to_vec(), 3, &[element[67] & !2]));
            }
            WRITE if element.len() >= 112 => {
                let (start, length) = (u16_at(element, 66), u32_at(element, 68));
                let data = usize::from(start)..usize::from(start) + length as usize;
                meaning.extend_from_slice(&element[72..96]);
                meaning.extend_from_slice(&element[108..112]);
                match length {
                    0 => {}
                    _ => meaning.extend_from_slice(element.get(data).unwrap_or_default()),
                }
            }
            _ => meaning.extend_from_slice(&element[64..]),
        }
    }
    Ok(meaning)
}

/// Whether an element is an answer to a READ that has data, in the message or by RDMA.
pub(crate) fn is_read_with_data(element: &[u8]) -> bool {
    let status = u32_at(element, 8);
    let is_interim = status == PENDING;
    command(element) == READ
        && (status >> 31 == 0 || status == BUFFER_OVERFLOW)
        && !is_interim
        && element.len() >= 80
        && u16_at(element, 64) == 17
}

/// The meaning of each element of an answer. The data of a READ comes from the message, or from memory that
/// `described` contains.
pub(crate) fn answer_meanings(
    message: &[u8],
    memory: &Memory,
    described: impl Fn(u64) -> Option<Vec<BufferDescriptorV1>>,
) -> Vec<Vec<u8>> {
    let Some(places) = elements(message) else {
        return vec![message.to_vec()];
    };
    let meaning = |place: Range<usize>| {
        let element = &message[place];
        let mut meaning = with(element[..64].to_vec(), 20, &[0; 4]);
        meaning[16] &= !(RELATED as u8);
        if !is_read_with_data(element) {
            meaning.extend_from_slice(&element[64..]);
            return meaning;
        }
        meaning.extend_from_slice(&element[76..80]);
        let (start, length) = (usize::from(element[66]), u32_at(element, 68) as usize);
        let remaining = u32_at(element, 72) as usize;
        let descriptors = described(u64_at(element, 24));
        match (length, descriptors) {
            (0, Some(descriptors)) => {
                let all = memory.content(&descriptors);
                meaning.extend_from_slice(&all[..remaining.min(all.len())]);
            }
            (0, None) => {}
            _ => meaning.extend_from_slice(element.get(start..start + length).unwrap_or_default()),
        }
        meaning
    };
    places.into_iter().map(meaning).collect()
}
