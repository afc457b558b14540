//! The password of an account: from a file descriptor, the environment, or the terminal. Never from the
//! command line, where other users of the machine see it.

use std::{
    env, fs,
    io::{IsTerminal, Read, stdin},
};

use anyhow::{Context, Result};

use crate::options::usage;

/// The variable of the environment.
const VARIABLE: &str = "SMBDIRECT_PASSWORD";
/// Longest password that is read, in bytes.
const MAX_BYTES: u64 = 4096;

/// Returns the password of `user`: the first line of `descriptor`, or else the variable of the
/// environment, or else what the user types.
///
/// # Errors
/// The descriptor cannot be read, or there is no terminal to ask on.
pub(crate) fn password(user: &str, descriptor: Option<u32>) -> Result<String> {
    if let Some(descriptor) = descriptor {
        // Opening the descriptor's file avoids adopting it, which would need unsafe code.
        let path = format!("/dev/fd/{descriptor}");
        let mut text = String::new();
        let read =
            fs::File::open(&path).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text));
        read.with_context(|| format!("--password-fd {descriptor}: it cannot be read"))?;
        return Ok(text.lines().next().unwrap_or_default().to_owned());
    }
    if let Ok(password) = env::var(VARIABLE) {
        return Ok(password);
    }
    if !stdin().is_terminal() {
        return Err(usage(format!(
            "--user needs a password, and there is no terminal to ask on; set {VARIABLE}, or give \
             --password-fd N"
        )));
    }
    rpassword::prompt_password(format!("Password of {user}: "))
        .context("the password cannot be read")
}
