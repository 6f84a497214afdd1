//! Flags for adapters.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use bilayer_engine::{ControlVector, Error};
use clap::Args;

use super::Scaled;

/// Adapters of a model.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Adapters")]
pub struct LoraArgs {
    /// LoRA adapter in GGUF format, applied while the model runs; repeatable, commas separate several
    #[arg(long, value_name = "FILE", value_delimiter = ',', env = "LLAMA_ARG_LORA")]
    pub lora: Vec<PathBuf>,
    /// LoRA adapter with a strength, 1 being as trained; repeatable, commas separate several
    #[arg(long, value_name = "FILE:SCALE", value_delimiter = ',', value_parser = scaled)]
    #[arg(env = "LLAMA_ARG_LORA_SCALED")]
    pub lora_scaled: Vec<Scaled>,
    /// Control vector in GGUF format, added to the hidden states after layers; repeatable, commas separate several
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    pub control_vector: Vec<PathBuf>,
    /// Control vector with a strength; repeatable, commas separate several
    #[arg(long, value_name = "FILE:SCALE", value_delimiter = ',', value_parser = scaled)]
    pub control_vector_scaled: Vec<Scaled>,
    /// First and last layer after which control vectors are added, counted from 0 [default: all that they have]
    #[arg(long, value_name = "START END", value_parser = range)]
    pub control_vector_layer_range: Option<RangeInclusive<u32>>,
}

impl LoraArgs {
    /// All adapters with their strengths.
    pub fn all(&self) -> impl Iterator<Item = (&PathBuf, f32)> {
        let scaled = self.lora_scaled.iter().map(|(path, scale)| (path, *scale));
        self.lora.iter().map(|path| (path, 1.0)).chain(scaled)
    }

    /// All control vectors with their strengths.
    pub fn control_vectors(&self) -> impl Iterator<Item = (&PathBuf, f32)> {
        let scaled = self.control_vector_scaled.iter().map(|(path, scale)| (path, *scale));
        self.control_vector.iter().map(|path| (path, 1.0)).chain(scaled)
    }

    /// The files of all adapters and control vectors.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.all().chain(self.control_vectors()).map(|(path, _)| path)
    }

    /// Whether layers are named for control vectors and none is given.
    pub fn has_idle_range(&self) -> bool {
        self.control_vector_layer_range.is_some() && self.control_vectors().next().is_none()
    }

    /// The sum of all control vectors, on the layers that the flags name.
    ///
    /// # Errors
    /// A file is missing or no control vector, or they are for different models.
    pub fn control_vector(&self) -> Result<Option<ControlVector>, Error> {
        let all = self.control_vectors().map(|(path, scale)| (&**path, scale));
        ControlVector::sum(all, self.control_vector_layer_range.as_ref())
    }
}

fn range(text: &str) -> Result<RangeInclusive<u32>, String> {
    let given = text.split_once(' ').and_then(|(first, last)| {
        let [first, last] = [first, last].map(|layer| layer.trim().parse::<u32>().ok());
        Some(first?..=last?)
    });
    given
        .filter(|layers| !layers.is_empty())
        .ok_or_else(|| "expected the first and the last layer, such as 10 20".to_owned())
}

fn scaled(text: &str) -> Result<Scaled, String> {
    let given = text.rsplit_once(':').and_then(|(path, scale)| Some((path, scale.parse().ok()?)));
    match given {
        Some((path, scale)) if f32::is_finite(scale) => Ok((PathBuf::from(path), scale)),
        _ => Err("expected FILE:SCALE, such as adapter.gguf:0.5".to_owned()),
    }
}
