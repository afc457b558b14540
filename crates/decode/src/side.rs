//! The two sides of a connection.

use std::ops::{Deref, DerefMut, Index, IndexMut, Not};

/// A side of a connection, or the direction in which it sends. A is the side that the capture shows first. Which
/// of them is the initiator may become known later, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Side {
    A,
    B,
}

impl Side {
    pub(crate) const BOTH: [Self; 2] = [Self::A, Self::B];
}

impl Not for Side {
    type Output = Self;

    /// Returns the other side.
    fn not(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// A value for each side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PerSide<T>(pub(crate) [T; 2]);

impl<T> Index<Side> for PerSide<T> {
    type Output = T;

    fn index(&self, side: Side) -> &T {
        &self.0[side as usize]
    }
}

impl<T> IndexMut<Side> for PerSide<T> {
    fn index_mut(&mut self, side: Side) -> &mut T {
        &mut self.0[side as usize]
    }
}

impl<T> Deref for PerSide<T> {
    type Target = [T; 2];

    fn deref(&self) -> &[T; 2] {
        &self.0
    }
}

impl<T> DerefMut for PerSide<T> {
    fn deref_mut(&mut self) -> &mut [T; 2] {
        &mut self.0
    }
}
