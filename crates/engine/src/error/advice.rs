//! The exit code and the next step for a program that ends with an error of this crate.

use std::io;

use super::{Error, Exit};
use crate::sampling;
use crate::session::CacheError;

impl Error {
    /// The exit code.
    pub fn exit_code(&self) -> Exit {
        exit_code(self)
    }

    /// The next step for the user, to be appended to the error; empty if the error contains it.
    pub fn advice(&self) -> &'static str {
        advice(self)
    }
}

fn exit_code(error: &Error) -> Exit {
    use bilayer_cpu::Error as Cpu;
    use bilayer_cpu::level::LevelError;
    use bilayer_graph::Error as Device;
    match error {
        Error::NoSuchFile { .. } => Exit::NoFile,
        Error::File(bilayer_gguf::Error::Io { source, .. }) => match source.kind() {
            io::ErrorKind::NotFound => Exit::NoFile,
            io::ErrorKind::OutOfMemory => Exit::DoesNotFit,
            _ => Exit::Io,
        },
        Error::File(bilayer_gguf::Error::Lost { .. } | bilayer_gguf::Error::Changed { .. }) => {
            Exit::Io
        }
        Error::File(_) | Error::Model { .. } | Error::Adapter { .. } => Exit::BadModel,
        Error::Vocabulary { .. } => Exit::BadModel,
        Error::LogitsNotFinite | Error::Device(Device::NotFinite { .. }) => Exit::BadModel,
        Error::Setting { .. } | Error::SamplingOptions(_) | Error::Token { .. } => Exit::Usage,
        Error::Vocabularies { .. } => Exit::Usage,
        Error::Saved { .. } => Exit::Io,
        Error::Sampling(_) | Error::Text(_) | Error::Constraint(_) => Exit::Usage,
        Error::Tools(_) | Error::Messages(_) => Exit::Usage,
        Error::Interrupted => Exit::Interrupted,
        Error::NoTokens => Exit::Usage,
        Error::NoEncoder { .. }
        | Error::NoDecoder { .. }
        | Error::NoHead { .. }
        | Error::NoTokenHead { .. }
        | Error::TokenHead { .. }
        | Error::NoMtp { .. } => Exit::Usage,
        Error::Cpu(Cpu::Level(LevelError::Unknown(_)) | Cpu::Threads(_)) => Exit::Usage,
        Error::Cpu(Cpu::Level(LevelError::Unavailable(..)) | Cpu::Bind { .. }) => Exit::NoDevice,
        Error::Cpu(Cpu::Spawn { .. }) => Exit::DoesNotFit,
        Error::Unavailable { .. } | Error::NoGpuSupport => Exit::NoDevice,
        Error::Plan(bilayer_scheduler::Error::NoDevice) => Exit::NoDevice,
        Error::Plan(_) | Error::Cache(_) | Error::TooLong { .. } | Error::QueryTooLong { .. } => {
            Exit::DoesNotFit
        }
        Error::Device(Device::OutOfMemory { .. } | Device::StepTooLarge { .. }) => Exit::DoesNotFit,
        Error::Device(Device::Unsupported { .. } | Device::TooDeep { .. }) => Exit::Usage,
        Error::Device(Device::DeviceLost { .. }) => Exit::NoDevice,
        Error::Device(_) => Exit::Internal,
        Error::Fallback { source, .. } => source.exit_code(),
    }
}

/// The next step, unless the error contains it.
fn advice(error: &Error) -> &'static str {
    use bilayer_graph::Error as Device;
    match error {
        // A name rather than a path.
        Error::NoSuchFile { path } if !path.contains(['/', '\\', '.']) => {
            ", or ollama:NAME or hf:ORG/REPO for a model that is in ollama's or Hugging Face's folder"
        }
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
        // The message says what to do.
        Error::File(bilayer_gguf::Error::Io { action, .. }) if action.starts_with("lock") => "",
        Error::File(bilayer_gguf::Error::Io { .. }) => "; check that you may read it",
        Error::Vocabulary { .. } => "; convert the model again",
        Error::Text(error) => text_advice(error),
        Error::TooLong { .. } => "; shorten it, or take its beginning with --truncate",
        Error::QueryTooLong { .. } => "; shorten the query",
        Error::NoEncoder { .. } => {
            "; `embed` with --pooling last or mean gives the rows of its last layer"
        }
        Error::Token { .. } => "; `bilayer tokenize` gives the ids of a text",
        Error::Sampling(sampling::Error::NothingLeft) => "; allow some token",
        Error::LogitsNotFinite | Error::Device(Device::NotFinite { .. }) => {
            "; the weights or the file are damaged: fetch the file again"
        }
        Error::Device(Device::OutOfMemory { .. }) => "; use a shorter context (-c)",
        Error::Device(Device::StepTooLarge { .. }) => "; use smaller steps (-ub)",
        Error::Cpu(bilayer_cpu::Error::Spawn { .. }) => "; use fewer threads (-t)",
        Error::Cpu(bilayer_cpu::Error::Bind { .. }) => "; leave --numa out",
        Error::Device(Device::Unsupported { .. } | Device::TooDeep { .. }) => "",
        Error::Device(_) => "; this is a bug: please report it",
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
