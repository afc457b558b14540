//! FPDU alignment: which FPDUs one write may hold, so that each TCP segment begins with an FPDU and
//! holds only whole FPDUs (RFC 5044, sections 4.5 and 5.1).
//!
//! TCP segmentation offload cuts each write into segments of one size, counted from the start of the
//! write. A write therefore holds a run of FPDUs of exactly that size, and a shorter FPDU only as its
//! last one:
//!
//! ```text
//! record:    [FPDU][FPDU][FPDU][short]  [short]  [FPDU][FPDU]  [short]
//! segments:  |    ||    ||    ||     |  |     |  |    ||    |  |     |
//! ```
//!
//! Such a write is a *record*. `MSG_EOR` ends it, so that TCP appends nothing to its last segment.
//!
//! TCP also cuts where the receive window of the peer ends. A record is therefore written only if the window has
//! room for all of it. The queue pair holds back the FPDUs for which the window has no room.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::mpa;
use crate::software::pop_front_if;

/// How FPDUs are aligned with TCP segments (RFC 5044, sections 4.5 and 5.1).
///
/// A peer may require that a TCP segment begins with an FPDU and holds only whole FPDUs. Linux siw
/// reports a broken FPDU if CRCs are on and a segment boundary cuts the CRC, and adapters receive
/// such FPDUs on a slower path.
///
/// Alignment requires Linux on this end. It is lost for the FPDUs in flight when segments become shorter.
/// This happens when the path MTU becomes smaller. With [`Runs`](Self::Runs) it also happens when this end begins
/// to report segments that arrived out of order, because the TCP option for this (SACK) takes room from the payload.
#[cfg(feature = "tokio")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FpduAlignment {
    /// Aligns FPDUs in runs where CRCs are on and the peer is not known to be this library.
    #[default]
    Auto,
    /// Does not align FPDUs.
    Off,
    /// Writes each FPDU by itself, and leaves room for TCP options in each segment. The alignment
    /// holds also while this end reports segments that arrived out of order. Each FPDU costs a
    /// system call and a transmission.
    Single,
    /// Writes runs of FPDUs that have the size of a segment, so that segmentation offload cuts between
    /// FPDUs. Falls back to [`Single`](Self::Single) where the size of a segment is not a multiple of
    /// four, for one second after a segment arrived out of order, and before Linux 5.4.
    Runs,
}

/// The bytes that TCP options can take from a segment: selective acknowledgements of segments that
/// arrived out of order are options of up to four blocks.
const TCP_OPTION_RESERVE_BYTES: u32 = 36;
/// The longest record, in bytes. A longer one gains nothing, because Linux cuts each write into transmissions of
/// at most 64 KiB.
const MAX_RECORD_BYTES: usize = 256 * 1024;
/// The most FPDUs in a record. Each takes up to two of the 256 slices of a write.
const MAX_RECORD_FPDUS: usize = 120;
/// How long FPDUs leave room for TCP options after a segment arrived out of order.
const OPTIONS_PERIOD: Duration = Duration::from_secs(1);
/// FPDUs consist of words of this many bytes.
const WORD_BYTES: u32 = 4;

/// The state of a TCP connection as the operating system reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TcpState {
    /// The payload bytes of a full segment without optional TCP options (MSS).
    pub(super) segment: u32,
    /// The receive window of the peer and the counts that go with it; `None` if the system does not
    /// report them.
    pub(super) window: Option<Window>,
}

/// The receive window of the peer at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Window {
    /// The bytes that the peer accepts after the last acknowledged one.
    pub(super) bytes: u32,
    /// The bytes that the peer has acknowledged. The count may include the bytes of the handshake.
    pub(super) acknowledged: u64,
    /// Whether all written bytes are acknowledged.
    pub(super) all_acknowledged: bool,
    /// The segments that have arrived out of order.
    pub(super) out_of_order: u32,
}

/// The limits of the next records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// The longest FPDU to make, in bytes.
    pub(super) max_fpdu: usize,
    /// The length of the FPDUs that may form runs; `None` if each FPDU is a record.
    pub(super) run: Option<usize>,
    /// The bytes that may be written now.
    pub(super) room: usize,
}

/// Decides the limits of records from what the operating system reports about the connection.
#[derive(Debug)]
pub(super) struct Alignment {
    /// Whether FPDUs may form runs.
    runs: bool,
    /// The count of acknowledged bytes at the start of the stream; `None` until it is known.
    base: Option<u64>,
    /// The largest window that the peer has offered.
    largest_window: u32,
    /// The count of segments that had arrived out of order at the last report.
    out_of_order: u32,
    /// The time until which FPDUs leave room for TCP options; `None` if they leave none.
    options_until: Option<Instant>,
}

impl Alignment {
    /// Creates the state of a new connection. `runs` permits runs of FPDUs.
    pub(super) const fn new(runs: bool) -> Self {
        Self {
            runs,
            base: None,
            largest_window: 0,
            out_of_order: 0,
            options_until: None,
        }
    }

    /// Returns the limits of the next records of a stream that has written `written` bytes. The clock
    /// `now` is read only if needed.
    pub(super) fn cut(
        &mut self,
        state: TcpState,
        written: u64,
        now: impl FnOnce() -> Instant,
    ) -> Cut {
        //= MPA-35
        let single = mpa::max_fpdu(state.segment.saturating_sub(TCP_OPTION_RESERVE_BYTES));
        let Some(window) = state.window else {
            return Cut {
                max_fpdu: single,
                run: None,
                room: usize::MAX,
            };
        };
        self.largest_window = self.largest_window.max(window.bytes);
        let run = state.segment as usize;
        let forms_runs = self.runs
            && state.segment.is_multiple_of(WORD_BYTES)
            && (mpa::max_fpdu(0)..=mpa::max_fpdu(u32::MAX)).contains(&run)
            && state.segment <= self.largest_window
            && !self.needs_options(window.out_of_order, now);
        Cut {
            max_fpdu: if forms_runs {
                run
            } else {
                single.min(mpa::max_fpdu(self.largest_window))
            },
            run: forms_runs.then_some(run),
            room: self.room(window, written),
        }
    }

    /// Returns whether segments may have to carry selective acknowledgements.
    fn needs_options(&mut self, out_of_order: u32, now: impl FnOnce() -> Instant) -> bool {
        let arrived = out_of_order != self.out_of_order;
        if !arrived && self.options_until.is_none() {
            return false;
        }
        self.out_of_order = out_of_order;
        let now = now();
        if arrived {
            self.options_until = Some(now + OPTIONS_PERIOD);
        }
        self.options_until = self.options_until.filter(|&until| now < until);
        self.options_until.is_some()
    }

    /// Returns how many bytes may be written so that all of them are within the window.
    fn room(&mut self, window: Window, written: u64) -> usize {
        if self.base.is_none() && window.all_acknowledged {
            self.base = Some(window.acknowledged.wrapping_sub(written));
        }
        // Until the startup frame is acknowledged, the count at the start of the stream is not known. Half of the
        // window leaves room for that frame, which is short.
        let Some(base) = self.base else {
            return window.bytes as usize / 2;
        };
        let acknowledged = window.acknowledged.wrapping_sub(base);
        let unacknowledged = written.saturating_sub(acknowledged);
        u64::from(window.bytes).saturating_sub(unacknowledged) as usize
    }

    /// Forgets that the peer offered windows larger than `bytes`, so that FPDUs become short enough for
    /// the windows that it offers now.
    pub(super) const fn accept_small_windows(&mut self, bytes: usize) {
        self.largest_window = bytes as u32;
    }

    /// Returns whether an FPDU of `length` bytes is longer than every window that the peer has offered, so that
    /// waiting for room is useless.
    pub(super) const fn exceeds_windows(&self, length: usize) -> bool {
        length > self.largest_window as usize
    }
}

/// The ends of the FPDUs that wait for the socket, as positions in the stream.
#[derive(Debug, Default)]
pub(super) struct FpduEnds {
    /// The start of the first of these FPDUs.
    start: u64,
    ends: VecDeque<u64>,
}

impl FpduEnds {
    /// Adds an FPDU that ends at `end`.
    pub(super) fn push(&mut self, end: u64) {
        self.ends.push_back(end);
    }

    /// Removes the FPDUs that end at `written` or before.
    pub(super) fn advance(&mut self, written: u64) {
        while let Some(end) = pop_front_if(&mut self.ends, |end| *end <= written) {
            self.start = end;
        }
    }

    /// Removes all FPDUs, because none of their bytes after `written` will be sent.
    pub(super) fn clear(&mut self, written: u64) {
        self.ends.clear();
        self.start = written;
    }

    /// Returns how many bytes of the first FPDU are not written yet.
    pub(super) fn rest(&self, written: u64) -> Option<usize> {
        self.ends.front().map(|end| (end - written) as usize)
    }

    /// Returns the length of the next record, or `None` if no FPDU waits or the window has no room for the first
    /// one.
    pub(super) fn record(&self, written: u64, run: Option<usize>, room: usize) -> Option<usize> {
        let first = self.rest(written)?;
        // A write ended within this FPDU. The rest of the FPDU is a record of its own, so that the next record
        // begins with an FPDU.
        if written > self.start {
            return Some(first);
        }
        if first > room {
            return None;
        }
        let Some(run) = run.filter(|&run| run == first) else {
            return Some(first);
        };
        let limit = room.min(MAX_RECORD_BYTES).max(first);
        let (mut begin, mut length) = (written, 0);
        for &end in self.ends.iter().take(MAX_RECORD_FPDUS) {
            let fpdu = (end - begin) as usize;
            if fpdu > run || length + fpdu > limit {
                break;
            }
            (begin, length) = (end, length + fpdu);
            if fpdu < run {
                break;
            }
        }
        Some(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u32 = 1448;

    fn state(bytes: u32, acknowledged: u64) -> TcpState {
        TcpState {
            segment: SEGMENT,
            window: Some(Window {
                bytes,
                acknowledged,
                all_acknowledged: false,
                out_of_order: 0,
            }),
        }
    }

    /// Returns the state of a connection whose count of acknowledged bytes starts at 25.
    fn started(runs: bool) -> Alignment {
        let mut alignment = Alignment::new(runs);
        let mut state = state(65_536, 25);
        if let Some(window) = &mut state.window {
            window.all_acknowledged = true;
        }
        alignment.cut(state, 0, Instant::now);
        alignment
    }

    fn clock_is_not_read() -> Instant {
        panic!("the clock is read")
    }

    //= MPA-35 test
    #[test]
    fn the_size_of_a_segment_decides_whether_fpdus_form_runs() {
        for (segment, runs, max_fpdu, run) in [
            (1448, true, 1448, Some(1448)),
            (1460, true, 1460, Some(1460)),
            (8948, true, 8948, Some(8948)),
            (1428, true, 1428, Some(1428)),
            // FPDUs consist of words of four bytes.
            (1447, true, 1408, None),
            (1446, true, 1408, None),
            (65_483, true, 65_440, None),
            // FPDUs that do not form runs leave room for 36 bytes of options each.
            (1448, false, 1408, None),
            // No FPDU is longer than MPA allows, and none is too short for its headers.
            (65_540, true, 65_504, None),
            (64, true, 136, None),
        ] {
            let mut alignment = started(runs);
            alignment.largest_window = 1 << 20;
            let state = TcpState {
                segment,
                ..state(1 << 20, 25)
            };
            let cut = alignment.cut(state, 0, clock_is_not_read);
            let expected = (max_fpdu, run);
            assert_eq!((cut.max_fpdu, cut.run), expected, "{segment}, {runs}");
        }
    }

    #[test]
    fn without_a_report_of_the_window_each_fpdu_is_a_record() {
        let state = TcpState {
            segment: SEGMENT,
            window: None,
        };
        let cut = Alignment::new(true).cut(state, 1 << 40, clock_is_not_read);
        let expected = Cut {
            max_fpdu: 1408,
            run: None,
            room: usize::MAX,
        };
        assert_eq!(cut, expected);
    }

    #[test]
    fn room_is_what_remains_of_the_window() {
        let mut alignment = started(true);
        for (window, acknowledged, written, room) in [
            (65_536, 25, 0, 65_536),
            (65_536, 25, 65_000, 536),
            (65_536, 25, 65_536, 0),
            // The peer acknowledged, and its window moved or became smaller by as much.
            (65_536, 25 + 40_000, 65_536, 40_000),
            (25_536, 25 + 40_000, 65_536, 0),
            (0, 25 + 65_536, 65_536, 0),
            (100, 25 + 65_536, 65_536, 100),
            // A peer that reduces its window below the offered size leaves no room.
            (0, 25 + 40_000, 65_536, 0),
            (u32::MAX, 25 + 65_536, 65_536, u32::MAX as usize),
        ] {
            let cut = alignment.cut(state(window, acknowledged), written, clock_is_not_read);
            let case = (window, acknowledged, written);
            assert_eq!(cut.room, room, "{case:?}");
        }
    }

    #[test]
    fn the_count_of_acknowledged_bytes_starts_when_all_are_acknowledged() {
        let mut alignment = Alignment::new(true);
        // The startup frame is not acknowledged yet.
        let cut = alignment.cut(state(60_000, 1), 0, clock_is_not_read);
        assert_eq!(cut.room, 30_000);
        let mut later = state(60_000, 4029);
        if let Some(window) = &mut later.window {
            window.all_acknowledged = true;
        }
        assert_eq!(alignment.cut(later, 4000, clock_is_not_read).room, 60_000);
        let cut = alignment.cut(state(60_000, 4029), 14_000, clock_is_not_read);
        assert_eq!(cut.room, 50_000);
    }

    #[test]
    fn fpdus_fit_the_window_of_a_peer_whose_window_is_always_small() {
        let mut alignment = Alignment::new(true);
        let cut = alignment.cut(state(1000, 0), 0, clock_is_not_read);
        assert_eq!((cut.max_fpdu, cut.run), (1000, None));
        assert!(alignment.exceeds_windows(1001) && !alignment.exceeds_windows(1000));
        // The largest window so far decides, even if the window is small now.
        let cut = alignment.cut(state(60_000, 0), 0, clock_is_not_read);
        assert_eq!((cut.max_fpdu, cut.run), (1448, Some(1448)));
        let cut = alignment.cut(state(1000, 0), 0, clock_is_not_read);
        assert_eq!((cut.max_fpdu, cut.run), (1448, Some(1448)));
        assert!(!alignment.exceeds_windows(1448));
    }

    #[test]
    fn fpdus_leave_room_for_options_for_a_second_after_a_segment_out_of_order() {
        let mut alignment = started(true);
        let begin = Instant::now();
        let mut run_at = |out_of_order, milliseconds| {
            let mut state = state(60_000, 25);
            if let Some(window) = &mut state.window {
                window.out_of_order = out_of_order;
            }
            let cut = alignment.cut(state, 0, || begin + Duration::from_millis(milliseconds));
            (cut.max_fpdu, cut.run)
        };
        let (runs, single) = ((1448, Some(1448)), (1408, None));
        assert_eq!(run_at(0, 0), runs);
        assert_eq!(run_at(1, 10), single);
        assert_eq!(run_at(1, 900), single);
        assert_eq!(run_at(5, 1000), single);
        assert_eq!(run_at(5, 1999), single);
        assert_eq!(run_at(5, 2000), runs);
        assert_eq!(run_at(5, 2001), runs);
        assert_eq!(run_at(6, 3000), single);
    }

    /// Returns the lengths of the records of FPDUs of these lengths, where each write takes all of its
    /// record.
    fn records(fpdus: &[usize], run: Option<usize>, room: usize) -> Vec<usize> {
        let mut ends = FpduEnds::default();
        let mut end = 0;
        for &fpdu in fpdus {
            end += fpdu as u64;
            ends.push(end);
        }
        let (mut written, mut records) = (0, Vec::new());
        while let Some(record) = ends.record(written, run, room) {
            written += record as u64;
            ends.advance(written);
            records.push(record);
        }
        records
    }

    //= MPA-28 test
    #[test]
    fn a_record_is_a_run_of_full_fpdus_and_at_most_one_shorter_one_at_its_end() {
        const ALL: usize = usize::MAX;
        let full = Some(1000);
        for (fpdus, run, room, expected) in [
            (&[][..], full, ALL, &[][..]),
            (&[1000], full, ALL, &[1000]),
            (&[1000, 1000, 1000], full, ALL, &[3000]),
            (&[1000, 1000, 24], full, ALL, &[2024]),
            // An FPDU after a shorter FPDU begins a new record.
            (
                &[1000, 24, 1000, 1000, 24, 24],
                full,
                ALL,
                &[1024, 2024, 24],
            ),
            (&[24, 28, 1000], full, ALL, &[24, 28, 1000]),
            // These FPDUs were made for longer or shorter segments.
            (
                &[1000, 1200, 1200, 1000],
                full,
                ALL,
                &[1000, 1200, 1200, 1000],
            ),
            (&[800, 800, 1000, 1000], full, ALL, &[800, 800, 2000]),
            // FPDUs form no runs.
            (&[1000, 1000, 24], None, ALL, &[1000, 1000, 24]),
            // The window has no room for the rest.
            (&[1000, 1000, 1000, 24], full, 2999, &[2000, 1024]),
            (&[1000, 1000, 24], full, 2023, &[2000, 24]),
            (&[1000, 1000], full, 999, &[]),
            (&[24, 1000], full, 999, &[24]),
        ] {
            let case = format!("{fpdus:?}, {run:?}, {room}");
            assert_eq!(records(fpdus, run, room), expected, "{case}");
        }
        // Records have a longest length, and a largest number of FPDUs.
        let bytes = records(&[8948; 60], Some(8948), ALL);
        assert_eq!(bytes, [29 * 8948, 29 * 8948, 2 * 8948]);
        let count = records(&[136; 250], Some(136), ALL);
        assert_eq!(count, [120 * 136, 120 * 136, 10 * 136]);
    }

    #[test]
    fn after_a_partial_write_the_rest_of_the_fpdu_is_a_record() {
        let mut ends = FpduEnds::default();
        for end in [1000, 2000, 3000, 4000, 4024] {
            ends.push(end);
        }
        let run = Some(1000);
        assert_eq!(ends.record(0, run, usize::MAX), Some(4024));
        ends.advance(1300);
        // The start of the FPDU is already written, so the rest is written without regard to the window.
        assert_eq!(ends.rest(1300), Some(700));
        assert_eq!(ends.record(1300, run, 0), Some(700));
        ends.advance(2000);
        assert_eq!(ends.record(2000, run, usize::MAX), Some(2024));
        // The write ended between two FPDUs.
        ends.advance(3000);
        assert_eq!(ends.record(3000, run, usize::MAX), Some(1024));
        ends.clear(3000);
        assert_eq!(ends.record(3000, run, usize::MAX), None);
        ends.push(3024);
        assert_eq!(ends.record(3000, run, usize::MAX), Some(24));
    }
}
