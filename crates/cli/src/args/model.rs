//! Flags of every command that loads a model.

use std::path::PathBuf;

use bilayer_cpu::numa::{Numa, NumaError};
use bilayer_quant::Type;
use clap::{Args, ValueEnum};

use super::{HubArgs, LoraArgs, MetadataArgs, PlacingArgs, switch};
use crate::demo::{Applied, Source};

/// Model, threads and KV cache.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// GGUF file, or the first of its shards, or a name of `bilayer models` [default: the embedded demo model]
    #[arg(short, long, value_name = "PATH", env = "LLAMA_ARG_MODEL")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub hub: HubArgs,
    /// Context size in tokens; 0 takes the model's own [default: the model's own, at most 8192]
    #[arg(short, long, value_name = "N", env = "LLAMA_ARG_CTX_SIZE")]
    pub ctx_size: Option<usize>,
    /// Checkpoints of the states of recurrent layers, over all sequences: lengths that a sequence can return to
    #[arg(long, value_name = "N", default_value_t = 16, env = "LLAMA_ARG_CTX_CHECKPOINTS")]
    pub ctx_checkpoints: usize,
    /// Worker threads; 0 or less is the default [default: the available physical cores]
    #[arg(short, long, value_name = "N", env = "LLAMA_ARG_THREADS", allow_negative_numbers = true)]
    pub threads: Option<i64>,
    /// Most prompt tokens submitted at once (logical batch)
    #[arg(short, long, value_name = "N", default_value_t = 2048, env = "LLAMA_ARG_BATCH")]
    pub batch_size: usize,
    /// Most tokens in one step (physical batch); short form -ub
    #[arg(long, value_name = "N", default_value_t = 512, env = "LLAMA_ARG_UBATCH")]
    pub ubatch_size: usize,
    /// Type of keys in the KV cache: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl; short form -ctk
    #[arg(long, value_name = "TYPE", default_value = "f16", env = "LLAMA_ARG_CACHE_TYPE_K")]
    #[arg(value_parser = kv_type)]
    pub cache_type_k: Type,
    /// Type of values in the KV cache: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl; short form -ctv
    #[arg(long, value_name = "TYPE", default_value = "f16", env = "LLAMA_ARG_CACHE_TYPE_V")]
    #[arg(value_parser = kv_type)]
    pub cache_type_v: Type,
    /// Store keys in blocks after a Hadamard transform, which rounds keys with large channels less; short form -khad
    #[arg(long)]
    pub k_cache_hadamard: bool,
    /// off disables fused kernels, for comparison; attention is tiled either way; short form -fa
    #[arg(long, value_name = "WHEN", default_value = "auto", env = "LLAMA_ARG_FLASH_ATTN")]
    #[arg(num_args = 0..=1, default_missing_value = "on", value_enum)]
    pub flash_attn: FlashAttn,
    /// Lock the weights in memory
    #[arg(long, env = "LLAMA_ARG_MLOCK", value_parser = switch())]
    pub mlock: bool,
    /// Read the file into memory instead of mapping it
    #[arg(long, env = "LLAMA_ARG_NO_MMAP", value_parser = switch())]
    pub no_mmap: bool,
    #[arg(long, value_name = "NAME", help = cpu_level_help())]
    pub cpu_level: Option<String>,
    /// Let the CPU round weights to eight bits in prompts of many tokens, where that is faster
    #[arg(long)]
    pub fast_prefill: bool,
    /// Divide threads and a copy of the weights among the CPU's NUMA nodes: off, distribute, or a number of simulated nodes
    #[arg(long, value_name = "HOW", default_value = "off", env = "LLAMA_ARG_NUMA")]
    #[arg(value_parser = numa)]
    pub numa: Numa,
    #[command(flatten)]
    pub metadata: MetadataArgs,
    #[command(flatten)]
    pub lora: LoraArgs,
    #[command(flatten)]
    pub placing: PlacingArgs,
}

/// The help of `--cpu-level`, with the levels of the CPU backend's table.
fn cpu_level_help() -> String {
    let levels = bilayer_cpu::level::Level::ALL.map(|level| level.name()).join(", ");
    format!("Instruction level: {levels} [default: the highest supported]")
}

impl ModelArgs {
    /// The source of the model.
    pub fn source(&self) -> Source<'_> {
        let path = self.model.as_deref();
        Source {
            path,
            map: !self.no_mmap,
            runs: false,
            lock: self.mlock,
            metadata: Some(&self.metadata),
            lora: Some(&self.lora),
            applied: Applied::Fixed,
            pooling: None,
        }
    }
}

/// Whether kernels are fused; the aliases are llama.cpp's.
// No doc comments on the variants: clap would print them as a list of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FlashAttn {
    #[value(alias = "1", alias = "true", alias = "enabled")]
    On,
    #[value(alias = "0", alias = "false", alias = "disabled")]
    Off,
    #[value(alias = "-1")]
    Auto,
}

pub(super) fn numa(given: &str) -> Result<Numa, String> {
    given.parse().map_err(|error: NumaError| error.advice.to_owned())
}

pub(super) fn kv_type(given: &str) -> Result<Type, String> {
    bilayer_engine::session::kv_types()
        .find(|ty| ty.name.eq_ignore_ascii_case(given))
        .ok_or_else(|| format!("it must be {}", bilayer_quant::cache::names()))
}
