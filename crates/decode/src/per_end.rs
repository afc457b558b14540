//! The two ends of a connection, and values of each.

use std::ops::{Deref, DerefMut, Index, IndexMut, Not};

/// An end of a connection, or the direction in which it sends. A is the end that the capture shows first. Which of
/// them is the initiator may become known later, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The end that the capture shows first.
    A,
    /// The other end.
    B,
}

impl Side {
    pub(crate) const BOTH: [Self; 2] = [Self::A, Self::B];
}

impl Not for Side {
    type Output = Self;

    /// Returns the other end.
    fn not(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// A value for each end of a connection, in the order of [`Side`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerEnd<T>(pub [T; 2]);

impl<T> PerEnd<T> {
    /// Returns the value of the initiator and that of the responder; those of A and B if no end is known to be
    /// the initiator.
    pub fn initiator_first(self, initiator: Option<Side>) -> [T; 2] {
        let Self([a, b]) = self;
        match initiator {
            Some(Side::B) => [b, a],
            _ => [a, b],
        }
    }
}

impl<T> Index<Side> for PerEnd<T> {
    type Output = T;

    fn index(&self, side: Side) -> &T {
        &self.0[side as usize]
    }
}

impl<T> IndexMut<Side> for PerEnd<T> {
    fn index_mut(&mut self, side: Side) -> &mut T {
        &mut self.0[side as usize]
    }
}

impl<T> Deref for PerEnd<T> {
    type Target = [T; 2];

    fn deref(&self) -> &[T; 2] {
        &self.0
    }
}

impl<T> DerefMut for PerEnd<T> {
    fn deref_mut(&mut self) -> &mut [T; 2] {
        &mut self.0
    }
}
