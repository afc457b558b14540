//! Commands for developers of this project that need more than a line of shell: `cargo xtask`.
//!
//! The commands of one line are in the `justfile`.
#![forbid(unsafe_code)]

mod api;
mod counts;
mod goals;
mod manual;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

/// Commands for developers of smbdirect
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    Api(api::Api),
    Counts(counts::Counts),
    Goals(goals::Goals),
    Manual(manual::Manual),
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Api(api) => api.run(),
        Command::Counts(counts) => counts.run(),
        Command::Goals(goals) => goals.run(),
        Command::Manual(manual) => manual.run(),
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
