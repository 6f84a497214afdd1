//! Flags of speculative decoding; names are llama.cpp's.

use std::path::PathBuf;

use bilayer_engine::generate::speculate::{Bounds, CHECKED_ROWS};
use bilayer_scheduler::Offload;
use clap::Args;

use super::placing::offload;

/// Who guesses tokens, and how many.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Speculative decoding")]
pub struct DraftArgs {
    /// A smaller model with the same vocabulary, which guesses tokens that the model then checks several at a time; short
    /// form -md
    #[arg(long, value_name = "PATH", env = "LLAMA_ARG_MODEL_DRAFT", conflicts_with = "lookup")]
    pub model_draft: Option<PathBuf>,
    /// Guess what followed the last time the text ended as it does now; no draft model
    #[arg(long)]
    pub lookup: bool,
    /// Most tokens to guess at a time; up to 7, greedy answers on a processor are those without guesses, bit for bit
    #[arg(long, alias = "draft", alias = "draft-n", value_name = "N", env = "LLAMA_ARG_DRAFT_MAX")]
    #[arg(default_value_t = CHECKED_ROWS as u32 - 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub draft_max: u32,
    /// Fewest tokens to guess: with --lookup shorter finds are left, a draft model goes on for so long in any case
    #[arg(long, alias = "draft-n-min", value_name = "N", env = "LLAMA_ARG_DRAFT_MIN")]
    #[arg(default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=64))]
    pub draft_min: u32,
    /// A draft model guesses no further once its best token is less probable than this
    #[arg(long, value_name = "X", env = "LLAMA_ARG_DRAFT_P_MIN", default_value_t = 0.75)]
    #[arg(value_parser = share)]
    pub draft_p_min: f32,
    /// Parts of the draft model on the adapter, as -ngl; it is placed before the model; short form -ngld
    #[arg(long, visible_alias = "n-gpu-layers-draft", value_name = "N", default_value = "auto")]
    #[arg(env = "LLAMA_ARG_N_GPU_LAYERS_DRAFT", value_parser = offload)]
    pub gpu_layers_draft: Offload,
}

impl DraftArgs {
    /// What the engine is asked.
    pub fn bounds(&self) -> Bounds {
        Bounds {
            draft_max: self.draft_max as usize,
            draft_min: self.draft_min as usize,
            draft_p_min: self.draft_p_min,
        }
    }
}

fn share(given: &str) -> Result<f32, String> {
    let number: Option<f32> = given.parse().ok();
    number
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| "it must be between 0 and 1".to_owned())
}
