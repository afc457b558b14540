//! The library that `smbdirect run` preloads into a program. It answers the program's calls of `connect`
//! for the ports of SMB, and lets all other calls pass.
//!
//! For such a call the library makes a pair of stream sockets. One end takes the place of the program's TCP
//! socket, under the same number. The other end goes to the broker, which is `smbdirect run`, with the
//! address of the server: the broker connects by SMB Direct and moves the messages. So the program contains
//! no runtime and no thread of ours, and may fork and execute as it likes.
//!
//! A connect on a non-blocking socket returns `EINPROGRESS`, as TCP does. To keep the socket from becoming
//! writable too early, the library fills its send buffer, and the broker takes that filling out once the
//! connection is established. A blocking connect does the same, as a signal can make it return before that. So
//! `poll`, `select` and `epoll` work without the library. If the connection fails, the broker closes its end, which
//! wakes the program, and `getsockopt(SO_ERROR)` returns why.
//!
//! | module | contents |
//! |---|---|
//! | `broker` | the request to the broker, and its answer |
//! | `connecting` | what `connect` does |
//! | `epoll` | sockets that epoll has before they connect |
//! | `sockets` | the sockets of SMB Direct connections in this process |
//! | `calls` | the functions that replace those of the C library |
//! | `load` | what happens when the library is loaded |
//! | `next` | the functions of the C library |

#![warn(clippy::undocumented_unsafe_blocks)]
#![cfg(target_os = "linux")]

mod broker;
pub mod calls;
mod connecting;
mod epoll;
mod load;
mod next;
mod sockets;
