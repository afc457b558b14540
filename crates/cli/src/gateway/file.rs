//! `--config FILE`: a TOML file with the names and the values of the options.
//!
//! Each key is the name of an option without the leading dashes, and its value is checked as the option checks it.
//! So the file and the command line accept the same values. Options on the command line take precedence.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::{self, File},
    io::{self, Read},
    path::PathBuf,
};

use anyhow::{Error, Result};
use clap::{Arg, Args, Command, FromArgMatches, parser::ValueSource};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::keys::{argument, as_arguments, check, first_line, name, unknown, values};
use crate::{
    failure::UsageError,
    options::usage,
    report::{plain, printable},
};

/// The key of the tables of services.
const SERVICE: &str = "service";
/// The name of a service without a table.
pub(super) const ONLY_SERVICE: &str = "gateway";
/// Settings of the process, which no service has for itself.
pub(super) const OF_PROCESS: [&str; 5] = ["control", "json", "metrics", "pcap", "verbose"];

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
    /// At least one service.
    pub(super) services: Vec<OfService<T>>,
    /// Whether the file names services, by tables `[[service]]`.
    pub(super) has_tables: bool,
}

/// What a file says about a service.
#[derive(Debug)]
pub(super) struct OfService<T> {
    pub(super) name: String,
    /// The options of the file and the command line together.
    pub(super) options: T,
    /// The settings of the file, without those that the command line has.
    pub(super) given: Given,
    /// The line of each key.
    lines: Lines,
    file: String,
}

/// The line of each key.
type Lines = BTreeMap<String, usize>;

/// The settings of a table, and their lines.
#[derive(Clone, Debug, Default)]
struct Table {
    given: Given,
    lines: Lines,
}

/// The settings of a file as it has them: those of all services, and those of each.
#[derive(Debug)]
struct Tables {
    defaults: Table,
    /// The names and the lines of the services.
    services: Vec<(String, usize, Table)>,
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
        let is_on_command_line = |key: &str| {
            let id = argument(&command, key).map(Arg::get_id);
            let source = id.and_then(|id| matches.value_source(id.as_str()));
            source == Some(ValueSource::CommandLine)
        };
        let Tables { defaults, services } = self.read(&command)?;
        let mut addresses = command.get_positionals().filter_map(name);
        if let Some((_, line, _)) = services.first()
            && let Some(address) = addresses.find(|address| is_on_command_line(address))
        {
            return Err(self.fault(*line, &format!(
                "{address} cannot be given on the command line, because the file has tables `[[service]]`"
            )));
        }
        let has_tables = !services.is_empty();
        let services = if has_tables {
            let of_service = |(name, _, table): (_, _, Table)| {
                let mut all = defaults.clone();
                all.given.extend(table.given);
                all.lines.extend(table.lines);
                self.service(&command, name, all, &is_on_command_line)
            };
            services
                .into_iter()
                .map(of_service)
                .collect::<Result<_>>()?
        } else {
            let name = ONLY_SERVICE.to_owned();
            vec![self.service(&command, name, defaults, &is_on_command_line)?]
        };
        Ok(Loaded {
            services,
            has_tables,
        })
    }

    /// Returns the settings of one service.
    fn service<T: Args + FromArgMatches>(
        &self,
        command: &Command,
        service: String,
        Table { mut given, lines }: Table,
        is_on_command_line: &impl Fn(&str) -> bool,
    ) -> Result<OfService<T>> {
        given.retain(|key, _| !is_on_command_line(key));
        // An address of the file takes no place of one that is missing before it.
        let missing = command
            .get_positionals()
            .filter_map(name)
            .take_while(|key| !given.contains_key(*key))
            .find(|key| !is_on_command_line(key));
        if let Some(missing) = missing {
            let of = match service.as_str() {
                ONLY_SERVICE => String::new(),
                name => format!(" of service {name}"),
            };
            return Err(usage(format!(
                "{}: {missing}{of} is missing; give an address",
                self.name()
            )));
        }
        Ok(OfService {
            options: self.options(&given)?,
            name: service,
            given,
            lines,
            file: self.name(),
        })
    }

    fn fault(&self, line: usize, what: &str) -> Error {
        usage(format!("{}, line {line}: {what}", self.name()))
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

    /// Reads and checks each setting of the file.
    fn read(&self, command: &Command) -> Result<Tables> {
        let text = self.text()?;
        let line_of = |span: usize| {
            let before = text.as_bytes().iter().take(span);
            before.filter(|&&byte| byte == b'\n').count() + 1
        };
        let table = DeTable::parse(&text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            self.fault(line_of(start), error.message())
        })?;
        let (mut defaults, mut services) = (Table::default(), Vec::<(String, usize, Table)>::new());
        for (key, value) in table.get_ref() {
            let line = line_of(key.span().start);
            if key.get_ref() != SERVICE {
                self.read_setting(command, key.get_ref(), value, line, &mut defaults)?;
                continue;
            }
            let tables = match value.get_ref() {
                DeValue::Array(tables) => &tables[..],
                _ => &[],
            };
            let wrong = || self.fault(line, "expected tables `[[service]]`");
            if tables.is_empty() {
                return Err(wrong());
            }
            for table in tables {
                let DeValue::Table(settings) = table.get_ref() else {
                    return Err(wrong());
                };
                let service =
                    self.read_service(command, settings, line_of(table.span().start), &line_of)?;
                if services.iter().any(|(name, ..)| *name == service.0) {
                    let what = format!("another service has the name {}", service.0);
                    return Err(self.fault(service.1, &what));
                }
                services.push(service);
            }
        }
        Ok(Tables { defaults, services })
    }

    /// Reads a table `[[service]]`, and returns its name and its line as well.
    fn read_service(
        &self,
        command: &Command,
        settings: &DeTable<'_>,
        line: usize,
        line_of: &impl Fn(usize) -> usize,
    ) -> Result<(String, usize, Table)> {
        let (mut service, mut table) = (None, Table::default());
        for (key, value) in settings {
            let at = line_of(key.span().start);
            let key = key.get_ref().as_ref();
            if key == "name" {
                service =
                    Some(service_name(value.get_ref()).map_err(|what| self.fault(at, &what))?);
            } else if OF_PROCESS.contains(&key) {
                let what = format!("{key} is for all services; set it before the tables");
                return Err(self.fault(at, &what));
            } else {
                self.read_setting(command, key, value, at, &mut table)?;
            }
        }
        let service = service.ok_or_else(|| {
            self.fault(line, "the name of the service is missing: name = \"...\"")
        })?;
        Ok((service, line, table))
    }

    /// Reads and checks one setting.
    fn read_setting(
        &self,
        command: &Command,
        key: &str,
        value: &Spanned<DeValue<'_>>,
        line: usize,
        table: &mut Table,
    ) -> Result<()> {
        let Some(option) = argument(command, key) else {
            return Err(self.fault(line, &unknown(command, key)));
        };
        let values = values(option, value)
            .and_then(|values| check(option, &values).map(|()| values))
            .map_err(|what| self.fault(line, &format!("{}: {what}", printable(key))))?;
        let own_name = name(option)
            .expect("the option was found by a name")
            .to_owned();
        if table.given.insert(own_name.clone(), values).is_some() {
            return Err(self.fault(line, &format!("{key}: {own_name} is given twice")));
        }
        table.lines.insert(own_name, line);
        Ok(())
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

impl<T> OfService<T> {
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

/// Returns the name of a service, which is a label of figures and a part of paths.
fn service_name(value: &DeValue<'_>) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match value {
        DeValue::String(name)
            if (1..=MAX_NAME_BYTES).contains(&name.len()) && name.chars().all(is_plain) =>
        {
            Ok(name.to_string())
        }
        _ => Err(format!(
            "name: expected at most {MAX_NAME_BYTES} letters, digits, `-`, `_` and `.`"
        )),
    }
}

/// Longest name of a service.
const MAX_NAME_BYTES: usize = 64;

fn with_name(arguments: &[OsString]) -> impl Iterator<Item = OsString> {
    [OsString::from("smbdirect")]
        .into_iter()
        .chain(arguments.iter().cloned())
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
    use clap::{ArgAction, ValueEnum, value_parser};

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
        Ok(file.load()?.services.remove(0).options)
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
            ("service = 1", "line 2: expected tables `[[service]]`"),
            (
                "[[service]]\ntime-limit = 1",
                "line 2: the name of the service is missing",
            ),
            (
                "[[service]]\nname = 'a/b'",
                "line 3: name: expected at most 64 letters",
            ),
            (
                "[[service]]\nname = 'a'\njson = true",
                "line 4: json is for all services",
            ),
            (
                "[[service]]\nname = 'a'\n[[service]]\nname = 'a'",
                "line 4: another service has the name a",
            ),
            (
                "[[service]]\nname = 'a'",
                "line 2: listen cannot be given on the command line",
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
        let loaded = file.load::<Options>().unwrap().services.remove(0);
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
    fn services_take_what_they_do_not_have_from_all() {
        let text = "time-limit = 7\nupstream = 'nas'\n[[service]]\nname = 'a'\nlisten = ':1'\n\
                    [[service]]\nname = 'b'\nlisten = ':2'\nupstream = 'other'\ntime-limit = 8\n";
        let (_directory, file) = file(text, &[]);
        let loaded = file.load::<Options>().unwrap();
        assert!(loaded.has_tables);
        let of = |service: &OfService<Options>| {
            let upstream = service.options.upstream.clone().unwrap().to_string();
            (
                service.name.clone(),
                upstream,
                service.options.time_limit.as_secs(),
            )
        };
        let all: Vec<_> = loaded.services.iter().map(of).collect();
        let (a, b) = (
            ("a".into(), "nas".into(), 7),
            ("b".into(), "other".into(), 8),
        );
        assert_eq!(all, [a, b]);
        let fault = loaded.services[1].locate(usage("--time-limit is too long"));
        assert!(fault.to_string().contains("line 10: "), "{fault}");
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
        let loaded = file.load::<Options>().unwrap().services.remove(0);
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
