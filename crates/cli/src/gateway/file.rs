//! `--config FILE`: a TOML file with the names and the values of the options.
//!
//! Each key is the name of an option without the leading dashes, and its value is checked as the option checks it.
//! So the file and the command line accept the same values. Options on the command line take precedence.

use std::{
    collections::BTreeMap,
    error::Error as _,
    ffi::OsString,
    fs::{self, File},
    io::{self, Read},
    path::PathBuf,
};

use anyhow::{Error, Result};
use clap::{
    Arg, ArgAction, Args, Command, FromArgMatches,
    error::{ContextKind, ContextValue},
    parser::ValueSource,
};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use crate::{
    failure::UsageError,
    options::usage,
    report::{plain, printable},
};

/// Options that make no sense in the file.
const NOT_IN_FILES: [&str; 4] = ["config", "check-config", "help", "version"];

/// Maximum length of a file, so that a path that was given by mistake does not fill the memory.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The values of each key, as the command line has them.
pub(super) type Given = BTreeMap<String, Vec<String>>;

/// A file of settings, and the command line that goes with it.
#[derive(Debug)]
pub(super) struct SettingsFile {
    path: PathBuf,
    /// The arguments after the name of the command.
    arguments: Vec<OsString>,
}

/// What a file says.
#[derive(Debug)]
pub(super) struct Loaded<T> {
    /// The options of the file and the command line together.
    pub(super) options: T,
    /// The settings of the file, without those that the command line has.
    pub(super) given: Given,
    /// The line of each key.
    lines: BTreeMap<String, usize>,
    file: String,
}

impl SettingsFile {
    pub(super) const fn new(path: PathBuf, arguments: Vec<OsString>) -> Self {
        Self { path, arguments }
    }

    /// Returns the path without control characters.
    pub(super) fn name(&self) -> String {
        printable(&self.path.to_string_lossy())
    }

    /// Reads the file.
    ///
    /// # Errors
    /// The file cannot be read, or a line is wrong; the error names the line and the reason.
    pub(super) fn load<T: Args + FromArgMatches>(&self) -> Result<Loaded<T>> {
        let command = T::augment_args(Command::new("smbdirect"));
        let matches = command
            .clone()
            .try_get_matches_from(with_name(&self.arguments))
            .map_err(|error| usage(first_line(&error)))?;
        let (mut given, lines) = self.read(&command)?;
        let is_on_command_line = |key: &str| {
            let id = argument(&command, key).map(Arg::get_id);
            let source = id.and_then(|id| matches.value_source(id.as_str()));
            source == Some(ValueSource::CommandLine)
        };
        given.retain(|key, _| !is_on_command_line(key));
        // An address of the file takes no place of one that is missing before it.
        let addresses = command.get_positionals().filter_map(name);
        let missing = addresses
            .take_while(|key| !given.contains_key(*key))
            .find(|key| !is_on_command_line(key));
        if let Some(missing) = missing {
            return Err(usage(format!(
                "{}: {missing} is missing; give an address",
                self.name()
            )));
        }
        Ok(Loaded {
            options: self.options(&given)?,
            given,
            lines,
            file: self.name(),
        })
    }

    /// Returns the options of these settings and the command line together.
    ///
    /// # Errors
    /// Options that do not go together.
    pub(super) fn options<T: Args + FromArgMatches>(&self, given: &Given) -> Result<T> {
        let command = T::augment_args(Command::new("smbdirect"));
        let merged = merged(&command, given, &self.arguments);
        command
            .try_get_matches_from(with_name(&merged))
            .and_then(|matches| T::from_arg_matches(&matches))
            .map_err(|error| usage(format!("{}: {}", self.name(), first_line(&error))))
    }

    /// Reads and checks each setting of the file, and returns the lines of the keys as well.
    fn read(&self, command: &Command) -> Result<(Given, BTreeMap<String, usize>)> {
        let text = self.text()?;
        let line_of = |span: usize| {
            let before = text.as_bytes().iter().take(span);
            before.filter(|&&byte| byte == b'\n').count() + 1
        };
        let at = |line: usize, what: &str| usage(format!("{}, line {line}: {what}", self.name()));
        let table = DeTable::parse(&text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            at(line_of(start), error.message())
        })?;
        let (mut given, mut lines) = (BTreeMap::new(), BTreeMap::new());
        for (key, value) in table.get_ref() {
            let line = line_of(key.span().start);
            let key = key.get_ref().as_ref();
            let Some(option) = argument(command, key) else {
                return Err(at(line, &unknown(command, key)));
            };
            let values = values(option, value)
                .and_then(|values| check(option, &values).map(|()| values))
                .map_err(|what| at(line, &format!("{}: {what}", printable(key))))?;
            let own_name = name(option)
                .expect("the option was found by a name")
                .to_owned();
            if given.insert(own_name.clone(), values).is_some() {
                return Err(at(line, &format!("{key}: {own_name} is given twice")));
            }
            lines.insert(own_name, line);
        }
        Ok((given, lines))
    }

    /// Reads the text. Only a regular file is opened, because others may have no end or wait for a writer.
    fn text(&self) -> Result<String> {
        let fault = |what: &str| usage(format!("{}: {what}", self.name()));
        let failed = |error: io::Error| fault(&plain(&error));
        if !fs::metadata(&self.path).map_err(failed)?.is_file() {
            return Err(fault("it is not a regular file"));
        }
        let mut bytes = Vec::new();
        let file = File::open(&self.path).map_err(failed)?;
        let length = file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes);
        if length.map_err(failed)? as u64 > MAX_FILE_BYTES {
            return Err(fault(
                "it is longer than 1 MiB, so it is not a settings file",
            ));
        }
        String::from_utf8(bytes).map_err(|error| {
            let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
            usage(format!("{}, line {line}: it is not UTF-8", self.name()))
        })
    }
}

impl<T> Loaded<T> {
    /// Adds the file and, if a usage error is about one of its settings, the line.
    pub(super) fn locate(&self, error: Error) -> Error {
        if !error.is::<UsageError>() {
            return error;
        }
        let text = error.to_string();
        let found = self.lines.iter().filter_map(|(key, line)| {
            let position = position(&text, key)?;
            Some((position, line))
        });
        usage(match found.min() {
            Some((_, line)) => format!("{}, line {line}: {text}", self.file),
            None => format!("{}: {text}", self.file),
        })
    }
}

/// Returns where a message names an option, as `--key` or as `key` in front.
fn position(text: &str, key: &str) -> Option<usize> {
    let is_end = |rest: &str| !rest.starts_with(|c: char| c == '-' || c.is_ascii_alphanumeric());
    if text.strip_prefix(key).is_some_and(is_end) {
        return Some(0);
    }
    let option = format!("--{key}");
    let mut found = text.match_indices(&option);
    found
        .find(|(start, option)| is_end(&text[start + option.len()..]))
        .map(|(start, _)| start)
}

fn with_name(arguments: &[OsString]) -> impl Iterator<Item = OsString> {
    [OsString::from("smbdirect")]
        .into_iter()
        .chain(arguments.iter().cloned())
}

/// Returns the option or argument that a key names, also by an alias.
fn argument<'a>(command: &'a Command, key: &str) -> Option<&'a Arg> {
    let mut arguments = command.get_arguments();
    arguments.find(|argument| {
        let aliases = argument.get_all_aliases().unwrap_or_default();
        let is_named = name(argument) == Some(key) || aliases.contains(&key);
        is_named && !NOT_IN_FILES.contains(&key)
    })
}

/// Returns the key of an option or argument.
fn name(argument: &Arg) -> Option<&str> {
    if argument.is_positional() {
        Some(argument.get_id().as_str())
    } else {
        argument.get_long()
    }
}

/// Returns an error for a key that is not the name of an option, with the most similar name.
fn unknown(command: &Command, key: &str) -> String {
    let names = command.get_arguments().filter_map(name);
    let names = names.filter(|name| !NOT_IN_FILES.contains(name));
    let near = |name: &str| strsim::jaro(&key.replace('_', "-"), name);
    let nearest = names.max_by(|&one, &other| near(one).total_cmp(&near(other)));
    let key = printable(key);
    match nearest {
        Some(nearest) if near(nearest) > 0.7 => {
            format!("unknown setting `{key}`; did you mean `{nearest}`?")
        }
        _ => format!("unknown setting `{key}`; `smbdirect gateway --help` lists them"),
    }
}

/// Returns the values of a key as the command line has them. A flag that is on has no value.
fn values(option: &Arg, value: &Spanned<DeValue<'_>>) -> Result<Vec<String>, String> {
    match (option.get_action(), value.get_ref()) {
        (ArgAction::SetTrue, DeValue::Boolean(on)) => Ok(vec![on.to_string()]),
        (ArgAction::SetTrue, _) => Err("expected true or false".into()),
        (ArgAction::Append, DeValue::Array(list)) => {
            list.iter().map(|value| scalar(value.get_ref())).collect()
        }
        (_, value) => Ok(vec![scalar(value)?]),
    }
}

fn scalar(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        _ => Err("expected a string or a number".into()),
    }
}

/// Returns the arguments of one setting.
fn as_arguments(option: &Arg, values: &[String]) -> Vec<OsString> {
    let long = option.get_long().unwrap_or_default();
    match option.get_action() {
        ArgAction::SetTrue if values[0] == "true" => vec![format!("--{long}").into()],
        ArgAction::SetTrue => Vec::new(),
        ArgAction::Count => {
            let times = values[0].parse().unwrap_or(0).min(MAX_COUNT);
            vec![format!("--{long}").into(); times]
        }
        _ => values
            .iter()
            .map(|value| format!("--{long}={value}").into())
            .collect(),
    }
}

/// Maximum number of times that a flag can be given.
const MAX_COUNT: usize = 9;

/// Checks the values of one setting by its option.
fn check(option: &Arg, values: &[String]) -> Result<(), String> {
    if matches!(option.get_action(), ArgAction::Count) {
        let number = values[0]
            .parse()
            .ok()
            .filter(|&number: &usize| number <= MAX_COUNT);
        return number
            .map(|_| ())
            .ok_or_else(|| format!("expected a number, at most {MAX_COUNT}"));
    }
    if option.is_positional() && values.iter().any(|value| value.starts_with('-')) {
        return Err("an address does not begin with `-`".into());
    }
    // Only the value parser, so that an error can come only from the value.
    let command = Command::new("smbdirect")
        .no_binary_name(true)
        .disable_help_flag(true);
    let alone = Arg::new("value")
        .long("value")
        .action(ArgAction::Append)
        .value_parser(option.get_value_parser().clone());
    let arguments = values.iter().map(|value| format!("--value={value}"));
    match option.get_action() {
        ArgAction::SetTrue => Ok(()),
        _ => command
            .arg(alone)
            .try_get_matches_from(arguments)
            .map(|_| ())
            .map_err(|e| why(&e)),
    }
}

/// Returns why a value is wrong, without the option.
fn why(error: &clap::Error) -> String {
    if let Some(source) = error.source() {
        return source.to_string();
    }
    match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(values)) => format!("expected one of {}", values.join(", ")),
        _ => first_line(error),
    }
}

/// Returns the first line of an error of the command line, without its label.
fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

/// Returns the command line with the settings of the file in front. The addresses are complete, whether the file
/// or the command line has them.
fn merged(
    command: &Command,
    given: &BTreeMap<String, Vec<String>>,
    arguments: &[OsString],
) -> Vec<OsString> {
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let positionals: Vec<_> = command.get_positionals().filter_map(name).collect();
    let mut all_before = true;
    for &key in &positionals {
        match given.get(key) {
            Some(values) if all_before => before.extend(values.iter().map(OsString::from)),
            Some(values) => after.extend(values.iter().map(OsString::from)),
            None => all_before = false,
        }
    }
    for (key, values) in given {
        let option = argument(command, key).expect("each key was looked up");
        if !option.is_positional() {
            before.extend(as_arguments(option, values));
        }
    }
    [before, arguments.to_vec(), after].concat()
}

#[cfg(test)]
mod tests {
    use clap::{ValueEnum, value_parser};

    use super::*;
    use crate::options::{Address, seconds};

    #[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
    enum Colour {
        Red,
        Green,
    }

    #[derive(Debug, Args)]
    struct Options {
        #[arg(required_unless_present = "config")]
        listen: Option<Address>,
        #[arg(required_unless_present = "config")]
        upstream: Option<Address>,
        #[arg(long)]
        config: Option<PathBuf>,
        #[arg(long, default_value = "5", value_parser = seconds, visible_alias = "limit")]
        time_limit: std::time::Duration,
        #[arg(long, value_enum)]
        colour: Option<Colour>,
        #[arg(long)]
        json: bool,
        #[arg(long, value_parser = value_parser!(u16).range(1..))]
        credits: Vec<u16>,
        #[arg(short, long, action = ArgAction::Count)]
        verbose: u8,
    }

    fn file(text: &str, arguments: &[&str]) -> (tempfile::TempDir, SettingsFile) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gateway.toml");
        fs::write(&path, text).unwrap();
        let config = ["--config", "x"].iter().chain(arguments);
        let arguments = config.map(OsString::from).collect();
        (directory, SettingsFile::new(path, arguments))
    }

    fn loaded(text: &str, arguments: &[&str]) -> Result<Options> {
        let (_directory, file) = file(text, arguments);
        Ok(file.load()?.options)
    }

    const FILE: &str = "# Both ends.\nlisten = ':5445'\nupstream = 'nas'\ntime-limit = 0.25\n\
                        colour = 'green'\njson = true\ncredits = [1, 2]\nverbose = 2\n";

    #[test]
    fn each_key_is_an_option() {
        let options = loaded(FILE, &[]).unwrap();
        assert_eq!(options.listen.unwrap().to_string(), ":5445");
        assert_eq!(options.upstream.unwrap().to_string(), "nas");
        assert_eq!(options.time_limit.as_millis(), 250);
        assert_eq!(options.colour, Some(Colour::Green));
        assert!(options.json);
        assert_eq!((options.credits, options.verbose), (vec![1, 2], 2));
        assert!(options.config.is_some());
    }

    #[test]
    fn the_command_line_takes_precedence() {
        let arguments = ["--time-limit", "7", ":1", "--credits=9", "-v"];
        let options = loaded(FILE, &arguments).unwrap();
        assert_eq!(options.listen.unwrap().to_string(), ":1");
        assert_eq!(
            options.upstream.unwrap().to_string(),
            "nas",
            "from the file"
        );
        assert_eq!(options.time_limit.as_secs(), 7);
        assert_eq!((options.credits, options.verbose), (vec![9], 1));
        let options = loaded(FILE, &[":1", "other"]).unwrap();
        assert_eq!(options.upstream.unwrap().to_string(), "other");
    }

    #[test]
    fn a_fault_names_its_line_and_its_cure() {
        for (line, what) in [
            (
                "time-limits = 1",
                "line 2: unknown setting `time-limits`; did you mean `time-limit`?",
            ),
            (
                "time_limit = 1",
                "line 2: unknown setting `time_limit`; did you mean `time-limit`?",
            ),
            (
                "zzz = 1",
                "line 2: unknown setting `zzz`; `smbdirect gateway --help` lists them",
            ),
            ("config = 'x'", "line 2: unknown setting `config`"),
            (
                "time-limit = 0",
                "line 2: time-limit: it must be more than zero",
            ),
            (
                "time-limit = true",
                "line 2: time-limit: expected a string or a number",
            ),
            (
                "colour = 'blue'",
                "line 2: colour: expected one of red, green",
            ),
            ("credits = [1, 0]", "line 2: credits: 0 is not in 1..=65535"),
            ("json = 1", "line 2: json: expected true or false"),
            (
                "verbose = 100",
                "line 2: verbose: expected a number, at most 9",
            ),
            (
                "listen = '-x'",
                "line 2: listen: an address does not begin with `-`",
            ),
            (
                "listen = 'a b'",
                "line 2: listen: an address is HOST[:PORT]",
            ),
            ("json =", "line 2: "),
            ("json = true\njson = true", "line 3: duplicate key"),
            (
                "[gateway]\njson = true",
                "line 2: unknown setting `gateway`",
            ),
        ] {
            let error = loaded(&format!("# x\n{line}\n"), &[":1", "nas"]).unwrap_err();
            let text = format!("{error:#}");
            assert!(
                text.contains(&format!("gateway.toml, {what}")),
                "{line}: {text}"
            );
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let (directory, file) = file("", &[]);
        drop(directory);
        let error = file.load::<Options>().unwrap_err().to_string();
        assert!(error.contains("gateway.toml: no such file"), "{error}");
    }

    #[test]
    fn the_command_line_hides_settings_of_the_file() {
        let (_directory, file) = file(FILE, &["-v"]);
        let loaded = file.load::<Options>().unwrap();
        let keys: Vec<_> = loaded.given.keys().map(String::as_str).collect();
        let all = [
            "colour",
            "credits",
            "json",
            "listen",
            "time-limit",
            "upstream",
        ];
        assert_eq!(keys, all);
    }

    #[test]
    fn an_alias_is_the_same_setting() {
        let options = loaded("listen = ':1'\nupstream = 'nas'\nlimit = 3", &[]).unwrap();
        assert_eq!(options.time_limit.as_secs(), 3);
        let twice = loaded("limit = 3\ntime-limit = 4", &[":1", "nas"]).unwrap_err();
        assert!(
            twice.to_string().contains("time-limit is given twice"),
            "{twice}"
        );
    }

    #[test]
    fn errors_about_settings_name_their_lines() {
        let (_directory, file) = file("# x\nlisten = ':1'\nupstream = 'nas'\ntime-limit = 3", &[]);
        let loaded = file.load::<Options>().unwrap();
        for (text, line) in [
            ("--time-limit is too long", ", line 4: --time-limit"),
            ("--json needs --time-limit", ", line 4: --json"),
            ("upstream: it has no host", ", line 3: upstream"),
            ("--time-limits are gone", ": --time-limits"),
            ("upstreams are gone", ": upstreams"),
        ] {
            let located = loaded.locate(usage(text)).to_string();
            assert!(
                located.contains(&format!("gateway.toml{line}")),
                "{located}"
            );
        }
    }

    #[test]
    fn only_a_short_regular_file_with_text_is_read() {
        let (directory, mut file) = file("", &[]);
        let path = file.path.clone();
        let fault = |file: &SettingsFile| file.load::<Options>().unwrap_err().to_string();
        fs::write(&path, b"listen = ':1'\n# f\xfcr\n").unwrap();
        assert!(fault(&file).contains("gateway.toml, line 2: it is not UTF-8"));
        fs::write(&path, vec![b'#'; MAX_FILE_BYTES as usize + 1]).unwrap();
        assert!(fault(&file).contains("longer than 1 MiB"));
        file.path = directory.path().to_owned();
        assert!(fault(&file).contains("not a regular file"));
    }
}
