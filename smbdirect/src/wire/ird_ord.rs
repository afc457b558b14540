//! The IRD/ORD private data of iWARP connections (section 6): 8 bytes, big-endian.

use bytes::BufMut;
use thiserror::Error;

/// How many RDMA Reads the sender serves at once (IRD) and wants outstanding (ORD).
///
/// It fills the first 8 bytes of the private data where the iWARP provider may lack RFC 6581.
/// The byte order is big-endian, as Linux sends it; an old Linux client sent little-endian,
/// and since real depths are small the order can be told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IrdOrd {
    /// Inbound reads the sender can serve at once; above 0.
    pub ird: u32,
    /// Outbound reads the sender wants to have outstanding; above 0.
    pub ord: u32,
}

/// A header that names a depth of 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the read depths in the private data are {ird} and {ord}, and have to be above 0")]
pub struct ZeroDepth {
    /// IRD as received.
    pub ird: u32,
    /// ORD as received.
    pub ord: u32,
}

impl IrdOrd {
    /// Bytes on the wire.
    pub const LENGTH: usize = 8;

    /// Reads the header off the front of private data; `None` if that is too short for one.
    ///
    /// # Errors
    /// A depth is 0.
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
    /// If `out` has fewer than 8 bytes of room.
    pub fn encode(&self, out: &mut impl BufMut) {
        out.put_u32(self.ird);
        out.put_u32(self.ord);
    }

    /// What an acceptor with the depths `own` answers to this header.
    ///
    /// It speaks of the initiator's reads, as section 6 has it: IRD is how many of the acceptor's
    /// reads the initiator is to expect, ORD how many it may have outstanding itself. Linux puts
    /// its own IRD first instead, so an initiator does well to keep within both.
    pub fn answer(&self, own: Self) -> Self {
        //= SMBD-6-03
        Self {
            ird: own.ord.min(self.ird),
            ord: own.ird.min(self.ord),
        }
    }
}

/// A depth in big-endian, or in little-endian where only that gives a number a depth can be.
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
    fn both_byte_orders() {
        let mut bytes = Vec::new();
        depths(32, 1).encode(&mut bytes);
        assert_eq!(bytes, [0, 0, 0, 32, 0, 0, 0, 1]);
        for (bytes, expected) in [
            ([0, 0, 0, 32, 0, 0, 0, 1], depths(32, 1)),
            ([32, 0, 0, 0, 1, 0, 0, 0], depths(32, 1)),
            ([0, 0, 0xff, 0xff, 0, 1, 0, 0], depths(0xffff, 0x100)),
            // Too large either way: taken as it is meant to be.
            ([1, 2, 3, 4, 0, 0, 0, 1], depths(0x0102_0304, 1)),
        ] {
            assert_eq!(IrdOrd::decode(&bytes), Ok(Some(expected)), "{bytes:?}");
        }
    }

    //= SMBD-6-01 test
    #[test]
    fn short_long_and_zero() {
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
    fn the_answer_is_the_smaller_of_the_two() {
        for (initiator, acceptor, answer) in [
            (depths(16, 16), depths(32, 32), depths(16, 16)),
            (depths(64, 64), depths(32, 32), depths(32, 32)),
            // The Linux client, which reads one at a time, and a server that reads many.
            (depths(32, 1), depths(8, 24), depths(24, 1)),
            (depths(4, 100), depths(8, 24), depths(4, 8)),
            (depths(u32::MAX, u32::MAX), depths(1, 1), depths(1, 1)),
        ] {
            assert_eq!(initiator.answer(acceptor), answer, "{initiator:?}");
        }
    }
}
