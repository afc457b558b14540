//! The decisions on segments and on their order, as functions of integers. `proofs/` proves them, compiled.

/// The place of a received segment in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The segment carries nothing for the upper layer.
    Nothing,
    /// The segment belongs to a message and is not its last; it may be empty.
    Middle,
    /// The segment completes a message.
    Last,
    /// The segment and the rest that it announces exceed MaxFragmentedRecvSize.
    AboveMax,
    /// The segment and the rest that it announces are not the missing bytes.
    Mismatch,
}

/// Returns the place of a segment with `data_length` bytes that announces `remaining` more. `missing`: number of bytes
/// that the message in progress still needs, if there is one; `has_token`: a segment of the message has invalidated a
/// token.
#[inline(always)]
pub(super) const fn place(
    missing: Option<u32>,
    data_length: u32,
    remaining: u32,
    max_fragmented_size: u32,
    tolerates_empty: bool,
    has_token: bool,
) -> Place {
    //= SMBD-3.1.5.8-05
    let claimed = data_length as u64 + remaining as u64;
    if claimed > max_fragmented_size as u64 {
        return Place::AboveMax;
    }
    match missing {
        Some(_) if claimed == 0 && tolerates_empty => return Place::Nothing,
        //= SMBD-3.1.5.8-16
        //= SMBD-3.1.5.8-18
        //= SMBD-3.1.5.8-19
        //= SMBD-3.1.5.8-20
        Some(missing) if claimed != missing as u64 => return Place::Mismatch,
        //= SMBD-3.1.5.8-22
        None if claimed == 0 && !has_token => return Place::Nothing,
        _ => {}
    }
    if remaining > 0 {
        Place::Middle
    } else {
        Place::Last
    }
}

/// Returns the largest payload of the next segment of a message of which `unsent` bytes are left. `is_single`: a segment
/// is one packet of the provider, so the segments of a message get the same length.
pub(super) const fn longest_payload(unsent: usize, max_payload: usize, is_single: bool) -> usize {
    if !is_single || unsent <= max_payload {
        return max_payload;
    }
    let segments = unsent.div_ceil(max_payload);
    // Packets are padded to four bytes, so a length that is not a multiple of 4 needs the same room.
    let equal = unsent.div_ceil(segments).next_multiple_of(4);
    if equal < max_payload {
        equal
    } else {
        max_payload
    }
}

/// Returns whether the oldest RDMA Write goes before the oldest message, by their numbers in the order of the owner's calls.
#[inline(always)]
pub(super) const fn write_is_first(write: Option<u64>, message: Option<u64>) -> bool {
    match (write, message) {
        (Some(write), Some(message)) => write < message,
        _ => false,
    }
}
