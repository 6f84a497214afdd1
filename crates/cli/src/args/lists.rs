//! Flags that take lists in one command and single values in the others, with one declaration.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use clap::error::Error;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};

/// The flags of `L`. Those that `S` declares for single values under the same name take the whole declaration from there:
/// spelling, help, variable and default. `L` only says how an item of the list is parsed.
#[derive(Clone, Debug)]
pub struct Lists<L, S> {
    lists: L,
    single: PhantomData<S>,
}

impl<L, S> Deref for Lists<L, S> {
    type Target = L;

    fn deref(&self) -> &L {
        &self.lists
    }
}

impl<L, S> DerefMut for Lists<L, S> {
    fn deref_mut(&mut self) -> &mut L {
        &mut self.lists
    }
}

impl<L: Args, S: Args> Args for Lists<L, S> {
    fn augment_args(command: Command) -> Command {
        let single = S::augment_args(Command::new("single"));
        let lists = L::augment_args(Command::new("lists"));
        command.args(lists.get_arguments().map(|list| {
            let declared = single.get_arguments().find(|single| single.get_id() == list.get_id());
            declared.map_or(list.clone(), |declared| listed(declared, list))
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<L: FromArgMatches, S> FromArgMatches for Lists<L, S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Lists<L, S>, Error> {
        L::from_arg_matches(matches).map(|lists| Lists { lists, single: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        self.lists.update_from_arg_matches(matches)
    }
}

/// The flag `list` with the declaration of the flag `single`.
fn listed(single: &Arg, list: &Arg) -> Arg {
    let takes_values = |arg: &Arg| arg.get_action().takes_values();
    match (takes_values(single), takes_values(list)) {
        // A switch in both, or one value in both.
        (false, false) => single.clone(),
        (true, _) if list.get_value_delimiter().is_none() => single.clone(),
        (true, _) => single
            .clone()
            .action(list.get_action().clone())
            .value_delimiter(list.get_value_delimiter())
            .value_parser(list.get_value_parser().clone())
            .value_name("LIST")
            .allow_negative_numbers(true),
        // A switch becomes a list of 0 and 1, which needs its own declaration but for the help.
        (false, true) => match single.get_help() {
            Some(help) => list.clone().help(help.clone()),
            None => list.clone(),
        },
    }
}
