//! Where the commands of a session come from: a script, stdin, or the listener.

use std::{io::stdin, thread};

use anyhow::{Result, anyhow};
use tokio::sync::mpsc;

use super::{
    command::{Script, Step, Unparsed, parse, wrong},
    lines::Lines,
};
use crate::report;

/// The source of the commands of a session.
pub(super) enum Commands {
    Script(Script),
    Typed(Typed),
    /// Commands from stdin that the listener passes to this session.
    Sent(mpsc::UnboundedReceiver<Step>),
}

impl Commands {
    /// Returns the next command; `None` if there are no more.
    ///
    /// # Errors
    /// A line that cannot be parsed and was not typed on a terminal.
    pub(super) async fn next(&mut self, lines: &Lines) -> Result<Option<Step>> {
        match self {
            Self::Script(script) => Ok(script.next()),
            Self::Typed(typed) => typed.next(lines).await,
            Self::Sent(steps) => Ok(steps.recv().await),
        }
    }
}

/// Commands from stdin.
pub(super) struct Typed {
    lines: mpsc::Receiver<String>,
    is_terminal: bool,
    /// Commands of the last line that have not been run.
    steps: std::vec::IntoIter<Step>,
    /// Number of lines read.
    count: usize,
}

impl Typed {
    pub(super) fn new(is_terminal: bool) -> Self {
        let (sender, lines) = mpsc::channel(1);
        // Reading a terminal cannot be interrupted: this thread ends with the process.
        thread::spawn(move || {
            for line in stdin().lines() {
                let Ok(line) = line else {
                    return;
                };
                if sender.blocking_send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            lines,
            is_terminal,
            steps: Vec::new().into_iter(),
            count: 0,
        }
    }

    /// Returns the next command; `None` at the end of stdin. On a terminal, a line that cannot be
    /// parsed is reported, and the user can correct it.
    ///
    /// # Errors
    /// Elsewhere, a line that cannot be parsed.
    pub(super) async fn next(&mut self, lines: &Lines) -> Result<Option<Step>> {
        loop {
            if let Some(step) = self.steps.next() {
                return Ok(Some(step));
            }
            let Some(line) = self.lines.recv().await else {
                return Ok(None);
            };
            lines.typed();
            self.count += 1;
            match parse(&line) {
                Ok(steps) => self.steps = steps.into_iter(),
                Err(Unparsed::Help(text)) => lines.help(&text),
                Err(Unparsed::Wrong(what)) if self.is_terminal => report::error(&anyhow!(what)),
                Err(Unparsed::Wrong(what)) => return Err(wrong("stdin", self.count - 1, &what)),
            }
            lines.prompt();
        }
    }
}
