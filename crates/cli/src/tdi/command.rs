//! The command language of a session: one command per line, or several with `;` between them.
//!
//! A command that begins with `#` is a comment. Text in quotes of either kind is one word, and may
//! contain `;`.

use std::{collections::VecDeque, fs, path::PathBuf, time::Duration};

use anyhow::{Result, anyhow};
use clap::{ArgGroup, Args, Parser, Subcommand, error::ErrorKind};
use smbdirect::tdi::Status;

use crate::{
    options::{UsageError, seconds, seconds_or_zero, size},
    report,
};

#[derive(Debug, Parser)]
#[command(
    multicall = true,
    subcommand_value_name = "COMMAND",
    max_term_width = 100
)]
#[command(subcommand_help_heading = "Commands")]
struct Line {
    #[command(subcommand)]
    command: Command,
}

/// A command of a session.
#[derive(Clone, Debug, Subcommand)]
pub(super) enum Command {
    /// TDI_SEND: a TSDU, or a part of one
    Send(SendCommand),
    /// Write: the same as `send` without flags
    Write {
        /// Text to write
        #[arg(required = true)]
        text: Vec<String>,
    },
    /// TDI_RECEIVE: receive into a buffer, up to the end of a TSDU; nothing is indicated before
    Receive {
        /// Size of the buffer; 0 resumes indications that were stopped
        #[arg(value_parser = length)]
        bytes: usize,
        /// TDI_RECEIVE_PEEK: return what is here now and keep it
        #[arg(long)]
        peek: bool,
    },
    /// Resume indications that `hold` has stopped
    Resume,
    /// Answer indications: take all, or this many bytes of each
    Take {
        /// Most bytes to take
        #[arg(value_parser = length)]
        bytes: Option<usize>,
    },
    /// Answer indications: accept nothing, and hold the data until it is received
    #[command(visible_alias = "refuse")]
    Hold,
    /// Answer indications: return a receive request of this many bytes
    Request {
        /// Size of its buffer
        #[arg(value_parser = length)]
        bytes: usize,
    },
    /// Answer indications: take all, and send each TSDU back
    Echo,
    /// Lend whole TSDUs instead of showing them in pieces
    Chained {
        /// From now on
        #[arg(value_enum)]
        switch: Switch,
    },
    /// Discard a TSDU of which only parts were sent
    Discard {
        /// The TSDU of the expedited sends
        #[arg(short, long)]
        expedited: bool,
    },
    /// Cancel a request
    Cancel {
        /// Number of the request
        #[arg(value_name = "ID", value_parser = number)]
        id: u64,
    },
    /// Send one message without data, as a send of no bytes does elsewhere
    Poke,
    /// TDI_QUERY_PROVIDER_INFO
    Info,
    /// TDI_QUERY_PROVIDER_STATISTICS
    Statistics,
    /// TDI_QUERY_CONNECTION_INFO, and the credits
    Connection,
    /// Pause
    Sleep {
        /// Length of the pause
        #[arg(value_name = "SECONDS", value_parser = seconds_or_zero)]
        time: Duration,
    },
    /// Wait until no request is pending
    Wait {
        /// Wait instead until this many send credits are available
        #[arg(long, value_name = "N", conflicts_with = "disconnected")]
        credits: Option<u16>,
        /// Wait instead until the peer has disconnected, which is then no failure
        #[arg(long)]
        disconnected: bool,
        /// Longest time to wait
        #[arg(long, value_name = "SECONDS", value_parser = seconds)]
        timeout: Option<Duration>,
    },
    /// TDI_DISCONNECT: immediately, or after all sends
    Disconnect {
        /// TDI_DISCONNECT_ABORT, the default
        #[arg(long, conflicts_with = "release")]
        abort: bool,
        /// TDI_DISCONNECT_RELEASE
        #[arg(long)]
        release: bool,
        /// When a release becomes an abort
        #[arg(long, value_name = "SECONDS", value_parser = seconds)]
        timeout: Option<Duration>,
    },
    /// TDI_CONNECT, to the same address again
    Connect {
        /// When to give up
        #[arg(long, value_name = "SECONDS", value_parser = seconds)]
        timeout: Option<Duration>,
    },
    /// TDI_ASSOCIATE_ADDRESS
    Associate,
    /// TDI_DISASSOCIATE_ADDRESS
    Disassociate,
    /// Run a command that must end with STATUS, as in `expect DEVICE_NOT_READY send ...`
    Expect {
        /// Name of a status, with or without STATUS_ before it
        #[arg(value_parser = status)]
        status: Status,
        /// The command
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// End the session
    #[command(visible_alias = "exit")]
    Quit,
}

impl Command {
    /// Returns whether the command says how indications are answered.
    pub(super) const fn is_answer(&self) -> bool {
        matches!(
            self,
            Self::Take { .. }
                | Self::Hold
                | Self::Request { .. }
                | Self::Echo
                | Self::Chained { .. }
        )
    }
}

/// The parameters of TdiBuildSend.
#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("data").required(true))]
pub(super) struct SendCommand {
    /// TDI_SEND_EXPEDITED: before normal sends that have not started
    #[arg(short, long)]
    pub(super) expedited: bool,
    /// TDI_SEND_PARTIAL: the TSDU continues with the next send
    #[arg(short, long)]
    pub(super) partial: bool,
    /// TDI_SEND_NON_BLOCKING: take what fits, and do not wait
    #[arg(short, long)]
    pub(super) non_blocking: bool,
    /// TDI_SEND_NO_RESPONSE_EXPECTED: the peer need not wait for data to answer with
    #[arg(short = 'r', long)]
    pub(super) no_response_expected: bool,
    /// TDI_SEND_AND_DISCONNECT, which is not supported
    #[arg(long, hide = true)]
    pub(super) and_disconnect: bool,
    /// Invalidate this token of the peer when the TSDU arrives
    #[arg(long, value_name = "TOKEN", value_parser = token)]
    pub(super) invalidate: Option<u32>,
    /// Time after which the send fails
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(super) timeout: Option<Duration>,
    /// Send this many bytes
    #[arg(short, long, group = "data", value_parser = length)]
    pub(super) size: Option<usize>,
    /// Send this text; `""` has no bytes
    #[arg(group = "data")]
    pub(super) text: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Switch {
    On,
    Off,
}

/// Most bytes of a buffer that a session allocates.
const MAX_BUFFER_BYTES: u32 = 64 << 20;

fn length(text: &str) -> Result<usize, String> {
    match size(text)? {
        bytes if bytes > MAX_BUFFER_BYTES => Err("the most is 64M".into()),
        bytes => Ok(bytes as usize),
    }
}

fn number(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix('#').unwrap_or(text);
    digits
        .parse()
        .map_err(|_| "requests have numbers, as in 3 or #3".into())
}

fn token(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "a token is a number of 32 bits, as in 77 or 0x4d".into())
}

fn status(text: &str) -> Result<Status, String> {
    let name = text.strip_prefix("STATUS_").unwrap_or(text);
    let severities = [0, 0x4000_0000, 0x8000_0000, 0xC000_0000];
    let mut all = (0..0x1000).flat_map(|code| severities.map(|severity| Status(severity | code)));
    all.find(|status| status.name() == Some(name))
        .ok_or_else(|| "no status of TDI has this name; DEVICE_NOT_READY is one".into())
}

/// A command, and the status that it must end with.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// The text of the command.
    pub(super) text: String,
    pub(super) command: Command,
    /// The status to end with; `None` means without an error.
    pub(super) expected: Option<Status>,
}

/// Why a line was not parsed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unparsed {
    /// The help that was asked for.
    Help(String),
    /// What is wrong, and what to do about it.
    Wrong(String),
}

/// Parses the commands in a line.
pub(super) fn parse(line: &str) -> Result<Vec<Step>, Unparsed> {
    let commands = split(line).map_err(Unparsed::Wrong)?;
    commands.into_iter().map(step).collect()
}

fn step((text, words): (String, Vec<String>)) -> Result<Step, Unparsed> {
    let command = parse_words(&words)?;
    let Command::Expect { status, command } = command else {
        return Ok(Step {
            text,
            command,
            expected: None,
        });
    };
    match parse_words(&command)? {
        Command::Expect { .. } => Err(Unparsed::Wrong("`expect` stands once".into())),
        command => Ok(Step {
            text,
            command,
            expected: Some(status),
        }),
    }
}

fn parse_words(words: &[String]) -> Result<Command, Unparsed> {
    let error = match Line::try_parse_from(words) {
        Ok(line) => return Ok(line.command),
        Err(error) => error,
    };
    let text = error.render().to_string();
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        return Err(Unparsed::Help(text.trim_end().to_owned()));
    }
    // The first paragraph is the error; usage and hints follow.
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    let words_of = paragraph.split_whitespace();
    let what = words_of.collect::<Vec<_>>().join(" ");
    let what = what.strip_prefix("error: ").unwrap_or(&what).to_owned();
    let cure = match error.kind() {
        ErrorKind::InvalidSubcommand => "`help` lists the commands".to_owned(),
        _ => format!("see `help {}`", words[0]),
    };
    Err(Unparsed::Wrong(format!("{what}; {cure}")))
}

/// Splits a line into its commands, each with its text and its words.
fn split(line: &str) -> Result<Vec<(String, Vec<String>)>, String> {
    let (mut commands, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let (mut quote, mut begin) = (None, 0);
    for (at, character) in line.char_indices() {
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (Some(_), _) => word.get_or_insert_default().push(character),
            (None, '"' | '\'') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, '#') if words.is_empty() && word.is_none() => return Ok(commands),
            (None, ';') => {
                words.extend(word.take());
                let words = std::mem::take(&mut words);
                if !words.is_empty() {
                    commands.push((line[begin..at].trim().to_owned(), words));
                }
                begin = at + 1;
            }
            (None, _) if character.is_whitespace() => words.extend(word.take()),
            (None, _) => word.get_or_insert_default().push(character),
        }
    }
    if let Some(quote) = quote {
        return Err(format!("a quote {quote} is not closed"));
    }
    words.extend(word.take());
    if !words.is_empty() {
        commands.push((line[begin..].trim().to_owned(), words));
    }
    Ok(commands)
}

const SESSION: &str = "Session";

/// Commands given on the command line.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ScriptOptions {
    /// Take the commands of the session from FILE instead of stdin
    #[arg(long, value_name = "FILE", help_heading = SESSION)]
    script: Option<PathBuf>,

    /// Run these commands of the session instead, with `;` between them
    #[arg(short, long, value_name = "COMMANDS", conflicts_with = "script")]
    #[arg(help_heading = SESSION)]
    execute: Option<String>,
}

impl ScriptOptions {
    /// Returns the first of these options that was given, if any.
    pub(crate) fn given(&self) -> Option<&'static str> {
        match self {
            Self {
                script: Some(_), ..
            } => Some("--script"),
            Self { execute, .. } => execute.as_ref().map(|_| "--execute"),
        }
    }

    /// Returns all commands, if they do not come from stdin.
    ///
    /// # Errors
    /// The file cannot be read; a usage error if a command cannot be parsed.
    pub(crate) fn load(&self) -> Result<Option<Script>> {
        if let Some(text) = &self.execute {
            return Script::parse("--execute", text).map(Some);
        }
        let Some(path) = &self.script else {
            return Ok(None);
        };
        let name = report::printable(&path.to_string_lossy());
        let text = fs::read_to_string(path).map_err(|error| {
            let why = report::plain(&error);
            anyhow!("cannot read {name}: {why}; give a file of commands")
        })?;
        Script::parse(&name, &text).map(Some)
    }
}

/// Commands that are all known before the first is run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script(VecDeque<Step>);

impl Script {
    fn parse(name: &str, text: &str) -> Result<Self> {
        let mut steps = VecDeque::new();
        for (number, line) in text.lines().enumerate() {
            match parse(line) {
                Ok(parsed) => steps.extend(parsed),
                Err(Unparsed::Help(_)) => {
                    return Err(wrong(name, number, "`help` is for people, not for scripts"));
                }
                Err(Unparsed::Wrong(what)) => return Err(wrong(name, number, &what)),
            }
        }
        Ok(Self(steps))
    }

    pub(super) fn next(&mut self) -> Option<Step> {
        self.0.pop_front()
    }

    /// Adds a command if it says how indications are answered. Returns whether it does.
    pub(super) fn push_answer(&mut self, step: Step) -> bool {
        let is_answer = step.command.is_answer();
        self.0.extend(is_answer.then_some(step));
        is_answer
    }

    /// Takes the next command if it says how indications are answered, which is possible before
    /// there is a connection.
    pub(super) fn next_answer(&mut self) -> Option<Step> {
        self.0.pop_front_if(|step| step.command.is_answer())
    }
}

/// Returns the usage error for a line, which is counted from 0.
pub(super) fn wrong(name: &str, number: usize, what: &str) -> anyhow::Error {
    UsageError(format!("{name}:{}: {what}", number + 1)).into()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn clap_accepts_the_language() {
        Line::command().debug_assert();
    }

    #[test]
    fn lines_are_split() {
        for (line, commands) in [
            ("", &[][..]),
            ("  ", &[]),
            ("# send a", &[]),
            (" poke ", &[&["poke"][..]]),
            ("poke;;resume; ", &[&["poke"], &["resume"]]),
            ("poke; # resume; poke", &[&["poke"]]),
            ("cancel #3", &[&["cancel", "#3"]]),
            ("send 'a; b' \"it's\"c", &[&["send", "a; b", "it'sc"]]),
            ("send \"\"", &[&["send", ""]]),
        ] {
            let split = split(line).unwrap();
            let words: Vec<_> = split.iter().map(|(_, words)| words.as_slice()).collect();
            assert_eq!(words, commands, "{line}");
        }
        let texts: Vec<_> = split("poke ; send 'a;b'").unwrap();
        assert_eq!(texts[0].0, "poke");
        assert_eq!(texts[1].0, "send 'a;b'");
        assert_eq!(split("send 'a").unwrap_err(), "a quote ' is not closed");
    }

    #[test]
    fn errors_are_one_line_with_a_cure() {
        for (line, says) in [
            (
                "sned x",
                "unrecognized subcommand 'sned'; `help` lists the commands",
            ),
            ("send", "were not provided"),
            ("send --size 5 text", "cannot be used with"),
            (
                "send --urgent x",
                "unexpected argument '--urgent' found; see `help send`",
            ),
            ("send --size 1T", "a size is a number of bytes"),
            ("send --size 65M", "the most is 64M"),
            ("send --timeout 0 x", "more than zero"),
            ("send --invalidate x x", "a token is a number"),
            ("receive", "were not provided"),
            ("cancel x", "requests have numbers"),
            ("chained maybe", "invalid value 'maybe'"),
            ("expect NOTHING poke", "no status of TDI has this name"),
            ("expect SUCCESS sned", "unrecognized subcommand"),
            ("expect SUCCESS expect SUCCESS poke", "`expect` stands once"),
            ("disconnect --abort --release", "cannot be used with"),
            ("send 'x", "is not closed"),
        ] {
            let Err(Unparsed::Wrong(what)) = parse(line) else {
                panic!("{line}");
            };
            assert!(what.contains(says), "{line}: {what}");
            assert!(!what.contains('\n'), "{what}");
        }
        for line in ["help", "help send", "send --help"] {
            assert!(matches!(parse(line), Err(Unparsed::Help(_))), "{line}");
        }
    }

    #[test]
    fn statuses_have_their_names() {
        for name in ["DEVICE_NOT_READY", "STATUS_DEVICE_NOT_READY"] {
            assert_eq!(status(name), Ok(Status::DEVICE_NOT_READY));
        }
        assert_eq!(status("SUCCESS"), Ok(Status::SUCCESS));
        assert_eq!(status("BUFFER_OVERFLOW"), Ok(Status::BUFFER_OVERFLOW));
        assert_eq!(status("RECEIVE_PARTIAL"), Ok(Status::RECEIVE_PARTIAL));
        let steps = parse("expect INVALID_PARAMETER send --partial -- --text").unwrap();
        assert_eq!(steps[0].expected, Some(Status::INVALID_PARAMETER));
        let Command::Send(send) = &steps[0].command else {
            panic!("{steps:?}");
        };
        assert!(send.partial && send.text == ["--text"]);
    }
}
