//! The library that `smbdirect run` preloads into a program. It answers the program's calls of `connect`
//! for the ports of SMB, and lets all other calls pass.
//!
//! The program keeps its TCP socket, so every copy of the descriptor (`dup`, `fork`, `exec`, `SCM_RIGHTS`), its
//! options, its flags and its entries in epoll stay as they are. The library only connects it to another address: to the
//! broker on this machine, which is a process of `smbdirect run`. The broker connects to the server by SMB Direct and
//! moves the messages.
//!
//! TCP has to remain in the state SYN-SENT until the broker has its connection, so that `poll`, `SO_ERROR` and
//! non-blocking `connect` work as usual. Therefore the two sockets connect by simultaneous open (RFC 9293, 3.5):
//!
//! ```text
//!   program (address P)                    broker (address Q)
//!   SYN to Q                         ──►   a listener at Q, whose queue is full: dropped
//!   (SYN-SENT, and the broker connects to the server)
//!                                    ◄──   SYN to P, from a second socket that is bound to Q
//!   established                            established
//! ```
//!
//! If the broker fails, it closes the listener, and the system answers the next SYN with a reset: `ECONNREFUSED`.
//! Nobody else can connect to either socket: the listener accepts nothing, only this user can have a second
//! socket at its address, and the broker connects to the one address
//! that the library has named. The library makes both sockets of the broker in the network namespace of the program, and
//! passes them to the broker.
//!
//! | module | contents |
//! |---|---|
//! | `address` | addresses of the C library |
//! | `broker` | the requests to the broker |
//! | `calls` | the functions that replace those of the C library |
//! | `redirect` | what `connect` does |
//! | `next` | the functions of the C library |

#![warn(clippy::undocumented_unsafe_blocks)]
#![cfg(target_os = "linux")]

mod address;
mod broker;
pub mod calls;
mod next;
mod redirect;

/// Prepares everything, so that no later call has to find functions or settings: a signal handler may be the first
/// to call `connect`.
extern "C" fn load() {
    next::next();
    broker::settings();
}

/// The dynamic linker calls the functions in this section.
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;
