//! The table on a terminal, drawn in place.

use std::io;

use ratatui::{
    DefaultTerminal, Frame,
    layout::{Alignment, Constraint, Layout},
    style::{Color, Modifier, Style},
    text::{Line, Text},
    widgets::{Cell, Paragraph, Row, Table},
};

use super::{
    columns::{Column, Order, fitting, summary},
    rates::Rated,
};
use crate::report;

/// The terminal, in its alternate screen. Dropping it, or a panic, restores the terminal.
pub(super) struct Screen {
    /// `None` while it is given back.
    terminal: Option<DefaultTerminal>,
    /// Rows that are scrolled past.
    skipped: usize,
}

impl Screen {
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self {
            terminal: Some(ratatui::try_init()?),
            skipped: 0,
        })
    }

    pub(super) fn draw(
        &mut self,
        rated: &Rated,
        fault: Option<&str>,
        order: Order,
    ) -> io::Result<()> {
        let skipped = &mut self.skipped;
        if let Some(terminal) = &mut self.terminal {
            terminal.draw(|frame| draw(frame, rated, fault, order, skipped))?;
        }
        Ok(())
    }

    /// Gives the terminal back as it was, calls `away`, and takes it again: a shell may have changed it.
    pub(super) fn leave(&mut self, away: impl FnOnce()) -> io::Result<()> {
        self.close();
        away();
        self.terminal = Some(ratatui::try_init()?);
        Ok(())
    }

    fn close(&mut self) {
        // The terminal may be gone. The library would print that to it, and panic because it cannot, so its value is
        // dropped only if it has nothing more to do.
        if let Some(mut terminal) = self.terminal.take() {
            let is_there = terminal.show_cursor().is_ok();
            let _ = ratatui::try_restore();
            if !is_there {
                std::mem::forget(terminal);
            }
        }
    }

    pub(super) fn scroll(&mut self, lines: i32) {
        let distance = lines.unsigned_abs() as usize;
        self.skipped = match lines {
            0.. => self.skipped.saturating_add(distance),
            _ => self.skipped.saturating_sub(distance),
        };
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.close();
    }
}

/// Returns a style, or none if colours are not wanted.
fn style(style: Style) -> Style {
    if report::colour_wanted() {
        style
    } else {
        Style::new()
    }
}

fn draw(
    frame: &mut Frame<'_>,
    rated: &Rated,
    fault: Option<&str>,
    order: Order,
    skipped: &mut usize,
) {
    let areas = Layout::vertical([
        Constraint::Length(6),
        Constraint::Min(0),
        Constraint::Length(1),
    ]);
    let [above, middle, below] = areas.areas(frame.area());
    let [title, rest @ ..] = summary(rated);
    let bold = style(Style::new().add_modifier(Modifier::BOLD));
    let mut lines = vec![Line::styled(title, bold)];
    lines.extend(rest.into_iter().map(Line::from));
    frame.render_widget(Paragraph::new(Text::from(lines)), above);

    let rows = order.rows(rated);
    let peers = rows.iter().map(|row| row.one.peer.to_string().len());
    let columns = fitting(middle.width.into(), peers.max().unwrap_or(0));
    // One line is the header.
    let visible = usize::from(middle.height.saturating_sub(1));
    *skipped = (*skipped).min(rows.len().saturating_sub(visible));
    let header = Row::new(cells(&columns, |column| column.header.into()));
    let header = header.style(style(Style::new().add_modifier(Modifier::REVERSED)));
    let shown = rows.iter().skip(*skipped).take(visible);
    let body = shown.map(|row| {
        let cells = Row::new(cells(&columns, |column| (column.cell)(row)));
        if row.rate.waiting > 0.0 {
            cells.style(style(Style::new().fg(Color::Yellow)))
        } else {
            cells
        }
    });
    let widths = columns
        .iter()
        .enumerate()
        .map(|(index, column)| match index {
            0 => Constraint::Min(column.width as u16),
            _ => Constraint::Length(column.width as u16),
        });
    frame.render_widget(Table::new(body, widths).header(header), middle);

    let below_text = match fault {
        Some(fault) => {
            let text = report::printable(fault);
            Line::styled(text, style(Style::new().fg(Color::Red)))
        }
        None => {
            let text = format!("q quit  o order: {}  ↑↓ scroll", order.name());
            Line::styled(text, style(Style::new().add_modifier(Modifier::DIM)))
        }
    };
    frame.render_widget(below_text, below);
}

fn cells<'a>(
    columns: &[&Column],
    text: impl Fn(&Column) -> String,
) -> impl Iterator<Item = Cell<'a>> {
    let cells = columns.iter().enumerate().map(|(index, column)| {
        let alignment = match index {
            0 => Alignment::Left,
            _ => Alignment::Right,
        };
        Cell::from(Text::from(text(column)).alignment(alignment))
    });
    cells.collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};

    use super::{
        super::rates::{
            Rates,
            tests::{connection, status},
        },
        *,
    };
    use smbdirect_gateway::observe::ConnectionStatus;

    /// Returns the content of a screen of this size.
    fn drawn(
        size: (u16, u16),
        connections: u64,
        fault: Option<&str>,
        skipped: &mut usize,
    ) -> String {
        let connections = (1..=connections).map(|id| connection(id, 60.0, id * 10_000));
        let rated = Rates::default().next(status(3700.0, connections.collect()));
        let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
        terminal
            .draw(|frame| draw(frame, &rated, fault, Order::Bytes, skipped))
            .unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn the_screen_has_the_summary_the_rows_and_the_keys() {
        let text = drawn((170, 12), 2, None, &mut 0);
        for part in [
            "gateway 10.0.0.1:5445 to nas  up 1 h 1 min  version 1.2.3",
            "2 connections open, 7 so far, 1 failed",
            "PEER",
            "REGIONS",
            "10.0.0.2:40000",
            "333 B/s",
            "200/255",
            "q quit",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn the_rows_of_two_peers_differ_at_80_columns() {
        let long = "[2001:db8:aaaa:bbbb:cccc:dddd:eeee:1001]:40001";
        let peers = [
            long,
            &long.replace("40001", "40002"),
            &long.replace(":1001]", ":1002]"),
        ];
        let connections = peers.iter().map(|peer| ConnectionStatus {
            peer: peer.parse().unwrap(),
            ..connection(1, 60.0, 0)
        });
        let rated = Rates::default().next(status(3700.0, connections.collect()));
        let mut terminal = Terminal::new(TestBackend::new(80, 12)).unwrap();
        terminal
            .draw(|frame| draw(frame, &rated, None, Order::Bytes, &mut 0))
            .unwrap();
        let text = terminal.backend().to_string();
        for peer in peers {
            assert!(text.contains(peer), "{peer}: {text}");
        }
    }

    #[test]
    fn scrolling_ends_at_the_last_row() {
        let mut skipped = 1000;
        drawn((80, 12), 20, None, &mut skipped);
        // Seven lines are around the rows, and one is the header.
        assert_eq!(skipped, 20 - 4);
    }

    #[test]
    fn any_size_can_be_drawn() {
        for size in [(1, 1), (10, 3), (40, 7), (300, 100)] {
            drawn(size, 3, Some("no answer"), &mut 0);
        }
        assert!(drawn((80, 10), 1, Some("no answer\x1b"), &mut 0).contains("no answer\u{fffd}"));
    }
}
