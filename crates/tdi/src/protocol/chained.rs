//! [`ChainedTsdu`]: a received TSDU that is lent to the client, and the count of the bytes lent.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
};

use bytes::Buf;
use smbdirect::{Message, Token};

/// A whole TSDU that is lent to the client, which reads it in place. It counts against the lending
/// limit until it and all of its clones are dropped.
#[derive(Clone, Debug)]
pub struct ChainedTsdu {
    /// The bytes that have not been read through [`Buf`].
    rest: Message,
    loan: Arc<Loan>,
}

/// The bytes that one connection has lent, counted under a lock that all threads with a TSDU share.
#[derive(Debug, Default)]
pub(crate) struct Loans {
    lent: usize,
    /// The waker to wake when a TSDU is returned.
    waker: Option<Waker>,
}

/// One TSDU that is lent, with its cost against the lending limit.
#[derive(Debug)]
pub(crate) struct Loan {
    whole: Message,
    cost: usize,
    loans: Arc<Mutex<Loans>>,
}

impl ChainedTsdu {
    /// Lends `whole`, at `cost` bytes.
    pub(crate) fn new(whole: Message, cost: usize, loans: Arc<Mutex<Loans>>) -> Self {
        let rest = whole.clone();
        lock(&loans).lent += cost;
        let loan = Arc::new(Loan { whole, cost, loans });
        Self { rest, loan }
    }

    pub(crate) const fn loan(&self) -> &Arc<Loan> {
        &self.loan
    }

    /// Returns the length of the TSDU in bytes.
    pub fn len(&self) -> usize {
        self.loan.whole.len()
    }

    /// Returns whether the TSDU is empty, which never happens.
    pub fn is_empty(&self) -> bool {
        self.loan.whole.is_empty()
    }

    /// Returns the token of this end's registration that the TSDU invalidated, if any.
    pub fn invalidated_token(&self) -> Option<Token> {
        self.loan.whole.invalidated_token()
    }

    /// Returns the whole TSDU as a message, which no longer counts against the lending limit.
    pub fn into_message(self) -> Message {
        self.loan.whole.clone()
    }
}

//= TDI-CHN-02
/// Reads the TSDU in place. A handler that has read a part and then does not accept the TSDU still
/// returns all of it.
impl Buf for ChainedTsdu {
    fn remaining(&self) -> usize {
        self.rest.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.rest.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.rest.advance(count);
    }
}

impl Loan {
    /// Returns the cost of the TSDU against the lending limit in bytes.
    pub(crate) const fn cost(&self) -> usize {
        self.cost
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        let mut loans = lock(&self.loans);
        //= TDI-CHN-05
        loans.lent -= self.cost;
        let waker = loans.waker.take();
        drop(loans);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Returns the number of bytes that are lent.
pub(crate) fn lent(loans: &Mutex<Loans>) -> usize {
    lock(loans).lent
}

/// Wakes `waker` when the next TSDU is returned.
pub(crate) fn watch(loans: &Mutex<Loans>, waker: &Waker) {
    let old = lock(loans).waker.replace(waker.clone());
    drop(old);
}

/// Takes the lock even if it is poisoned, so that a panic on one thread does not affect others.
fn lock(loans: &Mutex<Loans>) -> MutexGuard<'_, Loans> {
    loans.lock().unwrap_or_else(PoisonError::into_inner)
}
