//! The commands, one file each.

use std::path::PathBuf;

use crate::args::Command;
use crate::failure::Failure;
use crate::{locate, overwrite, version};

mod audit;
mod batch;
mod bench;
mod classify;
mod completions;
mod convert;
mod cost;
mod detokenize;
mod devices;
mod embed;
mod encode;
mod evaluate;
mod extract;
mod imatrix;
mod inspect;
mod man;
mod models;
mod perplexity;
mod plan;
pub mod profile;
mod prune;
mod quantize;
mod rerank;
mod run;
mod serve;
mod synth;
mod tokenize;
mod verify;

/// Runs a command that writes the files `outputs`. Returns the exit code of a command that succeeded or was interrupted.
pub fn execute(mut command: Command, outputs: &[PathBuf]) -> Result<u8, Failure> {
    if command.model_flags().is_some_and(|flags| flags.lists_devices()) {
        return devices::list();
    }
    let models = locate::models(&mut command)?;
    overwrite::check_models(outputs, &models)?;
    match command {
        Command::Run(args) => run::execute(&args),
        Command::Serve(args) => serve::execute(&args),
        Command::Batch(args) => batch::execute(&args),
        Command::Audit(args) => audit::execute(&args),
        Command::Plan(args) => plan::execute(&args),
        Command::Bench(args) => bench::execute(&args),
        Command::Profile(args) => profile::execute(&args),
        Command::Evaluate(args) => evaluate::execute(&args),
        Command::Cost(args) => cost::execute(&args),
        Command::Verify(args) => verify::execute(&args),
        Command::Devices(args) => devices::execute(&args),
        Command::Models(args) => models::execute(&args),
        Command::Inspect(args) => inspect::execute(&args),
        Command::Embed(args) => embed::execute(&args),
        Command::Rerank(args) => rerank::execute(&args),
        Command::Classify(args) => classify::execute(&args),
        Command::Extract(args) => extract::execute(&args),
        Command::Tokenize(args) => tokenize::execute(&args),
        Command::Detokenize(args) => detokenize::execute(&args),
        Command::Perplexity(args) => perplexity::execute(&args),
        Command::Imatrix(args) => imatrix::execute(&args),
        Command::Convert(args) => convert::execute(&args),
        Command::Quantize(args) => quantize::execute(&args),
        Command::Prune(args) => prune::execute(&args),
        Command::Synth(args) => synth::execute(&args),
        Command::Version(args) => version::execute(&args),
        Command::Completions { shell } => completions::execute(shell),
        Command::Man { out } => man::execute(out.as_deref()),
    }
}
