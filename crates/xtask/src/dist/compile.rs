//! The commit in a folder of its own, and the program built there.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use anyhow::{Context, Result};

use super::{Emulator, Package, Workplace};
use crate::{output, status};

impl Workplace {
    /// Checks the commit out below `folder`.
    ///
    /// # Errors
    /// git fails.
    pub fn new(
        folder: PathBuf,
        commit: &str,
        tools: &Path,
        emulator: Option<Rc<Emulator>>,
    ) -> Result<Workplace> {
        std::fs::create_dir_all(&folder)?;
        let source = folder.join("source");
        let git = |folder: &str, arguments: &[&str]| {
            output(Command::new("git").args(["-C", folder]).args(arguments))
                .map(|text| text.trim().to_owned())
        };
        let path = source.to_str().context("a folder whose name is no text")?;
        if source.exists() {
            git(path, &["fetch", "--quiet", "origin", commit])?;
        } else {
            git(".", &["clone", "--quiet", "--shared", "--no-checkout", ".", path])?;
        }
        git(path, &["checkout", "--quiet", "--force", commit])?;
        git(path, &["clean", "--quiet", "--force", "-d"])?;
        let epoch = git(path, &["log", "-1", "--format=%ct"])?;
        let version = git(path, &["show", "HEAD:Cargo.toml"])?;
        let version = version.lines().find_map(|line| line.strip_prefix("version = "));
        let version = version.context("Cargo.toml has no version")?.trim_matches('"').to_owned();
        Ok(Workplace { folder, tools: tools.to_owned(), epoch, version, emulator })
    }
}

/// Builds the program for a package; returns its path.
///
/// # Errors
/// The target's standard library cannot be had, or the build fails.
pub fn program(place: &Workplace, package: &Package) -> Result<PathBuf> {
    status(Command::new("rustup").args(["target", "add", package.target]))?;
    let target = place.folder.join("target");
    let mut cargo = place.command(place.tools.join("cargo-zigbuild"));
    cargo.args(["zigbuild", "--release", "--locked", "--package", "bilayer", "--bin", "bilayer"]);
    cargo.args(["--target", &package.zig_target()]).args(package.features);
    cargo.env("CARGO_TARGET_DIR", &target).env("PATH", super::path(&place.tools)?);
    let moved = moved(place)?;
    cargo.env("RUSTFLAGS", flags("--remap-path-prefix", &moved));
    cargo.env("CFLAGS", flags("-ffile-prefix-map", &moved));
    status(&mut cargo)?;
    Ok(target.join(package.target).join("release/bilayer"))
}

/// Folders whose names may appear in a program, and what stands there instead.
fn moved(place: &Workplace) -> Result<Vec<(PathBuf, &'static str)>> {
    let home = std::env::home_dir().context("no home folder")?;
    let cargo = std::env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    Ok(vec![(place.sources(), "/bilayer"), (cargo, "/cargo")])
}

/// A compiler's flags, one for each folder.
fn flags(name: &str, moved: &[(PathBuf, &str)]) -> String {
    let flag = |(from, to): &(PathBuf, &str)| format!("{name}={}={to}", from.display());
    moved.iter().map(flag).collect::<Vec<_>>().join(" ")
}
