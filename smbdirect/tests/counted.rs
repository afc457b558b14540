//! Counts that do not depend on the machine or on time: allocations, memory, copies, system calls and
//! credit messages.

#[path = "counted/allocations.rs"]
mod allocations;
#[path = "counted/copies.rs"]
mod copies;
#[path = "counted/credit_messages.rs"]
mod credit_messages;
#[path = "counted/memory.rs"]
mod memory;
#[path = "counted/system_calls.rs"]
mod system_calls;
#[path = "../benches/units/mod.rs"]
mod units;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Makes the tests run one at a time: all connections of a process share pools of memory, so that one test
/// could leave too little for another.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // A poisoned lock means that another test failed, which that test reports.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
