//! Commands for developers of this project that need more than a line of shell: `cargo xtask`.
//!
//! The commands of one line are in the `justfile`.
#![forbid(unsafe_code)]

mod api;
#[cfg(feature = "goals")]
mod goals;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

/// Commands for developers of smbdirect
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    Api(api::Api),
    #[cfg(feature = "goals")]
    Goals(goals::Goals),
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Api(api) => api.run(),
        #[cfg(feature = "goals")]
        Command::Goals(goals) => goals.run(),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
