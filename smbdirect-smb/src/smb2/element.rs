//! The elements of a message: one, or those of a compound.

use std::ops::Range;

use bytes::BytesMut;

use super::{
    header::{Command, Header},
    reader::Malformed,
};

/// Elements of a compound begin at multiples of this many bytes ([MS-SMB2] 2.2.1).
const ALIGNMENT: usize = 8;

/// An element of a message: its header, and its place, padding included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// Its header.
    pub header: Header,
    /// Where it is in the message.
    pub place: Range<usize>,
}

impl Element {
    /// Whether it is a READ or a WRITE.
    pub fn moves_data(&self) -> bool {
        matches!(self.header.command, Command::READ | Command::WRITE)
    }
}

/// Walks the elements of a whole message. Ends after an error.
#[derive(Clone, Debug)]
pub struct Elements<'a> {
    message: &'a [u8],
    next: Option<usize>,
}

impl<'a> Elements<'a> {
    /// Starts at the first element of `message`.
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

/// Pads a compound so that the next element can begin.
pub fn pad_to_element(message: &mut BytesMut) {
    message.resize(message.len().next_multiple_of(ALIGNMENT), 0);
}
