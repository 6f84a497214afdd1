//! Flags of `batch` and `audit`.

use std::path::PathBuf;

use clap::Args;

use super::{OutPath, Serving};

/// `bilayer batch`.
#[derive(Args, Clone, Debug)]
pub struct Batch {
    /// Requests, a JSON object per line: custom_id, method (POST), url (such as /v1/chat/completions) and body
    #[arg(value_name = "IN")]
    pub input: PathBuf,
    /// Answers, a JSON object per line, in the order of the requests. Until all are there, they are kept in OUT.journal,
    /// with which the same command goes on after an interruption
    #[arg(value_name = "OUT")]
    pub output: OutPath,
    /// Append a record of every answer to a log whose lines are chained by hashes; `bilayer audit verify` checks it
    #[arg(long, value_name = "FILE")]
    pub audit: Option<OutPath>,
    /// Replace OUT if it exists
    #[arg(long)]
    pub overwrite: bool,
    #[command(flatten)]
    pub serving: Serving,
}

/// `bilayer audit`.
#[derive(Args, Debug)]
pub struct Audit {
    /// `verify`: check that no line of the log was changed, removed or added, and that files are those it records
    #[arg(value_name = "ACTION", value_parser = ["verify"])]
    pub action: String,
    /// The log
    #[arg(value_name = "PATH")]
    pub log: PathBuf,
    /// The requests of its last batch
    #[arg(long, value_name = "IN")]
    pub requests: Option<PathBuf>,
    /// The answers of its last batch
    #[arg(long, value_name = "PATH")]
    pub answers: Option<PathBuf>,
    /// The hash of the last line, as printed when it was written: shows that the end is not missing
    #[arg(long, value_name = "SHA256")]
    pub head: Option<String>,
}
