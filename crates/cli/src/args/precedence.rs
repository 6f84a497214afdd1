//! Which of two flags that exclude each other counts: what was typed, then what a variable says, then the settings file.

use std::ffi::OsString;

use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, Error};
use clap::parser::ValueSource;
use clap::{Arg, ArgGroup, ArgMatches, Command};

/// Where the value of a flag is from; `None` if it has none, or the command has no such flag.
pub fn source(given: &ArgMatches, id: &str) -> Option<ValueSource> {
    given.try_get_raw(id).ok().flatten().and_then(|_| given.value_source(id))
}

/// Whether a command refuses two of its flags together.
pub fn excludes(command: &Command, a: &Arg, b: &Arg) -> bool {
    let names = |of: &Arg, other: &Arg| {
        command.get_arg_conflicts_with(of).iter().any(|arg| arg.get_id() == other.get_id())
    };
    let is_group = |group: &ArgGroup| {
        let members = [a, b].map(|arg| group.get_args().any(|id| id == arg.get_id()));
        !group.clone().is_multiple() && members == [true; 2]
    };
    let is_one_of = a.get_id() != b.get_id() && command.get_groups().any(is_group);
    names(a, b) || names(b, a) || is_one_of
}

/// The definition of the command line without the variables of flags that a typed one excludes.
pub fn without_excluded_variables(cli: &Command, typed: &[OsString]) -> Command {
    let name = typed.get(1).and_then(|name| cli.find_subcommand(name)).map(Command::get_name);
    let Some(name) = name.map(str::to_owned) else { return cli.clone() };
    let forget = |arg: Arg| arg.env(Resettable::Reset);
    // What was typed alone need not be complete.
    let bare = cli.clone().ignore_errors(true);
    let bare = bare.mut_subcommand(&name, |command| command.ignore_errors(true).mut_args(forget));
    let Ok(matches) = bare.try_get_matches_from(typed) else { return cli.clone() };
    let Some((_, given)) = matches.subcommand() else { return cli.clone() };
    let is_typed =
        |arg: &&Arg| source(given, arg.get_id().as_str()) == Some(ValueSource::CommandLine);
    cli.clone().mut_subcommand(&name, |command| {
        let typed: Vec<Arg> = command.get_arguments().filter(is_typed).cloned().collect();
        let whole = command.clone();
        command.mut_args(|arg| match typed.iter().any(|of| excludes(&whole, of, &arg)) {
            true => forget(arg),
            false => arg,
        })
    })
}

/// The variable that a refused value is from; `None` if the value was typed, or the error is about something else.
pub fn variable(error: &Error, cli: &Command, typed: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(shown)) = error.get(ContextKind::InvalidArg) else { return None };
    let name = typed.get(1).and_then(|name| cli.find_subcommand(name))?.get_name().to_owned();
    let mut args = cli.find_subcommand(&name)?.get_arguments();
    let arg = args.find(|arg| arg.to_string() == *shown)?;
    let (id, variable) = (arg.get_id().clone(), arg.get_env()?);
    std::env::var_os(variable)?;
    let forget = |arg: Arg| if *arg.get_id() == id { arg.env(Resettable::Reset) } else { arg };
    let without = cli.clone().mut_subcommand(&name, |command| command.mut_args(forget));
    let about = |error: &Error| error.get(ContextKind::InvalidArg).map(ToString::to_string);
    let is_typed =
        without.try_get_matches_from(typed).is_err_and(|other| about(&other) == about(error));
    (!is_typed).then(|| variable.to_string_lossy().into_owned())
}
