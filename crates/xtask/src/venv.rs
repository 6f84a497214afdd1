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
    let (note, wanted) = (folder.join("installed.txt"), packages.join("\n"));
    if !note.exists() && !has_pip(&python) {
        // What an attempt that failed has left is cleared.
        let clear: &[&str] = if python.exists() { &["--clear"] } else { &[] };
        status(Command::new("python3").args(["-m", "venv"]).args(clear).arg(folder))?;
    }
    if packages.is_empty() || std::fs::read_to_string(&note).is_ok_and(|known| known == wanted) {
        return Ok(python);
    }
    eprintln!("xtask: installing {} into {}", packages.join(", "), folder.display());
    let mut pip = Command::new(&python);
    status(pip.args(["-m", "pip", "install", "--quiet", "--upgrade"]).args(packages))?;
    std::fs::write(&note, wanted).with_context(|| note.display().to_string())?;
    Ok(python)
}

/// Whether the environment of an interpreter is whole: pip comes last.
fn has_pip(python: &Path) -> bool {
    let ran = Command::new(python).args(["-m", "pip", "--version"]).output();
    ran.is_ok_and(|ran| ran.status.success())
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::has_pip;

    #[test]
    fn an_environment_without_pip_is_not_ready() {
        let folder = std::env::temp_dir().join(format!("xtask-venv-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let found = [0, 1].map(|code| {
            let python = folder.join(format!("python{code}"));
            std::fs::write(&python, format!("#!/bin/sh\nexit {code}\n")).unwrap();
            std::fs::set_permissions(&python, PermissionsExt::from_mode(0o755)).unwrap();
            has_pip(&python)
        });
        let has_missing = has_pip(&folder.join("missing"));
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!((found, has_missing), ([true, false], false));
    }
}
