//! The flags of `profile`.

use std::path::PathBuf;

use clap::Args;

use super::ModelArgs;

/// `bilayer profile`.
#[derive(Args, Debug)]
pub struct Profile {
    /// Folder for profile.html, the charts as SVG and profile.json; `none` writes nothing
    #[arg(long, value_name = "DIR", default_value = "profile")]
    pub out: PathBuf,
    /// Tokens of the prompt [default: as many as take a second or two]
    #[arg(short = 'p', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub n_prompt: Option<u32>,
    /// Tokens decoded at each number of layers in each round [default: for about half a second]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub n_gen: Option<u32>,
    /// Rounds, back and forth; the median of each figure is kept
    #[arg(short, long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    /// Write what ran when in the last steps, in the trace format that Perfetto opens
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// One JSON document on stdout
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
}
