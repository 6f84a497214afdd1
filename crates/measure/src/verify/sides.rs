//! The backends that are compared, by name.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use bilayer_cpu::level::Level;
use bilayer_cpu::{Cpu, Options};
use bilayer_engine::Error as Engine;
use bilayer_engine::Model;
use bilayer_engine::placement;
use bilayer_engine::session::Settings;
use bilayer_graph::Backend;
use bilayer_graph::reference::Reference;

use super::{Input, Report, verify};
use crate::Error;

/// Most tokens that [`Sides::verify`] runs, since every value of every op is kept.
pub const TOKENS_MAX: usize = 512;

/// A backend by its name: `cpu`, `cpu:LEVEL`, `gpu` or `reference`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The CPU at an instruction level, by default that of the settings.
    Cpu(Option<Level>),
    /// The first GPU that the settings name.
    Gpu,
    /// The implementation in floats that tests compare with.
    Reference,
}

impl FromStr for Side {
    type Err = String;

    fn from_str(name: &str) -> Result<Side, String> {
        match name.split_once(':') {
            None if name == "cpu" => Ok(Side::Cpu(None)),
            None if name == "gpu" => Ok(Side::Gpu),
            None if name == "reference" => Ok(Side::Reference),
            Some(("cpu", level)) => {
                level.parse().map(|level| Side::Cpu(Some(level))).map_err(|e| format!("{e}"))
            }
            _ => Err("it must be cpu, cpu:LEVEL, gpu or reference".to_owned()),
        }
    }
}

impl Display for Side {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Side::Cpu(None) => f.write_str("cpu"),
            Side::Cpu(Some(level)) => write!(f, "cpu:{}", level.name()),
            Side::Gpu => f.write_str("gpu"),
            Side::Reference => f.write_str("reference"),
        }
    }
}

impl Side {
    /// Opens the backend.
    ///
    /// # Errors
    /// The CPU lacks the level; there is no such GPU.
    pub fn open(self, settings: &Settings<'_>) -> Result<Box<dyn Backend>, Error> {
        let options = settings.cpu_options();
        Ok(match self {
            Side::Cpu(level) => {
                Box::new(Cpu::new(Options { level: level.or(options.level), ..options })?)
            }
            Side::Gpu => gpu(settings)?.map_err(|reason| Engine::Unavailable {
                reason: reason.unwrap_or_else(|| "no GPU is asked for".to_owned()),
            })?,
            Side::Reference => Box::new(Reference::new()),
        })
    }
}

/// The first GPU that the settings name, or the reason why there is none; no reason if none is asked for.
fn gpu(settings: &Settings<'_>) -> Result<Result<Box<dyn Backend>, Option<String>>, Error> {
    // A simulated GPU computes on the CPU, whatever the level of the other side.
    let options = Options { level: None, ..settings.cpu_options() };
    let found = placement::open(&settings.placing, options)?;
    let reason = found.missing.into_iter().next();
    Ok(found.devices.into_iter().next().ok_or(reason))
}

/// What [`Sides::verify`] has found.
#[derive(Clone, Debug, PartialEq)]
pub struct Verified {
    /// The second backend.
    pub second: Side,
    /// Why that is the reference, if a GPU was asked for and there is none.
    pub without_gpu: Option<String>,
    /// The differences.
    pub report: Report,
}

/// Two opened backends.
pub struct Sides {
    first: Box<dyn Backend>,
    second: Box<dyn Backend>,
    name: Side,
    without_gpu: Option<String>,
}

impl Sides {
    /// Opens both; the second is a GPU by default, or the reference without one.
    ///
    /// # Errors
    /// Those of [`Side::open`].
    pub fn open(
        (first, second): (Side, Option<Side>),
        settings: &Settings<'_>,
    ) -> Result<Sides, Error> {
        let first = first.open(settings)?;
        let (name, second, without_gpu) = match second {
            Some(name) => (name, name.open(settings)?, None),
            None => match gpu(settings)? {
                Ok(gpu) => (Side::Gpu, gpu, None),
                Err(reason) => (Side::Reference, Side::Reference.open(settings)?, reason),
            },
        };
        Ok(Sides { first, second, name, without_gpu })
    }

    /// Why the second is the reference, if a GPU was asked for and there is none.
    pub fn without_gpu(&self) -> Option<&str> {
        self.without_gpu.as_deref()
    }

    /// [Compares](verify) them on tokens.
    ///
    /// # Errors
    /// Those of [`verify`]; no tokens, or more than [`TOKENS_MAX`].
    pub fn verify(
        mut self,
        model: &Model,
        tokens: &[u32],
        settings: &Settings<'_>,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<Verified, Error> {
        if !(1..=TOKENS_MAX).contains(&tokens.len()) {
            let expected = format!("between 1 and {TOKENS_MAX}");
            return Err(Engine::setting("number of tokens", tokens.len(), expected).into());
        }
        let input = Input {
            tokens,
            cache_types: [settings.cache_type_k, settings.cache_type_v],
            hadamard_keys: settings.hadamard_keys,
            rounds_weights: settings.fast_prefill,
        };
        let (first, second) = (self.first.as_mut(), self.second.as_mut());
        let report = verify(model, first, second, input, progress)?;
        Ok(Verified { second: self.name, without_gpu: self.without_gpu, report })
    }
}

#[cfg(test)]
mod tests {
    use super::Side;

    #[test]
    fn sides_have_names() {
        for name in ["cpu", "cpu:scalar", "gpu", "reference"] {
            assert_eq!(name.parse::<Side>().map(|side| side.to_string()).as_deref(), Ok(name));
        }
        for (name, part) in
            [("tpu", "it must be cpu, cpu:LEVEL"), ("gpu:1", "it must be cpu"), ("cpu:x", "x")]
        {
            let error = name.parse::<Side>().expect_err("no side");
            assert!(error.contains(part), "{error}");
        }
    }
}
