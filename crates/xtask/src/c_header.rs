//! `cargo xtask c-header`: writes the header of the C interface with cbindgen.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{has_program, status};

pub const USAGE: &str = "\
cargo xtask c-header          write crates/capi/include/bilayer.h anew with cbindgen 0.29 (cargo install cbindgen)";

/// Runs cbindgen.
pub fn run(args: &[String]) -> Result<()> {
    if !args.is_empty() {
        bail!("{}: unknown; usage:\n{USAGE}", args.join(" "));
    }
    if !has_program(&["cbindgen"]) {
        bail!("cbindgen is needed: cargo install cbindgen@0.29");
    }
    let mut cbindgen = Command::new("cbindgen");
    cbindgen.args(["--quiet", "--config", "crates/capi/cbindgen.toml", "--output"]);
    status(cbindgen.args(["crates/capi/include/bilayer.h", "crates/capi"]))
}
