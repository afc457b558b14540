//! Counts of why sessions ended, and which requests were refused.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use smbdirect::metrics::{Family, Kind};
use smbdirect_smb::Refusal;

use super::peer::{Side, Stop};

/// Counts by cause: a name for each cause, and a counter.
#[derive(Debug)]
pub(super) struct ByCause<const N: usize> {
    causes: [&'static str; N],
    counts: [AtomicU64; N],
}

impl<const N: usize> ByCause<N> {
    const fn new(causes: [&'static str; N]) -> Self {
        Self {
            causes,
            counts: [const { AtomicU64::new(0) }; N],
        }
    }

    fn count(&self, cause: &'static str) {
        let index = self.causes.iter().position(|&known| known == cause);
        self.counts[index.expect("each cause is in the list")].fetch_add(1, Relaxed);
    }

    pub(super) fn family(&self, name: &'static str, help: &'static str) -> Family {
        let samples = self.causes.iter().zip(&self.counts);
        let samples =
            samples.map(|(&cause, count)| (vec![("cause", cause)], count.load(Relaxed) as f64));
        Family::labelled(name, help, Kind::Counter, samples)
    }
}

/// How sessions ended, and which requests were refused.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) sessions: ByCause<7>,
    pub(super) refusals: ByCause<9>,
}

impl Default for Ends {
    fn default() -> Self {
        Self {
            sessions: ByCause::new([
                "closed_by_client",
                "closed_by_server",
                "closed_here",
                "client_failed",
                "server_failed",
                "server_unreachable",
                "refused",
            ]),
            refusals: ByCause::new([
                "signed",
                "channel",
                "no_rdma",
                "malformed",
                "beyond_descriptors",
                "data_and_channel",
                "too_long",
                "too_many",
                "repeated",
            ]),
        }
    }
}

impl Ends {
    /// Counts the end of a session.
    pub(super) fn count(&self, stop: &Stop) {
        self.sessions.count(match stop {
            Stop::Closed(Side::Client) => "closed_by_client",
            Stop::Closed(Side::Server) => "closed_by_server",
            Stop::Here => "closed_here",
            Stop::Failed(Side::Client, _) => "client_failed",
            Stop::Failed(Side::Server, _) => "server_failed",
            Stop::Unreachable(_) => "server_unreachable",
            Stop::Refused(refusal) => {
                self.refusals.count(cause(refusal));
                "refused"
            }
        });
    }
}

fn cause(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::Signed { .. } => "signed",
        Refusal::Channel { .. } => "channel",
        Refusal::NoRdma { .. } => "no_rdma",
        Refusal::BeyondDescriptors { .. } => "beyond_descriptors",
        Refusal::DataAndChannel { .. } => "data_and_channel",
        Refusal::TooLong { .. } => "too_long",
        Refusal::TooMany { .. } => "too_many",
        Refusal::Repeated { .. } => "repeated",
        // Malformed, Header, and variants to come.
        _ => "malformed",
    }
}
