//! The commands of the `bilayer` binary: flags and glue over the engine.
//!
//! **Purpose.** Parses the command line (CLI.md is the contract), merges environment and `bilayer.toml`, runs a
//! command, turns every error into one line and an exit code.
//!
//! **What it does not know.** Kernels, formats, schedules: those are asked of the engine.
//!
//! **Read first.** `args.rs` (every flag), `commands/run.rs`, `failure.rs` (exit codes).

use std::ffi::OsString;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;

use clap::{Command, CommandFactory, FromArgMatches};

mod args;
mod commands;
mod demo;
mod escapes;
mod failure;
mod folders;
mod interrupt;
mod locate;
mod new_file;
mod npy;
mod output;
mod overwrite;
mod progress;
mod settings_file;
mod trace;

use failure::{Failure, INTERNAL};

pub use commands::profile;

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    panic::set_hook(Box::new(|fault| {
        let fault = fault.to_string().replace('\n', " ");
        output::note(&format!("bilayer: internal error: {fault}; please report it"));
    }));
    let typed = std::env::args_os().collect();
    let run = AssertUnwindSafe(|| commands::execute(parse(typed)?.command));
    match panic::catch_unwind(run) {
        Ok(Ok(code)) => ExitCode::from(code),
        Ok(Err(failure)) => failure.report(),
        Err(_) => ExitCode::from(INTERNAL),
    }
}

/// Parses flags and environment, then takes what neither gave from the settings file.
fn parse(typed: Vec<OsString>) -> Result<args::Cli, Failure> {
    let mut cli = args::Cli::command();
    cli.build();
    let mut notes = Vec::new();
    let typed = args::typed::ready(typed, &cli, &mut notes)?;
    notes.iter().for_each(|note| output::note(note));
    let name = typed.get(1).and_then(|name| cli.find_subcommand(name)).map(Command::get_name);
    let command = format!("bilayer {}", name.unwrap_or_default());
    let failed = |error| Failure::parsing(error, command.trim_end());
    let mut matches = cli.clone().try_get_matches_from(&typed).map_err(failed)?;
    if let Some(completed) = settings_file::complete(&typed, &matches, &cli)? {
        let parsed = cli.clone().try_get_matches_from(completed.arguments);
        matches = parsed.map_err(|error| failed(error).in_file(&completed.path))?;
    }
    for variable in args::typed::unread_variables(std::env::vars_os().map(|(name, _)| name), &cli) {
        output::note(&format!("note: {variable} is set; it is not supported and has no effect"));
    }
    overwrite::check(&matches, &cli)?;
    let mut cli = args::Cli::from_arg_matches(&matches).map_err(failed)?;
    locate::settle(&mut cli.command, &matches)?;
    Ok(cli)
}
