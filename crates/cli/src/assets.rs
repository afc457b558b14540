//! `smbdirect completions SHELL`, and `smbdirect assets DIR`, hidden: writes what a package installs besides the
//! program.
//!
//! | file | from |
//! |---|---|
//! | `man/smbdirect*.1` | the help of each command |
//! | `completions/smbdirect.bash`, `_smbdirect`, `smbdirect.fish` | the options of each command |
//! | `gateway.toml` | `src/assets/gateway.toml` |

use std::{fmt::Write as _, fs, path::PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Command};
use clap_complete::Shell;

use crate::{
    help::{ENVIRONMENT, EXIT_STATUS, for_each_command},
    report::{self, Report},
};

/// A settings file with each option of the gateway, and its default, as a comment.
pub(crate) const EXAMPLE: &str = include_str!("assets/gateway.toml");

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
        clap_mangen::generate_to(for_page(command.clone()), &man)?;
        for page in fs::read_dir(&man)? {
            let page = page?.path();
            // Examples and lists of names keep their spaces, and names are not hyphenated.
            let text = fs::read_to_string(&page)?.replace(".SH EXTRA\n", ".SH EXTRA\n.na\n.nh\n");
            fs::write(&page, &text)?;
        }
        for (shell, name) in SHELLS {
            let text = self::completions(shell, &mut command)?;
            fs::write(completions.join(name), &text)?;
        }
        fs::write(self.directory.join("gateway.toml"), EXAMPLE)?;
        Ok(())
    }
}

/// Returns the command for its manual page: the text after the options without styles, which would show as characters.
fn for_page(command: Command) -> Command {
    let after = command.get_after_long_help();
    let mut after = after.map_or_else(String::new, |text| text.ansi().to_string());
    // The page of the whole command has these sections already.
    for section in [EXIT_STATUS, ENVIRONMENT] {
        if !after.contains(section) {
            after += &format!("\n\n{section}");
        }
    }
    let after = plain(&after);
    let command = for_each_command(command, &for_page);
    // clap_mangen leaves out the help that is hidden in the short form.
    let command = command.mut_args(|option| option.hide_short_help(false));
    command.after_help(after.clone()).after_long_help(after)
}

/// Returns text without escape sequences for styles.
fn plain(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        text + part.split_once('m').map_or(part, |(_, rest)| rest)
    })
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
}
