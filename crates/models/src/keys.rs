//! Reads and validates an architecture's own metadata keys.

use std::fmt::Display;
use std::ops::RangeInclusive;

use bilayer_gguf::{Array, Metadata, Value};
use bilayer_graph::Activation;

use crate::{Error, limits};

/// Numbers that llama.cpp's converter and ollama's call differently, in this order.
const OLLAMA: &[[&str; 2]] = &[
    ["gemma3.rope.freq_base", "gemma3.rope.global.freq_base"],
    ["gemma3.rope.freq_base_swa", "gemma3.rope.local.freq_base"],
    ["gemma3.rope.scaling.yarn_beta_fast", "gemma3.rope.scaling.beta_fast"],
    ["gemma3.rope.scaling.yarn_beta_slow", "gemma3.rope.scaling.beta_slow"],
    ["gemma3.rope.scaling.yarn_ext_factor", "gemma3.rope.scaling.extrapolation_factor"],
    ["mistral3.attention.temperature_scale", "mistral3.rope.scaling_beta"],
    ["mistral3.rope.scaling.yarn_beta_fast", "mistral3.rope.scaling.beta_fast"],
    ["mistral3.rope.scaling.yarn_beta_slow", "mistral3.rope.scaling.beta_slow"],
    ["mistral3.rope.scaling.yarn_log_multiplier", "mistral3.rope.scaling.mscale_all_dim"],
];

/// Numbers that ollama's converter leaves out.
const LEFT_OUT: &[(&str, f32)] = &[("gemma3.attention.layer_norm_rms_epsilon", 1e-6)];

/// What `--yarn-attn-factor` sets, a key of ours: the flag is a multiplier, as in llama.cpp, while
/// `rope.scaling.yarn_attn_factor` of a file is the whole factor.
const ATTN_MULTIPLIER: &str = "rope.scaling.attn_multiplier";

/// The keys `<architecture>.*` of a file.
pub(crate) struct Keys<'m> {
    pub metadata: &'m Metadata,
    pub architecture: &'static str,
}

impl Keys<'_> {
    /// The full key.
    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// A count or length within `range`.
    pub fn size(&self, name: &str, range: RangeInclusive<usize>) -> Result<usize, Error> {
        self.within(name, self.metadata.usize(&self.key(name))?, range)
    }

    /// [`Keys::size`] of an optional key; `None` if absent.
    pub fn opt_size(
        &self,
        name: &str,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, Error> {
        let size = self.metadata.opt_usize(&self.key(name))?;
        size.map(|size| self.within(name, size, range)).transpose()
    }

    /// A count or length for each of `layers` layers; a single number applies to all.
    pub fn each(
        &self,
        name: &str,
        layers: usize,
        range: RangeInclusive<usize>,
    ) -> Result<Vec<usize>, Error> {
        let each = self.metadata.u32_each(&self.key(name), layers)?;
        each.into_iter().map(|size| self.within(name, size as usize, range.clone())).collect()
    }

    /// [`Keys::each`] of an optional key; `None` if absent.
    pub fn opt_each(
        &self,
        name: &str,
        layers: usize,
        range: RangeInclusive<usize>,
    ) -> Result<Option<Vec<usize>>, Error> {
        if self.has(name) { self.each(name, layers, range).map(Some) } else { Ok(None) }
    }

    /// A flag; `None` if the key is absent.
    pub fn opt_flag(&self, name: &str) -> Result<Option<bool>, Error> {
        match self.metadata.get(&self.key(name)) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.value(name, "true or false", other)),
        }
    }

    /// A flag for each of `layers` layers: a list of flags, or a period in which all but the last are set.
    /// Without the key, a period of length `period`.
    pub fn flags_or_period(
        &self,
        name: &str,
        layers: usize,
        period: usize,
    ) -> Result<Vec<bool>, Error> {
        if let Some(Value::Array(Array::Bool(flags))) = self.metadata.get(&self.key(name)) {
            if flags.len() == layers {
                return Ok(flags.clone());
            }
            return Err(self.value(name, format!("{layers} flags, one a layer"), flags.len()));
        }
        let period = self.opt_size(name, 1..=limits::LAYERS)?.unwrap_or(period);
        Ok((1..=layers).map(|layer| layer % period != 0).collect())
    }

    /// A factor, base or cap: finite and above 0. `None` if the key is absent.
    pub fn positive(&self, name: &str) -> Result<Option<f32>, Error> {
        let key = self.number_key(name);
        let Some(value) = self.metadata.opt_f32(&key)? else { return Ok(None) };
        if value.is_finite() && value > 0.0 {
            return Ok(Some(value));
        }
        let (expected, found) = ("a finite number above 0".to_owned(), value.to_string());
        Err(Error::Value { key, expected, found })
    }

    /// [`Keys::positive`] of a required key.
    pub fn needed_positive(&self, name: &str) -> Result<f32, Error> {
        self.metadata.f32(&self.key(name))?;
        self.positive(name)?.ok_or_else(|| self.value(name, "a number", "nothing"))
    }

    /// [`Keys::positive`], where 0 also means absent, as some converters write it.
    pub fn positive_or_zero(&self, name: &str) -> Result<Option<f32>, Error> {
        if self.metadata.opt_f32(&self.number_key(name))? == Some(0.0) {
            return Ok(None);
        }
        self.positive(name)
    }

    /// A share or factor: finite and at least 0. `None` if the key is absent.
    pub fn not_negative(&self, name: &str) -> Result<Option<f32>, Error> {
        match self.metadata.opt_f32(&self.number_key(name))? {
            Some(0.0) => Ok(Some(0.0)),
            _ => self.positive(name),
        }
    }

    /// The user's factor on cosine and sine of RoPE; 1 without one.
    pub fn attn_multiplier(&self) -> Result<f32, Error> {
        Ok(self.positive(ATTN_MULTIPLIER)?.unwrap_or(1.0))
    }

    /// The full key, or ollama's where the file has only that.
    fn number_key(&self, name: &str) -> String {
        let key = self.key(name);
        if self.metadata.get(&key).is_some() {
            return key;
        }
        let other = OLLAMA.iter().find(|[known, _]| *known == key).map(|[_, other]| *other);
        let other = other.filter(|other| self.metadata.get(other).is_some());
        other.map_or(key, str::to_owned)
    }

    /// The form of GELU that the file names as transformers does, otherwise `usual`. llama.cpp has the key for other
    /// architectures.
    pub fn gelu(&self, usual: Activation) -> Result<Activation, Error> {
        let name = "hidden_activation";
        match self.metadata.opt_str(&self.key(name))? {
            None => Ok(usual),
            Some("gelu") => Ok(Activation::Gelu),
            Some("gelu_new" | "gelu_fast" | "gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
            Some(other) => Err(self.value(name, "gelu or gelu_new", other)),
        }
    }

    /// The epsilon of a norm.
    pub fn eps(&self, name: &str) -> Result<f32, Error> {
        let key = self.key(name);
        let left_out = LEFT_OUT.iter().find(|(known, _)| *known == key).map(|(_, eps)| *eps);
        let eps = match self.metadata.opt_f32(&key)?.or(left_out) {
            Some(eps) => eps,
            None => self.metadata.f32(&key)?,
        };
        // Published models use 1e-12 to 1e-5; with 0 a row of zeros would be divided by zero.
        if eps > 0.0 && eps < 1.0 {
            return Ok(eps);
        }
        Err(self.value(name, "a number between 0 and 1", eps))
    }

    /// Refuses a file that sets `name` to anything but a zero, `false` or an empty string.
    pub fn refuse(&self, name: &str, feature: &'static str) -> Result<(), Error> {
        let key = self.key(name);
        let Some(value) = self.metadata.get(&key) else { return Ok(()) };
        let off = match value {
            Value::Bool(flag) => !flag,
            Value::String(text) => text.is_empty(),
            Value::F32(number) => *number == 0.0,
            _ => self.metadata.opt_u64(&key).is_ok_and(|number| number == Some(0)),
        };
        if off {
            Ok(())
        } else {
            Err(Error::Unsupported { key, found: value.to_string(), feature })
        }
    }

    /// Whether the file has the key.
    pub fn has(&self, name: &str) -> bool {
        self.metadata.get(&self.key(name)).is_some()
    }

    /// The error for a key whose value no model can have.
    pub fn value(&self, name: &str, expected: impl Display, found: impl Display) -> Error {
        let (expected, found) = (expected.to_string(), found.to_string());
        Error::Value { key: self.key(name), expected, found }
    }

    fn within(
        &self,
        name: &str,
        size: usize,
        range: RangeInclusive<usize>,
    ) -> Result<usize, Error> {
        if range.contains(&size) {
            return Ok(size);
        }
        let expected = format!("{} to {}", range.start(), range.end());
        Err(self.value(name, expected, size))
    }
}
