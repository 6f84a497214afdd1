//! Messages of errors for programs, which have settings where the command line has flags.

use crate::Error;

/// An error with its [advice](Error::advice), in which arguments have the names of [`Builder`](crate::Builder)'s methods
/// instead of flags: what the interfaces for Python and C report. It is the error's alternate form, `{:#}`.
///
/// ```
/// # let path = "crates/cli/assets/demo.gguf";
/// let mut model = bilayer::Model::builder(path).context(16).open()?;
/// let error = model.generate("O me! ".repeat(100)).err().expect("a long prompt");
/// assert!(bilayer::message(&error).ends_with("; use a larger `context` or a shorter prompt"));
/// assert!(error.advice().to_string().starts_with("; use a larger context (-c)"));
/// # Ok::<(), bilayer::Error>(())
/// ```
pub fn message(error: &Error) -> String {
    format!("{error:#}{:#}", error.advice())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bilayer_engine::Error as Engine;
    use bilayer_settings::Setting;

    use super::message;
    use crate::Error;
    use crate::builder::names;

    /// Settings in messages that are none of [`Builder::set`](crate::Builder::set)'s, with what takes them.
    const OTHERS: &[(&str, &str)] = &[
        ("HF_HUB_OFFLINE", "the environment"),
        ("HF_TOKEN", "the environment"),
        ("aggregation", "Model::extract"),
        ("allow_requantize", "quantize in Python"),
        ("decode_tokens", "profile in Python"),
        ("imatrix", "quantize in Python"),
        ("no_vocab", "convert in Python"),
        ("parallel", "Builder::parallel"),
        ("prompt_name", "embed in Python"),
        ("prompt_tokens", "profile in Python"),
        ("stride", "extract in Python"),
        ("tokens", "a prompt"),
        ("truncate", "Python and C"),
    ];

    #[test]
    fn settings_in_messages_are_those_of_programs() {
        let known: BTreeSet<&str> = names().collect();
        let named: BTreeSet<&str> = Setting::ALL.iter().map(|setting| setting.name()).collect();
        let others: BTreeSet<&str> = OTHERS.iter().map(|(name, _)| *name).collect();
        assert_eq!(named.difference(&known).copied().collect::<BTreeSet<_>>(), others);
    }

    #[test]
    fn messages_name_settings_in_place_of_flags() {
        let large = || {
            let (device, what) = ("gpu".to_owned(), "the KV cache".to_owned());
            bilayer_graph::Error::OutOfMemory { device, what, bytes: 1 }
        };
        let context = || Engine::setting(Setting::Context, 9, "between 0 and 8");
        let lost = Engine::Fallback { lost: large(), source: Box::new(context()) };
        for (error, expected) in [
            (context(), "context is 9; it must be between 0 and 8"),
            (large().into(), "; use a shorter `context`"),
            (lost, "cannot take over: context is 9; it must be between 0 and 8"),
            (
                Engine::TooLong { tokens: 9, context: 8 },
                "the context of 8; shorten it, or take its beginning with `truncate`",
            ),
            (
                Engine::NoMtp { file: "a".into(), key: "b".into() },
                "drafts can come from `lookup` or `draft_model`",
            ),
        ] {
            let error = Error::from(error);
            let text = message(&error);
            assert!(text.ends_with(expected), "{text}");
            let line = format!("{error}{}", error.advice());
            assert_ne!(text, line);
        }
    }
}
