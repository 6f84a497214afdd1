//! Checks the names of the files that a command writes: they are files, and none of those that it reads.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command};

use crate::failure::Failure;

/// The arguments of all commands that name a file to be written. `convert`, `quantize`, `prune` and `synth` write `out`.
const OUTPUTS: &[&str] = &[
    "audit",
    "html",
    "kl_base",
    "log_file",
    "logits",
    "out",
    "outfile",
    "output",
    "prompt_cache",
    "tensor_types_out",
    "trace",
];

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
    let is_output = |id: &str| OUTPUTS.contains(&id) && !(reads_base && id == "kl_base");
    let values = |argument: &'_ Arg| {
        let values = matches.try_get_raw(argument.get_id().as_str()).ok().flatten();
        values.into_iter().flatten().collect::<Vec<&OsStr>>()
    };
    let outputs = command.get_arguments().filter(|argument| is_output(argument.get_id().as_str()));
    for argument in outputs {
        if values(argument).contains(&OsStr::new("-")) {
            let name = argument.to_string();
            return Err(Failure::usage(format!(
                "{name} is -, but files are not written to standard output; give the name of a file"
            )));
        }
    }
    let given: Vec<(&str, &OsStr)> = command
        .get_arguments()
        .filter(|argument| is_path(argument))
        .flat_map(|argument| {
            values(argument).into_iter().map(|value| (argument.get_id().as_str(), value))
        })
        .collect();
    for &(output, path) in given.iter().filter(|(id, _)| is_output(id)) {
        let others = given.iter().filter(|(id, _)| *id != output && *id != CONTINUED);
        for &(_, other) in others {
            let written = Path::new(path);
            if inputs(Path::new(other)).iter().any(|read| is_same(written, read)) {
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
    argument.get_id() == "model" || names.iter().any(|name| NAMES.contains(&name.as_str()))
}

/// The file of an argument, or all parts of a model of which it is one (`NAME-00001-of-00003.gguf`).
fn inputs(path: &Path) -> Vec<PathBuf> {
    let parts = || {
        let name = path.file_name()?.to_str()?;
        let (start, end) = name.rsplit_once("-of-")?;
        let (stem, number) = start.rsplit_once('-')?;
        let count: usize = end.strip_suffix(".gguf")?.parse().ok()?;
        let is_part = number.len() == 5 && number.parse::<usize>().is_ok() && count <= 1024;
        let part = |number: usize| path.with_file_name(format!("{stem}-{number:05}-of-{end}"));
        is_part.then(|| (1..=count).map(part).collect())
    };
    parts().unwrap_or_else(|| vec![path.to_owned()])
}

/// Whether two paths lead to one file.
pub fn is_same(a: &Path, b: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let facts = |path: &Path| std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file);
        let place = |path: &Path| facts(path).map(|facts| (facts.dev(), facts.ino()));
        place(a).is_some_and(|place_of_a| Some(place_of_a) == place(b))
    }
    #[cfg(not(unix))]
    std::fs::canonicalize(a).is_ok_and(|a| a.is_file() && Some(a) == std::fs::canonicalize(b).ok())
}

#[cfg(test)]
mod tests {
    use super::inputs;

    #[test]
    fn a_part_of_a_model_stands_for_all() {
        let names = |path: &str| -> Vec<String> {
            let paths = inputs(std::path::Path::new(path)).into_iter();
            paths.map(|path| path.display().to_string()).collect()
        };
        let both = ["d/m-00001-of-00002.gguf", "d/m-00002-of-00002.gguf"];
        assert_eq!(names("d/m-00001-of-00002.gguf"), both);
        for whole in ["d/m.gguf", "d/m-of-2.gguf", "d/m-1-of-00002.gguf", "m-00001-of-x.gguf"] {
            assert_eq!(names(whole), [whole]);
        }
    }
}
