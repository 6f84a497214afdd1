//! Messages on stderr: how many, and the file that also gets them.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock};

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::failure::Failure;

/// How much is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Errors and warnings.
    Quiet,
    /// Also placement, statistics and notes.
    Usual,
    /// Also memory per device and kernels.
    Verbose,
}

/// What the flags chose.
struct Chosen {
    level: Level,
    log: Option<Mutex<File>>,
}

static CHOSEN: OnceLock<Chosen> = OnceLock::new();

const QUIET: &str = "quiet";
const VERBOSE: &str = "verbose";
const LOG_FILE: &str = "log_file";

/// Adds the flags to every command of `cli` that does not have its own of that name.
pub fn add_flags(cli: Command) -> Command {
    cli.mut_subcommands(|command| {
        let has = |command: &Command, id: &str, short: Option<char>| {
            command
                .get_arguments()
                .any(|arg| arg.get_id() == id || short.is_some() && arg.get_short() == short)
        };
        let writes_scripts = ["completions", "man"].contains(&command.get_name());
        if writes_scripts {
            return command;
        }
        let mut quiet = Arg::new(QUIET)
            .long("quiet")
            .alias("log-disable")
            .action(ArgAction::SetTrue)
            .help("Print only results, errors and warnings")
            .help_heading("Messages");
        if !has(&command, QUIET, Some('q')) {
            quiet = quiet.short('q');
        }
        let log_file = Arg::new(LOG_FILE)
            .long("log-file")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("Also append all messages to a file")
            .help_heading("Messages");
        let verbose = Arg::new(VERBOSE)
            .short('v')
            .long("verbose")
            .alias("log-verbose")
            .action(ArgAction::SetTrue)
            .conflicts_with(QUIET)
            .help("Also print memory per device and the kernels used")
            .help_heading("Messages");
        let is_server = has(&command, VERBOSE, None);
        let loads = has(&command, "gpu_layers", None);
        let command = command.arg(quiet);
        let command = if is_server { command } else { command.arg(log_file) };
        if loads && !is_server { command.arg(verbose) } else { command }
    })
}

/// Reads the flags of a command.
///
/// # Errors
/// The log file cannot be opened.
pub fn choose(given: &ArgMatches) -> Result<(), Failure> {
    let is_set = |id: &str| matches!(given.try_get_one::<bool>(id), Ok(Some(true)));
    let level = match (is_set(QUIET), is_set(VERBOSE)) {
        (true, _) => Level::Quiet,
        (false, true) => Level::Verbose,
        (false, false) => Level::Usual,
    };
    // The server has a log of its own.
    let path = match given.try_contains_id("log_format") {
        Ok(_) => None,
        Err(_) => given.try_get_one::<PathBuf>(LOG_FILE).ok().flatten(),
    };
    let log = path.map(|path| {
        let file = File::options().create(true).append(true).open(path);
        file.map(Mutex::new).map_err(|error| Failure::output(path, &error))
    });
    let _ = CHOSEN.set(Chosen { level, log: log.transpose()? });
    Ok(())
}

/// Whether messages of `level` are printed.
pub fn shows(level: Level) -> bool {
    level <= CHOSEN.get().map_or(Level::Usual, |chosen| chosen.level)
}

/// Writes a line to stderr if its level is printed, and to the log file; ignores failure.
pub fn write(level: Level, line: &str) {
    if shows(level) {
        let _ = writeln!(io::stderr().lock(), "{line}");
    }
    if let Some(log) = CHOSEN.get().and_then(|chosen| chosen.log.as_ref())
        && let Ok(mut log) = log.lock()
    {
        let _ = writeln!(log, "{line}");
    }
}
