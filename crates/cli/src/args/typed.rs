//! Rewrites the command line before clap parses it: llama.cpp's short flags of several letters, its flags that are not
//! supported, and the default command.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::{Arg, Command};

use super::without_effect::{self, Follows};
use crate::failure::Failure;

/// Short flags of several letters, which clap cannot express, and their long forms.
const SPELLED: &[(&str, &str)] = &[
    ("-hf", "--hf-repo"),
    ("-hfr", "--hf-repo"),
    ("-hff", "--hf-file"),
    ("-hft", "--hf-token"),
    ("-ub", "--ubatch-size"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-fa", "--flash-attn"),
    ("-no-cnv", "--no-conversation"),
    ("-sp", "--special"),
    ("-cnv", "--conversation"),
    ("-sys", "--system-prompt"),
    ("-sysf", "--system-prompt-file"),
    ("-st", "--single-turn"),
    ("-jf", "--json-schema-file"),
    ("-ngl", "--gpu-layers"),
    ("-ot", "--override-tensor"),
    ("-ncmoe", "--n-cpu-moe"),
    ("-cmoe", "--cpu-moe"),
    ("-nkvo", "--no-kv-offload"),
    ("-dev", "--device"),
    ("-ts", "--tensor-split"),
    ("-sm", "--split-mode"),
    ("-mg", "--main-gpu"),
    ("-fitt", "--fit-target"),
    ("-np", "--parallel"),
    ("-kvu", "--kv-unified"),
    ("-to", "--timeout"),
    ("-pg", "--prompt-gen"),
    ("-mmp", "--mmap"),
    ("-md", "--model-draft"),
    ("-ngld", "--gpu-layers-draft"),
];

/// Flags of llama.cpp that ask for our default behaviour.
const ALWAYS: &[&str] = &[
    "--no-display-prompt",
    "--no-warmup",
    "--no-context-shift",
    "--no-ppl",
    "-e",
    "--escape",
    "--deterministic",
    "--jinja",
    "--progress",
];

/// Names reserved for future commands.
const LATER: &str = "batch prune";

const CHATS: &str = "use -cnv to chat; a line that ends in \\ is continued";
const LOCAL: &str =
    "give -hf ORG/REPO and --hf-file FILE, or download the file and give its path with -m";
const DRAFT: &str = "give -md hf:ORG/REPO:QUANT";
const CHAIN: &str = "samplers run in a fixed order; set each with its own flag";
const OWN: &str = "RoPE scaling is read from the model file; remove the flag";
const AS_MODEL: &str =
    "the draft model has the same settings as the model, except -ngld; remove the flag";
const OWN_TEXT: &str = "--lookup searches only the prompt and the answer; remove the flag";
const ONE_FILE: &str = "only one complete model file is supported; give it with -m";

/// Flags of llama.cpp that are not supported yet, and what to do instead.
const NOT_YET: &[(&[&str], &str)] = &[
    (&["-i", "--interactive", "-if", "--interactive-first"], CHATS),
    (&["--in-prefix", "--in-suffix", "-mli", "--multiline-input"], CHATS),
    (&["-mu", "--model-url"], LOCAL),
    (&["-hfd", "-hfrd", "--hf-repo-draft"], DRAFT),
    (&["--samplers", "--sampling-seq", "--sampler-seq", "--top-nsigma"], CHAIN),
    (&["--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale"], OWN),
    (&["--yarn-orig-ctx", "--yarn-ext-factor", "--yarn-attn-factor"], OWN),
    (&["--yarn-beta-slow", "--yarn-beta-fast", "-gan", "--grp-attn-n", "-gaw"], OWN),
    (&["--lora", "--lora-scaled", "--control-vector", "--override-kv"], ONE_FILE),
    (&["-mm", "--mmproj"], ONE_FILE),
    (&["-devd", "--device-draft", "-td", "--threads-draft", "-cd", "--ctx-size-draft"], AS_MODEL),
    (&["-ctkd", "--cache-type-k-draft", "-ctvd", "--cache-type-v-draft"], AS_MODEL),
    (&["-lcs", "--lookup-cache-static", "-lcd", "--lookup-cache-dynamic"], OWN_TEXT),
];

/// The command line rewritten for `cli` (built): with a command in second place, and long forms of the short flags that
/// clap cannot parse. Flags without effect are left out, each with a note.
///
/// # Errors
/// A flag or command that is not supported, with what to do instead.
pub fn ready(
    typed: Vec<OsString>,
    cli: &Command,
    notes: &mut Vec<String>,
) -> Result<Vec<OsString>, Failure> {
    let mut typed = typed.into_iter();
    let mut ready = vec![typed.next().unwrap_or_else(|| OsString::from("bilayer"))];
    let mut rest: Vec<OsString> = typed.collect();
    let shows = ["-h", "--help", "-V", "--version"];
    match rest.first().and_then(|first| first.to_str()) {
        Some(first) if shows.contains(&first) => {}
        Some(first) if LATER.split(' ').any(|later| later == first) => {
            return Err(Failure::usage(format!(
                "the command `{first}` is not available yet; `bilayer --help` lists the commands"
            )));
        }
        Some(first) if !first.starts_with('-') => ready.push(rest.remove(0)),
        _ => ready.push(OsString::from("run")),
    }
    let command = ready.get(1).and_then(|name| cli.find_subcommand(name));
    if command.is_some_and(|command| command.get_name() == "serve") {
        name_models(&mut rest);
    }
    let mut verbatim = false;
    let mut expecting: Option<&Arg> = None;
    let mut skips = false;
    for arg in rest {
        if std::mem::take(&mut skips) {
            continue;
        }
        let value = expecting.take().is_some_and(|flag| is_value(flag, &arg));
        verbatim |= !value && arg == "--";
        if value || verbatim {
            ready.push(arg);
            continue;
        }
        let knows = |name: &str| command.is_some_and(|command| has(command, name));
        let name = arg.to_str().unwrap_or_default();
        let (name, own) = name.split_once('=').map_or((name, None), |(n, v)| (n, Some(v)));
        if let Some((follows, note)) = without_effect::find(name).filter(|_| !knows(name)) {
            skips = follows == Follows::Value && own.is_none();
            notes.extend(note);
            continue;
        }
        let Some(arg) = flag(arg, &knows)? else { continue };
        expecting = command.and_then(|command| find(command, &arg));
        ready.push(arg);
    }
    Ok(ready)
}

/// Writes `-m NAME=PATH`, which may be repeated, as `--add-model NAME=PATH`.
fn name_models(rest: &mut [OsString]) {
    for at in 1..rest.len() {
        let is_model = rest[at - 1] == "-m" || rest[at - 1] == "--model";
        let is_named = rest[at].to_str().and_then(|value| value.split_once('=')).is_some_and(
            |(name, path)| !name.is_empty() && !path.is_empty() && !name.contains(['/', '\\']),
        );
        if is_model && is_named && !Path::new(&rest[at]).exists() {
            rest[at - 1] = OsString::from("--add-model");
        }
    }
}

/// The `LLAMA_ARG_*` variables among `set` that no command reads.
pub fn unread_variables(set: impl Iterator<Item = OsString>, cli: &Command) -> BTreeSet<String> {
    let read: BTreeSet<&OsStr> =
        cli.get_subcommands().flat_map(Command::get_arguments).filter_map(Arg::get_env).collect();
    set.filter(|name| !read.contains(name.as_os_str()))
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name.starts_with("LLAMA_ARG_"))
        .collect()
}

/// A flag as clap knows it, or `None` if it asks for the default behaviour. Flags that the command `knows` are kept.
fn flag(arg: OsString, knows: &dyn Fn(&str) -> bool) -> Result<Option<OsString>, Failure> {
    let Some(text) = arg.to_str() else { return Ok(Some(arg)) };
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    if knows(name) {
        return Ok(Some(arg));
    }
    if let Some((_, advice)) = NOT_YET.iter().find(|(names, _)| names.contains(&name)) {
        return Err(Failure::usage(format!("{name} is not supported yet; {advice}")));
    }
    if ALWAYS.contains(&text) {
        return Ok(None);
    }
    if let Some((_, long)) = SPELLED.iter().find(|(short, _)| *short == name) {
        let spelled = value.map_or((*long).to_owned(), |value| format!("{long}={value}"));
        return Ok(Some(OsString::from(spelled)));
    }
    let mut letters = text.strip_prefix('-').unwrap_or_default().chars();
    let joined = letters.next().is_some_and(char::is_alphabetic)
        && letters.next().is_some_and(char::is_alphabetic);
    if joined {
        let known = SPELLED.iter().map(|(short, _)| *short).collect::<Vec<_>>().join(", ");
        return Err(Failure::usage(format!(
            "unexpected argument '{text}'; short flags of several letters are {known}; \
             separate a one-letter flag from its value by a space"
        )));
    }
    Ok(Some(arg))
}

/// Whether `command` has a long flag of that name.
fn has(command: &Command, name: &str) -> bool {
    let Some(name) = name.strip_prefix("--") else { return false };
    command.get_arguments().any(|option| named(option, name))
}

/// Whether `name`, without dashes, is a long name of `option`.
fn named(option: &Arg, name: &str) -> bool {
    option.get_long() == Some(name)
        || option.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
}

/// The option of `command` that `arg` names if its value is the next argument.
fn find<'c>(command: &'c Command, arg: &OsStr) -> Option<&'c Arg> {
    let arg = arg.to_str()?;
    command.get_arguments().filter(|option| option.get_action().takes_values()).find(|option| {
        let long = arg.strip_prefix("--").is_some_and(|name| named(option, name));
        let mut letters = arg.strip_prefix('-').unwrap_or_default().chars();
        let short = option.get_short().is_some() && option.get_short() == letters.next();
        long || short && letters.next().is_none()
    })
}

/// Whether clap reads `arg` as the value of `flag`, even if it looks like a flag.
fn is_value(flag: &Arg, arg: &OsStr) -> bool {
    let text = arg.to_string_lossy();
    let number = flag.is_allow_negative_numbers_set() && text.parse::<f64>().is_ok();
    !text.starts_with('-') || text == "-" || flag.is_allow_hyphen_values_set() || number
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn prepared(line: &str) -> Result<Vec<OsString>, String> {
        let mut cli = crate::args::Cli::command();
        cli.build();
        let typed = line.split(' ').map(OsString::from).collect();
        ready(typed, &cli, &mut Vec::new()).map_err(|failure| format!("{failure:?}"))
    }

    #[test]
    fn command_lines_become_those_that_clap_reads() {
        let cases = [
            ("bilayer", "bilayer run"),
            ("bilayer -m x", "bilayer run -m x"),
            ("bilayer --help", "bilayer --help"),
            ("bilayer inspect x", "bilayer inspect x"),
            ("bilayer run -ub 8 -fa", "bilayer run --ubatch-size 8 --flash-attn"),
            ("bilayer run -ctk=f32 -no-cnv", "bilayer run --cache-type-k=f32 --no-conversation"),
            ("bilayer run --no-warmup -n -1", "bilayer run -n -1"),
            ("bilayer -cnv --jinja -sys -x", "bilayer run --conversation --system-prompt -x"),
            ("bilayer bench --no-warmup -pg 8,4", "bilayer bench --no-warmup --prompt-gen 8,4"),
            ("bilayer bench -ngl -1 -mmp 0", "bilayer bench --gpu-layers -1 --mmap 0"),
            ("bilayer run -p -ngl -n 5", "bilayer run -p -ngl -n 5"),
            ("bilayer tokenize -- -ub", "bilayer tokenize -- -ub"),
            ("bilayer run -n5", "bilayer run -n5"),
            ("bilayer -ts 3,1 -sm layer", "bilayer run --tensor-split 3,1 --split-mode layer"),
            ("bilayer run -tb 1 -n 5 --numa=isolate --fit on", "bilayer run -n 5"),
            ("bilayer server -m a=b.gguf -m c", "bilayer server --add-model a=b.gguf -m c"),
            ("bilayer serve -cb --slots -cram 10 -lv=3 -np 2", "bilayer serve --parallel 2"),
            ("bilayer -dev a,b -mg 1", "bilayer run --device a,b --main-gpu 1"),
        ];
        for (typed, expected) in cases {
            let expected: Vec<OsString> = expected.split(' ').map(OsString::from).collect();
            assert_eq!(prepared(typed), Ok(expected), "{typed}");
        }
    }

    #[test]
    fn unsupported_flags_are_refused_by_name() {
        for line in ["run --lora x", "run --override-kv=row", "-mli", "run -m x -fa -td none"] {
            let error = prepared(&format!("bilayer {line}")).expect_err(line);
            assert!(error.contains("is not supported yet; "), "{line}: {error}");
        }
        assert!(prepared("bilayer run -nkv").is_err_and(|e| e.contains("'-nkv'")));
        assert!(prepared("bilayer batch").is_err_and(|e| e.contains("not available yet")));
    }

    #[test]
    fn no_flag_is_both_supported_and_not() {
        let mut cli = crate::args::Cli::command();
        cli.build();
        let run = cli.find_subcommand("run").expect("run is a command");
        let refused = NOT_YET.iter().flat_map(|(names, _)| *names).copied();
        for name in refused.chain(ALWAYS.iter().copied()).chain(without_effect::names()) {
            assert!(find(run, OsStr::new(name)).is_none(), "{name}");
        }
        for (_, long) in SPELLED {
            let long = long.strip_prefix("--");
            let mut flags = cli.get_subcommands().flat_map(Command::get_arguments);
            assert!(flags.any(|option| option.get_long() == long), "{long:?}");
        }
    }
}
