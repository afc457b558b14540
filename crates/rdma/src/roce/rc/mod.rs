//! The reliable connection service (RC): queue pairs (IBTA volume 1, chapter 9).
//!
//! ```text
//!   QueuePair: work and completions <-> packets      queue_pair
//!   sends requests again until they are answered     requester   (window, retransmission, rnr)
//!   executes requests in order, and answers them     responder   (inbound_message, pace)
//!   reports congestion to the peer                   congestion
//! ```

mod congestion;
mod error;
mod inbound_message;
mod outgoing;
mod pace;
mod payload;
mod queue_pair;
mod requester;
mod responder;
mod retransmission;
mod rnr;
mod send_queue;
mod settings;
mod shared;
#[cfg(test)]
mod tests;
mod window;

pub use congestion::CongestionStatistics;
pub use error::QueuePairError;
pub(super) use payload::Payload;
pub use queue_pair::QueuePair;
pub use requester::RetransmissionStatistics;
pub use settings::QueuePairSettings;
