//! The keys of a settings file: each is the name of an option, and its value is checked as the option checks it.

use std::{error::Error as _, ffi::OsString};

use clap::{
    Arg, ArgAction, Command,
    error::{ContextKind, ContextValue},
};
use toml::{Spanned, de::DeValue};

use crate::report::printable;

/// Options that make no sense in the file.
const NOT_IN_FILES: [&str; 4] = ["config", "check-config", "help", "version"];

/// Returns the option or argument that a key names, also by an alias.
pub(super) fn argument<'a>(command: &'a Command, key: &str) -> Option<&'a Arg> {
    let mut arguments = command.get_arguments();
    arguments.find(|argument| {
        let aliases = argument.get_all_aliases().unwrap_or_default();
        let is_named = name(argument) == Some(key) || aliases.contains(&key);
        is_named && !NOT_IN_FILES.contains(&key)
    })
}

/// Returns the key of an option or argument.
pub(super) fn name(argument: &Arg) -> Option<&str> {
    if argument.is_positional() {
        Some(argument.get_id().as_str())
    } else {
        argument.get_long()
    }
}

/// Returns an error for a key that is not the name of an option, with the most similar name.
pub(super) fn unknown(command: &Command, key: &str) -> String {
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
pub(super) fn values(option: &Arg, value: &Spanned<DeValue<'_>>) -> Result<Vec<String>, String> {
    match (option.get_action(), value.get_ref()) {
        (ArgAction::SetTrue, DeValue::Boolean(on)) => Ok(vec![on.to_string()]),
        (ArgAction::SetTrue, _) => Err("expected true or false".into()),
        (ArgAction::Append, DeValue::Array(list)) => {
            list.iter().map(|value| scalar(value.get_ref())).collect()
        }
        // Several addresses are one argument.
        (_, DeValue::Array(list)) if option.is_positional() => {
            let list = list.iter().map(|value| scalar(value.get_ref()));
            Ok(vec![list.collect::<Result<Vec<_>, _>>()?.join(",")])
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
pub(super) fn as_arguments(option: &Arg, values: &[String]) -> Vec<OsString> {
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
pub(super) fn check(option: &Arg, values: &[String]) -> Result<(), String> {
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
pub(super) fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}
