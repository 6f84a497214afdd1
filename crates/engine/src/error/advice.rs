//! The exit code and the next step for a program that ends with an error of this crate.

use std::io;

use bilayer_settings::{Phrase, Setting};

use super::{Error, Exit};
use crate::sampling;
use crate::session::cache::Error as CacheError;

impl Error {
    /// The exit code.
    pub fn exit_code(&self) -> Exit {
        exit_code(self)
    }

    /// The next step for the user, to be appended to the error; empty if the error contains it. `{:#}` names settings as
    /// programs do.
    pub fn advice(&self) -> Phrase {
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
fn advice(error: &Error) -> Phrase {
    use bilayer_graph::Error as Device;
    let plain = match error {
        Error::Cache(CacheError::Context { .. }) => {
            let larger = Phrase::from("; use a larger ").noun("context", Setting::Context);
            return larger.text(" or a shorter prompt");
        }
        Error::Text(error) => return text_advice(error),
        Error::TooLong { .. } => {
            let shorten = Phrase::from("; shorten it, or take its beginning with ");
            return shorten.setting(Setting::Truncate);
        }
        Error::NoEncoder { .. } => {
            let pooled = Phrase::from("; `embed` with ").setting(Setting::Pooling);
            return pooled.text(" last or mean gives the rows of its last layer");
        }
        Error::Device(Device::OutOfMemory { .. }) => {
            return Phrase::from("; use a shorter ").noun("context", Setting::Context);
        }
        Error::Device(Device::StepTooLarge { .. }) => {
            return Phrase::from("; use smaller ").noun("steps", Setting::UbatchSize);
        }
        Error::Cpu(bilayer_cpu::Error::Spawn { .. }) => {
            return Phrase::from("; use fewer ").noun("threads", Setting::Threads);
        }
        Error::Cpu(bilayer_cpu::Error::Bind { .. }) => {
            return Phrase::from("; leave ").setting(Setting::Numa).text(" out");
        }
        // A name rather than a path.
        Error::NoSuchFile { path } if !path.contains(['/', '\\', '.']) => {
            ", or ollama:NAME or hf:ORG/REPO for a model that is in ollama's or Hugging Face's folder"
        }
        Error::Model { source, .. } => match source {
            bilayer_models::Error::UnknownArchitecture { .. }
            | bilayer_models::Error::Unsupported { .. } => "; use a model of a supported one",
            bilayer_models::Error::Graph(_) => "; `bilayer inspect` lists what the file holds",
            _ => "",
        },
        Error::File(error) => file_advice(error),
        Error::Vocabulary { .. } => "; convert the model again",
        Error::QueryTooLong { .. } => "; shorten the query",
        Error::Token { .. } => "; `bilayer tokenize` gives the ids of a text",
        Error::Sampling(sampling::Error::NothingLeft) => "; allow some token",
        Error::LogitsNotFinite | Error::Device(Device::NotFinite { .. }) => {
            "; the weights or the file are damaged: fetch the file again"
        }
        Error::Device(Device::Unsupported { .. } | Device::TooDeep { .. }) => "",
        Error::Device(_) => "; this is a bug: please report it",
        _ => "",
    };
    plain.into()
}

fn file_advice(error: &bilayer_gguf::Error) -> &'static str {
    use bilayer_gguf::Error as File;
    match error {
        File::Quant { .. } => "; convert or quantize the model again, to a type that is supported",
        File::Limit { .. } => ": fetch or make it again",
        // The message says what to do.
        File::Io { action, .. } if action.starts_with("lock") => "",
        File::Io { .. } => "; check that you may read it",
        _ => "",
    }
}

fn text_advice(error: &bilayer_text::Error) -> Phrase {
    use bilayer_text::Error as Text;
    let other = |before: &str| {
        Phrase::from(before).text("give another with ").setting(Setting::ChatTemplate)
    };
    match error {
        Text::NoTemplate { .. } => Phrase::default(),
        Text::UnknownTemplate { .. } => "; give one of them".into(),
        Text::Refused { .. } => other("; change the messages, or "),
        Text::Template { .. }
        | Text::Endless { .. }
        | Text::TooLong { .. }
        | Text::Entangled { .. } => other("; "),
        _ => "; change the text".into(),
    }
}
