//! Errors as the user meets them: one line with the reason and the next step, and an exit code.

use std::io;
use std::path::Path;

use bilayer_engine::{Error, Exit};
use bilayer_measure::Error as Measure;
use clap::error::ErrorKind;

/// `verify` found a difference: a result, as of `cmp` and `diff`, not a failure.
pub const DIFFERENT: u8 = 1;
/// An invalid command line.
pub const USAGE: u8 = Exit::Usage as u8;
/// A result below what was asked for: the floor of `evaluate`.
pub const MISSED: u8 = 3;
/// A model file that cannot be run.
pub const BAD_MODEL: u8 = Exit::BadModel as u8;
/// A file that does not exist.
pub const NO_FILE: u8 = Exit::NoFile as u8;
/// An internal error.
pub const INTERNAL: u8 = Exit::Internal as u8;
/// Output that cannot be created.
pub const NO_OUTPUT: u8 = Exit::NoOutput as u8;
/// An I/O error.
pub const IO: u8 = Exit::Io as u8;
/// Something does not fit in memory.
pub const DOES_NOT_FIT: u8 = Exit::DoesNotFit as u8;
/// Interrupted at the terminal.
pub const INTERRUPTED: u8 = Exit::Interrupted as u8;

/// Why a command ended early.
#[derive(Debug)]
pub enum Failure {
    /// Help or the version was printed: not an error.
    Shown(Box<clap::Error>),
    /// One line and an exit code.
    Line(u8, String),
    /// The reader of standard output closed it; nothing is reported.
    BrokenPipe,
}

impl Failure {
    /// A mistake on the command line.
    pub fn usage(line: impl Into<String>) -> Failure {
        Failure::Line(USAGE, line.into())
    }

    /// Clap's report on a line of `command` (`bilayer run`, or `/set` in a chat): a mistake, or the help text asked for.
    pub fn parsing(error: clap::Error, command: &str) -> Failure {
        match error.kind() {
            ErrorKind::DisplayHelp => Failure::Shown(Box::new(error)),
            _ => Failure::usage(sentence(&error.render().to_string(), command)),
        }
    }

    /// The line alone.
    pub fn into_line(self) -> String {
        match self {
            Failure::Line(_, line) => line,
            Failure::Shown(text) => text.to_string(),
            Failure::BrokenPipe => String::new(),
        }
    }

    /// An output file that cannot be created, or has no room.
    pub fn output(path: &Path, error: &io::Error) -> Failure {
        let (code, advice) = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                (IO, "free some space, or write elsewhere")
            }
            _ => (NO_OUTPUT, "choose a path that you can write to"),
        };
        Failure::Line(code, format!("{}: cannot be written: {error}; {advice}", path.display()))
    }

    /// An input file that cannot be read.
    pub fn input(path: &Path, error: &io::Error) -> Failure {
        let (code, advice) = match error.kind() {
            io::ErrorKind::NotFound => (NO_FILE, "check the path"),
            _ => (IO, "check that it is a readable file"),
        };
        Failure::Line(code, format!("{}: cannot be read: {error}; {advice}", path.display()))
    }

    /// Standard output failed.
    pub fn stdout(error: &io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::BrokenPipe,
            _ => Failure::Line(IO, format!("standard output cannot be written: {error}")),
        }
    }

    /// Prefixes the message with the path of the file it is about.
    pub fn in_file(self, path: &Path) -> Failure {
        self.at(&path.display().to_string())
    }

    /// Prefixes the message with the place it is about.
    pub fn at(self, place: &str) -> Failure {
        match self {
            Failure::Line(code, line) => Failure::Line(code, format!("{place}: {line}")),
            other => other,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Line(error.exit_code() as u8, format!("{error}{}", error.advice()))
    }
}

impl From<Measure> for Failure {
    fn from(error: Measure) -> Failure {
        Failure::Line(error.exit_code() as u8, format!("{error}{}", error.advice()))
    }
}

impl From<bilayer_convert::Error> for Failure {
    fn from(error: bilayer_convert::Error) -> Failure {
        Failure::Line(error.exit_code() as u8, format!("{error}{}", error.advice()))
    }
}

/// What the standard library says of numbers, and what it means to who typed them.
const NUMBERS: [(&str, &str); 6] = [
    ("invalid digit found in string", "it must be a whole number"),
    ("cannot parse integer from empty string", "it must be a whole number"),
    ("number too large to fit in target type", "it is too large"),
    ("number too small to fit in target type", "it is too small"),
    ("invalid float literal", "it must be a number"),
    ("cannot parse float from empty string", "it must be a number"),
];

/// Clap's report as one sentence: the reason, and its tips or where the flags are listed.
fn sentence(report: &str, command: &str) -> String {
    let mut parts = Vec::new();
    for paragraph in report.split("\n\n") {
        let words: Vec<&str> = paragraph.split_whitespace().collect();
        if matches!(words.first(), None | Some(&("Usage:" | "For"))) {
            continue;
        }
        let text = words.join(" ").replace(" tip: ", "; ");
        let text = NUMBERS.iter().fold(text, |text, (said, meant)| text.replace(said, meant));
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        parts.push(text.strip_prefix("tip: ").unwrap_or(text).to_owned());
    }
    if parts.len() < 2 {
        parts.push(match command.strip_prefix('/') {
            // A command within a chat.
            Some(_) => format!("{command} lists the settings"),
            None if parts.iter().any(|part| part.starts_with("unrecognized subcommand")) => {
                format!("`{command} --help` lists the commands")
            }
            None => format!("`{command} --help` lists the flags"),
        });
    }
    parts.join("; ")
}

/// Escapes control characters, since text from files and arguments may contain them.
pub fn one_line(line: &str) -> String {
    line.chars().fold(String::with_capacity(line.len()), |mut safe, c| {
        if c.is_control() {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
        safe
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claps_reports_become_one_line_with_a_next_step() {
        let reports = [
            (
                "error: unexpected argument '--tep' found\n\n  tip: a similar argument exists: \
                 '--temp'\n\nUsage: bilayer run --temp <X>\n\nFor more information, try '--help'.\n",
                "unexpected argument '--tep' found; a similar argument exists: '--temp'",
            ),
            (
                "error: invalid value 'x' for '--top-k <N>': invalid digit found in string\n\nFor more",
                "invalid value 'x' for '--top-k <N>': it must be a whole number; \
                 `bilayer run --help` lists the flags",
            ),
            (
                "error: unrecognized subcommand 'rnu'\n\nUsage: bilayer rnu\n\nFor more",
                "unrecognized subcommand 'rnu'; `bilayer run --help` lists the commands",
            ),
            (
                "error: the following required arguments were not provided:\n  <PATH>\n\n\
                 Usage: bilayer run <PATH>\n\nFor more information, try '--help'.\n",
                "the following required arguments were not provided: <PATH>; \
                 `bilayer run --help` lists the flags",
            ),
        ];
        for (report, expected) in reports {
            assert_eq!(sentence(report, "bilayer run"), expected);
        }
    }
}
