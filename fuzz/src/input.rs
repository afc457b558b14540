//! Turns the bytes of an input into small numbers and choices. After the last byte all are zero.

use std::time::Duration;

use arbitrary::{Arbitrary, Unstructured};

/// The unused bytes of an input.
pub(crate) struct Input<'a>(Unstructured<'a>);

impl<'a> Input<'a> {
    pub(crate) fn new(data: &'a [u8]) -> Self {
        Self(Unstructured::new(data))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns any value of a plain type.
    pub(crate) fn any<T: Arbitrary<'a> + Default>(&mut self) -> T {
        self.0.arbitrary().unwrap_or_default()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.any()
    }

    pub(crate) fn is_odd(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// Returns a number from 0 to `most`, made of one byte.
    pub(crate) fn up_to(&mut self, most: u8) -> usize {
        let byte = u16::from(self.byte());
        usize::from(byte % (u16::from(most) + 1))
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::from(self.byte()) % from.len()]
    }

    /// Returns a length, mostly below 256 and sometimes up to `long`.
    pub(crate) fn length(&mut self, long: usize) -> usize {
        let byte = self.byte();
        if byte < 240 {
            return usize::from(byte).min(long);
        }
        self.any::<u32>() as usize % (long + 1)
    }

    pub(crate) fn milliseconds(&mut self) -> Duration {
        Duration::from_millis(self.any::<u16>().into())
    }

    /// Returns the next bytes, at most `most`.
    pub(crate) fn bytes(&mut self, most: usize) -> &'a [u8] {
        let length = self.0.len().min(most);
        self.0.bytes(length).unwrap_or_default()
    }

    /// Returns all remaining bytes.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        self.bytes(usize::MAX)
    }
}
