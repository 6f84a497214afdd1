//! The `bilayer` binary: everything it does is in the `bilayer-cli` library.

use std::process::ExitCode;

fn main() -> ExitCode {
    bilayer_cli::main()
}
