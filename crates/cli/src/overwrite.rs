//! Checks the names of the files that a command writes: they are files, and none of those that it reads.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use bilayer_files::{folder_of, is_same_file};
use bilayer_gguf::shard_paths;
use clap::{Arg, ArgMatches, Command};

use crate::args::{OutPath, path_of};
use crate::failure::Failure;

/// Names files that are read whole and then continued, such as sums of importance: they may be replaced.
const CONTINUED: &str = "in_file";

/// Entries of a folder that are looked at.
const ENTRIES_MAX: usize = 10_000;

/// Refuses a file to be written that another argument names too, be it by a link of either kind, or a part of the same
/// model, or in a folder that is read; two outputs of one name; and `-`, which is standard output elsewhere: such files are
/// complete or do not exist. Nothing has been read yet. Returns the files to be written.
///
/// # Errors
/// The two arguments name one file, or one is `-`.
pub fn check(matches: &ArgMatches, cli: &Command) -> Result<Vec<PathBuf>, Failure> {
    let Some((name, matches)) = matches.subcommand() else { return Ok(Vec::new()) };
    let Some(command) = cli.find_subcommand(name) else { return Ok(Vec::new()) };
    // With this flag, the file of --kl-base is read.
    let reads_base = matches.try_get_one::<bool>("kl_divergence").ok().flatten() == Some(&true);
    let is_output = |argument: &Arg| {
        OutPath::is_of(argument) && !(reads_base && argument.get_id() == "kl_base")
    };
    let values = |argument: &'_ Arg| {
        let values = matches.try_get_raw(argument.get_id().as_str()).ok().flatten();
        values.into_iter().flatten().collect::<Vec<&OsStr>>()
    };
    let (outputs, others): (Vec<&Arg>, Vec<&Arg>) =
        command.get_arguments().partition(|argument| is_output(argument));
    let outputs = outputs.into_iter().flat_map(|argument| {
        values(argument).into_iter().map(move |value| (argument, Path::new(value)))
    });
    let outputs: Vec<(&Arg, &Path)> = outputs.collect();
    for (at, &(argument, path)) in outputs.iter().enumerate() {
        if path == "-" {
            return Err(Failure::usage(format!(
                "{argument} is -, but files are not written to standard output; give the name of a file"
            )));
        }
        if let Some((other, _)) = outputs[..at].iter().find(|(_, other)| is_one_file(other, path)) {
            return Err(Failure::usage(format!(
                "{}: {other} and {argument} are the same file; give each its own name",
                path.display(),
            )));
        }
    }
    let outputs: Vec<PathBuf> = outputs.into_iter().map(|(_, path)| path.to_owned()).collect();
    for argument in others.into_iter().filter(|argument| argument.get_id() != CONTINUED) {
        for value in values(argument) {
            check_models(&outputs, &read_by(argument, value))?;
        }
    }
    Ok(outputs)
}

/// Refuses a file to be written that is one of those that are read, or a part of the same model.
///
/// # Errors
/// There is one.
pub fn check_models(outputs: &[PathBuf], read: &[PathBuf]) -> Result<(), Failure> {
    let read: Vec<PathBuf> = read.iter().flat_map(|path| shard_paths(path)).collect();
    let is_read = |output: &&PathBuf| read.iter().any(|path| is_same_file(output, path));
    outputs.iter().find(is_read).map_or(Ok(()), |output| {
        Err(Failure::usage(format!(
            "{}: input and output are the same file; write the new one under another name",
            output.display(),
        )))
    })
}

/// Whether two outputs are or would be one file. Devices may be written to several times.
fn is_one_file(a: &Path, b: &Path) -> bool {
    let place = |path: &Path| match fs::metadata(path) {
        Ok(facts) if facts.is_file() || facts.is_dir() => fs::canonicalize(path).ok(),
        Ok(_) => None,
        Err(_) => Some(fs::canonicalize(folder_of(path)).ok()?.join(path.file_name()?)),
    };
    is_same_file(a, b) || place(a).is_some_and(|a| Some(a) == place(b))
}

/// The files that a value of an argument stands for: none if it names no file, as a prompt may happen to be the name of one.
fn read_by(argument: &Arg, value: &OsStr) -> Vec<PathBuf> {
    let is_model =
        |path: &PathBuf| path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"));
    match argument.get_id().as_str() {
        "models_dir" => return files(Path::new(value), 1).into_iter().filter(is_model).collect(),
        // Its models were made from it.
        "checkpoint" => {
            return files(Path::new(value), 2).into_iter().filter(|path| !is_model(path)).collect();
        }
        _ => {}
    }
    // Its files are those of the folders above.
    path_of(argument, value).into_iter().filter(|path| !path.is_dir()).collect()
}

/// The files of a folder and of the folders in it, so many levels deep.
fn files(folder: &Path, levels: usize) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten().take(ENTRIES_MAX) {
        let path = entry.path();
        match path.is_dir() {
            true if levels > 0 => found.extend(files(&path, levels - 1)),
            true => {}
            false => found.push(path),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::names_files;

    /// Flags that name a file of a repository, which is not on this machine.
    const ELSEWHERE: [&str; 1] = ["hf_file"];

    #[test]
    fn every_flag_that_names_a_file_is_known_by_its_type() {
        let is_path = |word: &str| ["FILE", "PATH", "IN", "OUT", "DIR", "FOLDER"].contains(&word);
        let mut files = 0;
        for command in crate::args::command().get_subcommands() {
            for arg in command.get_arguments() {
                let names = arg.get_value_names().unwrap_or_default();
                let mut words =
                    names.iter().flat_map(|name| name.split(|c: char| !c.is_alphabetic()));
                let is_named = words.any(is_path) && !ELSEWHERE.contains(&arg.get_id().as_str());
                let place = (command.get_name(), arg.get_id().as_str());
                assert!(names_files(arg) || !is_named, "{place:?}: its type names no file");
                files += usize::from(names_files(arg));
            }
        }
        assert!(files > 100, "{files}");
    }

    #[test]
    fn a_value_names_the_file_in_it() {
        let cli = crate::args::command();
        for (command, id, value, expected) in [
            ("evaluate", "model", "small=in.gguf", Some("in.gguf")),
            ("evaluate", "model", "in.gguf", Some("in.gguf")),
            ("serve", "add_model", "a=in.gguf", Some("in.gguf")),
            ("run", "lora_scaled", "in.gguf:0.5", Some("in.gguf")),
            ("run", "lora", "in.gguf", Some("in.gguf")),
            ("run", "expert_counts", "i.gguf", Some("i.gguf")),
            ("evaluate", "model", "a/b=in.gguf", Some("a/b=in.gguf")),
            ("bench", "model", "in.gguf", Some("in.gguf")),
            ("bench", "model", "a=in.gguf", Some("a=in.gguf")),
            ("run", "prompt", "in.gguf", None),
            ("run", "hf_file", "in.gguf", None),
        ] {
            let command = cli.find_subcommand(command).expect("a command");
            let arg = command.get_arguments().find(|arg| arg.get_id() == id).expect("a flag");
            let found = read_by(arg, OsStr::new(value));
            assert_eq!(found, expected.map(PathBuf::from).into_iter().collect::<Vec<_>>(), "{id}");
        }
    }

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
