//! Every flag, once. Names are llama.cpp's wherever it has one.

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, Parser, Subcommand};

mod bench;
mod chat;
mod convert;
mod draft;
mod encode;
mod model;
mod perplexity;
mod placing;
mod profile;
mod quantize;
mod sampling;
mod synth;
pub mod typed;

pub use bench::{Bench, Form, Numbers};
pub use chat::ChatArgs;
pub use convert::{Convert, Outtype};
pub use draft::DraftArgs;
pub use encode::{Classify, Embed, PoolingArg, Rerank, TextArgs};
pub use model::{FlashAttn, ModelArgs};
pub use perplexity::{Imatrix, Perplexity};
pub(crate) use placing::size;
pub use placing::{AdapterArgs, PlacingArgs};
pub use profile::Profile;
pub use quantize::Quantize;
pub use sampling::SamplingArgs;
pub use synth::Synth;

const AFTER: &str = "\
`bilayer run --help` lists the flags of `run`; they carry llama.cpp's names. What no flag gives is taken from LLAMA_ARG_* variables, then from bilayer.toml (long \
flags without dashes: `threads = 8`) in the working directory or in ~/.config/bilayer, then from the defaults.

Exit codes: 0 good, 1 `verify` found a difference, 2 usage, 65 bad model file, 66 no such file, 69 no such device, 70 our own fault, 73 output cannot \
be made, 74 input or output failed, 75 does not fit, 130 interrupted.";

/// Run large language models on the processors you own.
///
/// Without a command it is `run`, and without a model that is the demo model inside the program.
#[derive(Debug, Parser)]
#[command(name = "bilayer", version, about, max_term_width = 100, after_help = AFTER)]
#[command(subcommand_required = true, disable_help_subcommand = true)]
#[command(override_usage = "bilayer [run] [OPTIONS]\n       bilayer <COMMAND> [OPTIONS]")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Threads that were asked for: as with llama.cpp, 0 and less leave the choice to us.
pub fn threads(given: Option<i64>) -> Option<usize> {
    given.and_then(|threads| usize::try_from(threads).ok()).filter(|&threads| threads > 0)
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Generate text from a prompt
    Run(Box<RunArgs>),
    /// Say what would run where and what memory it takes, without loading
    Plan(Box<Plan>),
    /// Measure speed, with llama-bench's tests and names
    Bench(Box<Bench>),
    /// Measure what each offloaded layer buys, and draw it
    Profile(Box<Profile>),
    /// Compare two backends op by op on the same tokens
    Verify(Box<Verify>),
    /// List the processors of this machine
    Devices(Devices),
    /// Show what a model file holds and what would stop it from running
    Inspect(Inspect),
    /// Turn texts into vectors with an encoder
    Embed(Box<Embed>),
    /// Score documents by how well they answer a query
    Rerank(Box<Rerank>),
    /// Say which label fits a text
    Classify(Box<Classify>),
    /// Turn text into tokens
    Tokenize(Tokenize),
    /// Turn tokens into text
    Detokenize(Detokenize),
    /// Say how well a model predicts a text, and how far it is from a base model
    Perplexity(Box<Perplexity>),
    /// Sum up which inputs of each matrix matter, from a calibration text
    Imatrix(Box<Imatrix>),
    /// Make a model file of a checkpoint folder
    Convert(Box<Convert>),
    /// Make a smaller file of a model, in other types
    Quantize(Box<Quantize>),
    /// Write a model of a given shape with random weights
    Synth(Box<Synth>),
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write one per command
    Man {
        /// Folder to write the pages to; without it the main page goes to stdout
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
}

/// `bilayer run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// The prompt; without -p, -f and --tokens it is read from a pipe
    #[arg(short, long, value_name = "TEXT", conflicts_with_all = ["file", "tokens"])]
    #[arg(allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// File with the prompt, taken as it stands
    #[arg(short, long, value_name = "FILE", conflicts_with = "tokens")]
    pub file: Option<PathBuf>,
    /// The prompt as token ids, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub tokens: Vec<u32>,
    /// Print the prompt before the answer
    #[arg(long)]
    pub echo: bool,
    /// Report the N most likely tokens beside each, in --json
    #[arg(long, value_name = "N", requires = "json")]
    pub logprobs: Option<usize>,
    /// Write the logits after every prompt token, float32 [tokens, vocab]
    #[arg(long, value_name = "FILE.npy")]
    pub logits: Option<PathBuf>,
    /// Write what ran when on which device, in the trace format that Perfetto opens
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// One JSON document on stdout; in a chat one for each answer, a line each
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub chat: ChatArgs,
    #[command(flatten)]
    pub answer: AnswerArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub draft: DraftArgs,
}

/// How far an answer goes.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Answer")]
pub struct AnswerArgs {
    /// Tokens to generate; -1 goes on until the text or the context ends [default: -1; the demo model's: 200]
    #[arg(short = 'n', long, alias = "predict", value_name = "N", env = "LLAMA_ARG_N_PREDICT")]
    #[arg(allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(-1..))]
    pub n_predict: Option<i64>,
    /// Text that ends the answer and is not part of it; repeatable
    #[arg(short = 'r', long, visible_alias = "reverse-prompt", value_name = "TEXT")]
    #[arg(allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// Go on past end-of-text tokens
    #[arg(long)]
    pub ignore_eos: bool,
    /// Show control tokens as text; short form -sp
    #[arg(long)]
    pub special: bool,
    /// Plain completion, never a chat; short form -no-cnv
    #[arg(long)]
    pub no_conversation: bool,
    /// Take backslashes in -p, --stop and --dry-sequence-breaker as they are; else \n, \t, \x1b and their like stand for
    /// what they do in C
    #[arg(long)]
    pub no_escape: bool,
}

/// `bilayer plan`.
#[derive(Args, Debug)]
pub struct Plan {
    /// Plan for a machine that a TOML file describes, not for this one
    #[arg(long, value_name = "FILE")]
    pub machine: Option<PathBuf>,
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
}

/// `bilayer verify`.
#[derive(Args, Debug)]
#[command(after_help = "Exits with 1 if an op is out of its bound.")]
pub struct Verify {
    /// What is taken to be right: cpu, cpu:LEVEL, reference or gpu
    #[arg(long, value_name = "BACKEND", default_value = "cpu")]
    pub a: String,
    /// What is checked [default: gpu, or reference where there is no adapter]
    #[arg(long, value_name = "BACKEND")]
    pub b: Option<String>,
    /// The text to run; without -p, -f and --tokens a line of Shakespeare
    #[arg(short, long, value_name = "TEXT", conflicts_with_all = ["file", "tokens"])]
    #[arg(allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// File with the text
    #[arg(short, long, value_name = "FILE", conflicts_with = "tokens")]
    pub file: Option<PathBuf>,
    /// The tokens to run, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub tokens: Vec<u32>,
    /// Write the logits of b, float32 [tokens, vocab]
    #[arg(long, value_name = "FILE.npy")]
    pub logits: Option<PathBuf>,
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
}

/// `bilayer devices`.
#[derive(Args, Debug)]
pub struct Devices {
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
}

/// `bilayer inspect`.
#[derive(Args, Debug)]
pub struct Inspect {
    /// GGUF file, the first of its shards if it has several
    #[arg(value_name = "PATH", required_unless_present = "model")]
    pub path: Option<PathBuf>,
    /// The same as PATH
    #[arg(short, long, value_name = "PATH", conflicts_with = "path")]
    pub model: Option<PathBuf>,
    /// Compute the SHA-256 of the file
    #[arg(long)]
    pub hash: bool,
    /// One JSON document on stdout, with arrays in full
    #[arg(long)]
    pub json: bool,
}

/// `bilayer tokenize`.
#[derive(Args, Debug)]
pub struct Tokenize {
    /// The text; without TEXT, -f and --jsonl it is read from a pipe
    #[arg(value_name = "TEXT", conflicts_with_all = ["prompt", "file", "jsonl"])]
    pub text: Option<String>,
    /// The same as TEXT
    #[arg(short, long, value_name = "TEXT", conflicts_with_all = ["file", "jsonl"])]
    #[arg(allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// File with the text
    #[arg(short, long, value_name = "FILE", conflicts_with = "jsonl")]
    pub file: Option<PathBuf>,
    /// File with a JSON string a line (`-` for stdin); prints an array of ids a line
    #[arg(long, value_name = "FILE")]
    pub jsonl: Option<PathBuf>,
    /// Add no special tokens
    #[arg(long)]
    pub no_bos: bool,
    /// Treat special tokens in the text as plain text
    #[arg(long)]
    pub no_parse_special: bool,
    /// Take backslashes in TEXT and -p as they are; else \n, \t, \x1b and their like stand for what they do in C
    #[arg(long)]
    pub no_escape: bool,
    /// Print the ids alone, as one array
    #[arg(long, conflicts_with_all = ["json", "jsonl"])]
    pub ids: bool,
    /// One JSON document on stdout; pieces that are no whole characters show U+FFFD there (the table shows their bytes)
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub vocabulary: VocabularyArgs,
}

/// `bilayer detokenize`.
#[derive(Args, Debug)]
pub struct Detokenize {
    /// Token ids, separated by commas or blanks; without them they are read from a pipe
    #[arg(value_name = "IDS")]
    pub ids: Vec<String>,
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub vocabulary: VocabularyArgs,
}

/// Whose vocabulary.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub struct VocabularyArgs {
    /// GGUF file with the vocabulary; without it the embedded demo model's
    #[arg(short, long, value_name = "PATH", env = "LLAMA_ARG_MODEL")]
    pub model: Option<PathBuf>,
}

/// How a switch's variable is read: 1, true, on, yes or 0, false, off, no.
fn switch() -> BoolishValueParser {
    BoolishValueParser::new()
}
