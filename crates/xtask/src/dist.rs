//! `cargo xtask dist`: the packages of a release for Linux, made from the commit that is checked out.
//!
//! A static program has no dynamic loader: musl's `dlopen` fails in it, and Vulkan is found by `dlopen`. So there are two
//! builds for each machine: one linked with an old glibc, which runs on every distribution that has this version or a later
//! one and uses GPUs, and one linked statically with musl, which runs anywhere and computes on the CPU. Both choose the CPU's
//! kernels when they run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use anyhow::{Context, Result, bail};

use crate::{output, target_folder, venv};

mod archive;
mod compile;
mod debian;
mod emulator;
mod inspect;
mod installer;
mod inventory;

use emulator::Emulator;

pub const USAGE: &str = "\
cargo xtask dist [--verify] [PACKAGE ...]
                              build the packages of a release from the commit that is checked out (in target/dist/first/packages):
                              x86_64-linux, x86_64-linux-static, aarch64-linux, aarch64-linux-static, or those named;
                              each is checked and installed. --verify builds all twice, in two folders, and compares";

/// Packages of PyPI: the compiler and linker for all targets, and what has cargo use it. A release is built with these
/// versions only, for they decide its bits.
const PACKAGES: &[&str] = &["ziglang==0.17.1", "cargo-zigbuild==0.24.0"];

/// The oldest glibc that a build for glibc runs with: Debian 10, Ubuntu 18.10, RHEL 8.
const GLIBC: &str = "2.28";

/// A package: how the program is built for a machine.
#[derive(Debug)]
struct Package {
    name: &'static str,
    target: &'static str,
    /// What cargo builds without GPUs.
    features: &'static [&'static str],
    /// Debian's name of the machine, for builds that are packed for it.
    debian: Option<&'static str>,
}

const CPU_ONLY: &[&str] = &["--no-default-features", "--features", "cli,hub"];

/// All packages.
const ALL: [Package; 4] = [
    Package {
        name: "x86_64-linux-static",
        target: "x86_64-unknown-linux-musl",
        features: CPU_ONLY,
        debian: None,
    },
    Package {
        name: "x86_64-linux",
        target: "x86_64-unknown-linux-gnu",
        features: &[],
        debian: Some("amd64"),
    },
    Package {
        name: "aarch64-linux-static",
        target: "aarch64-unknown-linux-musl",
        features: CPU_ONLY,
        debian: None,
    },
    Package {
        name: "aarch64-linux",
        target: "aarch64-unknown-linux-gnu",
        features: &[],
        debian: Some("arm64"),
    },
];

impl Package {
    fn is_static(&self) -> bool {
        self.target.ends_with("musl")
    }

    /// The target for zig, with the version of glibc.
    fn zig_target(&self) -> String {
        if self.is_static() { self.target.to_owned() } else { format!("{}.{GLIBC}", self.target) }
    }

    fn emulates(&self) -> bool {
        !self.target.starts_with(std::env::consts::ARCH)
    }
}

/// A checkout of the commit and what is built of it.
struct Workplace {
    /// Sources, build and packages lie below it.
    folder: PathBuf,
    /// The folder with cargo-zigbuild and Python.
    tools: PathBuf,
    /// When the commit was made, in seconds since 1970; every file in a package has this time.
    epoch: String,
    version: String,
    /// Runs programs for another machine, where one is packed.
    emulator: Option<Rc<Emulator>>,
}

impl Workplace {
    fn sources(&self) -> PathBuf {
        self.folder.join("source")
    }

    fn packages(&self) -> PathBuf {
        self.folder.join("packages")
    }

    /// A command that runs a package's program, by the emulator where this machine is another one.
    fn program(&self, package: &Package, program: &Path) -> Command {
        match &self.emulator {
            Some(emulator) if package.emulates() => emulator.command(program),
            _ => Command::new(program),
        }
    }

    /// A command that runs in the sources.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.sources()).env("SOURCE_DATE_EPOCH", &self.epoch);
        command.env("TZ", "UTC").env("LC_ALL", "C").env("CARGO_INCREMENTAL", "0");
        command
    }
}

/// Builds, checks and installs the packages.
pub fn run(args: &[String]) -> Result<()> {
    let (chosen, verifies) = chosen(args)?;
    inventory::ready()?;
    let folder = folder()?;
    let tools = zig()?;
    let commit = commit()?;
    let emulator = if chosen.iter().any(|package| package.emulates()) {
        Some(Rc::new(Emulator::ready(&folder.join("emulator"))?))
    } else {
        None
    };
    let place = |name| Workplace::new(folder.join(name), &commit, &tools, emulator.clone());
    let first = place("first")?;
    let sums = make(&first, &chosen)?;
    if verifies {
        let second = place("second")?;
        compare(&sums, &make(&second, &chosen)?)?;
        eprintln!("xtask: two builds in two folders are equal to the bit");
    }
    installer::check(&first, &chosen)?;
    eprintln!("xtask: {} has\n{sums}", first.packages().display());
    Ok(())
}

/// The commit that is packed, whatever is checked out meanwhile.
fn commit() -> Result<String> {
    let commit = output(Command::new("git").args(["rev-parse", "HEAD"]))?.trim().to_owned();
    if !output(Command::new("git").args(["status", "--porcelain"]))?.is_empty() {
        eprintln!("xtask: the working tree has changes; the packages are of commit {commit}");
    }
    Ok(commit)
}

/// Where everything is made.
fn folder() -> Result<PathBuf> {
    let folder = target_folder()?.join("dist");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// The folder of cargo-zigbuild and of the Python that has zig; both are installed there first if need be.
///
/// # Errors
/// Python's venv or pip fails.
pub fn zig() -> Result<PathBuf> {
    let folder = folder()?;
    let python = venv::ready(&folder.join("venv"), PACKAGES)?;
    Ok(python.parent().context("the environment's folder")?.to_owned())
}

/// The folders that programs are searched in, with one before them.
///
/// # Errors
/// A folder's name has a colon.
pub fn path(folder: &Path) -> Result<std::ffi::OsString> {
    let searched = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(PathBuf::from(folder)).chain(std::env::split_paths(&searched));
    Ok(std::env::join_paths(folders)?)
}

/// The packages that are named, or all, and whether they are built twice.
fn chosen(args: &[String]) -> Result<(Vec<&'static Package>, bool)> {
    let (mut chosen, mut verifies) = (Vec::new(), false);
    for arg in args {
        match ALL.iter().find(|package| package.name == arg) {
            Some(package) => chosen.push(package),
            None if arg == "--verify" => verifies = true,
            None => bail!("{arg}: no package of this name; usage:\n{USAGE}"),
        }
    }
    if chosen.is_empty() {
        chosen = ALL.iter().collect();
    }
    Ok((chosen, verifies))
}

/// Makes the packages and SHA256SUMS; returns its text.
fn make(place: &Workplace, chosen: &[&Package]) -> Result<String> {
    let packages = place.packages();
    if packages.exists() {
        std::fs::remove_dir_all(&packages)?;
    }
    std::fs::create_dir_all(&packages)?;
    for package in chosen {
        eprintln!("xtask: {}", package.name);
        let program = compile::program(place, package)?;
        inspect::check(place, package, &program)?;
        let contents = archive::contents(place, package, &program)?;
        archive::pack(place, &contents)?;
        if let Some(machine) = package.debian {
            debian::pack(place, machine, &contents)?;
        }
        inventory::bill(place, package)?;
    }
    installer::write(place)?;
    let mut files: Vec<String> = Vec::new();
    for file in std::fs::read_dir(&packages)? {
        files.push(file?.file_name().to_string_lossy().into_owned());
    }
    files.sort();
    let sums = output(Command::new("sha256sum").current_dir(&packages).args(&files))?;
    std::fs::write(packages.join("SHA256SUMS"), &sums)?;
    Ok(sums)
}

/// # Errors
/// A file differs, or is in one list only.
fn compare(first: &str, second: &str) -> Result<()> {
    let differs: Vec<&str> = first
        .lines()
        .filter(|line| !second.lines().any(|other| other == *line))
        .chain(second.lines().filter(|line| !first.lines().any(|other| other == *line)))
        .collect();
    if !differs.is_empty() {
        bail!("two builds differ:\n{}", differs.join("\n"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{ALL, chosen, compare};

    #[test]
    fn packages_are_chosen_by_name() {
        let args = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let (all, verifies) = chosen(&[]).unwrap();
        assert_eq!((all.len(), verifies), (ALL.len(), false));
        let (one, verifies) = chosen(&args("--verify aarch64-linux")).unwrap();
        assert_eq!((one[0].target, one.len(), verifies), ("aarch64-unknown-linux-gnu", 1, true));
        assert_eq!(one[0].zig_target(), "aarch64-unknown-linux-gnu.2.28");
        assert!(chosen(&args("amiga")).unwrap_err().to_string().contains("amiga"));
    }

    #[test]
    fn two_builds_that_differ_are_named() {
        assert!(compare("1 a\n2 b\n", "1 a\n2 b\n").is_ok());
        for other in ["1 a\n3 b\n", "1 a\n"] {
            assert!(compare("1 a\n2 b\n", other).unwrap_err().to_string().contains("2 b"));
        }
    }
}
