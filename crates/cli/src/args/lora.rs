//! Flags for adapters.

use std::path::PathBuf;

use clap::Args;

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
    pub lora_scaled: Vec<(PathBuf, f32)>,
}

impl LoraArgs {
    /// All adapters with their strengths.
    pub fn all(&self) -> impl Iterator<Item = (&PathBuf, f32)> {
        let scaled = self.lora_scaled.iter().map(|(path, scale)| (path, *scale));
        self.lora.iter().map(|path| (path, 1.0)).chain(scaled)
    }
}

fn scaled(text: &str) -> Result<(PathBuf, f32), String> {
    let given = text.rsplit_once(':').and_then(|(path, scale)| Some((path, scale.parse().ok()?)));
    match given {
        Some((path, scale)) if f32::is_finite(scale) => Ok((PathBuf::from(path), scale)),
        _ => Err("expected FILE:SCALE, such as adapter.gguf:0.5".to_owned()),
    }
}
