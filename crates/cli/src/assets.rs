//! `smbdirect completions SHELL`, and `smbdirect assets DIR`, hidden: writes what a package installs besides the
//! program.
//!
//! | file | from |
//! |---|---|
//! | `man/smbdirect*.1` | the help of each command |
//! | `completions/smbdirect.bash`, `_smbdirect`, `smbdirect.fish` | the options of each command |
//! | `gateway.toml` | the options of `gateway`, as comments |

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use clap::{Arg, ArgAction, Args, Command, builder::PossibleValue};
use clap_complete::Shell;

use smbdirect::{
    Settings,
    rdma::{iwarp::IwarpConfig, roce::RoceConfig},
};

use crate::{
    help::{ENVIRONMENT, EXIT_STATUS, for_each_command},
    options::SMB_MESSAGE_BYTES,
    report::{self, Report},
};

/// Write man pages, completions and an example of the settings file into DIR
#[derive(Debug, Args)]
pub(crate) struct Assets {
    /// A directory, which is created if it does not exist
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Print the completions of a shell
#[derive(Debug, Args)]
#[command(after_help = COMPLETION_EXAMPLES)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

const COMPLETION_EXAMPLES: &str = "\x1b[1m\x1b[4mExamples:\x1b[0m
  source <(smbdirect completions bash)            for this shell; in ~/.bashrc for all
  smbdirect completions zsh >~/.zfunc/_smbdirect  a folder of $fpath
  smbdirect completions fish >~/.config/fish/completions/smbdirect.fish";

impl Completions {
    /// Prints the completions of `command`, which is the whole command line.
    pub(crate) fn run(self, mut command: Command) -> Result<bool> {
        let text = completions(self.shell, &mut command)?;
        Report::new(false).line(text.trim_end());
        Ok(true)
    }
}

/// Returns the completions of a shell.
fn completions(shell: Shell, command: &mut Command) -> Result<String> {
    let mut text = Vec::new();
    clap_complete::generate(shell, command, "smbdirect", &mut text);
    let text = String::from_utf8(text)?;
    Ok(match shell {
        Shell::Bash => options_after_dash(&text),
        _ => text,
    })
}

/// Changes the completions of Bash, which offer options for an empty word, so that they offer options only for a word
/// that begins with `-`. Bash offers files where they offer nothing.
fn options_after_dash(script: &str) -> String {
    let mut changed = String::new();
    for line in script.lines() {
        let _ = writeln!(changed, "{line}");
        let (indent, rest) = line.split_at(line.len() - line.trim_start().len());
        let words = rest
            .strip_prefix("opts=\"")
            .and_then(|rest| rest.strip_suffix('"'));
        if let Some(words) = words {
            let others: Vec<_> = words
                .split(' ')
                .filter(|word| !word.starts_with('-'))
                .collect();
            let others = others.join(" ");
            let _ = writeln!(changed, "{indent}[[ ${{cur}} == -* ]] || opts=\"{others}\"");
        }
    }
    changed
}

/// Shells with completions, and the names under which they look for them.
const SHELLS: [(Shell, &str); 3] = [
    (Shell::Bash, "smbdirect.bash"),
    (Shell::Zsh, "_smbdirect"),
    (Shell::Fish, "smbdirect.fish"),
];

impl Assets {
    /// Writes the files for `command`, which is the whole command line.
    pub(crate) fn run(self, command: Command) -> Result<bool> {
        let written = self.write(command);
        written.with_context(|| {
            let directory = report::printable(&self.directory.to_string_lossy());
            format!("cannot write to {directory}")
        })?;
        Ok(true)
    }

    fn write(&self, mut command: Command) -> Result<()> {
        let [man, completions] = ["man", "completions"].map(|name| self.directory.join(name));
        fs::create_dir_all(&man)?;
        fs::create_dir_all(&completions)?;
        clap_mangen::generate_to(for_page(command.clone(), "smbdirect"), &man)?;
        for page in fs::read_dir(&man)? {
            let page = page?.path();
            // Examples and lists of names keep their spaces, and names are not hyphenated.
            let text = fs::read_to_string(&page)?.replace(".SH EXTRA\n", ".SH EXTRA\n.na\n.nh\n");
            write(&page, &text)?;
        }
        for (shell, name) in SHELLS {
            let text = self::completions(shell, &mut command)?;
            write(&completions.join(name), &text)?;
        }
        let gateway = command.find_subcommand("gateway");
        let example = example(gateway.context("the command has no gateway")?);
        write(&self.directory.join("gateway.toml"), &example)
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    Ok(fs::write(path, text)?)
}

/// Returns the command for its manual page: the text after the options without styles, which would show as
/// characters, and a synopsis with the values of options. `path` is the command with those before it, as in
/// `smbdirect gateway`.
fn for_page(command: Command, path: &str) -> Command {
    let is_whole = !path.contains(' ');
    let mut after = command
        .get_after_long_help()
        .map(|text| text.ansi().to_string())
        .unwrap_or_default();
    // The page of the whole command has these sections already.
    for section in [EXIT_STATUS, ENVIRONMENT] {
        if !after.contains(section) {
            after += &format!("\n\n{section}");
        }
    }
    let actions = actions(&command);
    let synopsis = synopsis(&command, path, !actions.is_empty());
    let mut command = if actions.is_empty() {
        for_each_command(command, &|one| {
            let path = format!("{path} {}", one.get_name());
            for_page(one, &path)
        })
    } else {
        after = format!("{actions}\n\n{after}");
        for_each_command(command, &|action| action.hide(true))
    };
    if !is_whole {
        command = command.override_usage(synopsis);
    }
    let after = plain(&after);
    command.after_help(after.clone()).after_long_help(after)
}

/// Returns a section with the actions of a command such as `gateway ctl`, which have no pages of their own: commands
/// without options. It is empty for other commands.
fn actions(command: &Command) -> String {
    let actions: Vec<_> = command.get_subcommands().collect();
    let is_action =
        |one: &&Command| one.get_arguments().all(Arg::is_positional) && !one.has_subcommands();
    if actions.is_empty() || !actions.iter().all(is_action) {
        return String::new();
    }
    let forms = actions
        .iter()
        .map(|action| synopsis(action, action.get_name(), false));
    let forms: Vec<_> = forms.collect();
    let width = forms.iter().map(String::len).max().unwrap_or_default();
    let about = |action: &Command| action.get_about().map(ToString::to_string);
    let lines = forms.iter().zip(&actions).map(|(form, action)| {
        let about = about(action).unwrap_or_default();
        format!("\n  {form:<width$}  {about}")
    });
    format!("Commands:{}", lines.collect::<String>())
}

/// Returns the synopsis of a command: its options with their values, and its arguments.
fn synopsis(command: &Command, path: &str, has_actions: bool) -> String {
    let arguments = command
        .get_arguments()
        .filter(|argument| !argument.is_hide_set());
    let (mut options, mut positionals) = (Vec::new(), Vec::new());
    for argument in arguments {
        let values = argument.get_value_names().unwrap_or_default().join(" ");
        if argument.is_positional() {
            positionals.push(bracketed(argument, &values));
            continue;
        }
        let mut text = match (argument.get_short(), argument.get_long()) {
            (Some(short), Some(long)) => format!("-{short}|--{long}"),
            (_, Some(long)) => format!("--{long}"),
            (short, None) => format!("-{}", short.unwrap_or_default()),
        };
        if argument.get_action().takes_values() {
            text += &format!(" {values}");
        }
        options.push(bracketed(argument, &text));
    }
    let action = has_actions.then(|| "COMMAND".to_owned());
    let parts = [
        vec![path.to_owned()],
        options,
        positionals,
        action.into_iter().collect(),
    ];
    parts.concat().join(" ")
}

/// Returns an argument in brackets, unless it is required, with dots if it can be repeated.
fn bracketed(argument: &Arg, text: &str) -> String {
    let is_repeated = matches!(argument.get_action(), ArgAction::Append | ArgAction::Count);
    let dots = if is_repeated { "..." } else { "" };
    if argument.is_required_set() {
        format!("{text}{dots}")
    } else {
        format!("[{text}]{dots}")
    }
}

/// Returns text without escape sequences for styles.
fn plain(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + part.split_once('m').map_or(part, |(_, rest)| rest)
    })
}

/// Options that the example does not have: they make no sense in a file of a service.
const NOT_IN_EXAMPLE: [&str; 7] = [
    "config",
    "check-config",
    "help",
    "version",
    "json",
    "pcap",
    "verbose",
];

/// Returns a settings file that names each option of the gateway, with its default as a comment.
pub(crate) fn example(gateway: &Command) -> String {
    let mut text = String::from(
        "# Settings of `smbdirect gateway --config FILE`: the options of the command, with their names.\n\
         # Check them with `smbdirect gateway --config FILE --check-config`, and have a running service\n\
         # read them again with `systemctl reload smbdirect-gateway`.\n\
         \n\
         # The address that clients connect to: HOST[:PORT].\n\
         listen = \":5445\"\n\
         \n\
         # The SMB server. This one is next to the gateway, with TCP on port 445.\n\
         upstream = \"127.0.0.1\"\n\
         \n\
         # 0 warns, 1 logs the events of each connection, 2 logs each message.\n\
         # verbose = 0\n",
    );
    let options = gateway
        .get_arguments()
        .filter(|option| !option.is_positional());
    for option in options {
        let Some(name) = option.get_long() else {
            continue;
        };
        if NOT_IN_EXAMPLE.contains(&name) || option.is_hide_set() {
            continue;
        }
        let help = option
            .get_long_help()
            .or_else(|| option.get_help())
            .map(|help| plain(&help.to_string()))
            .unwrap_or_default();
        text.push('\n');
        for line in help.split("\n\n").flat_map(wrapped) {
            let _ = writeln!(text, "# {line}");
        }
        let values = option.get_possible_values();
        let values: Vec<_> = values.iter().map(PossibleValue::get_name).collect();
        if option.get_action().takes_values() && !values.is_empty() {
            let _ = writeln!(text, "# One of {}.", values.join(", "));
        }
        let _ = match (default_of(option), example_of(option)) {
            (Some(value), _) => writeln!(text, "# {name} = {value}"),
            (None, example) => writeln!(
                text,
                "# Not set by default. For example: {name} = {example}"
            ),
        };
    }
    text
}

/// Returns the default of an option of the gateway, in TOML.
fn default_of(option: &Arg) -> Option<String> {
    if let Some(value) = option.get_default_values().first() {
        return Some(in_toml(&value.to_string_lossy()));
    }
    match option.get_action() {
        ArgAction::SetTrue => return Some("false".into()),
        ArgAction::Append => return Some("[]".into()),
        _ => {}
    }
    let settings = Settings::default();
    let seconds = |time: Duration| time.as_secs_f64().to_string();
    let size = |bytes: u32| bytes.to_string();
    let iwarp = IwarpConfig::default();
    Some(match option.get_long()? {
        "send-credit-target" => settings.send_credit_target.to_string(),
        "receive-credit-max" => settings.receive_credit_max.to_string(),
        "max-send-size" => size(settings.max_send_size),
        "max-receive-size" => size(settings.max_receive_size),
        "max-fragmented-size" => size(SMB_MESSAGE_BYTES),
        "max-read-write-size" => size(settings.max_read_write_size),
        "keepalive-interval" => seconds(settings.keepalive_interval),
        "keepalive-response-timeout" => seconds(settings.keepalive_response_timeout),
        "credit-grant-timeout" => seconds(settings.credit_grant_timeout?),
        "negotiation-timeout" => seconds(settings.passive_negotiation_timeout),
        "ird" => iwarp.ird.to_string(),
        "ord" => iwarp.ord.to_string(),
        "udp-port" => RoceConfig::default().udp_port.to_string(),
        _ => return None,
    })
}

/// Returns an example of the value of an option, in TOML.
fn example_of(option: &Arg) -> &'static str {
    match option.get_long() {
        Some("metrics") => "\"127.0.0.1:9445\"",
        Some("control") => "\"/run/smbdirect/gateway.sock\"",
        _ => "1",
    }
}

/// Returns a value as a number, or as a string.
fn in_toml(value: &str) -> String {
    match value.parse::<f64>() {
        Ok(_) => value.into(),
        Err(_) => format!("\"{value}\""),
    }
}

/// Returns text in lines of at most 96 characters.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is a line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.len() + word.len() < 96 {
            *line += &format!(" {word}");
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn styles_are_removed() {
        assert_eq!(
            plain("\x1b[1m\x1b[4mExamples:\x1b[0m\n  x"),
            "Examples:\n  x"
        );
        assert_eq!(plain("none"), "none");
    }

    #[test]
    fn lines_are_wrapped() {
        let lines = wrapped(&"word ".repeat(40));
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|line| line.len() <= 96));
    }
}
