//! What can be counted and does not depend on the machine: allocations, memory, copies, system
//! calls, credit messages. No clock decides anything here.

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

/// One test at a time: connections of one process share memory that they use again, so that one
/// test can leave another too little of it.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    // Another test has failed, and says so itself.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
