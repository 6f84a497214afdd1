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
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Command, FromArgMatches};

mod args;
mod commands;
mod demo;
mod drivers;
mod escapes;
mod failure;
mod folders;
mod help;
mod interrupt;
mod locate;
mod messages;
mod new_file;
mod npy;
mod output;
mod overwrite;
mod page;
mod progress;
mod settings_file;
mod terminal;
mod trace;
mod version;

use failure::{Failure, INTERNAL, INTERRUPTED};

pub use commands::profile;
pub use settings_file::Checker as SettingsChecker;

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    drivers::silence();
    ExitCode::from(run(std::env::args_os().collect()))
}

/// Runs a command line, the program's name first, and returns the exit code. The process is the command's: it takes over
/// signals, and may end the process.
pub fn run(typed: Vec<OsString>) -> u8 {
    panic::set_hook(Box::new(|fault| {
        let fault = fault.to_string().replace('\n', " ");
        output::error(&format!("bilayer: internal error: {fault}; please report it"));
    }));
    let run = AssertUnwindSafe(|| match parse(typed)? {
        Asked::Command { cli, outputs } => commands::execute(cli.command, &outputs),
        Asked::Text(text) => output::text(&text).map(|()| 0),
    });
    let code = match panic::catch_unwind(run) {
        Ok(Ok(code)) => code,
        Ok(Err(failure)) => output::failure(failure),
        Err(_) => INTERNAL,
    };
    if code == INTERRUPTED { interrupt::code() } else { code }
}

/// What a command line asks for.
enum Asked {
    /// A command, and the files that it writes.
    Command { cli: Box<args::Cli>, outputs: Vec<PathBuf> },
    /// Help, or the version.
    Text(String),
}

/// Parses flags and environment, then takes what neither gave from the settings file.
fn parse(typed: Vec<OsString>) -> Result<Asked, Failure> {
    let mut cli = args::command();
    cli.build();
    let mut notes = Vec::new();
    let word = args::typed::lone_word(&typed).map(str::to_owned);
    let typed = args::typed::ready(typed, &cli, &mut notes)?;
    let name = typed.get(1).and_then(|name| cli.find_subcommand(name)).map(Command::get_name);
    let name = name.map(str::to_owned);
    let command = format!("bilayer {}", name.as_deref().unwrap_or_default());
    let failed = |cli: &Command, error: clap::Error| {
        let variable = args::precedence::variable(&error, cli, &typed);
        let failure = Failure::parsing(error, command.trim_end());
        match variable {
            Some(variable) => failure.at(&variable),
            None => failure,
        }
    };
    let mut matches = match cli.clone().try_get_matches_from(&typed) {
        Err(error) if error.kind() == ErrorKind::DisplayVersion => {
            return Ok(Asked::Text(version::text()));
        }
        Err(error) if error.kind() == ErrorKind::DisplayHelp && name.is_some() => {
            let is_full = typed.iter().any(|arg| arg == "--help");
            let form = if is_full { help::Form::Full } else { help::Form::Brief };
            return Ok(Asked::Text(help::page(&cli, &name.unwrap_or_default(), form)));
        }
        Err(error) if error.kind() == ErrorKind::ArgumentConflict => {
            cli = args::precedence::without_excluded_variables(&cli, &typed);
            cli.clone().try_get_matches_from(&typed).map_err(|error| failed(&cli, error))?
        }
        matches => matches.map_err(|error| failed(&cli, error))?,
    };
    if let Some(completed) = settings_file::complete(&typed, &matches, &cli)? {
        let parsed = cli.clone().try_get_matches_from(completed.arguments);
        matches = parsed.map_err(|error| failed(&cli, error).in_file(&completed.path))?;
    }
    let outputs = overwrite::check(&matches, &cli)?;
    if let Some((name, given)) = matches.subcommand()
        && let Some(command) = cli.find_subcommand(name)
    {
        args::messages::choose(command, given)?;
        if name == "serve" {
            args::check_keys(given)?;
        }
    }
    notes.iter().for_each(|note| output::note(note));
    for variable in args::typed::unread_variables(std::env::vars_os().map(|(name, _)| name), &cli) {
        output::note(&format!("note: {variable} is set; it is not supported and has no effect"));
    }
    let asked = args::Cli::from_arg_matches(&matches);
    let mut cli = asked.map_err(|error| failed(&cli, error))?;
    locate::settle(&mut cli.command, &matches)?;
    if let Some(word) = word {
        check_prompt(&word, &cli.command)?;
    }
    Ok(Asked::Command { cli: Box::new(cli), outputs })
}

/// Checks a lone word that is read as the prompt where no model is given: it may be meant as the name of a model, as ollama has
/// them.
///
/// # Errors
/// It is in lower case, and is the name of a model on this machine or begins with that of a known family.
fn check_prompt(word: &str, command: &args::Command) -> Result<(), Failure> {
    let args::Command::Run(run) = command else { return Ok(()) };
    if run.model.model.is_some() || run.model.hub.hf_repo.is_some() {
        return Ok(());
    }
    let near = locate::near(word, &run.model.hub)?;
    let is_name =
        |name: &String| name.split(['/', ':']).any(|part| part.eq_ignore_ascii_case(word));
    let known = near.iter().find(|name| is_name(name)).or(near.first());
    let is_lower = word.starts_with(|c: char| c.is_ascii_lowercase())
        && !word.contains(|c: char| c.is_ascii_uppercase());
    if !is_lower || !(locate::is_of_family(word) || known.is_some_and(is_name)) {
        output::note(&format!(
            "note: no model is given, so the demo model continues `{word}`; -m FILE runs a model, -hf ORG/REPO downloads one"
        ));
        return Ok(());
    }
    let advice = match known {
        Some(name) => format!("run it with -m {name}"),
        None => format!(
            "-m ollama:{word} runs a model that ollama has pulled, -hf ORG/REPO downloads one from Hugging Face"
        ),
    };
    Err(Failure::usage(format!(
        "`{word}` may be meant as the name of a model; {advice}; if it is the prompt, give it with -p"
    )))
}
