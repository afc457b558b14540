//! KEVENT: events that threads wait for, and the time-outs of waits. Timers and threads are waited for by the same header.
//!
//! The state of an event is a futex. A thread that has seen the state may free the event while the setter is still
//! about to wake others. That is harmless, because waking needs only the address and reads no memory.

use std::{
    cell::UnsafeCell,
    ffi::c_void,
    ptr,
    sync::atomic::{AtomicI32, Ordering},
    thread,
    time::{Duration, Instant, SystemTime},
};

use crate::{
    device::check_may_wait,
    layout::{KEvent, ListEntry, NtStatus},
};

/// The types of objects that stay signaled until they are reset: NotificationEvent, threads, and notification timers. A
/// wait resets any other object.
const NOTIFICATION_EVENT: u8 = 0;
const THREAD_OBJECT: u8 = 6;
const TIMER_NOTIFICATION_OBJECT: u8 = 8;
const NOTIFICATION_OBJECTS: [u8; 3] =
    [NOTIFICATION_EVENT, THREAD_OBJECT, TIMER_NOTIFICATION_OBJECT];
const STATUS_SUCCESS: NtStatus = 0;
const STATUS_TIMEOUT: NtStatus = 0x102;
const STATUS_INVALID_PARAMETER: NtStatus = 0xC000_000D_u32 as NtStatus;
/// The time from the year 1601, where the times of Windows begin, to 1970.
const TO_UNIX_EPOCH: Duration = Duration::from_secs(11_644_473_600);

/// Returns the state of an event.
///
/// # Safety
/// `event` is a valid event.
unsafe fn state<'a>(event: *mut KEvent) -> &'a AtomicI32 {
    // SAFETY: the caller promises that the event is valid. All accesses to its state are atomic.
    unsafe { AtomicI32::from_ptr(&raw mut (*event).signal_state) }
}

/// Returns whether waits leave an object signaled.
///
/// # Safety
/// `event` is a valid event.
unsafe fn is_notification(event: *const KEvent) -> bool {
    // SAFETY: the caller promises that the event is valid.
    NOTIFICATION_OBJECTS.contains(unsafe { &(*event).kind })
}

impl KEvent {
    /// Returns an event that is not signaled. Its list of waiters, which no client reads, is not used.
    pub(crate) fn new(kind: u8) -> Self {
        let list = ListEntry {
            flink: ptr::null_mut(),
            blink: ptr::null_mut(),
        };
        Self {
            kind,
            signalling: 0,
            size: (size_of::<Self>() / 4) as u8,
            reserved: 0,
            signal_state: 0,
            wait_list_head: list,
        }
    }
}

/// Signals an event, and returns its former state.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn KeSetEvent(event: *mut KEvent, _increment: i32, _wait: u8) -> i32 {
    if event.is_null() {
        return 0;
    }
    // SAFETY: the caller promises a valid event until it is signaled.
    let (state, is_notification) = unsafe { (state(event), is_notification(event)) };
    let address = ptr::from_ref(state);
    let former = state.swap(1, Ordering::SeqCst);
    // From here on a waiting thread may free the event.
    let count = if is_notification { i32::MAX } else { 1 };
    // SAFETY: waking uses the address only.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            address,
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            count,
        )
    };
    former
}

/// Waits until an event, a timer or a thread is signaled, or a time-out has expired.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn KeWaitForSingleObject(
    object: *mut c_void,
    _reason: u32,
    _mode: i8,
    _alertable: u8,
    timeout: *const i64,
) -> NtStatus {
    let event = object.cast::<KEvent>();
    if event.is_null() {
        return STATUS_INVALID_PARAMETER;
    }
    // SAFETY: the caller promises that the pointer is null or valid.
    let limit = unsafe { timeout.as_ref() }.map(|&time| duration(time));
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    // SAFETY: the caller promises a valid event during the wait.
    let (state, is_notification) = unsafe { (state(event), is_notification(event)) };
    loop {
        let next = i32::from(is_notification);
        let seen = state.compare_exchange(1, next, Ordering::SeqCst, Ordering::SeqCst);
        let Err(seen) = seen else {
            return STATUS_SUCCESS;
        };
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return STATUS_TIMEOUT;
        }
        check_may_wait("KeWaitForSingleObject");
        futex_wait(state, seen, left);
    }
}

fn futex_wait(state: &AtomicI32, seen: i32, left: Option<Duration>) {
    let left = left.map(|left| libc::timespec {
        tv_sec: left.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: left.subsec_nanos().into(),
    });
    let timeout = left.as_ref().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: the state is valid during the call, and the time-out is null or valid.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            ptr::from_ref(state),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            seen,
            timeout,
        )
    };
}

/// Waits for a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn KeDelayExecutionThread(
    _mode: i8,
    _alertable: u8,
    interval: *const i64,
) -> NtStatus {
    // SAFETY: the caller promises that the pointer is null or valid.
    let Some(&interval) = (unsafe { interval.as_ref() }) else {
        return STATUS_INVALID_PARAMETER;
    };
    check_may_wait("KeDelayExecutionThread");
    thread::sleep(duration(interval));
    STATUS_SUCCESS
}

/// Returns the duration of a time of Windows, in units of 100 ns: a negative time is relative, and a positive one is
/// the time since 1601.
pub(crate) fn duration(time: i64) -> Duration {
    let units = time.unsigned_abs();
    let time_since =
        Duration::from_secs(units / 10_000_000) + Duration::from_nanos(units % 10_000_000 * 100);
    if time <= 0 {
        return time_since;
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    time_since.saturating_sub(TO_UNIX_EPOCH + now.unwrap_or_default())
}

/// Returns a time as Windows counts it.
pub(crate) fn windows_time(time: SystemTime) -> i64 {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        + TO_UNIX_EPOCH;
    i64::try_from(since.as_nanos() / 100).unwrap_or(i64::MAX)
}

/// A thread of a client, which is signaled when it has ended.
pub(crate) struct Thread(UnsafeCell<KEvent>);

// SAFETY: all accesses to the object are atomic.
unsafe impl Send for Thread {}
// SAFETY: as for `Send`.
unsafe impl Sync for Thread {}

impl Thread {
    pub(crate) fn new() -> Self {
        Self(UnsafeCell::new(KEvent::new(THREAD_OBJECT)))
    }

    pub(crate) const fn object(&self) -> *mut KEvent {
        self.0.get()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::mpsc};

    use super::*;

    /// Returns whether a thread of this process sleeps.
    fn sleeps(thread: libc::pid_t) -> bool {
        let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        stat.rsplit(')').next().unwrap().starts_with(" S")
    }

    #[test]
    fn a_notification_event_wakes_all_its_waiters() {
        // The threads of a failed test still wait for the event.
        let event = Box::into_raw(Box::new(KEvent::new(NOTIFICATION_EVENT)));
        let (woken, wakes) = mpsc::channel();
        for _ in 0..3 {
            let (sender, receiver) = mpsc::channel();
            let (address, woken) = (event as usize, woken.clone());
            thread::spawn(move || {
                // SAFETY: the call has no arguments.
                sender.send(unsafe { libc::gettid() }).unwrap();
                let object = address as *mut c_void;
                // SAFETY: the event is never freed, and the time-out is null.
                let status = unsafe { KeWaitForSingleObject(object, 0, 0, 0, ptr::null()) };
                let _ = woken.send(status);
            });
            let id = receiver.recv().unwrap();
            while !sleeps(id) {
                thread::yield_now();
            }
        }
        // SAFETY: as above.
        unsafe { KeSetEvent(event, 0, 0) };
        for _ in 0..3 {
            let limit = Duration::from_secs(60);
            assert_eq!(wakes.recv_timeout(limit), Ok(STATUS_SUCCESS));
        }
    }
}
