//! Output: lines for people, and JSON objects for programs.

use std::{
    env,
    fmt::Display,
    io::{self, IsTerminal},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Result, anyhow};
use clap::builder::StyledStr;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use jiff::Timestamp;
use serde::Serialize;
use smbdirect_transport::Setting;
pub(crate) use smbdirect_transport::{
    NegotiatedReport, VERSION,
    text::{bytes, count, per_second, plain, plural, printable, rate, time, without_codes},
};

use crate::{
    failure::{self, Failure},
    streams::{self, Stream},
};

/// The target of log lines that say how a connection ended. They are logged at every verbosity.
pub(crate) const CONNECTIONS: &str = "smbdirect::connections";

/// Prints results to stdout, as lines or as JSON.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    json: bool,
    is_journal: bool,
    pub(crate) style: Style,
}

/// Colours text, if stdout shows colours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    colour: bool,
}

/// The first failure to write to stdout. Commands continue, and the exit status reports it.
static FAILURE: Mutex<Option<io::Error>> = Mutex::new(None);

impl Report {
    pub(crate) fn new(json: bool) -> Self {
        set_json(json);
        let colour = !json && io::stdout().is_terminal() && colour_wanted();
        Self {
            json,
            is_journal: !json && crate::systemd::logs_to_journal(),
            style: Style { colour },
        }
    }

    /// Returns whether people read the output in the journal, where a log line with fields takes the place of
    /// a printed line.
    pub(crate) const fn is_journal(self) -> bool {
        self.is_journal
    }

    /// Prints a line for people.
    pub(crate) fn line(&self, line: impl Display) {
        if !self.json {
            print(&format!("{line}\n"));
        }
    }

    /// Prints an object for programs; `event` is its kind.
    pub(crate) fn event(&self, event: &impl Serialize) {
        if self.json {
            print_object(event);
        }
    }

    /// Returns a progress bar on stderr for `length` bytes, which is invisible unless stderr is a
    /// terminal.
    pub(crate) fn progress(&self, length: u64, name: &str) -> ProgressBar {
        let bar = ProgressBar::with_draw_target(Some(length), ProgressDrawTarget::hidden());
        if self.json || !io::stderr().is_terminal() {
            return bar;
        }
        let template = if colour_wanted() {
            "{msg} {bar:30.cyan/dim} {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  {eta}"
        } else {
            "{msg} {bar:30} {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  {eta}"
        };
        let style = ProgressStyle::with_template(template).expect("the template is correct");
        // A dropped bar leaves nothing on the screen.
        let bar = bar.with_finish(ProgressFinish::AndClear);
        bar.set_style(style.progress_chars("━╸─"));
        bar.set_message(printable(name));
        bar.set_draw_target(ProgressDrawTarget::stderr());
        bar
    }

    /// Returns a progress bar on stderr for `length` steps, which is invisible unless stderr is a
    /// terminal.
    pub(crate) fn steps(&self, length: u64) -> ProgressBar {
        let bar = self.progress(length, "");
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {eta}  {msg}");
        bar.set_style(style.expect("the template is correct"));
        bar
    }

    /// Returns a spinner on stderr for work of unknown length, with the name of its step. It is
    /// invisible unless stderr is a terminal.
    pub(crate) fn spinner(&self) -> ProgressBar {
        let bar = self.progress(0, "");
        let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}");
        bar.set_style(style.expect("the template is correct"));
        bar.enable_steady_tick(Duration::from_millis(100));
        bar
    }
}

/// Returns the time now in RFC 3339, in UTC.
pub(crate) fn now() -> String {
    format!("{:.6}", Timestamp::now())
}

/// An object as it is printed: an event, and when it was printed.
#[derive(Serialize)]
struct Stamped<'a, E> {
    #[serde(flatten)]
    event: &'a E,
    /// RFC 3339, in UTC.
    time: String,
    /// The version of the command, in the first object of a run.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'static str>,
}

/// Whether the command prints JSON, and failures too.
static IS_JSON: AtomicBool = AtomicBool::new(false);
/// Whether the first object was printed.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

/// Sets whether [`error`] prints failures as objects, too.
pub(crate) fn set_json(json: bool) {
    IS_JSON.store(json, Ordering::Relaxed);
}

fn print_object(event: &impl Serialize) {
    let is_first = !HAS_BEGUN.swap(true, Ordering::Relaxed);
    let object = Stamped {
        event,
        time: now(),
        version: is_first.then_some(env!("CARGO_PKG_VERSION")),
    };
    let object = serde_json::to_string(&object).expect("keys are strings");
    print(&format!("{object}\n"));
}

fn print(text: &str) {
    if let Err(error) = streams::write(Stream::Stdout, text.as_bytes()) {
        FAILURE
            .lock()
            .expect("no thread panics while it holds the lock")
            .get_or_insert(error);
    }
}

/// Prints help or a version.
///
/// # Errors
/// It cannot be written.
pub(crate) fn help(text: &StyledStr) -> Result<()> {
    if io::stdout().is_terminal() && colour_wanted() {
        print(&text.ansi().to_string());
    } else {
        print(&text.to_string());
    }
    written()
}

/// Checks that all output could be written. It is not a failure if the reader of a pipe has closed its end.
///
/// # Errors
/// The first failure.
pub(crate) fn written() -> Result<()> {
    match FAILURE
        .lock()
        .expect("no thread panics while it holds the lock")
        .take()
    {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(anyhow!("cannot write to stdout: {error}"))
        }
        _ => Ok(()),
    }
}

/// Returns whether the reader of stdout has closed its end.
pub(crate) fn is_unread() -> bool {
    FAILURE
        .lock()
        .expect("no thread panics while it holds the lock")
        .is_some()
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Error {
        message: &'a str,
        kind: failure::Kind,
    },
    LinesLost {
        lines: u64,
    },
}

/// Prints an error to stderr, in one line, and with --json as an object to stdout.
pub(crate) fn error(error: &anyhow::Error) {
    let text = error_line(error);
    if IS_JSON.load(Ordering::Relaxed) {
        error_object(&text, failure::kind(error));
    }
}

/// Prints an error to stderr only, in one line, because another object has it. Returns its text.
pub(crate) fn error_line(error: &anyhow::Error) -> String {
    let style = Style {
        colour: io::stderr().is_terminal() && colour_wanted(),
    };
    let mut text = printable(&without_codes(&format!("{error:#}")));
    let failure: Option<&Failure> = error.downcast_ref();
    let inner = failure.map_or(error, |failure| &failure.error);
    let of_transport: Option<&smbdirect_transport::Error> = inner.downcast_ref();
    text += match of_transport.and_then(smbdirect_transport::Error::setting) {
        Some(Setting::ConnectTimeout) => " (--connect-timeout)",
        Some(Setting::Kind) => " (--transport)",
        Some(Setting::UdpPort) => " (--udp-port)",
        None => "",
    };
    let line = format!("{} {text}\n", style.bad("error:"));
    // If stderr fails too, the error cannot be reported.
    let _ = streams::write(Stream::Stderr, line.as_bytes());
    text
}

/// Reports, on the stream itself, that lines of it were lost because nothing read them in time.
pub(crate) fn lines_lost(stream: Stream, lines: u64) {
    let text = format!(
        "{} of this output lost: nothing read them in time",
        match lines {
            1 => "1 line was".into(),
            lines => format!("{} lines were", count(lines)),
        }
    );
    match stream {
        Stream::Stdout if IS_JSON.load(Ordering::Relaxed) => {
            print_object(&Event::LinesLost { lines });
        }
        Stream::Stdout => print(&format!("{text}\n")),
        _ => tracing::warn!(lines, "{text}"),
    }
}

/// Prints a failure for programs.
pub(crate) fn error_object(message: &str, kind: failure::Kind) {
    print_object(&Event::Error { message, kind });
}

/// Returns whether colours are wanted (no-color.org), and the console of Windows, if there is one, shows them.
pub(crate) fn colour_wanted() -> bool {
    env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && env::var_os("TERM").is_none_or(|term| term != "dumb")
        && console_has_colours()
}

/// Older consoles of Windows show escape sequences as text until the program asks for their meaning.
#[cfg(windows)]
fn console_has_colours() -> bool {
    anstyle_query::windows::enable_ansi_colors().unwrap_or(true)
}

#[cfg(not(windows))]
const fn console_has_colours() -> bool {
    true
}

impl Style {
    pub(crate) fn good(self, text: &str) -> String {
        self.paint("32", text)
    }

    pub(crate) fn bad(self, text: &str) -> String {
        self.paint("1;31", text)
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.into()
        }
    }
}
