//! Errors as the user meets them: one line with the reason and the next step, and an exit code.

use std::io;
use std::process::ExitCode;

use bilayer_engine::{Error, cache};

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
    /// Clap's own report, help and version included.
    Usage(clap::Error),
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

    /// An output file that cannot be made.
    pub fn output(path: &std::path::Path, error: &io::Error) -> Failure {
        Failure::Line(NO_OUTPUT, format!("{}: cannot be written: {error}", path.display()))
    }

    /// An input file that cannot be read.
    pub fn input(path: &std::path::Path, error: &io::Error) -> Failure {
        let code = if error.kind() == io::ErrorKind::NotFound { NO_FILE } else { IO };
        Failure::Line(code, format!("{}: cannot be read: {error}", path.display()))
    }

    /// Tells the user and returns the code.
    pub fn report(self) -> ExitCode {
        match self {
            Failure::Usage(error) => {
                // Help and version go to stdout with code 0, errors to stderr with code 2.
                let code = if error.use_stderr() { USAGE } else { 0 };
                match error.print() {
                    Ok(()) => ExitCode::from(code),
                    Err(_) => ExitCode::from(IO),
                }
            }
            Failure::Line(code, line) => {
                eprintln!("bilayer: {line}");
                ExitCode::from(code)
            }
            Failure::BrokenPipe => ExitCode::from(IO),
        }
    }
}

/// Standard output failed.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Failure::BrokenPipe;
        }
        Failure::Line(IO, format!("standard output: {error}"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let code = code(&error);
        let advice = match &error {
            Error::Cache(cache::Error::Context { .. }) => {
                "; use a larger context (-c) or a shorter prompt"
            }
            _ => "",
        };
        Failure::Line(code, format!("{error}{advice}"))
    }
}

fn code(error: &Error) -> u8 {
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
        Error::Sampling(_) | Error::Text(_) => USAGE,
        Error::Level(_) => NO_DEVICE,
        Error::Plan(_) | Error::Cache(_) => DOES_NOT_FIT,
        Error::Device(Device::OutOfMemory { .. }) => DOES_NOT_FIT,
        Error::Device(Device::DeviceLost { .. }) => NO_DEVICE,
        Error::Device(_) => INTERNAL,
    }
}
