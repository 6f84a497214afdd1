//! The commands, one file each.

use clap::CommandFactory;

use crate::args::{Cli, Command};
use crate::failure::Failure;

mod detokenize;
mod inspect;
mod man;
mod run;
mod tokenize;

/// Runs a command; `run` on the demo model when none was named. Returns the exit code of a command that ended well
/// or was interrupted.
pub fn execute(command: Option<Command>) -> Result<u8, Failure> {
    match command {
        None => run::execute(&run::unasked()?),
        Some(Command::Run(args)) => run::execute(&args),
        Some(Command::Inspect(args)) => inspect::execute(&args),
        Some(Command::Tokenize(args)) => tokenize::execute(&args),
        Some(Command::Detokenize(args)) => detokenize::execute(&args),
        Some(Command::Completions { shell }) => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "bilayer", &mut script);
            crate::output::text(&String::from_utf8_lossy(&script))?;
            Ok(0)
        }
        Some(Command::Man { out }) => man::execute(out.as_deref()),
    }
}
