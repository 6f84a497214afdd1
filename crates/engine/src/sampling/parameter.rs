//! The numbers that configure samplers. Each is declared once, beside its sampler: the command line makes a flag of it, a
//! chat a setting, and a request may name it.

use super::options::{Options, OptionsError};
use super::{LINKS, Link, Phase};

/// A number that configures a sampler.
#[derive(Debug)]
pub struct Parameter {
    /// The name of its flag, without dashes.
    pub name: &'static str,
    /// Another name, as llama.cpp has it.
    pub alias: Option<&'static str>,
    /// One line of help.
    pub help: &'static str,
    /// The type of its values, and its field.
    pub field: Field,
}

/// The field of [`Options`] that a parameter sets: how it is read and written.
#[derive(Clone, Copy, Debug)]
pub enum Field {
    /// A real number.
    Real(fn(&Options) -> f32, fn(&mut Options, f32)),
    /// A whole number.
    Count(fn(&Options) -> usize, fn(&mut Options, usize)),
    /// A number of tokens to look back on; -1 is `None`, the whole context.
    Window(fn(&Options) -> Option<usize>, fn(&mut Options, Option<usize>)),
}

impl Parameter {
    /// A parameter without an alias.
    pub(super) const fn new(name: &'static str, help: &'static str, field: Field) -> Parameter {
        Parameter { name, alias: None, help, field }
    }

    /// The parameter with another name.
    pub(super) const fn or(self, alias: &'static str) -> Parameter {
        Parameter { alias: Some(alias), ..self }
    }

    /// Its value in `options`, as text that [`set`](Parameter::set) reads.
    pub fn text(&self, options: &Options) -> String {
        match self.field {
            Field::Real(get, _) => get(options).to_string(),
            Field::Count(get, _) => get(options).to_string(),
            Field::Window(get, _) => get(options).map_or("-1".to_owned(), |n| n.to_string()),
        }
    }

    /// Sets its field; whether the value is within its range is for [`Options::check`].
    ///
    /// # Errors
    /// Text that is not a number of its type.
    pub fn set(&self, options: &mut Options, text: &str) -> Result<(), OptionsError> {
        let wrong = |expected: &str| OptionsError {
            name: self.name,
            found: text.to_owned(),
            expected: expected.to_owned(),
        };
        match self.field {
            Field::Real(_, set) => {
                set(options, text.parse().map_err(|_| wrong("a number"))?);
            }
            Field::Count(_, set) => {
                set(options, text.parse().map_err(|_| wrong("a whole number"))?);
            }
            Field::Window(_, set) => {
                let tokens: i64 = text.parse().map_err(|_| wrong("a whole number"))?;
                if tokens < -1 {
                    return Err(wrong("a number of tokens, or -1"));
                }
                set(options, usize::try_from(tokens).ok());
            }
        }
        Ok(())
    }
}

/// All parameters: first those of the temperature and of a target, then the others in the default order of their samplers.
pub fn parameters() -> impl Iterator<Item = &'static Parameter> {
    let of = |temperature: bool| {
        let is_first = |link: &&Link| matches!(link.phase, Phase::Temperature | Phase::Target);
        LINKS.iter().filter(move |link| is_first(link) == temperature)
    };
    of(true).chain(of(false)).flat_map(|link| link.parameters)
}

impl Options {
    /// Options with the given values of parameters, as text; the others have their defaults. DRY, XTC and mirostat are off
    /// if the parameter that switches them is 0.
    ///
    /// # Errors
    /// The first value that is not a number of its type.
    pub fn parse<'v>(
        values: impl IntoIterator<Item = (&'static Parameter, &'v str)>,
    ) -> Result<Options, OptionsError> {
        let mut options = Options::default();
        for (parameter, text) in values {
            parameter.set(&mut options, text)?;
        }
        options.turn_off_unused();
        Ok(options)
    }

    /// Turns off DRY, XTC and mirostat if the parameter that switches them is 0.
    pub fn turn_off_unused(&mut self) {
        self.dry.take_if(|dry| dry.multiplier == 0.0);
        self.xtc.take_if(|xtc| xtc.probability == 0.0);
        self.mirostat.take_if(|mirostat| mirostat.version == 0);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn defaults_read_back_as_the_default_options() {
        let options = Options::default();
        let texts: Vec<String> = parameters().map(|p| p.text(&options)).collect();
        let values = parameters().zip(texts.iter().map(String::as_str));
        assert_eq!(Options::parse(values), Ok(options));
    }

    #[test]
    fn every_parameter_changes_the_options_and_no_other_parameter() {
        let names: BTreeSet<&str> = parameters().map(|p| p.name).collect();
        assert_eq!(names.len(), parameters().count(), "two parameters have one name");
        for parameter in parameters() {
            let mut options = Options::default();
            parameter.set(&mut options, "2").expect("a number");
            for other in parameters() {
                let is_changed = other.text(&options) != other.text(&Options::default());
                // dry-allowed-length is 2 by default.
                let expected = other.name == parameter.name && other.name != "dry-allowed-length";
                assert_eq!(is_changed, expected, "{} by {}", other.name, parameter.name);
            }
        }
    }

    #[test]
    fn values_that_are_not_numbers_are_refused_by_name() {
        let find = |name| parameters().find(|p| p.name == name).expect("a parameter");
        for (name, text) in
            [("temp", "hot"), ("top-k", "-1"), ("top-k", "1.5"), ("repeat-last-n", "-2")]
        {
            let error = find(name).set(&mut Options::default(), text).expect_err(text);
            assert_eq!((error.name, error.found.as_str()), (name, text));
        }
        let mut options = Options::default();
        assert_eq!(find("repeat-last-n").set(&mut options, "-1"), Ok(()));
        assert_eq!(options.repeat_last_n, None);
    }

    #[test]
    fn a_group_is_on_if_its_switch_is() {
        let find = |name| parameters().find(|p| p.name == name).expect("a parameter");
        let off = Options::parse([(find("dry-base"), "3"), (find("mirostat-ent"), "2")]);
        assert_eq!(off, Ok(Options::default()));
        let on = Options::parse([(find("dry-base"), "3"), (find("dry-multiplier"), "0.5")]);
        let dry = on.expect("numbers").dry.expect("on");
        assert_eq!((dry.base, dry.multiplier, dry.allowed_length, dry.last_n), (3.0, 0.5, 2, None));
    }
}
