//! Rewrites the command line before clap parses it: llama.cpp's short flags of several letters, underscores in long
//! flags, flags that the command does not have, and the default command.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::{Arg, Command};

use super::foreign::{self, Given, Outcome};
use crate::failure::Failure;
use crate::locate::KNOWN;

/// Short flags of several letters, which clap cannot express, and their long forms.
const SPELLED: &[(&str, &str)] = &[
    ("-hf", "--hf-repo"),
    ("-hfr", "--hf-repo"),
    ("-hff", "--hf-file"),
    ("-hft", "--hf-token"),
    ("-ub", "--ubatch-size"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-khad", "--k-cache-hadamard"),
    ("-fa", "--flash-attn"),
    ("-no-cnv", "--no-conversation"),
    ("-sp", "--special"),
    ("-cnv", "--conversation"),
    ("-sys", "--system-prompt"),
    ("-sysf", "--system-prompt-file"),
    ("-st", "--single-turn"),
    ("-rea", "--reasoning"),
    ("-jf", "--json-schema-file"),
    ("-ngl", "--gpu-layers"),
    ("-ot", "--override-tensor"),
    ("-ncmoe", "--n-cpu-moe"),
    ("-cmoe", "--cpu-moe"),
    ("-nkvo", "--no-kv-offload"),
    ("-opo", "--op-offload"),
    ("-nopo", "--no-op-offload"),
    ("-dev", "--device"),
    ("-ts", "--tensor-split"),
    ("-sm", "--split-mode"),
    ("-mg", "--main-gpu"),
    ("-fitt", "--fit-target"),
    ("-np", "--parallel"),
    ("-kvu", "--kv-unified"),
    ("-no-kvu", "--no-kv-unified"),
    ("-to", "--timeout"),
    ("-oe", "--output-err"),
    ("-ofreq", "--output-frequency"),
    ("-pg", "--prompt-gen"),
    ("-mmp", "--mmap"),
    ("-md", "--model-draft"),
    ("-ngld", "--gpu-layers-draft"),
];

/// The short form of several letters of a long flag without its dashes.
pub fn short_form(long: &str) -> Option<&'static str> {
    let is = |spelled: &&(&str, &str)| spelled.1.strip_prefix("--") == Some(long);
    SPELLED.iter().find(is).map(|(short, _)| *short)
}

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
        Some("help") => {
            ready.extend(rest.into_iter().skip(1).take(1));
            ready.push(OsString::from("--help"));
            return Ok(ready);
        }
        Some(first) if cli.find_subcommand(first).is_none() && names_model(first) => {
            ready.push(OsString::from("run"));
        }
        Some(first) if !first.starts_with('-') => {
            if cli.find_subcommand(first).is_none()
                && let Some(advice) = elsewhere(first)
            {
                return Err(Failure::usage(format!(
                    "`bilayer {first}` is not a command; {advice}"
                )));
            }
            ready.push(rest.remove(0));
        }
        _ => ready.push(OsString::from("run")),
    }
    let command = ready.get(1).and_then(|name| cli.find_subcommand(name));
    if command.is_some_and(|command| command.get_name() == "serve") {
        name_models(&mut rest);
    }
    join_values(&mut rest);
    let reader = Reader { cli, command };
    let mut verbatim = false;
    let mut expecting: Option<&Arg> = None;
    let mut loose = Vec::new();
    let mut rest = rest.into_iter().peekable();
    while let Some(arg) = rest.next() {
        let value = expecting.take().is_some_and(|flag| is_value(flag, &arg));
        verbatim |= !value && arg == "--";
        if value || verbatim {
            ready.push(arg);
            continue;
        }
        match reader.read(arg, rest.peek().and_then(|next| next.to_str()))? {
            Read::Kept(arg) => {
                expecting = command.and_then(|command| find(command, &arg));
                match command.is_some_and(|command| command.get_name() == "run") {
                    true if !arg.to_string_lossy().starts_with('-') => loose.push(arg),
                    _ => ready.push(arg),
                }
            }
            Read::Dropped { note, takes_next } => {
                notes.extend(note);
                if takes_next {
                    rest.next();
                }
            }
            Read::Replaced { by, takes_next } => {
                ready.push(OsString::from(by));
                if takes_next {
                    rest.next();
                }
            }
        }
    }
    place(loose, &mut ready)?;
    Ok(ready)
}

/// Flags whose second value is joined to the first, and by what: a scale that follows a file, as llama.cpp's earlier
/// versions take it, and the end of a range.
const JOINED: [(&str, &str); 3] = [
    ("--lora-scaled", ":"),
    ("--control-vector-scaled", ":"),
    ("--control-vector-layer-range", " "),
];

/// Joins the values of the flags that take two.
fn join_values(rest: &mut Vec<OsString>) {
    let by = |arg: &OsString| JOINED.iter().find(|(flag, _)| arg == flag).map(|(_, by)| *by);
    let flags = rest.iter().enumerate().filter_map(|(at, arg)| Some((at, by(arg)?)));
    let flags: Vec<(usize, &str)> = flags.collect();
    for (at, by) in flags.into_iter().rev() {
        let is_number = |arg: &OsString| arg.to_string_lossy().parse::<f32>().is_ok();
        if rest.get(at + 2).is_some_and(is_number) {
            let second = rest.remove(at + 2);
            rest[at + 1].push(by);
            rest[at + 1].push(second);
        }
    }
}

/// Writes the arguments of `run` that belong to no flag with the flags they stand for: the model, then the prompt.
fn place(loose: Vec<OsString>, ready: &mut Vec<OsString>) -> Result<(), Failure> {
    // A `--` ends the flags.
    let end = ready.iter().position(|arg| arg == "--").unwrap_or(ready.len());
    let given = |names: &[&str]| {
        let is = |arg: &OsString| {
            let arg = arg.to_string_lossy();
            names.contains(&arg.split_once('=').map_or(&*arg, |(name, _)| name))
        };
        ready[..end].iter().any(is)
    };
    let has_model = given(&["-m", "--model", "--hf-repo"]);
    let has_prompt = given(&["-p", "--prompt", "-f", "--file", "--tokens"]);
    // Where a model and a prompt would be right, the first word may be meant as the model.
    let is_pair = !has_model && loose.len() + usize::from(has_prompt) == 2;
    let word = loose.first().filter(|_| is_pair).and_then(|word| word.to_str());
    let meant = word.filter(|word| may_name_model(word)).map(str::to_owned);
    let mut loose = loose.into_iter().peekable();
    let mut flags = Vec::new();
    if !has_model && loose.peek().is_some_and(|first| names_model(&first.to_string_lossy())) {
        flags.push(OsString::from("--model"));
        flags.extend(loose.next());
    }
    if let Some(prompt) = loose.next_if(|_| !has_prompt) {
        let mut flag = OsString::from("--prompt=");
        flag.push(prompt);
        flags.push(flag);
    }
    if let Some(more) = loose.next() {
        let advice = "give the prompt in quotes: bilayer run MODEL \"PROMPT\"";
        return Err(Failure::usage(match meant {
            Some(word) => format!("{word}: no such model; {KNOWN}; or {advice}"),
            None => format!("unexpected argument '{}'; {advice}", more.to_string_lossy()),
        }));
    }
    ready.splice(end..end, flags);
    Ok(())
}

/// What to do here for a command that ollama or llama.cpp has.
fn elsewhere(command: &str) -> Option<&'static str> {
    Some(match command {
        "pull" => "`bilayer run -hf ORG/REPO` downloads a model from Hugging Face and runs it",
        "push" | "signin" | "signout" => "models are not uploaded",
        "chat" => {
            "`bilayer run -cnv` chats; with a model that has a chat template, `bilayer run -m FILE` does too"
        }
        "ps" => "`bilayer serve` lists its models and which are loaded at /v1/models",
        "stop" => "Ctrl-C or SIGTERM ends `bilayer serve` after its running answers",
        "show" => "`bilayer inspect FILE` shows what a model file holds",
        "gguf-split" | "split" | "merge" => {
            "`bilayer quantize FIRST_PART OUT COPY` merges the parts of a model; models are not split"
        }
        "rm" => "`bilayer models` lists the files of models; delete the file",
        "cp" => {
            "a model is a file, named by its path; `bilayer serve --alias` gives it other names"
        }
        "create" => {
            "flags and bilayer.toml set what a Modelfile sets; `bilayer convert` makes a GGUF file of a checkpoint"
        }
        _ => return None,
    })
}

/// The word after `run`, if it can be meant as the name of a model as ollama has them: it is read as the prompt unless it
/// names a file or has a `:` or `/`.
pub fn lone_word(typed: &[OsString]) -> Option<&str> {
    let [_, command, word, rest @ ..] = typed else { return None };
    let word = word.to_str().filter(|_| command == "run")?;
    let is_prompt = rest.first().is_none_or(|next| next.to_string_lossy().starts_with('-'));
    (may_name_model(word) && is_prompt && !names_model(word)).then_some(word)
}

/// Whether a word has the form of a model's name.
fn may_name_model(word: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    word.starts_with(|c: char| c.is_ascii_alphanumeric()) && word.chars().all(is_name)
}

/// Whether an argument names a model rather than a prompt or a command: a file, a folder, or a name as -m takes it.
fn names_model(text: &str) -> bool {
    let is_word = !text.contains(char::is_whitespace) && !text.is_empty();
    let is_path = text.contains('/') || text.contains('\\') || text.contains(':');
    is_word && (text.ends_with(".gguf") || is_path || Path::new(text).exists())
}

/// What becomes of an argument.
enum Read {
    /// It is kept, as clap knows it.
    Kept(OsString),
    /// It is left out, perhaps with its value.
    Dropped { note: Option<String>, takes_next: bool },
    /// Another flag stands for it, perhaps also for its value.
    Replaced { by: &'static str, takes_next: bool },
}

/// Reads the arguments of a command.
struct Reader<'c> {
    cli: &'c Command,
    command: Option<&'c Command>,
}

impl Reader<'_> {
    /// Reads an argument that is no value; `next` is the one after it.
    fn read(&self, arg: OsString, next: Option<&str>) -> Result<Read, Failure> {
        let Some(text) = arg.to_str() else { return Ok(Read::Kept(arg)) };
        let (given, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        if given == "-" || !given.starts_with('-') {
            return Ok(Read::Kept(arg));
        }
        let name = spelled(given);
        let knows = |command: &Command| has(command, &name);
        if self.command.is_none_or(knows) {
            return Ok(Read::Kept(with_value(&name, value)));
        }
        let command = self.command.map_or("", Command::get_name);
        let foreign = |name| foreign::find(command, Given { name, own: value, next });
        if let Some(found) = foreign(given).or_else(|| foreign(name.as_str())) {
            let takes_next = found.takes_next;
            return match found.outcome {
                Outcome::Accepted => Ok(Read::Dropped { note: None, takes_next }),
                Outcome::Noted(note) => Ok(Read::Dropped { note: Some(note), takes_next }),
                Outcome::Replaced(by) if self.command.is_some_and(|command| has(command, by)) => {
                    Ok(Read::Replaced { by, takes_next })
                }
                Outcome::Replaced(_) => Err(self.unknown(given, &name)),
                Outcome::Refused(line) => Err(Failure::usage(line)),
            };
        }
        if is_lettered(given) || name.starts_with("--") {
            return Err(self.unknown(given, &name));
        }
        Ok(Read::Kept(arg))
    }

    /// An error about a flag that neither the command nor llama.cpp has.
    fn unknown(&self, given: &str, name: &str) -> Failure {
        let command = self.command.map_or("", Command::get_name);
        let others: Vec<&str> = self
            .cli
            .get_subcommands()
            .filter(|other| other.get_name() != command && has(other, name))
            .map(Command::get_name)
            .collect();
        let near = self.command.and_then(|command| nearest(command, name));
        let out = self.command.and_then(|command| output_of(command, name));
        let advice = match (others.as_slice(), near) {
            _ if out.is_some() => out.unwrap_or_default(),
            ([], Some(near)) => format!("--{near} is similar"),
            ([], None) => format!("`bilayer {command} --help` lists the flags"),
            (others, _) => format!("it is a flag of `bilayer {}`", others.join("`, `bilayer ")),
        };
        Failure::usage(format!("`bilayer {command}` has no flag {given}; {advice}"))
    }
}

/// How `command` is told where to write, if `name` asks for that.
fn output_of(command: &Command, name: &str) -> Option<String> {
    if !["-o", "--output", "--outfile", "--output-file"].contains(&name) {
        return None;
    }
    if command.get_name() == "run" {
        return Some("write the answer to a file with `> FILE`".to_owned());
    }
    if command.get_positionals().any(|argument| argument.get_id() == "out") {
        return Some("the file is given without a flag, as OUT".to_owned());
    }
    has(command, "--outfile").then(|| "the flag is --outfile".to_owned())
}

/// The long flag of `command` that differs from `name` by one or two letters, but not by a negation.
fn nearest<'c>(command: &'c Command, name: &str) -> Option<&'c str> {
    let name = name.strip_prefix("--")?;
    let flags = command.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(Arg::get_long);
    let near = flags
        .filter(|flag| flag.starts_with("no-") == name.starts_with("no-"))
        .map(|flag| (distance(flag, name), flag))
        .filter(|(distance, _)| distance * 3 <= name.len() && *distance <= 2);
    near.min().map(|(_, flag)| flag)
}

/// Letters to insert, remove or replace to get from one word to the other (Levenshtein).
fn distance(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.chars().count()).collect();
    for (line, a) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], line + 1);
        for (at, b) in to.chars().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[at + 1];
            row[at + 1] = replaced.min(row[at] + 1).min(diagonal + 1);
        }
    }
    row[row.len() - 1]
}

/// The name of a flag as clap knows it: long forms of short flags of several letters, dashes for underscores.
fn spelled(name: &str) -> String {
    if let Some((_, long)) = SPELLED.iter().find(|(short, _)| *short == name) {
        return (*long).to_owned();
    }
    if name.starts_with("--") { name.replace('_', "-") } else { name.to_owned() }
}

fn with_value(name: &str, value: Option<&str>) -> OsString {
    OsString::from(value.map_or(name.to_owned(), |value| format!("{name}={value}")))
}

/// Whether it is a single dash and letters, unlike `-t4`, a flag with its value.
fn is_lettered(given: &str) -> bool {
    let mut letters = given.strip_prefix('-').unwrap_or_default().chars();
    letters.next().is_some_and(char::is_alphabetic)
        && letters.next().is_none_or(char::is_alphabetic)
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

/// Whether `command` has a flag of that name, long or of one letter, perhaps followed by its value.
fn has(command: &Command, name: &str) -> bool {
    if let Some(name) = name.strip_prefix("--") {
        return command.get_arguments().any(|option| named(option, name));
    }
    let mut letters = name.strip_prefix('-').unwrap_or_default().chars();
    let first = letters.next();
    let is_flag = |option: &Arg| option.get_short() == first && !option.is_positional();
    !letters.next().is_some_and(char::is_alphabetic) && command.get_arguments().any(is_flag)
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
    use super::*;

    fn prepared(line: &str) -> Result<Vec<OsString>, String> {
        let mut cli = crate::args::command();
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
            ("bilayer run -tb 1 -n 5 --poll=50 --fit on", "bilayer run -n 5"),
            ("bilayer server -m a=b.gguf -m c", "bilayer server --add-model a=b.gguf -m c"),
            ("bilayer serve -cb --slots -cram 10 -lv=3 -np 2", "bilayer serve --parallel 2"),
            ("bilayer --ctx_size 8 --top_k=3", "bilayer run --ctx-size 8 --top-k=3"),
            ("bilayer run -np 1 --color on -co -n 3", "bilayer run -n 3"),
            ("bilayer bench -np 2", "bilayer bench --parallel 2"),
            ("bilayer version --json", "bilayer version --json"),
            ("bilayer run -lm none -n 3", "bilayer run --no-mmap -n 3"),
            ("bilayer serve -no-kvu -np -1", "bilayer serve --no-kv-unified --parallel -1"),
            ("bilayer help", "bilayer --help"),
            ("bilayer help bench", "bilayer bench --help"),
            ("bilayer x.gguf", "bilayer run --model x.gguf"),
            ("bilayer x.gguf hi -n 3", "bilayer run -n 3 --model x.gguf --prompt=hi"),
            ("bilayer run x/y.gguf -c 9", "bilayer run -c 9 --model x/y.gguf"),
            ("bilayer run hello", "bilayer run --prompt=hello"),
            ("bilayer run -m x -p a.gguf", "bilayer run -m x -p a.gguf"),
            ("bilayer -dev a,b -mg 1", "bilayer run --device a,b --main-gpu 1"),
        ];
        for (typed, expected) in cases {
            let expected: Vec<OsString> = expected.split(' ').map(OsString::from).collect();
            assert_eq!(prepared(typed), Ok(expected), "{typed}");
        }
    }

    #[test]
    fn unsupported_flags_are_refused_by_name() {
        let cases = [
            ("bench --lora x", "--lora is not supported; `run`"),
            ("bench --override_kv=row", "--override-kv is not supported; "),
            ("-mli", "-mli is not supported; use -cnv"),
            ("run -m x -fa on -td none", "-td is not supported; the draft model"),
            ("run -nkv", "`bilayer run` has no flag -nkv; `bilayer run --help` lists"),
            ("run --tep 1", "has no flag --tep; --temp is similar"),
            ("run --pure", "has no flag --pure; it is a flag of `bilayer quantize`"),
            ("run --no-seed 1", "`bilayer run --help` lists the flags"),
            ("run -A x", "`bilayer run` has no flag -A; "),
            ("synth -o x", "has no flag -o; the file is given without a flag, as OUT"),
            ("quantize --output x", "the file is given without a flag, as OUT"),
            ("convert -o x dir", "the flag is --outfile"),
            ("run -o x", "write the answer to a file with `> FILE`"),
            ("serve --tools all", "--tools is not supported; functions run in the client"),
            ("serve -jf x", "-jf is not supported; a request sets `json_schema`"),
            ("tokenize -lm none", "`bilayer tokenize` has no flag -lm"),
            ("pull llama3.2", "`bilayer run -hf ORG/REPO` downloads a model"),
            ("run llama3.2 hi -n 5", "llama3.2: no such model; `bilayer models` lists the models"),
            ("run llama3.2 -p hi", "llama3.2: no such model; "),
            ("run once upon a time", "unexpected argument 'upon'; give the prompt in quotes"),
            ("run -m x once upon", "unexpected argument 'upon'; give the prompt in quotes"),
            ("cp a b", "`bilayer cp` is not a command; a model is a file"),
        ];
        for (line, part) in cases {
            let error = prepared(&format!("bilayer {line}")).expect_err(line);
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn a_word_after_run_may_be_meant_as_a_model() {
        let word = |line: &str| {
            let typed: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            lone_word(&typed).map(str::to_owned)
        };
        for line in ["bilayer run llama3.2", "bilayer run llama3.2 -n 5"] {
            assert_eq!(word(line).as_deref(), Some("llama3.2"), "{line}");
        }
        let others =
            ["run once upon", "run -p llama3.2", "run a.gguf", "run llama3.2:1b", "plan x"];
        for line in others {
            assert_eq!(word(&format!("bilayer {line}")), None, "{line}");
        }
    }

    #[test]
    fn every_spelled_flag_is_a_flag() {
        let mut cli = crate::args::command();
        cli.build();
        for (_, long) in SPELLED {
            let long = long.strip_prefix("--");
            let mut flags = cli.get_subcommands().flat_map(Command::get_arguments);
            assert!(flags.any(|option| option.get_long() == long), "{long:?}");
        }
    }
}
