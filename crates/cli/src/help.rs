//! The two forms of help. `-h` fits a screen: options and examples. `--help` and the manual pages add the
//! connection settings, what --json prints, the exit status and the environment.

use clap::Command;

/// The section that short help has, too.
const EXAMPLES: &str = "Examples:";

/// The exit status of all commands.
pub(crate) const EXIT_STATUS: &str = "\x1b[1m\x1b[4mExit status:\x1b[0m
  0    the command did what was asked; this includes gateway, listen, bench --serve and top that
       a signal ended
  1    it did not: stderr has one line that begins with `error:`, or the output says what failed
       (conform: a case; decode: a rule; check: SMB Direct does not work; ping: a round trip;
       listen: a connection; devices: no adapter)
  2    the command line or the settings file asks for something impossible; stderr has the reason
       (check also: it could not find out whether SMB Direct works)
  run exits with the status of the program, or with 128 plus the number of the signal that
  killed it";

/// The variables of the environment of all commands.
pub(crate) const ENVIRONMENT: &str = "\x1b[1m\x1b[4mEnvironment:\x1b[0m
  RUST_LOG            what to log to stderr if there is no -v: a level (error, warn, info, debug,
                      trace), or levels by module, as in smbdirect=debug,smb2=trace
  SMBDIRECT_PASSWORD  the password of --user
  KRB5CCNAME          the credential cache of --kerberos, a file [default: default_ccache_name of
                      krb5.conf, or /tmp/krb5cc_UID]; KRB5_CONFIG names another krb5.conf
  NO_COLOR            no colours, if it is set to anything";

/// Returns the command line with both forms of help.
pub(crate) fn arrange(command: Command) -> Command {
    let long = [&sections(&command), EXIT_STATUS, ENVIRONMENT].join("\n\n");
    for_each_command(command.after_long_help(long), &arrange_one)
}

/// Returns `command` with each of its commands changed by `change`.
pub(crate) fn for_each_command(command: Command, change: &dyn Fn(Command) -> Command) -> Command {
    let names: Vec<_> = command
        .get_subcommands()
        .map(|one| one.get_name().to_owned())
        .collect();
    names.into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, change)
    })
}

/// Arranges the help of one command, and of the commands that it has.
fn arrange_one(command: Command) -> Command {
    let long = sections(&command);
    let command = for_each_command(command, &arrange_one);
    let command = command.mut_args(|option| {
        if option.get_help_heading().is_some() {
            option.hide_short_help(true)
        } else {
            option
        }
    });
    if long.is_empty() {
        return command;
    }
    // The first paragraph of the examples has the common ones.
    let examples = long.split("\n\n").find(|part| part.contains(EXAMPLES));
    let short = examples.unwrap_or_default().to_owned();
    command.after_help(short).after_long_help(long)
}

/// Returns the text after the options.
fn sections(command: &Command) -> String {
    command
        .get_after_help()
        .map(|text| text.ansi().to_string())
        .unwrap_or_default()
}
