//! Text for users: messages of peers and of the system, and numbers with their units.

use std::{fmt::Display, io, time::Duration};

/// Returns text of a peer, or the name of a file, without the characters that change a terminal's state, line or
/// direction.
pub fn printable(text: &str) -> String {
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

/// Returns a text without the numbers of errors, as in ` (os error 2)`, which the standard library adds.
pub fn without_codes(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + part.split_once(')').map_or(part, |(_, rest)| rest)
    })
}

/// Returns an error of the operating system without its number and its capital letter.
pub fn plain(error: &impl Display) -> String {
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
/// program recognises some errors by their text. `None` on other systems, whose text is the same as this.
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

/// Returns a count as `1 file` or `2 files`.
pub fn plural(number: u64, what: &str) -> String {
    let s = if number == 1 { "" } else { "s" };
    format!("{} {what}{s}", count(number))
}

/// Returns a number as `12,345`.
pub fn count(number: u64) -> String {
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
pub fn bytes(bytes: u64) -> String {
    scaled(
        bytes as f64,
        1024.0,
        &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"],
    )
}

/// Returns a part as `3.20 MiB of 64.0 MiB`.
pub fn part(done: u64, whole: u64) -> String {
    format!("{} of {}", bytes(done), bytes(whole))
}

/// Returns a rate as `750 MiB/s`, or `-` for no time.
pub fn rate(bytes: u64, time: Duration) -> String {
    match per_second(bytes, time) {
        Some(rate) if bytes > 0 => {
            let units = ["B/s", "KiB/s", "MiB/s", "GiB/s", "TiB/s"];
            scaled(rate.round(), 1024.0, &units)
        }
        _ => "-".into(),
    }
}

/// Returns bytes per second; `None` for no time.
pub fn per_second(bytes: u64, time: Duration) -> Option<f64> {
    (!time.is_zero()).then(|| bytes as f64 / time.as_secs_f64())
}

/// Returns a time as `43.1 µs`, `1.20 ms`, `2.35 s` or `3 min 20 s`.
pub fn time(time: Duration) -> String {
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
    fn errors_have_no_numbers() {
        for (text, without) in [
            ("no file (os error 2)", "no file"),
            ("a (os error 2), b (os error 13): c", "a, b: c"),
            ("a (b)", "a (b)"),
            ("", ""),
        ] {
            assert_eq!(without_codes(text), without);
        }
    }

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
