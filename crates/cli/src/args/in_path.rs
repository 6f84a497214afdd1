//! The types of flags that name a file to be read.

use std::any::TypeId;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use bilayer_engine::placement::Simulation;
use bilayer_scheduler::ExpertUses;
use clap::Arg;

use super::OutPath;

/// `NAME=PATH`: a model with the name by which it is offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedModel {
    /// Its name.
    pub name: String,
    /// Its file.
    pub path: PathBuf,
}

impl FromStr for NamedModel {
    type Err = String;

    fn from_str(given: &str) -> Result<NamedModel, String> {
        let (name, path) = given.split_once('=').ok_or("it must be NAME=PATH")?;
        Ok(NamedModel { name: name.to_owned(), path: PathBuf::from(path) })
    }
}

/// A file with a strength: `FILE:SCALE`.
pub type Scaled = (PathBuf, f32);

/// How a value names a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// The value is its path, or `NAME=PATH` if there is no file of that name.
    Path,
    /// `NAME=PATH`.
    Named,
    /// `FILE:SCALE`.
    Scaled,
}

/// The types of values that name a file. A flag of one of them is known as an input by its type alone: [`overwrite`] refuses to
/// write to its file.
///
/// [`overwrite`]: crate::overwrite
fn form(arg: &Arg) -> Option<Form> {
    let forms = [
        (TypeId::of::<PathBuf>(), Form::Path),
        // Some are read beside another flag.
        (TypeId::of::<OutPath>(), Form::Path),
        (TypeId::of::<ExpertUses>(), Form::Path),
        (TypeId::of::<Simulation>(), Form::Path),
        (TypeId::of::<NamedModel>(), Form::Named),
        (TypeId::of::<Scaled>(), Form::Scaled),
    ];
    let found = arg.get_value_parser().type_id();
    forms.into_iter().find(|(ty, _)| found == *ty).map(|(_, form)| form)
}

/// Whether the values of an argument name files or folders.
#[cfg(test)]
pub fn names_files(arg: &Arg) -> bool {
    form(arg).is_some()
}

/// The path in a value of an argument, if its values name files.
pub fn path_of(arg: &Arg, value: &OsStr) -> Option<PathBuf> {
    let text = value.to_str();
    let named = || Some(text?.split_once('=')?.1);
    let scaled = || Some(text?.rsplit_once(':')?.0);
    let path = match form(arg)? {
        Form::Path if Path::new(value).exists() => None,
        Form::Path | Form::Named => named(),
        Form::Scaled => scaled(),
    };
    Some(path.map_or_else(|| PathBuf::from(value), PathBuf::from))
}
