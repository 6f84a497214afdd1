//! `bilayer.toml`: settings for what neither a flag nor the environment gives.
//!
//! Its keys are the long flags without dashes, at the top level. The file is looked for in the working directory, then in
//! the user's configuration folder. A key that no command knows is an error; one that this command has no use
//! for is passed over, so that one file serves all.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory};

use crate::args::Cli;
use crate::failure::{Failure, USAGE};

/// The file's name.
const NAME: &str = "bilayer.toml";

/// `typed` with what the settings file adds.
pub fn complete(typed: Vec<OsString>, matches: &ArgMatches) -> Result<Vec<OsString>, Failure> {
    let Some((command, given)) = matches.subcommand() else { return Ok(typed) };
    let Some((path, settings)) = read()? else { return Ok(typed) };
    let known: BTreeSet<String> = Cli::command().get_subcommands().flat_map(long_flags).collect();
    let cli = Cli::command();
    let usable: BTreeSet<String> =
        cli.find_subcommand(command).map(|c| long_flags(c).collect()).unwrap_or_default();
    let mut completed = typed;
    // Flags go before a possible `--`; right after the command is always before it.
    let at = completed.iter().position(|arg| arg == command).map_or(completed.len(), |i| i + 1);
    for (key, value) in settings {
        if !known.contains(&key) {
            return Err(Failure::Line(USAGE, format!("{}: no setting `{key}`", path.display())));
        }
        let id = key.replace('-', "_");
        let by_user = usable.contains(&key)
            && matches!(
                given.value_source(&id),
                Some(ValueSource::CommandLine | ValueSource::EnvVariable)
            );
        if !usable.contains(&key) || by_user {
            continue;
        }
        for argument in arguments(&key, &value).ok_or_else(|| {
            let line = format!("{}: `{key}` has a value no flag takes", path.display());
            Failure::Line(USAGE, line)
        })? {
            completed.insert(at, OsString::from(argument));
        }
    }
    Ok(completed)
}

fn long_flags(command: &clap::Command) -> impl Iterator<Item = String> + use<'_> {
    command.get_arguments().filter_map(|a| a.get_long().map(str::to_owned))
}

/// The flags a setting stands for.
fn arguments(key: &str, value: &toml::Value) -> Option<Vec<String>> {
    let flag = |text: String| format!("--{key}={text}");
    Some(match value {
        toml::Value::Boolean(true) => vec![format!("--{key}")],
        toml::Value::Boolean(false) => Vec::new(),
        toml::Value::String(text) => vec![flag(text.clone())],
        toml::Value::Integer(number) => vec![flag(number.to_string())],
        toml::Value::Float(number) => vec![flag(number.to_string())],
        toml::Value::Array(values) => {
            let each = values.iter().map(|v| arguments(key, v)).collect::<Option<Vec<_>>>()?;
            each.into_iter().flatten().collect()
        }
        toml::Value::Datetime(_) | toml::Value::Table(_) => return None,
    })
}

fn read() -> Result<Option<(PathBuf, toml::Table)>, Failure> {
    let Some(path) = candidates().into_iter().find(|path| path.is_file()) else { return Ok(None) };
    let text = crate::output::file(&path)?;
    let table = text.parse::<toml::Table>().map_err(|error| {
        Failure::Line(USAGE, format!("{}: {}", path.display(), error.message()))
    })?;
    Ok(Some((path, table)))
}

fn candidates() -> Vec<PathBuf> {
    let home = std::env::var_os("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".config")));
    let mut paths = vec![PathBuf::from(NAME)];
    paths.extend(home.map(|folder| folder.join("bilayer").join(NAME)));
    paths
}
