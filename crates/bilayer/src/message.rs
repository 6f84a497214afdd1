//! Messages of errors for programs, which have settings where the command line has flags.

use crate::builder::names as settings;
use crate::{Error, parameters};

/// Flags in messages and advice, what a program reads instead, and the setting that it must have for that.
const SETTINGS: &[(&str, &str, &str)] = &[
    // Before the rows that leave the batch out.
    ("batch (-ub)", "`ubatch_size`", "ubatch_size"),
    ("-ub", "`ubatch_size`", "ubatch_size"),
    ("parallel (-np)", "parallel", "parallel"),
    ("-np", "`parallel`", "parallel"),
    (", a shorter context (-c) or a smaller batch (-ub)", " or a shorter `context`", "context"),
    ("shorter context (-c) or a smaller batch (-ub)", "shorter `context`", "context"),
    ("context (-c)", "`context`", "context"),
    ("threads (-t)", "`threads`", "threads"),
    ("a draft model (-md)", "`draft_model`", "draft_model"),
    ("-ngl ", "gpu_layers=", "gpu_layers"),
    ("--expert-cache", "`expert_cache`", "expert_cache"),
    ("--chat-template", "`chat_template`", "chat_template"),
    ("--chat-template-file", "`chat_template`", "chat_template"),
    ("--truncate", "`truncate`", "truncate"),
    ("--lookup", "`lookup`", "lookup"),
    ("`Builder::embeddings`", "`embeddings`", "embeddings"),
    ("`Model::classify`", "`classify`", "classify"),
    ("--pooling last or mean", "`pooling` last or mean", "pooling"),
    ("--numa", "`numa`", "numa"),
    ("--imatrix ", "imatrix=", "imatrix"),
    ("--allow-requantize", "`allow_requantize`", "allow_requantize"),
    ("--no-vocab", "`no_vocab`", "no_vocab"),
    ("no --offline, no HF_HUB_OFFLINE", "no HF_HUB_OFFLINE", "hub"),
    ("--offline", "HF_HUB_OFFLINE=1", "hub"),
    ("--hf-token or HF_TOKEN", "HF_TOKEN", "hub"),
];

/// Options that messages begin with, where the setting has another name than with underscores for dashes.
const RENAMED: &[(&str, &str)] = &[
    ("ctx-size", "context"),
    ("ctx-checkpoints", "checkpoints"),
    ("cache-type-k", "cache_type"),
    ("cache-type-v", "cache_type"),
    ("k-cache-hadamard", "hadamard_keys"),
    ("vram", "gpu_bytes"),
    ("fit-target", "margin_bytes"),
    ("temp", "temperature"),
];

/// An error with its [advice](Error::advice), in which arguments have the names of [`Builder`](crate::Builder)'s methods
/// instead of flags: what the interface for Python reports.
///
/// ```
/// # let path = "crates/cli/assets/demo.gguf";
/// let mut model = bilayer::Model::builder(path).context(16).open()?;
/// let error = model.generate("O me! ".repeat(100)).err().expect("a long prompt");
/// assert!(bilayer::message(&error).ends_with("; use a larger `context` or a shorter prompt"));
/// # Ok::<(), bilayer::Error>(())
/// ```
pub fn message(error: &Error) -> String {
    with_settings(&format!("{error}{}", error.advice()), |_| true)
}

/// The text of an error, in which the flags of those settings that the program `has` are replaced by them. Settings are named
/// as [`Builder`](crate::Builder)'s methods, as the flags of sampling with underscores for dashes (`temp` as `temperature`),
/// `truncate`, `classify`, `imatrix`, `allow_requantize`, `no_vocab`, and `hub` for the environment of the Hugging Face hub.
///
/// ```
/// let text = "it does not fit: use -ngl 3 or --expert-cache";
/// let shown = bilayer::with_settings(text, |name| name == "gpu_layers");
/// assert_eq!(shown, "it does not fit: use gpu_layers=3 or --expert-cache");
/// ```
pub fn with_settings(text: &str, has: impl Fn(&str) -> bool) -> String {
    let text = begun(text, &has).unwrap_or_else(|| text.to_owned());
    let known = SETTINGS.iter().filter(|(.., name)| has(name));
    known.fold(text, |text, (flag, setting, _)| replaced(&text, flag, setting))
}

/// A text that begins with an option that is out of range, with the setting in its place; `None` for any other text.
fn begun(text: &str, has: impl Fn(&str) -> bool) -> Option<String> {
    let (option, rest) = text.split_once(" is ")?;
    let renamed = RENAMED.iter().find(|(name, _)| *name == option).map(|(_, name)| (*name).into());
    let named = option.replace('-', "_");
    let is_known = settings().any(|name| name == named)
        || parameters().any(|parameter| parameter.name == option)
        || option == "logit-bias";
    let setting = renamed.or(is_known.then_some(named))?;
    has(&setting).then(|| format!("{setting} is {rest}"))
}

/// A text with a flag replaced where it is a word of its own, and not a part of a path or of a longer flag.
fn replaced(text: &str, flag: &str, setting: &str) -> String {
    let is_word = |c: char| c.is_alphanumeric() || "-_".contains(c);
    let (mut made, mut rest) = (String::with_capacity(text.len()), 0);
    for (at, _) in text.match_indices(flag) {
        let (before, after) = (&text[..at], &text[at + flag.len()..]);
        let begins =
            before.is_empty() || before.ends_with([' ', '(', '`']) || flag.starts_with(',');
        if begins && !(flag.ends_with(is_word) && after.starts_with(is_word)) {
            made += &text[rest..at];
            made += setting;
            rest = at + flag.len();
        }
    }
    made + &text[rest..]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::{SETTINGS, with_settings};

    /// Flags in texts of the libraries that no program sees instead of a setting: those of commands and of other programs.
    const OTHERS: &[&str] = &[
        "--calibration",
        "--cpunodebind",
        "--drop-layers",
        "--exact",
        "--head-dim",
        "--ignored",
        "--kl-base",
        "--lora",
        "--membind",
        "--method",
        "--parallel",
        "--pattern",
        "--target-bpw",
        "--target-kl",
        "--target-speed",
        "--tensor-type",
        "--test",
        "--tokens",
        "--type",
        "--vram",
    ];

    #[test]
    fn only_flags_are_replaced() {
        let all = |text| with_settings(text, |_| true);
        for path in ["models--lookup-ai--x/a.gguf: no such file", "/a/--numa/b.gguf: is short"] {
            assert_eq!(all(path), path);
        }
        assert_eq!(all("use --lookup-ngram 3"), "use --lookup-ngram 3");
        assert_eq!(all("(--lookup, --numa)"), "(`lookup`, `numa`)");
        let fits = "use -ngl 0, a shorter context (-c) or a smaller batch (-ub)";
        let both = "use gpu_layers=0, a shorter `context` or a smaller `ubatch_size`";
        assert_eq!(all(fits), both);
        let some = |text| with_settings(text, |name| ["gpu_layers", "context"].contains(&name));
        assert_eq!(some(fits), "use gpu_layers=0 or a shorter `context`");
        let more = "-ngl 7 fits, as does more with a shorter context (-c) or a smaller batch (-ub)";
        assert!(all(more).ends_with("a shorter `context` or a smaller `ubatch_size`"));
        assert!(some(more).ends_with("as does more with a shorter `context`"));
        assert_eq!(all("; use smaller steps (-ub)"), "; use smaller steps (`ubatch_size`)");
        let step = "parallel (-np) is 9; use a smaller -np or a larger -ub";
        let expected = "parallel is 9; use a smaller `parallel` or a larger `ubatch_size`";
        assert_eq!(all(step), expected);
        assert_eq!(all("--expert-cache 3MiB fits"), "`expert_cache` 3MiB fits");
        assert_eq!(all("(no --offline, no HF_HUB_OFFLINE)"), "(no HF_HUB_OFFLINE)");
        assert_eq!(all("or use --offline with"), "or use HF_HUB_OFFLINE=1 with");
        let drafts = "drafts can come from --lookup or a draft model (-md)";
        assert_eq!(with_settings(drafts, |name| name == "context"), drafts);
    }

    #[test]
    fn options_out_of_range_are_named_as_settings() {
        for (text, expected) in [
            (
                "ctx-size is 9; it must be between 0 and 8",
                "context is 9; it must be between 0 and 8",
            ),
            ("temp is -1; it must be a number", "temperature is -1; it must be a number"),
            ("top-k is 1.5; it must be a whole number", "top_k is 1.5; it must be a whole number"),
            ("expert-cache is auto; it must be 0", "expert_cache is auto; it must be 0"),
            ("draft-max is 0; it must be 1", "draft_max is 0; it must be 1"),
            ("logit-bias is x; it must be 1", "logit_bias is x; it must be 1"),
            ("main-gpu is 3; it must be 1", "main_gpu is 3; it must be 1"),
            (
                "fit-target is a list of 3; it must be 1",
                "margin_bytes is a list of 3; it must be 1",
            ),
            ("the top-k is 3", "the top-k is 3"),
        ] {
            assert_eq!(with_settings(text, |_| true), expected);
            assert_eq!(with_settings(text, |_| false), text);
        }
    }

    /// The flags in a line of code that are in its texts.
    fn flags(line: &str) -> impl Iterator<Item = &str> {
        let is_text = !line.trim_start().starts_with("//");
        let words = line.split([' ', '(', '`', '"', '=']).filter(move |_| is_text);
        let names = words.filter_map(|word| {
            let name =
                word.strip_prefix("--").filter(|name| name.starts_with(char::is_alphabetic))?;
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
            Some(&word[..2 + name.find(|c| !is_name(c)).unwrap_or(name.len())])
        });
        names.filter(|name| *name == name.to_lowercase())
    }

    fn collect(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                collect(&path, found);
            } else if path.extension().is_some_and(|of| of == "rs") {
                let text = std::fs::read_to_string(&path).expect("a source file");
                found.extend(text.lines().flat_map(flags).map(str::to_owned));
            }
        }
    }

    /// A flag that is new in a message needs a row of the table, or is one of the others.
    #[test]
    fn every_flag_in_messages_of_the_libraries_is_known() {
        let mut found = BTreeSet::new();
        for name in
            ["convert", "cpu", "engine", "gpu", "hub", "measure", "models", "scheduler", "text"]
        {
            // The package of this library is the repository's.
            let folder =
                Path::new(env!("CARGO_MANIFEST_DIR")).join("crates").join(name).join("src");
            collect(&folder, &mut found);
        }
        let is_known =
            |flag: &&String| SETTINGS.iter().any(|(text, ..)| text.contains(flag.as_str()));
        let unknown: Vec<&String> = found.iter().filter(|flag| !is_known(flag)).collect();
        assert_eq!(unknown, OTHERS);
    }
}
