//! Flags of `prune`.

use std::path::PathBuf;

use bilayer_convert::prune::drop::Dropped;
use bilayer_convert::prune::{Method, Pattern};
use clap::Args;

use super::OutPath;

/// `bilayer prune`.
#[derive(Args, Clone, Debug)]
pub struct Prune {
    /// GGUF file to read, or the first of its shards
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// File to write; an existing file is replaced once the new one is complete
    #[arg(value_name = "OUT")]
    pub out: OutPath,
    /// How weights are chosen: magnitude, wanda or sparsegpt; with --type and no pattern sparsegpt rounds by GPTQ [default: wanda]
    #[arg(long)]
    pub method: Option<Method>,
    /// A share of zeros in each row such as 0.5, or kept weights per group such as 2:4 or 16:64
    #[arg(long, value_name = "SHARE|KEEP:OF")]
    #[arg(required_unless_present_any = ["target_kl", "target_speed", "drop_layers"])]
    pub pattern: Option<Pattern>,
    /// Choose a pattern for every matrix so that the mean KL divergence on the calibration text is at most this, in nats
    /// per token
    #[arg(long, value_name = "KL", conflicts_with_all = ["pattern", "target_speed"])]
    #[arg(value_parser = positive)]
    pub target_kl: Option<f64>,
    /// Choose a pattern for every matrix so that decode reads so many times fewer bytes; needs --type S4_N_64 or S8_N_64
    #[arg(long, value_name = "TIMES", conflicts_with = "pattern", value_parser = above_one)]
    pub target_speed: Option<f64>,
    /// Remove whole layers first: `auto` (as many consecutive ones as cost 0.1 nats per token), `auto:KL`, a number of
    /// consecutive layers, or a list such as 3,5-7
    #[arg(long, value_name = "auto[:KL]|N|LIST")]
    pub drop_layers: Option<Dropped>,
    /// Type of the pruned matrices, such as F16 or S4_16_64; with a target also S4_N_64 or S8_N_64, of which each matrix
    /// gets the one of its pattern [default: each keeps its own]
    #[arg(long = "type", value_name = "TYPE")]
    pub r#type: Option<String>,
    /// Text whose activations decide, for wanda, sparsegpt, a target and layers that are chosen
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    /// Text that both models are scored on; use another than the calibration text to judge the result
    #[arg(long, value_name = "FILE")]
    pub test: Option<PathBuf>,
    /// Checkpoint folder that IN was converted from, for --checkpoint-out
    #[arg(long, value_name = "FOLDER", requires = "checkpoint_out")]
    pub checkpoint: Option<PathBuf>,
    /// Write the pruned weights as a checkpoint, too, for training
    #[arg(long, value_name = "FOLDER", requires = "checkpoint", conflicts_with = "drop_layers")]
    pub checkpoint_out: Option<OutPath>,
    /// Most windows of each text
    #[arg(long, value_name = "N", default_value_t = 64)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub chunks: u32,
    /// Tokens per window
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    pub ctx_size: usize,
    /// Prune matrices that are already quantized, which lose more than once
    #[arg(long)]
    pub allow_requantize: bool,
    /// Threads; 0 or less is the default [default: the available cores]
    #[arg(short, long, value_name = "N", env = "LLAMA_ARG_THREADS", allow_negative_numbers = true)]
    pub threads: Option<i64>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// A number above 0.
fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("`{text}` is no number"))?;
    let is_valid = number > 0.0 && number.is_finite();
    if is_valid { Ok(number) } else { Err(format!("`{text}` is not above 0")) }
}

/// A number above 1.
fn above_one(text: &str) -> Result<f64, String> {
    let number = positive(text)?;
    if number > 1.0 { Ok(number) } else { Err(format!("`{text}` is not above 1")) }
}
