//! Which clients that are turned away have a line in the log: one a minute and address.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::IpAddr,
    time::{Duration, Instant},
};

/// The interval of log lines about clients of one address.
const LOG_INTERVAL: Duration = Duration::from_mins(1);
/// Maximum number of addresses that are remembered for [`LOG_INTERVAL`].
const MAX_REMEMBERED: usize = 4096;

/// What a line in the log about a client that is turned away says about others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SinceLastLine {
    /// How often clients of this address were turned away since its last line, this time included.
    pub times: u64,
    /// How often clients of other addresses were turned away that no line will name.
    pub others: u64,
}

/// The clients that were turned away in the last minute.
#[derive(Debug, Default)]
pub(crate) struct TurnedAway {
    clients: HashMap<IpAddr, Lines>,
    /// How often clients were turned away that no line will name, because there were too many addresses.
    unnamed: u64,
}

/// The lines about one address.
#[derive(Debug)]
struct Lines {
    last: Instant,
    /// How often its clients were turned away since then.
    times: u64,
}

impl Lines {
    fn are_recent(&self, now: Instant) -> bool {
        now < self.last + LOG_INTERVAL
    }
}

impl TurnedAway {
    /// Counts a client that is turned away. Returns what its line in the log says; `None` if there should be no line.
    pub(crate) fn count(&mut self, client: IpAddr, now: Instant) -> Option<SinceLastLine> {
        let is_full = |clients: &HashMap<_, _>| clients.len() >= MAX_REMEMBERED;
        if is_full(&self.clients) && !self.clients.contains_key(&client) {
            let forgotten = self.clients.extract_if(|_, lines| !lines.are_recent(now));
            self.unnamed += forgotten.map(|(_, lines)| lines.times).sum::<u64>();
            if is_full(&self.clients) {
                self.unnamed += 1;
                return None;
            }
        }
        let mut times = 1;
        match self.clients.entry(client) {
            Entry::Occupied(mut entry) => {
                let lines = entry.get_mut();
                lines.times += 1;
                if lines.are_recent(now) {
                    return None;
                }
                times = std::mem::take(&mut lines.times);
                lines.last = now;
            }
            Entry::Vacant(entry) => {
                entry.insert(Lines {
                    last: now,
                    times: 0,
                });
            }
        }
        Some(SinceLastLine {
            times,
            others: std::mem::take(&mut self.unnamed),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn client(number: usize) -> IpAddr {
        Ipv4Addr::from_bits(number as u32).into()
    }

    const fn line(times: u64, others: u64) -> Option<SinceLastLine> {
        Some(SinceLastLine { times, others })
    }

    #[test]
    fn an_address_has_one_line_a_minute() {
        let (mut all, began) = (TurnedAway::default(), Instant::now());
        assert_eq!(all.count(client(1), began), line(1, 0));
        assert_eq!(all.count(client(1), began), None);
        assert_eq!(all.count(client(2), began), line(1, 0));
        let later = began + LOG_INTERVAL;
        assert_eq!(all.count(client(1), later), line(2, 0));
        assert_eq!(all.count(client(1), later), None);
    }

    #[test]
    fn what_no_line_has_named_is_in_the_next_one() {
        let (mut all, began) = (TurnedAway::default(), Instant::now());
        for number in 0..MAX_REMEMBERED {
            assert_eq!(all.count(client(number), began), line(1, 0));
        }
        assert_eq!(all.count(client(0), began), None);
        assert_eq!(all.count(client(0), began), None);
        assert_eq!(all.count(client(MAX_REMEMBERED), began), None);
        let later = began + LOG_INTERVAL;
        assert_eq!(all.count(client(MAX_REMEMBERED), later), line(1, 3));
        assert_eq!(all.clients.len(), 1);
    }
}
