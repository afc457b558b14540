//! The end of the program, which closes all connections.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    closing::LINGER,
    locks::lock,
    runtime::open_connections,
    status::{SMBDIRECT_ERROR_TIMED_OUT, SMBDIRECT_OK},
};

/// Closes all connections of this process, and waits for up to `timeout_ms` milliseconds until what was sent is
/// delivered, or without limit if it is negative. exit() and the return of main() do this with a limit of 10 s. A
/// program calls it before it ends in another way, such as by _exit() or by a signal, or unloads the library. Calls
/// that wait on these connections end, with SMBDIRECT_ERROR_ABORTED unless the peer closes first. Calls with these
/// connections and with later ones fail afterwards. The handles can be freed.
///
/// With a timeout of 0, connections that are not over and have outstanding operations are aborted, so that nothing
/// uses the memory of the program any more.
///
/// Returns 0 if all connections are over, and SMBDIRECT_ERROR_TIMED_OUT otherwise.
#[unsafe(no_mangle)]
pub extern "C" fn smbdirect_close_all(timeout_ms: i32) -> i32 {
    let limit = match timeout_ms {
        // As good as no limit: a hundred years.
        ..0 => Duration::from_secs(3_153_600_000),
        // An abort takes no answer of the peer.
        0 => Duration::from_secs(1),
        1.. => Duration::from_millis(timeout_ms as u64),
    };
    let closed = catch_unwind(|| {
        if timeout_ms == 0 {
            for (open, _) in open_connections() {
                open.expire();
            }
        }
        close_all(limit)
    });
    match closed {
        Ok(true) => SMBDIRECT_OK,
        _ => SMBDIRECT_ERROR_TIMED_OUT,
    }
}

/// Closes all connections of this process, and returns whether they are over before the limit.
///
/// The work is done by a new thread, because tokio cannot be used on a thread whose thread-local values are
/// destroyed, as they are in the functions that exit() calls.
fn close_all(limit: Duration) -> bool {
    let connections = open_connections();
    if connections.is_empty() {
        return true;
    }
    let done = Arc::new((Mutex::new(None), Condvar::new()));
    let result = done.clone();
    let body = move || {
        let deadline = Instant::now() + limit;
        for (open, _) in &connections {
            open.end();
        }
        for runtime in connections
            .iter()
            .filter_map(|(_, runtime)| runtime.as_ref())
        {
            // A panic is a bug of the library, and must not keep the program from ending.
            let _ = catch_unwind(AssertUnwindSafe(|| runtime.close_all(deadline)));
        }
        // The thread of the last call closes those of a runtime that was freed during the call.
        let is_closed = || connections.iter().all(|(open, _)| open.is_none());
        while !is_closed() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        let closed = is_closed();
        drop(connections);
        *lock(&result.0) = Some(closed);
        result.1.notify_all();
    };
    if thread::Builder::new().spawn(body).is_err() {
        return false;
    }
    let (closed, changed) = &*done;
    // The thread ends within the limit, unless a driven runtime is kept from running.
    let limit = limit.saturating_add(Duration::from_secs(1));
    let waiting = changed.wait_timeout_while(lock(closed), limit, |closed| closed.is_none());
    let (closed, _) = waiting.unwrap_or_else(PoisonError::into_inner);
    closed.unwrap_or(false)
}

/// The function that exit() calls.
pub(crate) extern "C" fn at_exit() {
    if open_connections().is_empty() {
        return;
    }
    // The streams are shut down, and a program that still writes to one, such as from the buffers of <stdio.h>,
    // must not end by SIGPIPE.
    // SAFETY: the set is initialised by the first call, and all pointers are valid during the calls.
    unsafe {
        let mut signals = std::mem::zeroed();
        libc::sigemptyset(&mut signals);
        libc::sigaddset(&mut signals, libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut());
    }
    let _ = catch_unwind(|| close_all(LINGER));
}
