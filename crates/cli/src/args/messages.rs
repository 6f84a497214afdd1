//! The flags of messages, which every command has: how many, and the file that also gets them.

use bilayer_server::log::LogFile;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::OutPath;
use crate::failure::Failure;
use crate::messages::{self, Level};

const QUIET: &str = "quiet";
const VERBOSE: &str = "verbose";
const LOG_FILE: &str = "log_file";

/// Adds the flags to every command of `cli` that does not have its own of that name.
pub fn add_flags(cli: Command) -> Command {
    cli.mut_subcommands(|command| {
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
        if !command.get_arguments().any(|arg| arg.get_short() == Some('q')) {
            quiet = quiet.short('q');
        }
        let log_file = Arg::new(LOG_FILE)
            .long("log-file")
            .value_name("FILE")
            .value_parser(clap::value_parser!(OutPath))
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
        let has_log = has_log(&command);
        let loads = has(&command, "gpu_layers");
        let command = command.arg(quiet);
        let command = if has_log { command } else { command.arg(log_file) };
        if loads && !has_log { command.arg(verbose) } else { command }
    })
}

/// Whether a command has an argument of this name. Matches do not tell: clap reports an unknown one only where debug
/// assertions are on.
fn has(command: &Command, id: &str) -> bool {
    command.get_arguments().any(|arg| arg.get_id() == id)
}

/// Whether a command has a log of its own, as `serve` has: `--verbose` and `--log-file` then belong to that one.
fn has_log(command: &Command) -> bool {
    has(command, "log_format")
}

/// Applies the flags that were given to `command`.
///
/// # Errors
/// The log file cannot be opened.
pub fn choose(command: &Command, given: &ArgMatches) -> Result<(), Failure> {
    let is_set = |id: &str| has(command, id) && given.get_flag(id);
    let level = match (is_set(QUIET), is_set(VERBOSE)) {
        (true, _) => Level::Quiet,
        (false, true) => Level::Verbose,
        (false, false) => Level::Usual,
    };
    let log = log_file(command, given)
        .map(|path| LogFile::open(path).map_err(|error| Failure::output(path, &error)));
    messages::choose(level, log.transpose()?);
    Ok(())
}

/// The file that also gets the messages.
fn log_file<'g>(command: &Command, given: &'g ArgMatches) -> Option<&'g OutPath> {
    let is_for_messages = has(command, LOG_FILE) && !has_log(command);
    is_for_messages.then(|| given.get_one(LOG_FILE)).flatten()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_log_file_but_that_of_the_server_gets_the_messages() {
        let mut cli = crate::args::command();
        cli.build();
        let names = cli.get_subcommands().filter(|command| has(command, LOG_FILE));
        let names: Vec<String> = names.map(|command| command.get_name().to_owned()).collect();
        assert!(names.len() > 20, "{names:?}");
        for name in names {
            let command = cli.find_subcommand(&name).expect("just listed");
            assert_eq!(has_log(command), name == "serve", "{name}");
            // Required arguments are missing.
            let line = ["bilayer", &name, "--log-file", "x"];
            let matches = cli
                .clone()
                .ignore_errors(true)
                .mut_subcommand(&name, |command| command.ignore_errors(true));
            let matches = matches.try_get_matches_from(line).expect("errors are ignored");
            let (_, given) = matches.subcommand().expect("a command");
            let file = (name != "serve").then(|| Path::new("x"));
            assert_eq!(log_file(command, given).map(|path| &**path), file, "{name}");
        }
    }
}
