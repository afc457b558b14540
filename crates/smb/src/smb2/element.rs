//! The elements of a message: a single one, or the elements of a compound.

use std::ops::Range;

use bytes::BytesMut;

use super::{
    header::{Command, Header},
    reader::Malformed,
};

/// Elements of a compound begin at multiples of this many bytes ([MS-SMB2] 2.2.1).
const ALIGNMENT: usize = 8;

/// An element of a message: its header, and its range in the message, including padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// The header of the element.
    pub header: Header,
    /// The range of the element in the message.
    pub place: Range<usize>,
}

impl Element {
    /// Returns whether it is a READ or a WRITE.
    pub fn moves_data(&self) -> bool {
        matches!(self.header.command, Command::READ | Command::WRITE)
    }
}

/// An iterator over the elements of a complete message. It ends after an error.
#[derive(Clone, Debug)]
pub struct Elements<'a> {
    message: &'a [u8],
    next: Option<usize>,
}

impl<'a> Elements<'a> {
    /// Creates an iterator that starts at the first element of `message`.
    pub const fn of(message: &'a [u8]) -> Self {
        Self {
            message,
            next: Some(0),
        }
    }

    fn element(&mut self, start: usize) -> Result<Element, Malformed> {
        let rest = &self.message[start..];
        let header = Header::decode(rest)?;
        let next_command = header.next_command as usize;
        if next_command == 0 {
            let place = start..self.message.len();
            return Ok(Element { header, place });
        }
        if !next_command.is_multiple_of(ALIGNMENT)
            || next_command < Header::LENGTH
            || next_command >= rest.len()
        {
            return Err(Malformed::NextCommand {
                next_command: header.next_command,
                length: rest.len(),
            });
        }
        let end = start + next_command;
        self.next = Some(end);
        Ok(Element {
            header,
            place: start..end,
        })
    }
}

impl Iterator for Elements<'_> {
    type Item = Result<Element, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let start = self.next.take()?;
        Some(self.element(start))
    }
}

/// Pads a compound to the alignment of the next element.
pub fn pad_to_element(message: &mut BytesMut) {
    message.resize(message.len().next_multiple_of(ALIGNMENT), 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::*;

    fn places(message: &[u8]) -> Vec<Result<(u16, Range<usize>), Malformed>> {
        Elements::of(message)
            .map(|element| element.map(|element| (element.header.command.0, element.place)))
            .collect()
    }

    #[test]
    fn single_message_is_one_element() {
        let message = other(header(ECHO, 1), &[4, 0, 0, 0, 9]);
        assert_eq!(places(&message), [Ok((ECHO, 0..69))]);
    }

    #[test]
    fn elements_have_their_padding() {
        let message = compound(&[
            other(header(CREATE, 1), &[1; 57]),
            header(ECHO, 2),
            other(header(CLOSE, 3), &[1; 3]),
        ]);
        let expected = [(CREATE, 0..128), (ECHO, 128..192), (CLOSE, 192..259)];
        assert_eq!(places(&message), expected.map(Ok));
    }

    #[test]
    fn data_is_moved_by_read_and_write() {
        for (command, moves) in [(READ, true), (WRITE, true), (CREATE, false), (10, false)] {
            let message = header(command, 1);
            let element = Elements::of(&message).next().unwrap().unwrap();
            assert_eq!(element.moves_data(), moves);
        }
    }

    #[test]
    fn walk_ends_after_a_next_command_that_leads_nowhere() {
        let good = compound(&[header(ECHO, 1), header(ECHO, 2), header(ECHO, 3)]);
        for next_command in [1_u32, 56, 60, 63, 65, 128, 136, u32::MAX] {
            let message = with(good.clone(), 64 + 20, &next_command.to_le_bytes());
            let fault = Malformed::NextCommand {
                next_command,
                length: 128,
            };
            assert_eq!(places(&message), [Ok((ECHO, 0..64)), Err(fault)]);
        }
        // It points to a header that is not complete in the message.
        for length in 129..192 {
            let found = places(&good[..length]);
            assert_eq!(found.len(), 3);
            assert!(found[..2].iter().all(Result::is_ok) && found[2].is_err());
        }
    }

    #[test]
    fn padding_ends_at_the_next_multiple_of_8() {
        for (length, padded) in [(0, 0), (1, 8), (7, 8), (8, 8), (113, 120)] {
            let mut message = BytesMut::from(&vec![0xff; length][..]);
            pad_to_element(&mut message);
            assert_eq!(message.len(), padded);
            assert!(message[length..].iter().all(|&byte| byte == 0));
        }
    }
}
