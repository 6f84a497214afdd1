//! Flags of `prune`.

use std::path::PathBuf;

use bilayer_convert::prune::{Method, Pattern};
use clap::Args;

/// `bilayer prune`.
#[derive(Args, Clone, Debug)]
pub struct Prune {
    /// GGUF file to read, or the first of its shards
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// File to write; an existing file is replaced once the new one is complete
    #[arg(value_name = "OUT")]
    pub out: PathBuf,
    /// How weights are chosen: magnitude, wanda or sparsegpt
    #[arg(long, default_value = "wanda")]
    pub method: Method,
    /// A share of zeros in each row such as 0.5, or kept weights per group such as 2:4 or 16:64
    #[arg(long, value_name = "SHARE|KEEP:OF")]
    pub pattern: Pattern,
    /// Type of the pruned matrices, such as F16 or S4_16_64 [default: each keeps its own]
    #[arg(long = "type", value_name = "TYPE")]
    pub r#type: Option<String>,
    /// Text whose activations decide, for wanda and sparsegpt
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    /// Text that both models are scored on; use another than the calibration text to judge the result
    #[arg(long, value_name = "FILE")]
    pub test: Option<PathBuf>,
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
