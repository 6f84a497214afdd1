//! `bilayer completions`: the completion script for a shell.

use clap_complete::Shell;

use crate::args::{self, typed};
use crate::failure::Failure;
use crate::output;

/// Prints the script.
pub fn execute(shell: Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut args::command(), "bilayer", &mut script);
    let script = String::from_utf8_lossy(&script);
    output::text(&with_short_forms(&script, shell))?;
    Ok(0)
}

/// Adds the short forms of several letters, which clap does not know.
fn with_short_forms(script: &str, shell: Shell) -> String {
    let mut out = String::with_capacity(script.len() * 2);
    for line in script.split_inclusive('\n') {
        match shell {
            Shell::Bash => out += &in_words(line),
            Shell::Fish => out += &in_fish(line),
            _ => {
                out += line;
                out += &in_a_line(line).unwrap_or_default();
            }
        }
    }
    out
}

/// A line of bash with each short form before its long form: in the list of flags, and in the cases of their values.
fn in_words(line: &str) -> String {
    let mut words = Vec::new();
    for word in line.split(' ') {
        let (long, is_case) = match word.trim_end().strip_suffix(')') {
            Some(long) => (long, true),
            None => (word, false),
        };
        match long.strip_prefix("--").and_then(typed::short_form) {
            Some(short) if is_case => words.push(format!("{short}|{word}")),
            Some(short) => words.extend([short.to_owned(), word.to_owned()]),
            None => words.push(word.to_owned()),
        }
    }
    words.join(" ")
}

/// A line of fish with the short form as an option of old style.
fn in_fish(line: &str) -> String {
    let Some((before, rest)) = line.split_once(" -l ") else { return line.to_owned() };
    let long = rest.split_whitespace().next().unwrap_or_default();
    match typed::short_form(long) {
        Some(short) => format!("{before} -o {} -l {rest}", &short[1..]),
        None => line.to_owned(),
    }
}

/// The line of another shell for the short form, after that for the long form.
fn in_a_line(line: &str) -> Option<String> {
    let (_, rest) = line.split_once("--")?;
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-')?;
    let short = typed::short_form(&rest[..end])?;
    Some(line.replace(&format!("--{}", &rest[..end]), short))
}
