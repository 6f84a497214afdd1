//! Typed access to `config.json`, with errors that name the field.

use serde_json::Value as Json;

use crate::Error;

/// `config.json`, or an object inside it.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'j>(pub &'j Json);

impl<'j> Settings<'j> {
    /// The first of the fields that is present and not null, with its name.
    pub fn get(self, names: &[&'static str]) -> Option<(&'static str, &'j Json)> {
        names.iter().find_map(|&name| self.0.get(name).filter(|v| !v.is_null()).map(|v| (name, v)))
    }

    /// A nested object.
    pub fn part(self, name: &'static str) -> Option<Settings<'j>> {
        self.get(&[name]).map(|(_, part)| Settings(part)).filter(|part| part.0.is_object())
    }

    /// A count or length; `None` if absent or null.
    ///
    /// # Errors
    /// [`Error::Field`] if it has another type.
    pub fn size(self, names: &[&'static str]) -> Result<Option<u32>, Error> {
        let Some((field, value)) = self.get(names) else { return Ok(None) };
        let size = value.as_u64().and_then(|size| u32::try_from(size).ok());
        size.map(Some).ok_or_else(|| unexpected(field, "a whole number", value))
    }

    /// A count or length, or a list of one that is the same in every layer; `None` if absent or null.
    ///
    /// # Errors
    /// [`Error::Field`] if it has another type, or layers differ.
    pub fn size_of_each(self, name: &'static str) -> Result<Option<u32>, Error> {
        match self.get(&[name]) {
            Some((_, Json::Array(list))) => {
                let [first, rest @ ..] = &list[..] else { return Ok(None) };
                let size = first.as_u64().and_then(|size| u32::try_from(size).ok());
                let size = size.filter(|_| rest.iter().all(|other| other == first));
                let expected = "a whole number, the same in every layer";
                size.map(Some).ok_or_else(|| unexpected(name, expected, &Json::Array(list.clone())))
            }
            _ => self.size(&[name]),
        }
    }

    /// A number; `None` if absent or null.
    ///
    /// # Errors
    /// [`Error::Field`] if it has another type or exceeds the range of f32.
    pub fn number(self, names: &[&'static str]) -> Result<Option<f32>, Error> {
        let Some((field, value)) = self.get(names) else { return Ok(None) };
        let number = value.as_f64().map(|number| number as f32).filter(|n| n.is_finite());
        number.map(Some).ok_or_else(|| unexpected(field, "a number", value))
    }

    /// Numbers; `None` if absent or null.
    ///
    /// # Errors
    /// [`Error::Field`] if it has another type.
    pub fn numbers(self, name: &'static str) -> Result<Option<Vec<f32>>, Error> {
        let Some((field, value)) = self.get(&[name]) else { return Ok(None) };
        let number = |value: &Json| value.as_f64().map(|n| n as f32).filter(|n| n.is_finite());
        let numbers =
            value.as_array().and_then(|list| list.iter().map(number).collect::<Option<Vec<_>>>());
        numbers.map(Some).ok_or_else(|| unexpected(field, "a list of numbers", value))
    }

    /// A flag; `None` if absent or null.
    ///
    /// # Errors
    /// [`Error::Field`] if it has another type.
    pub fn flag(self, names: &[&'static str]) -> Result<Option<bool>, Error> {
        let Some((field, value)) = self.get(names) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| unexpected(field, "true or false", value))
    }

    /// A string; `None` if absent or null.
    ///
    /// # Errors
    /// [`Error::Field`] if it has another type.
    pub fn text(self, names: &[&'static str]) -> Result<Option<&'j str>, Error> {
        let Some((field, value)) = self.get(names) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| unexpected(field, "a string", value))
    }
}

/// The error for a value that no model of this kind can have.
pub(super) fn unexpected(field: &str, expected: &str, found: &Json) -> Error {
    let (field, expected, found) = (field.to_owned(), expected.to_owned(), found.to_string());
    Error::Field { field, expected, found }
}
