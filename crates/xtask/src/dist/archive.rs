//! The folder of a package, and its archive.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::{Package, Workplace, inventory};
use crate::{output, status};

/// Shells for which there are completions, and the names of their files.
pub const SHELLS: [(&str, &str); 3] =
    [("bash", "bilayer.bash"), ("zsh", "_bilayer"), ("fish", "bilayer.fish")];

/// Documents of the sources.
const DOCUMENTS: [&str; 3] = ["README.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// The licences of dependencies.
pub const LICENSES: &str = "THIRD-PARTY-LICENSES.txt";

/// Lays out the folder of a package; returns it. Completions and manual pages are the program's own.
///
/// # Errors
/// The program fails, or files cannot be written.
pub fn contents(place: &Workplace, package: &Package, program: &Path) -> Result<PathBuf> {
    let name = format!("bilayer-{}-{}", place.version, package.name);
    let folder = place.folder.join("contents").join(name);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    let (completions, pages) = (folder.join("completions"), folder.join("man"));
    std::fs::create_dir_all(&completions)?;
    std::fs::copy(program, folder.join("bilayer"))?;
    for document in DOCUMENTS {
        std::fs::copy(place.sources().join(document), folder.join(document))
            .with_context(|| document.to_owned())?;
    }
    for (shell, file) in SHELLS {
        let script = output(place.program(package, program).args(["completions", shell]))?;
        std::fs::write(completions.join(file), script)?;
    }
    status(place.program(package, program).args(["man", "--out"]).arg(&pages))?;
    if std::fs::read_dir(&pages)?.count() < 10 {
        bail!("{}: fewer than ten manual pages", pages.display());
    }
    std::fs::write(folder.join(LICENSES), inventory::licenses(place, package)?)?;
    Ok(folder)
}

/// Packs a folder into an archive beside the other packages. Order, owners and times do not depend on the machine.
///
/// # Errors
/// tar or gzip fails.
pub fn pack(place: &Workplace, folder: &Path) -> Result<()> {
    let name = folder.file_name().context("a folder with a name")?.to_string_lossy();
    let tar = place.packages().join(format!("{name}.tar"));
    status(Command::new("chmod").args(["-R", "u=rwX,go=rX"]).arg(folder))?;
    status(
        Command::new("tar")
            .args(["--format=ustar", "--sort=name", "--owner=root:0", "--group=root:0"])
            .args(["--numeric-owner", "--mtime", &format!("@{}", place.epoch)])
            .arg("--directory")
            .arg(folder.with_file_name(""))
            .arg("--create")
            .arg("--file")
            .args([tar.as_os_str(), name.as_ref().as_ref()]),
    )?;
    status(Command::new("gzip").args(["--no-name", "-9", "--force"]).arg(tar))
}
