//! Flags of the commands that run encoders.

use std::path::PathBuf;

use bilayer_engine::encode::Excess;
use bilayer_models::Pooling;
use clap::{Args, ValueEnum};

use super::ModelArgs;

/// `bilayer embed`.
#[derive(Args, Debug)]
pub struct Embed {
    /// Pooling: none, mean, cls, last [default: the model's own]
    #[arg(long, value_name = "HOW", value_enum)]
    pub pooling: Option<PoolingArg>,
    /// The model's prompt that comes before every text, such as `query` [default: the one that the model names, or none]
    #[arg(long, value_name = "NAME")]
    pub prompt_name: Option<String>,
    /// Scale every vector: 2 to length 1, 1 to a sum of absolute values of 1, 0 to a largest of 32760, any other P to a
    /// P-norm of 1, -1 not at all [default: 2, or -1 if the checkpoint had no module for it]
    #[arg(long, value_name = "P", env = "LLAMA_ARG_EMBD_NORMALIZE")]
    #[arg(value_parser = clap::value_parser!(i32).range(-1..=64))]
    pub embd_normalize: Option<i32>,
    /// Short for --embd-normalize 2
    #[arg(long, hide = true, conflicts_with = "embd_normalize")]
    pub normalize: bool,
    /// Print one object per line (jsonl), or one document: array of vectors, json as OpenAI's, json+ with cosine similarities
    #[arg(long, value_name = "FORM", default_value = "jsonl", value_parser = ["jsonl", "array", "json", "json+"])]
    pub embd_output_format: String,
    #[command(flatten)]
    pub texts: TextArgs,
    #[command(flatten)]
    pub model: ModelArgs,
}

/// `bilayer rerank`.
#[derive(Args, Debug)]
pub struct Rerank {
    /// The query; the texts are the documents
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub query: String,
    /// Print only the N best documents, best first [default: all, in the order given]
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
    /// Labels, separated by commas: each text gets the one whose embedding is most similar, by a model without a head
    #[arg(long, value_name = "LABELS", value_delimiter = ',', conflicts_with = "examples")]
    #[arg(value_parser = label)]
    pub labels: Vec<String>,
    /// As --labels, by examples: a file of JSON lines with `text` and `label`
    #[arg(long, value_name = "FILE")]
    pub examples: Option<PathBuf>,
    /// With --labels or --examples, the label is null for texts whose best cosine is below
    #[arg(long, value_name = "COSINE", value_parser = cosine, allow_negative_numbers = true)]
    pub at_least: Option<f32>,
    #[command(flatten)]
    pub texts: TextArgs,
    #[command(flatten)]
    pub model: ModelArgs,
}

/// `bilayer extract`.
#[derive(Args, Debug)]
pub struct Extract {
    /// How labels of tokens become entities: none (one per token), simple (neighbouring tokens of one type), or by whole
    /// words with the label of their first token (first), of the mean of their tokens (average), or of the most certain (max)
    #[arg(long, value_name = "HOW", default_value = "simple")]
    #[arg(value_parser = ["none", "simple", "first", "average", "max"])]
    pub aggregation: String,
    /// Tokens that neighbouring windows of a text longer than the context share [default: a quarter of a window]
    #[arg(long, value_name = "N")]
    pub stride: Option<usize>,
    /// Labels or types of entities to leave out, separated by commas
    #[arg(long, value_name = "LABELS", value_delimiter = ',', default_value = "O")]
    pub ignore_labels: Vec<String>,
    #[command(flatten)]
    pub texts: TextArgs,
    #[command(flatten)]
    pub model: ModelArgs,
}

/// The texts to encode.
#[derive(Args, Clone, Debug)]
pub struct TextArgs {
    /// The texts; without TEXT, -p, -f or --jsonl, one text per line is read from a pipe
    #[arg(value_name = "TEXT", conflicts_with_all = ["prompt", "file", "jsonl"])]
    pub texts: Vec<String>,
    /// The texts, one per line; \n is a line break, other escapes are as in C
    #[arg(short, long, value_name = "TEXT", conflicts_with_all = ["file", "jsonl"])]
    #[arg(allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// What separates the texts of -p, -f and a pipe [default: a line break]
    #[arg(long, value_name = "TEXT", alias = "embd-sep", allow_hyphen_values = true)]
    pub embd_separator: Option<String>,
    /// File with one text per line (`-` for stdin)
    #[arg(short, long, value_name = "FILE", conflicts_with = "jsonl")]
    pub file: Option<PathBuf>,
    /// File with one JSON value per line (`-` for stdin): a string, or an object with `text` and optionally `text_pair`
    /// (encoded together with it) and `id` (copied to the result)
    #[arg(long, value_name = "FILE")]
    pub jsonl: Option<PathBuf>,
    /// Truncate texts longer than the context; otherwise they are an error, or with `extract` run in windows
    #[arg(long)]
    pub truncate: bool,
    /// No effect: the output is always JSON, one object per line unless embed's --embd-output-format says otherwise
    #[arg(long)]
    pub json: bool,
}

impl TextArgs {
    /// What becomes of a text that is too long.
    pub fn excess(&self) -> Excess {
        if self.truncate { Excess::Truncate } else { Excess::Refuse }
    }
}

fn label(text: &str) -> Result<String, String> {
    let label = text.trim();
    match label.is_empty() {
        true => Err("a label is empty; give names between the commas".to_owned()),
        false => Ok(label.to_owned()),
    }
}

/// A number from -1 to 1.
fn cosine(text: &str) -> Result<f32, String> {
    let found = text.parse().ok().filter(|cosine| (-1.0..=1.0).contains(cosine));
    found.ok_or_else(|| "a number from -1 to 1 is expected".to_owned())
}

/// [`Pooling`] as a flag's value.
// No doc comments on the variants: clap would print them as a list of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PoolingArg {
    None,
    Mean,
    Cls,
    Last,
    /// llama.cpp's name for scores.
    #[value(hide = true)]
    Rank,
}

impl PoolingArg {
    /// The pooling as the engine's settings; `None` for scores.
    pub fn pooling(self) -> Option<Pooling> {
        Some(match self {
            PoolingArg::None => Pooling::None,
            PoolingArg::Mean => Pooling::Mean,
            PoolingArg::Cls => Pooling::Cls,
            PoolingArg::Last => Pooling::Last,
            PoolingArg::Rank => return None,
        })
    }
}
