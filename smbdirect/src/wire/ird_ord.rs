//! The IRD/ORD private data of iWARP connections (section 6): 8 bytes, big-endian.

use bytes::BufMut;

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

impl IrdOrd {
    /// Bytes on the wire.
    pub const LENGTH: usize = 8;

    /// Reads the header off the front of private data; `None` if it is too short or names a zero.
    pub fn decode(private_data: &[u8]) -> Option<Self> {
        let (header, _) = private_data.split_first_chunk::<8>()?;
        let [i0, i1, i2, i3, o0, o1, o2, o3] = *header;
        let ird = either_order([i0, i1, i2, i3]);
        let ord = either_order([o0, o1, o2, o3]);
        //= SMBD-6-01
        (ird > 0 && ord > 0).then_some(Self { ird, ord })
    }

    /// Appends the 8 bytes of the header.
    ///
    /// # Panics
    /// If `out` has fewer than 8 bytes of room.
    pub fn encode(&self, out: &mut impl BufMut) {
        out.put_u32(self.ird);
        out.put_u32(self.ord);
    }
}

/// A depth in big-endian, or in little-endian where only that gives a number a depth can be.
fn either_order(bytes: [u8; 4]) -> u32 {
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

    //= SMBD-6-01 test
    #[test]
    fn big_endian_little_endian_zero_and_short() {
        let depths = IrdOrd { ird: 32, ord: 1 };
        let mut bytes = Vec::new();
        depths.encode(&mut bytes);
        assert_eq!(bytes, [0, 0, 0, 32, 0, 0, 0, 1]);
        assert_eq!(IrdOrd::decode(&bytes), Some(depths));
        assert_eq!(IrdOrd::decode(&[32, 0, 0, 0, 1, 0, 0, 0]), Some(depths));
        assert_eq!(IrdOrd::decode(&[0, 0, 0, 0, 0, 0, 0, 1]), None);
        assert_eq!(IrdOrd::decode(&[0, 0, 0, 1, 0, 0, 0, 0]), None);
        for length in 0..8 {
            assert_eq!(IrdOrd::decode(&bytes[..length]), None);
        }
        bytes.extend_from_slice(b"more");
        assert_eq!(IrdOrd::decode(&bytes), Some(depths));
    }
}
