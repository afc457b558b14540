//! FragmentReassemblyRemaining and InvalidatedToken (3.1.5.8): which segment may follow which.
//!
//! The bytes are passed on as they come; the owner gathers them. The check is stricter than the
//! text, whose own arithmetic underflows: a segment's DataLength and RemainingDataLength are
//! together exactly what was still missing.

use super::error::Violation;
use crate::{rdma::work::Token, wire::DataTransfer};

/// What a segment is to the message it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// It carries nothing for the upper layer.
    Nothing,
    /// It carries bytes, or is an empty step in a message; more will come.
    Middle,
    /// It completes a message, which invalidated this token.
    Last(Option<Token>),
}

#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Reassembly {
    /// Bytes still missing from the message that has begun. A message whose first segment is
    /// empty has begun too, so that this is more than the specification's counter.
    remaining: Option<u32>,
    invalidated_token: Option<Token>,
}

impl Reassembly {
    /// Takes account of a segment whose own fields are in order.
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
        //= SMBD-3.1.5.8-05
        let claimed = u64::from(data_length) + u64::from(remaining_data_length);
        if claimed > u64::from(max_fragmented_size) {
            return Err(Violation::AboveMaxFragmentedSize {
                data_length,
                remaining_data_length,
                max_fragmented_size,
            });
        }
        //= SMBD-3.1.5.8-15
        self.invalidated_token = invalidated.or(self.invalidated_token);
        if let Some(expected) = self.remaining {
            if claimed == 0 && tolerate_empty_in_sequence {
                return Ok(Part::Nothing);
            }
            //= SMBD-3.1.5.8-16
            //= SMBD-3.1.5.8-18
            //= SMBD-3.1.5.8-19
            //= SMBD-3.1.5.8-20
            if claimed != u64::from(expected) {
                return Err(Violation::ReassemblyMismatch {
                    data_length,
                    remaining_data_length,
                    expected,
                });
            }
        } else if claimed == 0 && self.invalidated_token.is_none() {
            //= SMBD-3.1.5.8-22
            return Ok(Part::Nothing);
        }
        //= SMBD-3.1.5.8-14
        //= SMBD-3.1.5.8-21
        if remaining_data_length > 0 {
            self.remaining = Some(remaining_data_length);
            return Ok(Part::Middle);
        }
        //= SMBD-3.1.5.8-17
        self.remaining = None;
        Ok(Part::Last(self.invalidated_token.take()))
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
    fn legal_sequences() {
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
    fn the_size_limit_holds_for_empty_messages_too_and_equality_passes() {
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
    fn a_segment_that_does_not_fit_ends_the_connection() {
        for segments in [
            &[(3, 5), (0, 0)][..], // nothing left to come, five bytes missing
            &[(3, 5), (4, 0)],
            &[(3, 5), (6, 0)], // the text's subtraction would wrap here
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
    fn the_token_comes_with_the_end_of_its_message_and_the_last_one_counts() {
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
