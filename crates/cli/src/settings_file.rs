//! `bilayer.toml`: settings given neither by flags nor by the environment.
//!
//! Its keys are the long flags without dashes, at the top level: those that select a model, the length of an answer
//! and sampling, not the request itself. The file is searched in the working directory, then in the user's
//! configuration folder. A key that no command knows is an error; keys that this command does not use are ignored, so
//! that one file serves all.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::args::precedence::{excludes, source};
use crate::failure::Failure;
use crate::folders;

/// The file's name.
const NAME: &str = "bilayer.toml";

/// A command line with the additions of a settings file.
pub struct Completed {
    /// The whole command line, flags first.
    pub arguments: Vec<OsString>,
    /// The file.
    pub path: PathBuf,
}

/// `typed`, with the command in second place, extended by the settings file if there is one.
pub fn complete(
    typed: &[OsString],
    matches: &ArgMatches,
    cli: &Command,
) -> Result<Option<Completed>, Failure> {
    let Some((name, _)) = matches.subcommand() else { return Ok(None) };
    let Some(command) = cli.find_subcommand(name) else { return Ok(None) };
    if settings(command).next().is_none() {
        return Ok(None);
    }
    let Some(path) = candidates().into_iter().find(|path| path.is_file()) else { return Ok(None) };
    let table = parsed(&crate::output::file(&path)?, &path)?;
    with(table, &path, typed, matches, cli).map(Some)
}

/// `typed` extended by the table of the settings file `path`.
fn with(
    table: toml::Table,
    path: &Path,
    typed: &[OsString],
    matches: &ArgMatches,
    cli: &Command,
) -> Result<Completed, Failure> {
    let mut arguments = typed.to_vec();
    let subcommand = matches.subcommand();
    let known = subcommand.and_then(|(name, given)| Some((cli.find_subcommand(name)?, given)));
    let Some((command, given)) = known else {
        return Ok(Completed { arguments, path: path.to_owned() });
    };
    let is_given = |arg: &&Arg| is_by_user(given, arg.get_id().as_str());
    let by_user: Vec<&Arg> = command.get_arguments().filter(is_given).collect();
    for (key, value) in table {
        if !cli.get_subcommands().flat_map(settings).any(|arg| arg.get_long() == Some(&key)) {
            let arguments = cli.get_subcommands().flat_map(Command::get_arguments);
            let is_flag = arguments.into_iter().any(|arg| arg.get_long() == Some(&key));
            let line = match is_flag {
                true => format!("`{key}` cannot be set in a file; give it as --{key}"),
                false => format!("no setting `{key}`; `bilayer run --help` lists the long flags"),
            };
            return Err(Failure::usage(line).in_file(path));
        }
        let Some(arg) = settings(command).find(|arg| arg.get_long() == Some(&key)) else {
            continue;
        };
        let is_excluded = by_user.iter().any(|user| excludes(command, user, arg));
        if is_given(&arg) || is_excluded || chooses_another(given, &key) {
            continue;
        }
        let Some(flags) = flags(arg, &key, &value) else {
            let line = format!(
                "`{key}` has a value of an unsupported type; give text, a number or a list"
            );
            return Err(Failure::usage(line).in_file(path));
        };
        // The position right after the command always precedes a `--`.
        arguments.splice(2..2, flags.into_iter().map(OsString::from));
    }
    Ok(Completed { arguments, path: path.to_owned() })
}

/// Checks the text of settings files. Nothing is read and nothing is run.
pub struct Checker {
    cli: Command,
}

impl Default for Checker {
    fn default() -> Checker {
        let mut cli = crate::args::command();
        cli.build();
        Checker { cli }
    }
}

impl Checker {
    /// The arguments of a command line, the program's name and a command first, with the settings of a text added.
    ///
    /// # Errors
    /// What is wrong with the text, or with the command line that comes of it, in one line.
    pub fn check(&mut self, text: &str, typed: &[OsString]) -> Result<Vec<OsString>, String> {
        let path = Path::new(NAME);
        let table = parsed(text, path).map_err(Failure::into_line)?;
        let matches = self.matches(typed)?;
        let completed = with(table, path, typed, &matches, &self.cli);
        let arguments = completed.map_err(Failure::into_line)?.arguments;
        self.matches(&arguments)?;
        Ok(arguments)
    }

    fn matches(&mut self, typed: &[OsString]) -> Result<ArgMatches, String> {
        self.cli.try_get_matches_from_mut(typed).map_err(|error| error.to_string())
    }
}

/// Whether a flag or its variable gave it.
fn is_by_user(given: &ArgMatches, id: &str) -> bool {
    matches!(source(given, id), Some(ValueSource::CommandLine | ValueSource::EnvVariable))
}

/// Whether `key` names a model and the user named one by another flag.
fn chooses_another(given: &ArgMatches, key: &str) -> bool {
    let flags = ["model", "path", "hf_repo"];
    ["model", "hf-repo", "hf-file"].contains(&key) && flags.iter().any(|id| is_by_user(given, id))
}

/// The flags of a command that a file may set: those with a heading.
fn settings(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| arg.get_help_heading().is_some())
}

/// The flags of a setting. A list repeats a flag that may be repeated; others take it as text with commas.
fn flags(arg: &Arg, key: &str, value: &toml::Value) -> Option<Vec<String>> {
    let flag = |text: String| format!("--{key}={text}");
    Some(match value {
        toml::Value::Boolean(true) => vec![format!("--{key}")],
        toml::Value::Boolean(false) => Vec::new(),
        toml::Value::Array(values) => {
            let texts = values.iter().map(text).collect::<Option<Vec<_>>>()?;
            match arg.get_action() {
                ArgAction::Append => texts.into_iter().map(flag).collect(),
                _ if texts.is_empty() => Vec::new(),
                _ => vec![flag(texts.join(","))],
            }
        }
        value => vec![flag(text(value)?)],
    })
}

/// A value as it would be typed.
fn text(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        _ => None,
    }
}

fn parsed(text: &str, path: &Path) -> Result<toml::Table, Failure> {
    text.parse::<toml::Table>().map_err(|error| {
        let at = error.span().map_or(0, |span| span.start).min(text.len());
        let line = 1 + text.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count();
        let reason = format!("line {line}: {}; write `flag = value`", error.message());
        Failure::usage(reason).in_file(path)
    })
}

fn candidates() -> Vec<PathBuf> {
    let home = folders::given("XDG_CONFIG_HOME").or_else(|| folders::home(".config"));
    let mut paths = vec![PathBuf::from(NAME)];
    paths.extend(home.map(|folder| folder.join("bilayer").join(NAME)));
    paths
}
