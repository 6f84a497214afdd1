//! Programs of crates.io that tasks use.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::{has_program, status, target_folder};

/// A program of crates.io: cargo's subcommand.
pub struct Tool {
    pub name: &'static str,
    pub version: &'static str,
}

/// The path of a program: one that is installed, or else one that is built now (in target/tools; unoptimized, which takes
/// a minute or two instead of many).
///
/// # Errors
/// It cannot be installed; the message names it.
pub fn ready(tool: &Tool) -> Result<PathBuf> {
    let Tool { name, version } = tool;
    if has_program(&[name]) {
        return Ok(PathBuf::from(name));
    }
    let root = target_folder()?.join("tools");
    let program = root.join("bin").join(name);
    if !program.exists() {
        eprintln!("xtask: installing {name} {version} into {}", root.display());
        let mut cargo = Command::new("cargo");
        cargo.args(["install", "--quiet", "--locked", "--debug", "--version", version, "--root"]);
        cargo.arg(&root).arg(name).env("CARGO_PROFILE_DEV_DEBUG", "0");
        cargo.env("CARGO_TARGET_DIR", root.join("build"));
        status(&mut cargo)
            .with_context(|| format!("{name} is needed: cargo install {name}@{version}"))?;
    }
    Ok(program)
}
