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

/// What an end is for SMB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

impl Role {
    /// Returns the role of an end, by the end that is the client.
    pub(crate) fn of(end: Side, client: Side) -> Self {
        if end == client {
            Self::Client
        } else {
            Self::Server
        }
    }
}

/// Makes an enum of two ends the index of [`PerEnd`], and `!` the way to the other end.
macro_rules! ends {
    ($end:ident, $one:ident, $other:ident) => {
        impl Not for $end {
            type Output = Self;

            /// Returns the other end.
            fn not(self) -> Self {
                match self {
                    Self::$one => Self::$other,
                    Self::$other => Self::$one,
                }
            }
        }

        impl<T> Index<$end> for PerEnd<T> {
            type Output = T;

            fn index(&self, end: $end) -> &T {
                &self.0[end as usize]
            }
        }

        impl<T> IndexMut<$end> for PerEnd<T> {
            fn index_mut(&mut self, end: $end) -> &mut T {
                &mut self.0[end as usize]
            }
        }
    };
}

ends!(Side, A, B);
ends!(Role, Client, Server);

/// A value for each end of a connection, in the order of [`Side`]; in an explanation, the client is first.
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
