//! The parts of the library by themselves, as units of work that can be timed or counted.
//!
//! The same units serve three users: `cargo bench` times them and counts their allocations,
//! `cargo bench -- --instructions` counts their instructions, and `tests/counted` asserts what
//! must not be allocated. A unit does one half of the work by itself. [`Unit::feed`], which is not
//! measured, makes what that half needs and removes its results.

pub(crate) mod connection;
pub(crate) mod engine;
pub(crate) mod iwarp;
pub(crate) mod roce;
pub(crate) mod wire;

/// Work of one kind, done in an endless series of batches.
pub(crate) trait Unit {
    /// Removes the results of the last batch and prepares the next.
    fn feed(&mut self);

    /// Runs the prepared batch.
    fn run(&mut self) -> Done;
}

/// The result of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// Number of segments, FPDUs, packets or messages; [`Case::item`] names which.
    pub(crate) items: u64,
    /// Bytes of payload that were moved.
    pub(crate) bytes: u64,
}

/// A unit that has not been built.
pub(crate) struct Case {
    /// `layer/operation/size`, with the item that is counted.
    pub(crate) name: String,
    pub(crate) item: &'static str,
    build: Box<dyn Fn() -> Box<dyn Unit>>,
}

impl Case {
    fn new<U: Unit + 'static>(
        name: impl Into<String>,
        item: &'static str,
        build: impl Fn() -> U + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            item,
            build: Box::new(move || Box::new(build())),
        }
    }

    pub(crate) fn build(&self) -> Box<dyn Unit> {
        (self.build)()
    }
}

/// All units, the protocol's layers from top to bottom.
pub(crate) fn all() -> Vec<Case> {
    let mut all = engine::cases();
    all.extend(wire::cases());
    all.extend(iwarp::cases());
    all.extend(roce::cases());
    all.extend(connection::cases());
    all
}

/// Bytes that are neither all the same nor worth looking at.
pub(crate) fn content(length: usize) -> bytes::Bytes {
    (0..length).map(|at| (at as u8).wrapping_mul(31)).collect()
}
