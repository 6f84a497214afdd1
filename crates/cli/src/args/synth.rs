//! Flags of `synth`.

use std::path::PathBuf;

use clap::Args;

/// `bilayer synth`.
#[derive(Args, Debug)]
pub struct Synth {
    /// File to write; one that is there is replaced when the new one is complete
    #[arg(value_name = "OUT")]
    pub out: PathBuf,
    /// Sizes of the model: tiny, llama-1b, llama-8b, llama-70b, mixtral-8x7b, qwen3-30b-a3b, minilm-l6
    #[arg(long, value_name = "NAME", default_value = "tiny")]
    pub shape: String,
    /// Types of its weights: a mix such as Q4_K_M, or one type
    #[arg(long, value_name = "TYPE", default_value = "Q4_K_M")]
    pub r#type: String,
    /// One type for all matrices, the base of the mix
    #[arg(long)]
    pub pure: bool,
    /// Which of the random models
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Header and size only; the weights are zeros that take no room on the disk
    #[arg(long)]
    pub hollow: bool,
    /// Layers, in place of the shape's
    #[arg(long, value_name = "N")]
    pub layers: Option<u32>,
    /// Elements of the hidden state
    #[arg(long, value_name = "N")]
    pub width: Option<u32>,
    /// Query heads of a layer
    #[arg(long, value_name = "N")]
    pub heads: Option<u32>,
    /// Key-value heads of a layer [default: shared by as many heads as the shape's]
    #[arg(long, value_name = "N")]
    pub kv_heads: Option<u32>,
    /// Elements of a head [default: the shape's, or the width by the heads where these are given]
    #[arg(long, value_name = "N")]
    pub head_dim: Option<u32>,
    /// Elements of the feed-forward's inner state
    #[arg(long, value_name = "N")]
    pub ffn: Option<u32>,
    /// Tokens of the vocabulary
    #[arg(long, value_name = "N")]
    pub vocab: Option<u32>,
    /// Tokens of context the file names
    #[arg(long, value_name = "N")]
    pub context: Option<u32>,
    /// Threads that make weights; 0 or less is the default [default: the cores allowed to us]
    #[arg(short, long, value_name = "N", env = "LLAMA_ARG_THREADS", allow_negative_numbers = true)]
    pub threads: Option<i64>,
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
}
