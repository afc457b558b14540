//! The driver: one task for each connection, and the state that it shares with the handles.
//!
//! One mutex, held briefly, protects the engine and the queue pair. Any holder of the lock may call
//! [`State::drive`]: it takes completions, passes them to the engine, posts the work that the engine
//! wants and flushes. The engine makes all protocol decisions; the driver makes none.
//!
//! | module | contents |
//! |---|---|
//! | `shared` | the mutex, and the wake-ups that follow its release |
//! | `state` | what the mutex protects, and the operations that the handles call |
//! | `schedule` | when a message is flushed, how much one poll moves, and when an idle end polls before it sleeps |
//! | `crowd` | the connections of a runtime with one thread, which take turns |
//! | `rounds` | the poll rounds: completions, posts, flush |
//! | `waiting` | the futures that wait for a change, by what they wait for |
//! | `events` | what the engine reports, and the end of the connection |
//! | `metered` | what the feature `metrics` reads and counts |
//! | `busy_poll` | polling without sleeping, for the time that the user allows |
//! | `task` | the task itself, which the sockets and the timer wake |
//! | `handover` | what happens to a connection whose runtime ends |
//! | `clock` | tokio's clock, which tests can stop |

mod busy_poll;
mod clock;
mod crowd;
mod events;
mod handover;
#[cfg(feature = "metrics")]
mod metered;
mod rounds;
mod schedule;
mod shared;
mod state;
mod task;
mod waiting;

#[cfg(test)]
mod tests;

pub(crate) use clock::now;
pub(crate) use handover::delay_end_of_thread;
pub(crate) use shared::Shared;
pub(crate) use state::{State, TransferResult};
pub(crate) use task::Driver;
pub(crate) use waiting::Condition;
