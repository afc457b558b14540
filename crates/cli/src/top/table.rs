//! The table as plain text, for scripts and reports.

use super::{
    columns::{COLUMNS, Order, summary},
    rates::Rated,
};
use crate::report::Report;

/// Prints the lines above the table, and the table with all columns.
pub(super) fn print(report: Report, rated: &Rated) {
    for line in summary(rated) {
        report.line(line);
    }
    if rated.status.connections.is_empty() {
        return;
    }
    report.line("");
    report.line(
        report
            .style
            .bold(&line(COLUMNS.iter().map(|column| column.header.into()))),
    );
    for row in Order::default().rows(rated) {
        report.line(line(COLUMNS.iter().map(|column| (column.cell)(&row))));
    }
}

fn line(cells: impl Iterator<Item = String>) -> String {
    let mut line = String::new();
    for (column, cell) in COLUMNS.iter().zip(cells) {
        let width = column.width;
        if line.is_empty() {
            line = format!("{cell:<width$}");
        } else {
            line += &format!(" {cell:>width$}");
        }
    }
    line
}
