//! Output: lines for people, JSON objects for programs, and the units of both.

use std::{
    env,
    fmt::Display,
    io::{self, IsTerminal, Write},
    net::{IpAddr, SocketAddr},
    sync::Mutex,
    time::Duration,
};

use anyhow::{Result, anyhow};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};
use serde::Serialize;
use smbdirect::Negotiated;

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
            let object = serde_json::to_string(event).expect("keys are strings");
            print(&format!("{object}\n"));
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
}

impl Report {
    /// Returns a progress bar on stderr for `length` steps, which is invisible unless stderr is a
    /// terminal.
    pub(crate) fn steps(&self, length: u64) -> ProgressBar {
        let bar = self.progress(length, "");
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {eta}  {msg}");
        bar.set_style(style.expect("the template is correct"));
        bar
    }
}

impl Report {
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

fn print(text: &str) {
    let mut stdout = io::stdout().lock();
    let result = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    if let Err(error) = result {
        FAILURE
            .lock()
            .expect("no panic under it")
            .get_or_insert(error);
    }
}

/// Checks that all output could be written. A reader that has closed its end of a pipe is no
/// failure.
///
/// # Errors
/// The first failure.
pub(crate) fn written() -> Result<()> {
    match FAILURE.lock().expect("no panic under it").take() {
        Some(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(anyhow!("cannot write to stdout: {error}"))
        }
        _ => Ok(()),
    }
}

/// Returns whether the reader of stdout has closed its end.
pub(crate) fn is_unread() -> bool {
    FAILURE.lock().expect("no panic under it").is_some()
}

/// Prints an error to stderr, in one line.
pub(crate) fn error(error: &anyhow::Error) {
    let style = Style {
        colour: io::stderr().is_terminal() && colour_wanted(),
    };
    let text = printable(&format!("{error:#}"));
    // If stderr fails too, the error cannot be reported.
    let _ = writeln!(io::stderr(), "{} {text}", style.bad("error:"));
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

/// Returns text of a peer, or the name of a file, without the characters that change a terminal's state, line or
/// direction.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            // Bidi_Control of Unicode, and the separators of lines and paragraphs.
            '\u{061c}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}' => char::REPLACEMENT_CHARACTER,
            c if c.is_control() => char::REPLACEMENT_CHARACTER,
            c => c,
        })
        .collect()
}

/// Returns an error of the operating system without its number and its capital letter.
pub(crate) fn plain(error: &impl Display) -> String {
    let text = error.to_string();
    let (before, code) = match text.split_once(" (os error ") {
        Some((before, code)) => (
            before,
            code.split(')').next().and_then(|code| code.parse().ok()),
        ),
        None => (&*text, None),
    };
    // The error may follow words of this program, as in `listening: Permission denied`.
    let (doing, what) = before.rsplit_once(": ").unwrap_or(("", before));
    if let Some(what) = code.and_then(text_of_windows_error) {
        return [doing, what].join(if doing.is_empty() { "" } else { ": " });
    }
    let mut text = before
        .trim_end_matches(|c: char| c == '.' || c.is_whitespace())
        .to_owned();
    let is_word = !what.starts_with("OS ");
    if let Some(first) = text.get_mut(..1).filter(|_| is_word) {
        first.make_ascii_lowercase();
    }
    text
}

/// Returns the text of a common error of Windows. Windows itself words it in the language of the user, and this
/// program recognises some errors by their text. `None` on other systems, which word it as this does.
fn text_of_windows_error(code: i32) -> Option<&'static str> {
    use io::ErrorKind as Kind;
    if !cfg!(windows) {
        return None;
    }
    Some(match io::Error::from_raw_os_error(code).kind() {
        Kind::NotFound => "no such file or directory",
        Kind::PermissionDenied => "permission denied",
        Kind::AlreadyExists => "file exists",
        Kind::StorageFull => "no space left on device",
        Kind::AddrInUse => "address already in use",
        Kind::AddrNotAvailable => "cannot assign requested address",
        Kind::ConnectionRefused => "connection refused",
        Kind::ConnectionReset => "connection reset by peer",
        Kind::ConnectionAborted => "software caused connection abort",
        Kind::TimedOut => "connection timed out",
        Kind::HostUnreachable => "no route to host",
        Kind::NetworkUnreachable => "network is unreachable",
        _ => return None,
    })
}

/// The result of a negotiation, in JSON.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct NegotiatedReport {
    /// `1.0`
    version: &'static str,
    max_send_size: u32,
    max_receive_size: u32,
    max_fragmented_send_size: u32,
    max_fragmented_receive_size: u32,
    max_read_write_size: u32,
    keepalive_interval: f64,
}

impl From<Negotiated> for NegotiatedReport {
    fn from(negotiated: Negotiated) -> Self {
        Self {
            version: version(negotiated.protocol),
            max_send_size: negotiated.max_send_size,
            max_receive_size: negotiated.max_receive_size,
            max_fragmented_send_size: negotiated.max_fragmented_send_size,
            max_fragmented_receive_size: negotiated.max_fragmented_receive_size,
            max_read_write_size: negotiated.max_read_write_size,
            keepalive_interval: negotiated.keepalive_interval.as_secs_f64(),
        }
    }
}

/// The name of version 1.0, the only one.
pub(crate) fn version(protocol: u16) -> &'static str {
    match protocol {
        0x0100 => "1.0",
        _ => "unknown",
    }
}

/// Returns the IPv4 address of an IPv4 peer of an IPv6 listener; other addresses are unchanged.
pub(crate) fn peer(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        // An IPv6 address keeps its scope.
        IpAddr::V6(_) => address,
    }
}

/// Returns a count as `1 file` or `2 files`.
pub(crate) fn plural(number: u64, what: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{} {what}{s}", count(number))
}

/// Returns a number as `12,345`.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns bytes as `512 B`, `1.50 KiB` or `23.4 MiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    scaled(
        bytes as f64,
        1024.0,
        &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"],
    )
}

/// Returns a part as `3.20 MiB of 64.0 MiB`.
pub(crate) fn part(done: u64, whole: u64) -> String {
    format!("{} of {}", bytes(done), bytes(whole))
}

/// Returns a rate as `750 MiB/s`, or `-` for no time.
pub(crate) fn rate(bytes: u64, time: Duration) -> String {
    match per_second(bytes, time) {
        Some(rate) if bytes > 0 => {
            let units = ["B/s", "KiB/s", "MiB/s", "GiB/s", "TiB/s"];
            scaled(rate.round(), 1024.0, &units)
        }
        _ => "-".into(),
    }
}

/// Returns bytes per second; `None` for no time.
pub(crate) fn per_second(bytes: u64, time: Duration) -> Option<f64> {
    (!time.is_zero()).then(|| bytes as f64 / time.as_secs_f64())
}

/// Returns a time as `43.1 µs`, `1.20 ms`, `2.35 s` or `3 min 20 s`.
pub(crate) fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds >= 3600 {
        return format!("{} h {} min", seconds / 3600, seconds % 3600 / 60);
    }
    if seconds >= 60 {
        return format!("{} min {} s", seconds / 60, seconds % 60);
    }
    scaled(time.as_nanos() as f64, 1000.0, &["ns", "µs", "ms", "s"])
}

/// Returns a number with three digits and a unit.
fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    // 999.5 would be printed as 1000 of the smaller unit.
    while value >= step.min(999.5) && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = match value {
        _ if unit == 0 => 0,
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        for (number, text) in [
            (0, "0 B"),
            (1, "1 B"),
            (999, "999 B"),
            (1000, "0.98 KiB"),
            (1024, "1.00 KiB"),
            (131_072, "128 KiB"),
            (1 << 20, "1.00 MiB"),
            (24_536_678, "23.4 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(number), text);
        }
        for (nanoseconds, text) in [
            (0, "0 ns"),
            (43_100, "43.1 µs"),
            (999_600, "1.00 ms"),
            (1_204_000, "1.20 ms"),
            (2_350_000_000, "2.35 s"),
            (59_990_000_000, "60.0 s"),
            (200_000_000_000, "3 min 20 s"),
            (7_260_000_000_000, "2 h 1 min"),
        ] {
            assert_eq!(time(Duration::from_nanos(nanoseconds)), text);
        }
        assert_eq!(rate(1 << 20, Duration::from_millis(500)), "2.00 MiB/s");
        assert_eq!(rate(0, Duration::from_secs(1)), "-");
        assert_eq!(rate(1, Duration::ZERO), "-");
        assert_eq!(
            [count(0), count(999), count(1000), count(1_234_567)].join(" "),
            "0 999 1,000 1,234,567"
        );
    }

    #[test]
    fn control_characters_of_a_peer_are_not_printed() {
        assert_eq!(printable("a\x1b[2Jb\nc"), "a\u{fffd}[2Jb\u{fffd}c");
        let bidi = ('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}');
        let marks = [
            '\u{85}', '\u{9b}', '\u{200e}', '\u{200f}', '\u{2028}', '\u{2029}', '\u{61c}',
        ];
        for hostile in bidi.chain(marks) {
            assert_eq!(
                printable(&format!("a{hostile}b")),
                "a\u{fffd}b",
                "{hostile:?}"
            );
        }
        let letters = "Ünï \u{5d0}\u{628} \u{1f600}\u{200d}\u{2027}\u{202f}\u{2065}\u{206a}";
        assert_eq!(printable(letters), letters);
    }
}
