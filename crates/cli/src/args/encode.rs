//! Flags of the commands that run an encoder.

use std::path::PathBuf;

use bilayer_models::Pooling;
use clap::{Args, ValueEnum};

use super::ModelArgs;

/// `bilayer embed`.
#[derive(Args, Debug)]
pub struct Embed {
    /// What becomes of the rows of a text: none, mean, cls, last [default: what the file says]
    #[arg(long, value_name = "HOW", value_enum)]
    pub pooling: Option<PoolingArg>,
    /// Bring every vector to length 1
    #[arg(long)]
    pub normalize: bool,
    #[command(flatten)]
    pub texts: TextArgs,
    #[command(flatten)]
    pub model: ModelArgs,
}

/// `bilayer rerank`.
#[derive(Args, Debug)]
pub struct Rerank {
    /// What is asked; the texts are the documents
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub query: String,
    /// Print only the N best, the best first; else all, in their order
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub top_n: Option<u32>,
    #[command(flatten)]
    pub texts: TextArgs,
    #[command(flatten)]
    pub model: ModelArgs,
}

/// `bilayer classify`.
#[derive(Args, Debug)]
pub struct Classify {
    #[command(flatten)]
    pub texts: TextArgs,
    #[command(flatten)]
    pub model: ModelArgs,
}

/// Which texts.
#[derive(Args, Clone, Debug)]
pub struct TextArgs {
    /// The texts; without TEXT, -f and --jsonl a text a line is read from a pipe
    #[arg(value_name = "TEXT", conflicts_with_all = ["file", "jsonl"])]
    pub texts: Vec<String>,
    /// File with a text a line (`-` for stdin)
    #[arg(short, long, value_name = "FILE", conflicts_with = "jsonl")]
    pub file: Option<PathBuf>,
    /// File with a JSON string a line, or an object with `text`, and perhaps `text_pair` (judged together with it) and
    /// `id` (printed with the answer); `-` for stdin
    #[arg(long, value_name = "FILE")]
    pub jsonl: Option<PathBuf>,
    /// Take the beginning of a text that is longer than the context; else it is an error
    #[arg(long)]
    pub truncate: bool,
    /// One JSON object a line on stdout, which is what is printed anyway
    #[arg(long)]
    pub json: bool,
}

/// [`Pooling`] by its names.
// No doc comments on the variants: clap would print them as a list of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PoolingArg {
    None,
    Mean,
    Cls,
    Last,
}

impl PoolingArg {
    /// What the engine is asked.
    pub fn pooling(self) -> Pooling {
        match self {
            PoolingArg::None => Pooling::None,
            PoolingArg::Mean => Pooling::Mean,
            PoolingArg::Cls => Pooling::Cls,
            PoolingArg::Last => Pooling::Last,
        }
    }
}
