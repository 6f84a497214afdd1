//! The commands and their flags, which have llama.cpp's names where it has one.

use std::path::PathBuf;

use bilayer_measure::verify::Side;
use clap::builder::BoolishValueParser;
use clap::{Arg, Args, CommandFactory, Parser, Subcommand, ValueHint};

mod batch;
mod bench;
mod chat;
mod convert;
mod cost;
mod draft;
mod encode;
mod evaluate;
mod foreign;
mod grammar;
mod hub;
mod in_path;
mod lists;
mod lora;
pub mod messages;
mod metadata;
mod model;
mod model_flags;
mod out_path;
mod perplexity;
mod placing;
pub mod precedence;
mod profile;
mod prompt_cache;
mod prune;
mod quantize;
mod sampling;
mod serve;
#[cfg(test)]
mod spelled;
mod synth;
pub mod typed;

pub use batch::{Audit, Batch};
pub use bench::{Bench, Form, Numbers};
pub use chat::{ChatArgs, ReasoningArgs, TemplateArgs};
pub use convert::Convert;
pub use cost::{Cost, PriceArgs};
pub use draft::DraftArgs;
pub use encode::{Classify, Embed, Extract, PoolingArg, Rerank, TextArgs};
pub use evaluate::Evaluate;
pub use grammar::GrammarArgs;
pub use hub::{HubArgs, Models};
#[cfg(test)]
pub use in_path::names_files;
pub use in_path::{LabeledModel, NamedModel, Scaled, path_of};
pub use lora::LoraArgs;
pub use metadata::MetadataArgs;
pub use model::{FlashAttn, ModelArgs};
pub use model_flags::{ModelFlags, Paths};
pub use out_path::OutPath;
pub use perplexity::{Imatrix, Perplexity};
pub(crate) use placing::size;
pub use placing::{AdapterArgs, PlacingArgs};
pub use profile::Profile;
pub use prompt_cache::PromptCacheArgs;
pub use prune::Prune;
pub use quantize::Quantize;
pub use sampling::SamplingArgs;
pub use serve::{LogFormat, Serve, Serving, check_keys};
pub use synth::Synth;

const AFTER: &str = "\
`bilayer run --help` lists the flags of `run`; they have llama.cpp's names. A flag that is not given is read from its LLAMA_ARG_* variable, then from bilayer.toml \
(long flags without dashes: `threads = 8`) in the working directory or in ~/.config/bilayer; then its default applies.

Exit codes: 0 success, 1 `verify` found a difference, `batch` has a refused request, `audit verify` a changed log, 2 usage, 3 `evaluate` is below its floor, 65 bad model file, 66 no such file, 69 no such device, 70 internal error, 73 cannot \
create output, 74 input or output failed, 75 does not fit in memory, 129, 130, 143 ended by SIGHUP, Ctrl-C or SIGTERM.";

/// Run large language models on your own CPU and GPUs.
///
/// The default command is `run`; without a model it runs the demo model embedded in the program.
#[derive(Debug, Parser)]
#[command(name = "bilayer", version, max_term_width = 100, after_help = AFTER)]
#[command(subcommand_required = true, disable_help_subcommand = true)]
#[command(override_usage = "bilayer [run] [OPTIONS]\n       bilayer <COMMAND> [OPTIONS]")]
pub struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands with all their flags: a negative number is a value, and a repeated flag takes its last one.
pub fn command() -> clap::Command {
    let numbers = |arg: Arg| match arg.get_action().takes_values() && !arg.is_positional() {
        true => arg.allow_negative_numbers(true),
        false => arg,
    };
    // Shells complete a path, as they do for a `PathBuf` without being told.
    let paths = |arg: Arg| match OutPath::is_of(&arg) {
        true => arg.value_hint(ValueHint::AnyPath),
        false => arg,
    };
    let cli = Cli::command().args_override_self(true);
    messages::add_flags(cli).mut_subcommands(|command| command.mut_args(|arg| paths(numbers(arg))))
}

/// The number of threads asked for; as in llama.cpp, 0 or less means the default.
pub fn threads(given: Option<i64>) -> Option<usize> {
    given.and_then(|threads| usize::try_from(threads).ok()).filter(|&threads| threads > 0)
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Generate text from a prompt
    Run(Box<RunArgs>),
    /// Serve models over HTTP, compatible with OpenAI's API and llama-server
    #[command(visible_alias = "server")]
    Serve(Box<Serve>),
    /// Answer a file of requests in OpenAI's batch format; run again after an interruption, it goes on
    Batch(Box<Batch>),
    /// Check the log that `batch --audit` writes
    Audit(Audit),
    /// Show placement and memory use without loading the model
    Plan(Box<Plan>),
    /// Measure speed, with llama-bench's tests and names
    Bench(Box<Bench>),
    /// Measure and chart the speedup of each offloaded layer
    Profile(Box<Profile>),
    /// Measure the quality of models on your own cases, beside their speed and cost
    Evaluate(Box<Evaluate>),
    /// Compute what tokens cost on this machine, and from when on it costs less than another offer
    Cost(Box<Cost>),
    /// Compare two backends op by op on the same tokens
    Verify(Box<Verify>),
    /// List the CPU and the GPUs of this machine
    Devices(Devices),
    /// List the models on this machine, with their names for -m
    #[command(visible_aliases = ["list", "ls"])]
    Models(Models),
    /// Show the contents of a model file and what would prevent it from running
    Inspect(Inspect),
    /// Compute embeddings of texts with an encoder
    Embed(Box<Embed>),
    /// Score documents by their relevance to a query
    Rerank(Box<Rerank>),
    /// Classify texts
    Classify(Box<Classify>),
    /// Extract entities from texts, such as names and places
    Extract(Box<Extract>),
    /// Convert text to tokens
    Tokenize(Tokenize),
    /// Convert tokens to text
    Detokenize(Detokenize),
    /// Measure the perplexity of a text, and the divergence from a base model
    Perplexity(Box<Perplexity>),
    /// Compute an importance matrix from a calibration text
    Imatrix(Box<Imatrix>),
    /// Convert a checkpoint folder to a GGUF file
    Convert(Box<Convert>),
    /// Quantize a model file
    Quantize(Box<Quantize>),
    /// Set weights of a model file to zero, and measure the change
    Prune(Box<Prune>),
    /// Write a model of a given shape with random weights
    Synth(Box<Synth>),
    /// Print the version, the features and the devices of this program
    Version(Version),
    /// Print a completion script for a shell
    Completions {
        /// Shell to write the script for
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write one per command
    Man {
        /// Folder to write the pages to; without it, the main page is printed
        #[arg(long, value_name = "DIR")]
        out: Option<OutPath>,
    },
}

/// `bilayer version`.
#[derive(Args, Debug)]
pub struct Version {
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `bilayer run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// The prompt, followed by what comes from a pipe; without -p, -f or --tokens that is the prompt
    #[arg(short, long, value_name = "TEXT", conflicts_with_all = ["file", "tokens"])]
    #[arg(allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// Read the prompt from a file, less one line break at its end
    #[arg(short, long, value_name = "FILE", conflicts_with = "tokens")]
    pub file: Option<PathBuf>,
    /// The prompt as token ids, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub tokens: Vec<u32>,
    /// Print the prompt before the answer
    #[arg(long, alias = "display-prompt")]
    pub echo: bool,
    /// Print the prompt's token ids and their texts on stderr first
    #[arg(long)]
    pub verbose_prompt: bool,
    /// Print no times at the end
    #[arg(long, alias = "no-show-timings")]
    pub no_perf: bool,
    /// With --json, report the N most likely tokens at each position
    #[arg(long, value_name = "N", requires = "json")]
    pub logprobs: Option<usize>,
    /// Write the logits at every prompt token, float32 [tokens, vocab]
    #[arg(long, value_name = "FILE.npy")]
    pub logits: Option<OutPath>,
    /// Write a timeline of all devices, in the trace format that Perfetto opens
    #[arg(long, value_name = "FILE")]
    pub trace: Option<OutPath>,
    /// Print one JSON document; in a chat, one line of JSON per answer
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub chat: ChatArgs,
    #[command(flatten)]
    pub answer: AnswerArgs,
    #[command(flatten)]
    pub grammar: GrammarArgs,
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub draft: DraftArgs,
    #[command(flatten)]
    pub prompt_cache: PromptCacheArgs,
}

/// Where an answer ends and how it is printed.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Answer")]
pub struct AnswerArgs {
    /// Most tokens to generate; -1 sets no limit but the context [default: -1; 200 for the demo model]
    #[arg(short = 'n', long, alias = "predict", value_name = "N", env = "LLAMA_ARG_N_PREDICT")]
    #[arg(value_parser = clap::value_parser!(i64).range(-2..))]
    pub n_predict: Option<i64>,
    /// Stop at this text, which is not printed; repeatable
    #[arg(short = 'r', long, visible_alias = "reverse-prompt", value_name = "TEXT")]
    #[arg(allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// When the context is full, drop the older half of it and go on; a chat always does
    #[arg(long, env = "LLAMA_ARG_CONTEXT_SHIFT", value_parser = switch())]
    #[arg(conflicts_with = "no_context_shift")]
    pub context_shift: bool,
    /// End an answer when the context is full, in a chat too
    #[arg(long, env = "LLAMA_ARG_NO_CONTEXT_SHIFT", value_parser = switch())]
    pub no_context_shift: bool,
    /// First tokens of the prompt that stay when others leave the full context; -1 keeps all of it [default: 0; in a chat,
    /// the system prompt]
    #[arg(long, value_name = "N", env = "LLAMA_ARG_KEEP")]
    pub keep: Option<i64>,
    /// Continue past end-of-text tokens
    #[arg(long)]
    pub ignore_eos: bool,
    /// Print control tokens as text; short form -sp
    #[arg(long)]
    pub special: bool,
    /// Plain completion, never a chat; short form -no-cnv
    #[arg(long, alias = "no-cnv")]
    pub no_conversation: bool,
    /// Leave backslashes in -p, --stop and --dry-sequence-breaker alone; by default \n, \t, \x1b and so on are escapes as
    /// in C
    #[arg(long)]
    pub no_escape: bool,
}

/// `bilayer plan`.
#[derive(Args, Debug)]
pub struct Plan {
    /// Plan for the machine described in a TOML file instead of this one
    #[arg(long, value_name = "FILE", conflicts_with = "simulate")]
    pub machine: Option<PathBuf>,
    /// Say which types and placements meet a target, such as "20 tok/s at 8k, p95 1 s" (of the time to the first token; or
    /// "p95 80 ms per token")
    #[arg(long, value_name = "TARGET")]
    pub r#for: Option<String>,
    /// With --for, the types to compare beside the file's own
    #[arg(long, value_name = "TYPES", value_delimiter = ',', requires = "for")]
    #[arg(default_value = "F16,Q8_0,Q6_K,Q5_K_M,Q4_K_M,Q3_K_M,Q2_K")]
    pub types: Vec<String>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
}

/// `bilayer verify`.
#[derive(Args, Debug)]
#[command(after_help = "The exit code is 1 if the error of an op exceeds its bound.")]
pub struct Verify {
    /// Backend to compare with: cpu, cpu:LEVEL, reference or gpu
    #[arg(long, value_name = "BACKEND", default_value = "cpu")]
    pub a: Side,
    /// Backend to check [default: gpu, or reference without a GPU]
    #[arg(long, value_name = "BACKEND")]
    pub b: Option<Side>,
    /// The text to run; without -p, -f or --tokens, a line of Shakespeare
    #[arg(short, long, value_name = "TEXT", conflicts_with_all = ["file", "tokens"])]
    #[arg(allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// Read the text from a file
    #[arg(short, long, value_name = "FILE", conflicts_with = "tokens")]
    pub file: Option<PathBuf>,
    /// The text as token ids, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub tokens: Vec<u32>,
    /// Write the logits of b, float32 [tokens, vocab]
    #[arg(long, value_name = "FILE.npy")]
    pub logits: Option<OutPath>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
}

/// `bilayer devices`.
#[derive(Args, Debug)]
pub struct Devices {
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `bilayer inspect`.
#[derive(Args, Debug)]
pub struct Inspect {
    /// GGUF file, or the first of its shards
    #[arg(value_name = "PATH", required_unless_present_any = ["model", "hf_repo"])]
    pub path: Option<PathBuf>,
    /// GGUF file, if PATH is not given
    #[arg(short, long, value_name = "PATH", conflicts_with = "path")]
    pub model: Option<PathBuf>,
    /// Compute the SHA-256 of the file
    #[arg(long)]
    pub hash: bool,
    /// Print one JSON document, with arrays in full
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub hub: HubArgs,
}

/// `bilayer tokenize`.
#[derive(Args, Debug)]
pub struct Tokenize {
    /// The text; without TEXT, -f or --jsonl it is read from a pipe
    #[arg(value_name = "TEXT", conflicts_with_all = ["prompt", "file", "jsonl"])]
    pub text: Option<String>,
    /// The text, if TEXT is not given
    #[arg(short, long, value_name = "TEXT", conflicts_with_all = ["file", "jsonl"])]
    #[arg(allow_hyphen_values = true)]
    pub prompt: Option<String>,
    /// Read the text from a file
    #[arg(short, long, value_name = "FILE", conflicts_with = "jsonl")]
    pub file: Option<PathBuf>,
    /// File with one JSON string per line (`-` for stdin); prints one array of ids per line
    #[arg(long, value_name = "FILE")]
    pub jsonl: Option<PathBuf>,
    /// Add no special tokens
    #[arg(long)]
    pub no_bos: bool,
    /// Treat special tokens in the text as plain text
    #[arg(long)]
    pub no_parse_special: bool,
    /// Leave backslashes in TEXT and -p alone; by default \n, \t, \x1b and so on are escapes as in C
    #[arg(long)]
    pub no_escape: bool,
    /// Print only the ids, as one array
    #[arg(long, conflicts_with_all = ["json", "jsonl"])]
    pub ids: bool,
    /// Print the number of tokens at the end
    #[arg(long, conflicts_with_all = ["json", "jsonl"])]
    pub show_count: bool,
    /// Read the text from a pipe, as without TEXT
    #[arg(long, conflicts_with_all = ["text", "prompt", "file", "jsonl"])]
    pub stdin: bool,
    /// Print one JSON document; pieces that are not whole characters appear as U+FFFD there (the table shows their bytes)
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub vocabulary: VocabularyArgs,
}

/// `bilayer detokenize`.
#[derive(Args, Debug)]
pub struct Detokenize {
    /// Token ids, separated by commas or spaces; without IDS they are read from a pipe
    #[arg(value_name = "IDS")]
    pub ids: Vec<String>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub vocabulary: VocabularyArgs,
}

/// The model whose vocabulary is used.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub struct VocabularyArgs {
    /// GGUF file with the vocabulary [default: the embedded demo model]
    #[arg(short, long, value_name = "PATH", env = "LLAMA_ARG_MODEL")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub hub: HubArgs,
}

/// Parses the variable of a switch: 1, true, on, yes or 0, false, off, no.
fn switch() -> BoolishValueParser {
    BoolishValueParser::new()
}
