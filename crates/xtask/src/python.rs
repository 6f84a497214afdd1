//! `cargo xtask python`: builds the wheel of the Python package, installs it in an environment of its own, and tests it there.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{ray, status, venv};

pub const USAGE: &str = "\
cargo xtask python [--wheel FILE] [--profile NAME] [-- ARGS]
                              build the wheel of the Python package (in target/python; --wheel takes a ready one), install
                              it in an environment of its own and run its tests there with pytest (ARGS go to pytest)";

/// What the tests use beside the wheel.
const PACKAGES: &[&str] = &[
    "maturin>=1.16,<2",
    "pytest>=8,<10",
    "numpy>=1.24",
    "pandas>=2",
    "langchain-community",
    "llama-index-core",
];

/// It requires llama-cpp-python, in whose place the package is tested.
const WITHOUT_REQUIREMENTS: &str = "llama-index-llms-llama-cpp";

/// A checkpoint of an encoder, where the machine has it.
const ENCODER: &str = "../shared/data/all-minilm-l6-v2/model";

/// The tests.
const TESTS: &str = "crates/python/tests";

/// What the flags ask for.
#[derive(Debug, PartialEq)]
struct Flags<'a> {
    wheel: Option<&'a str>,
    profile: &'a str,
    pytest: &'a [String],
}

impl<'a> Flags<'a> {
    fn read(mut args: &'a [String]) -> Result<Flags<'a>> {
        let mut flags = Flags { wheel: None, profile: "release", pytest: &[] };
        loop {
            match args {
                [] => return Ok(flags),
                [flag, rest @ ..] if flag == "--" => return Ok(Flags { pytest: rest, ..flags }),
                [flag, value, rest @ ..] if flag == "--wheel" => {
                    flags.wheel = Some(value);
                    args = rest;
                }
                [flag, value, rest @ ..] if flag == "--profile" => {
                    flags.profile = value;
                    args = rest;
                }
                [other, ..] => bail!("{other}: unknown; usage:\n{USAGE}"),
            }
        }
    }
}

/// Builds, installs, tests.
pub fn run(args: &[String]) -> Result<()> {
    let flags = Flags::read(args)?;
    let folder = std::path::absolute("target/python")?;
    std::fs::create_dir_all(&folder)?;
    let python = venv::ready(&folder.join("venv"), PACKAGES)?;
    status(&mut pip(&python, &[WITHOUT_REQUIREMENTS]))?;
    install(&python, &folder, flags.wheel, flags.profile)?;
    let programs = python.parent().context("the environment's folder")?;
    let searched = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(programs.to_owned()).chain(std::env::split_paths(&searched));
    let mut tests = Command::new(&python);
    tests.args(["-m", "pytest", "-p", "no:cacheprovider", TESTS]);
    tests.args(["--ignore", ray::TESTS]).args(flags.pytest);
    tests.env("PATH", std::env::join_paths(folders)?).env("PYTHONDONTWRITEBYTECODE", "1");
    tests.env("DEMO", std::path::absolute("crates/cli/assets/demo.gguf")?);
    if let Some(encoder) = encoder(&programs.join("bilayer"), &folder)? {
        tests.env("ENCODER", encoder);
    }
    status(&mut tests)
}

/// pip that installs something without its requirements.
fn pip(python: &Path, arguments: &[&str]) -> Command {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps"]).args(arguments);
    pip
}

/// Installs the wheel, which is built in `folder` unless one is given.
///
/// # Errors
/// The build or pip fails.
pub fn install(python: &Path, folder: &Path, wheel: Option<&str>, profile: &str) -> Result<()> {
    let wheel = match wheel {
        Some(wheel) => PathBuf::from(wheel),
        None => build(python, folder, profile)?,
    };
    status(pip(python, &["--force-reinstall"]).arg(wheel))
}

/// Builds the wheel; returns its path.
fn build(python: &Path, folder: &Path, profile: &str) -> Result<PathBuf> {
    let wheels = folder.join("wheels");
    if wheels.exists() {
        std::fs::remove_dir_all(&wheels)?;
    }
    let mut maturin = Command::new(python);
    maturin.args(["-m", "maturin", "build", "--locked", "--profile", profile, "--out"]);
    status(maturin.arg(&wheels))?;
    let mut made = std::fs::read_dir(&wheels)?;
    let wheel = made.next().with_context(|| format!("no wheel in {}", wheels.display()))?;
    Ok(wheel?.path())
}

/// An encoder's file, converted once by the program; `None` where the machine has no checkpoint.
///
/// # Errors
/// The program fails.
pub fn encoder(bilayer: &Path, folder: &Path) -> Result<Option<PathBuf>> {
    let path = folder.join("minilm.gguf");
    if !Path::new(ENCODER).exists() {
        return Ok(None);
    }
    if !path.exists() {
        let mut convert = Command::new(bilayer);
        convert.args(["convert", ENCODER, "--outtype", "f16", "--outfile"]);
        status(convert.arg(&path))?;
    }
    Ok(Some(path))
}

#[cfg(test)]
mod tests {
    use super::Flags;

    #[test]
    fn flags_are_read_in_any_order() {
        let args = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let given = args("--profile dev --wheel a.whl -- -k chat");
        let flags = Flags::read(&given).unwrap();
        assert_eq!((flags.wheel, flags.profile, flags.pytest), (Some("a.whl"), "dev", &given[5..]));
        let plain = Flags { wheel: None, profile: "release", pytest: &[] };
        assert_eq!(Flags::read(&[]).unwrap(), plain);
        assert!(Flags::read(&args("--whel a")).unwrap_err().to_string().contains("--whel"));
    }
}
