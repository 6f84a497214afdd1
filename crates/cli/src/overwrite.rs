//! Checks the names of the files that a command writes: they are files, and none of those that it reads.

use std::ffi::OsStr;
use std::path::Path;

use bilayer_gguf::{is_same_file, shard_paths};
use clap::{Arg, ArgMatches, Command, Id};

use crate::args::OutPath;
use crate::failure::Failure;

/// Names files that are read whole and then continued, such as sums of importance: they may be replaced.
const CONTINUED: &str = "in_file";

/// Refuses a file to be written that another argument names too, be it by a link of either kind, or a part of the same
/// model, and `-`, which is standard output elsewhere: such files are complete or do not exist. Nothing has been read yet.
///
/// # Errors
/// The two arguments name one file, or one is `-`.
pub fn check(matches: &ArgMatches, cli: &Command) -> Result<(), Failure> {
    let Some((name, matches)) = matches.subcommand() else { return Ok(()) };
    let Some(command) = cli.find_subcommand(name) else { return Ok(()) };
    // With this flag, the file of --kl-base is read.
    let reads_base = matches.try_get_one::<bool>("kl_divergence").ok().flatten() == Some(&true);
    let is_output = |argument: &Arg| {
        OutPath::is_of(argument) && !(reads_base && argument.get_id() == "kl_base")
    };
    let values = |argument: &'_ Arg| {
        let values = matches.try_get_raw(argument.get_id().as_str()).ok().flatten();
        values.into_iter().flatten().collect::<Vec<&OsStr>>()
    };
    for argument in command.get_arguments().filter(|argument| is_output(argument)) {
        if values(argument).contains(&OsStr::new("-")) {
            let name = argument.to_string();
            return Err(Failure::usage(format!(
                "{name} is -, but files are not written to standard output; give the name of a file"
            )));
        }
    }
    let given: Vec<(&Arg, &OsStr)> = command
        .get_arguments()
        .filter(|argument| is_path(argument))
        .flat_map(|argument| values(argument).into_iter().map(move |value| (argument, value)))
        .collect();
    for &(output, path) in given.iter().filter(|(argument, _)| is_output(argument)) {
        let is_other = |id: &Id| id != output.get_id() && id != CONTINUED;
        for &(_, other) in given.iter().filter(|(argument, _)| is_other(argument.get_id())) {
            let written = Path::new(path);
            if shard_paths(Path::new(other)).iter().any(|read| is_same_file(written, read)) {
                return Err(Failure::usage(format!(
                    "{}: input and output are the same file; write the new one under another name",
                    written.display(),
                )));
            }
        }
    }
    Ok(())
}

/// Whether an argument names a file: a prompt may happen to be the name of one. Models may be a list.
fn is_path(argument: &Arg) -> bool {
    const NAMES: [&str; 5] = ["FILE", "FILE.npy", "PATH", "IN", "OUT"];
    let names = argument.get_value_names().unwrap_or_default();
    OutPath::is_of(argument)
        || argument.get_id() == "model"
        || names.iter().any(|name| NAMES.contains(&name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Outputs whose help says in other words that they are written.
    const OTHERWISE_SAID: [(&str, &str); 2] = [("profile", "out"), ("run", "prompt_cache")];

    #[test]
    fn every_flag_that_names_an_output_has_its_type() {
        let is_name = |name: &str| ["FILE", "FILE.npy", "OUT", "DIR", "FOLDER"].contains(&name);
        let mut outputs = 0;
        for command in crate::args::command().get_subcommands() {
            for arg in command.get_arguments() {
                let names = arg.get_value_names().unwrap_or_default();
                if !names.iter().any(|name| is_name(name)) {
                    continue;
                }
                let help = arg.get_help().map_or(String::new(), |help| help.to_string());
                let mut words = help.split(|c: char| !c.is_alphabetic()).map(str::to_lowercase);
                let is_said = words.any(|word| word == "write" || word == "append");
                let place = (command.get_name(), arg.get_id().as_str());
                let is_written =
                    is_said || names.contains(&"OUT".into()) || OTHERWISE_SAID.contains(&place);
                assert_eq!(OutPath::is_of(arg), is_written, "{place:?}: {help}");
                outputs += usize::from(is_written);
            }
        }
        assert!(outputs > 30, "{outputs}");
    }
}
