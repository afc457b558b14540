//! The sockets of SMB Direct connections in this process, by the numbers of their descriptors.
//!
//! A number can come to stand for another file without a call that this library sees: `fclose` and `dup2` close
//! and replace descriptors within the C library and the kernel. Therefore each use compares the cookie of the
//! socket, a number that the kernel never uses again.
//!
//! Signal handlers and forked processes may call `close`. So nothing here allocates memory, signals are blocked
//! while the table is locked, and `fork` takes the lock, so that it is free in the new process.

use std::{
    cell::UnsafeCell,
    ffi::c_int,
    io, mem,
    os::{
        fd::{AsRawFd, IntoRawFd, RawFd},
        unix::net::UnixStream,
    },
    ptr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
};

use libc::socklen_t;

use crate::next::next;

/// Number of descriptors that can be such sockets.
const MAX_DESCRIPTORS: usize = 4096;

/// What the program is told about a socket.
#[derive(Clone, Copy)]
pub(crate) struct Socket {
    state: State,
    /// The socket that this describes.
    cookie: u64,
    /// The address that the program has connected to, as the C library has it.
    pub(crate) peer: libc::sockaddr_storage,
    pub(crate) peer_length: socklen_t,
}

/// How far a socket has connected. The variants follow those of TCP in Linux.
#[derive(Clone, Copy, Default)]
enum State {
    /// The descriptor is not a socket of an SMB Direct connection.
    #[default]
    Unknown,
    /// The broker has not answered, or its answer was not read.
    Connecting(Answer),
    /// `connect` has not said so yet.
    Established,
    Connected,
    /// The error number is 0 once the program knows it.
    Failed(c_int),
    /// The program may connect again.
    Unconnected,
}

/// The socket on which the broker answers.
#[derive(Clone, Copy)]
struct Answer {
    descriptor: RawFd,
    cookie: u64,
}

/// What a program learns about the progress of its connection.
pub(crate) enum Progress {
    Pending,
    Connected,
    Failed(c_int),
}

impl Socket {
    /// Describes a socket whose connection is established, or that the broker will answer on `answer`.
    pub(crate) fn new(
        socket: &UnixStream,
        answer: Option<UnixStream>,
        peer: libc::sockaddr_storage,
        peer_length: socklen_t,
    ) -> io::Result<Self> {
        let cookie = |descriptor| cookie(descriptor).ok_or_else(io::Error::last_os_error);
        let state = match answer {
            None => State::Connected,
            Some(answer) => State::Connecting(Answer {
                cookie: cookie(answer.as_raw_fd())?,
                descriptor: answer.into_raw_fd(),
            }),
        };
        Ok(Self {
            state,
            cookie: cookie(socket.as_raw_fd())?,
            peer,
            peer_length,
        })
    }

    /// Returns how far the socket has connected.
    pub(crate) fn progress(&mut self, descriptor: RawFd) -> Progress {
        if let State::Connecting(answer) = self.state {
            let answered = if answer.is_open() {
                if !is_ready(answer.descriptor, libc::POLLIN) {
                    return Progress::Pending;
                }
                answer.read()
            } else if is_ready(descriptor, 0) {
                // The program has closed the number of the answer, as programs do that close all numbers. The
                // broker closes its end if the connection fails, and takes the filling out otherwise.
                libc::ECONNREFUSED
            } else if is_ready(descriptor, libc::POLLOUT) {
                0
            } else {
                return Progress::Pending;
            };
            answer.close();
            self.state = match answered {
                0 => State::Established,
                error => State::Failed(error),
            };
        }
        match self.state {
            State::Established | State::Connected => Progress::Connected,
            State::Failed(error) => Progress::Failed(error),
            State::Unknown | State::Connecting(_) | State::Unconnected => Progress::Failed(0),
        }
    }

    /// Returns the error of the socket once, as `SO_ERROR` does: 0 unless connecting has failed.
    pub(crate) fn take_error(&mut self, descriptor: RawFd) -> Option<c_int> {
        match self.progress(descriptor) {
            Progress::Pending => Some(0),
            Progress::Connected => None,
            Progress::Failed(error) => {
                if let State::Failed(_) = self.state {
                    self.state = State::Failed(0);
                }
                Some(error)
            }
        }
    }

    /// Returns the error number of a further `connect`, 0 if that completes the first one, and `None` if it is a
    /// new attempt.
    pub(crate) fn connect_again(&mut self, descriptor: RawFd) -> Option<c_int> {
        self.progress(descriptor);
        match self.state {
            State::Connecting(_) => Some(libc::EALREADY),
            State::Established => {
                self.state = State::Connected;
                Some(0)
            }
            State::Connected => Some(libc::EISCONN),
            State::Failed(error) => {
                self.state = State::Unconnected;
                Some(if error == 0 {
                    libc::ECONNABORTED
                } else {
                    error
                })
            }
            State::Unknown | State::Unconnected => None,
        }
    }
}

impl Answer {
    /// Returns whether the number still stands for the socket that this library has made.
    fn is_open(self) -> bool {
        cookie(self.descriptor) == Some(self.cookie)
    }

    /// Reads the error number of the broker, or returns that of a broker that is gone.
    fn read(self) -> c_int {
        let mut number: c_int = 0;
        // SAFETY: the memory has the length that is given.
        let length = unsafe {
            let to = (&raw mut number).cast();
            libc::recv(self.descriptor, to, size_of::<c_int>(), libc::MSG_DONTWAIT)
        };
        match usize::try_from(length) {
            // The answer is one write of four bytes, which arrive together.
            Ok(length) if length == size_of::<c_int>() => number,
            _ => libc::ECONNREFUSED,
        }
    }

    /// Closes the socket, unless the program has done so.
    fn close(self) {
        if self.is_open() {
            // SAFETY: the number stands for the socket of this library, which nothing else uses.
            unsafe { (next().close)(self.descriptor) };
        }
    }
}

/// Returns whether a descriptor has one of the events now, or is at its end.
fn is_ready(descriptor: RawFd, events: libc::c_short) -> bool {
    let mut ready = libc::pollfd {
        fd: descriptor,
        events,
        revents: 0,
    };
    // SAFETY: there is one entry.
    unsafe { libc::poll(&raw mut ready, 1, 0) == 1 }
}

type Table = [Socket; MAX_DESCRIPTORS];

/// All bits of an unknown socket are zero, so that the table takes no space in the library's file.
static SOCKETS: Mutex<Table> = Mutex::new(
    [Socket {
        state: State::Unknown,
        cookie: 0,
        // SAFETY: all fields of the address are valid when they are zero.
        peer: unsafe { mem::zeroed() },
        peer_length: 0,
    }; MAX_DESCRIPTORS],
);

/// Whether the table has an entry for a number. The calls for all other descriptors take no lock.
static KNOWN: [AtomicBool; MAX_DESCRIPTORS] = [const { AtomicBool::new(false) }; MAX_DESCRIPTORS];

/// The process that the table belongs to. A process that was made by `vfork` has the same memory, and its own
/// descriptors.
static PROCESS: AtomicI32 = AtomicI32::new(0);

/// The table with its lock, during which no signal handler runs on this thread. It leaves the error number of the
/// thread as it was.
struct Locked {
    table: mem::ManuallyDrop<MutexGuard<'static, Table>>,
    signals: libc::sigset_t,
    error: c_int,
}

impl Locked {
    fn new() -> Self {
        // SAFETY: both sets are memory of this function, and any bits are a valid set. The location of the error
        // number of this thread is always valid.
        let (signals, error) = unsafe {
            let mut all: libc::sigset_t = mem::zeroed();
            let mut before: libc::sigset_t = mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
            (before, *libc::__errno_location())
        };
        let table = SOCKETS.lock().unwrap_or_else(PoisonError::into_inner);
        Self {
            table: mem::ManuallyDrop::new(table),
            signals,
            error,
        }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: the lock is released once, and the set is the one that was read.
        unsafe {
            mem::ManuallyDrop::drop(&mut self.table);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.signals, ptr::null_mut());
            *libc::__errno_location() = self.error;
        }
    }
}

/// Runs `call` with the description of a socket of an SMB Direct connection. Returns `None` for every other
/// descriptor.
pub(crate) fn with<T>(descriptor: RawFd, call: impl FnOnce(&mut Socket) -> T) -> Option<T> {
    let index = known(descriptor)?;
    let mut locked = Locked::new();
    let socket = &mut locked.table[index];
    if matches!(socket.state, State::Unknown) {
        return None;
    }
    if cookie(descriptor) != Some(socket.cookie) {
        mem::take(&mut socket.state).close_answer();
        KNOWN[index].store(false, Ordering::Release);
        return None;
    }
    Some(call(socket))
}

/// Puts a socket in the place of a descriptor, and describes it.
///
/// # Errors
/// The number is too large, or the system refuses.
pub(crate) fn replace(
    descriptor: RawFd,
    socket: &UnixStream,
    close_on_exec: c_int,
    description: Socket,
) -> io::Result<()> {
    let index = index(descriptor)?;
    let mut locked = Locked::new();
    // SAFETY: the descriptor of the program stays open, with another socket behind it.
    if unsafe { libc::dup3(socket.as_raw_fd(), descriptor, close_on_exec) } < 0 {
        let error = io::Error::last_os_error();
        description.state.close_answer();
        return Err(error);
    }
    mem::replace(&mut locked.table[index], description)
        .state
        .close_answer();
    KNOWN[index].store(true, Ordering::Release);
    Ok(())
}

/// Forgets a descriptor that is about to be closed.
pub(crate) fn forget(descriptor: RawFd) {
    let Some(index) = known(descriptor) else {
        return;
    };
    // SAFETY: the call has no preconditions.
    if unsafe { libc::getpid() } != PROCESS.load(Ordering::Relaxed) {
        return;
    }
    let mut locked = Locked::new();
    mem::take(&mut locked.table[index].state).close_answer();
    KNOWN[index].store(false, Ordering::Release);
}

impl State {
    /// Closes the socket on which the broker would answer.
    fn close_answer(self) {
        if let Self::Connecting(answer) = self {
            answer.close();
        }
    }
}

/// Checks that a descriptor can have a place in the table.
pub(crate) fn index(descriptor: RawFd) -> io::Result<usize> {
    let index = usize::try_from(descriptor).ok();
    let index = index.filter(|index| *index < MAX_DESCRIPTORS);
    index.ok_or_else(|| io::Error::from_raw_os_error(libc::EMFILE))
}

/// Returns the place of a descriptor that has an entry.
fn known(descriptor: RawFd) -> Option<usize> {
    let index = usize::try_from(descriptor).ok()?;
    KNOWN.get(index)?.load(Ordering::Acquire).then_some(index)
}

/// Returns the number by which the kernel tells sockets apart, or `None` if the descriptor is not a socket.
fn cookie(descriptor: RawFd) -> Option<u64> {
    option(descriptor, libc::SO_COOKIE)
}

/// A type of which any bits are a value.
///
/// # Safety
/// Every sequence of bits, as long as the type, has to be a value of it.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: any bits are a number.
unsafe impl Plain for c_int {}
// SAFETY: any bits are a number.
unsafe impl Plain for u64 {}
// SAFETY: it consists of numbers.
unsafe impl Plain for libc::timeval {}

/// Returns an option of a socket.
pub(crate) fn option<T: Plain>(descriptor: c_int, name: c_int) -> Option<T> {
    let mut value = mem::MaybeUninit::<T>::zeroed();
    let mut length = size_of::<T>() as socklen_t;
    // SAFETY: the value has the length that is given, and any bits are a value.
    unsafe {
        let to = value.as_mut_ptr().cast();
        let status = (next().getsockopt)(descriptor, libc::SOL_SOCKET, name, to, &raw mut length);
        (status == 0).then(|| value.assume_init())
    }
}

/// The lock of the table, from the beginning to the end of `fork`.
struct DuringFork(UnsafeCell<Option<Locked>>);

// SAFETY: only the thread that has the lock uses the cell.
unsafe impl Sync for DuringFork {}

static DURING_FORK: DuringFork = DuringFork(UnsafeCell::new(None));

/// Prepares for `fork`. Called once, before the program begins.
pub(crate) fn prepare() {
    extern "C" fn before() {
        let locked = Locked::new();
        // SAFETY: this thread has the lock.
        unsafe { *DURING_FORK.0.get() = Some(locked) };
    }
    extern "C" fn after_in_parent() {
        // SAFETY: this thread has the lock.
        drop(unsafe { (*DURING_FORK.0.get()).take() });
    }
    extern "C" fn after_in_child() {
        // SAFETY: the call has no preconditions.
        PROCESS.store(unsafe { libc::getpid() }, Ordering::Relaxed);
        after_in_parent();
    }
    // SAFETY: the functions may run around a fork: they lock, unlock, and change an atomic.
    unsafe {
        PROCESS.store(libc::getpid(), Ordering::Relaxed);
        libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child));
    }
}
