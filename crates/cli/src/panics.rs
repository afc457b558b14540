//! Panics: each is a fault of this program, which is logged and counted. The task ends, and the command continues.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    panic::{self, PanicHookInfo},
    process,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use anyhow::anyhow;
use tracing::error;

use crate::{report, streams};

/// Panics since the command started.
static COUNT: AtomicU64 = AtomicU64::new(0);
/// Whether the threads of the runtime are being started.
static IS_STARTING: AtomicBool = AtomicBool::new(false);

/// Logs and counts each panic from now on.
pub(crate) fn install() {
    panic::set_hook(Box::new(report_panic));
}

/// Returns the number of panics since the command started.
pub(crate) fn count() -> u64 {
    COUNT.load(Relaxed)
}

/// Runs `start`, which starts the threads of the runtime. The runtime panics if the system starts no thread, and then
/// waits for ever for those that it has started; the command ends with an error instead.
pub(crate) fn while_starting<T>(start: impl FnOnce() -> T) -> T {
    IS_STARTING.store(true, Relaxed);
    let started = start();
    IS_STARTING.store(false, Relaxed);
    started
}

fn report_panic(info: &PanicHookInfo<'_>) {
    let what = info.payload_as_str().unwrap_or("no message");
    if IS_STARTING.load(Relaxed) {
        end_without_threads(what);
    }
    COUNT.fetch_add(1, Relaxed);
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or_default();
    let trace = Backtrace::capture();
    let trace = match trace.status() {
        BacktraceStatus::Captured => format!("\n{trace}"),
        _ => String::new(),
    };
    error!(
        thread,
        place, "a fault of this program (panic), please report it: {what}{trace}"
    );
}

/// Ends the command, because its threads cannot be started.
fn end_without_threads(what: &str) -> ! {
    report::error(&anyhow!(
        "the program cannot start its threads: {}; raise the limit: TasksMax= of the unit, `ulimit -u`, or the limit \
         of the container",
        report::plain(&what)
    ));
    streams::finish();
    process::exit(1)
}
