//! Tests of flags in messages of the libraries: [`Setting`] spells them, as the command line does.

use std::collections::BTreeSet;
use std::path::Path;

use bilayer_settings::Setting;

use super::typed::short_form;

/// The crates whose texts programs see as well.
const LIBRARIES: &[&str] = &[
    "bilayer",
    "constrain",
    "convert",
    "cpu",
    "engine",
    "files",
    "gguf",
    "gpu",
    "graph",
    "hub",
    "measure",
    "models",
    "quant",
    "scheduler",
    "simulate",
    "text",
];

/// Flags in their texts: of other programs, and those that the library has no setting for or does not name in messages.
const OTHERS: &[(&str, &str)] = &[
    ("convert", "--calibration"),
    ("convert", "--drop-layers"),
    ("convert", "--head-dim"),
    ("convert", "--method"),
    ("convert", "--pattern"),
    ("convert", "--target-bpw"),
    ("convert", "--target-kl"),
    ("convert", "--target-speed"),
    ("convert", "--tensor-type"),
    ("convert", "--test"),
    ("convert", "--type"),
    // numactl's.
    ("cpu", "--cpunodebind"),
    ("cpu", "--membind"),
    // A name in a plan.
    ("engine", "--vram"),
    // Found by the command line only.
    ("hub", "--lora"),
    ("measure", "--kl-base"),
    // Records of `bilayer bench`.
    ("measure", "--parallel"),
    ("measure", "-n"),
    // What a profile recommends.
    ("measure", "-ngl"),
    ("measure", "-p"),
    ("measure", "-t"),
];

/// The texts in string literals of code.
fn literals(code: &str) -> Vec<&str> {
    let (mut found, mut rest) = (Vec::new(), code);
    while let Some(at) = rest.find(['"', '/']) {
        let before = &rest[..at];
        rest = &rest[at..];
        if rest.starts_with('/') {
            let is_comment = rest.starts_with("//");
            rest = if is_comment {
                rest.split_once('\n').map_or("", |(_, rest)| rest)
            } else {
                &rest[1..]
            };
            continue;
        }
        rest = &rest[1..];
        // A character.
        if before.ends_with(['\'', '\\']) {
            continue;
        }
        let raw = before.trim_end_matches('#');
        let end = format!("\"{}", "#".repeat(before.len() - raw.len()));
        let mut len = rest.find(&end).unwrap_or(rest.len());
        while !raw.ends_with('r')
            && !(len - rest[..len].trim_end_matches('\\').len()).is_multiple_of(2)
        {
            len += 1 + rest[len + 1..].find('"').unwrap_or(rest.len() - len - 1);
        }
        found.push(&rest[..len]);
        rest = rest.get(len + end.len()..).unwrap_or_default();
    }
    found
}

/// The flags that a text spells: `--numa`, the short `-c` of a setting, and `ctx-size` at the beginning of a message.
fn flags(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let words = text.split(move |c| !is_part(c)).filter(|word| {
        let name = word.strip_prefix("--").unwrap_or_default();
        let is_short = Setting::ALL.iter().any(|setting| setting.flags()[1..].contains(word));
        name.starts_with(|c: char| c.is_ascii_lowercase()) || is_short
    });
    let is_subject = |setting: &&Setting| {
        let long = setting.flags()[0].trim_start_matches('-');
        let rest = text.strip_prefix(long).unwrap_or("-");
        long != setting.name() && (rest.is_empty() || rest.starts_with(" is "))
    };
    let subject = Setting::ALL.iter().find(is_subject).map(|setting| setting.flags()[0]);
    words.chain(subject)
}

fn collect<'c>(name: &'c str, folder: &Path, found: &mut BTreeSet<(&'c str, String)>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("a name");
        if stem.starts_with("tests") {
            continue;
        }
        if path.is_dir() {
            collect(name, &path, found);
        } else if path.extension().is_some_and(|of| of == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source file");
            let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
            let spelled = literals(code).into_iter().flat_map(flags);
            found.extend(spelled.map(|flag| (name, flag.to_owned())));
        }
    }
}

/// A message that names a setting has it from [`Setting`], so that programs read the setting's name.
#[test]
fn texts_of_the_libraries_spell_no_flags() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of all crates");
    let mut found = BTreeSet::new();
    for name in LIBRARIES {
        collect(name, &crates.join(name).join("src"), &mut found);
    }
    let others = OTHERS.iter().map(|&(name, flag)| (name, flag.to_owned())).collect();
    assert_eq!(found, others);
}

#[test]
fn flags_in_texts_are_found() {
    let code = r##"say("use --numa, (-c) or --a-b"); '"'; "\"-ub\\"; // "--not"
        r#"a "-t" b"#; "vram"; "ctx-size is 3"; "a vram"; x / -p"##;
    let found: Vec<&str> = literals(code).into_iter().flat_map(flags).collect();
    assert_eq!(found, ["--numa", "-c", "--a-b", "-ub", "-t", "--vram", "--ctx-size"]);
}

/// The flags that messages name exist, and each short one is that of its long one.
#[test]
fn settings_in_messages_have_flags_of_the_command_line() {
    let mut cli = super::command();
    cli.build();
    let args = || cli.get_subcommands().flat_map(|command| command.get_arguments());
    for setting in Setting::ALL {
        let long = setting.flags()[0].trim_start_matches('-');
        let of_long = || args().filter(|arg| arg.get_long() == Some(long));
        assert!(of_long().next().is_some(), "{long}");
        for short in &setting.flags()[1..] {
            let is_it = |c: char| *short == format!("-{c}");
            let is_short = of_long().any(|arg| arg.get_short().is_some_and(is_it));
            assert!(is_short || short_form(long) == Some(*short), "{short}");
        }
    }
}
