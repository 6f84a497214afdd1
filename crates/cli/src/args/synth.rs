//! Flags of `synth`.

use clap::Args;

use super::OutPath;

/// `bilayer synth`.
#[derive(Args, Debug)]
pub struct Synth {
    /// File to write; an existing file is replaced once the new one is complete
    #[arg(value_name = "OUT")]
    pub out: OutPath,
    /// Shape of the model: tiny, llama-1b, llama-8b, llama-70b, mixtral-8x7b, qwen3-30b-a3b, deepseek-lite, lfm2-1b, qwen35-4b, mamba2-1b, minilm-l6
    #[arg(long, value_name = "NAME", default_value = "tiny")]
    pub shape: String,
    /// Types of the weights: a mix such as Q4_K_M, or one type
    #[arg(long, value_name = "TYPE", default_value = "Q4_K_M")]
    pub r#type: String,
    /// Use the mix's base type for all matrices
    #[arg(long)]
    pub pure: bool,
    /// Random seed of the weights
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Write only the header and leave the weights a hole of zeros that takes no disk space
    #[arg(long)]
    pub hollow: bool,
    /// Number of layers [default: the shape's, as for all that follow]
    #[arg(long, value_name = "N")]
    pub layers: Option<u32>,
    /// Width of the hidden state
    #[arg(long, value_name = "N")]
    pub width: Option<u32>,
    /// Query heads per layer
    #[arg(long, value_name = "N")]
    pub heads: Option<u32>,
    /// Key-value heads per layer [default: as many query heads per key-value head as in the shape]
    #[arg(long, value_name = "N")]
    pub kv_heads: Option<u32>,
    /// Width of a head [default: the shape's, or --width divided by --heads]
    #[arg(long, value_name = "N")]
    pub head_dim: Option<u32>,
    /// Width of the feed-forward layer
    #[arg(long, value_name = "N")]
    pub ffn: Option<u32>,
    /// Vocabulary size
    #[arg(long, value_name = "N")]
    pub vocab: Option<u32>,
    /// Context length recorded in the file
    #[arg(long, value_name = "N")]
    pub context: Option<u32>,
    /// Threads; 0 or less is the default [default: the available cores]
    #[arg(short, long, value_name = "N", env = "LLAMA_ARG_THREADS", allow_negative_numbers = true)]
    pub threads: Option<i64>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}
