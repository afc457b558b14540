//! Counts that do not depend on the machine or on time: allocations, memory, copies, system calls and
//! credit messages.

mod allocations;
mod copies;
mod credit_messages;
mod kept;
mod memory;
mod system_calls;
#[path = "../../benches/units/mod.rs"]
mod units;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Makes the tests run one at a time: all connections of a process share pools of memory, so that one test
/// could leave too little for another.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // A poisoned lock means that another test failed, which that test reports.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
