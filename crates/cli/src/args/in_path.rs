//! The types of flags that name a file to be read.

use std::any::TypeId;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::str::FromStr;

use bilayer_engine::placement::Simulation;
use bilayer_scheduler::ExpertUses;
use clap::Arg;
use clap::builder::{MapValueParser, PathBufValueParser, TypedValueParser, ValueParserFactory};

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

/// `[NAME=]PATH`: a model, with a name for the output if one is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabeledModel {
    /// Its name.
    pub name: Option<String>,
    /// Its file.
    pub path: PathBuf,
}

impl From<PathBuf> for LabeledModel {
    /// A name has no `/`, and there is no file of the whole value's name.
    fn from(given: PathBuf) -> LabeledModel {
        let split = given.to_str().and_then(|text| text.split_once('='));
        match split {
            Some((name, path)) if !name.contains('/') && !given.exists() => {
                LabeledModel { name: Some(name.to_owned()), path: PathBuf::from(path) }
            }
            _ => LabeledModel { name: None, path: given },
        }
    }
}

impl ValueParserFactory for LabeledModel {
    type Parser = MapValueParser<PathBufValueParser, fn(PathBuf) -> LabeledModel>;

    fn value_parser() -> Self::Parser {
        PathBufValueParser::new().map(LabeledModel::from)
    }
}

/// A file with a strength: `FILE:SCALE`.
pub type Scaled = (PathBuf, f32);

/// How a value names a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// The value is its path.
    Path,
    /// `[NAME=]PATH`.
    Labeled,
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
        (TypeId::of::<LabeledModel>(), Form::Labeled),
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
    let (text, whole) = (value.to_str(), PathBuf::from(value));
    let named = || Some(text?.split_once('=')?.1);
    let scaled = || Some(text?.rsplit_once(':')?.0);
    let part = match form(arg)? {
        Form::Path => None,
        Form::Labeled => return Some(LabeledModel::from(whole).path),
        Form::Named => named(),
        Form::Scaled => scaled(),
    };
    Some(part.map_or(whole, PathBuf::from))
}
