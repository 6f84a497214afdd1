//! Flags of `perplexity` and `imatrix`.

use std::path::PathBuf;

use clap::Args;

use super::{ModelArgs, OutPath};

/// `bilayer perplexity`.
#[derive(Args, Debug)]
pub struct Perplexity {
    /// File with the text; not needed with --kl, whose file has the tokens
    #[arg(short, long, value_name = "FILE", required_unless_present_any = ["kl", "kl_divergence", "list_devices"])]
    pub file: Option<PathBuf>,
    /// Most windows to score [default: the whole text]
    #[arg(long, value_name = "N", env = "LLAMA_ARG_CHUNKS", allow_negative_numbers = true)]
    #[arg(value_parser = chunks)]
    pub chunks: Option<i64>,
    /// Write the logits in llama.cpp's format, for --kl of another model
    #[arg(long, value_name = "FILE", aliases = ["kl-divergence-base", "save-all-logits"])]
    pub kl_base: Option<OutPath>,
    /// Compare with the logits in a file written by --kl-base or llama-perplexity, over the same windows
    #[arg(long, value_name = "FILE", conflicts_with_all = ["file", "kl_base"])]
    pub kl: Option<PathBuf>,
    /// Read the file of --kl-base as that of --kl, as llama.cpp does
    #[arg(long, requires = "kl_base", hide = true)]
    pub kl_divergence: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// Write a page with the result, in HTML
    #[arg(long, value_name = "FILE")]
    pub html: Option<OutPath>,
    #[command(flatten)]
    pub model: ModelArgs,
}

/// `bilayer imatrix`.
#[derive(Args, Debug)]
pub struct Imatrix {
    /// File with the calibration text; without it, the files of --in-file are only summed
    #[arg(short, long, value_name = "FILE", required_unless_present_any = ["in_file", "list_devices"])]
    pub file: Option<PathBuf>,
    /// File to write; an existing file is replaced once the new one is complete
    #[arg(short, long, value_name = "FILE", default_value = "imatrix.gguf", alias = "output-file")]
    pub output: OutPath,
    /// Windows after which the sums so far are written beside it, to NAME.partial.gguf, from which an interrupted run goes
    /// on; 0 is never; short form -ofreq
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub output_frequency: usize,
    /// Files written by this command or llama-imatrix to add to the sums
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub in_file: Vec<PathBuf>,
    /// Most windows to run [default: the whole text]
    #[arg(long, value_name = "N", env = "LLAMA_ARG_CHUNKS", allow_negative_numbers = true)]
    #[arg(value_parser = chunks)]
    pub chunks: Option<i64>,
    /// Windows to skip at the beginning of the text, such as those of an earlier run
    #[arg(long, value_name = "N", alias = "chunk", default_value_t = 0)]
    pub from_chunk: usize,
    /// Read the names of special tokens in the text as those tokens
    #[arg(long)]
    pub parse_special: bool,
    /// Include the matrix of the output head
    #[arg(long)]
    pub process_output: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
}

/// Parses a number of windows; a negative one means all, as in llama.cpp.
fn chunks(given: &str) -> Result<i64, String> {
    let chunks = given.parse().ok().filter(|chunks| *chunks != 0);
    chunks.ok_or_else(|| "it must be a number of windows from 1 on, or negative for all".to_owned())
}
