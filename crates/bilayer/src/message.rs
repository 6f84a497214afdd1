//! Messages of errors for programs, which have settings where the command line has flags.

use crate::Error;

/// Flags in messages and advice, with what a program sets instead.
const SETTINGS: &[(&str, &str)] = &[
    (", a shorter context (-c) or a smaller batch (-ub)", " or a shorter `context`"),
    ("shorter context (-c) or a smaller batch (-ub)", "shorter `context`"),
    ("context (-c)", "`context`"),
    ("threads (-t)", "`threads`"),
    ("a draft model (-md)", "`draft_model`"),
    ("-ngl ", "gpu_layers="),
    ("--expert-cache", "`expert_cache`"),
    ("--chat-template", "`chat_template`"),
    ("--truncate", "`truncate`"),
    ("--lookup", "`lookup`"),
    ("`Builder::embeddings`", "`embeddings`"),
    ("`Model::classify`", "`classify`"),
    ("--numa", "`numa`"),
];

/// An error with its [advice](Error::advice), in which arguments have the names of [`Builder`](crate::Builder)'s methods
/// instead of flags: what the interfaces for C and Python report.
///
/// ```
/// # let path = "crates/cli/assets/demo.gguf";
/// let mut model = bilayer::Model::builder(path).context(16).open()?;
/// let error = model.generate("O me! ".repeat(100)).err().expect("a long prompt");
/// assert!(bilayer::message(&error).ends_with("; use a larger `context` or a shorter prompt"));
/// # Ok::<(), bilayer::Error>(())
/// ```
pub fn message(error: &Error) -> String {
    let text = format!("{error}{}", error.advice());
    SETTINGS.iter().fold(text, |text, (flag, setting)| text.replace(flag, setting))
}
