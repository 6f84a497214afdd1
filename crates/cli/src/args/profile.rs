//! Flags of `profile`.

use clap::Args;

use super::{ModelArgs, OutPath};

/// `bilayer profile`.
#[derive(Args, Debug)]
pub struct Profile {
    /// Folder for profile.html, SVG charts and profile.json; `none` writes no files
    #[arg(long, value_name = "DIR", default_value = "profile")]
    pub out: OutPath,
    /// Prompt length in tokens [default: one to two seconds' worth]
    #[arg(short = 'p', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub n_prompt: Option<u32>,
    /// Tokens to decode at each number of layers in each round [default: about half a second's worth]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub n_gen: Option<u32>,
    /// Rounds, alternately upwards and downwards; medians are reported
    #[arg(short, long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repetitions: u32,
    /// Write a timeline of the last steps, in the trace format that Perfetto opens
    #[arg(long, value_name = "FILE")]
    pub trace: Option<OutPath>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArgs,
}
