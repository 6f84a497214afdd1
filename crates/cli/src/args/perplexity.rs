//! Flags of `perplexity` and `imatrix`.

use std::path::PathBuf;

use clap::Args;

use super::ModelArgs;

/// `bilayer perplexity`.
#[derive(Args, Debug)]
pub struct Perplexity {
    /// File with the text; with --kl it may be left out, for the tokens are in that file
    #[arg(short, long, value_name = "FILE", required_unless_present_any = ["kl", "kl_divergence", "list_devices"])]
    pub file: Option<PathBuf>,
    /// Most windows to score [default: all that the text has]
    #[arg(long, value_name = "N", env = "LLAMA_ARG_CHUNKS", allow_negative_numbers = true)]
    pub chunks: Option<i64>,
    /// Write the logits, to compare another model's with (llama.cpp's form)
    #[arg(long, value_name = "FILE", aliases = ["kl-divergence-base", "save-all-logits"])]
    pub kl_base: Option<PathBuf>,
    /// Compare with the logits in a file that --kl-base or llama-perplexity wrote, over the same windows
    #[arg(long, value_name = "FILE", conflicts_with_all = ["file", "kl_base"])]
    pub kl: Option<PathBuf>,
    /// Take the file of --kl-base for that of --kl, as llama.cpp does
    #[arg(long, requires = "kl_base", hide = true)]
    pub kl_divergence: bool,
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
}

/// `bilayer imatrix`.
#[derive(Args, Debug)]
pub struct Imatrix {
    /// File with the calibration text; without it the files of --in-file are only added up
    #[arg(short, long, value_name = "FILE", required_unless_present_any = ["in_file", "list_devices"])]
    pub file: Option<PathBuf>,
    /// File to write; one that is there is replaced when the new one is complete
    #[arg(short, long, value_name = "FILE", default_value = "imatrix.gguf", alias = "output-file")]
    pub output: PathBuf,
    /// Files of this command or of llama-imatrix whose sums are added
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub in_file: Vec<PathBuf>,
    /// Most windows to run [default: all that the text has]
    #[arg(long, value_name = "N", env = "LLAMA_ARG_CHUNKS", allow_negative_numbers = true)]
    pub chunks: Option<i64>,
    /// Windows at the beginning of the text that are left out, which another run had
    #[arg(long, value_name = "N", alias = "chunk", default_value_t = 0)]
    pub from_chunk: usize,
    /// Look at the matrix of the output head too
    #[arg(long)]
    pub process_output: bool,
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
}
