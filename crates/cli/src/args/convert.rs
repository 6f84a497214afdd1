//! Flags of `convert`, named as those of llama.cpp's converter.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

const AFTER: &str = "\
The folder is one as models are published in: config.json, model.safetensors or its shards with their index, and the \
tokenizer as tokenizer.json, tokenizer.model or vocab.txt. Gains, biases and what is small stay F32 whatever the type; \
rows that are no whole blocks of Q8_0 become F16.";

/// `bilayer convert`.
#[derive(Args, Debug)]
#[command(after_help = AFTER)]
pub struct Convert {
    /// Folder of the checkpoint
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// File to write; one that is there is replaced when the new one is complete [default: DIR/NAME-TYPE.gguf]
    #[arg(long, value_name = "FILE")]
    pub outfile: Option<PathBuf>,
    /// Type of the matrices; auto is the one that the checkpoint has
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    pub outtype: Outtype,
    /// Name of the model [default: made of the folder's]
    #[arg(long, value_name = "NAME")]
    pub model_name: Option<String>,
    /// Do without a tokenizer: the file takes and gives token ids
    #[arg(long)]
    pub no_vocab: bool,
    /// Threads; 0 or less is the default [default: the cores allowed to us]
    #[arg(short, long, value_name = "N", env = "LLAMA_ARG_THREADS", allow_negative_numbers = true)]
    pub threads: Option<i64>,
    /// Say what would be written, tensor by tensor, and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
}

/// A type that matrices can get at once; `quantize` makes the others.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Outtype {
    Auto,
    F32,
    F16,
    Bf16,
    #[value(name = "q8_0")]
    Q8_0,
}
