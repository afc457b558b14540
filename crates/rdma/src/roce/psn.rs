//! Packet sequence numbers: 24 bits, which wrap.

use std::fmt;

/// A packet sequence number (PSN), from 0 to 2^24 - 1 (IBTA 9.7.2).
///
/// PSNs have no order of their own, because they wrap. [`distance`](Self::distance) compares two of
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

/// The number of sequence numbers.
const COUNT: u32 = 1 << 24;
/// The mask of the 24 bits.
const MASK: u32 = COUNT - 1;

impl Psn {
    /// Creates a sequence number from the low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & MASK)
    }

    /// Returns the number.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// Returns the sequence number `packets` after this one. It wraps at 2^24.
    #[must_use]
    pub const fn add(self, packets: u32) -> Self {
        Self::new(self.0.wrapping_add(packets))
    }

    /// Returns the signed number of packets from `earlier` to this one, from -2^23 to 2^23 - 1.
    ///
    /// The result is negative if this sequence number is in the half of the number space before
    /// `earlier`, which is where duplicates are.
    pub const fn distance(self, earlier: Self) -> i32 {
        //= ROCE-9.7.2-01
        // The difference is moved to the top 24 bits, so that the shift back extends its sign.
        (self.0.wrapping_sub(earlier.0) << 8) as i32 >> 8
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= ROCE-9.7.2-01 test
    #[test]
    fn numbers_wrap_at_24_bits() {
        assert_eq!(Psn::new(0xffff_ffff), Psn::new(0x00ff_ffff));
        for (from, packets, to) in [
            (0, 1, 1),
            (0xff_ffff, 1, 0),
            (0xff_ffff, 0x80_0000, 0x7f_ffff),
            (5, 0xff_ffff, 4),
        ] {
            assert_eq!(Psn::new(from).add(packets), Psn::new(to));
        }
    }

    //= ROCE-9.7.2-01 test
    #[test]
    fn the_half_of_the_space_before_a_number_is_behind_it() {
        for (psn, earlier, distance) in [
            (1, 0, 1),
            (0, 1, -1),
            (0, 0xff_ffff, 1),
            (0xff_ffff, 0, -1),
            (0x7f_ffff, 0, 0x7f_ffff),
            (0x80_0000, 0, -0x80_0000),
            (0, 0x80_0000, -0x80_0000),
            (0x80_0001, 0, -0x7f_ffff),
        ] {
            let (psn, earlier) = (Psn::new(psn), Psn::new(earlier));
            assert_eq!(psn.distance(earlier), distance, "{psn} - {earlier}");
        }
    }
}
