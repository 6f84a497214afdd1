//! Texts that name settings.

use std::fmt;

use crate::Setting;

/// A text that names settings: `{}` writes it for the command line with flags, `{:#}` for programs with names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
// With flags, with names; in a box, so that errors with phrases stay small.
pub struct Phrase(Box<[String; 2]>);

impl Phrase {
    /// Appends a text that is different in the two forms.
    #[must_use]
    pub fn either(mut self, flags: &str, names: &str) -> Phrase {
        self.0[0] += flags;
        self.0[1] += names;
        self
    }

    /// Appends a text without settings.
    #[must_use]
    pub fn text(self, text: &str) -> Phrase {
        self.either(text, text)
    }

    /// Appends a phrase.
    #[must_use]
    pub fn join(self, other: &Phrase) -> Phrase {
        self.either(&other.0[0], &other.0[1])
    }

    /// Appends a setting: `--numa`, or `` `numa` ``.
    #[must_use]
    pub fn setting(self, setting: Setting) -> Phrase {
        self.either(setting.flag(), &format!("`{}`", setting.name()))
    }

    /// Appends a setting as a noun in the sentence: `context (-c)`, or `` `context` ``.
    #[must_use]
    pub fn noun(self, noun: &str, setting: Setting) -> Phrase {
        let flag = setting.flag();
        self.either(&format!("{noun} ({flag})"), &format!("`{}`", setting.name()))
    }

    /// Appends a setting with a value: `-ngl 3`, or `gpu_layers=3`.
    #[must_use]
    pub fn value(self, setting: Setting, value: impl fmt::Display) -> Phrase {
        let (flag, name) = (setting.flag(), setting.name());
        self.either(&format!("{flag} {value}"), &format!("{name}={value}"))
    }

    /// Appends a setting as the subject of a sentence: `ctx-size`, or `context`.
    #[must_use]
    pub fn subject(self, setting: Setting) -> Phrase {
        self.either(setting.flags()[0].trim_start_matches('-'), setting.name())
    }
}

impl fmt::Display for Phrase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0[usize::from(f.alternate())])
    }
}

impl From<&str> for Phrase {
    fn from(text: &str) -> Phrase {
        Phrase::default().text(text)
    }
}

impl From<String> for Phrase {
    fn from(text: String) -> Phrase {
        Phrase::from(&*text)
    }
}

impl From<Setting> for Phrase {
    /// The setting as a subject.
    fn from(setting: Setting) -> Phrase {
        Phrase::default().subject(setting)
    }
}

#[cfg(test)]
mod tests {
    use super::{Phrase, Setting};

    #[test]
    fn settings_are_flags_or_names() {
        let both = |phrase: Phrase| [phrase.to_string(), format!("{phrase:#}")];
        let empty = Phrase::default;
        assert_eq!(both(empty().setting(Setting::Numa)), ["--numa", "`numa`"]);
        assert_eq!(
            both(empty().noun("batch", Setting::UbatchSize)),
            ["batch (-ub)", "`ubatch_size`"]
        );
        assert_eq!(both(empty().value(Setting::GpuLayers, 7)), ["-ngl 7", "gpu_layers=7"]);
        assert_eq!(both(Setting::GpuBytes.into()), ["vram", "gpu_bytes"]);
        assert_eq!(both(empty().text("a").either("b", "c").text("d")), ["abd", "acd"]);
    }
}
