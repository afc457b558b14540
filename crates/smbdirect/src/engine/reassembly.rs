//! FragmentReassemblyRemaining and InvalidatedToken (3.1.5.8): checks that segments form messages.
//!
//! This module does not hold the bytes: each segment is passed on when it arrives, and the owner of
//! the connection puts them together. The check is stricter than the specification, whose
//! arithmetic can underflow: DataLength plus RemainingDataLength of a segment has to equal the
//! number of missing bytes.

use super::{
    error::Violation,
    segments::{Place, place},
};
use crate::{rdma::work::Token, wire::DataTransfer};

/// The position of a segment in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The segment carries nothing for the upper layer.
    Nothing,
    /// The segment belongs to a message and is not its last; it may be empty.
    Middle,
    /// The segment completes a message, which invalidated this token.
    Last(Option<Token>),
}

/// The state of the message that is being received.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Reassembly {
    /// Bytes missing from the current message, or `None` between messages. The counter of the specification
    /// cannot express that a message has begun with an empty segment; this field can.
    remaining: Option<u32>,
    invalidated_token: Option<Token>,
}

impl Reassembly {
    /// Returns the number of bytes missing from the message that is being received, or 0 between messages.
    pub(super) fn remaining(&self) -> u32 {
        self.remaining.unwrap_or(0)
    }

    /// Checks a segment against its predecessors and returns its position. The caller has checked
    /// the fields of the segment itself.
    pub(super) fn receive(
        &mut self,
        segment: &DataTransfer,
        invalidated: Option<Token>,
        max_fragmented_size: u32,
        tolerate_empty_in_sequence: bool,
    ) -> Result<Part, Violation> {
        let DataTransfer {
            data_length,
            remaining_data_length,
            ..
        } = *segment;
        //= SMBD-3.1.5.8-15
        let token = invalidated.or(self.invalidated_token);
        match place(
            self.remaining,
            data_length,
            remaining_data_length,
            max_fragmented_size,
            tolerate_empty_in_sequence,
            token.is_some(),
        ) {
            Place::Nothing => {
                self.invalidated_token = token;
                Ok(Part::Nothing)
            }
            //= SMBD-3.1.5.8-14
            //= SMBD-3.1.5.8-21
            Place::Middle => {
                self.remaining = Some(remaining_data_length);
                self.invalidated_token = token;
                Ok(Part::Middle)
            }
            //= SMBD-3.1.5.8-17
            Place::Last => {
                self.remaining = None;
                self.invalidated_token = None;
                Ok(Part::Last(token))
            }
            Place::AboveMax => Err(Violation::AboveMaxFragmentedSize {
                data_length,
                remaining_data_length,
                max_fragmented_size,
            }),
            Place::Mismatch => Err(Violation::ReassemblyMismatch {
                data_length,
                remaining_data_length,
                expected: self.remaining(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Flags;

    const MAX: u32 = 131_072;

    fn segment(data_length: u32, remaining_data_length: u32) -> DataTransfer {
        DataTransfer {
            credits_requested: 1,
            credits_granted: 0,
            flags: Flags::empty(),
            remaining_data_length,
            data_offset: 24,
            data_length,
        }
    }

    fn run(segments: &[(u32, u32)]) -> Result<Vec<Part>, Violation> {
        let mut reassembly = Reassembly::default();
        segments
            .iter()
            .map(|&(length, remaining)| {
                reassembly.receive(&segment(length, remaining), None, MAX, false)
            })
            .collect()
    }

    //= SMBD-3.1.5.8-14 test
    //= SMBD-3.1.5.8-17 test
    //= SMBD-3.1.5.8-21 test
    //= SMBD-3.1.5.8-22 test
    #[test]
    fn valid_sequences_are_accepted() {
        use Part::{Last, Middle, Nothing};
        let last = Last(None);
        for (segments, parts) in [
            (&[(5, 0)][..], &[last][..]),
            (&[(0, 0), (0, 0)], &[Nothing, Nothing]),
            (&[(3, 2), (2, 0)], &[Middle, last]),
            (&[(0, 5), (5, 0)], &[Middle, last]),
            (
                &[(0, 5), (0, 5), (4, 1), (0, 1), (1, 0)],
                &[Middle, Middle, Middle, Middle, last],
            ),
            (
                &[(1, 1), (1, 0), (0, 0), (1, 0)],
                &[Middle, last, Nothing, last],
            ),
            (&[(0, MAX), (MAX, 0)], &[Middle, last]),
        ] {
            assert_eq!(run(segments).as_deref(), Ok(parts), "{segments:?}");
        }
    }

    //= SMBD-3.1.5.8-05 test
    #[test]
    fn a_message_above_the_size_limit_is_refused() {
        assert!(run(&[(0, MAX)]).is_ok() && run(&[(MAX, 0)]).is_ok());
        for (length, remaining) in [
            (0, MAX + 1),
            (1, MAX),
            (MAX + 1, 0),
            (2, u32::MAX),
            (u32::MAX, u32::MAX),
        ] {
            let error = run(&[(length, remaining)]).unwrap_err();
            assert!(matches!(error, Violation::AboveMaxFragmentedSize { .. }));
        }
    }

    //= SMBD-3.1.5.8-16 test
    //= SMBD-3.1.5.8-18 test
    //= SMBD-3.1.5.8-19 test
    //= SMBD-3.1.5.8-20 test
    #[test]
    fn a_segment_that_does_not_continue_its_message_is_refused() {
        for segments in [
            &[(3, 5), (0, 0)][..], // claims to be the last while five bytes are missing
            &[(3, 5), (4, 0)],
            &[(3, 5), (6, 0)], // the subtraction of the specification would wrap here
            &[(3, 5), (2, 4)],
            &[(3, 5), (2, 2)],
            &[(3, 5), (5, 1)],
            &[(0, 5), (5, 5)],
        ] {
            let error = run(segments).unwrap_err();
            assert!(
                matches!(error, Violation::ReassemblyMismatch { expected: 5, .. }),
                "{segments:?}"
            );
        }
    }

    #[test]
    fn an_empty_message_in_a_sequence_can_be_tolerated() {
        let mut reassembly = Reassembly::default();
        let mut receive =
            |length, remaining| reassembly.receive(&segment(length, remaining), None, MAX, true);
        assert_eq!(receive(3, 5), Ok(Part::Middle));
        assert_eq!(receive(0, 0), Ok(Part::Nothing));
        assert_eq!(receive(5, 0), Ok(Part::Last(None)));
    }

    //= SMBD-3.1.5.8-15 test
    //= SMBD-3.1.5.8-17 test
    #[test]
    fn the_last_token_of_a_message_is_reported_at_its_end() {
        let mut reassembly = Reassembly::default();
        let mut receive = |length, remaining, token: Option<u32>| {
            reassembly
                .receive(&segment(length, remaining), token.map(Token), MAX, false)
                .unwrap()
        };
        assert_eq!(receive(1, 2, Some(7)), Part::Middle);
        assert_eq!(receive(1, 1, Some(8)), Part::Middle);
        assert_eq!(receive(1, 0, None), Part::Last(Some(Token(8))));
        assert_eq!(receive(1, 0, None), Part::Last(None));
        assert_eq!(
            receive(0, 0, Some(9)),
            Part::Last(Some(Token(9))),
            "a token alone"
        );
    }
}
