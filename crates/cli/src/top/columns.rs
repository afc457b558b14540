//! The columns of the table, the lines above it, and the order of its rows.

use std::time::Duration;

use super::{
    rates::{Rate, Rated},
    waits::{WaitsFor, worst},
};
use smbdirect_gateway::observe::ConnectionStatus;

use crate::report;

/// The text of a cell.
type Cell = fn(&Row<'_>) -> String;

/// A row: a connection.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) one: &'a ConnectionStatus,
    pub(super) rate: &'a Rate,
    pub(super) waits_for: WaitsFor,
}

/// A column: its two header lines, its least width, and its text.
pub(super) struct Column {
    pub(super) header: &'static str,
    pub(super) width: usize,
    /// Columns with a higher number are left out first if the screen is too narrow.
    pub(super) rank: u8,
    pub(super) cell: Cell,
}

const fn column(header: &'static str, width: usize, rank: u8, cell: Cell) -> Column {
    Column {
        header,
        width,
        rank,
        cell,
    }
}

/// The columns, from left to right. The first one is aligned to the left.
pub(super) const COLUMNS: &[Column] = &[
    column("PEER", 21, 0, |row| row.one.peer.to_string()),
    column("AGE", 9, 6, |row| age(row.one.seconds)),
    column("SENT/s", 8, 3, |row| number(row.rate.messages_sent)),
    column("RECV/s", 8, 3, |row| number(row.rate.messages_received)),
    column("OUT", 10, 1, |row| bytes(row.rate.bytes_sent)),
    column("IN", 10, 1, |row| bytes(row.rate.bytes_received)),
    column("READ", 10, 1, |row| bytes(row.rate.bytes_read)),
    column("WRITE", 10, 1, |row| bytes(row.rate.bytes_written)),
    column("CREDITS", 8, 2, |row| {
        format!("{}/{}", row.one.send_credits, row.one.send_credit_target)
    }),
    column("GRANTED", 8, 5, |row| {
        format!("{}/{}", row.one.granted_credits, row.one.receive_credit_max)
    }),
    column("STALLS/s", 8, 4, |row| number(row.rate.credit_stalls)),
    column("WAIT", 5, 2, |row| {
        format!("{:.0}%", row.rate.waiting * 100.0)
    }),
    column("WAITS FOR", 12, 3, |row| row.waits_for.name().into()),
    column("RTT", 8, 6, |row| {
        let trip = row.one.traffic.last_round_trip_seconds;
        trip.map_or_else(|| "-".into(), |seconds| report::time(duration(seconds)))
    }),
    column("REGIONS", 7, 7, |row| {
        row.one.traffic.memory_regions.to_string()
    }),
];

/// Returns the columns that fit in `width`, if the first one needs at least `peer`: without the whole address, the rows of
/// two peers would be the same.
pub(super) fn fitting(width: usize, peer: usize) -> Vec<&'static Column> {
    let mut columns: Vec<_> = COLUMNS.iter().collect();
    let more = peer.saturating_sub(COLUMNS[0].width);
    let needed = |columns: &[&Column]| {
        let widths = columns.iter().map(|one| one.width + 1);
        widths.sum::<usize>() + more
    };
    while needed(&columns) > width + 1
        && let Some(most) = columns
            .iter()
            .map(|one| one.rank)
            .filter(|&rank| rank > 0)
            .max()
    {
        let last = columns.iter().rposition(|one| one.rank == most);
        columns.remove(last.expect("a column has this rank"));
    }
    columns
}

/// The order of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Order {
    #[default]
    Bytes,
    Stalls,
    Age,
}

impl Order {
    pub(super) const fn next(self) -> Self {
        match self {
            Self::Bytes => Self::Stalls,
            Self::Stalls => Self::Age,
            Self::Age => Self::Bytes,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Stalls => "waits",
            Self::Age => "age",
        }
    }

    /// Returns the connections and their rates, the first rows first.
    pub(super) fn rows(self, rated: &Rated) -> Vec<Row<'_>> {
        let connections = rated.status.connections.iter();
        let row = |(one, rate)| Row {
            one,
            rate,
            waits_for: WaitsFor::of(one, rate, rated.busiest_thread).0,
        };
        let mut rows: Vec<_> = connections.zip(&rated.connection_rates).map(row).collect();
        let key = |row: &Row<'_>| match self {
            Self::Bytes => row.rate.bytes(),
            Self::Stalls => row.rate.waiting,
            Self::Age => row.one.seconds,
        };
        rows.sort_by(|one, other| key(other).total_cmp(&key(one)));
        rows
    }
}

/// Returns the lines above the table.
pub(super) fn summary(rated: &Rated) -> [String; 5] {
    let (status, rates) = (&rated.status, &rated.rates);
    let open = status.connections.len() as u64;
    [
        format!(
            "{}  up {}  version {}",
            report::printable(&status.title),
            report::time(duration(status.seconds.trunc())),
            report::printable(&status.server_version),
        ),
        format!(
            "{} open, {} so far, {} failed",
            report::plural(open, "connection"),
            report::count(status.established),
            report::count(status.failed),
        ),
        format!(
            "messages {}/s out {}, {}/s in {}  RDMA read {}, write {}",
            number(rates.messages_sent),
            bytes(rates.bytes_sent),
            number(rates.messages_received),
            bytes(rates.bytes_received),
            bytes(rates.bytes_read),
            bytes(rates.bytes_written),
        ),
        format!(
            "stalls: no send credit {}/s (on average {:.1} connections waiting)  send queue full {}/s  \
             registrations {}/s, {} now",
            number(rates.credit_stalls),
            rates.waiting,
            number(rates.send_queue_stalls),
            number(rates.registrations),
            status.total.memory_regions,
        ),
        worst(rated),
    ]
}

fn number(rate: f64) -> String {
    match rate {
        0.0 => "0".into(),
        rate if rate < 9.95 => format!("{rate:.1}"),
        rate => report::count(rate.round() as u64),
    }
}

fn bytes(rate: f64) -> String {
    match rate.round() as u64 {
        0 => "-".into(),
        rate => format!("{}/s", report::bytes(rate)),
    }
}

/// Converts a number of seconds from another program; an invalid number counts as zero.
fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}

fn age(seconds: f64) -> String {
    let seconds = duration(seconds).as_secs();
    match seconds {
        0..=59 => format!("{seconds}s"),
        60..=3599 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..=86_399 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::rates::{
            Rates,
            tests::{connection, status},
        },
        *,
    };

    #[test]
    fn a_narrow_screen_keeps_the_most_important_columns() {
        let headers = |width| {
            let columns = fitting(width, 0);
            columns
                .iter()
                .map(|column| column.header)
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(fitting(200, 0).len(), COLUMNS.len());
        assert_eq!(headers(80), "PEER OUT IN READ WRITE CREDITS WAIT");
        assert_eq!(headers(5), "PEER");
        for width in 22..200 {
            let used: usize = fitting(width, 0)
                .iter()
                .map(|column| column.width + 1)
                .sum();
            assert!(used <= width + 1);
        }
    }

    #[test]
    fn rows_are_in_the_order_asked_for() {
        let connections = vec![connection(1, 10.0, 100), connection(2, 5.0, 9000)];
        let rated = Rates::default().next(status(20.0, connections));
        let ids = |order: Order| {
            let rows = order.rows(&rated);
            rows.iter().map(|row| row.one.id).collect::<Vec<_>>()
        };
        assert_eq!(ids(Order::Bytes), [2, 1]);
        assert_eq!(ids(Order::Age), [1, 2]);
        assert_eq!(Order::Age.next(), Order::Bytes);
    }

    #[test]
    fn numbers_and_ages() {
        assert_eq!(
            [0.0, 0.04, 9.94, 9.96, 1234.5].map(number).join(" "),
            "0 0.0 9.9 10 1,235"
        );
        assert_eq!(
            [0.0, 1.0, 2048.0].map(bytes).join(" "),
            "- 1 B/s 2.00 KiB/s"
        );
        let ages = [-1.0, f64::NAN, 59.0, 61.0, 3661.0, 90_000.0]
            .map(age)
            .join(" ");
        assert_eq!(ages, "0s 0s 59s 1m01s 1h01m 1d01h");
    }
}
