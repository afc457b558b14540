//! The fields of a datagram with a fixed layout.

/// Bytes with a fixed layout. All offsets are constants of the layout and inside the bytes.
pub(super) struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) const fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }

    pub(super) const fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.0[at], self.0[at + 1]])
    }

    pub(super) const fn u24(&self, at: usize) -> u32 {
        u32::from_be_bytes([0, self.0[at], self.0[at + 1], self.0[at + 2]])
    }

    pub(super) fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.array(at))
    }

    pub(super) fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut array = [0; N];
        array.copy_from_slice(&self.0[at..at + N]);
        array
    }

    pub(super) fn slice(&self, at: usize, length: usize) -> &[u8] {
        &self.0[at..at + length]
    }
}
