//! Flags of `run` for what it keeps of a prompt.

use clap::Args;

use super::OutPath;

/// The file and how it is used.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Prompt cache")]
pub struct PromptCacheArgs {
    /// Keep the KV cache of the prompt in this file: the next run with the same beginning computes only the rest
    #[arg(long, value_name = "FILE")]
    pub prompt_cache: Option<OutPath>,
    /// Keep that of the answer, too
    #[arg(long, requires = "prompt_cache")]
    pub prompt_cache_all: bool,
    /// Use the file and leave it as it is
    #[arg(long, requires = "prompt_cache", conflicts_with = "prompt_cache_all")]
    pub prompt_cache_ro: bool,
}
