//! Every flag, once. Names are llama.cpp's wherever it has one.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// llama.cpp's short flags of several letters, which clap does not know, and what they stand for.
const SHORT: &[(&str, &str)] = &[
    ("-ub", "--ubatch-size"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-fa", "--flash-attn"),
    ("-no-cnv", "--no-conversation"),
];

/// Replaces short flags of several letters by their long forms; what follows `--` stays.
pub fn spell_out(typed: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut verbatim = false;
    typed
        .map(|arg| {
            verbatim |= arg == "--";
            let long = SHORT.iter().find(|(short, _)| !verbatim && arg == *short);
            long.map_or(arg, |(_, long)| OsString::from(long))
        })
        .collect()
}

/// Run large language models on the processors you own.
#[derive(Debug, Parser)]
#[command(name = "bilayer", version, about, max_term_width = 100)]
pub struct Cli {
    /// What to do; `run` when nothing is said.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Generate text from a prompt
    Run(Box<Run>),
    /// Show what a model file holds and what would stop it from running
    Inspect(Inspect),
    /// Turn text into tokens
    Tokenize(Tokenize),
    /// Turn tokens into text
    Detokenize(Detokenize),
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

/// Which model, on which cores, with which cache.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// GGUF file, the first of its shards if it has several; without it the embedded demo model
    #[arg(short, long, value_name = "PATH", env = "LLAMA_ARG_MODEL")]
    pub model: Option<PathBuf>,
    /// Context in tokens; 0 is the model's own [default: the model's own, at most 8192]
    #[arg(short, long, value_name = "N", env = "LLAMA_ARG_CTX_SIZE")]
    pub ctx_size: Option<usize>,
    /// Worker threads [default: the physical cores allowed to us]
    #[arg(short, long, value_name = "N", env = "LLAMA_ARG_THREADS")]
    pub threads: Option<usize>,
    /// Prompt tokens accepted at once (logical batch)
    #[arg(short, long, value_name = "N", default_value_t = 2048, env = "LLAMA_ARG_BATCH")]
    pub batch_size: usize,
    /// Tokens in one step (physical batch); short form -ub
    #[arg(long, value_name = "N", default_value_t = 512, env = "LLAMA_ARG_UBATCH")]
    pub ubatch_size: usize,
    /// Type of cached keys: f16, f32, q8_0; short form -ctk
    #[arg(long, value_name = "TYPE", default_value = "f16", env = "LLAMA_ARG_CACHE_TYPE_K")]
    pub cache_type_k: String,
    /// Type of cached values: f16, f32, q8_0; short form -ctv
    #[arg(long, value_name = "TYPE", default_value = "f16", env = "LLAMA_ARG_CACHE_TYPE_V")]
    pub cache_type_v: String,
    /// Tiled attention with its fused neighbours: on, auto; off runs every op by itself for comparison; short form -fa
    #[arg(long, value_name = "WHEN", default_value = "auto", env = "LLAMA_ARG_FLASH_ATTN",
          value_parser = ["on", "off", "auto"])]
    pub flash_attn: String,
    /// Keep the weights in memory
    #[arg(long, env = "LLAMA_ARG_MLOCK")]
    pub mlock: bool,
    /// Read the file into memory instead of mapping it
    #[arg(long, env = "LLAMA_ARG_NO_MMAP")]
    pub no_mmap: bool,
    /// Instruction level: scalar, avx2, avxvnni, avx512vnni, amx [default: the highest there is]
    #[arg(long, value_name = "NAME")]
    pub cpu_level: Option<String>,
}

/// How tokens are chosen.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Seed of the random numbers; -1 takes a new one each time
    #[arg(short, long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    pub seed: i64,
    /// Temperature; 0 takes the most likely token
    #[arg(long, value_name = "X", default_value_t = 0.8)]
    pub temp: f32,
    /// Moves the temperature by up to this much with the entropy
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub dynatemp_range: f32,
    /// Curve of that movement
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub dynatemp_exp: f32,
    /// Keep the k most likely tokens; 0 keeps all
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub top_k: usize,
    /// Keep the most likely tokens up to this mass; 1 keeps all
    #[arg(long, value_name = "X", default_value_t = 0.95)]
    pub top_p: f32,
    /// Keep tokens at least this share as likely as the best; 0 keeps all
    #[arg(long, value_name = "X", default_value_t = 0.05)]
    pub min_p: f32,
    /// Locally typical sampling; 1 is off
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub typical: f32,
    /// Tokens the penalties look back on; -1 is the context, 0 turns them off
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true)]
    pub repeat_last_n: i64,
    /// Penalty on repeated tokens; 1 is off
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub repeat_penalty: f32,
    /// Subtracted from the logit of each token that was there before
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub presence_penalty: f32,
    /// Subtracted for each time a token was there before
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    pub frequency_penalty: f32,
    /// DRY penalty on repeated sequences; 0 is off
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub dry_multiplier: f32,
    /// Growth of the DRY penalty per token
    #[arg(long, value_name = "X", default_value_t = 1.75)]
    pub dry_base: f32,
    /// Longest repetition DRY allows, plus one
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub dry_allowed_length: usize,
    /// Tokens DRY looks back on; -1 is the context
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    pub dry_penalty_last_n: i64,
    /// A token with this text ends a DRY sequence; repeatable [default: newline, colon, quote, star]
    #[arg(long, value_name = "TEXT")]
    pub dry_sequence_breaker: Vec<String>,
    /// Chance of excluding the top choices; 0 is off
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    pub xtc_probability: f32,
    /// What counts as a top choice
    #[arg(long, value_name = "X", default_value_t = 0.1)]
    pub xtc_threshold: f32,
    /// 0 is off, 1 and 2 are mirostat's versions
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub mirostat: u8,
    /// Mirostat's target surprise, bits
    #[arg(long, value_name = "X", default_value_t = 5.0)]
    pub mirostat_ent: f32,
    /// Mirostat's learning rate
    #[arg(long, value_name = "X", default_value_t = 0.1)]
    pub mirostat_lr: f32,
    /// TOKEN+BIAS or TOKEN-BIAS (`15043-1`, `2-inf`) added to a token's logit; repeatable
    #[arg(long, value_name = "TOKEN±BIAS")]
    pub logit_bias: Vec<String>,
}

/// `bilayer run`.
#[derive(Args, Debug)]
pub struct Run {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// The prompt; without -p, -f and --tokens it is read from a piped stdin
    #[arg(short, long, value_name = "TEXT", conflicts_with_all = ["file", "tokens"])]
    pub prompt: Option<String>,
    /// File with the prompt
    #[arg(short, long, value_name = "FILE", conflicts_with = "tokens")]
    pub file: Option<PathBuf>,
    /// The prompt as token ids, separated by commas
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    pub tokens: Vec<u32>,
    /// Tokens to generate; -1 goes on until the text or the context ends
    #[arg(short = 'n', long, value_name = "N", env = "LLAMA_ARG_N_PREDICT", allow_negative_numbers = true)]
    pub n_predict: Option<i64>,
    /// Text that ends the answer; repeatable
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Go on past end-of-text tokens
    #[arg(long)]
    pub ignore_eos: bool,
    /// Plain completion (the default); short form -no-cnv
    #[arg(long)]
    pub no_conversation: bool,
    /// Print the prompt before the answer
    #[arg(long)]
    pub echo: bool,
    /// Report the N most likely tokens beside each, in --json
    #[arg(long, value_name = "N", requires = "json")]
    pub logprobs: Option<usize>,
    /// Write the logits of every prompt position, float32 [tokens, vocab]
    #[arg(long, value_name = "FILE.npy")]
    pub logits: Option<PathBuf>,
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
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
}

/// `bilayer tokenize`.
#[derive(Args, Debug)]
pub struct Tokenize {
    /// GGUF file with the vocabulary; without it the embedded demo model's
    #[arg(short, long, value_name = "PATH", env = "LLAMA_ARG_MODEL")]
    pub model: Option<PathBuf>,
    /// The text; without TEXT, -p, -f and --jsonl it is read from stdin
    #[arg(value_name = "TEXT", conflicts_with_all = ["prompt", "file", "jsonl"])]
    pub text: Option<String>,
    /// The same as TEXT
    #[arg(short, long, value_name = "TEXT", conflicts_with_all = ["file", "jsonl"])]
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
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
}

/// `bilayer detokenize`.
#[derive(Args, Debug)]
pub struct Detokenize {
    /// GGUF file with the vocabulary; without it the embedded demo model's
    #[arg(short, long, value_name = "PATH", env = "LLAMA_ARG_MODEL")]
    pub model: Option<PathBuf>,
    /// Token ids, separated by commas or blanks; without them they are read from stdin
    #[arg(value_name = "IDS")]
    pub ids: Vec<String>,
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
}
