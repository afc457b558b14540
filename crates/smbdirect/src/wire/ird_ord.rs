//! The IRD/ORD header in the private data of iWARP connections (section 6): 8 bytes, big-endian.

use std::io;

use bytes::BufMut;
use thiserror::Error;

/// The number of RDMA Reads that the sender serves concurrently (IRD), and the number that it wants
/// to have outstanding (ORD).
///
/// The header is the first 8 bytes of the private data, for iWARP providers without RFC 6581. Linux
/// sends it in big-endian order, and an old Linux client in little-endian order. Because real
/// depths are small, the order of a received header can be recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IrdOrd {
    /// Number of inbound reads that the sender can serve concurrently; above 0.
    pub ird: u32,
    /// Number of outbound reads that the sender wants to have outstanding; above 0.
    pub ord: u32,
}

/// The error of a header with a depth of 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the read depths in the private data are {ird} and {ord}, and have to be above 0")]
pub struct ZeroDepth {
    ird: u32,
    ord: u32,
}

impl From<ZeroDepth> for io::Error {
    fn from(error: ZeroDepth) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

impl IrdOrd {
    /// Length of the header in bytes.
    pub const LENGTH: usize = 8;

    /// Decodes the header from the start of the private data, or returns `None` if the private data
    /// is too short for one.
    ///
    /// # Errors
    /// Returns [`ZeroDepth`] if a depth is 0.
    pub fn decode(private_data: &[u8]) -> Result<Option<Self>, ZeroDepth> {
        let Some((header, _)) = private_data.split_first_chunk::<8>() else {
            return Ok(None);
        };
        let [i0, i1, i2, i3, o0, o1, o2, o3] = *header;
        let ird = either_order([i0, i1, i2, i3]);
        let ord = either_order([o0, o1, o2, o3]);
        //= SMBD-6-01
        if ird == 0 || ord == 0 {
            return Err(ZeroDepth { ird, ord });
        }
        Ok(Some(Self { ird, ord }))
    }

    /// Appends the 8 bytes of the header.
    ///
    /// # Panics
    /// Panics if `out` has fewer than 8 bytes of room.
    pub fn encode(&self, out: &mut impl BufMut) {
        out.put_u32(self.ird);
        out.put_u32(self.ord);
    }

    /// Returns the answer of an acceptor with the depths `own` to this header.
    ///
    /// The answer describes the initiator's depths, as section 6 says: IRD is the number of reads
    /// that the acceptor may have outstanding, and ORD the number that the initiator may have
    /// outstanding. Linux sends its own IRD first instead, so an initiator should stay within both
    /// numbers.
    pub fn answer(&self, own: Self) -> Self {
        //= SMBD-6-03
        Self {
            ird: own.ord.min(self.ird),
            ord: own.ird.min(self.ord),
        }
    }
}

/// Decodes a depth in big-endian order, or in little-endian order if only that gives a plausible
/// depth.
fn either_order(bytes: [u8; 4]) -> u32 {
    //= EST-14
    let (big, little) = (u32::from_be_bytes(bytes), u32::from_le_bytes(bytes));
    if big > 0xffff && little <= 0xffff {
        little
    } else {
        big
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn depths(ird: u32, ord: u32) -> IrdOrd {
        IrdOrd { ird, ord }
    }

    //= EST-14 test
    #[test]
    fn both_byte_orders_are_decoded() {
        let mut bytes = Vec::new();
        depths(32, 1).encode(&mut bytes);
        assert_eq!(bytes, [0, 0, 0, 32, 0, 0, 0, 1]);
        for (bytes, expected) in [
            ([0, 0, 0, 32, 0, 0, 0, 1], depths(32, 1)),
            ([32, 0, 0, 0, 1, 0, 0, 0], depths(32, 1)),
            ([0, 0, 0xff, 0xff, 0, 1, 0, 0], depths(0xffff, 0x100)),
            // Implausible in both orders: decoded as big-endian.
            ([1, 2, 3, 4, 0, 0, 0, 1], depths(0x0102_0304, 1)),
        ] {
            assert_eq!(IrdOrd::decode(&bytes), Ok(Some(expected)), "{bytes:?}");
        }
    }

    //= SMBD-6-01 test
    #[test]
    fn short_private_data_has_no_header_and_a_zero_depth_is_refused() {
        let bytes = [0, 0, 0, 32, 0, 0, 0, 1, 9];
        for length in 0..8 {
            assert_eq!(IrdOrd::decode(&bytes[..length]), Ok(None));
        }
        assert_eq!(IrdOrd::decode(&bytes), Ok(Some(depths(32, 1))));
        for (ird, ord) in [(0, 1), (1, 0), (0, 0)] {
            let mut bytes = Vec::new();
            depths(ird, ord).encode(&mut bytes);
            assert_eq!(IrdOrd::decode(&bytes), Err(ZeroDepth { ird, ord }));
        }
    }

    //= SMBD-6-03 test
    #[test]
    fn the_answer_is_the_minimum_of_both_ends() {
        for (initiator, acceptor, answer) in [
            (depths(16, 16), depths(32, 32), depths(16, 16)),
            (depths(64, 64), depths(32, 32), depths(32, 32)),
            // The Linux client has one outstanding read, and the server has many.
            (depths(32, 1), depths(8, 24), depths(24, 1)),
            (depths(4, 100), depths(8, 24), depths(4, 8)),
            (depths(u32::MAX, u32::MAX), depths(1, 1), depths(1, 1)),
        ] {
            assert_eq!(initiator.answer(acceptor), answer, "{initiator:?}");
        }
    }
}
