//! Errors as the user meets them: one line with the reason and the next step, and an exit code.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use bilayer_engine::Error;
use bilayer_engine::session::CacheError;
use bilayer_measure::Error as Measure;
use bilayer_measure::perplexity::Error as Scoring;
use clap::error::ErrorKind;

use crate::output;

/// A command line that makes no sense.
pub const USAGE: u8 = 2;
/// A model file that cannot be run.
pub const BAD_MODEL: u8 = 65;
/// A file that is not there.
pub const NO_FILE: u8 = 66;
/// A device that is not there.
pub const NO_DEVICE: u8 = 69;
/// Our own fault.
pub const INTERNAL: u8 = 70;
/// Output that cannot be made.
pub const NO_OUTPUT: u8 = 73;
/// Input or output that failed half-way.
pub const IO: u8 = 74;
/// What does not fit.
pub const DOES_NOT_FIT: u8 = 75;
/// Interrupted at the terminal.
pub const INTERRUPTED: u8 = 130;

/// Why a command ended early.
#[derive(Debug)]
pub enum Failure {
    /// Help or version was asked for: no failure, but the end.
    Shown(Box<clap::Error>),
    /// One line and a code.
    Line(u8, String),
    /// The reader of our output went away: nothing to say, nobody to say it to.
    BrokenPipe,
}

impl Failure {
    /// A mistake on the command line.
    pub fn usage(line: impl Into<String>) -> Failure {
        Failure::Line(USAGE, line.into())
    }

    /// What clap says of a command line of `command` (`bilayer run`): a mistake, or the help it was asked for.
    pub fn parsing(error: clap::Error, command: &str) -> Failure {
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Failure::Shown(Box::new(error)),
            _ => Failure::usage(sentence(&error.render().to_string(), command)),
        }
    }

    /// An output file that cannot be made.
    pub fn output(path: &Path, error: &io::Error) -> Failure {
        let advice = "choose a place that you may write to";
        let line = format!("{}: cannot be written: {error}; {advice}", path.display());
        Failure::Line(NO_OUTPUT, line)
    }

    /// An input file that cannot be read.
    pub fn input(path: &Path, error: &io::Error) -> Failure {
        let (code, advice) = match error.kind() {
            io::ErrorKind::NotFound => (NO_FILE, "check the path"),
            _ => (IO, "check that it is a file that you may read"),
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

    /// The same, with the file that is to blame in front.
    pub fn in_file(self, path: &Path) -> Failure {
        self.at(&path.display().to_string())
    }

    /// The same, with the place that is to blame in front.
    pub fn at(self, place: &str) -> Failure {
        match self {
            Failure::Line(code, line) => Failure::Line(code, format!("{place}: {line}")),
            other => other,
        }
    }

    /// Tells the user and returns the code.
    pub fn report(self) -> ExitCode {
        match self {
            Failure::Shown(shown) => match shown.print() {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::from(IO),
            },
            Failure::Line(code, line) => {
                output::note(&format!("bilayer: {}", one_line(&line)));
                ExitCode::from(code)
            }
            Failure::BrokenPipe => ExitCode::from(IO),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Line(code(&error), format!("{error}{}", advice(&error)))
    }
}

impl From<Measure> for Failure {
    fn from(error: Measure) -> Failure {
        let (code, advice) = match &error {
            Measure::Engine(error) => (code(error), advice(error)),
            Measure::Perplexity(error) => (scoring_code(error), scoring_advice(error)),
            Measure::Displaced(_) => (DOES_NOT_FIT, ""),
        };
        Failure::Line(code, format!("{error}{advice}"))
    }
}

impl From<bilayer_convert::Error> for Failure {
    fn from(error: bilayer_convert::Error) -> Failure {
        use bilayer_convert::Error as Made;
        let error = match error {
            Made::Calibration(error) => return error.into(),
            error => error,
        };
        let (code, advice) = match &error {
            Made::UnknownShape { .. } | Made::UnknownType { .. } | Made::Size { .. } => {
                (USAGE, "; the command's --help lists what can be given")
            }
            Made::NotForWeights { .. } | Made::Model(_) | Made::Override { .. } => (USAGE, ""),
            Made::Unwritable { .. } | Made::Requantize { .. } | Made::SameFile { .. } => {
                (USAGE, "")
            }
            Made::Checkpoint { .. } | Made::Tensor { .. } => (BAD_MODEL, ""),
            Made::OfCheckpoint { .. } | Made::Tokenizer { .. } => {
                (BAD_MODEL, "; use a checkpoint of a supported kind")
            }
            Made::Incomplete { .. } => (BAD_MODEL, "; download it again"),
            Made::NoTokenizer { .. } => (NO_FILE, ""),
            Made::Weight { .. } | Made::NoImatrix { .. } => (BAD_MODEL, ""),
            Made::OldImatrix { .. } | Made::Sums { .. } => (BAD_MODEL, ""),
            Made::ImatrixShape { .. } => (BAD_MODEL, "; give the one that was made of this model"),
            Made::Threads { .. } => (DOES_NOT_FIT, ""),
            Made::Budget { .. } => (USAGE, ""),
            Made::Scratch(_) => (IO, ""),
            Made::Calibration(_) => (INTERNAL, ""),
            Made::File(
                bilayer_gguf::Error::NotAFile { .. } | bilayer_gguf::Error::NoRoom { .. },
            ) => (NO_OUTPUT, ""),
            Made::File(bilayer_gguf::Error::Io { source, .. }) => match source.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    (IO, "; make room, or write elsewhere")
                }
                io::ErrorKind::FileTooLarge | io::ErrorKind::WriteZero => (IO, "; write elsewhere"),
                _ => (NO_OUTPUT, "; choose a place that you may write to"),
            },
            Made::Interrupted => (INTERRUPTED, ""),
            Made::File(_) => (INTERNAL, "; this is our own fault: please report it"),
        };
        Failure::Line(code, format!("{error}{advice}"))
    }
}

/// Clap's report without its frame: the reason, its tips, or else where the flags are listed.
fn sentence(report: &str, command: &str) -> String {
    let mut parts = Vec::new();
    for paragraph in report.split("\n\n") {
        let words: Vec<&str> = paragraph.split_whitespace().collect();
        if matches!(words.first(), None | Some(&("Usage:" | "For"))) {
            continue;
        }
        let text = words.join(" ").replace(" tip: ", "; ");
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        parts.push(text.strip_prefix("tip: ").unwrap_or(text).to_owned());
    }
    if parts.len() < 2 {
        parts.push(format!("`{command} --help` lists what can be given"));
    }
    parts.join("; ")
}

/// Control characters escaped: what comes from a file or an argument may hold line breaks or worse.
fn one_line(line: &str) -> String {
    line.chars().fold(String::with_capacity(line.len()), |mut safe, c| {
        if c.is_control() {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
        safe
    })
}

fn code(error: &Error) -> u8 {
    use bilayer_cpu::Error as Cpu;
    use bilayer_cpu::level::LevelError;
    use bilayer_graph::Error as Device;
    match error {
        Error::NoSuchFile { .. } => NO_FILE,
        Error::File(bilayer_gguf::Error::Io { source, .. }) => match source.kind() {
            io::ErrorKind::NotFound => NO_FILE,
            _ => IO,
        },
        Error::File(_) | Error::Model { .. } | Error::Vocabulary { .. } => BAD_MODEL,
        Error::LogitsNotFinite | Error::Device(Device::NotFinite { .. }) => BAD_MODEL,
        Error::Setting { .. } | Error::SamplingOptions(_) | Error::Token { .. } => USAGE,
        Error::Vocabularies { .. } => USAGE,
        Error::Sampling(_) | Error::Text(_) => USAGE,
        Error::NoEncoder { .. } | Error::NoDecoder { .. } | Error::NoHead { .. } => USAGE,
        Error::Cpu(Cpu::Level(LevelError::Unknown(_)) | Cpu::Threads(_)) => USAGE,
        Error::Cpu(Cpu::Level(LevelError::Unavailable(..))) => NO_DEVICE,
        Error::Cpu(Cpu::Spawn { .. }) => DOES_NOT_FIT,
        #[cfg(feature = "gpu")]
        Error::Adapter(_) => NO_DEVICE,
        Error::NoAdapters => NO_DEVICE,
        Error::Plan(bilayer_scheduler::Error::NoDevice) => NO_DEVICE,
        Error::Plan(_) | Error::Cache(_) | Error::TooLong { .. } => DOES_NOT_FIT,
        Error::Device(Device::OutOfMemory { .. }) => DOES_NOT_FIT,
        Error::Device(Device::Unsupported { .. }) => USAGE,
        Error::Device(Device::DeviceLost { .. }) => NO_DEVICE,
        Error::Device(_) => INTERNAL,
        Error::Fallback { source, .. } => code(source),
    }
}

fn scoring_code(error: &Scoring) -> u8 {
    match error {
        Scoring::TooShort { .. } | Scoring::Vocabulary { .. } | Scoring::Large { .. } => USAGE,
        Scoring::Write(_) | Scoring::Read(_) => IO,
        Scoring::Magic
        | Scoring::Size { .. }
        | Scoring::Length { .. }
        | Scoring::Token { .. }
        | Scoring::NotFinite => BAD_MODEL,
    }
}

fn scoring_advice(error: &Scoring) -> &'static str {
    match error {
        Scoring::Write(_) => "; make room",
        Scoring::Read(_) => "; write the file again with --kl-base",
        _ => "",
    }
}

/// The next step, where the error itself does not name it.
fn advice(error: &Error) -> &'static str {
    use bilayer_graph::Error as Device;
    match error {
        Error::Cache(CacheError::Context { .. }) => {
            "; use a larger context (-c) or a shorter prompt"
        }
        Error::Model { source, .. } => match source {
            bilayer_models::Error::UnknownArchitecture { .. }
            | bilayer_models::Error::Unsupported { .. } => "; use a model of a supported one",
            bilayer_models::Error::Graph(_) => "; `bilayer inspect` lists what the file holds",
            _ => "",
        },
        Error::File(bilayer_gguf::Error::Quant { .. }) => {
            "; convert or quantize the model again, to a type that is supported"
        }
        Error::File(bilayer_gguf::Error::Limit { .. }) => ": fetch or make it again",
        Error::File(bilayer_gguf::Error::Io { .. }) => "; check that you may read it",
        Error::Vocabulary { .. } => "; convert the model again",
        Error::Text(error) => text_advice(error),
        Error::TooLong { .. } => "; shorten it, or take its beginning with --truncate",
        Error::Token { .. } => "; `bilayer tokenize` gives the ids of a text",
        Error::Sampling(_) => "; allow some token",
        Error::LogitsNotFinite | Error::Device(Device::NotFinite { .. }) => {
            "; the weights or the file are damaged: fetch the file again"
        }
        Error::Device(Device::OutOfMemory { .. }) => "; use a shorter context (-c)",
        Error::Cpu(bilayer_cpu::Error::Spawn { .. }) => "; use fewer threads (-t)",
        Error::Device(Device::Unsupported { .. }) => "",
        Error::Device(_) => "; this is our own fault: please report it",
        _ => "",
    }
}

fn text_advice(error: &bilayer_text::Error) -> &'static str {
    use bilayer_text::Error as Text;
    match error {
        Text::NoTemplate { .. } => "",
        Text::UnknownTemplate { .. } => "; give one of them",
        Text::Refused { .. } => "; change the messages, or give another with --chat-template",
        Text::Template { .. }
        | Text::Endless { .. }
        | Text::TooLong { .. }
        | Text::Entangled { .. } => "; give another with --chat-template",
        _ => "; change the text",
    }
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
                "error: invalid value 'x' for '--top-k <N>': invalid digit\n\nFor more information",
                "invalid value 'x' for '--top-k <N>': invalid digit; \
                 `bilayer run --help` lists what can be given",
            ),
            (
                "error: the following required arguments were not provided:\n  <PATH>\n\n\
                 Usage: bilayer run <PATH>\n\nFor more information, try '--help'.\n",
                "the following required arguments were not provided: <PATH>; \
                 `bilayer run --help` lists what can be given",
            ),
        ];
        for (report, expected) in reports {
            assert_eq!(sentence(report, "bilayer run"), expected);
        }
    }
}
