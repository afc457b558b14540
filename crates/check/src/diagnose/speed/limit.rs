//! Decides what limits a rate, from the measured numbers alone.

use super::in_words;
use crate::{facts::InMessages, measurement::Cause};

/// The second read of the same data is this much faster if the disk limited the first. Below, the first read may
/// only have been slower because it was the first.
const DISK_RATIO: f64 = 2.0;
/// A thread that uses this part of a processor has no time left for more data.
const BUSY_THREAD: f64 = 0.9;
/// With this part of all processors in use, threads wait for one.
const BUSY_MACHINE: f64 = 0.95;
/// A rate above this part of what the path carries is limited by the path.
const PATH_PART: f64 = 0.8;
/// Messages that wait for a credit of SMB Direct for this part of the time leave the connection idle.
const CREDIT_WAIT: f64 = 0.3;
/// If the rate grows by at least this share of the growth in outstanding requests, more requests would raise it further.
const GROWTH_PART: f64 = 0.7;
/// Many requests that are this much faster than one show that one was too few.
const ONE_RATIO: f64 = 1.5;
/// Another transport that is this much faster shows that the path and this machine carry more.
const ELSEWHERE_RATIO: f64 = 1.25;
/// One SMB2 credit pays for this many bytes.
const BYTES_PER_CREDIT: f64 = 65_536.0;

/// The measured numbers of large requests of one kind over one transport. Rates are in bytes in a second.
#[derive(Clone, Debug)]
pub(super) struct Figures {
    /// The rate with one request outstanding.
    pub(super) one: Option<f64>,
    /// The rate with many requests outstanding.
    pub(super) many: f64,
    /// The rate when the data was read for the first time.
    pub(super) first_read: Option<f64>,
    /// What the path carries without SMB, if that was measured.
    pub(super) path: Option<f64>,
    /// The highest rate over the other transports, 0 without others.
    pub(super) best_elsewhere: f64,
    pub(super) busiest_thread: Option<f64>,
    pub(super) machine_busy: Option<f64>,
    pub(super) credit_wait: Option<f64>,
    pub(super) smb2_credits: u16,
    pub(super) request_bytes: u32,
    pub(super) outstanding: u32,
    pub(super) is_by_rdma: bool,
    pub(super) signs: bool,
    pub(super) in_messages: Option<InMessages>,
}

impl Figures {
    /// Returns what limits many outstanding requests. A cause that would hide the next ones is tested first.
    pub(super) fn limit_of_many(&self) -> Cause {
        if self.is_limited_by_disk() {
            Cause::Disk
        } else if matches!(self.in_messages, Some(InMessages::Protected(_))) {
            Cause::Signing
        } else if self.is_this_machine_busy() {
            Cause::ThisMachine
        } else if self.path.is_some_and(|path| self.many >= path * PATH_PART) {
            Cause::Path
        } else if self.waits_for_smb_direct() {
            Cause::SendCredits
        } else if self.waits_for_smb2() {
            Cause::Smb2Credits
        } else if self.path.is_some() || self.is_faster_elsewhere() {
            Cause::Server
        } else {
            Cause::ServerOrPath
        }
    }

    /// Returns what limits one outstanding request; `None` if it was not measured.
    pub(super) fn limit_of_one(&self) -> Option<Cause> {
        let one = self.one?;
        Some(if self.many >= one * ONE_RATIO {
            Cause::OneOutstanding
        } else {
            self.limit_of_many()
        })
    }

    fn is_limited_by_disk(&self) -> bool {
        let first = self.first_read;
        first.is_some_and(|first| first * DISK_RATIO <= self.many)
    }

    fn is_this_machine_busy(&self) -> bool {
        self.busiest_thread.is_some_and(|part| part >= BUSY_THREAD)
            || self.machine_busy.is_some_and(|part| part >= BUSY_MACHINE)
    }

    /// Data in messages waits for credits also if the server is slow, which another transport then is, too.
    fn waits_for_smb_direct(&self) -> bool {
        let waits = self.credit_wait.is_some_and(|part| part >= CREDIT_WAIT);
        waits && (self.is_by_rdma || self.is_faster_elsewhere())
    }

    fn is_faster_elsewhere(&self) -> bool {
        self.best_elsewhere >= self.many * ELSEWHERE_RATIO
    }

    /// Returns how many requests the SMB2 credits pay for.
    fn requests_with_credits(&self) -> f64 {
        f64::from(self.smb2_credits) * BYTES_PER_CREDIT / f64::from(self.request_bytes)
    }

    /// The credits keep requests back, and the rate grew with those that they did not keep back.
    fn waits_for_smb2(&self) -> bool {
        let paid = self.requests_with_credits();
        let grows = |one: f64| self.many >= one * paid.max(1.0) * GROWTH_PART;
        self.smb2_credits > 0 && paid < f64::from(self.outstanding) && self.one.is_some_and(grows)
    }

    /// Returns a limit in words, as after "because of".
    pub(super) fn because(&self, limit: Cause) -> String {
        match limit {
            Cause::Signing => match &self.in_messages {
                Some(InMessages::Protected(why)) => {
                    format!("signing or encryption: the data moves in messages, because {why}")
                }
                _ => "signing or encryption".into(),
            },
            Cause::Disk => format!(
                "the server's disk: the first read of the data ran at {}, the next one at {}",
                in_words(self.first_read.unwrap_or_default()),
                in_words(self.many)
            ),
            Cause::ThisMachine => self.this_machine(),
            Cause::Path => format!(
                "the path, which carries {} without SMB",
                in_words(self.path.unwrap_or_default())
            ),
            Cause::SendCredits => format!(
                "SMB Direct credits: messages waited {} of the time until the server granted one",
                percent(self.credit_wait)
            ),
            Cause::Smb2Credits => format!(
                "SMB2 credits: the server grants {}, which pay for {:.1} requests of {} KiB",
                self.smb2_credits,
                self.requests_with_credits(),
                self.request_bytes >> 10
            ),
            Cause::OneOutstanding => format!(
                "one request at a time: {} reach {}",
                self.outstanding,
                in_words(self.many)
            ),
            Cause::Server => match (&self.in_messages, self.is_faster_elsewhere()) {
                (Some(InMessages::Other(why) | InMessages::Protected(why)), _) => {
                    format!("the server, and the data moves in messages, because {why}")
                }
                (None, true) => format!(
                    "the server: the same data moves at {} by another transport",
                    in_words(self.best_elsewhere)
                ),
                (None, false) => format!(
                    "the server: the path carries {}",
                    in_words(self.path.unwrap_or_default())
                ),
            },
            _ => "the server or the path".into(),
        }
    }

    fn this_machine(&self) -> String {
        let signing = if self.signs && !self.is_by_rdma {
            ", which also signs the data"
        } else {
            ""
        };
        if self.busiest_thread.is_some_and(|part| part >= BUSY_THREAD) {
            format!(
                "this machine's processor: one thread of this program used {} of a core{signing}",
                percent(self.busiest_thread)
            )
        } else {
            format!(
                "this machine's processors: all programs together used {} of them{signing}",
                percent(self.machine_busy)
            )
        }
    }
}

fn percent(part: Option<f64>) -> String {
    format!("{:.0} %", part.unwrap_or_default() * 100.0)
}
