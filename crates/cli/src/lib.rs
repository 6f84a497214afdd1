//! The commands of the `bilayer` binary: flags and glue over the engine.
//!
//! **Purpose.** Parses the command line (CLI.md is the contract), merges environment and `bilayer.toml`, runs a
//! command, turns every error into one line and an exit code.
//!
//! **What it does not know.** Kernels, formats, schedules: those are asked of the engine.
//!
//! **Read first.** `args.rs` (every flag), `commands/run.rs`, `failure.rs` (exit codes).

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

mod args;
mod commands;
mod demo;
mod failure;
mod npy;
mod output;
mod progress;
mod settings_file;

use failure::Failure;

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let typed = args::spell_out(std::env::args_os());
    match parse(typed).and_then(|cli| commands::execute(cli.command)) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(),
    }
}

/// Parses flags and environment, then takes what neither gave from the settings file.
fn parse(typed: Vec<std::ffi::OsString>) -> Result<args::Cli, Failure> {
    let matches = args::Cli::command().try_get_matches_from(&typed).map_err(Failure::Usage)?;
    let typed = settings_file::complete(typed, &matches)?;
    let matches = args::Cli::command().try_get_matches_from(typed).map_err(Failure::Usage)?;
    args::Cli::from_arg_matches(&matches).map_err(Failure::Usage)
}
