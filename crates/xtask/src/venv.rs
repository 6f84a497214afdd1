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
    if !is_whole(&python, &note) {
        // What an attempt that failed has left is cleared, the note with it.
        let clear: &[&str] = if folder.exists() { &["--clear"] } else { &[] };
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

/// Whether an environment has its interpreter and pip; a note of installed packages stands for pip. The interpreter is a link
/// to the system's, which may be gone.
fn is_whole(python: &Path, note: &Path) -> bool {
    python.exists() && (note.exists() || has_pip(python))
}

/// Whether the environment of an interpreter is complete: pip comes last.
fn has_pip(python: &Path) -> bool {
    let ran = Command::new(python).args(["-m", "pip", "--version"]).output();
    ran.is_ok_and(|ran| ran.status.success())
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::{has_pip, is_whole};

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

    #[test]
    fn an_environment_without_its_interpreter_is_not_ready() {
        let folder = std::env::temp_dir().join(format!("xtask-note-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let [note, real, dangling] = ["note", "real", "dangling"].map(|name| folder.join(name));
        std::fs::write(&note, "").unwrap();
        std::fs::write(&real, "").unwrap();
        std::os::unix::fs::symlink("missing", &dangling).unwrap();
        let found = [&real, &dangling, &folder.join("missing")].map(|path| is_whole(path, &note));
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, [true, false, false]);
    }
}
