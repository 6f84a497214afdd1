//! Virtual environments of Python for tasks that use packages of PyPI.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::status;

/// Makes the environment in `folder` unless it is there, and installs the packages unless these very requirements were
/// installed before. Returns the path of its interpreter.
///
/// # Errors
/// Python or its module venv is missing, or pip fails.
pub fn ready(folder: &Path, packages: &[&str]) -> Result<PathBuf> {
    let python = folder.join("bin/python");
    if !python.exists() {
        status(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    }
    let (note, wanted) = (folder.join("installed.txt"), packages.join("\n"));
    if packages.is_empty() || std::fs::read_to_string(&note).is_ok_and(|known| known == wanted) {
        return Ok(python);
    }
    eprintln!("xtask: installing {} into {}", packages.join(", "), folder.display());
    let mut pip = Command::new(&python);
    status(pip.args(["-m", "pip", "install", "--quiet", "--upgrade"]).args(packages))?;
    std::fs::write(&note, wanted).with_context(|| note.display().to_string())?;
    Ok(python)
}
